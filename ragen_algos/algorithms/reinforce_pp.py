"""REINFORCE++: no critic and, in its first form, no groups; advantages are normalised over the whole batch.

Objective
    L = sum over sampled tokens of max(-A_it rho_it, -A_it clip(rho_it, 1 - clip_low, 1 + clip_high)) / number of them.
    A = G whitened over all sampled tokens of the batch. G_it = r_it + gamma G_i,next over sampled tokens, carried
    unchanged through observations.

Symbols
    r_it: (R_i - b_i) on the last sampled token of the episode, less ``kl_coef (logp - ref_logp)`` on every sampled
    token with ``kl_in="reward"``. R_i: episode return. b_i: ``baseline``, 0 (``none``, REINFORCE++) or the mean of the
    group (``mean``, the variant called REINFORCE++-baseline). rho: ratio of the current to the sampling policy.

Source
    arXiv 2501.03262; the baseline variant as in the public code of verl.

Defaults
    baseline none, gamma 1, clip .2 / .2, token-mean, one epoch of one minibatch, lr 3e-4 (tiny model). The KL is k1 in
    the reward, with coefficient 0. The baseline variant is usually run with ``kl_in="loss", kl_kind="k2"``.

Known weaknesses
    Without a baseline per group, all episodes of an easy level are praised and all of a hard one blamed, whatever was
    done there. The mean over tokens weights long episodes more. Whitening gives episodes of a group with equal returns
    a small advantage too, under either baseline. With gamma below 1 the discount is per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.advantages import group_advantages, returns_to_go, rewards_at_end, whiten
from ragen_algos.algorithms.base import CRITIC_OPTIONS, Algorithm, check_choice
from ragen_algos.trajectory import Batch


@dataclass(frozen=True, kw_only=True)
class ReinforcePP(Algorithm):
    """REINFORCE++ and REINFORCE++-baseline; formulas in the docstring of this file."""

    name: ClassVar[str] = "reinforce++"
    baseline: str = "none"
    kl_in: str = "reward"
    kl_kind: str = "k1"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("baseline", self.baseline, ("none", "mean"))

    @property
    def unread(self) -> tuple[str, ...]:
        """No critic."""
        return CRITIC_OPTIONS

    def credit(
        self,
        batch: Batch,
        values: torch.Tensor | None = None,
        bootstrap: torch.Tensor | None = None,
        *,
        ref_logp: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, None]:
        """See :meth:`Algorithm.credit`; ``values`` and ``bootstrap`` are not read."""
        mask = batch.loss_mask
        returns = group_advantages(batch.returns, batch.group_id, baseline=self.baseline)
        rewards = rewards_at_end(returns, mask) - self.reward_kl(batch, ref_logp)
        return whiten(returns_to_go(rewards, mask, self.gamma), mask), None
