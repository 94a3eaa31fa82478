"""``python -m benchmarks.solver``: the Sokoban solver on level collections of other people.

Boxoban files are read from ``--levels`` (or ``RAGEN_LEVELS``, or ``../shared/levels``) and Microban (D. W. Skinner, 155
levels) from the folder of Debian's package ``cavepacker-data``; neither is part of this project, and what is missing is
skipped with a line. Times are CPU milliseconds per level on one core, after compilation, the best of ``--rounds``
rounds for the Boxoban files and one round for Microban; only the time limit of Microban is wall time. "all at once" is
one call of ``solve_many``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ragen_envs.sokoban import Level, Solution, load_levels, parse_xsb, solve, solve_many

BOXOBAN = ("unfiltered_test_100", "medium_100", "hard_100", "hard_all")
MICROBAN = "/usr/share/games/cavepacker/maps"
TIME_LIMIT = 10.0
"""Seconds for each Microban level."""
NODE_LIMIT = 20_000_000
"""States for each Microban level: with 12 boxes about 1.5 GB."""


@dataclass(frozen=True)
class Row:
    """What solving a collection came to."""

    collection: str
    objective: str
    levels: int
    unsolved: tuple[int, ...]
    """Numbers of the levels that were not solved, from 1."""
    pushes: int
    seconds: tuple[float, ...]
    """CPU-seconds of each level; of all together if they were solved at once."""

    @property
    def solved(self) -> int:
        """Number of levels that were solved."""
        return self.levels - len(self.unsolved)


def one_by_one(name: str, levels: Sequence[Level], rounds: int, **asked: Any) -> Row:
    """``solve(level, **asked)`` for every level, the best of ``rounds`` rounds for each."""
    for level in (levels[0], max(levels, key=lambda level: len(level.cells))):  # compile the paths for both sizes
        solve(level, **(asked | {"node_limit": 1}))
    best = [float("inf")] * len(levels)
    for _ in range(rounds):
        solutions = []
        for i, level in enumerate(levels):
            start = time.process_time()
            solutions.append(solve(level, **asked))
            best[i] = min(best[i], time.process_time() - start)
    return _row(name, asked["objective"], solutions, best)


def at_once(name: str, levels: Sequence[Level], rounds: int) -> Row:
    """``solve_many(levels)``, the best of ``rounds`` rounds."""
    solve_many(levels[:1])
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        solutions = solve_many(levels)
        best = min(best, time.process_time() - start)
    return _row(name, "pushes", solutions, [best])


def _row(name: str, objective: str, solutions: Sequence[Solution], seconds: Sequence[float]) -> Row:
    unsolved = tuple(i for i, s in enumerate(solutions, start=1) if s.status != "solved")
    return Row(name, objective, len(solutions), unsolved, sum(s.pushes or 0 for s in solutions), tuple(seconds))


def microban(folder: Path) -> list[Level]:
    """The levels of Microban in order; empty if they are not installed."""
    paths = sorted(folder.glob("microban01_*.sok"))
    return [parse_xsb(path.read_text(encoding="utf-8").rstrip()) for path in paths]


def rows(levels: Path, maps: Path, rounds: int = 3, report: Callable[[str], None] = print) -> Iterator[Row]:
    """Every collection that is there; of the others ``report`` is told why they are not."""
    for name in BOXOBAN:
        path = levels / f"boxoban_{name}.xsb"
        if not path.is_file():
            report(f"skipped: there is no boxoban_{name}.xsb in {levels}; give the folder by --levels or RAGEN_LEVELS")
            continue
        found = load_levels(path)
        yield one_by_one(f"boxoban {name}", found, rounds, objective="pushes")
        if name == "hard_all":
            yield at_once(f"boxoban {name}, all at once", found, rounds)
    found = microban(maps)
    if not found:
        report(f"skipped: no microban01_*.sok in {maps}; apt-get install cavepacker-data, or give --microban")
        return
    for objective in ("any", "pushes"):
        yield one_by_one("microban", found, 1, objective=objective, node_limit=NODE_LIMIT, time_limit=TIME_LIMIT)


def figures() -> list[tuple[str, float, str]]:
    """Name, value and unit of every figure, for the collections that are there."""
    found = []
    for row in rows(default_levels(), Path(MICROBAN), report=lambda line: None):
        if row.collection == "microban":
            found.append((f"microban_{'any' if row.objective == 'any' else 'optimal'}", float(row.solved), "levels"))
        elif row.collection.endswith("all at once"):
            found.append(("boxoban_hard_all", row.seconds[0], "CPU-s"))
        elif not row.unsolved:
            found.append((row.collection.replace(" ", "_") + "_pushes", float(row.pushes), "pushes"))
    return found


def default_levels() -> Path:
    """The folder of Boxoban files if nobody names one."""
    return Path(os.environ.get("RAGEN_LEVELS") or Path(__file__).resolve().parents[1].parent / "shared" / "levels")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Speed of the Sokoban solver on known level collections.")
    parser.add_argument("--levels", type=Path, default=default_levels(), help="folder of boxoban_*.xsb files")
    parser.add_argument("--microban", type=Path, default=Path(MICROBAN), help="folder of microban01_*.sok files")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over each Boxoban file (default 3)")
    args = parser.parse_args()
    table = Table("levels", "objective", "number", "solved", "pushes", "mean ms", "max ms", "total s")
    for column in table.columns:
        column.no_wrap = True
    console = Console()
    console.width = max(console.width, 110)
    for row in rows(args.levels, args.microban, args.rounds, console.print):
        total = sum(row.seconds)
        longest = f"{1000 * max(row.seconds):.1f}" if len(row.seconds) == row.levels else ""
        numbers = (str(row.levels), str(row.solved), str(row.pushes), f"{1000 * total / row.levels:.3f}", longest)
        table.add_row(row.collection, row.objective, *numbers, f"{total:.2f}")
        if row.unsolved:
            console.print(f"{row.collection}, {row.objective}: not solved: {' '.join(map(str, row.unsolved))}")
    console.print(table)


if __name__ == "__main__":
    main()
