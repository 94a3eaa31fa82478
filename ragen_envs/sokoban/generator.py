"""New Sokoban rooms, each with its exact optimum.

A walker carves a connected room of random size and shape inside the border, and targets are drawn on its floor. The
start is then found in one of two ways:

* *Backwards*, if the number of actions is bounded above and pushes are not bounded: breadth-first from the solved board
  by pulling boxes, from all player cells at once, which gives every state the exact number of actions that its shortest
  solution needs. The start is drawn among the states in the asked range: first as few boxes on targets as the room
  allows, then an optimum uniformly among those that occur, then a state uniformly among those with it. No level has to
  be tested, and rare optima do not need luck.
* *By placement*, otherwise, and where that search meets its limit, because it explodes with the number of boxes: boxes
  and player are put at random and an exact forward search tests the result, see :mod:`rooms`.

A room without a fitting start is dropped and a new one carved; rooms, nodes per room and all nodes together are
bounded.

Simplifications: a placement whose fewest pushes are not proved within ``PUSH_NODES`` nodes is dropped, so that the very
hardest ones are missing. Fewest actions cost many times more than fewest pushes where boxes are many: with more than
``STEP_BOXES`` boxes they are left unknown if no bound on them was asked. Useless floor is not removed.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ragen_envs.sokoban import rooms, search
from ragen_envs.sokoban.levels import BOX, BOX_ON_TARGET, EMPTY, MAX_SIDE, PLAYER, PLAYER_ON_TARGET, TARGET, WALL, Level

STATE_LIMIT = 300_000
"""States of one backward search."""
PUSH_NODES = 500
"""Nodes of one forward search for fewest pushes of a placement; 99 % of the solvable ones with 4 boxes need fewer."""
STEP_BOXES = 2
"""Most boxes for which fewest actions are found although nobody asked for them."""
PLACEMENTS = 4
"""Random placements per room."""
NODE_LIMIT = 200_000
"""Nodes of one forward search whose result is needed."""
WORK_LIMIT = 4_000_000
"""States and nodes of one request, all rooms together: some seconds."""
FLOODED = 200
"""Cells of a board whose nodes count once; on a board that is ``k`` times as large a node counts ``k`` times."""
_OPEN = bytes([WALL]) + bytes([EMPTY]) * 255
LARGEST_TABLE = 1 << 26
"""Most distances between cells and targets that are held in memory."""


@lru_cache(maxsize=64)
def check_request(
    height: int,
    width: int,
    boxes: int,
    min_steps: int = 1,
    max_steps: int | None = None,
    min_pushes: int = 1,
    max_pushes: int | None = None,
) -> None:
    """Refuse what no room can meet.

    Raises:
        ValueError: sides, number of boxes or bounds on the optima that cannot be met by any room.
    """
    for what, side in (("height", height), ("width", width)):
        if not 3 <= side <= MAX_SIDE:
            raise ValueError(f"{what} must be 3 to {MAX_SIDE}: {side}")
    if max(height, width) < 5:
        raise ValueError(
            f"a {height} x {width} board is too small: a push needs three cells in a row inside the border"
        )
    if boxes < 1:
        raise ValueError(f"boxes must be at least 1: {boxes}")
    interior = (height - 2) * (width - 2)
    if boxes + 2 > interior:
        raise ValueError(f"boxes must be at most {interior - 2} on a {height} x {width} board: {boxes}")
    if boxes * height * width > LARGEST_TABLE:
        raise ValueError(
            f"boxes must be at most {LARGEST_TABLE // (height * width)} on a {height} x {width} board, for more memory "
            f"would be needed than is reasonable: {boxes}"
        )
    for what, low, high in (("steps", min_steps, max_steps), ("pushes", min_pushes, max_pushes)):
        if low < 1:
            raise ValueError(f"min_{what} must be at least 1: {low}")
        if high is not None and high < low:
            raise ValueError(f"max_{what} must be at least min_{what}: {high} < {low}")
    if max_steps is not None and min_pushes > max_steps:
        raise ValueError(f"min_pushes must be at most max_steps, for a push is an action: {min_pushes} > {max_steps}")
    # A shortest plan never comes back to a placement of the boxes with the player in the same cell.
    placements = math.comb(interior, boxes)
    for what, low, most in (
        ("min_steps", min_steps, placements * (interior - boxes)),
        ("min_pushes", min_pushes, placements * min(4 * boxes, interior - boxes)),
    ):
        if low > most:
            raise ValueError(f"no {height} x {width} board with {boxes} box(es) needs more than {most}: {what}={low}")


def generate(
    rng: np.random.Generator,
    height: int,
    width: int,
    boxes: int,
    *,
    min_steps: int = 1,
    max_steps: int | None = None,
    min_pushes: int = 1,
    max_pushes: int | None = None,
    max_tries: int = 1000,
    state_limit: int = STATE_LIMIT,
) -> Level:
    """A new level with a border of walls, whose optima are within the bounds.

    Args:
        rng: the only source of randomness; the same state gives the same level in every process.
        height, width: of the whole board, border included.
        boxes: number of boxes and of targets.
        min_steps, max_steps: bounds on the fewest primitive actions that solve it; None = no upper bound.
        min_pushes, max_pushes: bounds on the fewest pushes that solve it, with whatever walking.
        max_tries: rooms to try.
        state_limit: most states to look at in a backward search.

    Returns:
        A level with ``optimal_pushes`` set, and ``optimal_steps`` too if it has at most ``STEP_BOXES`` boxes or steps
        are bounded; never solved at the start, all floor connected.

    Raises:
        ValueError: the request cannot be met, or was not met in ``max_tries`` rooms or ``WORK_LIMIT`` nodes.
    """
    check_request(height, width, boxes, min_steps, max_steps, min_pushes, max_pushes)
    tries, level = 0, None
    if max_steps is not None and min_pushes == 1 and max_pushes is None:
        tries, level = _backwards(rng, height, width, boxes, min_steps, max_steps, max_tries, state_limit)
    if level is None and tries < max_tries:
        tries, level = _by_placement(rng, height, width, boxes, min_steps, max_steps, min_pushes, max_pushes, max_tries)
    if level is not None:
        return level
    wanted = [
        f"{low} to {'any number of' if high is None else high} {what}"
        for what, low, high in (("actions", min_steps, max_steps), ("pushes", min_pushes, max_pushes))
        if (low, high) != (1, None)
    ]
    raise ValueError(
        f"no {height} x {width} room with {boxes} box(es) that needs {' and '.join(wanted) or 'a push'} "
        f"was found in {tries} tries: ask for less"
    )


def _backwards(
    rng: np.random.Generator,
    height: int,
    width: int,
    boxes: int,
    min_steps: int,
    max_steps: int,
    max_tries: int,
    state_limit: int,
) -> tuple[int, Level | None]:
    """The number of rooms tried, and a level if one of them had a fitting state.

    Gives up before ``max_tries`` where the states are too many to come to a fitting one.
    """
    # The border is wall, so no frame is needed: the searches work on the flat board itself.
    deltas = np.array((-width, width, -1, 1), np.int64)
    work = 0
    for tries in range(1, max_tries + 1):
        floor, targets = rooms.carve(np.array([rng.integers(1, 1 << 63)], np.uint64), height, width, boxes)
        if len(targets) < boxes:
            continue
        pool, depth = search.pull_back(1 - floor, targets.astype(np.int32), deltas, max_steps, state_limit)
        work += len(pool)
        fitting = np.flatnonzero(depth >= min_steps)
        if len(fitting) == 0:
            if len(pool) >= state_limit or work > WORK_LIMIT:
                return tries, None
            continue
        is_target = np.zeros(height * width, np.int64)
        is_target[targets] = 1
        done = is_target[pool[fitting, 1:]].sum(axis=1)
        fitting = fitting[done == done.min()]
        optima = np.unique(depth[fitting])
        steps = int(optima[rng.integers(len(optima))])
        fitting = fitting[depth[fitting] == steps]
        row = pool[fitting[rng.integers(len(fitting))]].astype(np.int64)
        distance = rooms.push_distances(floor, targets, deltas)
        pushes, _ = rooms.optimum(floor, targets, deltas, distance, row, False, NODE_LIMIT)
        return tries, _level(height, width, floor, targets, row, steps, pushes)
    return max_tries, None


def _by_placement(
    rng: np.random.Generator,
    height: int,
    width: int,
    boxes: int,
    min_steps: int,
    max_steps: int | None,
    min_pushes: int,
    max_pushes: int | None,
    max_tries: int,
) -> tuple[int, Level | None]:
    """The number of rooms tried, and a level if one of their placements fitted."""
    with_steps = boxes <= STEP_BOXES or min_steps > 1 or max_steps is not None
    most_steps = search.UNBOUNDED if max_steps is None else max_steps
    most_pushes = search.UNBOUNDED if max_pushes is None else max_pushes
    random = np.array([rng.integers(1, 1 << 63)], np.uint64)
    size = max(1, height * width // FLOODED)
    tries, floor, targets, row, steps, pushes = rooms.place(
        random,
        height,
        width,
        boxes,
        PLACEMENTS,
        (min_steps, most_steps),
        (min_pushes, most_pushes),
        with_steps,
        (max_tries, PUSH_NODES, NODE_LIMIT // size, WORK_LIMIT // size),
    )
    if pushes == 0:
        return tries, None
    return tries, _level(height, width, floor, targets, row, steps, pushes)


def _level(
    height: int, width: int, floor: np.ndarray, targets: np.ndarray, row: np.ndarray, steps: int, pushes: int
) -> Level:
    cells = bytearray(floor.tobytes().translate(_OPEN))
    for target in targets.tolist():
        cells[target] = TARGET
    player, *boxes = row.tolist()
    cells[player] = PLAYER_ON_TARGET if cells[player] == TARGET else PLAYER
    for box in boxes:
        cells[box] = BOX_ON_TARGET if cells[box] == TARGET else BOX
    # int: an interpreted kernel gives numpy numbers.
    return Level.trusted(height, width, bytes(cells), int(steps) or None, int(pushes) if pushes > 0 else None)
