"""The turns of one player as the agents of a team: any text environment as a PettingZoo game.

SeeUPO (arXiv 2602.06554) reads an episode of ``T`` turns as a game of ``T`` virtual agents: agent ``t`` acts once, its
action is the whole text of turn ``t``, and all of them earn the return of the episode. Here that game can be played:

* :func:`turns_as_agents`: agent by agent (PettingZoo's AEC API);
* :func:`turns_as_parallel_agents`: the same game for code that speaks PettingZoo's Parallel API;
* :func:`turn_as_bandit`: what one agent faces while the others' policies are fixed, a contextual bandit (Gymnasium).

Importing this module adds every id of ours to PettingZoo's two registries, under its own name:
``pettingzoo.make("aec", "ragen/Sokoban-v0")``. ``import ragen_envs`` alone imports no PettingZoo.

Nothing is played here: :class:`~ragen_envs.TextEnv` plays, and what it returns is handed to the agents.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
from gymnasium import spaces

from ragen_envs.registration import TABLE
from ragen_envs.text_env import TextEnv

MOST_GAMES = 1000
"""Games that a :class:`TurnBandit` deals in search of one that reaches its turn."""

_OPTIONS = ("dynamics_seed", "level")
_MUTABLE = (dict, list, tuple, np.ndarray)
"""Types of which a value may hold what could be changed."""


def turns_as_agents(env: str | gymnasium.Env[Any, Any], *, observe: str = "history", **env_kwargs: Any) -> TurnsEnv:
    """A text environment as a game whose agents are its turns, one after the other.

    Args:
        env: An id (``"ragen/Sokoban-v0"``; ``"mylab.maze:mylab/Maze-v0"`` imports the module first), made without
            Gymnasium's wrappers; or a :class:`~ragen_envs.TextEnv`, wrapped or not. The game plays on that very object.
        observe: ``history`` (an agent sees what the player of the text environment sees at that moment) or ``blind``
            (every agent sees the first observation only).
        env_kwargs: Arguments for ``gymnasium.make``; only with an id.

    Raises:
        TypeError: ``env`` is not a text environment, or ``env_kwargs`` came without an id.
        ValueError: unknown ``observe``, or an argument that the environment refuses.
    """
    if isinstance(env, str):
        env = gymnasium.make(env, disable_env_checker=True, **env_kwargs).unwrapped
    elif env_kwargs:
        raise TypeError(f"arguments {sorted(env_kwargs)} go with an id only: give them to the environment you build")
    return TurnsEnv(env, observe)


def turns_as_parallel_agents(
    env: str | gymnasium.Env[Any, Any], *, observe: str = "history", **env_kwargs: Any
) -> ParallelTurnsEnv:
    """:func:`turns_as_agents` behind PettingZoo's Parallel API; same arguments, same errors."""
    return ParallelTurnsEnv(turns_as_agents(env, observe=observe, **env_kwargs))


def turn_as_bandit(
    env: str | gymnasium.Env[Any, Any],
    turn: int,
    others: Callable[[str, dict[str, Any]], Any],
    *,
    observe: str = "history",
    **env_kwargs: Any,
) -> TurnBandit:
    """What the agent of one turn faces while the policies of all other turns are fixed: a contextual bandit.

    Args:
        env: As for :func:`turns_as_agents`, and so are ``observe`` and ``env_kwargs``.
        turn: Which turn is the learner's, from 1 on.
        others: Plays all other turns: ``others("turn_3", observation)`` is the action of turn 3, where ``observation``
            is what that agent observes. Luck of its own comes from its own generator.

    Raises:
        TypeError: as :func:`turns_as_agents`, or ``others`` cannot be called.
        ValueError: as :func:`turns_as_agents`, or there is no such turn.
    """
    return TurnBandit(turns_as_agents(env, observe=observe, **env_kwargs), turn, others)


