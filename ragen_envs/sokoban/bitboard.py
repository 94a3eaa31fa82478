"""Push-optimal Sokoban on boards whose interior fits into one 64-bit word.

The interior is the smallest rectangle around all cells that the player could reach if there were no boxes. Where it
has at most 64 cells (8 x 8, 4 x 16, ...), a set of cells is one ``uint64``: bit ``row * stride + column`` with
``stride`` the width of the rectangle; shifts along a row are masked at its ends so that they do not wrap.

A state is the word of the boxes and the word of the cells that the player can reach without a push. A* over pushes uses
the cheapest one-to-one assignment of boxes to targets. The distance of a box to a target is that of a lone box on the
same floor, and depends on the side of the box on which the player is. Walks do not change the side of any box, and one
push brings one box at most 1 nearer to any target, so the bound is consistent: at weight 1 no state is expanded twice
and the first solution is optimal. Cut off are pushes onto cells from which no target can be reached, states in which
boxes have frozen off their targets, and states without an assignment; all three are proofs.

Simplifications: one thread; beyond ``MATCHED_BOXES`` boxes the bound is the sum of each box's distance to its nearest
target, which is consistent too, but weaker. Search order never depends on how a search is cut into slices.

All kernels live in this file because numba's cache does not notice changes in other files. ``uint64`` values meet only
``& | ^ ~ << >>`` and a subtraction of 1 from positive values, so that nothing overflows in interpreted code.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from ragen_envs.jit import njit
from ragen_envs.sokoban.levels import BOX, BOX_ON_TARGET, OUTSIDE, PLAYER, PLAYER_ON_TARGET, TARGET, WALL
from ragen_envs.sokoban.search import LIMIT, RUNNING, SLICE, SOLVED, TOO_BIG, UNBOUNDED, UNSOLVABLE

FULL = 5
"""One more status: the search needs bigger arrays before it can go on."""
MATCHED_BOXES = 8
"""Most boxes whose assignment to targets is exact: its cost per state grows as ``boxes * 2**boxes``."""
FAR = 1 << 20
"""Distance to a target that cannot be reached."""
_ZERO, _ONE = np.uint64(0), np.uint64(1)
# Zobrist keys: exclusive-or of one key per box and one for the player's region (its lowest cell).
_KEYS = np.random.Generator(np.random.PCG64(20250101)).integers(0, 1 << 31, (2, 64), dtype=np.int64)


# --- bits -------------------------------------------------------------------------------------------------------------


@intrinsic
def _count_ones(typing_context: Any, x: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), build


def lowest(x: Any) -> int:
    """Index of the lowest bit of ``x``, which must not be 0."""
    return (int(x) & -int(x)).bit_length() - 1


def ones(x: Any) -> int:
    """Number of bits of ``x``."""
    return int(x).bit_count()


@overload(lowest)
def _lowest(x):  # type: ignore[no-untyped-def]
    return lambda x: _count_ones((x - _ONE) & ~x)  # type: ignore[call-arg]


@overload(ones)
def _ones(x):  # type: ignore[no-untyped-def]
    return lambda x: _count_ones(x)  # type: ignore[call-arg]


@njit
def _bit(i):  # type: ignore[no-untyped-def]
    return _ONE << np.uint64(i)


@njit
def _shifted(x, d, stride, not_first, not_last):  # type: ignore[no-untyped-def]
    """The cells beside those of ``x`` in direction ``d`` (up, down, left, right), as far as they are in the box."""
    if d == 0:
        return x >> stride
    if d == 1:
        return x << stride
    if d == 2:
        return (x & not_first) >> _ONE
    return (x & not_last) << _ONE


@njit
def _spread(x, stride, not_first, not_last):  # type: ignore[no-untyped-def]
    """``x`` and all cells beside it."""
    return x | (x >> stride) | (x << stride) | ((x & not_first) >> _ONE) | ((x & not_last) << _ONE)


@njit
def _flood(reach, free, stride, not_first, not_last):  # type: ignore[no-untyped-def]
    """All cells of ``free`` connected with ``reach``."""
    while True:
        wider = _spread(reach, stride, not_first, not_last) & free
        if wider == reach:
            return reach
        reach = wider


@njit
def _reach_after(reach, here, there, free, stride, not_first, not_last):  # type: ignore[no-untyped-def]
    """What the player can reach after pushing a box from ``here`` to ``there``, given what he could reach before.

    Whatever was reachable is connected with a neighbour of ``there``, unless that cell was of no use to him anyway.
    Hence, as soon as the flood from ``here`` has met all these neighbours, all of it is reachable at once.
    """
    kept = reach & ~there
    meet = _spread(there, stride, not_first, not_last) & kept if kept != reach else _ZERO
    region = here
    while meet & ~region != _ZERO:
        wider = _spread(region, stride, not_first, not_last) & free
        if wider == region:
            return region
        region = wider
    return _flood(region | kept, free, stride, not_first, not_last)


@njit
def frozen(boxes, stuck_h, stuck_v, stride, not_first, not_last):  # type: ignore[no-untyped-def]
    """The boxes that no solution can ever move.

    A box cannot be pushed along an axis if a wall or a frozen box is on either side, or a dead cell on both. The
    greatest set that blocks itself: start from all boxes and drop those that are free along some axis. No box of it can
    be the first of it to move, hence none ever moves.

    Args:
        stuck_h, stuck_v: cells blocked by walls and dead cells alone, along rows and along columns.
    """
    while True:
        kept = (
            boxes
            & (stuck_h | ((boxes & not_last) << _ONE) | ((boxes & not_first) >> _ONE))
            & (stuck_v | (boxes << stride) | (boxes >> stride))
        )
        if kept == boxes:
            return boxes
        boxes = kept


# --- a level ----------------------------------------------------------------------------------------------------------

# Words of a prepared level.
_FLOOR, _NOT_FIRST, _NOT_LAST, _ALIVE, _STUCK_H, _STUCK_V, _GOALS, _BOXES, _PLAYER = range(9)
# Its numbers: width of the box, boxes, largest finite assignment.
_STRIDE, _N_BOXES, _FARTHEST = range(3)


@njit
def count_targets(cells):  # type: ignore[no-untyped-def]
    """Number of targets of a board, whatever stands on them."""
    n = 0
    for code in cells:
        n += code in (TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET)
    return n


@njit
def _write_sides(cell, floor, stride, not_first, not_last, sides):  # type: ignore[no-untyped-def]
    """Write the parts into which a box on ``cell`` divides the floor: up to 4 words, 0 where there are fewer.

    If there is only one part, its word has all bits, so that a look-up ends there.
    """
    here = _bit(cell)
    free = floor & ~here
    meet = _spread(here, stride, not_first, not_last) & free
    for side in range(4):
        sides[cell, side] = _ZERO
    if meet & (meet - _ONE if meet != _ZERO else _ZERO) == _ZERO:
        sides[cell, 0] = ~_ZERO
        return
    n = 0
    while meet != _ZERO:
        region = _bit(lowest(meet))
        while n > 0 or meet & ~region != _ZERO:
            wider = _spread(region, stride, not_first, not_last) & free
            if wider == region:
                break
            region = wider
        meet &= ~region
        if n == 0 and meet == _ZERO:
            region = ~_ZERO
        sides[cell, n] = region
        n += 1


@njit
def _row(sides, cell, player):  # type: ignore[no-untyped-def]
    """Row of ``distance`` for a box on ``cell``, with any cells that the player can reach."""
    side = 0
    while sides[cell, side] & player == _ZERO:
        side += 1
    return 4 * cell + side


@njit
def _write_distances(floor, goals, stride, not_first, not_last, sides, distance):  # type: ignore[no-untyped-def]
    """Write ``sides`` and ``distance`` of :func:`prepare`.

    Returns:
        the cells from which some target can be reached, and the largest finite distance.
    """
    n_goals = ones(goals)
    rest = floor
    while rest != _ZERO:
        _write_sides(lowest(rest), floor, stride, not_first, not_last, sides)
        rest &= rest - _ONE
    # For each row of distances, the rows from which one push leads there: the player ends where the box was.
    before = np.empty((256, 4), np.int64)
    rest = floor
    while rest != _ZERO:
        cell = lowest(rest)
        rest &= rest - _ONE
        there = _bit(cell)
        for side in range(4):
            if sides[cell, side] == _ZERO:
                break
            row = 4 * cell + side
            for n in range(n_goals):
                distance[row, n] = FAR
            for d in range(4):
                here = _shifted(there, d ^ 1, stride, not_first, not_last) & floor & sides[cell, side]
                behind = _shifted(here, d ^ 1, stride, not_first, not_last) & floor
                before[row, d] = _row(sides, lowest(here), behind) if behind != _ZERO else -1
    queue = np.empty(256, np.int64)
    alive = goals
    farthest = 0
    rest = goals
    for n in range(n_goals):
        cell = lowest(rest)
        rest &= rest - _ONE
        tail = 0
        for side in range(4):
            if sides[cell, side] != _ZERO:
                distance[4 * cell + side, n] = 0
                queue[tail] = 4 * cell + side
                tail += 1
        head = 0
        while head < tail:
            row = queue[head]
            head += 1
            steps = distance[row, n] + 1
            for d in range(4):
                near = before[row, d]
                if near >= 0 and distance[near, n] == FAR:
                    distance[near, n] = steps
                    alive |= _bit(near >> 2)
                    queue[tail] = near
                    tail += 1
        farthest = max(farthest, distance[queue[tail - 1], n])
    return alive, farthest


@njit
def prepare(cells, height, width, seen, stack, words, numbers, sides, distance):  # type: ignore[no-untyped-def]
    """Read a board into words and distances.

    Args:
        cells: ``uint8 [height * width]`` codes; around the board everything is wall, as is the code ``OUTSIDE``.
        seen, stack: scratch of at least ``height * width``; ``seen`` must be 0 and is left so.
        words, numbers: written, see the constants above.
        sides: ``uint64 [64, 4]``, written, see :func:`_write_sides`.
        distance: ``int64 [256, boxes]`` at least, written: fewest pushes that bring a lone box from a cell and a side
            of it (see :func:`_row`) to each target.

    Returns:
        ``RUNNING`` if there is something to search, else what is known already: ``SOLVED`` (no push is needed),
        ``UNSOLVABLE`` (a box or a target that needs a push is out of reach), ``TOO_BIG``.
    """
    n_cells = height * width
    player = 0
    waiting = 0
    for i in range(n_cells):
        if cells[i] == BOX:
            waiting += 1
        elif cells[i] >= PLAYER and cells[i] != OUTSIDE:
            player = i
    if waiting == 0:
        return SOLVED
    # Cells that the player could reach without boxes. Boxes never leave them, since they stay beside the player.
    count = 1
    stack[0] = player
    seen[player] = 1
    top, bottom = height, 0
    first, last = width, 0
    k = 0
    while k < count:
        i = stack[k]
        k += 1
        row = i // width
        column = i - row * width
        top, bottom = min(top, row), max(bottom, row)
        first, last = min(first, column), max(last, column)
        for d in range(4):
            if d == 0:
                if row == 0:
                    continue
                j = i - width
            elif d == 1:
                if row == height - 1:
                    continue
                j = i + width
            elif d == 2:
                if column == 0:
                    continue
                j = i - 1
            else:
                if column == width - 1:
                    continue
                j = i + 1
            if not seen[j] and cells[j] != WALL and cells[j] != OUTSIDE:
                seen[j] = 1
                stack[count] = j
                count += 1
    lost = False
    for i in range(n_cells):
        if not seen[i] and (cells[i] == BOX or cells[i] == TARGET):
            lost = True
            break
    columns = last - first + 1
    rows = bottom - top + 1
    fits = rows * columns <= 64 and columns < 64
    floor = goals = boxes = _ZERO
    for k in range(count):
        i = stack[k]
        seen[i] = 0
        if fits:
            row = i // width
            bit = _bit((row - top) * columns + i - row * width - first)
            code = cells[i]
            floor |= bit
            if code in (TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET):
                goals |= bit
            if code in (BOX, BOX_ON_TARGET):
                boxes |= bit
    if lost or (fits and ones(boxes) != ones(goals)):
        return UNSOLVABLE
    if not fits:
        return TOO_BIG
    stride = np.uint64(columns)
    first_column = _ZERO
    for r in range(rows):
        first_column |= _bit(r * columns)
    not_first = ~first_column
    not_last = ~(first_column << np.uint64(columns - 1))
    alive, farthest = _write_distances(floor, goals, stride, not_first, not_last, sides, distance)
    dead = ~alive  # walls and cells outside the box included
    words[_FLOOR], words[_NOT_FIRST], words[_NOT_LAST], words[_ALIVE] = floor, not_first, not_last, alive
    for axis in range(2):
        # ``a`` and ``b`` are no constants to numba, which would compile a copy of ``_shifted`` for each.
        a, b = 2 * axis, 2 * axis + 1
        words[_STUCK_V - axis] = (
            ~(_shifted(floor, a, stride, not_first, not_last) & _shifted(floor, b, stride, not_first, not_last))
        ) | (~_shifted(alive, a, stride, not_first, not_last) & ~_shifted(alive, b, stride, not_first, not_last))
    words[_GOALS], words[_BOXES] = goals, boxes
    words[_PLAYER] = _bit((player // width - top) * columns + player % width - first)
    numbers[_STRIDE], numbers[_N_BOXES], numbers[_FARTHEST] = columns, ones(goals), ones(goals) * farthest
    if boxes & dead != _ZERO:
        return UNSOLVABLE
    stuck = frozen(boxes, words[_STUCK_H], words[_STUCK_V], stride, not_first, not_last)
    if stuck & ~goals != _ZERO:
        return UNSOLVABLE
    return RUNNING


# --- the bound --------------------------------------------------------------------------------------------------------


@njit
def _assign(boxes, reach, n, sides, distance, forward, backward, others):  # type: ignore[no-untyped-def]
    """Cheapest assignment of boxes to targets, by dynamic programming over subsets of targets.

    ``forward[T]`` is the cheapest assignment of the first ``|T|`` boxes (in order of cells) to the targets ``T``,
    ``backward[T]`` that of the last ``|T|``. Written for the children of a state: ``others[k, t]``, the cheapest
    assignment of all boxes but the ``k``-th to all targets but ``t``, so that with this box in row ``r`` the bound is
    the minimum over ``t`` of ``distance[r, t] + others[k, t]``.

    Returns:
        the cheapest assignment of all boxes, at least ``FAR`` if there is none.
    """
    rest = boxes
    for k in range(n):
        others[k, n] = _row(sides, lowest(rest), reach)  # the last column holds the box's row of distances
        rest &= rest - _ONE
        for t in range(n):
            others[k, t] = FAR
    full = (1 << n) - 1
    forward[0] = 0
    backward[0] = 0
    for subset in range(1, full + 1):
        size = ones(np.uint64(subset))
        box = others[size - 1, n]
        last_box = others[n - size, n]
        best = FAR
        best_back = FAR
        inside = np.uint64(subset)
        while inside != _ZERO:
            t = lowest(inside)
            inside &= inside - _ONE
            without = subset ^ (1 << t)
            best = min(best, forward[without] + distance[box, t])
            best_back = min(best_back, backward[without] + distance[last_box, t])
        forward[subset] = best
        backward[subset] = best_back
    for subset in range(full):
        k = ones(np.uint64(subset))
        outside = np.uint64(full ^ subset)
        while outside != _ZERO:
            t = lowest(outside)
            outside &= outside - _ONE
            others[k, t] = min(others[k, t], forward[subset] + backward[full ^ subset ^ (1 << t)])
    return forward[full]


@njit
def _nearest(boxes, reach, n, sides, distance):  # type: ignore[no-untyped-def]
    """The sum of each box's distance to its nearest target."""
    total = 0
    while boxes != _ZERO:
        row = _row(sides, lowest(boxes), reach)
        boxes &= boxes - _ONE
        nearest = FAR
        for t in range(n):
            nearest = min(nearest, distance[row, t])
        total += nearest
    return total


