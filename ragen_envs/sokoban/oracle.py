"""Exact values of Sokoban states: retrograde search for the distance to success, and what follows from it.

All states that can be reached from a level's start are tabulated once, where there are at most ``TABLE_LIMIT`` of them;
the table answers every later question about the level, under any number of actions left. Where there are more, the
values come from the states within ``actions_left`` actions of the asked one (exact as well), and distance and dead end
from the solver. The first questions about a level that may have many states are answered in that second way, since a
table takes seconds there and an episode asks a few times only.

Since every action costs something and every box brought home pays, the best return has a closed form: where success is
in reach it is that of the shortest solution; where it is not, all actions are spent, and what they can earn is how many
boxes stand on targets at the end, which is tabulated per number of actions. Hence values are exact to rounding.

Simplifications: a cache of tables is shared by the process and bounded by the number of states in it; results never
depend on it. A game has no stop action: the value is that of acting until success or until no action is left.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import Protocol

import numpy as np

from ragen_envs import finite_horizon
from ragen_envs.game import Expectation, OracleValue, OracleValues, best_actions, budgets, by_level
from ragen_envs.sokoban import search
from ragen_envs.sokoban.levels import BOX, BOX_ON_TARGET, OUTSIDE, PLAYER, PLAYER_ON_TARGET, WALL, Level
from ragen_envs.sokoban.solver import NODE_LIMIT, solve_board, state_arrays

STEP_REWARD, BOX_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0
"""Per action; per box that comes onto (or, negative, leaves) a target; for the last box."""

TABLE_LIMIT = 3_000_000
"""Most states of a table that covers a whole level."""
HORIZON_LIMIT = 3_000_000
"""Most states within ``actions_left`` actions of a state on a level that is too big for a table."""
AT_ONCE = 100_000
"""Levels that can have no more states get their table at once; around a state of others, so many are looked at without
a table."""
PATIENCE = 40
"""Questions about a bigger level before its table is made: that costs about as much as they do."""
CACHE_STATES = 2_000_000
"""Most states in all cached tables together: some 50 bytes each with four boxes, 2 more per number of actions that was
asked for, up to where nothing more can be earned, and 16 once random play was asked for."""

LEVELS_COUNTED = 1 << 14
"""Levels without a table whose questions are counted before all counts start again."""

_REWARDS = np.array([STEP_REWARD, BOX_REWARD, SOLVED_REWARD])
_KINDS = np.zeros(256, np.uint8)
_KINDS[[BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET]] = 1, 2, 3, 3
_ONE = np.ones(1)


class Position(Protocol):
    """What :func:`evaluate_many` reads of a state (:class:`rules.State` has it)."""

    @property
    def level(self) -> Level: ...
    @property
    def cells(self) -> bytes: ...


class _Table:
    """States reachable from one board, with their transitions and what is worked out about them when asked for."""

    def __init__(self, level: Level, cells: bytes, depth: int, limit: int) -> None:
        player = max(cells.find(PLAYER), cells.find(PLAYER_ON_TARGET))
        walls, targets, row = state_arrays(cells, player)
        self.floor = np.flatnonzero(walls == 0)
        found = search.explore(walls, targets, np.array(level.deltas, np.int64), row, depth, limit)
        self.pool, self.slots, self.successor, self.missing, self.complete = found
        if not self.complete:  # keep the verdict only
            self.pool = self.slots = self.successor = self.missing = np.zeros(0, np.int32)
        self._steps: np.ndarray | None = None
        self._fewest = self.missing[None], False
        self._uniform: tuple[int, np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.successor)

    def find(self, boards: np.ndarray) -> np.ndarray:
        """Index of each framed board (``uint8 [N, buffer]``), or ``search.SOLVES`` or ``search.UNSEEN``."""
        return np.asarray(search.locate(self.pool, self.slots, self.floor, _KINDS, boards))

    def steps(self) -> np.ndarray:
        """Fewest actions to success of every state, by the transitions of the table; -1 where there are none."""
        if self._steps is None:
            self._steps = search.steps_to_go(self.successor)
        return self._steps

    def optimal(self, index: np.ndarray, left: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
        """``(value [N], q [N, 4])`` of optimal play with ``left [N]`` actions, of which ``longest`` is the most."""
        fewest, settled = self._fewest
        if not settled and len(fewest) < longest:
            # Used from a local name: another thread may put shorter rows in their place meanwhile.
            fewest, settled = self._fewest = search.fewest_missing(self.successor, fewest, longest - 1)
        return search.returns(self.successor, self.missing, self.steps(), fewest, index, left, _REWARDS)

    def uniform(self, horizon: int) -> tuple[np.ndarray, np.ndarray]:
        """``(expected return [S], success probability [S])`` of ``horizon`` uniformly random actions.

        The last answer is kept, and longer horizons continue from it.
        """
        known, value, win = self._uniform or (0, np.zeros(len(self)), np.zeros(len(self)))
        if known > horizon:
            known, value, win = 0, np.zeros(len(self)), np.zeros(len(self))
        if known < horizon:
            after = np.where(self.successor >= 0, self.missing[self.successor], 0)
            success = (self.successor == search.SOLVES).astype(np.float64)
            # The same sums in the same order as the rules.
            reward = STEP_REWARD + BOX_REWARD * (self.missing[:, None] - after) + SOLVED_REWARD * success
            value, win = finite_horizon.uniform_values(
                self.successor[..., None], _ONE, reward[..., None], success[..., None], horizon - known, value, win
            )
        self._uniform = horizon, value, win
        return value, win


class _Cache:
    """Whole-level tables by board, the least recently used ones dropped beyond ``CACHE_STATES`` states in all."""

    def __init__(self) -> None:
        self.tables: OrderedDict[tuple[int, bytes], _Table] = OrderedDict()
        self.asked: dict[tuple[int, bytes], int] = {}
        self.states = 0
        self.lock = Lock()

    def table(self, level: Level, cells: bytes) -> _Table:
        """Everything reachable from an unsolved board; ``complete`` is False where that exceeds ``TABLE_LIMIT``."""
        key = (level.stride, cells)
        with self.lock:
            table = self.tables.get(key)
            if table is not None:
                self.tables.move_to_end(key)
                return table
        table = _Table(level, cells, search.UNBOUNDED, TABLE_LIMIT)
        with self.lock:
            if key not in self.tables:
                self.tables[key] = table
                self.states += len(table)
            while self.states > CACHE_STATES and len(self.tables) > 1:
                self.states -= len(self.tables.popitem(last=False)[1])
        return table

    def pays(self, level: Level, questions: int) -> bool:
        """The level has its table, or will be worth it after these further questions."""
        key = (level.stride, level.buffer)
        with self.lock:
            if key in self.tables:
                return True
            asked = self.asked.get(key, 0) + questions
            if asked > PATIENCE or _most_states(level) <= AT_ONCE:
                self.asked.pop(key, None)
                return True
            if len(self.asked) >= LEVELS_COUNTED:
                self.asked.clear()
            self.asked[key] = asked
        return False

    def clear(self) -> None:
        """Forget all tables."""
        with self.lock:
            self.tables.clear()
            self.asked.clear()
            self.states = 0


_cache = _Cache()


def _most_states(level: Level) -> int:
    """More states than the level can have: boxes on any cells that are no wall, and the player on any other one."""
    free = len(level.buffer) - level.buffer.count(WALL) - level.buffer.count(OUTSIDE)
    return math.comb(free, level.n_boxes) * max(0, free - level.n_boxes)


def _locate(level: Level, cells: bytes) -> tuple[_Table, int] | None:
    """A table that holds the unsolved board, and its index there; None if the level is too big."""
    table = _cache.table(level, level.buffer)
    if not table.complete:
        return None
    # From a bytearray: a read-only array would be another type to numba, and compiled again.
    index = int(table.find(np.frombuffer(bytearray(cells), np.uint8)[None])[0])
    if index >= 0:
        return table, index
    table = _cache.table(level, cells)  # not reachable from the level's start
    return (table, 0) if table.complete else None


def _quick(level: Level, cells: bytes, left: int) -> tuple[float, np.ndarray, int] | None:
    """What :func:`_beyond` gives, where that takes little time; else None."""
    if BOX not in cells:
        return 0.0, np.zeros(4), 0
    table = _Table(level, cells, left, AT_ONCE)
    steps = _solver_steps(level, cells) if table.complete else None
    if steps is None:
        return None
    value, q = table.optimal(np.zeros(1, np.int64), np.array([left]), left)
    return value[0], q[0], steps


def _horizon_table(level: Level, cells: bytes, horizon: int) -> _Table:
    table = _Table(level, cells, horizon, HORIZON_LIMIT)
    if not table.complete:
        raise RuntimeError(
            f"more than HORIZON_LIMIT = {HORIZON_LIMIT} states lie within {horizon} actions of this state: "
            "its exact values cannot be tabulated; ask with fewer actions left"
        )
    return table


@lru_cache(maxsize=4096)
def _solver_steps(level: Level, cells: bytes) -> int | None:
    """Fewest actions to success, -1 where there are none; None if the solver stopped at its limit."""
    player = max(cells.find(PLAYER), cells.find(PLAYER_ON_TARGET))
    solution = solve_board(level, cells, player, objective="moves")
    if solution.status == "limit":
        return None
    return -1 if solution.moves is None else solution.moves


def _beyond(level: Level, cells: bytes, left: int) -> tuple[float, np.ndarray, int]:
    """``value``, ``q [4]`` and steps of a board of a level that is too big for a table."""
    if BOX not in cells:
        return 0.0, np.zeros(4), 0
    steps = _solver_steps(level, cells)
    if steps is None:
        raise RuntimeError(
            f"the solver stopped at NODE_LIMIT = {NODE_LIMIT} states: it is not known whether this state is a dead end"
        )
    value, q = _horizon_table(level, cells, left).optimal(np.zeros(1, np.int64), np.array([left]), left)
    return value[0], q[0], steps


def evaluate_boards(level: Level, boards: np.ndarray, actions_left: int | Sequence[int] | np.ndarray) -> OracleValues:
    """Exact values of boards of one level.

    Args:
        boards: ``uint8 [N, len(level.buffer)]``, framed boards as in :attr:`levels.Level.buffer`.
        actions_left: one number for all, or one per board.

    Raises:
        ValueError: ``actions_left`` is negative, or boards and level differ in size.
        RuntimeError: the level is too big; the message names the limit.
    """
    left = budgets(actions_left, len(boards))
    if boards.shape[1:] != (len(level.buffer),):
        raise ValueError(f"boards must have the shape [N, {len(level.buffer)}] for this level, not {boards.shape}")
    return _evaluate(level, boards, left)


def _evaluate(level: Level, boards: np.ndarray, left: np.ndarray) -> OracleValues:
    n = len(left)
    value, q, steps = np.zeros(n), np.zeros((n, 4)), np.zeros(n, np.int64)
    waiting = np.arange(n)
    if n and not _cache.pays(level, n):
        for k in range(n):
            found = _quick(level, boards[k].tobytes(), int(left[k]))
            if found is None:
                break
            value[k], q[k], steps[k] = found
            waiting = waiting[1:]  # of which the table is asked
    root = level.buffer
    while len(waiting):
        table = _cache.table(level, root)
        if not table.complete:
            for i in waiting:
                value[i], q[i], steps[i] = _beyond(level, boards[i].tobytes(), int(left[i]))
            break
        index = table.find(boards[waiting])
        value[waiting], q[waiting] = table.optimal(index, left[waiting], int(left.max()))
        steps[waiting] = np.where(index < 0, 0, table.steps()[np.maximum(index, 0)])
        waiting = waiting[index == search.UNSEEN]  # not reachable from this root
        if len(waiting):
            root = boards[waiting[0]].tobytes()
    return OracleValues(value, q, steps < 0, steps)


def evaluate_many(states: Sequence[Position], actions_left: int | Sequence[int] | np.ndarray) -> OracleValues:
    """:func:`evaluate` of states of any levels, equal to it to the last bit. Raises as :func:`evaluate_boards`."""
    n = len(states)
    left = budgets(actions_left, n)
    levels, cells = [state.level for state in states], [state.cells for state in states]
    value, q, steps = np.zeros(n), np.zeros((n, 4)), np.zeros(n, np.int64)
    for at in by_level(levels):
        level = levels[at[0]]
        boards = np.frombuffer(b"".join([cells[i] for i in at.tolist()]), np.uint8)
        found = _evaluate(level, boards.reshape(len(at), len(level.buffer)), left[at])
        value[at], q[at], steps[at] = found.value, found.q, found.optimal_steps
    return OracleValues(value, q, steps < 0, steps)


def _check(actions_left: int) -> None:
    if actions_left < 0:
        raise ValueError(f"actions_left must not be negative: {actions_left}")


def evaluate(level: Level, cells: bytes, actions_left: int) -> OracleValue:
    """Exact values of a state, given as its framed board.

    Raises:
        ValueError: ``actions_left`` is negative.
        RuntimeError: the level is too big; the message names the limit.
    """
    _check(actions_left)
    if BOX not in cells:
        return OracleValue(0.0, (0.0,) * 4, (0, 1, 2, 3), False, 0)
    quick = None if _cache.pays(level, 1) else _quick(level, cells, actions_left)
    if quick is not None:
        _, q, steps = quick
    elif (place := _locate(level, cells)) is None:
        _, q, steps = _beyond(level, cells, actions_left)
    else:
        table, index = place
        q = table.optimal(np.array([index]), np.array([actions_left]), actions_left)[1][0]
        steps = int(table.steps()[index])
    values = tuple(q.tolist())
    return OracleValue(max(values), values, best_actions(values), steps < 0, steps)


def expect_random(level: Level, cells: bytes, actions_left: int) -> Expectation:
    """Exact expectation of ``actions_left`` uniformly random actions. Raises as :func:`evaluate`."""
    _check(actions_left)
    if BOX not in cells:
        return Expectation(0.0, 1.0)
    table, index = None, 0
    if not _cache.pays(level, 1):
        table = _Table(level, cells, actions_left, AT_ONCE)
    if table is None or not table.complete:
        table, index = _locate(level, cells) or (_horizon_table(level, cells, actions_left), 0)
    reward, success = table.uniform(actions_left)
    return Expectation(float(reward[index]), float(success[index]))
