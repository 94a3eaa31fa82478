"""Solve Sokoban levels: optimally in pushes or in primitive actions, within a bound of the optimum, or just somehow.

``pushes`` is searched on bit boards (:mod:`bitboard`) where a level's interior has at most 64 cells, and on arrays
elsewhere (:mod:`general`). ``moves`` is searched by A* over the player's steps (:func:`search.shortest`). Every cut of
these searches is safe, so ``unsolvable`` is a proof.

Simplifications: one thread; among plans of equally many pushes the one found first is returned, not the one with the
fewest moves. Memory is bounded by the number of stored states.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from ragen_envs.sokoban import search
from ragen_envs.sokoban.general import search as _general_search
from ragen_envs.sokoban.levels import BOX, BOX_ON_TARGET, OUTSIDE, PLAYER_ON_TARGET, TARGET, WALL, Level

NODE_LIMIT = 2_000_000
"""Default bound on stored states; a stored state costs 50 to 150 bytes."""
OBJECTIVES = ("pushes", "moves", "any")
STATUSES = ("solved", "unsolvable", "limit")
LARGEST_WEIGHT = 64
"""Larger weights search as this one does."""
ANY_WEIGHT = 3
"""Least weight of the bit-board search when any plan will do."""
ANY_NODES = 200_000
"""States that it may store before the other searches of the portfolio take over."""

_FRACTION = 16


@dataclass(frozen=True, slots=True)
class Solution:
    """What the solver found."""

    status: str
    """``solved``; ``unsolvable``: proved that there is no solution; ``limit``: a limit ended the search first."""
    actions: tuple[int, ...]
    """The plan, as indices of Up, Down, Left, Right. Empty if the level is solved already, and if none was found."""
    pushes: int | None
    """How many actions push a box. None if no plan was found."""
    moves: int | None
    """Number of actions of the plan, pushes included. None if no plan was found."""
    expanded: int
    """States that the search looked at."""


@dataclass(frozen=True, slots=True)
class _Request:
    """Checked arguments. The weight is ``factor / scale``, rounded down to a sixteenth, so its bound holds exactly."""

    objective: str
    scale: int
    factor: int
    max_cost: int
    node_limit: int
    time_limit: float | None

    @classmethod
    def check(
        cls, objective: str, weight: float, max_cost: int | None, node_limit: int, time_limit: float | None
    ) -> _Request:
        # Plain integers: numba would compile everything again for a float or a numpy number.
        max_cost = None if max_cost is None else operator.index(max_cost)
        node_limit = operator.index(node_limit)
        if objective not in OBJECTIVES:
            raise ValueError(f"objective must be one of {OBJECTIVES}: {objective!r}")
        if not weight >= 1 or math.isinf(weight):
            raise ValueError(f"weight must be a finite number of at least 1: {weight}")
        if max_cost is not None and max_cost < 0:
            raise ValueError(f"max_cost must not be negative: {max_cost}")
        if node_limit < 1:
            raise ValueError(f"node_limit must be at least 1: {node_limit}")
        if time_limit is not None and not time_limit >= 0:
            raise ValueError(f"time_limit must be a number of seconds, not negative: {time_limit}")
        sixteenths = int(min(weight, LARGEST_WEIGHT) * _FRACTION)
        whole = sixteenths % _FRACTION == 0
        scale, factor = (1, sixteenths // _FRACTION) if whole else (_FRACTION, sixteenths)
        limit = search.UNBOUNDED if max_cost is None else min(max_cost, search.UNBOUNDED)
        return cls(objective, scale, factor, limit, min(node_limit, search.UNBOUNDED), time_limit)

    @property
    def limits(self) -> tuple[int, int, int, int]:
        """``max_cost``, ``scale``, ``factor`` and ``node_limit``, as the compiled searches take them."""
        factor, node_limit = self.factor, self.node_limit
        if self.objective == "any":
            factor = max(factor, ANY_WEIGHT * self.scale)
        if self.has_portfolio:
            node_limit = min(node_limit, ANY_NODES)
        return self.max_cost, self.scale, factor, node_limit

    @property
    def has_portfolio(self) -> bool:
        """Whether a limit that bit boards meet is a reason to try other searches; a bound on the cost is none."""
        return self.objective == "any" and self.max_cost == search.UNBOUNDED


def solve(
    level: Level,
    *,
    objective: str = "pushes",
    weight: float = 1.0,
    max_cost: int | None = None,
    node_limit: int = NODE_LIMIT,
    time_limit: float | None = None,
) -> Solution:
    """A plan for ``level`` from its start.

    Args:
        level: any valid level (an invalid one cannot be built: :class:`Level` raises ValueError).
        objective: ``pushes``: as few pushes as possible, with shortest walks between them; ``moves``: as few primitive
            actions as possible; ``any``: whatever is found fastest.
        weight: 1 = optimal; above 1, the cost is at most ``weight`` times the optimum, found sooner as a rule.
        max_cost: give up with ``limit`` when every solution costs more than this, in pushes (``pushes`` and ``any``) or
            in actions (``moves``).
        node_limit: give up with ``limit`` when about this many states are stored.
        time_limit: give up with ``limit`` after about this many seconds of searching (compiling before does not count).
            Only then can the result depend on the machine.

    Raises:
        ValueError: names the argument that is wrong.
        TypeError: ``max_cost`` or ``node_limit`` is not an integer.
    """
    request = _Request.check(objective, weight, max_cost, node_limit, time_limit)
    return _solve(level, level.buffer, level.start, request)


def solve_board(
    level: Level,
    cells: bytes,
    player: int,
    *,
    objective: str = "pushes",
    weight: float = 1.0,
    max_cost: int | None = None,
    node_limit: int = NODE_LIMIT,
    time_limit: float | None = None,
) -> Solution:
    """:func:`solve` from a later state: its board as a framed buffer and the player's index in it."""
    return _solve(level, cells, player, _Request.check(objective, weight, max_cost, node_limit, time_limit))


