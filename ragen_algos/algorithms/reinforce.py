"""REINFORCE, relative to the group: the simplest thing that works.

Objective
    L = agg(-A_i logp_it) over sampled tokens, one optimiser step per rollout batch. A_i = (R_i - b_i) / s is one number
    per trajectory, the same for all its tokens.

Symbols
    R_i: undiscounted episode return, format penalties included. b_i: ``baseline``, the mean of the group (``mean``), of
    the others in the group (``leave-one-out``) or 0 (``none``). s: ``scale``, one constant per batch (``batch``), one
    per group (``group``) or 1 (``none``). agg: ``aggregation``, with a global denominator.

Source
    Williams (1992); the group as baseline as in RLOO (arXiv 2402.14740) and Dr. GRPO (arXiv 2503.20783).
    The batch constant is our own choice.

Defaults
    baseline mean, scale batch, token-mean, no KL, no entropy bonus, lr 3e-4 (tiny model).

Known weaknesses
    One step per batch, so data are used once. Every token gets the credit of the whole episode. With gamma = 1 and the
    group mean the gradient is unbiased up to a factor (K-1)/K, but token-mean weights long episodes more
    (seq-mean-token-sum does not), and ``scale="group"`` optimises a re-weighted objective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.advantages import BASELINES, SCALES, broadcast_to_tokens, group_advantages
from ragen_algos.algorithms.base import CRITIC_OPTIONS, Algorithm, check_choice
from ragen_algos.losses import reinforce_loss
from ragen_algos.trajectory import Batch


@dataclass(frozen=True, kw_only=True)
class Reinforce(Algorithm):
    """Group-relative REINFORCE; formulas in the docstring of this file."""

    name: ClassVar[str] = "reinforce"
    scale: str = "batch"
    baseline: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("scale", self.scale, SCALES)
        check_choice("baseline", self.baseline, BASELINES)

    @property
    def unread(self) -> tuple[str, ...]:
        """No ratio, so no clip and no second step; no critic; whole returns, so no discount."""
        return (*CRITIC_OPTIONS, "gamma", "epochs", "minibatches", "clip_low", "clip_high", "dual_clip")

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
        advantages = group_advantages(returns, batch.group_id, scale=self.scale, baseline=self.baseline)
        return broadcast_to_tokens(advantages, batch.loss_mask), None

    def surrogate(
        self,
        logp: torch.Tensor,
        old_logp: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
        denominator: float,
    ) -> torch.Tensor:
        """``agg(-A logp)``; ``old_logp`` is not read."""
        return reinforce_loss(logp, advantages, mask, aggregation=self.aggregation, denominator=denominator)
