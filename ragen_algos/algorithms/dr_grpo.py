"""Dr. GRPO: GRPO without its two biases, the division by the group's deviation and by the length of each answer.

Objective
    L = sum_it max(-A_i rho_it, -A_i clip(rho_it, 1 - clip_low, 1 + clip_high)) / (N C). A_i = R_i - mu.

Symbols
    R_i: undiscounted episode return. mu: mean of the group. rho: ratio of the current to the sampling policy, per
    token. N: episodes of the optimiser step. C: ``aggregation_const``, a constant length.

Source
    arXiv 2503.20783. The advantage is RLOO's times (K-1)/K.

Defaults
    C = 160, the longest episode of the tiny model (5 turns of 32 tokens); it scales the gradient and nothing else.
    clip .2 / .2, one epoch of one minibatch, no KL, lr 3e-4 (tiny model).

Known weaknesses
    A long episode moves the policy more than a short one. Advantages keep the scale of the returns, so the step size
    does too, as far as gradient clipping sees it. Every token gets the credit of the whole episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.advantages import broadcast_to_tokens, group_advantages
from ragen_algos.algorithms.base import CRITIC_OPTIONS, Algorithm
from ragen_algos.trajectory import Batch


@dataclass(frozen=True, kw_only=True)
class DrGRPO(Algorithm):
    """GRPO done right; formulas in the docstring of this file."""

    name: ClassVar[str] = "dr-grpo"
    aggregation: str = "sum/const"
    aggregation_const: float | None = 160.0

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
        return broadcast_to_tokens(group_advantages(returns, batch.group_id), batch.loss_mask), None
