"""``python -m benchmarks.environments``: resets, text turns and oracle calls per CPU-second of the registered ids.

Machines are noisy, so each figure is the best of three runs in CPU time, and Gymnasium's own FrozenLake, measured in
the same run, stands beside them as a yardstick.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

import ragen_envs

IDS = ("ragen/Bandit-v0", "ragen/FrozenLake-v0", "ragen/Sokoban-v0", "ragen/Sokoban-RAGEN-Larger-v0")


def rate(function: Callable[[int], object], n: int) -> float:
    """Calls of ``function(i)`` per CPU-second, best of three rounds of ``n``."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        for i in range(n):
            function(i)
        best = min(best, time.process_time() - start)
    return n / max(best, 1e-9)


def yardstick(n: int = 20_000) -> float:
    """Random steps of Gymnasium's FrozenLake, without wrappers."""
    env = gymnasium.make("FrozenLake-v1").unwrapped
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(4, size=n).tolist()

    def step(i: int) -> None:
        if any(env.step(actions[i])[2:4]):
            env.reset()

    return rate(step, n)


def measure(env_id: str) -> dict[str, float]:
    """Resets, turns, primitive steps and oracle calls per CPU-second."""
    env = gymnasium.make(env_id, disable_env_checker=True).unwrapped
    assert isinstance(env, ragen_envs.TextEnv)
    game = env.game
    env.reset(seed=0)
    turn = f"<think>x</think><answer>{game.action_names(env.level)[0]}</answer>"

    def play(i: int) -> None:
        if any(env.step(turn)[2:4]):
            env.restore(start)

    start = env.snapshot()
    state, rng = game.initial(env.level), np.random.default_rng(0)
    return {
        "resets": rate(lambda i: env.reset(seed=i), 500),
        "text turns": rate(play, 3_000),
        "game steps": rate(lambda i: game.step(state, i % game.n_actions, rng), 20_000),
        "oracle": rate(lambda i: game.oracle(state, env.max_actions), 1_000),
    }


def main() -> None:
    """Measure and print."""
    rows = {env_id: measure(env_id) for env_id in IDS}
    table = Table(title="per CPU-second, one core")
    table.add_column("environment")
    for name in next(iter(rows.values())):
        table.add_column(name, justify="right")
    for env_id, row in rows.items():
        table.add_row(env_id, *(f"{value:,.0f}" for value in row.values()))
    console = Console()
    console.print(table)
    console.print(f"Gymnasium FrozenLake-v1, unwrapped, in the same run: {yardstick():,.0f} steps")


if __name__ == "__main__":
    main()
