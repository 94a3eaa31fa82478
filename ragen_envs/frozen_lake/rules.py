"""The frozen lake: moving, words, pictures, and the door to the oracle.

The state is a cell; everything else is the map. Holes and goal end the game, so whether the player is in a hole or on
the goal is read off the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ragen_envs.frozen_lake import maps, oracle
from ragen_envs.frozen_lake.batch import FrozenLakeBatch
from ragen_envs.frozen_lake.maps import MOVES, Chart, LakeLevel
from ragen_envs.game import Expectation, OracleValue, OracleValues, Outcome, Plan, best_actions
from ragen_envs.packs import PackedGame

ACTIONS = ("Left", "Down", "Right", "Up")

SYMBOLS = (
    ("_", "frozen"),
    ("O", "hole"),
    ("G", "goal"),
    ("P", "player"),
    ("X", "player in a hole"),
    ("√", "player on the goal"),
)
"""Symbol and meaning by grid code. Board, legend and ``grid`` all come from this table."""

_CELL_KEYS = [f"{cell:04x}" for cell in range(maps.MAX_SIDE**2)]

TILE = 32


class LakeState(NamedTuple):
    """Where the player is on a level."""

    level: LakeLevel
    cell: int
    """Index in reading order: row times width plus column."""
    chart: Chart
    """``level.chart``."""

    @staticmethod
    def at(level: LakeLevel, row: int, column: int) -> LakeState:
        """The state with the player in a row and column."""
        return LakeState(level, row * level.shape[1] + column, level.chart)

    @property
    def row(self) -> int:
        """From the top."""
        return self.cell // self.level.shape[1]

    @property
    def column(self) -> int:
        """From the left."""
        return self.cell % self.level.shape[1]


class FrozenLake(PackedGame[LakeLevel, LakeState]):
    """Walk over slippery ice from a random start to a random goal without falling into a hole.

    **Description.** A ``size`` board of ice with holes. A move goes in the intended direction with probability
    ``1 - slip`` and in each of the two perpendicular directions with probability ``slip / 2``. A move off the board
    leaves the player where it is.

    **Actions.** ``Left``, ``Down``, ``Right``, ``Up`` (indices 0 to 3). The order is that of Gymnasium's lake.

    **Observations.** Three views. ``grid``: a row of symbols per line, ``_`` ice (the start cell too), ``O`` hole,
    ``G`` goal, ``P`` player, ``X`` player in a hole, ``√`` player on the goal. ``coordinates``: the lines ``size H W``,
    ``player (r,c)``, ``goal (r,c)`` and, if there are any, ``holes (r,c) (r,c) ...``, zero-based from the top left.
    ``both``: coordinates, then grid. ``grid`` is also the name of the ``int8`` array ``[height, width]`` of the codes 0
    to 5 in the order of ``SYMBOLS``.

    **Rewards.** 1 for the move that reaches the goal, else 0.

    **End of episode.** Goal and hole both end the game; success only at the goal.

    **Arguments.**

    * ``size``: side, or ``[height, width]``; default 4; at most 32.
    * ``frozen``: probability that a cell other than start and goal is ice, default 0.8.
    * ``slip``: probability of going sideways, default 0.1 (RAGEN's "1/3 in the intended direction" is 2/3).
    * ``min_steps``, ``max_steps``: limits of the shortest path of sampled maps, defaults 1 and 10; ``max_steps=None``
      for no upper limit.
    * ``map``: a map of one's own, a list of rows of ``S F H G``; sampling then always gives it, and ``size``,
      ``frozen`` and the path limits are not used.
    * ``levels``: ``"auto"`` takes maps from the pack that ships for exactly this size, ``frozen`` and these limits, and
      makes new ones if there is none; ``"generated"`` always makes new ones; ``"pack"`` builds the pack if it does not
      ship; a path names a pack file, whose size and limits then hold instead of the arguments. Packs keep the
      distribution of the generator, repetitions included.

    **Levels.** Start and goal uniform and distinct, other cells ice independently; kept if the shortest path is within
    the limits. ``dump_level`` is the list of rows. ``level_key`` is the same for the 8 rotations and reflections, under
    which the dynamics do not change.

    **Oracle.** Backward induction over cells and actions left, exact to rounding. ``optimal_steps`` is the shortest
    path (sliding cannot shorten it). ``plan`` is the exact optimum of play in turns: sequences given blind, the state
    seen only between turns. ``random_play`` is exact too. For a finished game the ``reward`` of an expectation is 0
    (nothing more is paid) and its ``success`` tells how it ended.

    **Differences from RAGEN.** Slip is a parameter and the level and the luck come from separate generators, so members
    of a group share the map and not the slips. Sampled maps never need more than 10 actions unless asked. Success is
    the goal flag, a hole is a termination. Legend and board come from one table; coordinates have the map's range.

    **Versions.** v0: first.

    Raises:
        ValueError: for an invalid map or an argument that no map can meet.
    """

    name: ClassVar[str] = "frozen_lake"
    views: ClassVar[tuple[str, ...]] = ("grid", "coordinates", "both")
    level_arguments = ("size", "frozen", "min_steps", "max_steps")
    distinct_levels = False
    uniform_luck = True

    def __init__(
        self,
        *,
        size: int | Sequence[int] = 4,
        frozen: float = 0.8,
        slip: float = 0.1,
        min_steps: int = 1,
        max_steps: int | None = 10,
        map: Sequence[str] | str | None = None,
        levels: str = "auto",
    ) -> None:
        self._fixed = None if map is None else maps.parse(map)
        self.height, self.width = _size(size) if self._fixed is None else self._fixed.shape
        self.size = [self.height, self.width]
        self.frozen, self.slip = float(frozen), float(slip)
        for value, what in ((self.frozen, "frozen"), (self.slip, "slip")):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{what} is a probability, got {value}")
        self.min_steps, self.max_steps = min_steps, max_steps
        for limit in (min_steps, max_steps):
            if limit is not None and type(limit) is not int:
                raise ValueError(f"min_steps and max_steps are whole numbers, got {limit!r}")
        if self._fixed is None:
            if min_steps < 1:
                raise ValueError(f"min_steps is at least 1 (start and goal differ), got {min_steps}")
            if max_steps is not None and max_steps < min_steps:
                raise ValueError(f"max_steps {max_steps} is below min_steps {min_steps}")
            if min_steps > self.height * self.width - 1:
                raise ValueError(
                    f"no {self.height} x {self.width} map has a shortest path of {min_steps}: "
                    f"it has only {self.height * self.width} cells"
                )
            self.choose_levels(levels)
            self.height, self.width = self.size
        elif levels not in ("auto", "generated"):
            raise ValueError(f"map and levels={levels!r} exclude each other: a game has one source of levels")

    # --- levels ---------------------------------------------------------------------------------------------------

    @property
    def fixed_level(self) -> LakeLevel | None:
        """The level of ``map``, or None where levels are sampled."""
        return self._fixed

    def sample_level(self, rng: np.random.Generator) -> LakeLevel:
        """A random map within the limits, one of the file that was given, or the fixed one (then ``rng`` is not used).

        Raises:
            ValueError: if no map within the limits turns up in a bounded number of tries.
        """
        if self._fixed is not None:
            return self._fixed
        if self.from_file:
            return self.sample_listed(rng)
        return maps.generate(
            rng, self.height, self.width, frozen=self.frozen, min_steps=self.min_steps, max_steps=self.max_steps
        )

    def to_record(self, level: LakeLevel) -> bytes:
        """The letters, row by row."""
        return level.letters.encode()

    def from_record(self, record: bytes, key: str) -> LakeLevel:
        """The level of :meth:`to_record` and its key."""
        letters = record.decode()
        level = LakeLevel(tuple([letters[i : i + self.width] for i in range(0, len(letters), self.width)]))
        level.__dict__["key"] = key
        return level

    def level_key(self, level: LakeLevel) -> str:
        """Digest of the map, the same for its rotations and reflections."""
        return level.key

    def dump_level(self, level: LakeLevel) -> list[str]:
        """The rows."""
        return list(level.rows)

    def load_level(self, data: Any) -> LakeLevel:
        """A level from its rows of ``S F H G``, as a list or as lines of one string; of any size.

        Raises:
            ValueError: says which cell or rule is wrong.
        """
        return maps.parse(data)

    # --- play -----------------------------------------------------------------------------------------------------

    @property
    def deterministic(self) -> bool:
        """Whether ``slip`` is 0."""
        return self.slip == 0.0

    def action_names(self, level: LakeLevel) -> tuple[str, ...]:
        """``Left``, ``Down``, ``Right``, ``Up``."""
        return ACTIONS

    @property
    def n_actions(self) -> int:
        """Four."""
        return 4

    def initial(self, level: LakeLevel) -> LakeState:
        """On the start cell."""
        return LakeState.at(level, *level.start)

    def step(self, state: LakeState, action: int, rng: np.random.Generator) -> Outcome[LakeState]:
        """Move, perhaps sideways. With ``slip`` 0 nothing is drawn from ``rng``, else one number.

        Raises:
            ValueError: if the game is over or ``action`` is not 0 to 3.
        """
        _, cell, chart = state
        if not 0 <= action < 4:
            raise ValueError(f"an action is 0 to 3, got {action}")
        if chart.letters[cell] in "HG":
            raise ValueError("the game is over: the player is in a hole or on the goal")
        direction = action
        if self.slip > 0.0:
            luck = rng.random()
            if luck < self.slip:
                direction = (action + (3 if luck < self.slip / 2 else 1)) % 4
        where = chart.moves[4 * cell + direction]
        return chart.outcomes[where] or self._arrive(state, where)

    def _arrive(self, state: LakeState, where: int) -> Outcome[LakeState]:
        """The outcome of a move, see ``Chart.moves``; kept on the chart."""
        level, _, chart = state
        if where >= len(chart.letters):
            outcome = Outcome(state, 0.0, False, False, False)
        else:
            letter = chart.letters[where]
            won = letter == "G"
            now = LakeState(level, where, chart)
            outcome = Outcome(now, 1.0 if won else 0.0, won or letter == "H", won, True)
        chart.outcomes[where] = outcome
        return outcome

    def legal_actions(self, state: LakeState) -> tuple[int, ...]:
        """All four on ice, none once the game is over."""
        _, cell, chart = state
        return () if chart.letters[cell] in "HG" else (0, 1, 2, 3)

    def level_of(self, state: LakeState) -> LakeLevel:
        """The level."""
        return state.level

    def state_key(self, state: LakeState) -> str:
        """Digest of the map as it is drawn, and the player's cell in four hex digits."""
        _, cell, chart = state
        return chart.key + _CELL_KEYS[cell]

    def dump_state(self, state: LakeState) -> list[int]:
        """``[row, column]``."""
        return [state.row, state.column]

    def load_state(self, level: LakeLevel, data: Any) -> LakeState:
        """The state of ``dump_state``'s value.

        Raises:
            ValueError: if it is not a cell of the level.
        """
        height, width = level.shape
        good = isinstance(data, list | tuple) and len(data) == 2 and all(type(x) is int for x in data)
        if not good or not (0 <= data[0] < height and 0 <= data[1] < width):
            raise ValueError(f"a state is [row, column] on a board of {height} x {width}, got {data!r}")
        return LakeState.at(level, data[0], data[1])

    def batch(self, levels: Sequence[LakeLevel], num_envs: int) -> FrozenLakeBatch:
        """Compiled plays."""
        return FrozenLakeBatch(self, levels, num_envs, "".join(symbol for symbol, _ in SYMBOLS))

    # --- words and pictures ---------------------------------------------------------------------------------------

    def instructions(self, level: LakeLevel, view: str) -> str:
        """The rules with this game's chance to slip, and what the lines or symbols of ``view`` mean."""
        self._check_view(view)
        return _instructions(self.slip, view, *level.shape)

    def describe(self, state: LakeState, view: str) -> str:
        """The board in the chosen view."""
        level, cell, chart = state
        if view == "grid":
            board, place = level.board, cell + cell // level.shape[1]  # one line break per row above
            return board[:place] + _PLAYER_ON[chart.letters[cell]] + board[place + 1 :]
        self._check_view(view)
        rows, (row, column) = level.rows, (state.row, state.column)
        holes = [f"({r},{c})" for r, cells in enumerate(rows) for c, letter in enumerate(cells) if letter == "H"]
        goal = level.find("G")
        lines = [f"size {len(rows)} {len(rows[0])}", f"player ({row},{column})", f"goal ({goal[0]},{goal[1]})"]
        if holes:
            lines.append("holes " + " ".join(holes))
        if view == "both":
            lines.append(self.describe(state, "grid"))
        return "\n".join(lines)

    def sight(self, state: LakeState, view: str) -> tuple[str, tuple[int, ...], str]:
        """See :meth:`Game.sight`."""
        if view != "grid":
            return super().sight(state, view)
        _, cell, chart = state
        return chart.sights[cell] or self._see(state)

    def _see(self, state: LakeState) -> tuple[str, tuple[int, ...], str]:
        found = super().sight(state, "grid")
        state.chart.sights[state.cell] = found
        return found

    def grid(self, state: LakeState) -> np.ndarray:
        """``int8 [height, width]``: codes 0 to 5 in the order of ``SYMBOLS``."""
        cells = state.level.cells()
        cells[state.row, state.column] += 3
        return cells

    def grid_spec(self) -> tuple[tuple[int, ...], int]:
        """Shape ``(height, width)`` and 6 codes."""
        return (self.height, self.width), len(SYMBOLS)

    def draw(self, state: LakeState) -> np.ndarray:
        """The lake from above, ``uint8 [32 * height, 32 * width, 3]``."""
        cells = state.level.cells()
        height, width = cells.shape
        picture = np.empty((height * TILE, width * TILE, 3), dtype=np.uint8)
        for r in range(height):
            for c in range(width):
                tile = picture[r * TILE : (r + 1) * TILE, c * TILE : (c + 1) * TILE]
                _draw_tile(tile, int(cells[r, c]), player=(r, c) == (state.row, state.column))
        return picture

    # --- exact values ---------------------------------------------------------------------------------------------

    @property
    def longest_optimum(self) -> int | None:
        """``max_steps``, or the path of the fixed map; None where the length of paths is not limited."""
        return maps.shortest_path(self._fixed) if self._fixed is not None else self.max_steps

    def oracle(self, state: LakeState, actions_left: int) -> OracleValue:
        """Exact values with one decision per action.

        Raises:
            ValueError: if ``actions_left`` is negative.
        """
        if actions_left < 0:
            raise ValueError(f"actions_left is at least 0, got {actions_left}")
        cell = state.cell
        q = tuple(oracle.closed_loop(state.level, self.slip, actions_left)[actions_left, cell].tolist())
        steps = int(oracle.goal_distances(state.level)[cell])
        return OracleValue(max(q), q, best_actions(q), steps < 0, steps)

    def oracle_many(self, states: Sequence[LakeState], actions_left: int | Sequence[int] | np.ndarray) -> OracleValues:
        """As :meth:`oracle`, to the last bit; a million states and more a second."""
        return oracle.evaluate_many(states, self.slip, actions_left)

    def plan(self, state: LakeState, *, turns_left: int, actions_left: int, max_actions: int) -> Plan:
        """The best next turn of 1 to ``max_actions`` actions given blind, and the value of optimal turn-wise play.

        Exact: dynamic programming over turns, actions left and cells, with a search over all sequences of a turn. The
        search grows with ``4 ** max_actions`` where the ice is slippery; 5 actions on 4x4 take milliseconds, 7 a
        fraction of a second. Without slipping the plan is a shortest path, of which a turn takes its share. If the game
        is over or nothing is left to spend, the plan is empty.
        """
        budget = min(actions_left, turns_left * max_actions)
        cell = state.cell
        if self._cell(state) in "HG" or budget < 1 or max_actions < 1:
            return Plan((), Expectation(0.0, float(self._cell(state) == "G")))
        if self.slip == 0.0:
            return self._straight_plan(state, budget, max_actions)
        value, length, sequence = oracle.turn_wise(state.level, self.slip, max_actions, turns_left, budget)
        expected = float(value[cell])
        return Plan(tuple(int(a) for a in sequence[cell, : length[cell]]), Expectation(expected, expected))

    def random_play(self, state: LakeState, actions_left: int) -> Expectation:
        """Exact expectation of ``actions_left`` uniformly random actions. It does not depend on ``slip``."""
        if self._cell(state) in "HG":
            return Expectation(0.0, float(self._cell(state) == "G"))
        chance = float(oracle.blind_luck(state.level, self.slip, actions_left)[state.cell])
        return Expectation(chance, chance)

    # --- small helpers --------------------------------------------------------------------------------------------

    def _straight_plan(self, state: LakeState, budget: int, max_actions: int) -> Plan:
        """The next turn along a shortest path (without slipping), as far as the budget allows."""
        height, width = state.level.shape
        distance = oracle.goal_distances(state.level).reshape(height, width)
        row, column = state.row, state.column
        steps = int(distance[row, column])
        if steps < 0:
            return Plan((0,), Expectation(0.0, 0.0))  # No way to the goal: any action does.
        actions: list[int] = []
        for wanted in range(steps - 1, steps - 1 - min(steps, max_actions, budget), -1):
            for action, (down, right) in enumerate(MOVES):
                r, c = row + down, column + right
                if 0 <= r < height and 0 <= c < width and distance[r, c] == wanted:
                    actions.append(action)
                    row, column = r, c
                    break
        reached = float(steps <= budget)
        return Plan(tuple(actions), Expectation(reached, reached))

    def _cell(self, state: LakeState) -> str:
        return state.level.letters[state.cell]

    def _check_view(self, view: str) -> None:
        if view not in self.views:
            raise ValueError(f"the frozen lake has the views {', '.join(self.views)}, got {view!r}")


_PLAYER_ON = {"S": SYMBOLS[3][0], "F": SYMBOLS[3][0], "H": SYMBOLS[4][0], "G": SYMBOLS[5][0]}


@lru_cache(maxsize=1024)
def _instructions(slip: float, view: str, height: int, width: int) -> str:
    if slip > 0.0:
        ice = (
            f"The ice is slippery: with a chance of {_percent(slip)} a move goes sideways instead of where "
            f"you meant ({_percent(slip / 2)} for each of the two sides)."
        )
    else:
        ice = "The ice is not slippery: every move goes where you meant."
    parts = [
        "You walk over a frozen lake and want to reach the goal without falling into a hole. "
        f"The actions {', '.join(ACTIONS)} each move you one cell. "
        + ice
        + " A move off the board leaves you where you are. "
        "Reaching the goal gives a reward of 1 and ends the game; falling into a hole gives 0 and ends it too."
    ]
    if view != "grid":
        parts.append(
            "Cells are written (row,column): rows count from 0 at the top, columns from 0 at the left, so the last "
            f"cell is ({height - 1},{width - 1}). Lines: 'size' rows and columns of the lake; 'player' your cell; "
            "'goal' the goal's cell; 'holes' the cells with a hole (left out if there are none). All other cells "
            "are frozen."
        )
    if view != "coordinates":
        parts.append("Symbols: " + ", ".join(f"{symbol} {meaning}" for symbol, meaning in SYMBOLS) + ".")
    return "\n".join(parts)


def _size(size: int | Sequence[int]) -> tuple[int, int]:
    sides = [size, size] if isinstance(size, int) else list(size)
    good = len(sides) == 2 and all(type(side) is int and 1 <= side <= maps.MAX_SIDE for side in sides)
    if not good or sides[0] * sides[1] < 2:
        raise ValueError(f"size is a side or [height, width], 1 to {maps.MAX_SIDE} each and 2 cells, got {size!r}")
    return sides[0], sides[1]


def _percent(chance: float) -> str:
    return f"{100 * chance:.3g} %"


def _draw_tile(tile: np.ndarray, code: int, *, player: bool) -> None:
    """Paint one ``TILE`` x ``TILE`` cell in place."""
    y, x = np.mgrid[0:TILE, 0:TILE]
    from_centre = (y - 15.5) ** 2 + (x - 15.5) ** 2
    tile[:] = (214, 236, 248)
    tile[(x + y) % 23 < 2] = (230, 245, 252)  # a glint on the ice
    if code == maps.HOLE:
        tile[from_centre <= 13.5**2] = (120, 170, 205)
        tile[from_centre <= 12**2] = (22, 50, 96)
        tile[(y - 18) ** 2 + (x - 16) ** 2 <= 81] = (14, 36, 76)
    elif code == maps.GOAL:
        tile[5:28, 9:11] = (96, 72, 52)
        tile[(y >= 6) & (y < 18) & (x >= 11) & (x - 11 <= 14 - 2.2 * np.abs(y - 11.5))] = (214, 60, 62)
        tile[27:29, 6:14] = (96, 72, 52)
    if player:
        # In a hole only the head is above water; on the goal the player stands beside the flag.
        cy, cx, radius = (19, 15.5, 6) if code == maps.HOLE else (20, 20, 7.5) if code == maps.GOAL else (15.5, 15.5, 9)
        body = (y - cy) ** 2 + (x - cx) ** 2
        tile[body <= (radius + 1.5) ** 2] = (60, 42, 20)
        tile[body <= radius**2] = (250, 176, 62)
        for side in (-1, 1):
            tile[(y - cy + radius / 4) ** 2 + (x - cx - side * radius / 2.6) ** 2 <= 1.6] = (40, 28, 16)
    tile[0, :] = tile[:, 0] = (186, 214, 230)
