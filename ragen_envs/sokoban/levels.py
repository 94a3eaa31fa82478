"""Sokoban boards: what a level is, how it is checked, and the XSB notation.

A board is a grid of cell codes 0 to 6 (``WALL`` ... ``PLAYER_ON_TARGET``). One byte per cell says all: the fixed layer
(wall, floor, target) and what stands on it.

Simplifications: what lies outside the board counts as wall, so a board needs no border of walls; sides are limited to
255 cells; floor that nobody can reach is kept as it was drawn.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ragen_envs.game import digest, smallest_symmetry

WALL, EMPTY, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)
OUTSIDE = 7
"""Code of the frame around a board in :attr:`Level.buffer`; never part of a level or an observation."""
MAX_SIDE = 255

XSB = "#-.*$@+"
"""XSB symbol of each code. Floor is written ``-``; a space or ``_`` is read as floor too."""
_XSB_CODES = {symbol: code for code, symbol in enumerate(XSB)} | {" ": EMPTY, "_": EMPTY}
_ALL_CODES = bytes(range(7))

# Translations of :attr:`Level.buffer` for keys: the frame is wall; so is floor, unless it turns out to be reachable.
_NO_FRAME = bytes(WALL if code == OUTSIDE else code for code in range(256))
_NOTHING_MOVES = bytes(
    {BOX_ON_TARGET: TARGET, PLAYER_ON_TARGET: TARGET, BOX: EMPTY, PLAYER: EMPTY}.get(code, code) for code in range(256)
)
_NO_FLOOR = bytes(WALL if code in (EMPTY, OUTSIDE) else code for code in range(256))

Cell = tuple[int, int]
"""Zero-based (row, column)."""


@dataclass(frozen=True)
class Level:
    """A checked board at its start. Equality is by content; the known optimum is not part of it.

    Raises:
        ValueError: names the rule that is broken, and the cell where there is one.
    """

    height: int
    width: int
    cells: bytes
    """``height * width`` codes 0 to 6, row by row."""
    optimal_steps: int | None = field(default=None, compare=False)
    """Fewest primitive actions that solve it, where known."""
    optimal_pushes: int | None = field(default=None, compare=False)
    """Fewest pushes that solve it, where known; another plan may need fewer actions in all."""

    def __post_init__(self) -> None:
        height, width, cells = self.height, self.width, self.cells
        if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
            raise ValueError(f"a board's sides must be 1 to {MAX_SIDE} cells, not {height} x {width}")
        if len(cells) != height * width:
            raise ValueError(f"a {height} x {width} board has {height * width} cells, not {len(cells)}")
        unknown = cells.translate(None, _ALL_CODES)
        if unknown:
            raise ValueError(f"cell {divmod(cells.index(unknown[0]), width)} has the unknown code {unknown[0]}")
        players = [i for i in range(len(cells)) if cells[i] >= PLAYER]
        if len(players) != 1:
            where = " at cells " + " ".join(str(divmod(i, width)) for i in players) if players else ""
            raise ValueError(f"a level needs exactly one player, not {len(players)}{where}")
        done = cells.count(BOX_ON_TARGET)
        boxes = cells.count(BOX) + done
        targets = cells.count(TARGET) + cells.count(PLAYER_ON_TARGET) + done
        if boxes == 0:
            raise ValueError("a level needs at least one box")
        if boxes != targets:
            raise ValueError(f"a level needs as many boxes as targets, not {boxes} box(es) and {targets} target(s)")
        for name, optimum in (("optimal_steps", self.optimal_steps), ("optimal_pushes", self.optimal_pushes)):
            if optimum is not None and optimum < 0:
                raise ValueError(f"{name} must not be negative: {optimum}")

    @classmethod
    def trusted(
        cls,
        height: int,
        width: int,
        cells: bytes,
        optimal_steps: int | None,
        optimal_pushes: int | None,
        key: str | None = None,
    ) -> Level:
        """A level that is known to be valid, and perhaps its :attr:`key`, made without checking them."""
        level = object.__new__(cls)
        level.__dict__.update(
            height=height, width=width, cells=cells, optimal_steps=optimal_steps, optimal_pushes=optimal_pushes
        )
        if key is not None:
            level.__dict__["key"] = key
        return level

    @classmethod
    def from_parts(
        cls,
        height: int,
        width: int,
        *,
        walls: Iterable[Cell],
        targets: Iterable[Cell],
        boxes: Iterable[Cell],
        player: Cell,
        optimal_steps: int | None = None,
    ) -> Level:
        """A level from lists of (row, column) cells; what is not listed is floor.

        Raises:
            ValueError: a cell is outside the board, listed twice in one list, or two things exclude each other.
        """
        cells = bytearray([EMPTY]) * (height * width)

        def put(kind: str, where: Iterable[Cell], over: dict[int, int]) -> None:
            for row, column in where:
                if not (0 <= row < height and 0 <= column < width):
                    raise ValueError(f"{kind} at {(row, column)} is outside the {height} x {width} board")
                i = row * width + column
                if cells[i] not in over:
                    raise ValueError(f"{kind} at {(row, column)} stands on a {_NAMES[cells[i]]}")
                cells[i] = over[cells[i]]

        put("wall", walls, {EMPTY: WALL})
        put("target", targets, {EMPTY: TARGET})
        put("box", boxes, {EMPTY: BOX, TARGET: BOX_ON_TARGET})
        put("player", [player], {EMPTY: PLAYER, TARGET: PLAYER_ON_TARGET})
        return cls(height, width, bytes(cells), optimal_steps)

    def _where(self, *codes: int) -> tuple[Cell, ...]:
        return tuple(divmod(i, self.width) for i, code in enumerate(self.cells) if code in codes)

    @cached_property
    def walls(self) -> tuple[Cell, ...]:
        """Wall cells, in reading order."""
        return self._where(WALL)

    @cached_property
    def targets(self) -> tuple[Cell, ...]:
        """Target cells, in reading order, whatever stands on them."""
        return self._where(TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET)

    @cached_property
    def boxes(self) -> tuple[Cell, ...]:
        """Cells of the boxes at the start, in reading order."""
        return self._where(BOX, BOX_ON_TARGET)

    @cached_property
    def player(self) -> Cell:
        """The player's cell at the start."""
        return self._where(PLAYER, PLAYER_ON_TARGET)[0]

    @cached_property
    def n_boxes(self) -> int:
        """Number of boxes, which is the number of targets."""
        return self.cells.count(BOX) + self.cells.count(BOX_ON_TARGET)

    @property
    def solved(self) -> bool:
        """Every box stands on a target already."""
        return BOX not in self.cells

    # The board in a frame of OUTSIDE codes. One column serves as the right edge of a row and the left edge of the next,
    # so a neighbour is always one fixed offset away and never outside the buffer.

    @cached_property
    def stride(self) -> int:
        """Length of a row of :attr:`buffer`: ``width + 1``."""
        return self.width + 1

    @cached_property
    def deltas(self) -> tuple[int, int, int, int]:
        """Offsets in :attr:`buffer` of the neighbours up, down, left and right."""
        return self.frame.deltas

    @cached_property
    def buffer(self) -> bytes:
        """The start board as ``(height + 2) * (width + 1)`` codes with its frame."""
        frame, edge = bytes([OUTSIDE]) * self.stride, bytes([OUTSIDE])
        rows = [self.cells[i : i + self.width] + edge for i in range(0, len(self.cells), self.width)]
        return frame + b"".join(rows) + frame

    def to_index(self, cell: Cell) -> int:
        """Index in :attr:`buffer` of a (row, column) cell."""
        return (cell[0] + 1) * self.stride + cell[1]

    def to_cell(self, index: int) -> Cell:
        """The (row, column) cell of an index in :attr:`buffer`."""
        row, column = divmod(index, self.stride)
        return row - 1, column

    @cached_property
    def start(self) -> int:
        """Index of the player in :attr:`buffer`."""
        return self.to_index(self.player)

    @cached_property
    def frame(self) -> Frame:
        """What a step must know of boards of this size."""
        return _frame(self.height, self.width)

    @cached_property
    def board_hash(self) -> int:
        """Hash of size, walls and targets as they stand: 64 bits below a leading 1."""
        still = self.cells.translate(_NOTHING_MOVES).hex()
        return 1 << 64 | int(digest("sokoban board", self.height, self.width, still), 16)

    @cached_property
    def key(self) -> str:
        """Hex digest of the level's content up to rotation, reflection, translation and unreachable floor."""
        buffer, (up, down, left, right) = self.buffer, self.deltas
        kept = bytearray(buffer.translate(_NO_FLOOR))
        unseen = bytearray(buffer.translate(_NO_FRAME))
        stack = [self.start]
        while stack:  # where the player could walk if there were no boxes
            here = stack.pop()
            kept[here] = buffer[here]
            for near in (here + up, here + down, here + left, here + right):
                if unseen[near]:
                    unseen[near] = WALL
                    stack.append(near)
        board = np.frombuffer(kept, np.uint8).reshape(self.height + 2, self.stride)
        rows, columns = board.nonzero()
        board = board[rows[0] : rows[-1] + 1, columns.min() : columns.max() + 1]
        return digest("sokoban", smallest_symmetry(board).hex())


