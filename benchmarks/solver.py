"""``python -m benchmarks.solver``: the Sokoban solver on level collections of other people.

Boxoban files are read from ``--levels`` (or ``RAGEN_LEVELS``, or ``../shared/levels``) and Microban (D. W. Skinner, 155
levels) from the folder of Debian's package ``cavepacker-data``; neither is part of this project, and what is missing is
skipped with a line. Times are CPU milliseconds per level on one core, after compilation, the best of ``--rounds``
rounds for the Boxoban files and one round for Microban; only the time limit of Microban is wall time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ragen_envs.sokoban import Level, load_levels, parse_xsb, solve
from ragen_envs.sokoban.solver import Solution

BOXOBAN = ("unfiltered_test_100", "medium_100", "hard_100", "hard_all")
MICROBAN = "/usr/share/games/cavepacker/maps"
TIME_LIMIT = 10.0
"""Seconds for each Microban level."""
NODE_LIMIT = 20_000_000
"""States for each Microban level: with 12 boxes about 1.5 GB."""


def measure(levels: Sequence[Level], solve_one: Callable[[Level], Solution], rounds: int) -> tuple[list[str], str]:
    """Cells of a table row for ``levels``, and the numbers of the levels that were not solved."""
    solve_one(levels[0])  # compile
    best = [float("inf")] * len(levels)
    for _ in range(rounds):
        for i, level in enumerate(levels):
            start = time.process_time()
            solution = solve_one(level)
            best[i] = min(best[i], time.process_time() - start)
            if not i:
                solutions = []
            solutions.append(solution)
    solved = [s for s in solutions if s.status == "solved"]
    numbers = [
        str(len(levels)),
        str(len(solved)),
        str(sum(s.pushes or 0 for s in solved)),
        f"{1000 * sum(best) / len(best):.3f}",
        f"{1000 * max(best):.1f}",
        f"{sum(best):.2f}",
    ]
    return numbers, " ".join(str(i) for i, s in enumerate(solutions, start=1) if s.status != "solved")


def microban(folder: Path) -> list[Level]:
    """The levels of Microban in order; empty if they are not installed."""
    paths = sorted(folder.glob("microban01_*.sok"))
    return [parse_xsb(path.read_text(encoding="utf-8").rstrip()) for path in paths]


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the Sokoban solver on known level collections.")
    default = os.environ.get("RAGEN_LEVELS") or Path(__file__).resolve().parents[1].parent / "shared" / "levels"
    parser.add_argument("--levels", type=Path, default=Path(default), help="folder of boxoban_*.xsb files")
    parser.add_argument("--microban", type=Path, default=Path(MICROBAN), help="folder of microban01_*.sok files")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over each Boxoban file (default 3)")
    args = parser.parse_args()
    table = Table("levels", "objective", "number", "solved", "pushes", "mean ms", "max ms", "total s")
    console = Console()
    for name in BOXOBAN:
        path = args.levels / f"boxoban_{name}.xsb"
        if not path.is_file():
            console.print(f"skipped: {path} is not there; give the folder by --levels or RAGEN_LEVELS")
            continue
        table.add_row(f"boxoban {name}", "pushes", *measure(load_levels(path), solve, args.rounds)[0])
    levels = microban(args.microban)
    if not levels:
        console.print(
            f"skipped: no microban01_*.sok in {args.microban}; apt-get install cavepacker-data, or give --microban"
        )
    for objective in ("any", "pushes") if levels else ():
        numbers, unsolved = measure(
            levels,
            lambda level: solve(level, objective=objective, node_limit=NODE_LIMIT, time_limit=TIME_LIMIT),  # noqa: B023
            rounds=1,
        )
        table.add_row("microban", objective, *numbers)
        if unsolved:
            console.print(f"microban, {objective}: not within {TIME_LIMIT:g} s: level {unsolved}")
    console.print(table)


if __name__ == "__main__":
    main()
