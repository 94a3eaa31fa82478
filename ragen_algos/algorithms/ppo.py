"""PPO with a critic: token-level advantages that skip observations.

Objective
    L = agg(max(-A_it rho_it, -A_it clip(rho_it, 1 - clip_low, 1 + clip_high))) over sampled tokens, and for the critic
    0.5 agg(max((V - G)^2, (V_old + clamp(V - V_old, +-value_clip) - G)^2)).

Symbols
    A: GAE(gamma, lam) over the sampled tokens only, each turn's reward on the last token of that turn, whitened over
    the batch. V_it: value of the state before token t. G = raw A + V_old. rho: ratio of the current to the sampling
    policy, per token. A row cut by a budget goes on with the critic's value after its last token
    (``truncated="bootstrap"``), a finished one with 0.

Source
    arXiv 1707.06347, eq. 7; GAE arXiv 1506.02438, eq. 16. Skipping observations follows verl pull request 2337.

Defaults
    gamma = lam = 1, clip .2 / .2, value clip .5, token-mean, one epoch of one minibatch, no KL, no entropy bonus,
    lr 3e-4 and critic_lr 1e-3 (tiny model). ``kl_in="reward"`` takes the KL off the reward of every sampled token.

Known weaknesses
    As good as its critic, which starts out knowing nothing. With gamma or lam below 1 the decay is per token, so a
    wordy turn discounts the future more than a short one. Whitening moves the mean to 0: in a batch of nothing but
    successes some tokens are still pushed down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.advantages import token_gae, whiten
from ragen_algos.algorithms.base import Algorithm
from ragen_algos.trajectory import Batch


@dataclass(frozen=True, kw_only=True)
class PPO(Algorithm):
    """Proximal policy optimisation with token GAE; formulas in the docstring of this file."""

    name: ClassVar[str] = "ppo"

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
        mask = batch.loss_mask
        advantages, targets = token_gae(rewards, values, mask, gamma=self.gamma, lam=self.lam, bootstrap=bootstrap)
        return whiten(advantages, mask), targets
