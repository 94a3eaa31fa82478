"""StarPO: one multi-turn episode is one sequence, trained with the optimiser of your choice.

Objective
    J = mean_i (1/len_i) sum_t min(rho A, clip(rho) A) over the tokens the policy sampled in all turns of episode i;
    state, thinking, action and reward are interleaved and the environment's tokens are skipped. ``optimizer`` picks the
    variant; all of them minimise surrogate - entropy_coef entropy [+ kl_coef KL]:

    ==============  =====================================================  ===================  ============
    ``optimizer``   advantage                                              ``aggregation``      KL
    ==============  =====================================================  ===================  ============
    ``ppo``         token GAE, R on the last sampled token, critic;        token-mean           reward, k1
                    whitened over the batch
    ``grpo``        (R - mean of the group) / s                            seq-mean-token-mean  loss, k3
    ``reinforce``   (R - mean of the others in the group) / s              token-mean           loss, k3
    ==============  =====================================================  ===================  ============

    ``ppo`` and ``grpo`` use the clipped surrogate, ``reinforce`` the plain -A logp with one step per batch.
    ``aggregation``, ``kl_in`` and ``kl_kind`` set to "auto" take the value of the table.

Symbols
    R: undiscounted episode return, the sum of turn rewards and format penalties. s: ``scale``, one constant per batch
    (``batch``), the standard deviation of the group plus 1e-6 (``group``) or 1 (``none``); not read by ``ppo``.
    rho: ratio of the current to the sampling policy, per token.

Source
    RAGEN, arXiv 2504.20073; dual clip, gradient clip and entropy bonus from its public code. The paper has no
    REINFORCE variant: ours is RLOO (arXiv 2402.14740). The paper puts one standard deviation per batch into the GRPO
    variant, its code one per prompt group.

Defaults
    ppo, scale batch, gamma = lam = 1, clip .2 / .2, dual clip 3, entropy .001, gradient norm 1, lr 3e-4 and
    critic_lr 1e-3 (tiny model). KL 0, as in the newer public code; the paper's baseline is ``kl_coef=.001``. One
    minibatch; the paper takes 4 steps per batch of 128 (``minibatches=4``). ``truncated="terminal"``: the budget is
    shown to the agent and is part of the task, so nothing follows its end; ``ppo`` bootstraps by default.

Known weaknesses
    The return sits at the end of the episode, so only the critic can tell which turn mattered, and only in the ``ppo``
    variant (the plain ``ppo`` algorithm leaves each reward on its own turn). Training collapses into a fixed pattern
    once returns within a group stop differing. ``scale="group"`` inflates the differences between failures; see GRPO.
    The loss covers sampled tokens only; older public code also trained on the environment's messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.advantages import SCALES, broadcast_to_tokens, group_advantages, rewards_at_end, token_gae, whiten
from ragen_algos.algorithms.base import CRITIC_OPTIONS, Algorithm, check_choice
from ragen_algos.losses import reinforce_loss
from ragen_algos.trajectory import Batch

VARIANTS = {
    "ppo": {"aggregation": "token-mean", "kl_in": "reward", "kl_kind": "k1"},
    "grpo": {"aggregation": "seq-mean-token-mean", "kl_in": "loss", "kl_kind": "k3"},
    "reinforce": {"aggregation": "token-mean", "kl_in": "loss", "kl_kind": "k3"},
}


@dataclass(frozen=True, kw_only=True)
class StarPO(Algorithm):
    """State-thinking-actions-reward policy optimisation; formulas in the docstring of this file."""

    name: ClassVar[str] = "starpo"
    optimizer: str = "ppo"
    scale: str = "batch"
    aggregation: str = "auto"
    kl_in: str = "auto"
    kl_kind: str = "auto"
    dual_clip: float | None = 3.0
    entropy_coef: float = 0.001
    truncated: str = "terminal"

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, tuple(VARIANTS))
        check_choice("scale", self.scale, SCALES)
        for option, value in VARIANTS[self.optimizer].items():
            if getattr(self, option) == "auto":
                object.__setattr__(self, option, value)  # what a result records is the value that was used
        super().__post_init__()

    @property
    def unread(self) -> tuple[str, ...]:
        """Depends on the variant."""
        if self.optimizer == "ppo":
            return ("scale",)
        critic = (*CRITIC_OPTIONS, "gamma")
        if self.optimizer == "grpo":
            return critic
        return (*critic, "epochs", "minibatches", "clip_low", "clip_high", "dual_clip")

    @property
    def needs_critic(self) -> bool:
        """In the PPO variant."""
        return self.optimizer == "ppo"

    def credit(
        self,
        batch: Batch,
        values: torch.Tensor | None = None,
        bootstrap: torch.Tensor | None = None,
        *,
        ref_logp: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See :meth:`Algorithm.credit`; ``values`` and ``bootstrap`` are read by the PPO variant only."""
        mask = batch.loss_mask
        kl = self.reward_kl(batch, ref_logp)
        if self.optimizer == "ppo":
            values, bootstrap = self.critic_inputs(batch, values, bootstrap)
            rewards = rewards_at_end(batch.returns, mask) - kl
            advantages, targets = token_gae(rewards, values, mask, gamma=self.gamma, lam=self.lam, bootstrap=bootstrap)
            return whiten(advantages, mask), targets
        baseline = "leave-one-out" if self.optimizer == "reinforce" else "mean"
        per_row = group_advantages(batch.returns - kl.sum(1), batch.group_id, scale=self.scale, baseline=baseline)
        return broadcast_to_tokens(per_row, mask), None

    def surrogate(
        self,
        logp: torch.Tensor,
        old_logp: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
        denominator: float,
    ) -> torch.Tensor:
        """The clipped surrogate, or -A logp in the REINFORCE variant."""
        if self.optimizer == "reinforce":
            return reinforce_loss(logp, advantages, mask, aggregation=self.aggregation, denominator=denominator)
        return super().surrogate(logp, old_logp, advantages, mask, denominator)
