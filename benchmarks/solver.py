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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ragen_envs.sokoban import Level, load_levels, parse_xsb, solve

BOXOBAN = ("unfiltered_test_100", "medium_100", "hard_100", "hard_all")
MICROBAN = "/usr/share/games/cavepacker/maps"
TIME_LIMIT = 10.0
"""Seconds for each Microban level."""
NODE_LIMIT = 20_000_000
"""States for each Microban level: with 12 boxes about 1.5 GB."""


def measure(levels: Sequence[Level], rounds: int, **asked: Any) -> tuple[list[str], str]:
    """Cells of a table row for ``solve(level, **asked)``, and the numbers of the levels that were not solved."""
    for level in (levels[0], max(levels, key=lambda level: len(level.cells))):  # compile the paths for both sizes
        solve(level, **(asked | {"node_limit": 1}))
    best = [float("inf")] * len(levels)
    for _ in range(rounds):
        solutions = []
        for i, level in enumerate(levels):
            start = time.process_time()
            solutions.append(solve(level, **asked))
            best[i] = min(best[i], time.process_time() - start)
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
    for column in table.columns:
        column.no_wrap = True
    console = Console()
    console.width = max(console.width, 100)
    for name in BOXOBAN:
        path = args.levels / f"boxoban_{name}.xsb"
        if not path.is_file():
            console.print(f"skipped: {path} is not there; give the folder by --levels or RAGEN_LEVELS")
            continue
        table.add_row(f"boxoban {name}", "pushes", *measure(load_levels(path), args.rounds)[0])
    levels = microban(args.microban)
    if not levels:
        console.print(
            f"skipped: no microban01_*.sok in {args.microban}; apt-get install cavepacker-data, or give --microban"
        )
    for objective in ("any", "pushes") if levels else ():
        numbers, unsolved = measure(levels, 1, objective=objective, node_limit=NODE_LIMIT, time_limit=TIME_LIMIT)
        table.add_row("microban", objective, *numbers)
        if unsolved:
            console.print(f"microban, {objective}: not within {TIME_LIMIT:g} s: level {unsolved}")
    console.print(table)


if __name__ == "__main__":
    main()
