"""New Sokoban rooms, each with its exact optimum.

1. A walker carves a connected room of random size and shape inside the border.
2. Targets are drawn on its floor, and the *solved* board is searched backwards by pulling boxes. Breadth-first from all
   player cells at once, this gives every state the exact number of actions that its shortest solution needs.
3. The start is drawn among the states whose optimum is in the asked range: first as few boxes on targets as the room
   allows, then an optimum uniformly among those that occur, then a state uniformly among those with it.

So no level has to be tested for solvability, and hard requests do not need luck. A room without a fitting state is
dropped and a new one carved.

Simplifications: with many boxes and no upper bound on the optimum, the backward search stops at ``state_limit`` states
and the start is drawn among these; the optimum stays exact. Floor that is of no use is not removed.
"""

from __future__ import annotations

import numpy as np

from ragen_envs.jit import njit
from ragen_envs.sokoban import search
from ragen_envs.sokoban.levels import BOX, BOX_ON_TARGET, EMPTY, MAX_SIDE, PLAYER, PLAYER_ON_TARGET, TARGET, WALL, Level

STATE_LIMIT = 300_000


@njit
def _draw(random, n):  # type: ignore[no-untyped-def]
    """A number below ``n`` (at most 2**31) from the one-word xorshift state ``random``, which advances.

    Only shifts and exclusive-or: they cannot overflow, so compiled and interpreted results are the same.
    """
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return (np.int64(x >> np.uint64(33)) * n) >> 31


@njit
def _carve(seed, height, width, boxes):  # type: ignore[no-untyped-def]
    """A room: ``floor [height, width]`` flags with a border of zeros, and the flat cells of its targets, ascending.

    The walker keeps its direction with probability 2/3 and opens a random cell beside its path now and then, until a
    random share of the interior is open. All open cells are connected because each one touches an earlier one.
    """
    random = np.empty(1, np.uint64)
    random[0] = seed
    inner_height, inner_width = height - 2, width - 2
    interior = inner_height * inner_width
    fewest = min(interior, max(2 * boxes + 2, interior // 2))
    wanted = fewest + _draw(random, max(1, (9 * interior + 9) // 10 - fewest + 1))
    floor = np.zeros((height, width), np.uint8)
    row = 1 + _draw(random, inner_height)
    column = 1 + _draw(random, inner_width)
    floor[row, column] = 1
    n_open = 1
    turn = _draw(random, 4)
    for _ in range(200 * interior):
        if n_open >= wanted:
            break
        if _draw(random, 3) == 0:
            turn = _draw(random, 4)
        beside = _draw(random, 4) == 0  # open a neighbour without going there
        way = _draw(random, 4) if beside else turn
        r, c = row, column
        if way == 0:
            r -= 1
        elif way == 1:
            r += 1
        elif way == 2:
            c -= 1
        else:
            c += 1
        if not (1 <= r <= inner_height and 1 <= c <= inner_width):
            turn = _draw(random, 4)
            continue
        if not floor[r, c]:
            floor[r, c] = 1
            n_open += 1
        if not beside:
            row, column = r, c
    cells = np.empty(n_open, np.int64)
    k = 0
    for i in range(height * width):
        if floor[i // width, i % width]:
            cells[k] = i
            k += 1
    n_targets = min(boxes, n_open)
    for k in range(n_targets):
        other = k + _draw(random, n_open - k)
        cells[k], cells[other] = cells[other], cells[k]
    return floor, np.sort(cells[:n_targets])


def check_request(height: int, width: int, boxes: int, min_steps: int, max_steps: int | None) -> None:
    """Refuse what no room can meet.

    Raises:
        ValueError: sides, number of boxes or bounds on the optimum that cannot be met by any room.
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
    if min_steps < 1:
        raise ValueError(f"min_steps must be at least 1: {min_steps}")
    if max_steps is not None and max_steps < min_steps:
        raise ValueError(f"max_steps must be at least min_steps: {max_steps} < {min_steps}")


def generate(
    rng: np.random.Generator,
    height: int,
    width: int,
    boxes: int,
    *,
    min_steps: int = 1,
    max_steps: int | None = None,
    max_tries: int = 1000,
    state_limit: int = STATE_LIMIT,
) -> Level:
    """A new level with a border of walls, whose shortest solution has ``min_steps`` to ``max_steps`` actions.

    Args:
        rng: the only source of randomness; the same state gives the same level in every process.
        height, width: of the whole board, border included.
        boxes: number of boxes and of targets.
        min_steps, max_steps: bounds on the fewest primitive actions that solve it; None = no upper bound.
        max_tries: rooms to try.
        state_limit: most states to look at per room.

    Returns:
        A level with ``optimal_steps`` set; never solved at the start, all floor connected.

    Raises:
        ValueError: the request cannot be met, or was not met in ``max_tries`` rooms.
    """
    check_request(height, width, boxes, min_steps, max_steps)
    deepest = search.UNBOUNDED if max_steps is None else max_steps
    for _ in range(max_tries):
        floor, targets = _carve(np.uint64(rng.integers(1, 1 << 63)), height, width, boxes)
        if len(targets) < boxes:
            continue
        # The border is wall, so no frame is needed: the searches work on the flat board itself.
        flat = floor.reshape(-1)
        deltas = np.array((-width, width, -1, 1), np.int64)
        pool, depth = search.pull_back(1 - flat, targets.astype(np.int32), deltas, deepest, state_limit)
        fitting = np.flatnonzero(depth >= min_steps)
        if len(fitting) == 0:
            continue
        is_target = np.zeros(height * width, np.int64)
        is_target[targets] = 1
        done = is_target[pool[fitting, 1:]].sum(axis=1)
        fitting = fitting[done == done.min()]
        optima = np.unique(depth[fitting])
        optimum = int(optima[rng.integers(len(optima))])
        fitting = fitting[depth[fitting] == optimum]
        state = pool[fitting[rng.integers(len(fitting))]]

        cells = np.where(flat == 1, EMPTY, WALL).astype(np.uint8)
        cells[targets] = TARGET
        cells[state[0]] = PLAYER_ON_TARGET if is_target[state[0]] else PLAYER
        for box in state[1:]:
            cells[box] = BOX_ON_TARGET if is_target[box] else BOX
        return Level(height, width, cells.tobytes(), optimum)
    upper = "no upper bound" if max_steps is None else f"at most {max_steps}"
    raise ValueError(
        f"no {height} x {width} room with {boxes} box(es) whose optimum is at least {min_steps} and {upper} "
        f"was found in {max_tries} tries: ask for less"
    )
