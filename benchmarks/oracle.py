"""``python -m benchmarks.oracle``: exact values (every action's, under the remaining budget) per CPU-second.

The states are those of random play over many levels, in the order in which they were met. Two figures per game: one
state per call, and all of them in one call of ``oracle_many``. Games keep what they solved last; since training asks
for the same levels again and again, that is part of the rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

import ragen_envs
from benchmarks.timing import per_cpu_second, show

IDS = {
    "bandit": "ragen/Bandit-v0",
    "frozenlake": "ragen/FrozenLake-v0",
    "sokoban": "ragen/Sokoban-v0",
    "sokoban_larger": "ragen/Sokoban-RAGEN-Larger-v0",
}
STATES = 2048


def states_of_random_play(env: ragen_envs.TextEnv) -> tuple[list[Any], list[int]]:
    """:data:`STATES` states with the actions that were left in each, each level played for one episode."""
    states: list[Any] = []
    left: list[int] = []
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    while len(states) < STATES:
        states.append(env.state)
        left.append(env.actions_left)
        legal = env.game.legal_actions(env.state)
        if any(env.step(int(rng.choice(legal)))[2:4]):
            env.reset()
    return states, left


def figures() -> Iterator[tuple[str, float, str]]:
    """Name, value, unit."""
    for name, env_id in IDS.items():
        env = gymnasium.make(env_id, action="discrete", observation="grid", disable_env_checker=True).unwrapped
        assert isinstance(env, ragen_envs.TextEnv)
        game = env.game
        states, left = states_of_random_play(env)

        def one(n: int, game: Any = game, states: list[Any] = states, left: list[int] = left) -> None:
            for i in range(n):
                game.oracle(states[i % STATES], left[i % STATES])

        def many(n: int, game: Any = game, states: list[Any] = states, left: list[int] = left) -> None:
            for _ in range(n):
                game.oracle_many(states, left)

        yield f"oracle_{name}", per_cpu_second(one, seconds=1.0), "states/s"
        yield f"oracle_many_{name}", per_cpu_second(many, seconds=1.0) * STATES, "states/s"


def main() -> None:
    """Measure and print."""
    show(figures())


if __name__ == "__main__":
    main()
