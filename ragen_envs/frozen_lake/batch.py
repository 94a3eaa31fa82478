"""Many frozen lakes at once: the rules of :mod:`ragen_envs.frozen_lake.rules` in compiled code."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ragen_envs.batch import GameBatch, Plays
from ragen_envs.frozen_lake.maps import LakeLevel
from ragen_envs.jit import njit

if TYPE_CHECKING:
    from ragen_envs.frozen_lake.rules import FrozenLake, LakeState

ROW, COLUMN, HEIGHT, WIDTH = range(4)


class FrozenLakeBatch(GameBatch[LakeLevel, "LakeState"]):
    """Plays of the frozen lake. Facts: the player's row and column, height and width."""

    n_facts = 4
    game: FrozenLake

    def __init__(self, game: FrozenLake, levels, num_envs: int, symbols: str) -> None:
        self.symbols, self.lucky = symbols, game.slip > 0.0
        super().__init__(game, levels, num_envs)

    def encode(self, level: LakeLevel) -> tuple[np.ndarray, tuple[int, ...]]:
        """The map with the player on its start."""
        start = self.game.initial(level)
        return self.game.grid(start), (start.row, start.column, *level.shape)

    def state(self, plays: Plays, i: int) -> LakeState:
        """The player's cell on the level."""
        row, column = plays.facts[i, :2].tolist()
        return self.game.load_state(self.level(plays, i), [row, column])

    def step(self, active, wanted, n_wanted, left, luck, reward, executed, ended, success, effective) -> None:
        """See :meth:`GameBatch.step`."""
        slip = self.game.slip
        boards, facts = self.plays.boards, self.plays.facts
        _step(boards, facts, active, wanted, n_wanted, left, luck, slip, reward, executed, ended, success, effective)


@njit
def _step(boards, facts, active, wanted, n_wanted, left, luck, slip, reward, executed, ended, success, effective):
    # Codes: 0 ice, 1 hole, 2 goal; 3 more where the player is.
    for i in range(len(active)):
        if not active[i]:
            continue
        row, column, height, width = facts[i, 0], facts[i, 1], facts[i, 2], facts[i, 3]
        total, over, won, moved, used = 0.0, False, False, False, 0
        for k in range(min(n_wanted[i], left[i])):
            direction = np.int64(wanted[i, k])
            if slip > 0.0:
                if luck[i, k] < slip / 2:
                    direction = (direction + 3) % 4
                elif luck[i, k] < slip:
                    direction = (direction + 1) % 4
            used += 1
            r, c = row, column
            if direction == 0:
                c = max(column - 1, 0)
            elif direction == 1:
                r = min(row + 1, height - 1)
            elif direction == 2:
                c = min(column + 1, width - 1)
            else:
                r = max(row - 1, 0)
            if r != row or c != column:
                moved = True
                boards[i, row * width + column] -= 3
                boards[i, r * width + c] += 3
                row, column = r, c
            cell = boards[i, row * width + column]
            won = cell == 5
            total += 1.0 if won else 0.0
            over = cell != 3
            if over:
                break
        facts[i, 0], facts[i, 1] = row, column
        reward[i], executed[i], ended[i], success[i], effective[i] = total, used, over, won, moved
