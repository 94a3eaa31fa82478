"""``python -m benchmarks.difficulty [--episodes N] [--write]``: how hard the levels of every registered id are.

Levels are those of the seeds 0 to N - 1. Everything about a level is exact (dynamic programming, nothing is rolled
out); the intervals are 95 % intervals of the mean over levels, 1.96 standard errors. Returns are those of the game,
without format penalties. ``--write`` renews the tables of ``docs/environments/difficulty.md``.
"""

from __future__ import annotations

import argparse
import datetime
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ragen_envs import TABLE, Game, TextEnv
from ragen_envs.sokoban import Sokoban, solve

PAGE = Path(__file__).parents[1] / "docs" / "environments" / "difficulty.md"
BEGIN, END = "<!-- begin: written by the command -->", "<!-- end: written by the command -->"
ACTIONS = range(1, 11)
"""Budgets of primitive actions, a decision after each."""
TURNS = ((10, 1), (5, 5), (5, 2))
"""Budgets of turns x actions per turn, beside the one that the id is registered with."""


@dataclass(frozen=True)
class Mean:
    """A mean over levels and half the width of its 95 % interval."""

    value: float
    half: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean:
        """The mean of one number per level; NaN if there is none."""
        x = np.fromiter(values, np.float64)
        error = x.std(ddof=1) / math.sqrt(len(x)) if len(x) > 1 else 0.0
        return cls(float(x.mean()) if len(x) else math.nan, 1.96 * float(error))

    def text(self, scale: float = 1.0, digits: int = 1) -> str:
        """``mean ± half``; the mean alone where all levels agree."""
        if math.isnan(self.value):
            return "-"
        half = f" ± {scale * self.half:.{digits}f}" if scale * self.half >= 0.05 * 10 ** (1 - digits) else ""
        return f"{scale * self.value:.{digits}f}{half}"


@dataclass(frozen=True)
class Lengths:
    """Levels of one split: how many differ, and how long their shortest solutions are."""

    levels: int
    different: int
    mean: Mean
    median: float
    longest: int
    within: dict[int, Mean]
    """Share of levels whose optimum is at most that many actions."""
    one_push: Mean
    """Share of levels that one push solves; NaN where nothing is pushed."""


@dataclass(frozen=True)
class Play:
    """Expected success and return under one budget."""

    success: Mean
    reward: Mean


class Budget(NamedTuple):
    """How much may be played, and how."""

    turns: int
    per_turn: int | None
    """Most actions of a turn of optimal play, which sees the state only between turns; None: random actions."""
    actions: int
    """Most actions in all."""


def game_of(env_id: str) -> tuple[Game[Any, Any], Budget]:
    """The game of an id and the budget that it is registered with."""
    env = gymnasium.make(env_id, disable_env_checker=True).unwrapped
    assert isinstance(env, TextEnv)
    return env.game, Budget(env.max_turns, env.max_actions_per_turn, env.max_actions)


def lengths(game: Game[Any, Any], levels: Sequence[Any]) -> Lengths:
    """Length of the shortest solutions of ``levels``."""
    values = game.oracle_many([game.initial(level) for level in levels], 0)
    if values is None:
        raise ValueError(f"the game {game.name} has no oracle")
    steps = values.optimal_steps
    pushes = [solve(level, objective="pushes").pushes for level in levels] if isinstance(game, Sokoban) else []
    return Lengths(
        len(levels),
        len({game.level_key(level) for level in levels}),
        Mean.of(steps),
        float(np.median(steps)),
        int(steps.max()),
        {n: Mean.of(steps <= n) for n in (1, 2, 5, 10)},
        Mean.of(n == 1 for n in pushes),
    )


def expected(game: Game[Any, Any], levels: Sequence[Any], budgets: Iterable[Budget]) -> dict[Budget, Play]:
    """Expected success and return under each budget, means over ``levels``.

    Level by level, so that what the game tabulates of a level serves all budgets.
    """
    success: dict[Budget, list[float]] = {budget: [] for budget in budgets}
    reward: dict[Budget, list[float]] = {budget: [] for budget in success}
    for level in levels:
        state = game.initial(level)
        for budget in success:
            if budget.per_turn is None:
                found = game.random_play(state, budget.actions)
            else:
                plan = game.plan(
                    state, turns_left=budget.turns, actions_left=budget.actions, max_actions=budget.per_turn
                )
                found = plan and plan.expected
            if found is None:
                raise ValueError(f"the game {game.name} does not know its exact expectations")
            success[budget].append(found.success)
            reward[budget].append(found.reward)
    return {budget: Play(Mean.of(success[budget]), Mean.of(reward[budget])) for budget in success}


