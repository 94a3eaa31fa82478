"""The pure rules of one task.

A :class:`Game` knows levels, states, transitions, words and exact values. It knows nothing of Gymnasium, of turns
or of language models; :class:`ragen_envs.text_env.TextEnv` plays it through the turn protocol.

Conventions, the same for every game:

* Levels and states are small immutable objects. A method never changes its arguments and never keeps hidden state
  that could alter a later result; caches of pure results are allowed.
* An action is an ``int``, an index into ``action_names(level)``. Names appear only where text does.
* Luck comes only from the ``rng`` that is passed in.
* The constructor takes keyword arguments that are JSON values, and nothing else: they are the provenance of a result.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from ragen_envs import protocol, splits
from ragen_envs.seeding import LEVEL, pick, stream

if TYPE_CHECKING:
    from ragen_envs.batch import GameBatch

SPLIT_TRIES = 20_000
"""Draws of a level before a split counts as empty."""

L = TypeVar("L")
S = TypeVar("S")


class Outcome(NamedTuple, Generic[S]):
    """What one primitive action led to. (A named tuple, because one is made in every step.)"""

    state: S
    reward: float
    terminated: bool
    """The game itself ended: goal, hole, solved. Budgets are not the game's business."""
    success: bool
    """The game's own goal flag, never derived from ``reward`` or ``terminated``."""
    effective: bool
    """The state changed."""


@dataclass(frozen=True, slots=True)
class OracleValue:
    """Exact values of a state with a number of primitive actions left, one decision per action.

    All values of a finished state, and of any state with 0 actions left, are 0.
    """

    value: float
    """Expected return of optimal play."""
    q: tuple[float, ...]
    """``q[action]``: expected return of ``action`` now and optimal play afterwards. Illegal actions do not count."""
    optimal_actions: tuple[int, ...]
    """Every action whose ``q`` equals ``value`` (to 1e-9)."""
    dead_end: bool
    """Success is impossible from here, however many actions were left."""
    optimal_steps: int
    """Fewest actions from here to success with the best of luck and no budget; -1 if there are none, 0 if solved."""


