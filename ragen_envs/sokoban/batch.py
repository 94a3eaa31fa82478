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
        start = self.game.initial(level)
        player = level.to_index((int(facts[ROW]), int(facts[COLUMN])))
        return start._replace(cells=framed.tobytes(), player=player, done=int(facts[DONE]))

    def step(self, active, wanted, n_wanted, left, luck, reward, executed, ended, success, effective) -> None:
        """See :meth:`GameBatch.step`."""
        boards, facts = self.plays.boards, self.plays.facts
        _step(boards, facts, active, wanted, n_wanted, left, _REWARDS, reward, executed, ended, success, effective)


@njit
def _step(boards, facts, active, wanted, n_wanted, left, rewards, reward, executed, ended, success, effective):
    # Codes: 0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 player, 6 player on target. Floor, box and player are
    # told apart from their likes on a target by the one bit that is looked at below.
    for i in range(len(active)):
        if not active[i]:
            continue
        row, column, done = facts[i, 0], facts[i, 1], facts[i, 2]
        n_boxes, height, width = facts[i, 3], facts[i, 4], facts[i, 5]
        total, solved, moved, used = 0.0, False, False, 0
        for k in range(min(n_wanted[i], left[i])):
            action = wanted[i, k]
            down = -1 if action == 0 else 1 if action == 1 else 0
            right = -1 if action == 2 else 1 if action == 3 else 0
            used += 1
            r, c = row + down, column + right
            change = 0
            free = False
            if 0 <= r < height and 0 <= c < width:
                code = boards[i, r * width + c]
                if code == 1 or code == 2:
                    free = True
                elif code == 3 or code == 4:
                    br, bc = r + down, c + right
                    if 0 <= br < height and 0 <= bc < width:
                        beyond = boards[i, br * width + bc]
                        if beyond == 1 or beyond == 2:
                            free = True
                            boards[i, br * width + bc] = 3 if beyond == 2 else 4
                            change = (1 if beyond == 2 else 0) - (1 if code == 3 else 0)
                if free:
                    here = row * width + column
                    boards[i, here] = 2 if boards[i, here] == 6 else 1
                    boards[i, r * width + c] = 6 if code == 2 or code == 3 else 5
                    row, column, moved = r, c, True
                    done += change
                    solved = done == n_boxes
            total += rewards[change + 1, 1 if solved else 0]
            if solved:
                break
        facts[i, 0], facts[i, 1], facts[i, 2] = row, column, done
        reward[i], executed[i], ended[i], success[i], effective[i] = total, used, solved, solved, moved
