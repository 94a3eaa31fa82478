"""Turn-level PPO: the turn is the step, so discounts count turns and all tokens of a turn share one advantage.

Objective
    L = sum over sampled tokens of max(-A_ik rho_it, -A_ik clip(rho_it, 1 - clip_low, 1 + clip_high)) / number of them,
    k being the turn of token t, and for the critic 0.5 mean(max((V - G)^2, (V_old + clamp(V - V_old) - G)^2)).

Symbols
    delta_k = r_k + gamma V_{k+1} - V_k and A_k = delta_k + gamma lam A_{k+1}, whitened over the turns of the batch
    (every turn counts once, however long). r_k: reward of turn k. V_k: value before the first token of the turn
    (``v_at="start"``) or before its last (``"end"``). G_k = raw A_k + V_k: the critic's target at every token of the
    turn, as all of them lie before the same rewards. A row cut by a budget goes on with the critic's value after it
    (``truncated="bootstrap"``). rho: ratio of the current to the sampling policy, per token.

Source
    Turn-PPO (arXiv 2512.17008) and StepPO (arXiv 2604.18401); ``v_at="end"`` is the "turn-wise" form of the code of
    VAGEN (arXiv 2510.16907). The clip is per token, as elsewhere here; Turn-PPO clips one ratio per turn.

Defaults
    gamma .99 and lam .9 per turn, v_at start, clip .2 / .2, value clip .5, token-mean, one epoch of one minibatch, no
    KL, lr 3e-4 and critic_lr 1e-3 (tiny model).

Known weaknesses
    As good as its critic. Within a turn nothing tells the token that mattered from the others. With ``v_at="end"`` the
    baseline has seen what was said, so most of the credit for saying it is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.advantages import VALUE_PLACES, turn_gae, turns_to_tokens, whiten
from ragen_algos.algorithms.base import Algorithm, check_choice
from ragen_algos.trajectory import Batch


@dataclass(frozen=True, kw_only=True)
class TurnPPO(Algorithm):
    """Proximal policy optimisation with turn-level GAE; formulas in the docstring of this file."""

    name: ClassVar[str] = "ppo-turn"
    gamma: float = 0.99
    """Discount per turn."""
    lam: float = 0.9
    """Trace decay per turn."""
    v_at: str = "start"
    """Where in a turn the critic is read: ``start`` or ``end``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("v_at", self.v_at, VALUE_PLACES)

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
        rewards = batch.rewards - self.reward_kl(batch, ref_logp)
        advantages, targets, played = turn_gae(
            rewards, values, batch.turn_id, gamma=self.gamma, lam=self.lam, bootstrap=bootstrap, v_at=self.v_at
        )
        return turns_to_tokens(whiten(advantages, played), batch.turn_id), turns_to_tokens(targets, batch.turn_id)