def solve_many(
    levels: Sequence[Level],
    *,
    objective: str = "pushes",
    weight: float = 1.0,
    max_cost: int | None = None,
    node_limit: int = NODE_LIMIT,
    time_limit: float | None = None,
) -> list[Solution]:
    """``[solve(level, ...) for level in levels]``, in one compiled call for all levels that fit on bit boards.

    All limits are per level; with a ``time_limit`` the levels are solved one by one, and so they are for ``moves``.
    """
    from ragen_envs.sokoban import bitboard  # here, because it imports numba

    request = _Request.check(objective, weight, max_cost, node_limit, time_limit)
    if not levels or objective == "moves" or time_limit is not None:
        return [_solve(level, level.buffer, level.start, request) for level in levels]
    cells = np.frombuffer(bytearray().join([level.cells for level in levels]), np.uint8)
    heights = np.array([level.height for level in levels])
    widths = np.array([level.width for level in levels])
    results, actions, ends = bitboard.solve_boards(cells, heights, widths, *request.limits)
    plans, limits = actions.tobytes(), ends.tolist()
    solutions = []
    for i, (status, pushes, expanded) in enumerate(results.tolist()):
        if status == search.SOLVED:
            plan = tuple(plans[limits[i] : limits[i + 1]])
            solutions.append(Solution("solved", plan, pushes, len(plan), expanded))
        elif _is_left_to_general(status, request):
            solutions.append(_solve_general(levels[i], levels[i].buffer, levels[i].start, request))
        else:
            solutions.append(Solution(STATUSES[status], (), None, None, expanded))
    return solutions