# --- the search -------------------------------------------------------------------------------------------------------

# Columns of a stored state: its parent, pushes so far (-1: a shorter way was found since), the push that led to it
# (cell of the box before it, times 4, plus direction), and the next one in its chain.
_PARENT, _COST, _PUSH, _NEXT = range(4)
# Numbers of a running search: stored states, size of the hash table in use less 1, its stamp, the total at which the
# queue is read, the highest total in it, expansions, whether ``max_cost`` cut something off, the solved state.
_COUNT, _MASK, _STAMP, _TOTAL, _HIGHEST, _EXPANDED, _CUT, _FOUND = range(8)

_FIRST_MASK = 1023


@njit
def _hash(boxes, reach):  # type: ignore[no-untyped-def]
    h = _KEYS[1, lowest(reach)]
    while boxes != _ZERO:
        h ^= _KEYS[0, lowest(boxes)]
        boxes &= boxes - _ONE
    return h


@njit
def begin(words, numbers, sides, distance, pool, nodes, table, chains, control, max_cost, scale, factor):  # type: ignore[no-untyped-def]
    """Set up the search of a prepared level in arrays that an earlier search may have used."""
    stride, not_first, not_last = np.uint64(numbers[_STRIDE]), words[_NOT_FIRST], words[_NOT_LAST]
    boxes, n = words[_BOXES], numbers[_N_BOXES]
    reach = _flood(words[_PLAYER], words[_FLOOR] & ~boxes, stride, not_first, not_last)
    # A new workspace has a stamp of 0 and needs all its chains emptied, a used one those that it has used.
    for total in range(control[_HIGHEST] + 1 if control[_STAMP] else chains.shape[0]):
        chains[total] = -1
    if n <= MATCHED_BOXES:
        forward = np.empty(1 << n, np.int64)
        backward = np.empty(1 << n, np.int64)
        bound = _assign(boxes, reach, n, sides, distance, forward, backward, np.empty((n, n + 1), np.int64))
    else:
        bound = _nearest(boxes, reach, n, sides, distance)
    control[_HIGHEST] = -1
    control[_EXPANDED] = 0
    control[_CUT] = 0
    control[_COUNT] = 0
    control[_STAMP] += 1
    control[_MASK] = min(_FIRST_MASK, table.shape[0] - 1)
    if bound >= FAR:
        return UNSOLVABLE
    if bound > max_cost:
        return LIMIT
    pool[0, 0] = boxes
    pool[0, 1] = reach
    nodes[0, _PARENT], nodes[0, _COST], nodes[0, _PUSH], nodes[0, _NEXT] = -1, 0, -1, -1
    table[_hash(pool[0, 0], pool[0, 1]) & control[_MASK]] = control[_STAMP] << 32
    control[_COUNT] = 1
    # The first state waits in a chain of its own, whatever its bound: totals only have to order what is compared.
    control[_TOTAL] = control[_HIGHEST] = 0
    chains[0] = 0
    return RUNNING


