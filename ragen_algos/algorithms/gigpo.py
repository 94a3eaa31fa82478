"""GiGPO: group-relative credit for the episode, and again for each turn among turns taken from the same sight.

Objective
    L = sum over sampled tokens of max(-A_ik rho_it, -A_ik clip(rho_it, 1 - clip_low, 1 + clip_high)) / number of them
    [+ kl_coef KL], k being the turn of token t. A_ik = AE_i + step_weight AS_ik.

Symbols
    AE_i = (R_i - mean of the group) / s, R_i the undiscounted episode return.
    AS_ik = (G_ik - mean of its anchor group) / s, G_ik = r_ik + gamma G_i,k+1 with r_ik the reward of turn k, format
    penalty included. Anchor group: all turns, of any episode of the same group, before which the same was observed;
    alone in it, a turn has AS = 0. s: ``scale``, 1 (``none``), the Bessel standard deviation of the respective group
    plus 1e-6 (``group``) or one constant for all AE and one for all AS (``batch``). rho: ratio of the current to the
    sampling policy, per token.

Source
    arXiv 2505.10978, section 4. AE counts every episode once, as in the paper; its public code weights episodes by
    their number of turns.

Defaults
    gamma .95 per turn, step_weight 1, scale none (the paper's choice for Sokoban; ``group`` for ALFWorld), clip .2 /
    .2, token-mean, one epoch of one minibatch, no KL (the paper uses ``kl_coef=.01``, k3), lr 3e-4 (tiny model).

Known weaknesses
    Needs exact repetitions: with few of them it is GRPO. What is observed here includes the actions left but not the
    turns left, so turns meet at the same budget of actions only, and a turn that changed nothing meets its own
    repetition, which has fewer turns to come: the later one looks better if turns cost something. Only the observation
    is compared, not the conversation before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.advantages import SCALES, gigpo_advantages
from ragen_algos.algorithms.base import CRITIC_OPTIONS, Algorithm, check_choice, check_number
from ragen_algos.trajectory import Batch


@dataclass(frozen=True, kw_only=True)
class GiGPO(Algorithm):
    """Group-in-group policy optimisation; formulas in the docstring of this file."""

    name: ClassVar[str] = "gigpo"
    gamma: float = 0.95
    """Discount per turn."""
    step_weight: float = 1.0
    """Weight of the credit per turn."""
    scale: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("scale", self.scale, SCALES)
        check_number("step_weight", self.step_weight, 0.0)

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
        advantages = gigpo_advantages(
            batch.rewards - self.reward_kl(batch, ref_logp),
            batch.turn_id,
            batch.observation_id,
            batch.group_id,
            gamma=self.gamma,
            step_weight=self.step_weight,
            scale=self.scale,
        )
        return advantages, None