@dataclass(frozen=True)
class Difficulty:
    """All figures of one id; play is measured on the test split."""

    lengths: dict[str, Lengths]
    play: dict[Budget, Play]
    registered: Budget


def measure(env_id: str, n: int) -> Difficulty:
    """Figures of one id from the levels of ``n`` seeds per split."""
    game, registered = game_of(env_id)
    levels = {split: [game.draw_level(seed, split) for seed in range(n)] for split in ("train", "test")}
    few = [actions for actions in ACTIONS if actions <= registered.actions]
    budgets = [Budget(n, None, n) for n in few] + [Budget(n, 1, n) for n in few] + [registered]
    if registered.actions > 1:
        budgets += [Budget(turns, per_turn, registered.actions) for turns, per_turn in TURNS]
    return Difficulty(
        {split: lengths(game, of_split) for split, of_split in levels.items()},
        expected(game, levels["test"], budgets),
        registered,
    )


Rows = list[list[str]]


def tables(found: dict[str, Difficulty]) -> list[tuple[str, list[str], Rows]]:
    """Title, columns and rows of every table."""

    def name(env_id: str) -> str:
        return env_id.removeprefix("ragen/")

    level_rows: Rows = []
    for env_id, figures in found.items():
        for split, x in figures.lengths.items():
            shares = [share.text(100) for share in x.within.values()]
            level_rows.append(
                [name(env_id), split, str(x.levels), str(x.different), x.mean.text(1, 2), f"{x.median:g}",
                 str(x.longest), *shares, x.one_push.text(100)]
            )  # fmt: skip
    columns = ["id", "split", "seeds", "different", "mean", "median", "longest"]
    columns += [f"<= {n} %" for n in (1, 2, 5, 10)] + ["one push %"]
    out = [("Shortest solutions, in actions", columns, level_rows)]
    for title, per_turn in (("Random play", None), ("Optimal play, a decision after every action", 1)):
        for label, scale, digits in (("success in %", 100, 1), ("return", 1, 3)):
            rows = []
            for env_id, figures in found.items():
                plays = [figures.play.get(Budget(n, per_turn, n)) for n in ACTIONS]
                cells = [(p.success if scale == 100 else p.reward).text(scale, digits) if p else "-" for p in plays]
                rows.append([name(env_id), *cells])
            out.append((f"{title}: {label} by number of actions", ["id", *map(str, ACTIONS)], rows))
    turn_rows: Rows = []
    for env_id, figures in found.items():
        own = figures.registered
        plays = [figures.play.get(Budget(turns, k, own.actions)) for turns, k in ((own.turns, own.per_turn), *TURNS)]
        cells = [f"{p.success.text(100)} / {p.reward.text(1, 3)}" if p else "-" for p in plays]
        cells[0] = f"{own.turns} x {own.per_turn}: {cells[0]}"
        turn_rows.append([name(env_id), str(own.actions), *cells])
    columns = ["id", "actions in all", "as registered", *(f"{t} x {k}" for t, k in TURNS)]
    out.append(("Optimal play in turns: success in % / return by turns x actions per turn", columns, turn_rows))
    return out


def markdown(found: dict[str, Difficulty], n: int) -> str:
    """The part of the page between its markers."""
    today = datetime.date.today().isoformat()
    lines = [
        f"Written by `python -m benchmarks.difficulty --episodes {n} --write` on {today}, "
        f"ragen-bench {version('ragen-bench')}, numpy {np.__version__}; seeds 0 to {n - 1} of each split."
    ]
    for title, columns, rows in tables(found):
        lines += ["", f"## {title}", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def write(page: Path, text: str) -> None:
    """Put ``text`` between the markers of a page.

    Raises:
        ValueError: the page lacks a marker.
    """
    old = page.read_text(encoding="utf-8")
    if BEGIN not in old or END not in old:
        raise ValueError(f"{page} needs the lines {BEGIN!r} and {END!r}, between which the tables go")
    head, _, rest = old.partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.difficulty", description="Difficulty of every id.")
    parser.add_argument("--episodes", type=int, default=1000, metavar="N", help="seeds per split (default 1000)")
    parser.add_argument("--write", action="store_true", help=f"renew {PAGE.name}")
    arguments = parser.parse_args()
    if arguments.episodes < 1:
        parser.error("--episodes must be at least 1")
    console = Console()
    found: dict[str, Difficulty] = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(TABLE))
        for env_id in TABLE:
            progress.update(task, description=env_id)
            found[env_id] = measure(env_id, arguments.episodes)
            progress.advance(task)
    for title, columns, rows in tables(found):
        table = Table(title=title)
        for i, column in enumerate(columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if arguments.write:
        write(PAGE, markdown(found, arguments.episodes))
        console.print(f"written: {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")


if __name__ == "__main__":
    main()
