"""``TextEnv``: a :class:`~ragen_envs.game.Game` played through the turn protocol, as a Gymnasium environment.

One ``step(text)`` is one turn: parse, execute up to ``max_actions_per_turn`` primitive actions, observe. Nothing is
drawn inside ``step``, nothing is global, and every source of luck is one of two seeded streams: the level's and the
dynamics'.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from ragen_envs import protocol
from ragen_envs.game import Game, Plan
from ragen_envs.seeding import LUCK, next_seed, stream
from ragen_envs.spaces import FreeText
from ragen_envs.splits import SPLITS

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
            shape, n_codes = self.game.grid_spec()
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
        self._rng = np.random.default_rng(0)
        self._messages: tuple[dict[str, str], ...] = ()
        self._info: dict[str, Any] = {}
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
        luck, level = self._own_luck_and_level(options or {})
        super().reset(seed=seed)
        if seed is None:
            seed = next_seed(self.np_random)
        if luck is None or self.group_noise == "common":
            luck = seed
        if level is None:
            level = self.game.draw_level(int(seed), self.split)
        self.level, self.state, self._rng = level, self.game.initial(level), stream(int(luck), LUCK)
        self._turn = self._actions_used = self._n_invalid = 0
        self._over = False
        self._messages = self._opening()
        self._info = self._describe_turn("", (), (), "", False, False, 0, False)
        return self._observe(), copy.deepcopy(self._info)

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
        names = self.game.action_names(self.level)
        if self.action_mode == "discrete":
            if not self.action_space.contains(action):
                raise ValueError(f"discrete actions are 0 to {len(names) - 1}, got {action!r}")
            wanted: tuple[int, ...] = (int(action),)
            status, format_ok, dropped, raw = "ok", True, 0, ""
        else:
            raw = str(action) if isinstance(action, str) else ""  # no np.str_ in info
            wanted, status, format_ok, dropped, _ = protocol.read_turn(
                raw,
                lambda answer: self.game.parse_answer(answer, self.state, max_actions=self.max_actions_per_turn),
                reasoning=self.reasoning,
                finish_reason=finish_reason,
            )

        reward, terminated, success, effective = 0.0, False, False, False
        executed: list[int] = []
        for i, one in enumerate(wanted):
            if self._actions_used == self.max_actions:
                dropped += len(wanted) - i
                break
            if one not in self.game.legal_actions(self.state):
                status, format_ok = "illegal_action", False
                break
            outcome = self.game.step(self.state, one, self._rng)
            self.state = outcome.state
            self._actions_used += 1
            executed.append(one)
            reward += outcome.reward
            effective |= outcome.effective
            if outcome.terminated:
                terminated, success = True, outcome.success
                break
        self._turn += 1
        penalty = 0.0 if format_ok else self.format_penalty
        self._n_invalid += not format_ok
        if self.action_mode == "discrete":
            penalty, self._actions_used = 0.0, self._turn

        out_of_turns = self.action_mode == "text" and self._turn >= self.max_turns
        truncated = out_of_turns or self._actions_used >= self.max_actions
        if (self.max_turns if self.action_mode == "text" else self.max_actions) == 1:
            terminated, truncated = True, False
        self._over = terminated or truncated

        self._info = self._describe_turn(raw, wanted, executed, status, format_ok, effective, dropped, success)
        if self.action_mode == "text":
            feedback = self._feedback(executed, status, format_ok, reward, penalty)
            self._messages = (
                *self._messages,
                {"role": "assistant", "content": raw},
                {"role": "user", "content": feedback},
            )
        elif self.observation_mode != "grid":
            self._messages = (*self._messages, {"role": "user", "content": self._state_text()})
        return self._observe(), float(reward + penalty), terminated, truncated, copy.deepcopy(self._info)

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
        return copy.deepcopy(
            {
                "game": self.game.name,
                "level": self.game.dump_level(self.level),
                "state": self.game.dump_state(self.state),
                "turn": self._turn,
                "actions_used": self._actions_used,
                "n_invalid": self._n_invalid,
                "over": self._over,
                "dynamics": self._rng.bit_generator.state,
                "np_random": self.np_random.bit_generator.state,
                "messages": list(self._messages),
                "info": self._info,
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
        self.state = self.game.load_state(level, snapshot["state"])
        self.level = level
        self._turn, self._actions_used = snapshot["turn"], snapshot["actions_used"]
        self._n_invalid, self._over = snapshot["n_invalid"], snapshot["over"]
        self._rng.bit_generator.state = snapshot["dynamics"]
        self.np_random.bit_generator.state = snapshot["np_random"]
        self._messages, self._info = tuple(snapshot["messages"]), snapshot["info"]
        return self._observe(), copy.deepcopy(self._info)

    def sibling(self) -> TextEnv:
        """Another environment of this class with the same game object and arguments, not yet reset."""
        other = type(self)(self.game, **self._arguments)
        other.spec = self.spec
        return other

    @staticmethod
    def info_keys() -> dict[str, type]:
        """Name and type of every info key."""
        return dict(_INFO_KEYS)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _own_luck_and_level(self, options: dict[str, Any]) -> tuple[Any, Any]:
        """The ``dynamics_seed`` and the level in ``reset``'s options, None where not given."""
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

    def _observe(self) -> Any:
        if self.observation_mode == "grid":
            return self.game.grid(self.state)
        if self.observation_mode == "messages":
            return tuple(dict(m) for m in self._messages)
        if self._turn == 0:
            return "\n\n".join(m["content"] for m in self._messages)
        return self._messages[-1]["content"]

    def _opening(self) -> tuple[dict[str, str], ...]:
        user = {"role": "user", "content": self._state_text()}
        if self.prompt == "compact":
            return (user,)
        rules = self.game.instructions(self.level, self.view)
        if self.action_mode == "text":
            turns = "one turn" if self.max_turns == 1 else f"{self.max_turns} turns"
            actions = "one action" if self.max_actions == 1 else f"{self.max_actions} actions"
            form = protocol.format_rules(
                self.game.action_names(self.level),
                max_actions=min(self.max_actions_per_turn, self.max_actions),
                reasoning=self.reasoning,
            )
            budget = f"You have {turns} and {actions} in all."
            if self.max_turns > 1:
                budget += " The episode ends when either runs out, if not before."
                if min(self.max_actions_per_turn, self.max_actions) > 1:
                    budget += " You see the state between turns, not between the actions of a turn."
            if self.format_penalty:
                form += f"\nA turn in any other form costs {-self.format_penalty:.6g} of reward."
            rules = f"{rules}\n\n{budget}\n{form}"
        return ({"role": "system", "content": rules}, user)

    def _state_text(self) -> str:
        state = self.game.describe(self.state, self.view)
        if self.prompt == "compact":
            return f"{self.game.name}\n{state}\nleft {self.actions_left}"
        if self._over:
            return f"The episode is over. Final state:\n{state}"
        if self.action_mode == "discrete":
            return f"Actions left: {self.actions_left}. State:\n{state}"
        return f"Turn {self._turn + 1} of {self.max_turns}, actions left: {self.actions_left}. State:\n{state}"

    def _feedback(self, executed: Sequence[int], status: str, format_ok: bool, reward: float, penalty: float) -> str:
        if self.prompt == "compact":
            note = "" if status == "ok" else f"\nnote {status}"
            return self._state_text() + note
        names = self.game.action_names(self.level)
        done = f" {protocol.SEPARATOR} ".join(names[a] for a in executed) or "no action"
        lines = [f"Last turn: {done}. Reward {reward:.6g}."]
        if status != "ok":
            lines.append(f"Problem: {protocol.FAILURES[status]}")
        elif not format_ok:
            lines.append(f"Problem: {protocol.STRAY_TEXT}")
        if penalty:
            lines.append(f"Penalty for form {penalty:.6g}.")
        lines.append(self._state_text())
        if status in protocol.REPEAT_FORMAT and not self._over:
            per_turn = min(self.max_actions_per_turn, self.actions_left)
            lines.append(protocol.format_rules(names, max_actions=per_turn, reasoning=self.reasoning))
        return "\n".join(lines)

    def _describe_turn(
        self,
        raw: str,
        wanted: Sequence[int],
        executed: Sequence[int],
        status: str,
        format_ok: bool,
        effective: bool,
        dropped: int,
        success: bool,
    ) -> dict[str, Any]:
        names = self.game.action_names(self.level)
        join = f" {protocol.SEPARATOR} ".join
        legal = [] if self._over else [names[a] for a in self.game.legal_actions(self.state)]
        optimal_steps, deadlock = -1, False
        if self.oracle_info:
            values = self.game.oracle(self.state, self.actions_left)
            if values is not None:
                optimal_steps, deadlock = values.optimal_steps, values.dead_end
        return {
            "success": bool(success),
            "score": float(success),
            "turn": self._turn,
            "actions_left": self.actions_left,
            "action_raw": raw,
            "action_parsed": join(names[a] for a in wanted),
            "action_executed": join(names[a] for a in executed),
            "action_status": status,
            "format_ok": bool(format_ok),
            "action_valid": bool(wanted) and status not in ("unknown_action", "illegal_action"),
            "action_effective": bool(effective),
            "n_dropped": int(dropped),
            "n_invalid": self._n_invalid,
            "valid_actions": legal,
            "level_hash": self.game.level_key(self.level),
            "state_hash": self.game.state_key(self.state),
            "split": self.game.split_of(self.level),
            "optimal_steps": int(optimal_steps),
            "deadlock": bool(deadlock),
        }


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


def _one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


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
