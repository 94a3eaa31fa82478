"""``python -m benchmarks.vector``: steps per CPU-second of ``gymnasium.make_vec``, resets and autoreset included.

Random discrete actions under the ids' own budgets, except for the rows called turns, where every environment is sent
a think block and an answer with one action. Infos are returned and not looked at. Best of several rounds, one core; two
``SyncVectorEnv`` in the same run are the yardstick, since machines are noisy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from rich.console import Console
from rich.table import Table

import ragen_envs  # noqa: F401  (registers the ids)

IDS = ("ragen/Sokoban-v0", "ragen/FrozenLake-v0", "ragen/Bandit-v0")
SIZES = (1, 64, 1024)
YARDSTICK = "FrozenLake-v1"
ROUNDS, ROUND_SECONDS, WARM = 5, 0.1, 12


def steps_per_second(env: VectorEnv[Any, Any, Any], actions: list[Any]) -> float:
    """Environment steps per CPU-second, best of ``ROUNDS`` rounds."""
    env.reset(seed=0)
    for t in range(WARM):  # compile, fill caches, leave the first episodes
        env.step(actions[t])
    start, n = time.process_time(), 0
    while time.process_time() - start < ROUND_SECONDS:
        env.step(actions[n % len(actions)])
        n += 1
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for t in range(n):
            env.step(actions[t % len(actions)])
        best = min(best, time.process_time() - start)
    env.close()
    return n * env.num_envs / max(best, 1e-9)


def indices(n: int, n_actions: int) -> list[Any]:
    """Sixty-four batches of random actions."""
    return list(np.random.default_rng(0).integers(n_actions, size=(64, n)))


def turns(env_id: str, n: int) -> list[Any]:
    """The same as texts."""
    names = gymnasium.make(env_id).unwrapped.game.action_names(None)  # type: ignore[attr-defined]
    form = "<think>The box is near.</think><answer>{}</answer>"
    return [[form.format(names[a]) for a in batch] for batch in indices(n, len(names))]


def figures() -> list[tuple[str, float, str]]:
    """Name, value and unit of every figure."""
    found = []

    def add(name: str, make: Callable[[], VectorEnv[Any, Any, Any]], actions: list[Any], unit: str = "steps/s") -> None:
        found.append((name, steps_per_second(make(), actions), unit))

    for env_id in IDS:
        n_actions = 2 if "Bandit" in env_id else 4
        for observation in ("grid", "text"):
            kwargs = {"observation": observation, "action": "discrete"}
            for n in SIZES:
                add(
                    f"make_vec {env_id}, {observation}, {n} envs",
                    lambda n=n, kwargs=kwargs, env_id=env_id: gymnasium.make_vec(env_id, num_envs=n, **kwargs),  # type: ignore[misc]
                    indices(n, n_actions),
                )
    for env_id in IDS[:2]:
        for n in SIZES:
            add(
                f"make_vec {env_id}, text turns, {n} envs",
                lambda n=n, env_id=env_id: gymnasium.make_vec(env_id, num_envs=n),  # type: ignore[misc]
                turns(env_id, n),
                "turns/s",
            )
    single = {"action": "discrete"}
    for env_id, kwargs in (("ragen/Sokoban-v0", single), ("ragen/FrozenLake-v0", single), (YARDSTICK, {})):
        add(
            f"SyncVectorEnv of {env_id}, 64 envs",
            lambda kwargs=kwargs, env_id=env_id: SyncVectorEnv([lambda: gymnasium.make(env_id, **kwargs)] * 64),  # type: ignore[misc]
            indices(64, 4),
        )
    return found


def main() -> None:
    """Measure and print, with the ratio to Gymnasium's own lake."""
    rows = figures()
    yardstick = next(value for name, value, _ in rows if YARDSTICK in name)
    table = Table(title="per CPU-second, one core")
    for column in ("what", "rate", "unit", "x SyncVectorEnv of FrozenLake-v1"):
        table.add_column(column, justify="left" if column in ("what", "unit") else "right")
    for name, value, unit in rows:
        table.add_row(name, f"{value:,.0f}", unit, f"{value / yardstick:,.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
