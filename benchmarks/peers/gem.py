"""GEM's text Sokoban: ``python -m benchmarks.peers.gem [FIGURE...]``."""

from __future__ import annotations

import random
from functools import partial

from benchmarks.lines import Measurement, report
from benchmarks.peers.loops import ROOMS, choices, rooms
from benchmarks.timing import per_cpu_second

_TURNS = [f"\\boxed{{{name}}}" for name in ("up", "down", "left", "right")]


def _seed() -> None:
    import numpy as np

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


def _steps() -> float:
    _seed()
    from gem.envs.game_env.sokoban.sokoban import SokobanEnv

    env = SokobanEnv(dim_room=(6, 6), max_turns=10**9, num_boxes=1)
    turns = choices(_TURNS)

    def play(n: int) -> None:
        for i in range(n):
            env.step(turns[i & 4095])

    return per_cpu_second(play)


def _episodes() -> float:
    _seed()
    import gem

    env = gem.make("game:Sokoban-v0-easy")
    env.reset(seed=0)
    turns = choices(_TURNS)

    def play(n: int) -> None:
        for i in range(n):
            _, _, terminated, truncated, _ = env.step(turns[i & 4095])
            if terminated or truncated:
                env.reset()

    return per_cpu_second(play, seconds=1.0)


def _rooms(figure: str) -> float:
    _seed()
    from gem.envs.game_env.sokoban.utils import generate_room

    return rooms(generate_room, figure, seeded=True)


MEASUREMENTS = [
    Measurement("sokoban_turns", "turns/s", "6x6, 1 box, no resets", _steps),
    Measurement("sokoban_turns", "turns/s", "make('game:Sokoban-v0-easy'), resets included", _episodes),
    *(Measurement(figure, "rooms/s", "no optimum", partial(_rooms, figure)) for figure in ROOMS),
]

if __name__ == "__main__":
    report("gem-llm", MEASUREMENTS)
