"""``GameBatch``: many plays of one game at once, as arrays, with the rules in compiled code.

A game that has one returns it from :meth:`ragen_envs.game.Game.batch`; ``TextVectorEnv`` plays through it. The scalar
game stays the authority: words, keys and anything rare are asked of the game itself, for the state rebuilt from the
arrays.

A play is a board of codes (what ``Game.grid`` shows) and a few whole numbers (``facts``); together they determine the
state.

Simplification: at no moment of an unfinished game is an action illegal. All three games of our own are like that.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from ragen_envs.game import Game
from ragen_envs.jit import njit

L = TypeVar("L")
S = TypeVar("S")

DESCRIPTIONS_KEPT = 1 << 16
"""Descriptions of states remembered by a batch before it forgets them all."""


class Plays(NamedTuple):
    """The plays of one moment. Who wants to keep them takes a :meth:`copy` before they go on."""

    level: np.ndarray
    """``int64 [n]``: which level; from ``n_listed`` on, the play's own one."""
    boards: np.ndarray
    """``int8 [n, cells]``: the codes of ``Game.grid`` in reading order, then zeros."""
    facts: np.ndarray
    """``int16 [n, facts]``: whatever else the game needs."""
    own: tuple[Any, ...]
    """The level of each play that has one of its own."""

    def copy(self) -> Plays:
        """The same in arrays of its own."""
        return Plays(self.level.copy(), self.boards.copy(), self.facts.copy(), self.own)


class Frames:
    """Words before and after a description, as codes, each pair under a small number."""

    def __init__(self) -> None:
        self.codes = np.zeros((0, 2, 0), np.uint32)
        """``uint32 [frames, 2, longest]``"""
        self.lengths = np.zeros((0, 2), np.int64)
        """``int64 [frames, 2]``; -1 where a number has no frame."""

    def add(self, key: int, before: str, after: str) -> None:
        """Put a frame under its number."""
        more = max(0, key + 1 - len(self.codes))
        longer = max(0, max(len(before), len(after)) - self.codes.shape[2])
        self.codes = np.pad(self.codes, ((0, more), (0, 0), (0, longer)))
        self.lengths = np.pad(self.lengths, ((0, more), (0, 0)), constant_values=-1)
        for side, words in enumerate((before, after)):
            self.codes[key, side, : len(words)] = [*map(ord, words)]
            self.lengths[key, side] = len(words)


_NO_FRAMES = Frames()


