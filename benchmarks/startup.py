"""``python -m benchmarks.startup``: how long a fresh process takes.

From before the interpreter starts until the process has ended, so all of Python's own start is in it. Compiled code
comes from numba's cache: one run warms it up, then the median of seven counts. Wall time is what a user waits for; on a
machine with other work the CPU time says more.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time

from benchmarks.timing import show

RUNS = 7


def seconds(command: list[str]) -> tuple[float, float]:
    """Median wall and CPU seconds of a command that must succeed, after one run that is not counted."""
    walls, cpus = [], []
    for _ in range(1 + RUNS):
        wall, cpu = time.perf_counter(), _children()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        walls.append(time.perf_counter() - wall)
        cpus.append(_children() - cpu)
    return statistics.median(walls[1:]), statistics.median(cpus[1:])


def _children() -> float:
    """CPU seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds_to_first_step(package: str, id: str, action: str) -> tuple[float, float]:
    """Wall and CPU seconds to import ``package``, make ``id``, reset and take one step.

    Args:
        package: registers ``id``.
        id: of the environment.
        action: as Python source.
    """
    program = f"import gymnasium, {package}; env = gymnasium.make({id!r}); env.reset(seed=0); env.step({action})"
    return seconds([sys.executable, "-c", program])


def figures() -> list[tuple[str, float, str]]:
    """Name, value, unit."""
    wall, cpu = seconds_to_first_step("ragen_envs", "ragen/Sokoban-v0", "'<think>x</think><answer>Up</answer>'")
    help_wall, _ = seconds([sys.executable, "-m", "harness.run", "--help"])
    return [("startup", wall, "s"), ("startup_cpu", cpu, "CPU-s"), ("startup_harness_help", help_wall, "s")]


def main() -> None:
    """Measure and print."""
    show(figures())


if __name__ == "__main__":
    main()
