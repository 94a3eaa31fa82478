"""The rules of Sokoban as a :class:`ragen_envs.game.Game`: steps, words and pictures.

Levels are :class:`levels.Level` boards, states are small tuples around one ``bytes`` board, and a step is a few byte
operations. Nothing is drawn unless ``draw`` is called.

Simplifications: a solved board is absorbing (an action there changes nothing and earns nothing).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ragen_envs.game import Expectation, OracleValue, OracleValues, Outcome
from ragen_envs.packs import PackedGame
from ragen_envs.sokoban import oracle
from ragen_envs.sokoban.batch import SokobanBatch
from ragen_envs.sokoban.generator import check_request, generate
from ragen_envs.sokoban.levels import (
    BOX,
    BOX_ON_TARGET,
    EMPTY,
    OUTSIDE,
    PLAYER,
    PLAYER_ON_TARGET,
    TARGET,
    WALL,
    Cell,
    Frame,
    Level,
    format_xsb,
    numbered_levels,
    parse_xsb,
)
from ragen_envs.sokoban.oracle import BOX_REWARD, SOLVED_REWARD, STEP_REWARD

ACTIONS = ("Up", "Down", "Left", "Right")

SYMBOLS: dict[str, str] = {"default": "#_O√XPS", "alternative": "W.GCBA@"}
"""Symbol of each cell code, for each symbol set. Boards and legends are both made from it."""
MEANINGS = (
    "wall",
    "empty floor",
    "target",
    "box on a target",
    "box",
    "player (you)",
    "player (you) on a target",
)


_SOLVED = "the level is solved at the start: every box stands on a target"


def _code_map(pairs: dict[int, int]) -> bytes:
    return bytes(pairs.get(code, WALL) for code in range(OUTSIDE + 1))


_tuple: Any = tuple.__new__
"""Makes a named tuple from a tuple, at a third of the time that its class takes; for ``step`` alone."""

# What a cell becomes; WALL (0, false) stands for "impossible".
_ENTERED = _code_map({EMPTY: PLAYER, TARGET: PLAYER_ON_TARGET, BOX: PLAYER, BOX_ON_TARGET: PLAYER_ON_TARGET})
_LEFT = _code_map({PLAYER: EMPTY, PLAYER_ON_TARGET: TARGET})
_FILLED = _code_map({EMPTY: BOX, TARGET: BOX_ON_TARGET})


class State(NamedTuple):
    """A position in play. ``cells`` alone decides what can happen; the rest is kept to make steps quick."""

    level: Level
    cells: bytes
    """The board in its frame, ``(height + 2) * (width + 1)`` codes, laid out as ``Level.buffer``."""
    player: int
    """Index of the player in ``cells``."""
    missing: int
    """Number of boxes that are not on targets; 0 = solved."""
    hash: int
    """Zobrist hash of level, player and boxes, 64 bits below a leading 1."""
    frame: Frame
    """``level.frame``: near at hand, as levels come and go and it stays."""

    def __hash__(self) -> int:
        return hash(self.hash)


class Sokoban(PackedGame[Level, State]):
    """Push every box onto a target.

    **Description.** A warehouse of walls and floor, seen from above, holds as many boxes as targets. The player walks
    up, down, left and right, and pushes a box by walking into it, if the cell beyond it is free. Boxes cannot be
    pulled, two boxes cannot be pushed at once, and a box in the wrong corner is there for good: the game tests looking
    ahead. Transitions are deterministic. Every sampled level is solvable and carries its exact optimum.

    **Actions.** ``Up`` (0), ``Down`` (1), ``Left`` (2), ``Right`` (3). All are always legal; walking into a wall or
    against a box that cannot move changes nothing (``effective`` is False) and costs the same.

    **Observations.** ``grid``: the board, one symbol per cell and one row per line. ``coordinates``: the board's size
    and one line per kind of thing with its cells as zero-based ``(row,column)`` words; kinds that do not occur are left
    out; walls of the outer border are not listed (border cells that are *not* walls are, as ``open``, on hand-made
    levels), so the text says exactly as much as the grid. ``both``: coordinates, then grid. Symbols:

    ======================  =======  ===========
    cell                    default  alternative
    ======================  =======  ===========
    wall                    ``#``    ``W``
    empty floor             ``_``    ``.``
    target                  ``O``    ``G``
    box on a target         ``√``    ``C``
    box                     ``X``    ``B``
    player                  ``P``    ``A``
    player on a target      ``S``    ``@``
    ======================  =======  ===========

    ``grid`` arrays hold the codes 0 to 6 in the order of this table.

    **Rewards.** -0.1 for every action; +1 when it raises the number of boxes on targets, -1 when it lowers it; +10 when
    it brings the last box onto a target. A level of one push therefore returns 10.9.

    **End of episode.** Terminated, with success, when all boxes are on targets. There is no other end here; budgets
    belong to the turn protocol.

    **Arguments.** ``height``, ``width`` (board with its border, default 6 x 6), ``boxes`` (1), ``min_steps`` and
    ``max_steps`` (bounds on the fewest primitive actions that a sampled level needs, default 3 and 10; ``max_steps``
    may be None), ``min_pushes`` and ``max_pushes`` (the same for pushes, default 1 and None), ``symbols`` (``default``
    or ``alternative``), ``levels``. ValueError names an argument that cannot be met.

    **Levels.** ``levels="auto"`` takes levels from the pack that ships for exactly this size, number of boxes and these
    bounds, and makes new ones if there is none. ``"generated"`` always makes new ones. ``"pack"`` builds the pack if it
    does not ship. A path names a pack, an XSB or ``.sok`` file, or a folder of such files; then size, boxes and bounds
    are those of the levels in it, the arguments are not used, and copies of a level under another guise are left out.
    If sizes differ, there are no grid observations.

    **Oracle.** Exact: all states that a level can reach are tabulated where there are at most 3,000,000 of them (where
    there may be more than 100,000, once the level has been asked about often enough to pay), else those within
    ``actions_left`` actions are, and the solver answers for distance and dead end. ``dead_end`` is exact too.
    RuntimeError names the limit if a level is too big even for that.

    **Differences from RAGEN.** Rewards, codes, symbols and action order are the same; our action indices start at 0.
    Rooms come from a generator of our own, with bounds on the exact optimum, so that every level is solvable within
    the budget and one-action levels are left out by default. The legend always explains the symbols shown. Steps draw
    no picture. Coordinates are written as lines of words, and list inner walls.

    **Versions.** v0: first version.
    """

    name = "sokoban"
    views = ("grid", "coordinates", "both")
    level_arguments = ("height", "width", "boxes", "min_steps", "max_steps", "min_pushes", "max_pushes")
    distinct_levels = True

    def __init__(
        self,
        *,
        height: int = 6,
        width: int = 6,
        boxes: int = 1,
        min_steps: int = 3,
        max_steps: int | None = 10,
        min_pushes: int = 1,
        max_pushes: int | None = None,
        symbols: str = "default",
        levels: str = "auto",
    ) -> None:
        for what, value in (
            ("height", height),
            ("width", width),
            ("boxes", boxes),
            ("min_steps", min_steps),
            ("max_steps", max_steps),
            ("min_pushes", min_pushes),
            ("max_pushes", max_pushes),
        ):
            if value is None and what.startswith("max"):
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{what} must be a whole number: {value!r}")
        check_request(height, width, boxes, min_steps, max_steps, min_pushes, max_pushes)
        if symbols not in SYMBOLS:
            raise ValueError(f"symbols must be one of {sorted(SYMBOLS)}: {symbols!r}")
        self.height, self.width, self.boxes = height, width, boxes
        self.min_steps, self.max_steps = min_steps, max_steps
        self.min_pushes, self.max_pushes = min_pushes, max_pushes
        self.symbols = symbols
        # The frame code becomes a line break: the right edge of a row ends its line. Byte by byte and then as ASCII is
        # the quick way to text; a box on a target, which need not be ASCII, is put in afterwards.
        letters = bytearray(ord(letter) for letter in SYMBOLS[symbols].replace(SYMBOLS[symbols][BOX_ON_TARGET], "\0"))
        self._letters = bytes(letters).ljust(OUTSIDE, b"\0") + b"\n" + bytes(255 - OUTSIDE)
        self._box_on_target = SYMBOLS[symbols][BOX_ON_TARGET]
        self.choose_levels(levels)

    def __repr__(self) -> str:
        return (
            f"Sokoban(height={self.height}, width={self.width}, boxes={self.boxes}, min_steps={self.min_steps}, "
            f"max_steps={self.max_steps}, min_pushes={self.min_pushes}, max_pushes={self.max_pushes}, "
            f"symbols={self.symbols!r}, levels={self.levels_from!r})"
        )

    # --- levels ---------------------------------------------------------------------------------------------------

    def sample_level(self, rng: np.random.Generator) -> Level:
        """A new level of the game's size, see :func:`generator.generate`; or one of the file that was given.

        Raises:
            ValueError: no such level was found in a bounded number of tries.
        """
        if self.from_file:
            return self.sample_listed(rng)
        return generate(
            rng,
            self.height,
            self.width,
            self.boxes,
            min_steps=self.min_steps,
            max_steps=self.max_steps,
            min_pushes=self.min_pushes,
            max_pushes=self.max_pushes,
        )

    def to_record(self, level: Level) -> bytes:
        """The cells, then the fewest actions and the fewest pushes in two bytes each, 0 = not known."""
        optima = (level.optimal_steps or 0, level.optimal_pushes or 0)
        return level.cells + b"".join(optimum.to_bytes(2, "little") for optimum in optima)

    def from_record(self, record: bytes, key: str) -> Level:
        """The level of :meth:`to_record` and its key."""
        steps, pushes = int.from_bytes(record[-4:-2], "little"), int.from_bytes(record[-2:], "little")
        return Level.trusted(self.height, self.width, record[:-4], steps or None, pushes or None, key)

    def read_levels(self, path: Path) -> tuple[list[Level], dict[str, Any]]:
        """The levels of an XSB or ``.sok`` file, or of a folder of such files, and what is known of all of them.

        ``height``, ``width`` and ``boxes`` are 0 if they differ; nothing is known of optima.

        Raises:
            ValueError: what is wrong, with file and line; a level that is solved at the start is wrong, too.
        """
        found = numbered_levels(path)
        for where, level in found:
            if level.solved:
                raise ValueError(f"{where}: {_SOLVED}")
        levels = [level for _, level in found]
        known: dict[str, Any] = {"min_steps": 1, "max_steps": None, "min_pushes": 1, "max_pushes": None}
        shapes = {(level.height, level.width) for level in levels}
        known["height"], known["width"] = shapes.pop() if len(shapes) == 1 else (0, 0)
        boxes = {level.n_boxes for level in levels}
        known["boxes"] = boxes.pop() if len(boxes) == 1 else 0
        return levels, known

    def level_key(self, level: Level) -> str:
        """Hex digest, equal under rotation, reflection, translation inside more walls, and for useless floor."""
        return level.key

    def dump_level(self, level: Level) -> dict[str, Any]:
        """``{"xsb": drawing, "optimal_steps": number or None, "optimal_pushes": number or None}``."""
        optima = {"optimal_steps": level.optimal_steps, "optimal_pushes": level.optimal_pushes}
        return {"xsb": format_xsb(level), **optima}

    def load_level(self, data: Any) -> Level:
        """A level from ``dump_level``'s value, or from an XSB drawing. Any size and number of boxes is welcome.

        Raises:
            ValueError: the board is wrong (which cell or rule), or solved already.
        """
        if isinstance(data, str):
            data = {"xsb": data}
        if not isinstance(data, dict) or not isinstance(data.get("xsb"), str):
            raise ValueError(
                'a Sokoban level is an XSB drawing or {"xsb": drawing}, perhaps with optimal_steps and optimal_pushes'
            )
        level = parse_xsb(data["xsb"])
        optima: dict[str, Any] = {name: data.get(name) for name in ("optimal_steps", "optimal_pushes")}
        for name, value in optima.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a positive whole number or None: {value!r}")
        if level.solved:
            raise ValueError(_SOLVED)
        return replace(level, **optima)

    # --- play -----------------------------------------------------------------------------------------------------

    @property
    def deterministic(self) -> bool:
        """True."""
        return True

    def action_names(self, level: Level) -> tuple[str, ...]:
        """``("Up", "Down", "Left", "Right")``."""
        return ACTIONS

    @property
    def n_actions(self) -> int:
        """4."""
        return 4

    def initial(self, level: Level) -> State:
        """The level's start."""
        return self.state_at(level, level.buffer, level.start)

    def state_at(self, level: Level, cells: bytes, player: int) -> State:
        """The state of a board in its frame, whose player stands at an index of it."""
        frame = level.frame
        key = level.board_hash ^ frame.players[player]
        for code in (BOX, BOX_ON_TARGET):
            i = cells.find(code)
            while i >= 0:
                key ^= frame.boxes[i]
                i = cells.find(code, i + 1)
        return State(level, cells, player, cells.count(BOX), key, frame)

    def step(self, state: State, action: int, rng: np.random.Generator | None) -> Outcome[State]:
        """Apply one action; ``rng`` is not used.

        Raises:
            ValueError: ``action`` is not 0 to 3.
        """
        level, cells, player, missing, key, frame = state
        if not 0 <= action <= 3:
            raise ValueError(f"action must be 0 to 3: {action}")
        if not missing:
            return Outcome(state, 0.0, True, True, False)
        _, deltas, players, boxes = frame
        delta = deltas[action]
        ahead = player + delta
        code = cells[ahead]
        entered = _ENTERED[code]
        if not entered:
            return _tuple(Outcome, (state, STEP_REWARD, False, False, False))
        if code < BOX_ON_TARGET:  # free floor: no box to push
            new = bytearray(cells)
            new[player] = _LEFT[cells[player]]
            new[ahead] = entered
            key ^= players[player] ^ players[ahead]
            now = _tuple(State, (level, bytes(new), ahead, missing, key, frame))
            return _tuple(Outcome, (now, STEP_REWARD, False, False, True))
        beyond = ahead + delta
        filled = _FILLED[cells[beyond]]
        if not filled:
            return _tuple(Outcome, (state, STEP_REWARD, False, False, False))
        new = bytearray(cells)
        new[player] = _LEFT[cells[player]]
        new[ahead] = entered
        new[beyond] = filled
        key ^= players[player] ^ players[ahead] ^ boxes[ahead] ^ boxes[beyond]
        change = (filled == BOX_ON_TARGET) - (code == BOX_ON_TARGET)
        missing -= change
        solved = not missing
        reward = STEP_REWARD + BOX_REWARD * change + SOLVED_REWARD * solved
        now = _tuple(State, (level, bytes(new), ahead, missing, key, frame))
        return _tuple(Outcome, (now, reward, solved, solved, True))

    def legal_actions(self, state: State) -> tuple[int, ...]:
        """All four, always."""
        return (0, 1, 2, 3)

    def level_of(self, state: State) -> Level:
        """The state's level."""
        return state.level

    def state_key(self, state: State) -> str:
        """Hex digest of the board as it stands: walls, targets, boxes and player, each in its place."""
        return hex(state.hash)[3:]

    def dump_state(self, state: State) -> dict[str, Any]:
        """``{"player": [row, column], "boxes": [[row, column], ...]}``."""
        level = state.level
        boxes = [list(level.to_cell(i)) for i, code in enumerate(state.cells) if code in (BOX, BOX_ON_TARGET)]
        return {"player": list(level.to_cell(state.player)), "boxes": boxes}

    def load_state(self, level: Level, data: Any) -> State:
        """The state from ``dump_state``'s value.

        Raises:
            ValueError: a thing stands on a wall, on another or outside the board, or the number of boxes is wrong.
        """
        try:
            player: Cell = (int(data["player"][0]), int(data["player"][1]))
            boxes: list[Cell] = [(int(row), int(column)) for row, column in data["boxes"]]
        except (TypeError, KeyError, IndexError, ValueError):
            raise ValueError('a Sokoban state is {"player": [row, column], "boxes": [[row, column], ...]}') from None
        now = Level.from_parts(
            level.height, level.width, walls=level.walls, targets=level.targets, boxes=boxes, player=player
        )
        return self.state_at(level, now.buffer, now.start)

    def batch(self, levels: Sequence[Level], num_envs: int) -> SokobanBatch:
        """Compiled plays."""
        return SokobanBatch(self, levels, num_envs, SYMBOLS[self.symbols])

    # --- words and pictures ---------------------------------------------------------------------------------------

    def instructions(self, level: Level, view: str) -> str:
        """Rules, rewards, actions, and the legend of what ``view`` shows, made from the game's one symbol table."""
        self._check_view(view)
        open_border = view != "grid" and bool(_open_border(level, level.buffer))
        return _instructions(self.symbols, view, level.height, level.width, level.n_boxes, open_border)

    def describe(self, state: State, view: str) -> str:
        """The state as text, see the class. Coordinates are lines ``kind cell cell ...``."""
        if view == "grid":
            return self.sight(state, view)[2]
        if view == "coordinates":
            return _coordinates_text(state)
        self._check_view(view)
        return _coordinates_text(state) + "\n" + self.describe(state, "grid")

    def sight(self, state: State, view: str) -> tuple[str, tuple[int, ...], str]:
        """See :meth:`Game.sight`."""
        if view != "grid":
            return super().sight(state, view)
        _, cells, _, _, key, frame = state
        text = cells[frame.stride : -frame.stride - 1].translate(self._letters).decode()
        if "\0" in text:
            text = text.replace("\0", self._box_on_target)
        return hex(key)[3:], (0, 1, 2, 3), text

    def _check_view(self, view: str) -> None:
        if view not in self.views:
            raise ValueError(f"view must be one of {self.views}: {view!r}")

    def draw(self, state: State) -> np.ndarray:
        """The state as a picture of 32 x 32 pixels per cell: ``uint8 [32 * height, 32 * width, 3]``."""
        board = _board(state)
        height, width = board.shape
        picture = _tiles()[board]  # height, width, 32, 32, 3
        return np.ascontiguousarray(picture.transpose(0, 2, 1, 3, 4).reshape(height * TILE, width * TILE, 3))

    def grid(self, state: State) -> np.ndarray:
        """Cell codes, ``int8 [height, width]``."""
        return _board(state).astype(np.int8)

    def grid_spec(self) -> tuple[tuple[int, ...], int]:
        """``((height, width), 7)``; of levels from a file, with their size.

        Raises:
            ValueError: the levels are of different sizes.
        """
        if self.height == 0:
            raise ValueError(f"no grid observations: the levels of {self.levels_from} are of different sizes")
        return (self.height, self.width), OUTSIDE

    # --- exact values ---------------------------------------------------------------------------------------------

    @property
    def longest_optimum(self) -> int | None:
        """``max_steps``; None if there is no upper bound."""
        return self.max_steps

    def oracle(self, state: State, actions_left: int) -> OracleValue:
        """Exact values; see :func:`oracle.evaluate` for limits and errors."""
        return oracle.evaluate(state.level, state.cells, actions_left)

    def oracle_many(self, states: Sequence[State], actions_left: int | Sequence[int] | np.ndarray) -> OracleValues:
        """As :meth:`oracle`, to the last bit; a million states and more a second."""
        return oracle.evaluate_many(states, actions_left)

    def random_play(self, state: State, actions_left: int) -> Expectation:
        """Exact expectation of ``actions_left`` uniformly random actions, fewer if the level is solved before."""
        return oracle.expect_random(state.level, state.cells, actions_left)


