"""EnvPool's FrozenLake and Sokoban: ``python -m benchmarks.peers.envpool [FIGURE...]``.

Its Sokoban has one level only in the wheel (the level files are not in it).
"""

from __future__ import annotations

from functools import partial

from benchmarks.lines import Measurement, report
from benchmarks.peers.loops import batched_steps, choices


def _steps(id: str, size: int) -> float:
    import envpool
    import numpy as np

    envs = envpool.make_gymnasium(id, num_envs=size, num_threads=1, seed=0)
    envs.reset()
    actions = np.array(choices(range(4), 64 * size), np.int32).reshape(64, size)
    return batched_steps(envs.step, actions, size)


MEASUREMENTS = [
    Measurement("frozenlake_discrete", "steps/s", "batch of 1", partial(_steps, "FrozenLake-v1", 1)),
    Measurement("sokoban_discrete", "steps/s", "batch of 1, one level", partial(_steps, "Sokoban-v0", 1)),
    Measurement("vector_frozenlake_1024", "steps/s", "1 thread", partial(_steps, "FrozenLake-v1", 1024)),
    Measurement("vector_sokoban_grid_1024", "steps/s", "1 thread, one level", partial(_steps, "Sokoban-v0", 1024)),
]

if __name__ == "__main__":
    report("envpool", MEASUREMENTS)
