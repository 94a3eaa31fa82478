"""StarPO-S: StarPO on the prompts whose outcome is most uncertain.

Objective
    That of StarPO (see its file) with three changes:

    1. Of the P groups of an iteration only ``max(1, int(filter_value * P))`` are trained on, those with the largest
       standard deviation of raw episode returns, whole groups, ties to the lower index. Credit, whitening and the
       critic see the kept groups only.
    2. No KL, neither in the reward nor in the loss.
    3. Clip-higher: the ratio may grow to 1 + ``clip_high``, more than it may shrink.

Symbols
    As in StarPO. ``filter``: ``top-k`` (change 1) or another rule of :mod:`ragen_algos.filters`; ``filter_value``: what
    it takes. ``drop_equal``: first drop groups whose returns are all equal.

Source
    RAGEN, arXiv 2504.20073, and its public code: branch v0423 for the paper, RAGEN-2 (arXiv 2604.06268) for the other
    filters; ``filter="top-p-linear", drop_equal=True`` is what the latter recommends.

Defaults
    ppo, filter top-k .25 (``starpo-s-50`` keeps half), clip .2 / .28, everything else as in StarPO: entropy .001, dual
    clip 3, gamma = lam = 1. ``optimizer="grpo"`` is allowed; the headline of the paper is the PPO form.

Known weaknesses
    top-k always drops three quarters, even if all groups are informative, and always keeps a quarter, even if none is.
    Fewer kept groups are fewer tokens per optimiser step for the same number of environment steps: compare on both.
    The spread of a group mixes the policy's diversity with the luck of the environment. The public code of the paper
    filters its GRPO variant on returns that are already normalised, where every living group has a spread of about 1;
    ours are raw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ragen_algos.algorithms.starpo import StarPO


@dataclass(frozen=True, kw_only=True)
class StarPOS(StarPO):
    """StarPO with an uncertainty filter, without KL, with clip-higher; see the docstring of this file."""

    name: ClassVar[str] = "starpo-s"
    filter: str = "top-k"
    clip_high: float = 0.28

    @property
    def unread(self) -> tuple[str, ...]:
        """As StarPO, and no KL."""
        return (*super().unread, "kl_coef")