@njit
def _restamp(pool, nodes, table, control):  # type: ignore[no-untyped-def]
    """Use twice as many slots of the hash table."""
    mask = 2 * control[_MASK] + 1
    stamp = control[_STAMP] + 1
    control[_MASK], control[_STAMP] = mask, stamp
    for s in range(control[_COUNT]):
        if nodes[s, _COST] >= 0:
            slot = _hash(pool[s, 0], pool[s, 1]) & mask
            while table[slot] >> 32 == stamp:
                slot = (slot + 1) & mask
            table[slot] = stamp << 32 | s


@njit
def search(  # type: ignore[no-untyped-def]
    words, numbers, sides, distance, pool, nodes, table, chains, control, max_cost, scale, factor, node_limit, budget
):
    """Go on with a search for up to ``budget`` expansions.

    A state's total is ``scale * pushes + factor * bound``; the smallest total is expanded first, the newest state first
    among equals. ``factor / scale`` is the weight.

    Returns:
        ``SOLVED`` (the state is ``control[_FOUND]``), ``UNSOLVABLE``, ``LIMIT``, ``RUNNING``, ``FULL``.
    """
    stride, not_first, not_last = np.uint64(numbers[_STRIDE]), words[_NOT_FIRST], words[_NOT_LAST]
    n, farthest = numbers[_N_BOXES], numbers[_FARTHEST]
    floor, alive, goals = words[_FLOOR], words[_ALIVE], words[_GOALS]
    stuck_h, stuck_v = words[_STUCK_H], words[_STUCK_V]
    matched = n <= MATCHED_BOXES
    forward = np.empty(1 << n if matched else 1, np.int64)
    backward = np.empty(1 << n if matched else 1, np.int64)
    others = np.empty((n, n + 1), np.int64)
    steps = (-int(numbers[_STRIDE]), int(numbers[_STRIDE]), -1, 1)
    count, mask, stamp = control[_COUNT], control[_MASK], control[_STAMP]
    total, highest = control[_TOTAL], control[_HIGHEST]
    last_expansion = control[_EXPANDED] + budget
    expanded = control[_EXPANDED]
    status = RUNNING
    while expanded < last_expansion:
        while total <= highest and chains[total] < 0:
            total += 1
        if total > highest:
            status = LIMIT if control[_CUT] else UNSOLVABLE
            break
        s = chains[total]
        cost = nodes[s, _COST]
        if cost < 0:
            chains[total] = nodes[s, _NEXT]
            continue
        boxes, reach = pool[s, 0], pool[s, 1]
        if boxes == goals:
            control[_FOUND] = s
            status = SOLVED
            break
        if count >= node_limit:
            status = LIMIT
            break
        if 2 * (count + 4 * n) > mask:
            if mask + 1 == table.shape[0]:
                status = FULL
                break
            control[_COUNT] = count
            _restamp(pool, nodes, table, control)
            mask, stamp = control[_MASK], control[_STAMP]
        if count + 4 * n > pool.shape[0] or scale * (cost + 1) + factor * farthest >= chains.shape[0]:
            status = FULL
            break
        chains[total] = nodes[s, _NEXT]
        expanded += 1
        cost += 1
        at = total
        bound = 0
        if matched:
            _assign(boxes, reach, n, sides, distance, forward, backward, others)
        else:
            bound = _nearest(boxes, reach, n, sides, distance)
        box_hash = 0
        rest = boxes
        while rest != _ZERO:
            box_hash ^= _KEYS[0, lowest(rest)]
            rest &= rest - _ONE
        open_cells = alive & ~boxes
        for d in range(4):
            movable = (
                boxes
                & _shifted(reach, d, stride, not_first, not_last)
                & _shifted(open_cells, d ^ 1, stride, not_first, not_last)
            )
            while movable != _ZERO:
                cell = lowest(movable)
                here = _bit(cell)
                movable &= movable - _ONE
                beyond = cell + steps[d]
                there = _bit(beyond)
                now = (boxes ^ here) | there
                stuck = frozen(now, stuck_h, stuck_v, stride, not_first, not_last)
                if stuck & ~goals != _ZERO:
                    continue
                if matched:
                    k = ones(boxes & (here - _ONE))
                    row = _row(sides, beyond, here)
                    left = FAR
                    for t in range(n):
                        left = min(left, distance[row, t] + others[k, t])
                else:
                    left = bound - _nearest(here, reach, n, sides, distance) + _nearest(there, here, n, sides, distance)
                if left >= FAR:
                    continue
                if cost + left > max_cost:
                    control[_CUT] = 1
                    continue
                region = _reach_after(reach, here, there, floor & ~now, stride, not_first, not_last)
                slot = (box_hash ^ _KEYS[0, cell] ^ _KEYS[0, beyond] ^ _KEYS[1, lowest(region)]) & mask
                known = False
                while table[slot] >> 32 == stamp:
                    other = table[slot] & 0xFFFFFFFF
                    if pool[other, 0] == now and pool[other, 1] == region:
                        if nodes[other, _COST] <= cost:
                            known = True
                        else:
                            nodes[other, _COST] = -1
                        break
                    slot = (slot + 1) & mask
                if known:
                    continue
                pool[count, 0], pool[count, 1] = now, region
                table[slot] = stamp << 32 | count
                then = scale * cost + factor * left
                nodes[count, _PARENT], nodes[count, _COST], nodes[count, _PUSH] = s, cost, 4 * cell + d
                nodes[count, _NEXT] = chains[then]
                chains[then] = count
                if now == goals and then <= at:
                    # Nothing in the queue has a smaller total, so this is what will be taken out first.
                    control[_FOUND] = count
                    status = SOLVED
                count += 1
                total = min(total, then)
                highest = max(highest, then)
            if status == SOLVED:
                break
        if status == SOLVED:
            break
    control[_COUNT], control[_TOTAL], control[_HIGHEST], control[_EXPANDED] = count, total, highest, expanded
    return status


