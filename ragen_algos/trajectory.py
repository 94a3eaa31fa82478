"""The one record that rollouts write and that credit, losses and results read.

A :class:`Trajectory` is one episode. Its token arrays hold ids exactly as they were sampled and fed, never re-encoded
from text; players without tokens (random, oracle) leave them empty. A :class:`Batch` is trajectories padded to one
length, as tensors; it is the only place where padding exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch


@dataclass(slots=True)
class Turn:
    """What one turn said and did."""

    text: str
    thought: str
    finish_reason: str
    """``stop`` or ``length``."""
    status: str
    """``info["action_status"]``."""
    format_ok: bool
    executed: str
    """Names of the executed actions, joined by `` || ``."""
    n_actions: int
    """Number of executed actions."""
    reward: float
    """Game reward plus format penalty."""
    penalty: float
    """The format penalty alone (0 or negative)."""
    state_key: str
    """State after the turn."""
    observation_key: str
    """Digest of what was seen before the turn, for grouping identical states."""
    n_tokens: int
    """Sampled tokens of this turn."""
    optimal_steps: int = -1
    """Oracle label after the turn, -1 if unknown or not asked for."""
    deadlock: bool = False


@dataclass(slots=True)
class Trajectory:
    """One episode. ``L`` = number of tokens, prompt and observations included."""

    group_id: int
    """Episodes of one group share level and prompt."""
    trajectory_id: int
    seed: int
    """Level seed."""
    dynamics_seed: int
    level_key: str = ""
    split: str = ""
    turns: list[Turn] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    error: str = ""
    """Why the episode could not be played to its end; such an episode has no score."""
    temperature: float = 1.0
    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """[L] token ids."""
    loss_mask: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """[L] True where the policy sampled the token (the stop token included)."""
    turn_id: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """[L] turn index of sampled tokens, -1 elsewhere."""
    logp: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    """[L] log-probability at sampling, at ``temperature``; 0 where not sampled."""

    @property
    def total_return(self) -> float:
        """Sum of the turns' rewards, format penalties included."""
        return float(sum(turn.reward for turn in self.turns))


@dataclass(slots=True)
class Batch:
    """``N`` trajectories right-padded to ``L`` tokens. Column 0 is never sampled, so ``loss_mask[:, 0]`` is False."""

    ids: torch.Tensor
    """[N, L] int64."""
    attention_mask: torch.Tensor
    """[N, L] int64, from lengths only; observations included."""
    loss_mask: torch.Tensor
    """[N, L] bool."""
    turn_id: torch.Tensor
    """[N, L] int64, -1 where not sampled."""
    turn_end: torch.Tensor
    """[N, L] bool: the last sampled token of each turn."""
    observation_id: torch.Tensor
    """[N, L] int64: equal on the sampled tokens of two turns if the same was seen before them; -1 where not sampled."""
    logp: torch.Tensor
    """[N, L] float32 log-probability at sampling, 0 where not sampled."""
    rewards: torch.Tensor
    """[N, L] float64: each turn's reward on the turn's last sampled token."""
    returns: torch.Tensor
    """[N] float64 raw episode returns."""
    group_id: torch.Tensor
    """[N] int64."""
    trajectory_id: torch.Tensor
    """[N] int64."""
    terminated: torch.Tensor
    """[N] bool."""
    truncated: torch.Tensor
    """[N] bool: cut by a budget and not ended by the game (a tie counts as terminated)."""
    temperature: float

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def rows(self, index: torch.Tensor | Sequence[int]) -> Batch:
        """The batch restricted to some rows, cut to the longest of them."""
        index = torch.as_tensor(index, dtype=torch.long)
        width = int(self.attention_mask[index].sum(1).max()) if len(index) else 0
        token = {
            name: getattr(self, name)[index, :width]
            for name in (
                "ids",
                "attention_mask",
                "loss_mask",
                "turn_id",
                "turn_end",
                "observation_id",
                "logp",
                "rewards",
            )
        }
        row = {
            name: getattr(self, name)[index]
            for name in ("returns", "group_id", "trajectory_id", "terminated", "truncated")
        }
        return Batch(**token, **row, temperature=self.temperature)

    def only(self, turns: Sequence[int]) -> Batch:
        """The same rows, sampled tokens of some turns only, each row cut after the last of them.

        A causal model computes these tokens from what came before, so nothing behind them needs to be fed. A row
        without any of these turns has length 0.
        """
        wanted = torch.isin(self.turn_id, torch.as_tensor(list(turns), dtype=torch.long)) & self.loss_mask
        column = torch.arange(self.ids.shape[1])
        last = torch.where(wanted, column, -1).amax(1, keepdim=True)
        return replace(
            self,
            attention_mask=self.attention_mask * (column <= last),
            loss_mask=wanted,
            turn_id=torch.where(wanted, self.turn_id, -1),
            turn_end=self.turn_end & wanted,
            logp=torch.where(wanted, self.logp, 0.0),
            rewards=torch.where(wanted, self.rewards, 0.0),
        )