@dataclass(frozen=True, slots=True)
class OracleValues:
    """:class:`OracleValue` of ``N`` states as arrays."""

    value: np.ndarray
    """``float64 [N]``"""
    q: np.ndarray
    """``float64 [N, actions]``"""
    dead_end: np.ndarray
    """``bool [N]``"""
    optimal_steps: np.ndarray
    """``int64 [N]``; -1 where success is impossible."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Exact expectation of a way of playing: of its return (game rewards only) and of its success (0 to 1)."""

    reward: float
    success: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The best next turn, and what optimal play from here on is worth."""

    actions: tuple[int, ...]
    expected: Expectation


class Game(ABC, Generic[L, S]):
    """Base class of all games. Subclass it, register it, and everything else in the project works on it."""

    name: ClassVar[str]
    """Short name in lower case with underscores, used in messages and files."""
    views: ClassVar[tuple[str, ...]] = ("grid",)
    """What ``describe`` can show, out of ``grid``, ``coordinates``, ``both``; the first is the default."""

    uniform_luck: ClassVar[bool] = False
    """An action asks ``rng`` for at most one number, by ``rng.random()``, and for nothing else.

    ``TextEnv`` may then hand ``step`` numbers that were drawn before, which is many times as fast.
    """

    # --- levels ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def sample_level(self, rng: np.random.Generator) -> L:
        """Draw a level. Always solvable, never solved at the start. All of its randomness comes from ``rng``."""

    def level_key(self, level: L) -> str:
        """Hex digest of the level's content, equal for levels that differ only by the game's symmetries.

        The default is right for a game without symmetries.
        """
        return digest(self.name, _json(self.dump_level(level)))

    @abstractmethod
    def dump_level(self, level: L) -> Any:
        """The level as a JSON value; ``load_level`` gives it back."""

    @abstractmethod
    def load_level(self, data: Any) -> L:
        """A level from ``dump_level``'s JSON value or another documented notation (an XSB drawing, map rows).

        Raises:
            ValueError: says which cell or rule is wrong.
        """

    def split_of(self, level: L) -> str:
        """``train``, ``val`` or ``test``: a function of the level's content alone."""
        return splits.split_of(self.level_key(level))

    @property
    def fixed_level(self) -> L | None:
        """The only level of a game that was built around a level of one's own; None if levels are drawn."""
        return None

    def levels(self, split: str) -> Sequence[L] | None:
        """The levels of a split, for a game that draws from a finite list; None if it makes new ones."""
        return None

    def draw_level(self, seed: int, split: str) -> L:
        """The level of ``split`` that belongs to ``seed``; the fixed level if there is one.

        Raises:
            ValueError: the game's arguments allow no such level, or too few to find one.
        """
        if self.fixed_level is not None:
            return self.fixed_level
        listed = self.levels(split)
        if listed is not None:
            n = len(listed)
            if n == 0:
                raise ValueError(f"this {self.name} game has no {split} level")
            return listed[pick(seed, n)]
        rng = stream(seed, LEVEL)
        for _ in range(SPLIT_TRIES):
            level = self.sample_level(rng)
            if self.split_of(level) == split:
                return level
        raise ValueError(f"no {split} level in {SPLIT_TRIES} draws: the game's arguments allow too few levels")

    # --- play -----------------------------------------------------------------------------------------------------

    @property
    def deterministic(self) -> bool:
        """No action ever draws from ``rng``; ``TextEnv`` then makes no generator and ``step`` may be given None."""
        return False

    @abstractmethod
    def action_names(self, level: L) -> tuple[str, ...]:
        """The names of the primitive actions, in index order."""

    @abstractmethod
    def initial(self, level: L) -> S:
        """The first state."""

    @abstractmethod
    def step(self, state: S, action: int, rng: np.random.Generator) -> Outcome[S]:
        """Apply one primitive action."""

    def legal_actions(self, state: S) -> tuple[int, ...]:
        """Actions that may be taken now. A legal action that changes nothing (a walk into a wall) is legal."""
        return tuple(range(len(self.action_names(self.level_of(state)))))

    def level_of(self, state: S) -> L:
        """The level that a state belongs to; by default its attribute ``level``."""
        level: L = state.level  # type: ignore[attr-defined]
        return level

    def state_key(self, state: S) -> str:
        """Hex digest of the state, level included; symmetric states differ."""
        return digest(self.name, _json(self.dump_level(self.level_of(state))), _json(self.dump_state(state)))

    @abstractmethod
    def dump_state(self, state: S) -> Any:
        """What must be kept beside the level to rebuild the state, as a JSON value."""

    @abstractmethod
    def load_state(self, level: L, data: Any) -> S:
        """The state from its level and ``dump_state``'s JSON value."""

    def batch(self, levels: Sequence[L], num_envs: int) -> GameBatch[L, S] | None:
        """``num_envs`` plays at once in compiled code, drawn from ``levels``; None for a game without such code."""
        return None

    # --- words and pictures ---------------------------------------------------------------------------------------

    @abstractmethod
    def instructions(self, level: L, view: str) -> str:
        """The rules, the legend of all symbols that ``view`` can show, and nothing about the turn protocol."""

    @abstractmethod
    def describe(self, state: S, view: str) -> str:
        """The state as text: lines of words separated by single spaces (a drawn row is one word)."""

    def sight(self, state: S, view: str) -> tuple[str, tuple[int, ...], str]:
        """``state_key``, ``legal_actions`` and ``describe`` of a state in one call: where a game can be quicker so."""
        return self.state_key(state), self.legal_actions(state), self.describe(state, view)

    def parse_answer(self, answer: str, state: S, *, max_actions: int) -> tuple[tuple[int, ...], str, int]:
        """Read the text between the answer tags as data, never evaluating it.

        Returns:
            The actions read before the first segment that could not be read, ``ok`` or the status of the failure
            (``empty_answer``, ``unknown_action``, ``too_many``), and the number of segments beyond ``max_actions``.
        """
        return protocol.parse_action_list(answer, self.action_names(self.level_of(state)), max_actions=max_actions)

    def draw(self, state: S) -> np.ndarray:
        """The state as a picture: ``uint8`` array, height x width x 3.

        The default paints each character of ``describe`` as a tile in a colour of its own.
        """
        return _tiles(self.describe(state, self.views[0]))

    def grid(self, state: S) -> np.ndarray:
        """The state as a fresh ``int8`` array of codes, of shape ``grid_spec()[0]`` for levels of the game's size."""
        raise NotImplementedError(f"{self.name} has grid_spec but no grid")

    def grid_spec(self) -> tuple[tuple[int, ...], int] | None:
        """Shape of ``grid`` and number of codes (``0 .. n - 1``); None for a game that is text only."""
        return None

    @property
    @abstractmethod
    def n_actions(self) -> int:
        """Number of primitive actions, the same on every level."""

    # --- exact values ---------------------------------------------------------------------------------------------

    @property
    def longest_optimum(self) -> int | None:
        """The most actions that a sampled level can need, or None if unknown; budgets are checked against it."""
        return None

    def oracle(self, state: S, actions_left: int) -> OracleValue | None:
        """Exact values of ``state``; None where a game has no oracle (outside benchmarks)."""
        return None

    def oracle_many(self, states: Sequence[S], actions_left: int | Sequence[int] | np.ndarray) -> OracleValues | None:
        """:meth:`oracle` of many states at once, of any levels, equal to it entry by entry.

        Args:
            states: ``N`` states.
            actions_left: one number for all, or one per state.

        Raises:
            ValueError: a number is negative or not whole, or there are not as many of them as states.
        """
        lefts = budgets(actions_left, len(states)).tolist()
        found = [self.oracle(state, left) for state, left in zip(states, lefts, strict=True)]
        if any(values is None for values in found):
            return None
        values = [v for v in found if v is not None]
        return OracleValues(
            np.array([v.value for v in values], np.float64),
            np.array([v.q for v in values], np.float64).reshape(len(values), self.n_actions),
            np.array([v.dead_end for v in values], bool),
            np.array([v.optimal_steps for v in values], np.int64),
        )

    def plan(self, state: S, *, turns_left: int, actions_left: int, max_actions: int) -> Plan | None:
        """The best turn of up to ``max_actions`` actions given without seeing what they do.

        The default is right for deterministic games, where seeing in between has no value: it follows ``oracle`` under
        the number of actions that all turns together allow.
        """
        budget = min(actions_left, turns_left * max_actions)
        found = self.oracle(state, budget)
        if found is None:
            return None
        if found.optimal_steps == 0:
            return Plan((), Expectation(0.0, 1.0))
        unused = np.random.default_rng(0)
        actions: list[int] = []
        success, now, total = False, state, 0.0
        for left in range(budget, 0, -1):
            values = self.oracle(now, left)
            assert values is not None
            action = self._most_direct(now, values.optimal_actions, left)
            outcome = self.step(now, action, unused)
            total += outcome.reward
            if len(actions) < max_actions:
                actions.append(action)
            now, success = outcome.state, outcome.success
            if outcome.terminated:
                break
        return Plan(tuple(actions), Expectation(total, float(success)))

    def _most_direct(self, state: S, actions: tuple[int, ...], left: int) -> int:
        """Of equally good actions, one that brings success nearest: slack in the budget is no reason to wander."""
        if len(actions) == 1:
            return actions[0]

        def steps_after(action: int) -> float:
            outcome = self.step(state, action, np.random.default_rng(0))
            if outcome.terminated:
                return 0.0 if outcome.success else float("inf")
            values = self.oracle(outcome.state, left - 1)
            assert values is not None
            return values.optimal_steps if values.optimal_steps >= 0 else float("inf")

        return min(actions, key=steps_after)

    def random_play(self, state: S, actions_left: int) -> Expectation | None:
        """Exact expectation of ``actions_left`` uniformly random legal actions (fewer if it ends); None if unknown.

        Of a finished state: reward 0, and success as the game ended. The same holds for ``plan``.
        """
        return None


