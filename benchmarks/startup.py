"""``python -m benchmarks.startup``: how long a fresh process takes, in wall seconds.

From before the interpreter starts until the process has ended, so all of Python's own start is in it. Compiled code
comes from numba's cache: one run warms it up, then the median of seven counts.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.timing import show

RUNS = 7


def seconds(command: list[str]) -> float:
    """Median wall seconds of a command that must succeed, after one run that is not counted."""
    times = []
    for _ in range(1 + RUNS):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def seconds_to_first_step(package: str, id: str, action: str) -> float:
    """Import ``package``, make ``id``, reset and take one step.

    Args:
        package: registers ``id``.
        id: of the environment.
        action: as Python source.
    """
    program = f"import gymnasium, {package}; env = gymnasium.make({id!r}); env.reset(seed=0); env.step({action})"
    return seconds([sys.executable, "-c", program])


def figures() -> list[tuple[str, float, str]]:
    """Name, value, unit."""
    turn = "'<think>x</think><answer>Up</answer>'"
    help_ = [sys.executable, "-m", "harness.run", "--help"]
    return [
        ("startup", seconds_to_first_step("ragen_envs", "ragen/Sokoban-v0", turn), "s"),
        ("startup_harness_help", seconds(help_), "s"),
    ]


def main() -> None:
    """Measure and print."""
    show(figures())


if __name__ == "__main__":
    main()
