"""Maps of the frozen lake: notation, validation, distances, and the random generator.

A map is a tuple of rows of ``S`` (start), ``F`` (frozen), ``H`` (hole) and ``G`` (goal). The generator draws start,
goal and ice independently and throws away what does not fit; a request that random maps practically never meet is an
error after a bounded number of tries, not a silent compromise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ragen_envs.game import digest, smallest_symmetry
from ragen_envs.jit import njit

MAX_SIDE = 32
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""Rows and columns that Left, Down, Right and Up go."""
TRIES = 20_000

FROZEN, HOLE, GOAL, START = 0, 1, 2, 3
"""Cell codes of ``LakeLevel.cells``, where the start cell is ice; ``START`` is used in keys only."""
_CODES = str.maketrans("SFHG", "\0\0\1\2")
_SHOWN = str.maketrans("SFHG", "__OG")


class Chart:
    """What play must know of a level, worked out. Charts of equal levels are equal."""

    __slots__ = ("key", "letters", "moves", "outcomes", "sights")

    def __init__(self, level: LakeLevel) -> None:
        self.letters = level.letters
        self.moves = _moves(*level.shape)
        """At ``4 * cell + direction`` where a move leads: to a cell; or, off the board, number of cells + ``cell``."""
        self.key = digest("frozen_lake", *level.rows)
        """Hex digest of the map as it stands."""
        # What rules.py found so far. There is little of it, and levels out of a pack come back.
        self.outcomes: list[Any] = [None] * (2 * len(self.letters))
        """By what ``moves`` holds."""
        self.sights: list[Any] = [None] * len(self.letters)
        """By the player's cell."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chart) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True)
class LakeLevel:
    """A valid map: a tuple of equally long rows of ``S F H G``."""

    rows: tuple[str, ...]

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Height and width in cells."""
        return len(self.rows), len(self.rows[0])

    @cached_property
    def start(self) -> tuple[int, int]:
        """Row and column of the start."""
        return self.find("S")

    @cached_property
    def letters(self) -> str:
        """The rows in one."""
        return "".join(self.rows)

    @cached_property
    def chart(self) -> Chart:
        """What play must know of the map, near at hand."""
        return Chart(self)

    @cached_property
    def board(self) -> str:
        """The map as it is shown, without the player: a line per row."""
        return "\n".join(self.rows).translate(_SHOWN)

    @cached_property
    def key(self) -> str:
        """Hex digest of the map, the same for its rotations and reflections."""
        cells = self.cells()
        cells[self.start] = START
        return digest("frozen_lake", smallest_symmetry(cells).hex())

    def find(self, letter: str) -> tuple[int, int]:
        """Row and column of the first cell with ``letter`` (``S`` or ``G``)."""
        for r, row in enumerate(self.rows):
            c = row.find(letter)
            if c >= 0:
                return r, c
        raise ValueError(f"no cell {letter}")

    def cells(self) -> np.ndarray:
        """``int8 [height, width]``: 0 ice, 1 hole, 2 goal."""
        codes = bytearray(self.letters.translate(_CODES), "ascii")
        return np.frombuffer(codes, dtype=np.int8).reshape(self.shape)


@lru_cache(maxsize=256)
def _moves(height: int, width: int) -> tuple[int, ...]:
    # One tuple for all maps of a shape: what is in use all the time stays in the processor's cache.
    found = []
    for row, column in np.ndindex(height, width):
        for down, right in MOVES:
            r, c = row + down, column + right
            inside = 0 <= r < height and 0 <= c < width
            found.append(r * width + c if inside else height * width + row * width + column)
    return tuple(found)


