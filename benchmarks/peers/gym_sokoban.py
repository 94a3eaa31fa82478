"""gym-sokoban (on the old gym): ``python -m benchmarks.peers.gym_sokoban [FIGURE...]``."""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from functools import partial

from benchmarks.lines import Measurement, report
from benchmarks.peers.loops import ROOMS, choices, rooms
from benchmarks.timing import per_cpu_second


def _seed() -> None:
    """Its luck comes from the global generators."""
    import gym
    import numpy as np

    warnings.filterwarnings("ignore")
    gym.logger.set_level(50)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


def _steps(mode: str) -> float:
    _seed()
    from gym_sokoban.envs.sokoban_env import SokobanEnv

    with contextlib.redirect_stdout(io.StringIO()):
        env = SokobanEnv(dim_room=(6, 6), max_steps=120, num_boxes=1)
    actions = choices(range(1, 9))

    def play(n: int) -> None:
        for i in range(n):
            if env.step(actions[i & 4095], observation_mode=mode)[2]:
                env.num_env_steps = env.boxes_on_target = 0  # the same room again: its generator is timed apart

    return per_cpu_second(play)


def _rooms(figure: str) -> float:
    _seed()
    from gym_sokoban.envs.room_utils import generate_room

    return rooms(generate_room, figure, seeded=False)


MEASUREMENTS = [
    Measurement("sokoban_discrete", "steps/s", "6x6, 1 box, picture, no resets", partial(_steps, "rgb_array")),
    Measurement("sokoban_discrete", "steps/s", "the same, one pixel per cell", partial(_steps, "tiny_rgb_array")),
    *(Measurement(figure, "rooms/s", "no optimum", partial(_rooms, figure)) for figure in ROOMS),
]

if __name__ == "__main__":
    report("gym-sokoban", MEASUREMENTS)
