"""``python -m benchmarks.generation``: new rooms and resets per CPU-second.

Rooms come from ``generate``, one per seed, each with its exact optimum; with a lower bound on the pushes the generator
has to reject or search for what is asked. Resets are what users call: level, opening text and info.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

import ragen_envs
from benchmarks.timing import per_cpu_second, show
from ragen_envs.sokoban import generate

ROOMS = {
    # figure: (height, width, boxes), bounds
    "rooms_6x6_1": ((6, 6, 1), {}),
    "rooms_8x8_2": ((8, 8, 2), {}),
    "rooms_10x10_4": ((10, 10, 4), {}),
    "rooms_6x6_1_min_4_pushes": ((6, 6, 1), {"min_pushes": 4}),
    "rooms_8x8_2_min_8_pushes": ((8, 8, 2), {"min_pushes": 8}),
    "rooms_10x10_4_min_15_pushes": ((10, 10, 4), {"min_pushes": 15}),
}
RESETS = {
    "resets_bandit": "ragen/Bandit-v0",
    "resets_frozenlake": "ragen/FrozenLake-v0",
    "resets_sokoban": "ragen/Sokoban-v0",
    "resets_sokoban_larger": "ragen/Sokoban-RAGEN-Larger-v0",
}


def _make_rooms(request: tuple[int, int, int], bounds: dict[str, Any]) -> Callable[[int], None]:
    def work(n: int) -> None:
        rng = np.random.default_rng(0)
        for _ in range(n):
            generate(rng, *request, **bounds)

    return work


def _reset(env_id: str) -> Callable[[int], None]:
    env = gymnasium.make(env_id, disable_env_checker=True).unwrapped
    assert isinstance(env, ragen_envs.TextEnv)
    env.reset(seed=0)  # builds the level pack where none ships

    def work(n: int) -> None:
        for _ in range(n):
            env.reset()

    return work


def figures() -> Iterator[tuple[str, float, str]]:
    """Name, value, unit."""
    for name, env_id in RESETS.items():
        yield name, per_cpu_second(_reset(env_id)), "resets/s"
    for name, (request, bounds) in ROOMS.items():
        yield name, per_cpu_second(_make_rooms(request, bounds), seconds=1.0), "rooms/s"


def main() -> None:
    """Measure and print."""
    show(figures())


if __name__ == "__main__":
    main()
