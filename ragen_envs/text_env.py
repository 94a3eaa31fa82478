"""``TextEnv``: a :class:`~ragen_envs.game.Game` played through the turn protocol, as a Gymnasium environment.

One ``step(text)`` is one turn: parse, execute up to ``max_actions_per_turn`` primitive actions, observe. Nothing is
drawn inside ``step``, nothing is global, and every source of luck is one of two seeded streams: the level's and the
dynamics'.

A step is one Python call among thousands a millisecond, so what follows from the level or from the state alone is
worked out when it changes (``_play_level``, ``_look``) and not again in every step, and the luck stream is made when an
action first needs it.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from ragen_envs import protocol
from ragen_envs.game import Game, Plan
from ragen_envs.seeding import LUCK, LuckAhead, Uniforms, next_seed, stream
from ragen_envs.spaces import FreeText
from ragen_envs.splits import SPLITS

MAX_UNIFORMS = 32
"""Up to so many actions an episode, the luck of a whole episode is drawn in advance."""
MAX_TEXT = 1 << 20
"""Longest text in the spaces, in characters. ``step`` reads longer ones too."""


class TextEnv(gymnasium.Env[Any, Any]):
    """A game played in turns of text.

    Observation (``observation``):
        ``text``: one ``str``; the first one opens with the rules. ``messages``: the conversation so far as a tuple of
        ``{"role", "content"}``. ``grid``: the game's integer array, for agents without language.

    Action (``action``):
        ``text``: what the model wrote. ``discrete``: one primitive action per step; then a step has no form that could
        be wrong, no penalty, and only ``max_actions`` limits the episode. An action that is illegal at that moment
        changes nothing and is counted.

    Reward:
        Sum of the game's rewards over the actions of the turn, plus ``format_penalty`` if the turn was badly formed.

    End of episode:
        ``terminated`` when the game ends (goal, hole, solved). ``truncated`` when turns or actions are used up. Both
        only when the game ends exactly on the limit. With ``max_turns=1`` (discrete actions: ``max_actions=1``) the end
        of the only step is part of the game, so the episode then terminates and is never truncated.

    Info:
        The keys of :meth:`info_keys`, in every ``reset`` and ``step``, always of the same types.

    Args:
        game: A :class:`Game`, or ``"module:Class"``, which is then built from the remaining keyword arguments.
        observation: ``text``, ``messages`` or ``grid``.
        action: ``text`` or ``discrete``.
        reasoning: ``required`` (a turn is think block plus answer block) or ``off``.
        max_turns: Turns per episode.
        max_actions_per_turn: Primitive actions per turn.
        max_actions: Primitive actions per episode.
        format_penalty: Added to the reward of a badly formed turn (0 or negative).
        split: ``train``, ``val`` or ``test``: which levels are drawn.
        group_noise: ``independent``: luck follows ``options["dynamics_seed"]``. ``common``: luck follows the level seed
            alone, so that all members of a group meet the same luck.
        prompt: ``full`` (rules, legend, budgets, form) or ``compact`` (for tiny vocabularies): the game's name, the
            state, ``left N`` and, after a fault, ``note STATUS``. ``N`` counts the actions left in the episode; the
            number of the turn is not shown.
        view: One of the game's ``views``; by default its first one, or ``coordinates`` if it has them and the prompt is
            compact.
        oracle: Fill the info keys ``optimal_steps`` and ``deadlock`` from the game's oracle (costs time).
        render_mode: ``ansi`` or ``rgb_array``.

    Raises:
        ValueError: an argument is outside its values, or the budgets cannot fit the game's levels.
        TypeError: an argument is known neither here nor to the game.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]  # Gymnasium declares it without ClassVar
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 4,
    }

    def __init__(
        self,
        game: Game[Any, Any] | str,
        *,
        observation: str = "text",
        action: str = "text",
        reasoning: str = "required",
        max_turns: int = 5,
        max_actions_per_turn: int = 5,
        max_actions: int = 10,
        format_penalty: float = -0.1,
        split: str = "train",
        group_noise: str = "independent",
        prompt: str = "full",
        view: str | None = None,
        oracle: bool = False,
        render_mode: str | None = None,
        **game_kwargs: Any,
    ) -> None:
        self.game: Game[Any, Any] = _build_game(game, game_kwargs)
        self._arguments: dict[str, Any] = {
            "observation": observation,
            "action": action,
            "reasoning": reasoning,
            "max_turns": max_turns,
            "max_actions_per_turn": max_actions_per_turn,
            "max_actions": max_actions,
            "format_penalty": format_penalty,
            "split": split,
            "group_noise": group_noise,
            "prompt": prompt,
            "view": view,
            "oracle": oracle,
            "render_mode": render_mode,
        }
        _one_of("observation", observation, ("text", "messages", "grid"))
        _one_of("action", action, ("text", "discrete"))
        protocol.check_reasoning(reasoning)
        _one_of("split", split, SPLITS)
        _one_of("group_noise", group_noise, ("independent", "common"))
        _one_of("prompt", prompt, ("full", "compact"))
        if view is None:
            compact_view = prompt == "compact" and "coordinates" in self.game.views
            view = "coordinates" if compact_view else self.game.views[0]
        _one_of("view", view, self.game.views)
        if render_mode is not None:
            _one_of("render_mode", render_mode, self.metadata["render_modes"])
        budgets = {
            "max_turns": max_turns,
            "max_actions_per_turn": max_actions_per_turn,
            "max_actions": max_actions,
        }
        for name, value in budgets.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        number = isinstance(format_penalty, int | float) and not isinstance(format_penalty, bool)
        if not (number and math.isfinite(format_penalty) and format_penalty <= 0):
            raise ValueError(f"format_penalty must be 0 or negative, got {format_penalty!r}")
        allowed = max_actions if action == "discrete" else min(max_actions, max_turns * max_actions_per_turn)
        needed = self.game.longest_optimum
        if needed is not None and needed > allowed:
            raise ValueError(
                f"levels of this {self.game.name} game may need {needed} actions but an episode allows {allowed}: "
                "raise the budgets or lower the game's max_steps"
            )

        self.observation_mode, self.action_mode = observation, action
        self.reasoning, self.format_penalty = reasoning, float(format_penalty)
        self.max_turns, self.max_actions_per_turn, self.max_actions = max_turns, max_actions_per_turn, max_actions
        self.split, self.group_noise, self.prompt, self.view = split, group_noise, prompt, view
        self.oracle_info, self.render_mode = oracle, render_mode

        self.observation_space: spaces.Space[Any]
        if observation == "grid":
            grid_spec = self.game.grid_spec()
            if grid_spec is None:
                raise ValueError(f"{self.game.name} is text only: observation must be 'text' or 'messages'")
            shape, n_codes = grid_spec
            self.observation_space = spaces.Box(0, n_codes - 1, shape=shape, dtype=np.int8)
        elif observation == "messages":
            message = spaces.Dict({"role": FreeText(16), "content": FreeText(MAX_TEXT)})
            self.observation_space = spaces.Sequence(message)
        else:
            self.observation_space = FreeText(MAX_TEXT)
        self.action_space: spaces.Space[Any] = (
            spaces.Discrete(self.game.n_actions) if action == "discrete" else FreeText(MAX_TEXT)
        )

        self.level: Any = None
        """The level being played; None before the first reset."""
        self.state: Any = None
        """The game state; None before the first reset."""
        self._discrete = action == "discrete"
        self._key = _opening_key(game, game_kwargs, self._arguments)
        self._one_step = (max_actions if self._discrete else max_turns) == 1
        self._needs_luck = not self.game.deterministic
        few = self.game.uniform_luck and max_actions <= MAX_UNIFORMS
        self._luck_ahead = LuckAhead(max_actions if few else 0)
        self._names: tuple[str, ...] = ()
        self._legal: tuple[int, ...] = ()
        self._valid_actions: list[str] = []
        self._state_hash = ""
        self._base = _GOOD_TURN.copy()
        """Info of a turn in which all is in order: what the level decides, and what a turn need not change."""
        self._optimal_steps, self._deadlock = -1, False
        self._rng: np.random.Generator | Uniforms | None = None
        """The luck stream; None until an action needs it."""
        self._system: str | None = None
        """The rules that open the conversation; None where the prompt is compact."""
        self._said: list[str] = []
        """The conversation after the rules: states, and between them what the model wrote."""
        self._shown = ""
        """The state in words."""
        self._last = _NOTHING_DONE
        """The last turn, in the order of ``_TURN_KEYS``."""
        self._turn = self._actions_used = self._n_invalid = 0
        self._over = True

    # --- Gymnasium ------------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Fixes the level and, unless ``dynamics_seed`` says otherwise, the luck. Without it the level seed is
                drawn from ``np_random``.
            options: ``dynamics_seed`` (int): the luck alone. ``level``: play this level, whatever its split: a level
                object, its JSON value, or the game's notation.

        Raises:
            ValueError: unknown option, or an invalid level or seed. The episode in progress and ``np_random`` then go
                on as they were.
        """
        luck, level = self._own_luck_and_level(options) if options else (None, None)
        drawn = seed is None
        if seed is None:
            seed = next_seed(self.np_random)
        else:
            super().reset(seed=seed)
            seed = int(seed)
        if luck is None or self.group_noise == "common":
            luck = seed
        if level is None:
            level = self.game.draw_level(seed, self.split)
        self._luck_seed, self._luck_is_ahead, self._rng = int(luck), drawn and luck == seed, None
        self._turn = self._actions_used = self._n_invalid = 0
        self._over = False
        self._last = _NOTHING_DONE
        observation = self._open(level)
        if self.oracle_info:
            self._ask_oracle()
        return observation, self._info()

    def step(self, action: Any, *, finish_reason: str = "stop") -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play one turn (or, with discrete actions, one primitive action).

        Args:
            action: The model's text, or an action index.
            finish_reason: ``length`` if the text was cut off by a token limit, so that the status can say so
                (on the unwrapped env: Gymnasium wrappers do not pass it on).

        Raises:
            RuntimeError: the episode is over or was never reset.
            ValueError: a discrete action outside the space, or an unknown ``finish_reason``. Nothing has changed then.
        """
        if self._over:
            raise RuntimeError("the episode is over: call reset() before step()")
        if not self._discrete:
            return self._play_turn(action, finish_reason)
        # A discrete action has no form, costs no penalty and always counts. What follows is _look, _state_text and
        # _info in one piece, since calls are most of what such a step costs.
        game, names, state, legal = self.game, self._names, self.state, self._legal
        if type(action) is not int or not 0 <= action < len(names):
            action = self._index(action)
        self._turn = self._actions_used = turn = self._turn + 1
        left = self.max_actions - turn
        info = self._base.copy()
        info["turn"], info["actions_left"] = turn, left
        info["action_parsed"] = name = names[action]
        if action in legal:
            rng = self._rng
            if rng is None and self._needs_luck:
                rng = self._luck()
            now, reward, ended, won, changed = game.step(state, action, rng)  # type: ignore[arg-type]
            info["action_executed"] = name
            success = effective = terminated = False  # and not what the game gave, which may be numpy's
            if changed:
                info["action_effective"] = effective = True
            if ended:
                terminated = True
                if won:
                    info["success"] = success = True
                    info["score"] = 1.0
            self._last = "", name, name, "ok", True, True, effective, 0, success
        else:
            now, reward, terminated = state, 0.0, False
            self._n_invalid += 1
            info["action_status"], info["format_ok"], info["action_valid"] = "illegal_action", False, False
            self._last = "", name, "", "illegal_action", False, False, False, 0, False
        truncated = left <= 0
        if self._one_step:
            terminated, truncated = True, False
        self._over = over = terminated or truncated
        if now is not state:
            self.state = now
            if self.observation_mode == "grid":  # where nobody asks for words
                self._state_hash, legal_now = game.state_key(now), game.legal_actions(now)
            else:
                self._state_hash, legal_now, self._shown = game.sight(now, self.view)
            if legal_now != legal and not over:
                self._legal, self._valid_actions = legal_now, [names[a] for a in legal_now]
        info["valid_actions"] = [] if over else self._valid_actions.copy()
        info["state_hash"] = self._state_hash
        if self._n_invalid:
            info["n_invalid"] = self._n_invalid
        if self.oracle_info:
            self._ask_oracle()
            info["optimal_steps"], info["deadlock"] = self._optimal_steps, self._deadlock
        if type(reward) is not float:
            reward = float(reward)
        if self.observation_mode == "grid":
            return game.grid(now), reward, terminated, truncated, info
        if over or self.prompt == "compact":
            text = self._state_text()
        else:
            text = f"Actions left: {left}. State:\n{self._shown}"
        self._said.append(text)
        if self.observation_mode == "text":
            return text, reward, terminated, truncated, info
        return self._messages(), reward, terminated, truncated, info

    def render(self) -> Any:
        """The state as text (``ansi``) or as a ``uint8`` picture, height x width x 3 (``rgb_array``)."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() needs render_mode='ansi' or 'rgb_array' at construction")
            return None
        if self.state is None:
            raise RuntimeError("call reset() before render()")
        if self.render_mode == "ansi":
            return self.game.describe(self.state, self.game.views[0])
        return self.game.draw(self.state)

    # --- beyond Gymnasium -----------------------------------------------------------------------------------------

    @property
    def turns_left(self) -> int:
        """Turns left in the episode; with discrete actions, the actions left."""
        return self.actions_left if self.action_mode == "discrete" else self.max_turns - self._turn

    @property
    def actions_left(self) -> int:
        """Primitive actions left in the episode."""
        return self.max_actions - self._actions_used

    def best_turn(self) -> Plan | None:
        """The exact best next turn under the budgets that are left; None if the game has no oracle."""
        per_turn = 1 if self.action_mode == "discrete" else self.max_actions_per_turn
        return self.game.plan(
            self.state, turns_left=self.turns_left, actions_left=self.actions_left, max_actions=per_turn
        )

    def snapshot(self) -> dict[str, Any]:
        """Everything that the rest of the episode depends on, as a JSON value; see :meth:`restore`."""
        if self.state is None:
            raise RuntimeError("call reset() before snapshot()")
        rng = stream(self._luck_seed, LUCK) if self._rng is None else self._rng
        if isinstance(rng, Uniforms):
            rng = rng.generator(self._luck_seed, self.max_actions)
        return copy.deepcopy(
            {
                "game": self.game.name,
                "level": self.game.dump_level(self.level),
                "state": self.game.dump_state(self.state),
                "turn": self._turn,
                "actions_used": self._actions_used,
                "n_invalid": self._n_invalid,
                "over": self._over,
                "dynamics": rng.bit_generator.state,
                "np_random": self.np_random.bit_generator.state,
                "messages": list(self._messages()),
                "info": self._info(),
            }
        )

    def restore(self, snapshot: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Put a snapshot back, taken from an environment with the same arguments.

        Returns:
            The observation and info of that moment.

        Raises:
            ValueError: the snapshot is of another game, or of a level that this game cannot play.
        """
        if snapshot.get("game") != self.game.name:
            raise ValueError(f"this is a snapshot of {snapshot.get('game')!r}, not of {self.game.name!r}")
        snapshot = copy.deepcopy(snapshot)
        level = self.game.load_level(snapshot["level"])
        state = self.game.load_state(level, snapshot["state"])
        self._turn, self._actions_used = snapshot["turn"], snapshot["actions_used"]
        self._n_invalid, self._over = snapshot["n_invalid"], snapshot["over"]
        self._play_level(level, state)
        self._rng = stream(0, LUCK)
        self._rng.bit_generator.state = snapshot["dynamics"]
        self.np_random.bit_generator.state = snapshot["np_random"]
        said = [message["content"] for message in snapshot["messages"]]
        self._system = said.pop(0) if snapshot["messages"][0]["role"] == "system" else None
        self._said, info = said, snapshot["info"]
        self._last = tuple(info[key] for key in _TURN_KEYS)  # type: ignore[assignment]
        if self.oracle_info:
            self._optimal_steps, self._deadlock = info["optimal_steps"], info["deadlock"]
        return self._observe(), self._info()

    def sibling(self, **changes: Any) -> TextEnv:
        """Another environment of this class with the same game object and arguments, not yet reset.

        Args:
            changes: arguments of :class:`TextEnv` that shall differ; such a sibling has no ``spec``.
        """
        other = type(self)(self.game, **{**self._arguments, **changes})
        other.spec, other._key = (None, "") if changes else (self.spec, self._key)
        return other

    @staticmethod
    def info_keys() -> dict[str, type]:
        """Name and type of every info key."""
        return dict(_INFO_KEYS)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _play_turn(self, action: Any, finish_reason: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step with a text: read it, execute its actions one by one, answer."""
        raw = str(action) if isinstance(action, str) else ""  # no np.str_ in info
        wanted, status, format_ok, dropped, _ = protocol.read_turn(
            raw, self._read_answer, reasoning=self.reasoning, finish_reason=finish_reason
        )
        game, names, before = self.game, self._names, self.state
        state, reward, terminated, success, effective = before, 0.0, False, False, False
        left = self.max_actions - self._actions_used
        executed = 0
        for one in wanted:
            if executed == left:
                dropped += len(wanted) - executed
                break
            if one not in (self._legal if state is before else game.legal_actions(state)):
                status, format_ok = "illegal_action", False
                break
            rng = self._rng
            if rng is None and self._needs_luck:
                rng = self._luck()
            state, gain, ended, won, changed = game.step(state, one, rng)  # type: ignore[arg-type]
            executed += 1
            reward += gain
            if changed:
                effective = True
            if ended:
                terminated, success = True, bool(won)
                break
        self._turn += 1
        self._actions_used += executed
        penalty = 0.0
        if not format_ok:
            self._n_invalid += 1
            penalty = self.format_penalty
        truncated = self._actions_used >= self.max_actions or self._turn >= self.max_turns
        if self._one_step:
            terminated, truncated = True, False
        self._over = terminated or truncated
        if state is not before:
            self._look(state)
        if self.oracle_info:
            self._ask_oracle()
        parsed = names[wanted[0]] if len(wanted) == 1 else self._joined(wanted)
        done = parsed if executed == len(wanted) else self._joined(wanted[:executed])
        valid = len(wanted) > 0 and status not in ("unknown_action", "illegal_action")
        self._last = raw, parsed, done, status, format_ok, valid, effective, int(dropped), success
        self._said += raw, self._feedback(done, status, format_ok, reward, penalty)
        return self._observe(), float(reward + penalty), terminated, truncated, self._info()

    def _own_luck_and_level(self, options: dict[str, Any]) -> tuple[Any, Any]:
        unknown = set(options) - {"dynamics_seed", "level"}
        if unknown:
            raise ValueError(f"unknown reset options {sorted(unknown)}; known are dynamics_seed and level")
        luck = options.get("dynamics_seed")
        if luck is not None and (isinstance(luck, bool) or not isinstance(luck, int | np.integer) or luck < 0):
            raise ValueError(f"dynamics_seed must be a whole number of at least 0, got {luck!r}")
        return luck, None if options.get("level") is None else self._own_level(options["level"])

    def _own_level(self, data: Any) -> Any:
        if dataclasses.is_dataclass(data) and not isinstance(data, type):
            try:
                data = self.game.dump_level(data)
            except (AttributeError, KeyError, TypeError):
                raise ValueError(f"this is not a level of {self.game.name}: {data!r}") from None
        level = self.game.load_level(data)
        if self.observation_mode == "grid":
            shape, wanted = self.game.grid(self.game.initial(level)).shape, self.observation_space.shape
            if shape != wanted:
                raise ValueError(f"grid observations of this env have shape {wanted}, the level has {shape}")
        return level

    def _open(self, level: Any) -> Any:
        """Go to the start of a level: the observation there.

        Levels out of a list come back, so what was worked out is kept on them.
        """
        kept, base = getattr(level, "__dict__", {}) if self._key else {}, self._base
        opening = kept.get(self._key)
        if opening is None:
            self._play_level(level, self.game.initial(level))
            self._system = self._rules()
            text = self._state_text()
            self._said = [text]
            observation = self._observe()
            kept[self._key] = (
                *(self.state, self._names, base["level_hash"], base["split"], self._state_hash),
                *(self._legal, self._valid_actions, self._system, self._shown, text),
                observation if self.observation_mode == "text" else None,
            )
            return observation
        self.level = level
        self.state, self._names, base["level_hash"], base["split"], self._state_hash, *rest = opening
        self._legal, self._valid_actions, self._system, self._shown, text, observation = rest
        self._said = [text]
        return self._observe() if observation is None else observation

    def _play_level(self, level: Any, state: Any) -> None:
        """Go to a state of a level, and note what the level alone decides."""
        game = self.game
        self.level = level
        names = tuple(game.action_names(level))
        if names != self._names:
            self._names, self._legal, self._valid_actions = names, (), []
        self._base["level_hash"], self._base["split"] = game.level_key(level), game.split_of(level)
        self._look(state)

    def _look(self, state: Any) -> None:
        """Go to a state, and note what it alone decides; ``_over`` must be known by then."""
        self.state = state
        self._state_hash, legal, self._shown = self.game.sight(state, self.view)
        if self._over:
            legal = ()
        if legal != self._legal:
            self._legal, self._valid_actions = legal, [self._names[a] for a in legal]

    def _ask_oracle(self) -> None:
        self._optimal_steps, self._deadlock = -1, False
        values = self.game.oracle(self.state, self.actions_left)
        if values is not None:
            self._optimal_steps, self._deadlock = int(values.optimal_steps), bool(values.dead_end)

    def _luck(self) -> np.random.Generator | Uniforms:
        """Make the luck stream."""
        if self._luck_is_ahead:
            self._rng = self._luck_ahead.stream(self._luck_seed, self.np_random)
        else:
            self._rng = stream(self._luck_seed, LUCK)
        return self._rng

    def _index(self, action: Any) -> int:
        """A discrete action of any type that the space allows, as an ``int``."""
        n = len(self._names)
        if not self.action_space.contains(action):
            raise ValueError(f"discrete actions are 0 to {n - 1}, got {action!r}")
        return int(action)

    def _read_answer(self, answer: str) -> tuple[tuple[int, ...], str, int]:
        return self.game.parse_answer(answer, self.state, max_actions=self.max_actions_per_turn)

    def _joined(self, actions: Sequence[int]) -> str:
        return f" {protocol.SEPARATOR} ".join([self._names[a] for a in actions])

    def _observe(self) -> Any:
        if self.observation_mode == "text":
            if self._turn or self._system is None:
                return self._said[-1]
            return f"{self._system}\n\n{self._said[-1]}"
        if self.observation_mode == "grid":
            return self.game.grid(self.state)
        return self._messages()

    def _messages(self) -> tuple[dict[str, str], ...]:
        """The conversation so far, as fresh dictionaries."""
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        if self._discrete:
            said = [{"role": "user", "content": text} for text in self._said]
        else:
            said = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(self._said)]
        return (*system, *said)

    def _rules(self) -> str | None:
        """The rules of the game and of turns; None where the prompt is compact."""
        if self.prompt == "compact":
            return None
        rules = self.game.instructions(self.level, self.view)
        if self._discrete:
            return rules
        return _rules_of_turns(
            rules,
            self._names,
            self.max_turns,
            self.max_actions_per_turn,
            self.max_actions,
            self.reasoning,
            self.format_penalty,
        )

    def _state_text(self) -> str:
        left = self.max_actions - self._actions_used
        if self.prompt == "compact":
            return f"{self.game.name}\n{self._shown}\nleft {left}"
        if self._over:
            return f"The episode is over. Final state:\n{self._shown}"
        if self._discrete:
            return f"Actions left: {left}. State:\n{self._shown}"
        return f"Turn {self._turn + 1} of {self.max_turns}, actions left: {left}. State:\n{self._shown}"

    def _feedback(self, done: str, status: str, format_ok: bool, reward: float, penalty: float) -> str:
        if self.prompt == "compact":
            note = "" if status == "ok" else f"\nnote {status}"
            return self._state_text() + note
        said = f"Last turn: {done or 'no action'}. Reward {reward:.6g}.\n"
        if status != "ok":
            said += f"Problem: {protocol.FAILURES[status]}\n"
        elif not format_ok:
            said += f"Problem: {protocol.STRAY_TEXT}\n"
        if penalty:
            said += f"Penalty for form {penalty:.6g}.\n"
        said += self._state_text()
        if status in protocol.REPEAT_FORMAT and not self._over:
            per_turn = min(self.max_actions_per_turn, self.actions_left)
            said += "\n" + protocol.format_rules(self._names, max_actions=per_turn, reasoning=self.reasoning)
        return said

    def _info(self) -> dict[str, Any]:
        """A fresh info of this moment."""
        info = self._base.copy()  # and then what differs: far quicker than a display of so many keys
        info["turn"] = self._turn
        info["actions_left"] = self.max_actions - self._actions_used
        info["valid_actions"] = [] if self._over else self._valid_actions.copy()
        info["state_hash"] = self._state_hash
        if self._last is _NOTHING_DONE:
            info["action_status"], info["format_ok"], info["action_valid"] = "", False, False
        else:
            raw, parsed, executed, status, format_ok, valid, effective, dropped, success = self._last
            info["action_raw"] = raw
            info["action_parsed"] = parsed
            info["action_executed"] = executed
            info["action_status"] = status
            info["format_ok"] = format_ok
            info["action_valid"] = valid
            info["action_effective"] = effective
            info["n_dropped"] = dropped
            if success:
                info["success"], info["score"] = True, 1.0
        if self._n_invalid:
            info["n_invalid"] = self._n_invalid
        if self.oracle_info:
            info["optimal_steps"], info["deadlock"] = self._optimal_steps, self._deadlock
        return info


@lru_cache(maxsize=1024)
def _rules_of_turns(
    rules: str,
    names: tuple[str, ...],
    max_turns: int,
    max_actions_per_turn: int,
    max_actions: int,
    reasoning: str,
    format_penalty: float,
) -> str:
    """The rules of a game, then the budgets and the form of a turn."""
    turns = "one turn" if max_turns == 1 else f"{max_turns} turns"
    actions = "one action" if max_actions == 1 else f"{max_actions} actions"
    per_turn = min(max_actions_per_turn, max_actions)
    budget = f"You have {turns} and {actions} in all."
    if max_turns > 1:
        budget += " The episode ends when either runs out, if not before."
        if per_turn > 1:
            budget += " You see the state between turns, not between the actions of a turn."
    form = protocol.format_rules(names, max_actions=per_turn, reasoning=reasoning)
    if format_penalty:
        form += f"\nA turn in any other form costs {-format_penalty:.6g} of reward."
    return f"{rules}\n\n{budget}\n{form}"


_TURN_KEYS = (
    "action_raw",
    "action_parsed",
    "action_executed",
    "action_status",
    "format_ok",
    "action_valid",
    "action_effective",
    "n_dropped",
    "success",
)
"""What info tells of the last turn; the rest of it follows from where the episode stands."""
_NOTHING_DONE: tuple[str, str, str, str, bool, bool, bool, int, bool] = ("", "", "", "", False, False, False, 0, False)

_INFO_KEYS: dict[str, type] = {
    "success": bool,
    "score": float,
    "turn": int,
    "actions_left": int,
    "action_raw": str,
    "action_parsed": str,
    "action_executed": str,
    "action_status": str,
    "format_ok": bool,
    "action_valid": bool,
    "action_effective": bool,
    "n_dropped": int,
    "n_invalid": int,
    "valid_actions": list,
    "level_hash": str,
    "state_hash": str,
    "split": str,
    "optimal_steps": int,
    "deadlock": bool,
}
_GOOD_TURN: dict[str, Any] = {
    **{key: kind() for key, kind in _INFO_KEYS.items()},
    **{"action_status": "ok", "format_ok": True, "action_valid": True, "optimal_steps": -1},
}


def _one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def _opening_key(game: Any, game_kwargs: dict[str, Any], arguments: dict[str, Any]) -> str:
    """All that the opening of a level depends on; empty where that is not known: a game object could be any."""
    if not isinstance(game, str):
        return ""
    try:
        return json.dumps([game, game_kwargs, arguments], sort_keys=True)
    except TypeError:  # numpy numbers and the like
        return ""


def _build_game(game: Game[Any, Any] | str, kwargs: dict[str, Any]) -> Game[Any, Any]:
    if isinstance(game, Game):
        if kwargs:
            raise TypeError(f"unknown arguments {sorted(kwargs)} (the game is already built)")
        return game
    if not isinstance(game, str):
        raise TypeError(f"game must be a Game or 'module:Class', got {game!r}")
    module, _, attribute = game.partition(":")
    if not module or not attribute:
        raise ValueError(f"a game is named 'module:Class', got {game!r}")
    built = getattr(importlib.import_module(module), attribute)
    known = set(inspect.signature(built).parameters)
    unknown = sorted(set(kwargs) - known)
    if unknown:
        protocol_kwargs = [
            p for p in inspect.signature(TextEnv.__init__).parameters if p not in ("self", "game_kwargs")
        ]
        raise TypeError(
            f"unknown arguments {unknown}: {attribute} takes {sorted(known)}, every text environment {protocol_kwargs}"
        )
    result: Game[Any, Any] = built(**kwargs)
    return result
