"""Exact values of Sokoban states: retrograde search for the distance to success, backward induction for the returns.

All states that can be reached from a level's start are tabulated once, where there are at most ``TABLE_LIMIT`` of them;
the table answers every later question about the level. Where there are more, the values under ``actions_left`` come
from the states within ``actions_left`` actions of the asked one (exact as well), and distance and dead end from the
solver.

Simplifications: a cache of tables is shared by the process and bounded by the number of states in it; results never
depend on it. A game has no stop action: the value is that of acting until success or until no action is left.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from threading import Lock

import numpy as np

from ragen_envs import finite_horizon
from ragen_envs.game import Expectation, OracleValue, best_actions
from ragen_envs.sokoban import search
from ragen_envs.sokoban.levels import BOX, Level
from ragen_envs.sokoban.solver import NODE_LIMIT, solve_board, state_arrays

STEP_REWARD, BOX_REWARD, SOLVED_REWARD = -0.1, 1.0, 10.0
"""Per action; per box that comes onto (or, negative, leaves) a target; for the last box."""

TABLE_LIMIT = 300_000
"""Most states of a table that covers a whole level."""
HORIZON_LIMIT = 3_000_000
"""Most states within ``actions_left`` actions of a state on a level that is too big for a table."""
CACHE_STATES = 400_000
"""Most states in all cached tables together: about 130 bytes each, and 40 more per horizon that was asked for."""

_ONE = np.ones(1)


class _Table:
    """States reachable from one board, with their transitions and, once asked for, their values per horizon."""

    def __init__(self, level: Level, cells: bytes, player: int, depth: int, limit: int) -> None:
        walls, targets, row = state_arrays(cells, player)
        found = search.explore(walls, targets, np.array(level.deltas, np.int64), row, depth, limit)
        self.pool, self.slots, self.successor, change, self.solved, self.complete = found
        n = len(self.successor)
        if self.complete:
            # The same sums in the same order as the rules, so that values agree to the last bit.
            reward = STEP_REWARD + BOX_REWARD * change + SOLVED_REWARD * self.solved
            self.model = (
                self.successor.reshape(n, 4, 1),
                _ONE,
                reward.reshape(n, 4, 1),
                self.solved.astype(np.float64).reshape(n, 4, 1),
            )
        self._steps: np.ndarray | None = None
        self._optimal: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._uniform: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def find(self, row: np.ndarray) -> int:
        """Index of a state row, -1 if it is not in the table."""
        return int(search.lookup(self.pool, self.slots, row))

    def steps(self) -> np.ndarray:
        """Fewest actions to success of every state, -1 for dead ends. Needs a table without depth limit."""
        if self._steps is None:
            self._steps = search.steps_to_go(self.successor, self.solved)
        return self._steps

    def optimal(self, horizon: int) -> tuple[np.ndarray, np.ndarray]:
        """``(value [S], q [S, 4])`` of optimal play with ``horizon`` actions left."""
        found = self._optimal.get(horizon)
        if found is None:
            value, q, _ = finite_horizon.optimal_values(*self.model, horizon)
            found = self._optimal[horizon] = (value, q)
        return found

    def uniform(self, horizon: int) -> tuple[np.ndarray, np.ndarray]:
        """``(expected return [S], success probability [S])`` of ``horizon`` uniformly random actions."""
        found = self._uniform.get(horizon)
        if found is None:
            found = self._uniform[horizon] = finite_horizon.uniform_values(*self.model, horizon)
        return found


class _Cache:
    """Whole-level tables by board, the least recently used ones dropped beyond ``CACHE_STATES`` states in all."""

    def __init__(self) -> None:
        self.tables: OrderedDict[tuple[int, bytes], _Table] = OrderedDict()
        self.states = 0
        self.lock = Lock()

    def table(self, level: Level, cells: bytes, player: int) -> _Table:
        """Everything reachable from a board; ``complete`` is False where that exceeds ``TABLE_LIMIT``."""
        key = (level.stride, cells)
        with self.lock:
            table = self.tables.get(key)
            if table is not None:
                self.tables.move_to_end(key)
                return table
        table = _Table(level, cells, player, search.UNBOUNDED, TABLE_LIMIT)
        if not table.complete:
            table.pool = table.slots = table.successor = table.solved = table.pool[:1].copy()  # keep the verdict only
        with self.lock:
            if key not in self.tables:
                self.tables[key] = table
                self.states += len(table.successor)
            while self.states > CACHE_STATES and len(self.tables) > 1:
                self.states -= len(self.tables.popitem(last=False)[1].successor)
        return table

    def clear(self) -> None:
        """Forget all tables."""
        with self.lock:
            self.tables.clear()
            self.states = 0


_cache = _Cache()


def _locate(level: Level, cells: bytes, player: int) -> tuple[_Table, int] | None:
    """A table that holds the state, and its index there; None if the level is too big."""
    table = _cache.table(level, level.buffer, level.start)
    index = table.find(state_arrays(cells, player)[2]) if table.complete else 0
    if index < 0:  # not reachable from the level's start
        table, index = _cache.table(level, cells, player), 0
    return (table, index) if table.complete else None


def _horizon_table(level: Level, cells: bytes, player: int, horizon: int) -> _Table:
    table = _Table(level, cells, player, horizon, HORIZON_LIMIT)
    if not table.complete:
        raise RuntimeError(
            f"more than HORIZON_LIMIT = {HORIZON_LIMIT} states lie within {horizon} actions of this state: "
            "its exact values cannot be tabulated; ask with fewer actions left"
        )
    return table


@lru_cache(maxsize=4096)
def _solver_steps(level: Level, cells: bytes, player: int) -> int:
    solution = solve_board(level, cells, player, objective="moves")
    if solution.status == "limit":
        raise RuntimeError(
            f"the solver stopped at NODE_LIMIT = {NODE_LIMIT} states: it is not known whether this state is a dead end"
        )
    return -1 if solution.moves is None else solution.moves


def evaluate(level: Level, cells: bytes, player: int, actions_left: int) -> OracleValue:
    """Exact values of a state, given as the framed board and the player's index in it.

    Raises:
        ValueError: ``actions_left`` is negative.
        RuntimeError: the level is too big; the message names the limit.
    """
    if actions_left < 0:
        raise ValueError(f"actions_left must not be negative: {actions_left}")
    if BOX not in cells:
        return OracleValue(0.0, (0.0,) * 4, (0, 1, 2, 3), False, 0)
    place = _locate(level, cells, player)
    if place is not None:
        table, index = place
        steps = int(table.steps()[index])
    else:
        table, index = _horizon_table(level, cells, player, actions_left), 0
        steps = _solver_steps(level, cells, player)
    value, all_q = table.optimal(actions_left)
    q = tuple(all_q[index].tolist())
    return OracleValue(float(value[index]), q, best_actions(q), steps < 0, steps)


def expect_random(level: Level, cells: bytes, player: int, actions_left: int) -> Expectation:
    """Exact expectation of ``actions_left`` uniformly random actions. Raises as :func:`evaluate`."""
    if actions_left < 0:
        raise ValueError(f"actions_left must not be negative: {actions_left}")
    if BOX not in cells:
        return Expectation(0.0, 1.0)
    place = _locate(level, cells, player) or (_horizon_table(level, cells, player, actions_left), 0)
    reward, success = place[0].uniform(actions_left)
    return Expectation(float(reward[place[1]]), float(success[place[1]]))