@lru_cache(maxsize=1024)
def _instructions(symbols: str, view: str, height: int, width: int, boxes: int, open_border: bool) -> str:
    plural = boxes > 1
    lines = [
        "You are in a warehouse, seen from above. "
        + (
            f"Push all {boxes} boxes onto the {boxes} targets, one box on each."
            if plural
            else "Push the box onto the target."
        ),
        "Each action moves you one cell. Moving into a box pushes it one cell further, if the cell beyond it is "
        "free of walls and boxes. You cannot pull a box and cannot push two at once, so do not get a box stuck. "
        "A blocked move changes nothing.",
        f"Rewards: {STEP_REWARD:g} for every action; {BOX_REWARD:+g} when a box comes onto a target; "
        f"{-BOX_REWARD:+g} when a box leaves one; {SOLVED_REWARD:+g} more when "
        + ("all boxes are on targets" if plural else "the box is on the target")
        + ", which ends the game.",
        "Actions: " + ", ".join(ACTIONS),
    ]
    if view != "grid":
        lines.append(
            f"Cells are written (row,column), counted from 0: rows 0 to {height - 1} downwards, columns 0 to "
            f"{width - 1} to the right. Up lowers the row, Left lowers the column."
        )
        kinds = [
            "size: rows and columns of the board",
            "player: your cell",
            "boxes: boxes that are not on a target",
            "targets: targets without a box (you may stand on one)",
            "done: boxes on a target",
            "walls: walls inside the board",
        ]
        if open_border:
            kinds.append("open: cells of the outer border that are not wall; all others there are")
        else:
            kinds[-1] += "; every cell of its outer border is a wall too"
        lines.append("Lines (a line with nothing to list is left out):\n" + "\n".join(kinds))
    if view != "coordinates":
        legend = (f"{s} {meaning}" for s, meaning in zip(SYMBOLS[symbols], MEANINGS, strict=True))
        lines.append("Symbols on the board:\n" + "\n".join(legend))
    return "\n".join(lines)