class Frame(NamedTuple):
    """What all boards of a size have in common. One for all of them, so that it stays in the processor's cache.

    A state's hash is its level's ``board_hash`` xor the numbers of its player and of its boxes, so that a step changes
    it by the numbers of what moved (Zobrist 1970).
    """

    stride: int
    """See ``Level.stride``."""
    deltas: tuple[int, int, int, int]
    """See ``Level.deltas``."""
    players: tuple[int, ...]
    """A fixed random number of 64 bits per index of ``Level.buffer``: of the player there."""
    boxes: tuple[int, ...]
    """The same of a box there."""


@lru_cache(maxsize=256)
def _frame(height: int, width: int) -> Frame:
    stride = width + 1
    n = (height + 2) * stride
    numbers = np.frombuffer(hashlib.shake_256(b"ragen sokoban").digest(16 * n), "<u8").reshape(n, 2).T.tolist()
    return Frame(stride, (-stride, stride, -1, 1), tuple(numbers[0]), tuple(numbers[1]))


_NAMES = ("wall", "floor", "target", "box on a target", "box", "player", "player on a target")


def parse_xsb(text: str) -> Level:
    """One level from its XSB drawing.

    Lines that start with ``;`` and empty lines before and after the board are skipped; short rows are filled up with
    walls on the right. A row of spaces is a row of floor.

    Raises:
        ValueError: an unknown symbol (its row and column are named), an empty row inside the board, or a level that
            breaks a rule of :class:`Level`.
    """
    rows = [line.rstrip("\r") for line in text.split("\n") if not line.startswith(";")]
    while rows and not rows[0]:
        rows.pop(0)
    while rows and not rows[-1]:
        rows.pop()
    if not rows:
        raise ValueError("no board: the text has no rows")
    width = max(map(len, rows))
    if max(len(rows), width) > MAX_SIDE:  # before rows are filled up, which may be far longer than the text
        raise ValueError(f"a board's sides must be 1 to {MAX_SIDE} cells, not {len(rows)} x {width}")
    cells = bytearray()
    for r, row in enumerate(rows):
        if not row:
            raise ValueError(f"row {r} is empty: one board at a time")
        for c, symbol in enumerate(row):
            code = _XSB_CODES.get(symbol)
            if code is None:
                raise ValueError(f"unknown symbol {symbol!r} at cell {(r, c)}; known are {XSB!r}, space and '_'")
            cells.append(code)
        cells.extend([WALL] * (width - len(row)))
    return Level(len(rows), width, bytes(cells))


