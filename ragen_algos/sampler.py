"""Batched multi-turn sampling from a :class:`~ragen_algos.policy.LanguagePolicy`.

The key-value cache is kept from the first turn to the last, so each token passes through the model once. Rows have
different lengths: every forward appends the same number of columns to all rows, and columns that a row does not need
are masked out for it for good. Log-probabilities come from the very pass that sampled the token.

A turn ends with a stop token, with the answer block (case C3: text after it could only do harm), or at the token limit.
In the latter two the stop token was not sampled; it then enters the context as part of what the environment says.

Luck is per row: a row's tokens depend on its own ``EpisodeSeed.sampling`` and not on its batch mates (up to float
rounding of batched matrix products).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from ragen_algos.policy import LanguagePolicy
from ragen_algos.rollout import EpisodeSeed, Messages, Reply, Tokens
from ragen_envs.protocol import find_blocks
from ragen_envs.text_env import TextEnv


class Sampler:
    """A :class:`~ragen_algos.rollout.Player` that samples from a policy.

    Args:
        policy: Who answers.
        temperature: Divides the logits; recorded with every trajectory. Nothing else (top-k, top-p) shapes the
            distribution, so that log-probabilities are those of the tokens' true distribution.
        greedy: Take the most likely token; log-probabilities are then those at temperature 1.
        max_new_tokens: Sampled tokens per turn; the policy's own limit by default.

    Raises:
        ValueError: a temperature or a limit that is not positive.
    """

    def __init__(
        self,
        policy: LanguagePolicy,
        *,
        temperature: float = 1.0,
        greedy: bool = False,
        max_new_tokens: int | None = None,
    ) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}; use greedy=True for the limit of 0")
        if max_new_tokens is not None and max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        self.policy = policy
        self.temperature = 1.0 if greedy else float(temperature)
        self.greedy = greedy
        self.max_new_tokens = max_new_tokens or policy.max_new_tokens
        self.env_kwargs = policy.env_kwargs
        # transformers renamed the argument; older models know only the old name.
        parameters = inspect.signature(policy.model.forward).parameters
        self._may_close: dict[int, bool] = {}
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    def begin(self, envs: Sequence[TextEnv], prompts: Sequence[Messages], seeds: Sequence[EpisodeSeed]) -> None:
        self._pending: list[list[int]] = [self.policy.prompt_ids(p) for p in prompts]
        self._ids: list[list[int]] = [list(p) for p in self._pending]
        self._turn_id: list[list[int]] = [[-1] * len(p) for p in self._pending]
        self._logp: list[list[float]] = [[0.0] * len(p) for p in self._pending]
        self._turn = [0] * len(prompts)
        self._stopped = [True] * len(prompts)
        self._luck = [np.random.default_rng(np.random.SeedSequence(s.sampling, spawn_key=(2,))) for s in seeds]
        self._alive = list(range(len(prompts)))
        self._cache: Any = DynamicCache()
        self._mask = torch.zeros(len(prompts), 0, dtype=torch.long, device=self.policy.device)

    def reply(self, rows: Sequence[int]) -> list[Reply]:
        # A conversation that would outgrow the model ends there: talking too long is a way to fail, not an error.
        fit = [r for r in rows if len(self._ids[r]) + self.max_new_tokens <= self.policy.context]
        with torch.no_grad(), self.policy.precision():
            replies = dict(zip(fit, self._reply(fit), strict=True)) if fit else {}
        return [replies.get(r) or Reply("", finish_reason="context") for r in rows]

    def _reply(self, rows: list[int]) -> list[Reply]:
        if rows != self._alive:
            kept = torch.tensor([self._alive.index(r) for r in rows], device=self.policy.device)
            self._cache.batch_select_indices(kept)
            self._mask = self._mask[kept]
            self._alive = rows
        n, limit, stop_ids = len(rows), self.max_new_tokens, self.policy.stop_ids
        # One uniform number per token, drawn ahead: a row's luck is its own.
        uniform = np.stack([self._luck[r].random(limit) for r in rows])

        logits = self._feed([self._pending[r] for r in rows])
        sampled: list[list[int]] = [[] for _ in rows]
        logps: list[list[float]] = [[] for _ in rows]
        open_rows = np.ones(n, bool)
        for step in range(limit):
            tokens, logp = self._choose(logits, uniform[:, step])
            for i in map(int, np.flatnonzero(open_rows)):
                sampled[i].append(int(tokens[i]))
                logps[i].append(float(logp[i]))
                if int(tokens[i]) in stop_ids or self._answered(sampled[i]):
                    open_rows[i] = False
            if not open_rows.any() or step == limit - 1:
                break
            logits = self._feed([[sampled[i][-1]] if open_rows[i] else [] for i in range(n)])

        replies = []
        for i, r in enumerate(rows):
            self._ids[r] += sampled[i]
            self._logp[r] += logps[i]
            self._turn_id[r] += [self._turn[r]] * len(sampled[i])
            self._turn[r] += 1
            self._stopped[r] = sampled[i][-1] in stop_ids
            # The last sampled token has not passed through the model yet.
            self._pending[r] = [sampled[i][-1]]
            replies.append(
                Reply(
                    self.policy.primed + self.policy.decode(sampled[i]),
                    finish_reason="length" if open_rows[i] else "stop",
                    n_tokens=len(sampled[i]),
                )
            )
        return replies

    def _answered(self, sampled: list[int]) -> bool:
        """Whether the turn is complete: an answer block closed after the thinking. What would follow cannot count."""
        last = sampled[-1]
        if last not in self._may_close:
            self._may_close[last] = ">" in self.policy.decode([last])
        return (
            self._may_close[last] and find_blocks(self.policy.primed + self.policy.decode(sampled)).answer is not None
        )

    def observe(self, rows: Sequence[int], texts: Sequence[str]) -> None:
        for r, text in zip(rows, texts, strict=True):
            new = self.policy.observation_ids(text, stopped=self._stopped[r])
            self._pending[r] += new
            self._ids[r] += new
            self._turn_id[r] += [-1] * len(new)
            self._logp[r] += [0.0] * len(new)

    def tokens(self, row: int) -> Tokens | None:
        turn_id = np.array(self._turn_id[row], dtype=np.int64)
        return Tokens(
            ids=np.array(self._ids[row], dtype=np.int64),
            loss_mask=turn_id >= 0,
            turn_id=turn_id,
            logp=np.array(self._logp[row], dtype=np.float32),
        )

    def _feed(self, pieces: Sequence[Sequence[int]]) -> torch.Tensor:
        """Pass each row's new ids through the model.

        Returns:
            ``[n, V]`` logits after each row's last new id; arbitrary for rows without any.
        """
        device = self.policy.device
        width = max(map(len, pieces))
        ids = np.zeros((len(pieces), width), np.int64)
        new = np.zeros((len(pieces), width), np.int64)
        for i, piece in enumerate(pieces):
            # At the right end, so that one column of logits is enough for all rows.
            ids[i, width - len(piece) :] = piece
            new[i, width - len(piece) :] = 1
        self._mask = torch.cat([self._mask, torch.from_numpy(new).to(device)], 1)
        return self.policy.logits(
            torch.from_numpy(ids).to(device),
            self._mask,
            torch.tensor([width - 1], device=device),
            use_cache=True,
            **{self._cache_argument: self._cache},
        )[:, 0]

    def _choose(self, logits: torch.Tensor, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pick a token per row (inverse of the cumulative distribution) and its log-probability."""
        logp = torch.log_softmax(logits.float() / self.temperature, -1)
        if self.greedy:
            tokens = logp.argmax(-1)
        else:
            cumulative = logp.double().exp().cumsum(-1)
            aim = torch.from_numpy(uniform).to(logp.device).unsqueeze(1) * cumulative[:, -1:]
            tokens = torch.searchsorted(cumulative, aim, right=True).squeeze(1).clamp(max=logp.shape[-1] - 1)
        return tokens.cpu().numpy(), logp.gather(1, tokens.unsqueeze(1)).squeeze(1).cpu().numpy()
