"""DAPO: GRPO without its brakes, and without groups that teach nothing.

Objective
    L = sum_it max(-A_i rho_it, -A_i clip(rho_it, 1 - clip_low, 1 + clip_high)) / (number of sampled tokens)
    over the tokens the policy sampled. A_i = (R_i - mean of the group) / s. Groups whose returns are all equal are
    dropped, and further groups are played instead until an iteration has its full number or ``extra_batches`` further
    batches were played; it then trains on what there is. Surplus groups are dropped, the latest first.

Symbols
    R_i: undiscounted episode return plus, if ``overlong="penalty"``, for each of its turns
    ``min(-(n - (overlong_limit - overlong_buffer)) / overlong_buffer, 0)``, n the turn's sampled tokens: 0 up to the
    buffer, then falling to -1 at the limit. ``overlong="mask"``: an episode with a turn of at least ``overlong_limit``
    tokens gets advantage 0 (it still counts in the mean of its group). s: ``scale``, as in GRPO. rho: ratio of the
    current to the sampling policy, per token.

Source
    arXiv 2503.14476, eq. 8-13. There a sequence is one answer and has the limit; here a turn is what has a limit, so
    the rules for length apply to turns.

Defaults
    clip .2 / .28, dual clip 10, token-mean, no KL, ``drop_equal``, 3 extra batches (the public code plays 10 batches in
    all and then gives up), overlong none: turns of the tiny model end long before their limit. ``scale="batch"`` is our
    default; **"group" is the setting of the paper**. The paper takes 16 optimiser steps per batch (``minibatches=16``).

Known weaknesses
    Extra batches are environment steps: an algorithm that needs four batches per update must be compared by
    ``env_steps``, not by iterations. What is dropped was played by the same policy, so training sees harder and luckier
    levels than it is evaluated on. Without KL nothing holds the policy back. The rest as in GRPO.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.advantages import broadcast_to_tokens, group_advantages, overlong_penalty
from ragen_algos.algorithms.base import check_choice
from ragen_algos.algorithms.grpo import GRPO
from ragen_algos.trajectory import Batch


@dataclass(frozen=True, kw_only=True)
class DAPO(GRPO):
    """Decoupled clip and dynamic sampling policy optimisation; formulas in the docstring of this file."""

    name: ClassVar[str] = "dapo"
    aggregation: str = "token-mean"
    clip_high: float = 0.28
    dual_clip: float | None = 10.0
    drop_equal: bool = True
    extra_batches: int = 3
    overlong: str = "none"
    """``none``, ``penalty`` or ``mask``."""
    overlong_limit: int | None = None
    """Tokens of a turn that are too many: usually the most that are sampled."""
    overlong_buffer: int | None = None
    """Width of the slope before the limit, for ``penalty``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("overlong", self.overlong, ("none", "penalty", "mask"))
        for name, reader in (("overlong_limit", ("penalty", "mask")), ("overlong_buffer", ("penalty",))):
            value = getattr(self, name)
            if (value is not None) != (self.overlong in reader):
                raise ValueError(f"{name} goes with overlong={' or '.join(reader)}, and only with it")
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.overlong == "penalty" and self.overlong_buffer > self.overlong_limit:  # type: ignore[operator]
            raise ValueError("overlong_buffer must not be larger than overlong_limit")

    @property
    def unread(self) -> tuple[str, ...]:
        """As GRPO, and no KL."""
        return (*super().unread, "kl_coef")

    def credit(
        self,
        batch: Batch,
        values: torch.Tensor | None = None,
        bootstrap: torch.Tensor | None = None,
        *,
        ref_logp: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, None]:
        """See :meth:`Algorithm.credit`; only the batch is read."""
        returns = batch.returns
        turns = torch.arange(int(batch.turn_id.max()) + 1)
        lengths = (batch.turn_id.unsqueeze(2) == turns).sum(1)  # [N, T]
        limit, buffer = self.overlong_limit or 0, self.overlong_buffer or 0
        if self.overlong == "penalty":
            returns = returns + overlong_penalty(lengths, limit, buffer).sum(1)
        advantages = group_advantages(returns, batch.group_id, scale=self.scale)
        if self.overlong == "mask":
            advantages = advantages.masked_fill((lengths >= limit).any(1), 0.0)
        return broadcast_to_tokens(advantages, batch.loss_mask), None
