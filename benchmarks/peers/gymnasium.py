"""Gymnasium's own FrozenLake: ``python -m benchmarks.peers.gymnasium [FIGURE...]``."""

from __future__ import annotations

from benchmarks.lines import Measurement, report
from benchmarks.peers.loops import batched_steps, choices, gymnasium_steps
from benchmarks.startup import seconds_to_first_step


def _single(render_mode: str | None = None) -> float:
    import gymnasium

    env = gymnasium.make("FrozenLake-v1", render_mode=render_mode)
    return gymnasium_steps(env, look=env.render if render_mode else None)


def _vector(size: int) -> float:
    import gymnasium
    import numpy as np

    envs = gymnasium.make_vec("FrozenLake-v1", num_envs=size, vectorization_mode="sync")
    envs.reset(seed=0)
    return batched_steps(envs.step, np.array(choices(range(4), 64 * size)).reshape(64, size), size)


def _startup() -> tuple[float, float]:
    return seconds_to_first_step("gymnasium", "FrozenLake-v1", "0")


MEASUREMENTS = [
    Measurement("frozenlake_discrete", "steps/s", "default make, integer observation", _single),
    Measurement("frozenlake_discrete", "steps/s", "default make, text rendered each step", lambda: _single("ansi")),
    Measurement("vector_frozenlake_1024", "steps/s", "SyncVectorEnv", lambda: _vector(1024)),
    Measurement("startup", "s", "its FrozenLake", lambda: _startup()[0]),
    Measurement("startup_cpu", "CPU-s", "its FrozenLake", lambda: _startup()[1]),
]

if __name__ == "__main__":
    report("gymnasium", MEASUREMENTS)