@njit
def write_plan(words, numbers, pool, nodes, control, actions, used):  # type: ignore[no-untyped-def]
    """Write the plan to the found state into ``actions`` from index ``used`` on, with shortest walks between pushes.

    Returns:
        the index after its last action, or -1 if ``actions`` is too short.
    """
    stride, not_first, not_last = np.uint64(numbers[_STRIDE]), words[_NOT_FIRST], words[_NOT_LAST]
    steps = (-int(numbers[_STRIDE]), int(numbers[_STRIDE]), -1, 1)
    s = control[_FOUND]
    pushes = np.empty(nodes[s, _COST], np.int64)
    for i in range(pushes.shape[0] - 1, -1, -1):
        pushes[i] = nodes[s, _PUSH]
        s = nodes[s, _PARENT]
    boxes, player = words[_BOXES], words[_PLAYER]
    layers = np.empty(65, np.uint64)
    for i in range(pushes.shape[0]):
        cell, d = pushes[i] >> 2, pushes[i] & 3
        goal = _bit(cell - steps[d])
        free = words[_FLOOR] & ~boxes
        length = 0
        layers[0] = player
        while layers[length] & goal == _ZERO:
            here = layers[length]
            length += 1
            layers[length] = _spread(here, stride, not_first, not_last) & free
        if used + length + 1 > actions.shape[0]:
            return -1
        here = goal
        for k in range(length - 1, -1, -1):
            for a in range(4):
                before = _shifted(here, a ^ 1, stride, not_first, not_last) & layers[k]
                if before != _ZERO:
                    actions[used + k] = a
                    here = before
                    break
        actions[used + length] = d
        used += length + 1
        player = _bit(cell)
        boxes = (boxes ^ player) | _bit(cell + steps[d])
    return used


