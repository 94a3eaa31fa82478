"""Many bandits at once: the rules of :mod:`ragen_envs.bandit.rules` in compiled code."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ragen_envs.batch import GameBatch, Plays
from ragen_envs.jit import njit

if TYPE_CHECKING:
    from ragen_envs.bandit.rules import Bandit, BanditLevel, BanditState

HIGH_FIRST, PULLED, PAID = range(3)
NOTHING, ONE, LOW = range(3)
"""What an arm paid, in the fact ``PAID``."""


class BanditBatch(GameBatch["BanditLevel", "BanditState"]):
    """Plays of the bandit. Facts: whether the high arm is shown first, the arm pulled or -1, what it paid."""

    n_facts = 3
    lucky = True
    game: Bandit

    def encode(self, level: BanditLevel) -> tuple[np.ndarray, tuple[int, ...]]:
        """The codes of the names; nothing pulled."""
        return self.game.grid(self.game.initial(level)), (level.high_first, -1, NOTHING)

    def state(self, plays: Plays, i: int) -> BanditState:
        """The state with the points in its own numbers."""
        points = (0.0, 1.0, self.game.low_reward)[plays.facts[i, PAID]]
        return self.game.load_state(self.level(plays, i), {"pulled": int(plays.facts[i, PULLED]), "points": points})

    def step(self, active, wanted, n_wanted, left, luck, reward, executed, ended, success, effective) -> None:
        """See :meth:`GameBatch.step`."""
        game = self.game
        low, high = game.low_reward, game.high_probability
        facts = self.plays.facts
        _step(facts, active, wanted, n_wanted, luck, low, high, reward, executed, ended, success, effective)


@njit
def _step(facts, active, wanted, n_wanted, luck, low, high, reward, executed, ended, success, effective):
    for i in range(len(active)):
        if not active[i]:
            continue
        pull = n_wanted[i] > 0
        reward[i], executed[i], ended[i], success[i], effective[i] = 0.0, 1 if pull else 0, pull, False, pull
        if pull:
            won = (wanted[i, 0] == 0) == (facts[i, 0] == 1)
            paid = 2 if not won else 1 if luck[i, 0] < high else 0
            facts[i, 1], facts[i, 2] = wanted[i, 0], paid
            reward[i] = low if not won else 1.0 if paid == 1 else 0.0
            success[i] = won