class GameBatch(ABC, Generic[L, S]):
    """``num_envs`` plays of a game.

    A subclass says how a level becomes numbers (:meth:`encode`), how the numbers become a state (:meth:`state`), and
    holds the compiled :meth:`step`.

    Args:
        game: The game.
        levels: The levels that :meth:`begin` is told by index; may be empty.
        num_envs: Number of plays.
    """

    n_facts: ClassVar[int]
    lucky: bool = False
    """Each executed action takes one number from the play's luck."""
    symbols: str | None = None
    """One character per code, if the view ``grid`` is the board drawn with them, one row per line."""

    def __init__(self, game: Game[L, S], levels: Sequence[L], num_envs: int) -> None:
        self.game, self.levels, self.n_listed = game, levels, len(levels)
        spec = game.grid_spec()
        assert spec is not None, "games with a batch have grids"
        self.shape = spec[0]
        cells = int(np.prod(self.shape))
        n_rows = self.n_listed + num_envs
        # The last ``num_envs`` rows of the table hold the levels that are not in the list.
        self._table_boards = np.zeros((n_rows, cells), np.int8)
        self._table_facts = np.zeros((n_rows, self.n_facts), np.int16)
        self._all_of_size = True
        for row, level in enumerate(levels):
            self._tabulate(row, level)
        self.plays = Plays(
            np.zeros(num_envs, np.int64),
            np.zeros((num_envs, self._table_boards.shape[1]), np.int8),
            np.zeros((num_envs, self.n_facts), np.int16),
            (None,) * num_envs,
        )
        self._letters = np.array([*map(ord, self.symbols or "")], np.uint32)
        self._described: dict[tuple[bytes, bytes, str], str] = {}

    # --- what a game says -----------------------------------------------------------------------------------------

    @abstractmethod
    def encode(self, level: L) -> tuple[np.ndarray, tuple[int, ...]]:
        """The codes of ``Game.grid`` at the level's start, and its ``n_facts`` facts."""

    @abstractmethod
    def state(self, plays: Plays, i: int) -> S:
        """The game state of play ``i``."""

    @abstractmethod
    def step(
        self,
        active: np.ndarray,
        wanted: np.ndarray,
        n_wanted: np.ndarray,
        left: np.ndarray,
        luck: np.ndarray,
        reward: np.ndarray,
        executed: np.ndarray,
        ended: np.ndarray,
        success: np.ndarray,
        effective: np.ndarray,
    ) -> None:
        """Carry out a turn in every active play, in place; its results go to the last five arguments.

        Args:
            active: ``bool [n]``: the others are left alone, and of them nothing is read or written.
            wanted: ``int8 [n, k]``: actions.
            n_wanted: ``int32 [n]``: how many of them there are.
            left: ``int32 [n]``: how many may be carried out.
            luck: ``float64 [n, k]``: numbers in [0, 1), one per action; of no use unless ``lucky``.
            reward: ``float64 [n]``: sum of the game's rewards.
            executed: ``int32 [n]``: actions carried out.
            ended: ``bool [n]``: the game itself ended.
            success: ``bool [n]``
            effective: ``bool [n]``: an action changed the state.
        """

    # --- levels and plays -----------------------------------------------------------------------------------------

    def level(self, plays: Plays, i: int) -> L:
        """The level of play ``i``."""
        index = int(plays.level[i])
        level: L = self.levels[index] if index < self.n_listed else plays.own[i]
        return level

    def begin(self, rows: np.ndarray, index: np.ndarray) -> None:
        """Start the plays of ``rows`` (``bool [n]``) on the levels ``index`` (``int64 [n]``) of the list, in place."""
        plays = self.plays
        _begin(rows, index, self._table_boards, self._table_facts, plays.level, plays.boards, plays.facts)

    def begin_own(self, levels: dict[int, L]) -> None:
        """Start each given play on a level of its own, in place."""
        own, rows, index = list(self.plays.own), np.zeros(len(self.plays.own), bool), self.plays.level.copy()
        for i, level in levels.items():
            own[i], rows[i], index[i] = level, True, self.n_listed + i
            self._tabulate(self.n_listed + i, level)
        self.plays = self.plays._replace(own=tuple(own))
        self.begin(rows, index)

    def _tabulate(self, row: int, level: L) -> None:
        board, facts = self.encode(level)
        if board.shape != self.shape:
            self._all_of_size = False
            missing = board.size - self._table_boards.shape[1]
            if missing > 0:
                self._table_boards = np.pad(self._table_boards, ((0, 0), (0, missing)))
                if row >= self.n_listed:
                    self.plays = self.plays._replace(boards=np.pad(self.plays.boards, ((0, 0), (0, missing))))
        self._table_boards[row] = 0
        self._table_boards[row, : board.size] = board.ravel()
        self._table_facts[row] = facts

    # --- what is seen ---------------------------------------------------------------------------------------------

    def grid(self, plays: Plays) -> np.ndarray:
        """``Game.grid`` of every play as a fresh array; all levels must be of the game's own size."""
        return plays.boards.reshape(-1, *self.shape).copy()

    def draws(self, view: str) -> bool:
        """The view is the board drawn with ``symbols``, of one size for all."""
        return view == "grid" and self.symbols is not None and self._all_of_size

    def draw_between(self, plays: Plays, key: np.ndarray, frames: Frames) -> list[str]:
        """Of every play the drawn board, with the frame ``key[i]`` around it; none where that is negative."""
        n, (height, width) = len(plays.level), self.shape
        # One long text, cut at its zeros: much faster than to make and join the parts one by one.
        text = np.empty(n * (height * (width + 1) + 2 * frames.codes.shape[2] + 1), np.uint32)
        boards = plays.boards.view(np.uint8)
        end = _spell(boards, self._letters, height, width, key, frames.codes, frames.lengths, text)
        whole: str = text[:end].view(f"<U{end}").item()
        return whole.split("\0")

    def describe(self, plays: Plays, view: str) -> list[str]:
        """``Game.describe`` of every play."""
        n = len(plays.level)
        if self.draws(view):
            return self.draw_between(plays, np.full(n, -1), _NO_FRAMES)
        texts = []
        boards, facts = plays.boards.tobytes(), plays.facts.tobytes()
        long, short = len(boards) // n, len(facts) // n
        for i in range(n):
            key = boards[i * long : (i + 1) * long], facts[i * short : (i + 1) * short], view
            text = self._described.get(key)
            if text is None:
                if len(self._described) >= DESCRIPTIONS_KEPT:
                    self._described.clear()
                text = self._described[key] = self.game.describe(self.state(plays, i), view)
            texts.append(text)
        return texts


@njit
def _begin(rows, index, table_boards, table_facts, level, boards, facts):
    for i in range(len(rows)):
        if rows[i]:
            level[i] = index[i]
            for k in range(boards.shape[1]):
                boards[i, k] = table_boards[index[i], k]
            for k in range(facts.shape[1]):
                facts[i, k] = table_facts[index[i], k]


@njit
def _spell(boards, letters, height, width, key, frames, lengths, text):
    """Frames with boards (``uint8``) in them, and zeros in between; returns where the text ends.

    Indices are those of a ``range``, into slices, and codes unsigned: then nothing asks whether one is negative.
    """
    j = 0
    for i in range(len(boards)):
        if key[i] >= 0:
            words = frames[key[i], 0, : lengths[key[i], 0]]
            place = text[j : j + len(words)]
            for k in range(len(words)):
                place[k] = words[k]
            j += len(words)
        for row in range(height):
            place = text[j : j + width + 1]
            cells = boards[i, row * width : (row + 1) * width]
            for column in range(len(cells)):
                place[column] = letters[cells[column]]
            place[width] = 10
            j += width + 1
        j -= 1
        if key[i] >= 0:
            words = frames[key[i], 1, : lengths[key[i], 1]]
            place = text[j : j + len(words)]
            for k in range(len(words)):
                place[k] = words[k]
            j += len(words)
        text[j] = 0
        j += 1
    return j - 1