@njit
def grown(pool, nodes, table, chains, control):  # type: ignore[no-untyped-def]
    """The arrays of a search at twice their size."""
    # Plain loops: copies of slices take seconds to compile.
    more_pool = np.empty((2 * pool.shape[0], 2), np.uint64)
    more_nodes = np.empty((2 * nodes.shape[0], 4), np.int32)
    for s in range(control[_COUNT]):
        for k in range(2):
            more_pool[s, k] = pool[s, k]
        for k in range(4):
            more_nodes[s, k] = nodes[s, k]
    more_chains = np.empty(2 * chains.shape[0], np.int32)
    for total in range(more_chains.shape[0]):
        more_chains[total] = chains[total] if total < chains.shape[0] else -1
    more_table = np.zeros(2 * table.shape[0], np.int64)
    control[_STAMP] = 0
    control[_MASK] = table.shape[0] // 2 - 1
    _restamp(more_pool, more_nodes, more_table, control)
    return more_pool, more_nodes, more_table, more_chains


@njit
def workspace():  # type: ignore[no-untyped-def]
    """``pool``, ``nodes``, ``table``, ``chains`` and ``control`` of a search, small at first."""
    return (
        np.empty((2048, 2), np.uint64),
        np.empty((2048, 4), np.int32),
        np.zeros(4096, np.int64),
        np.zeros(1024, np.int32),
        np.zeros(8, np.int64),
    )