class TurnsEnv(pettingzoo.AECEnv):
    """The game that :func:`turns_as_agents` makes.

    Agents:
        ``turn_1`` to ``turn_T``, where ``T`` is ``max_turns`` (discrete actions: ``max_actions``). Each acts once, in
        this order, and stays until the game ends, because later turns earn it rewards too.

    Observation:
        A dict. ``text``: what the text environment returns now (the newest message; the first opens with the rules).
        ``messages``: the conversation so far, a tuple of ``{"role", "content"}``; with it an agent needs no memory. An
        environment with ``observation="messages"`` gives that key alone, and one with ``grid``, or with a wrapper that
        makes something else of it, gives ``observation`` alone. With ``observe="blind"`` it is always the dict of the
        first moment.

    Action:
        That of the text environment. A turn that cannot be read counts as played, as in the text environment: the
        state stays, and the next agent is next. ``None`` is for agents whose game is over.

    Reward:
        Every agent gets the reward of every turn. ``last()`` returns what an agent has earned since it acted, so the
        sum of all that ``last()`` says to an agent is the return of the episode.

    End:
        When the text environment ends, all agents end together, with its ``terminated`` and ``truncated``, also those
        whose turn never came. Each is selected once more, takes ``step(None)`` and leaves.

    Info:
        That of the text environment, a copy for each agent. With ``observe="blind"`` the first one until the end, so
        that nobody reads there what may not be seen, and the last one then.

    ``env`` is the environment as it was given, wrappers included.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], observe: str = "history") -> None:
        text_env = env.unwrapped if isinstance(env, gymnasium.Env) else env
        if not isinstance(text_env, TextEnv):
            raise TypeError(f"expected the id of a text environment or a ragen_envs.TextEnv, got {text_env!r}")
        if observe not in ("history", "blind"):
            raise ValueError(f"observe must be 'history' or 'blind', got {observe!r}")
        self.env, self.observe_mode = env, observe
        self._text_env = text_env
        self.render_mode = env.render_mode
        name = text_env.spec.id if text_env.spec is not None else text_env.game.name
        self.metadata = {**env.metadata, "name": f"{name}-turns", "is_parallelizable": False}
        n = text_env.max_actions if text_env.action_mode == "discrete" else text_env.max_turns
        self.possible_agents = [f"turn_{t}" for t in range(1, n + 1)]
        self.agents: list[str] = []
        self.agent_selection = self.possible_agents[0]

        seen = env.observation_space
        self._key = "observation"
        if isinstance(seen, spaces.Text | spaces.Sequence):
            self._key = "text" if isinstance(seen, spaces.Text) else "messages"
        entries = {self._key: seen}
        self._with_messages = self._key == "text" and text_env.observation_mode == "text"
        if self._with_messages:
            entries["messages"] = text_env.sibling(observation="messages").observation_space
        # Users seed the spaces agent by agent, so each agent has its own.
        self._observation_spaces = {agent: _fresh(spaces.Dict(entries)) for agent in self.possible_agents}
        self._action_spaces = {agent: _fresh(env.action_space) for agent in self.possible_agents}
        self._over = True

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The agent's observation space, always the same object."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The agent's action space, always the same object."""
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a game.

        Args:
            seed: As for :meth:`TextEnv.reset <ragen_envs.TextEnv.reset>`.
            options: ``dynamics_seed`` and ``level``, as there. Others are ignored with a warning (they raise there):
                PettingZoo's own tests pass one.

        Raises:
            ValueError: an invalid level or seed; the game in progress goes on.
        """
        unknown = sorted(set(options or ()) - set(_OPTIONS), key=str)
        if unknown:
            warnings.warn(f"unknown reset options {unknown} are ignored; known are {_OPTIONS}", stacklevel=2)
        known = {key: value for key, value in (options or {}).items() if key in _OPTIONS}
        observation, info = self.env.reset(seed=seed, options=known or None)
        self.agents = self.possible_agents.copy()
        self.agent_selection = self.agents[0]
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self._first, self._first_info = self._seen(observation), info
        self._show(self._first, 0.0, False, False, info)

    def step(self, action: Any) -> None:
        """Play the turn of ``agent_selection``.

        Raises:
            RuntimeError: the game is over and everybody has left, or it was never reset.
            ValueError: an action for an agent whose game is over, ``None`` for one whose turn it is, or a discrete
                action outside the space. Nothing has changed then.
        """
        if not self.agents:
            raise RuntimeError("the game is over: call reset() before step()")
        agent = self.agent_selection
        if self._over:
            if action is not None:
                raise ValueError(f"the game of {agent} is over: it takes step(None) only, got {action!r}")
            self._was_dead_step(None)
            return
        if action is None:
            raise ValueError(f"it is the turn of {agent}: None is for agents whose game is over")
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._cumulative_rewards[agent] = 0.0
        self._show(self._seen(observation), float(reward), bool(terminated), bool(truncated), info)
        self._accumulate_rewards()
        self.agent_selection = self.agents[0 if self._over else self.agents.index(agent) + 1]

    def observe(self, agent: str) -> dict[str, Any]:
        """What the agent sees now, as an object of its own.

        Raises:
            RuntimeError: there was no reset yet.
            ValueError: there is no such agent.
        """
        if agent not in self._observation_spaces:
            raise ValueError(f"agents are turn_1 to {self.possible_agents[-1]}, got {agent!r}")
        if not hasattr(self, "_now"):
            raise RuntimeError("call reset() before observe()")
        seen: dict[str, Any] = _own(self._first if self.observe_mode == "blind" else self._now)
        return seen

    def render(self) -> Any:
        """As the text environment renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the text environment."""
        self.env.close()

    def snapshot(self) -> dict[str, Any]:
        """The game at this moment as a JSON value; see :meth:`restore`. Wrappers with a state of their own keep it."""
        if not hasattr(self, "_now"):
            raise RuntimeError("call reset() before snapshot()")
        seen = self._observation_spaces[self.possible_agents[0]]
        return {
            "turns": len(self.possible_agents),
            "env": self._text_env.snapshot(),
            "observations": seen.to_jsonable([self._first, self._now]),
            "infos": _own([self._first_info, self._now_info]),
            "agents": self.agents.copy(),
            "agent_selection": self.agent_selection,
            "rewards": self.rewards.copy(),
            "cumulative_rewards": self._cumulative_rewards.copy(),
            "ends": [self._terminated, self._truncated],
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Put a snapshot back, taken from a game with the same arguments.

        Raises:
            ValueError: the snapshot is of another game or number of turns, or of a level that this game cannot play.
        """
        if snapshot.get("turns") != len(self.possible_agents):
            raise ValueError(f"this game has {len(self.possible_agents)} turns, the snapshot {snapshot.get('turns')}")
        if self.env is not self._text_env:
            self.env.reset()  # so that wrappers are at the start of an episode, and let it be played
        self._text_env.restore(snapshot["env"])
        snapshot = copy.deepcopy(snapshot)
        seen = self._observation_spaces[self.possible_agents[0]]
        self._first, now = seen.from_jsonable(snapshot["observations"])
        self._first_info, info = snapshot["infos"]
        self.agents, self.agent_selection = snapshot["agents"], snapshot["agent_selection"]
        terminated, truncated = snapshot["ends"]
        self._show(now, 0.0, terminated, truncated, info)
        self.rewards, self._cumulative_rewards = snapshot["rewards"], snapshot["cumulative_rewards"]

    # --- inside ---------------------------------------------------------------------------------------------------

    def _seen(self, observation: Any) -> dict[str, Any]:
        seen = {self._key: observation}
        if self._with_messages:
            seen["messages"] = self._text_env._messages()
        return seen

    def _show(
        self, seen: dict[str, Any], reward: float, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> None:
        """Tell all agents what the text environment says."""
        self._now, self._now_info = seen, info
        self._terminated, self._truncated = terminated, truncated
        self._over = terminated or truncated
        self.rewards = dict.fromkeys(self.agents, reward)
        self.terminations = dict.fromkeys(self.agents, terminated)
        self.truncations = dict.fromkeys(self.agents, truncated)
        shown = self._first_info if self.observe_mode == "blind" and not self._over else info
        shared = [key for key, value in shown.items() if isinstance(value, _MUTABLE)]
        self.infos = {agent: shown.copy() for agent in self.agents}
        for key in shared:
            for told in self.infos.values():
                told[key] = _own(shown[key])


class ParallelTurnsEnv(pettingzoo.ParallelEnv):
    """A :class:`TurnsEnv` behind PettingZoo's Parallel API; agents, spaces, rewards, ends and infos are those.

    One ``step`` is one turn. Everybody may send an action; that of the agent whose turn it is (``agent_selection``:
    ``turn_1`` in the first step, ``turn_2`` in the second) is played and the others are not looked at, so language
    models need not write them. Every agent gets the turn's reward. ``turns`` is the game behind it.
    """

    def __init__(self, turns: TurnsEnv) -> None:
        self.turns = turns
        self.metadata, self.render_mode = turns.metadata, turns.render_mode
        self.possible_agents = turns.possible_agents
        self.agents: list[str] = []

    @property
    def agent_selection(self) -> str:
        """The agent whose turn it is."""
        agent: str = self.turns.agent_selection
        return agent

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The agent's observation space, always the same object."""
        return self.turns.observation_space(agent)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The agent's action space, always the same object."""
        return self.turns.action_space(agent)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        """Start a game, as :meth:`TurnsEnv.reset` does; returns observations and infos by agent."""
        self.turns.reset(seed=seed, options=options)
        self.agents = self.turns.agents.copy()
        return self._observations(), dict(self.turns.infos)

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[
        dict[str, dict[str, Any]], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
    ]:
        """Play one turn.

        Args:
            actions: Actions by agent; that of ``agent_selection`` must be among them.

        Returns:
            Observations, rewards, terminations, truncations and infos by agent.

        Raises:
            RuntimeError: the game is over, or was never reset.
            ValueError: the action of the agent whose turn it is is missing or invalid, or a name is not an agent's.
                Nothing has changed then.
        """
        turns = self.turns
        if not self.agents:
            raise RuntimeError("the game is over: call reset() before step()")
        unknown = sorted(set(actions) - set(self.agents), key=str)
        if unknown:
            raise ValueError(f"actions of {unknown}: agents are {self.agents[0]} to {self.agents[-1]}")
        if turns.agent_selection not in actions:
            raise ValueError(f"it is the turn of {turns.agent_selection}, and its action is missing: {sorted(actions)}")
        turns.step(actions[turns.agent_selection])
        told = (turns.rewards.copy(), turns.terminations.copy(), turns.truncations.copy(), turns.infos.copy())
        observations = self._observations()
        while turns.agents and turns._over:
            turns.step(None)
        self.agents = turns.agents.copy()
        return observations, *told

    def render(self) -> Any:
        """As the text environment renders."""
        return self.turns.render()

    def close(self) -> None:
        """Close the text environment."""
        self.turns.close()

    def _observations(self) -> dict[str, dict[str, Any]]:
        return {agent: self.turns.observe(agent) for agent in self.agents}


class TurnBandit(gymnasium.Env[dict[str, Any], Any]):
    """The contextual bandit that :func:`turn_as_bandit` makes: one learner, one decision an episode.

    Context:
        What agent ``turn_t`` of the :class:`TurnsEnv` observes when its turn has come, the turns before having been
        played by ``others``. Games that end before are dealt anew, so contexts are those of games in which the turn
        comes; ``info["n_missed"]`` says how many others were dealt for this one (1 / (1 + its mean) is the share).

    Action:
        That of the text environment.

    Reward:
        The sum of rewards of this turn and all later ones, the later ones played by ``others``. The rewards before are
        fixed by the context, so advantages are those of the whole return. ``info["turn_reward"]`` is this turn's alone.

    End:
        Always ``terminated`` after the one step; observation and info are those of the end of the game. A game that ran
        out of turns ended by its rules too.

    ``turns`` is the game behind it; ``turns.snapshot()`` after ``reset`` keeps a context.
    """

    def __init__(self, turns: TurnsEnv, turn: int, others: Callable[[str, dict[str, Any]], Any]) -> None:
        n = len(turns.possible_agents)
        if not isinstance(turn, int) or isinstance(turn, bool) or not 1 <= turn <= n:
            raise ValueError(f"turn must be a whole number from 1 to {n}, got {turn!r}")
        if not callable(others):
            raise TypeError(f"others must be a function of agent name and observation, got {others!r}")
        self.turns, self.agent, self.others = turns, f"turn_{turn}", others
        self.metadata, self.render_mode = turns.env.metadata, turns.render_mode
        self.observation_space = turns.observation_space(self.agent)
        self.action_space = turns.action_space(self.agent)
        self._waiting, self._n_missed = False, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Deal a context.

        Args:
            seed: Fixes level and luck of the first game dealt, and all that follow it.
            options: ``dynamics_seed`` and ``level`` as for :meth:`TurnsEnv.reset`; or ``snapshot`` alone: the context
                of a ``turns.snapshot()``. Its luck is in it: the same action then has the same consequences.

        Raises:
            RuntimeError: the turn was not reached, in ``MOST_GAMES`` games or in the one that the options fix.
            ValueError: unknown option, an invalid level or seed, or a snapshot of another game or turn.
        """
        options = {key: value for key, value in (options or {}).items() if value is not None}
        unknown = sorted(set(options) - {*_OPTIONS, "snapshot"}, key=str)
        if unknown:
            raise ValueError(f"unknown reset options {unknown}; known are {(*_OPTIONS, 'snapshot')}")
        if "snapshot" in options and len(options) > 1:
            raise ValueError("a snapshot fixes level and luck: give no other option with it")
        super().reset(seed=seed)
        self._waiting, self._n_missed = False, 0
        if "snapshot" in options:
            self.turns.restore(options["snapshot"])
            if self.turns._over or self.turns.agent_selection != self.agent:
                raise ValueError(f"this is not a snapshot of a moment at which it is the turn of {self.agent}")
        else:
            self._deal(seed, options)
        self._waiting = True
        return self.turns.observe(self.agent), self._info(0.0)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Play the learner's turn, then the rest of the game by ``others``.

        Raises:
            RuntimeError: the episode is over or was never reset.
            ValueError: an invalid action; nothing has changed then.
        """
        if not self._waiting:
            raise RuntimeError("the episode is over: call reset() before step()")
        self.turns.step(action)
        self._waiting = False
        total = turn_reward = self.turns.rewards[self.agent]
        while not self.turns._over:
            self._play_other()
            total += self.turns.rewards[self.agent]
        return self.turns.observe(self.agent), total, True, False, self._info(turn_reward)

    def render(self) -> Any:
        """As the text environment renders."""
        return self.turns.render()

    def close(self) -> None:
        """Close the text environment."""
        self.turns.close()

    def _deal(self, seed: int | None, options: dict[str, Any]) -> None:
        """Play games up to the turn until one gets there."""
        for missed in range(MOST_GAMES):
            self.turns.reset(seed=None if missed else seed, options=options)
            while not self.turns._over and self.turns.agent_selection != self.agent:
                self._play_other()
            if not self.turns._over:
                self._n_missed = missed
                return
            if "dynamics_seed" in options:
                raise RuntimeError(f"this game ends before {self.agent}")
        raise RuntimeError(f"none of {MOST_GAMES} games reached {self.agent}: the others' turns end them before")

    def _play_other(self) -> None:
        agent = self.turns.agent_selection
        self.turns.step(self.others(agent, self.turns.observe(agent)))

    def _info(self, turn_reward: float) -> dict[str, Any]:
        return {**self.turns.infos[self.agent], "turn_reward": turn_reward, "n_missed": self._n_missed}


def _fresh(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """A copy with a generator of its own: copies of one that has begun would all sample the same."""
    space = copy.deepcopy(space)
    space.seed()
    return space


def _own(value: Any) -> Any:
    """A copy of an observation or info that shares nothing that could be changed; ``deepcopy`` takes much longer."""
    if not isinstance(value, _MUTABLE):
        return value
    if isinstance(value, dict):
        return {key: _own(entry) if isinstance(entry, _MUTABLE) else entry for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return value.copy()
    return type(value)([_own(entry) if isinstance(entry, _MUTABLE) else entry for entry in value])


def _register_all() -> None:
    """Put every id of the table into PettingZoo's registries; doing it twice is harmless."""
    for id in TABLE:
        if id not in pettingzoo.aec_registry:
            pettingzoo.register("aec", id, entry_point="ragen_envs.turns:turns_as_agents", kwargs={"env": id})
        if id not in pettingzoo.parallel_registry:
            entry_point = "ragen_envs.turns:turns_as_parallel_agents"
            pettingzoo.register("parallel", id, entry_point=entry_point, kwargs={"env": id})


_register_all()