def collate(trajectories: Sequence[Trajectory], *, pad_id: int = 0) -> Batch:
    """Pad trajectories to a batch. Masks come from lengths and spans, never from token values.

    Raises:
        ValueError: no trajectory, mixed temperatures, a token array of the wrong length, or a rewarded turn of which
            no token was sampled.
    """
    if not trajectories:
        raise ValueError("cannot collate zero trajectories")
    if len({t.temperature for t in trajectories}) > 1:
        raise ValueError("trajectories of one batch must share a sampling temperature")
    n, width = len(trajectories), max(len(t.ids) for t in trajectories)
    ids = np.full((n, width), pad_id, np.int64)
    attention = np.zeros((n, width), np.int64)
    loss_mask = np.zeros((n, width), bool)
    turn_id = np.full((n, width), -1, np.int64)
    turn_end = np.zeros((n, width), bool)
    observation_id = np.full((n, width), -1, np.int64)
    seen: dict[str, int] = {}
    logp = np.zeros((n, width), np.float32)
    rewards = np.zeros((n, width), np.float64)
    for i, t in enumerate(trajectories):
        length = len(t.ids)
        if not len(t.loss_mask) == len(t.turn_id) == len(t.logp) == length:
            raise ValueError(f"trajectory {t.trajectory_id}: token arrays differ in length")
        ids[i, :length], attention[i, :length] = t.ids, 1
        loss_mask[i, :length], turn_id[i, :length], logp[i, :length] = t.loss_mask, t.turn_id, t.logp
        for k, turn in enumerate(t.turns):
            where = np.flatnonzero(t.turn_id == k)
            if len(where):
                turn_end[i, where[-1]] = True
                rewards[i, where[-1]] = turn.reward
                observation_id[i, where] = seen.setdefault(turn.observation_key, len(seen))
            elif turn.reward:
                raise ValueError(f"trajectory {t.trajectory_id}: turn {k} has a reward but no sampled token")
    return Batch(
        ids=torch.from_numpy(ids),
        attention_mask=torch.from_numpy(attention),
        loss_mask=torch.from_numpy(loss_mask),
        turn_id=torch.from_numpy(turn_id),
        turn_end=torch.from_numpy(turn_end),
        observation_id=torch.from_numpy(observation_id),
        logp=torch.from_numpy(logp),
        rewards=torch.from_numpy(rewards),
        returns=torch.tensor([t.total_return for t in trajectories], dtype=torch.float64),
        group_id=torch.tensor([t.group_id for t in trajectories]),
        trajectory_id=torch.tensor([t.trajectory_id for t in trajectories]),
        terminated=torch.tensor([t.terminated for t in trajectories]),
        truncated=torch.tensor([t.truncated and not t.terminated for t in trajectories]),
        temperature=trajectories[0].temperature,
    )
