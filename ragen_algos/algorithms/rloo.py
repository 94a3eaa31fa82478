"""RLOO: REINFORCE with the others of the group as baseline, and one clipped ratio per episode.

Objective
    L = mean_i max(-A_i s_i, -A_i clip(s_i, 1 - clip_low, 1 + clip_high)). A_i = R_i minus the mean return of the other
    episodes of its group.

Symbols
    R_i: undiscounted episode return; with ``kl_in="reward"`` less kl_coef times the sum of logp - ref_logp over the
    sampled tokens of the episode. s_i: exp(sum of logp - old_logp over the sampled tokens), the ratio of the
    probabilities of everything said in the episode.

Source
    arXiv 2402.14740, eq. 8. The clipped ratio per sequence follows the public implementation of TRL; at ratio 1 its
    gradient is that of the paper's REINFORCE.

Defaults
    clip .2 / .2, seq-mean-token-mean (which averages the terms of the episodes), one epoch of one minibatch, lr 3e-4
    (tiny model). The KL is k1 in the reward, with coefficient 0; TRL uses .05.

Known weaknesses
    The ratio of a long episode is a product of many factors and leaves the clip range after a small step. The gradient
    grows with the length of the episode, as its log-probability does. Every token gets the credit of the whole episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.advantages import broadcast_to_tokens, group_advantages
from ragen_algos.algorithms.base import CRITIC_OPTIONS, Algorithm
from ragen_algos.trajectory import Batch


@dataclass(frozen=True, kw_only=True)
class RLOO(Algorithm):
    """REINFORCE leave-one-out; formulas in the docstring of this file."""

    name: ClassVar[str] = "rloo"
    aggregation: str = "seq-mean-token-mean"
    kl_in: str = "reward"
    kl_kind: str = "k1"

    @property
    def clipped_ratio(self) -> str:
        """That of the sequence."""
        return "seq_prod"

    @property
    def unread(self) -> tuple[str, ...]:
        """No critic; whole returns, so no discount."""
        return (*CRITIC_OPTIONS, "gamma")

    def credit(
        self,
        batch: Batch,
        values: torch.Tensor | None = None,
        bootstrap: torch.Tensor | None = None,
        *,
        ref_logp: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, None]:
        """See :meth:`Algorithm.credit`; ``values`` and ``bootstrap`` are not read."""
        returns = batch.returns - self.reward_kl(batch, ref_logp).sum(1)
        advantages = group_advantages(returns, batch.group_id, baseline="leave-one-out")
        return broadcast_to_tokens(advantages, batch.loss_mask), None