def _board(state: State) -> np.ndarray:
    """The codes without their frame, ``uint8 [height, width]``, read-only."""
    level = state.level
    return np.frombuffer(state.cells, np.uint8).reshape(level.height + 2, level.stride)[1:-1, :-1]


def _on_border(level: Level, cell: Cell) -> bool:
    return cell[0] in (0, level.height - 1) or cell[1] in (0, level.width - 1)


def _open_border(level: Level, cells: bytes) -> list[Cell]:
    """Cells of the outer border that are not walls."""
    border = (level.to_cell(i) for i, code in enumerate(cells) if code not in (WALL, OUTSIDE))
    return [cell for cell in border if _on_border(level, cell)]


def _line(kind: str, cells: Iterable[Cell]) -> str:
    return " ".join([kind, *(f"({row},{column})" for row, column in cells)])


def _coordinates_text(state: State) -> str:
    level, codes = state.level, state.cells
    found: dict[str, list[Cell]] = {"boxes": [], "targets": [], "done": [], "walls": [], "open": []}
    kinds = {BOX: "boxes", TARGET: "targets", PLAYER_ON_TARGET: "targets", BOX_ON_TARGET: "done"}
    for i, code in enumerate(codes):
        if code in (OUTSIDE, EMPTY, PLAYER):
            continue
        cell = level.to_cell(i)
        if code != WALL:
            found[kinds[code]].append(cell)
        elif not _on_border(level, cell):
            found["walls"].append(cell)
    found["open"] = _open_border(level, codes)
    lines = [f"size {level.height} {level.width}", _line("player", [level.to_cell(state.player)])]
    lines += [_line(kind, cells) for kind, cells in found.items() if cells]
    return "\n".join(lines)


