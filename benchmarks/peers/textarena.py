"""TextArena's Sokoban and FrozenLake: ``python -m benchmarks.peers.textarena [FIGURE...]``."""

from __future__ import annotations

import random
from functools import partial

from benchmarks.lines import Measurement, report
from benchmarks.peers.loops import ROOMS, choices, rooms
from benchmarks.timing import per_cpu_second

_TURNS = ["[up]", "[down]", "[left]", "[right]"]


def _seed() -> None:
    import numpy as np

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


def _episodes(id: str) -> float:
    """Its loop: ask for the observation, answer, start anew when done."""
    _seed()
    import textarena

    env = textarena.make(id)
    turns = choices(_TURNS)
    done = True

    def play(n: int) -> None:
        nonlocal done
        for i in range(n):
            if done:
                env.reset(num_players=1)
            env.get_observation()
            done, _ = env.step(action=turns[i & 4095])

    return per_cpu_second(play, seconds=1.0)


def _steps() -> float:
    _seed()
    from textarena.envs.Sokoban.env import SokobanEnv

    env = SokobanEnv(dim_room=(6, 6), max_turns=10**9, num_boxes=1)
    env.reset(num_players=1)
    turns = choices(_TURNS)

    def play(n: int) -> None:
        for i in range(n):
            if i % 100 == 0:  # it keeps all observations of an episode: without this it would slow down
                env.state.observations = {0: []}
                env.state.done = False
                env.state.turn = 0
            env.step(turns[i & 4095])

    return per_cpu_second(play)


def _rooms(figure: str) -> float:
    _seed()
    from textarena.envs.Sokoban.utils import generate_room

    return rooms(generate_room, figure, seeded=True)


MEASUREMENTS = [
    Measurement("sokoban_turns", "turns/s", "6x6, 1 box, step alone, no resets", _steps),
    Measurement("sokoban_turns", "turns/s", "6x6, 3 boxes, resets included", partial(_episodes, "Sokoban-v0-raw")),
    Measurement("frozenlake_turns", "turns/s", "resets included", partial(_episodes, "FrozenLake-v0-raw")),
    *(Measurement(figure, "rooms/s", "no optimum", partial(_rooms, figure)) for figure in ROOMS),
]

if __name__ == "__main__":
    report("textarena", MEASUREMENTS)
