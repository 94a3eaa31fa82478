"""GSPO: the advantages of GRPO under one clipped ratio per episode, normalised by its length.

Objective
    L = mean_i max(-A_i s_i, -A_i clip(s_i, 1 - clip_low, 1 + clip_high)). A_i = (R_i - mu) / s.

Symbols
    s_i: exp(mean of logp - old_logp over the sampled tokens of episode i), the geometric mean of its token ratios.
    R_i: undiscounted episode return. mu: mean of the group. s: ``scale``, the Bessel standard deviation of the group
    plus 1e-6 (``group``), one constant per batch (``batch``) or 1 (``none``).

Source
    arXiv 2507.18071. One sequence is the whole multi-turn episode here.

Defaults
    clip 3e-4 / 4e-4 as in the paper (a mean over tokens moves far less than a token), seq-mean-token-mean, one epoch of
    one minibatch, no KL, lr 3e-4 (tiny model). ``scale="batch"`` is our default as for GRPO; **"group" is the setting
    of the paper**.

Known weaknesses
    A single step per batch has ratio 1, and then this is GRPO; the narrow clip matters with ``minibatches`` or
    ``epochs`` above 1, where it stops whole episodes at once. Every token gets the credit of the whole episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.advantages import SCALES, broadcast_to_tokens, group_advantages
from ragen_algos.algorithms.base import CRITIC_OPTIONS, Algorithm, check_choice
from ragen_algos.trajectory import Batch


@dataclass(frozen=True, kw_only=True)
class GSPO(Algorithm):
    """Group sequence policy optimisation; formulas in the docstring of this file."""

    name: ClassVar[str] = "gspo"
    clipped_ratio: ClassVar[str] = "seq_geo"
    aggregation: str = "seq-mean-token-mean"
    clip_low: float = 3e-4
    clip_high: float = 4e-4
    scale: str = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("scale", self.scale, SCALES)

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
        advantages = group_advantages(returns, batch.group_id, scale=self.scale)
        return broadcast_to_tokens(advantages, batch.loss_mask), None