TILE = 32
"""Pixels along a drawn cell's side."""


@lru_cache(maxsize=1)
def _tiles() -> np.ndarray:
    """One picture per cell code, ``uint8 [7, 32, 32, 3]``."""
    y, x = np.mgrid[0:TILE, 0:TILE]
    centre = (TILE - 1) / 2
    radius = np.hypot(y - centre, x - centre)
    grain = np.random.default_rng(7).normal(0.0, 1.0, (TILE, TILE, 1))  # fixed texture

    floor = np.array([226.0, 219.0, 204.0]) + 2.5 * grain
    floor[[0, -1], :] -= 10.0
    floor[:, [0, -1]] -= 10.0

    course = y // 8
    joint = (y % 8 == 0) | ((x + 8 * (course % 2)) % 16 == 0)
    light = ((y % 8 == 1) & ~joint)[..., None]
    wall = np.array([112.0, 84.0, 76.0]) + 5.0 * grain + 18.0 * light
    wall[joint] = (74.0, 58.0, 56.0)

    def with_target(tile: np.ndarray) -> np.ndarray:
        out = tile.copy()
        out[radius <= 8.0] = (205.0, 66.0, 58.0)
        out[radius <= 5.0] = (236.0, 132.0, 112.0)
        out[radius <= 2.2] = (205.0, 66.0, 58.0)
        return out

    def with_box(tile: np.ndarray, body: tuple[float, float, float]) -> np.ndarray:
        out = tile.copy()
        colour = np.array(body)
        inside = (np.abs(y - centre) <= 13) & (np.abs(x - centre) <= 13)
        planks = colour + 4.0 * grain - 14.0 * (y % 7 == 3)[..., None]
        out[inside] = planks[inside]
        frame = inside & ((np.abs(y - centre) > 10) | (np.abs(x - centre) > 10))
        braces = inside & ((np.abs(y - x) <= 1) | (np.abs(y + x - 2 * centre) <= 1.5))
        out[frame | braces] = colour * 0.78
        edge = inside & ((np.abs(y - centre) > 12.4) | (np.abs(x - centre) > 12.4))
        out[edge] = colour * 0.5
        return out

    def with_player(tile: np.ndarray) -> np.ndarray:
        out = tile.copy()
        out[np.hypot(y - centre - 2, x - centre - 1) <= 11.5] *= 0.82  # shadow
        out[radius <= 11.2] = (33.0, 71.0, 120.0)
        out[radius <= 10.0] = (58.0, 118.0, 186.0)
        out[np.hypot(y - centre + 3, x - centre + 3) <= 4.0] = (118.0, 168.0, 222.0)
        for side in (-4, 4):
            eye = np.hypot(y - centre + 1, x - centre - side)
            out[eye <= 2.6] = (250.0, 250.0, 250.0)
            out[eye <= 1.2] = (24.0, 28.0, 40.0)
        return out

    target = with_target(floor)
    on_target = with_target(floor)
    on_target[(radius > 11.5) & (radius <= 15.0)] = (205.0, 66.0, 58.0)  # a ring that the player does not hide
    tiles = (
        wall,
        floor,
        target,
        with_box(floor, (104.0, 168.0, 92.0)),
        with_box(floor, (201.0, 150.0, 84.0)),
        with_player(floor),
        with_player(on_target),
    )
    return np.clip(np.stack(tiles), 0, 255).astype(np.uint8)
