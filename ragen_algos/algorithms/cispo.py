"""CISPO: REINFORCE whose importance weights are clipped, so that no token loses its gradient.

Objective
    L = - sum over sampled tokens of sg[clip(rho_it, 1 - clip_low, 1 + clip_high)] A_i logp_it / number of them.
    A_i = (R_i - mu) / s.

Symbols
    rho: ratio of the current to the sampling policy, per token; sg: no gradient through it. R_i: undiscounted episode
    return. mu: mean of the group. s: ``scale``, the Bessel standard deviation of the group plus 1e-6 (``group``), one
    constant per batch (``batch``) or 1 (``none``).

Source
    MiniMax-M1, arXiv 2506.13585, section 3.1.

Defaults
    clip_low 1 and clip_high 4: no lower bound, as in the paper, and weights of at most 5, as in the public code of TRL
    (whose ``epsilon_high`` is that 5 itself, while ``clip_high`` here always counts from 1); verl's example has weights
    of at most 1.2. token-mean, one epoch of one minibatch, no KL, lr 3e-4 (tiny model). ``scale="batch"`` is our
    default as for GRPO; **"group" is the setting of the paper**.

Known weaknesses
    Nothing holds a token back whose probability has already moved far in the wanted direction: the weight is bounded,
    the step is not. A single step per batch has ratio 1, and then this is REINFORCE with the same credit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.algorithms.grpo import GRPO
from ragen_algos.losses import cispo_loss


@dataclass(frozen=True, kw_only=True)
class CISPO(GRPO):
    """Clipped importance-sampling-weight policy optimisation: GRPO's credit; formulas in the docstring of this file."""

    name: ClassVar[str] = "cispo"
    clip_low: float = 1.0
    clip_high: float = 4.0
    aggregation: str = "token-mean"

    @property
    def unread(self) -> tuple[str, ...]:
        """As GRPO; the weight is bounded on both sides, so no second bound."""
        return (*super().unread, "dual_clip")

    def surrogate(
        self,
        logp: torch.Tensor,
        old_logp: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
        denominator: float,
    ) -> torch.Tensor:
        """``agg(-sg[clip(rho)] A logp)``."""
        return cispo_loss(
            logp,
            old_logp,
            advantages,
            mask,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            aggregation=self.aggregation,
            denominator=denominator,
        )
