"""Play episodes: any player (a language model, a script, a function) against any text environment.

All episodes of a call run in lock step, so that a model can answer all of them in one batch. What a player says is
taken as it is; token ids are kept as sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium
import numpy as np

import ragen_envs  # noqa: F401  (registers the environments)
from ragen_algos.trajectory import Trajectory, Turn
from ragen_envs.game import digest
from ragen_envs.protocol import find_blocks
from ragen_envs.text_env import TextEnv

Messages = tuple[dict[str, str], ...]


@dataclass(frozen=True, slots=True)
class EpisodeSeed:
    """All luck of one episode. Episodes of a group share ``level`` and differ in the rest."""

    level: int
    dynamics: int
    sampling: int
    group_id: int
    trajectory_id: int


@dataclass(slots=True)
class Reply:
    """What a player said in one turn."""

    text: str
    finish_reason: str = "stop"
    """``stop``, ``length`` (cut at the token limit of a turn), or ``context`` (no turn: the conversation has outgrown
    the model, and the episode ends there, truncated)."""
    n_tokens: int = 0
    error: str = ""
    """Why there is no reply. The episode then ends as an error, which is not the same as a failure."""


@dataclass(slots=True)
class Tokens:
    """The token side of one episode, as in :class:`~ragen_algos.trajectory.Trajectory`."""

    ids: np.ndarray
    loss_mask: np.ndarray
    turn_id: np.ndarray
    logp: np.ndarray


class Player(Protocol):
    """Whoever answers. Rows are positions in the list given to ``begin``."""

    env_kwargs: dict[str, Any]
    """How it wants to see the game, for example ``{"prompt": "compact"}``."""
    temperature: float

    def begin(self, envs: Sequence[TextEnv], prompts: Sequence[Messages], seeds: Sequence[EpisodeSeed]) -> None:
        """Forget everything; new episodes start with these prompts."""

    def reply(self, rows: Sequence[int]) -> list[Reply]:
        """One turn for each of these episodes."""

    def observe(self, rows: Sequence[int], texts: Sequence[str]) -> None:
        """What came back, for episodes that go on (and, if asked for, for those that a budget cut off)."""

    def tokens(self, row: int) -> Tokens | None:
        """The token record of an episode; None for players without tokens."""


@dataclass
class FunctionPlayer:
    """A player from a function ``(env, messages, rng) -> text``. An exception ends that one episode as an error."""

    function: Callable[[TextEnv, Messages, np.random.Generator], str]
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    temperature: float = 1.0

    def begin(self, envs: Sequence[TextEnv], prompts: Sequence[Messages], seeds: Sequence[EpisodeSeed]) -> None:
        self._envs = list(envs)
        self._messages = list(prompts)
        self._rngs = [np.random.default_rng(np.random.SeedSequence(s.sampling, spawn_key=(2,))) for s in seeds]

    def reply(self, rows: Sequence[int]) -> list[Reply]:
        replies = []
        for row in rows:
            try:
                text = self.function(self._envs[row], self._messages[row], self._rngs[row])
                if not isinstance(text, str):
                    raise TypeError(f"the player's function must return text, got {text!r}")
                replies.append(Reply(text))
                self._messages[row] = (*self._messages[row], {"role": "assistant", "content": text})
            except Exception as error:
                replies.append(Reply("", error=f"{type(error).__name__}: {error}"))
        return replies

    def observe(self, rows: Sequence[int], texts: Sequence[str]) -> None:
        for row, text in zip(rows, texts, strict=True):
            self._messages[row] = (*self._messages[row], {"role": "user", "content": text})

    def tokens(self, row: int) -> Tokens | None:
        return None


def make_env(env_id: str, env_kwargs: dict[str, Any] | None = None) -> TextEnv:
    """The bare text environment of an id, set to hand over messages. Our own code needs no checking wrappers.

    Raises:
        ValueError: not a text environment, or arguments that would replace its game.
    """
    if "game" in (env_kwargs or {}):
        raise ValueError("the game of an environment is fixed by its id")
    env = gymnasium.make(env_id, disable_env_checker=True, observation="messages", **(env_kwargs or {}))
    bare = env.unwrapped
    if not isinstance(bare, TextEnv):
        raise ValueError(f"{env_id} is not a text environment of ragen_envs")
    return bare


def episode_seeds(
    root: Sequence[int], *, groups: int, group_size: int = 1, levels: Sequence[int] | None = None
) -> list[EpisodeSeed]:
    """Seeds for ``groups * group_size`` episodes from a root such as ``(run seed, iteration)``.

    Args:
        root: Numbers that name this set of episodes.
        groups: Levels.
        group_size: Episodes per level.
        levels: Level seeds of the groups, instead of new ones.
    """
    state = np.random.SeedSequence(list(root)).generate_state(groups * (1 + 2 * group_size))
    drawn, rest = state[:groups], state[groups:].reshape(2, groups, group_size)
    if levels is None:
        levels = drawn.tolist()
    return [
        EpisodeSeed(int(levels[g]), int(rest[0, g, k]), int(rest[1, g, k]), g, g * group_size + k)
        for g in range(groups)
        for k in range(group_size)
    ]


def rollout(
    player: Player,
    env_id: str,
    env_kwargs: dict[str, Any] | None,
    seeds: Sequence[EpisodeSeed],
    *,
    last_sight: bool = False,
) -> list[Trajectory]:
    """Play one episode for each seed.

    Args:
        player: Its ``env_kwargs`` are overridden by the argument ``env_kwargs``.
        env_id: A registered id.
        env_kwargs: Arguments of the environment.
        seeds: One per episode, in the order of the result.
        last_sight: Also show the player what it sees after a budget ended an episode, so that a critic can value it.

    Returns:
        Trajectories in the order of ``seeds``. One whose player or environment raised has ``error`` set.
    """
    kwargs = {**player.env_kwargs, **(env_kwargs or {})}
    first = make_env(env_id, kwargs)
    envs = [first, *(first.sibling() for _ in seeds[1:])]
    prompts: list[Messages] = []
    out: list[Trajectory] = []
    for env, s in zip(envs, seeds, strict=False):
        messages, info = env.reset(seed=s.level, options={"dynamics_seed": s.dynamics})
        prompts.append(messages)
        out.append(
            Trajectory(
                group_id=s.group_id,
                trajectory_id=s.trajectory_id,
                seed=s.level,
                dynamics_seed=s.dynamics,
                level_key=info["level_hash"],
                split=info["split"],
                temperature=player.temperature,
            )
        )
    player.begin(envs[: len(seeds)], prompts, seeds)
    sights = [m[-1]["content"] for m in prompts]
    active = list(range(len(seeds)))
    while active:
        replies = player.reply(active)
        going: list[int] = []
        watching: list[int] = []
        for row, reply in zip(active, replies, strict=True):
            episode = out[row]
            if reply.error:
                episode.error = reply.error
                continue
            if reply.finish_reason == "context":
                episode.truncated = True
                continue
            actions_left = envs[row].actions_left
            try:
                messages, reward, terminated, truncated, info = envs[row].step(
                    reply.text, finish_reason=reply.finish_reason
                )
            except Exception as error:
                episode.error = f"environment: {type(error).__name__}: {error}"
                continue
            episode.turns.append(
                Turn(
                    text=reply.text,
                    thought=find_blocks(reply.text).thought,
                    finish_reason=reply.finish_reason,
                    status=info["action_status"],
                    format_ok=info["format_ok"],
                    executed=info["action_executed"],
                    n_actions=actions_left - envs[row].actions_left,
                    reward=reward,
                    penalty=0.0 if info["format_ok"] else envs[row].format_penalty,
                    state_key=info["state_hash"],
                    observation_key=digest(sights[row]),
                    n_tokens=reply.n_tokens,
                    optimal_steps=info["optimal_steps"],
                    deadlock=info["deadlock"],
                )
            )
            episode.terminated, episode.truncated, episode.success = terminated, truncated, info["success"]
            sights[row] = messages[-1]["content"]
            if not (terminated or truncated):
                going.append(row)
            if not terminated and (last_sight or not truncated):
                watching.append(row)
        if watching:
            player.observe(watching, [sights[row] for row in watching])
        active = going
    for row, episode in enumerate(out):
        record = player.tokens(row)
        if record is not None:
            episode.ids, episode.loss_mask = record.ids, record.loss_mask
            episode.turn_id, episode.logp = record.turn_id, record.logp
    return out
