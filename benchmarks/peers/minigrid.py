"""MiniGrid: ``python -m benchmarks.peers.minigrid [FIGURE...]``."""

from __future__ import annotations

from functools import partial

from benchmarks.lines import Measurement, report
from benchmarks.peers.loops import gymnasium_steps


def _steps(id: str, wrappers: bool) -> float:
    import gymnasium
    import minigrid  # noqa: F401  # registers its ids

    env = gymnasium.make(id)
    return gymnasium_steps(env if wrappers else env.unwrapped)


MEASUREMENTS = [
    Measurement("minigrid", "steps/s", f"{id}, {how}", partial(_steps, id, how == "default make"))
    for id in ("MiniGrid-Empty-8x8-v0", "MiniGrid-DoorKey-8x8-v0")
    for how in ("default make", "unwrapped")
]

if __name__ == "__main__":
    report("minigrid", MEASUREMENTS)
