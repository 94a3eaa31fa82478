"""MT-GRPO: the first turn is credited with its own reward besides the outcome, later turns with the outcome alone.

Objective
    L = mean_i (1/len_i) sum_t max(-A_it rho_it, -A_it clip(rho_it, 1 - clip_low, 1 + clip_high)) over sampled tokens.
    A_it = AO_i + turn_weight AT_i in the first turn, AO_i in later turns. An episode of one turn has no outcome beyond
    it and gets AC_i.

Symbols
    AT, AO, AC: (x - mean of the group) / s, of the reward of the first turn, of the sum of all later rewards, and of
    both together. s: ``scale``, the Bessel standard deviation of the group plus 1e-4 (``group``), one constant for each
    of the three (``batch``) or 1 (``none``). rho: ratio of the current to the sampling policy, per token. len_i:
    sampled tokens of episode i.

Source
    arXiv 2505.11821: a tool call, its result, an answer. The first turn takes the place of the call and whatever comes
    later that of the answer. This is the group form and faithful to the paper for that one boundary: only the first
    turn is taken from the same state by the whole group. To give the k-th turn a group of its own, K^(k-1) episodes
    would have to branch from one start; for more boundaries the paper turns to PPO with each reward on the end of its
    turn, which is ``ppo`` here.

Defaults
    turn_weight 1, clip .2 / .2, seq-mean-token-mean, one epoch of one minibatch (the paper takes 2 epochs), no KL,
    lr 3e-4 (tiny model). ``scale="batch"`` is our default as for GRPO; **"group" is the setting of the paper**.

Known weaknesses
    Made for two turns. Episodes that end in their first turn count with an outcome of 0 in AO of the others, whatever
    they earned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.advantages import SCALES, mt_grpo_advantages
from ragen_algos.algorithms.base import CRITIC_OPTIONS, Algorithm, check_choice, check_number
from ragen_algos.trajectory import Batch


@dataclass(frozen=True, kw_only=True)
class MTGRPO(Algorithm):
    """Multi-turn GRPO with credit for the first turn; formulas in the docstring of this file."""

    name: ClassVar[str] = "mt-grpo"
    aggregation: str = "seq-mean-token-mean"
    turn_weight: float = 1.0
    """Weight of the first turn's own reward."""
    scale: str = "batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("scale", self.scale, SCALES)
        check_number("turn_weight", self.turn_weight, 0.0)

    @property
    def unread(self) -> tuple[str, ...]:
        """No critic; whole sums, so no discount."""
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
        advantages = mt_grpo_advantages(
            batch.rewards - self.reward_kl(batch, ref_logp),
            batch.turn_id,
            batch.group_id,
            turn_weight=self.turn_weight,
            scale=self.scale,
        )
        return advantages, None
