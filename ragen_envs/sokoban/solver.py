"""The shortest solution of a Sokoban level, counted in primitive actions.

A* over states (player cell and box cells) with a consistent lower bound, see :func:`search.shortest`. Boxes that can
never reach a target, and blocks of four that can never come apart, are cut off; both cuts are safe, so ``unsolvable``
is a proof.

Simplifications: only the number of actions is minimised, not the number of pushes; memory is bounded by the number of
stored states, time is not bounded otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ragen_envs.sokoban import search
from ragen_envs.sokoban.levels import BOX, BOX_ON_TARGET, OUTSIDE, PLAYER_ON_TARGET, TARGET, WALL, Level

NODE_LIMIT = 2_000_000
"""Default bound on stored states; a stored state costs about 100 bytes with four boxes."""
STATUSES = ("solved", "unsolvable", "limit")


@dataclass(frozen=True, slots=True)
class Solution:
    """What the solver found."""

    status: str
    """``solved``; ``unsolvable``: proved that there is no solution; ``limit``: a limit ended the search first."""
    actions: tuple[int, ...]
    """The plan, as indices of Up, Down, Left, Right. Empty if the level is solved already, and if none was found."""
    moves: int | None
    """Number of actions of the plan, pushes included; the fewest possible. None if no plan was found."""
    pushes: int | None
    """How many of them push a box. None if no plan was found."""
    expanded: int
    """States that the search looked at."""


def solve(level: Level, *, max_moves: int | None = None, node_limit: int = NODE_LIMIT) -> Solution:
    """The shortest solution of ``level`` from its start.

    Args:
        level: any valid level (an invalid one cannot be built: :class:`Level` raises ValueError).
        max_moves: give up with ``limit`` when every solution is longer than this many actions.
        node_limit: give up with ``limit`` when this many states are stored.
    """
    return solve_board(level, level.buffer, level.start, max_moves=max_moves, node_limit=node_limit)


def solve_board(
    level: Level, cells: bytes, player: int, *, max_moves: int | None = None, node_limit: int = NODE_LIMIT
) -> Solution:
    """:func:`solve` from a later state: its board as a framed buffer and the player's index in it."""
    if max_moves is not None and max_moves < 0:
        raise ValueError(f"max_moves must not be negative: {max_moves}")
    if node_limit < 1:
        raise ValueError(f"node_limit must be at least 1: {node_limit}")
    walls, targets, row = state_arrays(cells, player)
    status, plan, expanded = search.shortest(
        walls,
        targets,
        np.array(level.deltas, np.int64),
        row,
        search.UNBOUNDED if max_moves is None else max_moves,
        node_limit,
    )
    if status != search.SOLVED:
        return Solution(STATUSES[status], (), None, None, int(expanded))
    actions = tuple(plan.tolist())
    boxes, pushes = set(row[1:].tolist()), 0
    for action in actions:
        player += level.deltas[action]
        if player in boxes:
            boxes.remove(player)
            boxes.add(player + level.deltas[action])
            pushes += 1
    return Solution("solved", actions, len(actions), pushes, int(expanded))


def state_arrays(cells: bytes, player: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A framed board as the searches read it: wall flags, target flags (``uint8``) and the state row (``int32``)."""
    codes = np.frombuffer(cells, np.uint8)
    walls = ((codes == WALL) | (codes == OUTSIDE)).astype(np.uint8)
    targets = ((codes == TARGET) | (codes == BOX_ON_TARGET) | (codes == PLAYER_ON_TARGET)).astype(np.uint8)
    boxes = np.flatnonzero((codes == BOX) | (codes == BOX_ON_TARGET))
    row = np.empty(len(boxes) + 1, np.int32)
    row[0], row[1:] = player, boxes
    return walls, targets, row
