"""Many games of Sokoban at once: the rules of :mod:`ragen_envs.sokoban.rules` in compiled code.

Boards keep the size of their level and need no frame: what lies outside counts as wall, so a step checks its bounds.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ragen_envs.batch import GameBatch, Plays
from ragen_envs.jit import njit
from ragen_envs.sokoban.levels import BOX_ON_TARGET, OUTSIDE, PLAYER, PLAYER_ON_TARGET, Level
from ragen_envs.sokoban.oracle import BOX_REWARD, SOLVED_REWARD, STEP_REWARD

if TYPE_CHECKING:
    from ragen_envs.sokoban.rules import Sokoban, State

ROW, COLUMN, DONE, BOXES, HEIGHT, WIDTH = range(6)

# Reward of an action by 1 + the change in the number of boxes on targets, and by whether it solved the level.
_REWARDS = np.array(
    [[STEP_REWARD + BOX_REWARD * change + SOLVED_REWARD * solved for solved in (False, True)] for change in (-1, 0, 1)]
)


class SokobanBatch(GameBatch[Level, "State"]):
    """Plays of Sokoban. Facts: the player's row and column, boxes on targets, boxes, height and width."""

    n_facts = 6
    game: Sokoban

    def __init__(self, game: Sokoban, levels, num_envs: int, symbols: str) -> None:
        self.symbols = symbols
        super().__init__(game, levels, num_envs)

    def encode(self, level: Level) -> tuple[np.ndarray, tuple[int, ...]]:
        """The start board."""
        cells = np.frombuffer(level.cells, np.int8).reshape(level.height, level.width)
        player = max(level.cells.find(PLAYER), level.cells.find(PLAYER_ON_TARGET))
        done = level.cells.count(BOX_ON_TARGET)
        return cells, (*divmod(player, level.width), done, level.n_boxes, level.height, level.width)

    def state(self, plays: Plays, i: int) -> State:
        """The state with its board in the frame of ``Level.buffer``."""
        level, facts = self.level(plays, i), plays.facts[i]
        height, width, stride = level.height, level.width, level.stride
        framed = np.full((height + 2) * stride, OUTSIDE, np.uint8)
        framed.reshape(height + 2, stride)[1:-1, :-1] = plays.boards[i, : height * width].reshape(height, width)
        return self.game.state_at(level, framed.tobytes(), level.to_index((int(facts[ROW]), int(facts[COLUMN]))))

    def step(self, active, wanted, n_wanted, left, luck, reward, executed, ended, success, effective) -> None:
        """See :meth:`GameBatch.step`."""
        boards, facts = self.plays.boards, self.plays.facts
        _step(boards, facts, active, wanted, n_wanted, left, _REWARDS, reward, executed, ended, success, effective)


@njit
def _step(boards, facts, active, wanted, n_wanted, left, rewards, reward, executed, ended, success, effective):
    # Codes: 0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 player, 6 player on target. What an action does is
    # computed with 0 and 1 in the place of branches: where random actions lead, no processor foresees.
    last = boards.shape[1] - 1
    for i in range(len(active)):
        if not active[i]:
            continue
        row, column, done = np.int64(facts[i, 0]), np.int64(facts[i, 1]), np.int64(facts[i, 2])
        n_boxes, height, width = np.int64(facts[i, 3]), np.int64(facts[i, 4]), np.int64(facts[i, 5])
        total, solved, moved, used = 0.0, np.int64(0), np.int64(0), 0
        for k in range(min(n_wanted[i], left[i])):
            action = np.int64(wanted[i, k])  # up, down, left, right
            sign, sideways = 2 * (action & 1) - 1, action >> 1
            down, right = sign * (1 - sideways), sign * sideways
            used += 1
            r, c = row + down, column + right
            br, bc = r + down, c + right
            here = row * width + column
            ahead = min(max(r * width + c, 0), last)
            behind = min(max(br * width + bc, 0), last)
            code, beyond = np.int64(boards[i, ahead]), np.int64(boards[i, behind])
            inside = np.int64((r >= 0) & (r < height) & (c >= 0) & (c < width))
            room = np.int64((br >= 0) & (br < height) & (bc >= 0) & (bc < width) & ((beyond == 1) | (beyond == 2)))
            push = inside & room & np.int64((code == 3) | (code == 4))
            go = push | (inside & np.int64((code == 1) | (code == 2)))
            # In this order: where nothing goes, the three cells may be one, and each is given what it holds.
            boards[i, behind] = beyond + push * (5 - 2 * beyond)  # 1 to 4, 2 to 3
            boards[i, ahead] = code + go * (5 + np.int64((code == 2) | (code == 3)) - code)
            boards[i, here] -= 4 * go
            row += go * down
            column += go * right
            moved |= go
            change = push * (beyond + code - 5)
            done += change
            solved = go & np.int64(done == n_boxes)
            total += rewards[change + 1, solved]
            if solved:
                break
        facts[i, 0], facts[i, 1], facts[i, 2] = row, column, done
        reward[i], executed[i], ended[i], success[i], effective[i] = total, used, solved != 0, solved != 0, moved != 0