def _solve(level: Level, cells: bytes, player: int, request: _Request) -> Solution:
    if request.objective == "moves":
        return _solve_moves(level, cells, player, request)
    from ragen_envs.sokoban import bitboard  # here, because it imports numba

    spent = 0.0
    height, width = level.height + 2, level.stride
    if request.time_limit is None:
        codes = np.frombuffer(bytearray(cells), np.uint8)  # read-only arrays would be a type of their own to numba
        sides = np.array([height]), np.array([width])
        results, actions, ends = bitboard.solve_boards(codes, *sides, *request.limits)
        actions = actions[: ends[1]]
        status, pushes, expanded = results[0].tolist()
    else:
        status, pushes, expanded, actions, spent = bitboard.solve_within(
            cells, height, width, *request.limits, request.time_limit
        )
    if _is_left_to_general(status, request):
        return _solve_general(level, cells, player, request, spent)
    if status != search.SOLVED:
        return Solution(STATUSES[status], (), None, None, expanded)
    plan = tuple(actions.tolist())
    return Solution("solved", plan, pushes, len(plan), expanded)


def _is_left_to_general(status: int, request: _Request) -> bool:
    return status == search.TOO_BIG or (status == search.LIMIT and request.has_portfolio)


def _solve_general(level: Level, cells: bytes, player: int, request: _Request, spent: float = 0.0) -> Solution:
    """Search on arrays, for boards of any size; ``spent`` seconds of the time limit are used up."""
    walls, targets, row = state_arrays(cells, player)
    deltas = np.array(level.deltas, np.int64)
    status, pushes, expanded = _general_search(
        walls,
        targets,
        deltas,
        row,
        objective=request.objective,
        weight=request.factor / request.scale,
        max_cost=None if request.max_cost == search.UNBOUNDED else request.max_cost,
        node_limit=request.node_limit,
        time_limit=None if request.time_limit is None else max(0.0, request.time_limit - spent),
    )
    if status != search.SOLVED:
        return Solution(STATUSES[status], (), None, None, expanded)
    plan = search.walk_between(walls, deltas, row, np.array(pushes, np.int64).reshape(-1, 2))
    return Solution("solved", tuple(plan.tolist()), len(pushes), len(plan), expanded)


def _solve_moves(level: Level, cells: bytes, player: int, request: _Request) -> Solution:
    walls, targets, row = state_arrays(cells, player)
    deltas = np.array(level.deltas, np.int64)
    status, goal_distance, arrays = search.shortest_begin(walls, targets, deltas, row, request.max_cost)
    actions = np.empty(0, np.int64)
    budget = search.UNBOUNDED if request.time_limit is None else 0  # at first: compiling does not count as searching
    began = monotonic()
    while status == search.RUNNING:
        status, actions, arrays = search.shortest(
            walls, targets, deltas, goal_distance, arrays, *request.limits, budget
        )
        if budget == 0:
            budget, began = search.SLICE, monotonic()
        if request.time_limit is not None and status == search.RUNNING and monotonic() - began >= request.time_limit:
            status = search.LIMIT
    expanded = int(arrays[-1][search.EXPANDED])
    if status != search.SOLVED:
        return Solution(STATUSES[status], (), None, None, expanded)
    plan = tuple(actions.tolist())
    boxes, pushes = set(row[1:].tolist()), 0
    for action in plan:
        player += level.deltas[action]
        if player in boxes:
            boxes.remove(player)
            boxes.add(player + level.deltas[action])
            pushes += 1
    return Solution("solved", plan, pushes, len(plan), expanded)


def state_arrays(cells: bytes, player: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A framed board as the searches read it: wall flags, target flags (``uint8``) and the state row (``int32``)."""
    codes = np.frombuffer(cells, np.uint8)
    walls = ((codes == WALL) | (codes == OUTSIDE)).astype(np.uint8)
    targets = ((codes == TARGET) | (codes == BOX_ON_TARGET) | (codes == PLAYER_ON_TARGET)).astype(np.uint8)
    boxes = np.flatnonzero((codes == BOX) | (codes == BOX_ON_TARGET))
    row = np.empty(len(boxes) + 1, np.int32)
    row[0], row[1:] = player, boxes
    return walls, targets, row
