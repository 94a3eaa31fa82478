"""A game without oracle: every step pays 0.05 and the fourth one falls into a hole. It registers itself."""

from __future__ import annotations

from typing import Any

import numpy as np

import ragen_envs
from ragen_envs.game import Game, Outcome, digest


class Pit(Game[int, int]):
    name = "pit"

    def sample_level(self, rng: np.random.Generator) -> int:
        return int(rng.integers(1000))

    def level_key(self, level: int) -> str:
        return digest("pit", level)

    def dump_level(self, level: int) -> Any:
        return level

    def load_level(self, data: Any) -> int:
        return int(data)

    def action_names(self, level: int) -> tuple[str, ...]:
        return ("Go", "Stay")

    def initial(self, level: int) -> int:
        return 0

    def step(self, state: int, action: int, rng: np.random.Generator) -> Outcome[int]:
        state += 1
        return Outcome(state, 0.05, terminated=state == 4, success=False, effective=True)

    def level_of(self, state: int) -> int:
        return 0

    def state_key(self, state: int) -> str:
        return digest(state)

    def dump_state(self, state: int) -> Any:
        return state

    def load_state(self, level: int, data: Any) -> int:
        return int(data)

    def instructions(self, level: int, view: str) -> str:
        return "Go."

    def describe(self, state: int, view: str) -> str:
        return f"at {state}"

    def draw(self, state: int) -> np.ndarray:
        return np.zeros((1, 1, 3), np.uint8)

    def grid(self, state: int) -> np.ndarray:
        return np.array([[state]], np.int8)

    def grid_spec(self) -> tuple[tuple[int, ...], int]:
        return (1, 1), 5

    @property
    def n_actions(self) -> int:
        return 2


ragen_envs.register("tests/Pit-v0", "stub_game:Pit")