@njit
def solve_boards(cells, heights, widths, max_cost, scale, factor, node_limit):  # type: ignore[no-untyped-def]
    """Solve boards one after the other.

    Args:
        cells: ``uint8``, the codes of all boards, one board after the other.
        heights, widths: ``int64 [N]``.
        max_cost, node_limit: per board.
        scale, factor: the weight is ``factor / scale``.

    Returns:
        ``results int64 [N, 3]`` (status, pushes or -1, states expanded), and the plans as ``actions uint8``, those of
        board ``i`` from ``ends[i]`` to ``ends[i + 1]``.
    """
    n_boards = heights.shape[0]
    results = np.empty((n_boards, 3), np.int64)
    ends = np.zeros(n_boards + 1, np.int64)
    actions = np.empty(max(64, 64 * n_boards), np.uint8)
    largest = most_targets = begins = 0
    for i in range(n_boards):
        size = heights[i] * widths[i]
        largest = max(largest, size)
        most_targets = max(most_targets, count_targets(cells[begins : begins + size]))
        begins += size
    seen = np.zeros(largest, np.uint8)
    stack = np.empty(largest, np.int64)
    words = np.empty(9, np.uint64)
    numbers = np.empty(3, np.int64)
    sides = np.empty((64, 4), np.uint64)
    distance = np.empty((256, most_targets), np.int64)
    pool, nodes, table, chains, control = workspace()
    budget = np.int64(UNBOUNDED)  # a plain constant would have numba compile the search once more, for this value
    begins = 0
    for i in range(n_boards):
        size = heights[i] * widths[i]
        board = cells[begins : begins + size]
        begins += size
        status = prepare(board, heights[i], widths[i], seen, stack, words, numbers, sides, distance)
        pushes = 0 if status == SOLVED else -1
        expanded = 0
        ends[i + 1] = ends[i]
        if status == RUNNING:
            status = begin(
                words, numbers, sides, distance, pool, nodes, table, chains, control, max_cost, scale, factor
            )
            while status in (RUNNING, FULL):
                if status == FULL:
                    pool, nodes, table, chains = grown(pool, nodes, table, chains, control)
                status = search(
                    words, numbers, sides, distance, pool, nodes, table, chains, control,
                    max_cost, scale, factor, node_limit, budget,
                )  # fmt: skip
            expanded = control[_EXPANDED]
            if status == SOLVED:
                pushes = nodes[control[_FOUND], _COST]
                end = write_plan(words, numbers, pool, nodes, control, actions, ends[i])
                while end < 0:
                    longer = np.empty(2 * actions.shape[0], np.uint8)
                    for k in range(ends[i]):
                        longer[k] = actions[k]
                    actions = longer
                    end = write_plan(words, numbers, pool, nodes, control, actions, ends[i])
                ends[i + 1] = end
        results[i, 0], results[i, 1], results[i, 2] = status, pushes, expanded
    return results, actions, ends


