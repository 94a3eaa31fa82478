"""Jumanji's Sokoban on JAX, CPU: ``python -m benchmarks.peers.jumanji [FIGURE...]``.

Its level files are downloads, so its built-in level is used; a reset then costs it nothing, which is in its favour.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from benchmarks.lines import Measurement, report
from benchmarks.timing import per_cpu_second


def _env() -> Any:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from jumanji.environments.routing.sokoban.env import Sokoban
    from jumanji.environments.routing.sokoban.generator import SimpleSolveGenerator
    from jumanji.wrappers import AutoResetWrapper

    return AutoResetWrapper(Sokoban(generator=SimpleSolveGenerator()))


def _single() -> float:
    env = _env()
    import jax

    step = jax.jit(env.step)
    state, _ = jax.jit(env.reset)(jax.random.PRNGKey(0))
    actions = [jax.numpy.int32(a) for a in range(4)]

    def play(n: int) -> None:
        nonlocal state
        for i in range(n):
            state, _ = step(state, actions[i & 3])
        jax.block_until_ready(state)

    return per_cpu_second(play)


def _vector(size: int, inside: int) -> float:
    """``inside`` steps per compiled call: 1 as a learner outside of JAX would play, more as one inside would."""
    env = _env()
    import jax

    many = jax.vmap(env.step)

    @jax.jit
    def play_some(state: Any, key: Any) -> Any:
        actions = jax.random.randint(key, (inside, size), 0, 4)
        return jax.lax.scan(lambda state, action: (many(state, action)[0], ()), state, actions)[0]

    keys = jax.random.split(jax.random.PRNGKey(1), 64)
    state, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.PRNGKey(0), size))

    def play(n: int) -> None:
        nonlocal state
        for i in range(n):
            state = play_some(state, keys[i & 63])
        jax.block_until_ready(state)

    return per_cpu_second(play, seconds=1.0) * size * inside


MEASUREMENTS = [
    Measurement("sokoban_discrete", "steps/s", "one compiled step per call, one level", _single),
    Measurement("vector_sokoban_grid_1024", "steps/s", "one step per call, one level", partial(_vector, 1024, 1)),
    Measurement("vector_sokoban_grid_1024", "steps/s", "100 steps per call, one level", partial(_vector, 1024, 100)),
]

if __name__ == "__main__":
    report("jumanji", MEASUREMENTS)
