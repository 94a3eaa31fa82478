"""``python -m benchmarks.single``: what one environment does per CPU-second, resets included, beside a yardstick.

Every figure plays random actions through ``gymnasium.make`` with its default wrappers and full info, and resets when an
episode ends. Machines are noisy: a figure is the best of several short rounds in CPU time, the rounds of all figures
take turns, and Gymnasium's own FrozenLake runs among them, so that the ratios are those of one run.

The warm start is wall time of a fresh process: import, make, reset, first step, with numba's cache filled.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

import ragen_envs

ROUNDS = 7
STEPS = 20_000
"""Steps of a round."""

YARDSTICK = "Gymnasium FrozenLake-v1"
IDS = ("ragen/Sokoban-v0", "ragen/FrozenLake-v0", "ragen/Bandit-v0")

WARM_START = """
import time
start = time.perf_counter()
import gymnasium, ragen_envs
env = gymnasium.make({id!r})
env.reset(seed=0)
env.step("<think>x</think><answer>Up</answer>")
print(time.perf_counter() - start)
"""


def random_actions(env: gymnasium.Env[Any, Any], n: int) -> Iterator[Any]:
    """``n`` primitive actions: indices, or turns of one action each."""
    game = getattr(env.unwrapped, "game", None)
    indices = np.random.default_rng(0).integers(4 if game is None else game.n_actions, size=n).tolist()
    if game is None or isinstance(env.action_space, gymnasium.spaces.Discrete):
        return iter(indices)
    names = game.action_names(game.draw_level(0, "train"))
    turns = [f"<think>The box is below me, so I go there.</think><answer>{name}</answer>" for name in names]
    return iter([turns[i] for i in indices])


def play(env: gymnasium.Env[Any, Any]) -> float:
    """Steps per CPU-second of one round."""
    env.reset()
    actions = random_actions(env, STEPS)
    start = time.process_time()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return STEPS / (time.process_time() - start)


def pulls(env: gymnasium.Env[Any, Any]) -> float:
    """Bandit episodes per CPU-second: a reset and the turn that names the arm shown first."""
    n = STEPS // 4
    start = time.process_time()
    for _ in range(n):
        _, info = env.reset()
        env.step(f"<think>It sounds good.</think><answer>{info['valid_actions'][0]}</answer>")
    return n / (time.process_time() - start)


def resets(env: gymnasium.Env[Any, Any]) -> float:
    """Resets per CPU-second."""
    n = STEPS // 4
    start = time.process_time()
    for _ in range(n):
        env.reset()
    return n / (time.process_time() - start)


def warm_start(env_id: str) -> float:
    """Seconds from the first import to the first step, best of ``ROUNDS`` fresh processes."""
    command = [sys.executable, "-c", WARM_START.format(id=env_id)]
    run = [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(ROUNDS)]
    return min(run)


def throughputs() -> dict[str, float]:
    """Every figure per CPU-second, best of ``ROUNDS``; the two yardsticks come first."""
    discrete = {"action": "discrete", "observation": "text"}
    sokoban, lake, bandit = IDS
    cases: dict[str, tuple[Callable[[gymnasium.Env[Any, Any]], float], gymnasium.Env[Any, Any]]] = {
        f"{YARDSTICK}, default make": (play, gymnasium.make("FrozenLake-v1")),
        f"{YARDSTICK}, unwrapped": (play, gymnasium.make("FrozenLake-v1").unwrapped),
        f"{sokoban}, discrete": (play, gymnasium.make(sokoban, **discrete)),
        f"{sokoban}, discrete, unwrapped": (play, gymnasium.make(sokoban, **discrete).unwrapped),
        f"{sokoban}, text turns": (play, gymnasium.make(sokoban, max_turns=10)),
        f"{sokoban}, resets": (resets, gymnasium.make(sokoban)),
        f"{lake}, discrete": (play, gymnasium.make(lake, **discrete)),
        f"{lake}, discrete, unwrapped": (play, gymnasium.make(lake, **discrete).unwrapped),
        f"{lake}, text turns": (play, gymnasium.make(lake, max_turns=10)),
        f"{lake}, resets": (resets, gymnasium.make(lake)),
        f"{bandit}, episodes": (pulls, gymnasium.make(bandit)),
    }
    for _, env in cases.values():
        env.reset(seed=0)
    best = dict.fromkeys(cases, 0.0)
    for _ in range(ROUNDS):
        for name, (function, env) in cases.items():
            best[name] = max(best[name], function(env))
    return best


def figures() -> list[tuple[str, float, str]]:
    """Name, value and unit of every figure."""
    rates = [(name, value, "episodes/s" if name.endswith("episodes") else "resets/s" if name.endswith("resets")
              else "steps/s") for name, value in throughputs().items()]  # fmt: skip
    return rates + [(f"{env_id}, warm start", warm_start(env_id), "s") for env_id in IDS]


def main() -> None:
    """Measure and print."""
    found = figures()
    yardstick = found[0][1]
    table = Table(title=f"one environment, per CPU-second (ragen_envs {ragen_envs.__version__})")
    for column in ("figure", "value", "unit", "x yardstick"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, value, unit in found:
        ratio = f"{value / yardstick:.2f}" if unit.endswith("/s") else ""
        table.add_row(name, f"{value:,.3f}" if unit == "s" else f"{value:,.0f}", unit, ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