def digest(*parts: object) -> str:
    """Hex digest (16 characters) of the parts' text. Never ``hash()``: it must not depend on the process."""
    return hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _tiles(text: str) -> np.ndarray:
    """Lines of text as 12 x 12 pixels per character; white for blanks, else a colour that the character fixes."""
    lines = text.split("\n")
    picture = np.full((len(lines), max(map(len, lines)), 3), 255, np.uint8)
    for row, line in enumerate(lines):
        for column, character in enumerate(line):
            if not character.isspace():
                picture[row, column] = [40 + value * 170 // 255 for value in bytes.fromhex(digest(character))[:3]]
    return picture.repeat(12, axis=0).repeat(12, axis=1)


def smallest_symmetry(grid: np.ndarray) -> bytes:
    """Canonical bytes of a 2-D code array: the smallest of its 8 rotations and reflections, shape included.

    Codes and sides are at most 255.
    """
    height, width = grid.shape
    images = grid.astype(np.uint8).ravel()[_symmetries(height, width)].tobytes()
    n = height * width
    shapes = bytes((height, width)), bytes((width, height))
    # Image 2 * r + t is rotated r times and transposed t times; each of these swaps the sides.
    return min(shapes[(i // 2 + i) % 2] + images[i * n : (i + 1) * n] for i in range(8))


@lru_cache(maxsize=64)
def _symmetries(height: int, width: int) -> np.ndarray:
    """For each rotation, plain and transposed, the cells of the board in the order of the image: ``[8, cells]``."""
    cells = np.arange(height * width, dtype=np.uint16).reshape(height, width)
    turned = [np.rot90(cells, turns) for turns in range(4)]
    return np.stack([image.ravel() for turn in turned for image in (turn, turn.T)])


def budgets(actions_left: int | Sequence[int] | np.ndarray, n: int) -> np.ndarray:
    """``int64 [n]``: one number of actions left for all, or one each.

    Raises:
        ValueError: a number is negative or not whole, or there are not ``n`` of them.
    """
    left = np.asarray(actions_left)
    if left.dtype.kind not in "iu" and left.size:
        raise ValueError(f"actions_left must be whole numbers, not {left.dtype}")
    if left.shape not in ((), (n,)):
        raise ValueError(f"actions_left must be one number or one per state ({n}), not of shape {left.shape}")
    if left.size and left.min() < 0:
        raise ValueError(f"actions_left must not be negative: {left.min()}")
    return np.broadcast_to(left, (n,)).astype(np.int64)


def by_level(levels: Sequence[object]) -> list[np.ndarray]:
    """The indices at which the same level object stands, one array per level: for work that is done level by level."""
    ids = np.fromiter(map(id, levels), np.int64, len(levels))
    order = np.argsort(ids, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(ids[order])) + 1) if len(levels) else []


def best_actions(q: Sequence[float]) -> tuple[int, ...]:
    """Indices of the largest entries, to 1e-9."""
    enough = max(q) - 1e-9
    return tuple([i for i, v in enumerate(q) if v >= enough])