def solve_within(
    cells: bytes, height: int, width: int, max_cost: int, scale: int, factor: int, node_limit: int, time_limit: float
) -> tuple[int, int, int, np.ndarray, float]:
    """What :func:`solve_boards` does with one board, but with ``LIMIT`` after ``time_limit`` seconds.

    The clock is read from here, between slices of the search.

    Returns:
        status, pushes or -1, states expanded, actions, seconds of the search.
    """
    board = np.frombuffer(bytearray(cells), np.uint8)  # writable, as everywhere: else numba compiles twice
    words, numbers = np.empty(9, np.uint64), np.empty(3, np.int64)
    sides, distance = np.empty((64, 4), np.uint64), np.empty((256, count_targets(board)), np.int64)
    nothing = np.empty(0, np.uint8)
    scratch = np.zeros(len(board), np.uint8), np.empty(len(board), np.int64)
    status = prepare(board, height, width, *scratch, words, numbers, sides, distance)
    if status != RUNNING:
        return status, 0 if status == SOLVED else -1, 0, nothing, 0.0
    pool, nodes, table, chains, control = workspace()
    status = begin(words, numbers, sides, distance, pool, nodes, table, chains, control, max_cost, scale, factor)
    budget = 0  # at first, so that compiling does not count as searching
    began = monotonic()
    while status in (RUNNING, FULL):
        if status == FULL:
            pool, nodes, table, chains = grown(pool, nodes, table, chains, control)
        status = search(
            words, numbers, sides, distance, pool, nodes, table, chains, control,
            max_cost, scale, factor, node_limit, budget,
        )  # fmt: skip
        if budget == 0:
            budget, began = SLICE, monotonic()
        if status in (RUNNING, FULL) and monotonic() - began >= time_limit:
            status = LIMIT
    spent = monotonic() - began
    if status != SOLVED:
        return status, -1, int(control[_EXPANDED]), nothing, spent
    actions = np.empty(64, np.uint8)
    while (end := write_plan(words, numbers, pool, nodes, control, actions, 0)) < 0:
        actions = np.empty(2 * len(actions), np.uint8)
    return status, int(nodes[control[_FOUND], _COST]), int(control[_EXPANDED]), actions[:end], spent
