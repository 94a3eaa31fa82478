"""PPO with bi-level GAE: discounts between turns and within them are two different numbers.

Objective
    L = sum over sampled tokens of max(-A_it rho_it, -A_it clip(rho_it, 1 - clip_low, 1 + clip_high)) / number of them,
    and for the critic 0.5 mean(max((V - G)^2, (V_old + clamp(V - V_old) - G)^2)).

Symbols
    First over turns, V being read at the last sampled token e_k of each:
    delta_k = r_k + turn_gamma V(e_{k+1}) - V(e_k), A_k = delta_k + turn_gamma lam A_{k+1}, G_k = A_k + V(e_k).
    Then GAE(gamma, lam) over the tokens of each turn, which ends at e_k with G_k as its reward; whitened over the
    sampled tokens. r_k: reward of turn k. G = raw A + V_old is the critic's target. A row cut by a budget goes on with
    the critic's value after it (``truncated="bootstrap"``). rho: ratio of the current to the sampling policy, per
    token.

Source
    VAGEN, arXiv 2510.16907. Turn ends are taken from the record of the episode; public versions guess them from rewards
    that are not 0.

Defaults
    turn_gamma .95, gamma = lam = 1 (equal to ``ppo`` with turn_gamma 1), clip .2 / .2, value clip .5, token-mean, one
    epoch of one minibatch, no KL, lr 3e-4 and critic_lr 1e-3 (tiny model).

Known weaknesses
    As good as its critic. One ``lam`` serves both levels. Whitening over tokens weights long turns more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.advantages import bilevel_gae, whiten
from ragen_algos.algorithms.base import Algorithm, check_number
from ragen_algos.trajectory import Batch


@dataclass(frozen=True, kw_only=True)
class BilevelPPO(Algorithm):
    """Proximal policy optimisation with bi-level GAE; formulas in the docstring of this file."""

    name: ClassVar[str] = "ppo-bilevel"
    turn_gamma: float = 0.95
    """Discount per turn."""
    lam: float = 1.0
    """Trace decay, per token within a turn and per turn between them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("turn_gamma", self.turn_gamma, 0.0, 1.0)

    @property
    def needs_critic(self) -> bool:
        """Always."""
        return True

    def credit(
        self,
        batch: Batch,
        values: torch.Tensor | None = None,
        bootstrap: torch.Tensor | None = None,
        *,
        ref_logp: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`Algorithm.credit`."""
        values, bootstrap = self.critic_inputs(batch, values, bootstrap)
        advantages, targets = bilevel_gae(
            batch.rewards - self.reward_kl(batch, ref_logp),
            values,
            batch.loss_mask,
            batch.turn_end,
            gamma=self.gamma,
            lam=self.lam,
            turn_gamma=self.turn_gamma,
            bootstrap=bootstrap,
        )
        return whiten(advantages, batch.loss_mask), targets