def format_xsb(level: Level) -> str:
    """The XSB drawing of a level's start, rows joined by newlines; ``parse_xsb`` gives the level back."""
    symbols = "".join(XSB[code] for code in level.cells)
    return "\n".join(symbols[i : i + level.width] for i in range(0, len(symbols), level.width))


_COMMENT = re.compile(r"\s*(;|::)")
_FIELD = re.compile(r"\s*[A-Za-z][A-Za-z _-]{0,30}:")
_HEADING = re.compile(r"\s*level\s*#?\d+\s*", re.IGNORECASE)
_ROW = re.compile(r"[-#.*$@+_ ]*")


def load_levels(path: str | os.PathLike[str]) -> list[Level]:
    """All levels of an XSB or ``.sok`` file, or of all files ending in ``.xsb``, ``.sok`` or ``.txt`` below a folder.

    A level is a run of board rows. What ends it, and is not read otherwise: blank lines, comments (``;`` or ``::``),
    fields (``Title: ...``; ``Comment:`` up to ``Comment-End:``) and lines like ``Level 12``.

    Raises:
        ValueError: a line that is none of these, or a level that is not valid, with file and line; no level at all.
        OSError: the path cannot be read.
    """
    return [level for _, level in numbered_levels(path)]


def numbered_levels(path: str | os.PathLike[str]) -> list[tuple[str, Level]]:
    """:func:`load_levels` with the place of each level: ``file, level from line n``."""
    found = [numbered for file in level_files(path) for numbered in _read_file(file)]
    if not found:
        raise ValueError(f"no level in {os.fspath(path)}")
    return found


def level_files(path: str | os.PathLike[str]) -> list[Path]:
    """The file itself, or the level files below a folder in the order of their names."""
    top = Path(path)
    if not top.is_dir():
        return [top]
    return sorted(file for file in top.rglob("*") if file.suffix.lower() in (".xsb", ".sok", ".txt") and file.is_file())


def _read_file(path: Path) -> list[tuple[str, Level]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # without a byte order mark
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8: levels are XSB drawings") from None
    levels: list[tuple[str, Level]] = []
    rows: list[str] = []
    begin = 1
    comment = 0  # line in which the comment began that is being read
    for number, line in enumerate([*lines, ""], start=1):
        line = line.rstrip("\r")
        word = line.strip().lower()
        if not comment and word and _ROW.fullmatch(line):
            if not rows:
                begin = number
            rows.append(line)
            continue
        if rows:
            where = f"{path}, level from line {begin}"
            try:
                levels.append((where, parse_xsb("\n".join(rows))))
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            rows = []
        if comment:
            comment = 0 if word in ("comment-end:", "comment_end:") else comment
        elif word == "comment:":
            comment = number
        elif word and not (_COMMENT.match(line) or _FIELD.match(line) or _HEADING.fullmatch(line)):
            raise ValueError(
                f"{path}, line {number}: neither a row of a board ({XSB}, space, '_'), nor a comment (; or ::), nor a "
                f"field (Title: ...): {line!r}"
            )
    if comment:  # what follows may be levels, so it is not left out without a word
        raise ValueError(f"{path}, line {comment}: a comment that no line 'Comment-End:' ends")
    return levels