@njit
def distances(cells):  # type: ignore[no-untyped-def]
    """Breadth-first distance of every ice cell to the goal, ``int64 [height, width]``; -1 for holes and walled-off ice.

    The walk to the goal may not pass a hole. ``cells`` is an ``int8`` array of 0 ice, 1 hole, 2 goal with one goal.
    """
    height, width = cells.shape
    found = np.full((height, width), -1, dtype=np.int64)
    queue = np.empty(height * width, dtype=np.int64)
    head, tail = 0, 0
    for r in range(height):
        for c in range(width):
            if cells[r, c] == 2:
                found[r, c] = 0
                queue[tail] = r * width + c
                tail += 1
    while head < tail:
        r, c = queue[head] // width, queue[head] % width
        head += 1
        for step in range(4):
            nr = r + (1 if step == 0 else -1 if step == 1 else 0)
            nc = c + (1 if step == 2 else -1 if step == 3 else 0)
            if 0 <= nr < height and 0 <= nc < width and cells[nr, nc] == 0 and found[nr, nc] < 0:
                found[nr, nc] = found[r, c] + 1
                queue[tail] = nr * width + nc
                tail += 1
    return found


def parse(data: Any) -> LakeLevel:
    """A level from its rows: a list of strings, or one string with a row per line.

    Raises:
        ValueError: says which cell or rule is wrong.
    """
    rows = data.split("\n") if isinstance(data, str) else data
    if not isinstance(rows, Sequence) or not rows or not all(isinstance(row, str) for row in rows):
        raise ValueError(f"a map is a non-empty list of rows of the letters S F H G, got {data!r}")
    rows = tuple(rows)
    height, width = len(rows), len(rows[0])
    if not (1 <= width <= MAX_SIDE and height <= MAX_SIDE):
        raise ValueError(f"a map has 1 to {MAX_SIDE} rows and columns, got {height} x {width}")
    places: dict[str, list[tuple[int, int]]] = {"S": [], "G": []}
    for r, row in enumerate(rows):
        if len(row) != width:
            raise ValueError(f"ragged map: row {r} has {len(row)} cells, row 0 has {width}")
        for c, letter in enumerate(row):
            if letter not in "SFHG":
                raise ValueError(f"unknown letter {letter!r} at row {r}, column {c}: a map has the letters S F H G")
            if letter in places:
                places[letter].append((r, c))
    for letter, what in (("S", "start"), ("G", "goal")):
        if not places[letter]:
            raise ValueError(f"the map has no {what} ({letter})")
        if len(places[letter]) > 1:
            raise ValueError(f"the map has more than one {what} ({letter}): at {places[letter]}")
    level = LakeLevel(rows)
    if shortest_path(level) < 0:
        raise ValueError(f"the goal at {places['G'][0]} is walled off from the start at {places['S'][0]} by holes")
    return level


def shortest_path(level: LakeLevel) -> int:
    """Fewest moves from start to goal without slipping; -1 if there is no way."""
    return int(distances(level.cells())[level.find("S")])


def generate(
    rng: np.random.Generator, height: int, width: int, *, frozen: float, min_steps: int, max_steps: int | None
) -> LakeLevel:
    """Draw a map: distinct uniform start and goal, every other cell ice with probability ``frozen``.

    Maps whose shortest path is outside ``min_steps .. max_steps`` (None: no upper limit) are thrown away.

    Raises:
        ValueError: if none of ``TRIES`` maps fits.
    """
    n = height * width
    for _ in range(TRIES):
        start = int(rng.integers(n))
        goal = int(rng.integers(n - 1))
        goal += goal >= start
        cells = (rng.random(n) >= frozen).astype(np.int8)
        cells[start], cells[goal] = FROZEN, GOAL
        length = distances(cells.reshape(height, width))[start // width, start % width]
        if length >= min_steps and (max_steps is None or length <= max_steps):
            letters = ["FHG"[code] for code in cells]
            letters[start] = "S"
            text = "".join(letters)
            return LakeLevel(tuple(text[r * width : (r + 1) * width] for r in range(height)))
    limit = "any length" if max_steps is None else f"at most {max_steps}"
    raise ValueError(
        f"none of {TRIES} random {height} x {width} maps with frozen={frozen} has a shortest path of at least "
        f"{min_steps} and {limit}: ask for shorter paths, a larger lake or another share of ice"
    )
