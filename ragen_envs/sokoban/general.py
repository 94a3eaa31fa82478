"""Sokoban search for boards of any size and any number of boxes: forwards by pushes, backwards by pulls.

Read it from top to bottom:

1. *Board.* The floor that the player could walk on if there were no boxes is numbered 0, 1, ...; the number after the
   last stands for every wall. Boxes elsewhere never move: on a target they are ignored, off a target they are a proof
   that there is no solution.
2. *Lone boxes.* A box on a cut cell of the floor divides it, and the side on which the player stands decides where he
   can push it. A *spot* is a cell together with such a side. :func:`distances` holds the fewest pushes of a lone box
   between every spot and every target (or, for the search backwards, every start).
3. *Lower bound.* Every box needs a target of its own: the cheapest perfect matching by those distances (Hungarian
   method) never exceeds the pushes to go. Pushing one box leaves the player on the same side of all others, so one
   push lowers the bound by at most one: the bound is consistent, and A* expands no state twice.
4. *Deadlocks.* Cut off, without ever losing a solution, are spots without a target in reach, states without a perfect
   matching, boxes frozen off target (the greatest set in which each one blocks the others along both axes), boxes
   frozen on targets such that the others, walled off by them, have no perfect matching left, and corrals into which
   nothing can be pushed.
5. *PI-corrals* (B. Damgaard; Sokoban wiki, "Solver"). Let ``inside`` be empty cells that the player cannot reach and
   ``fence`` boxes around them, such that the first push of a fence box, whatever happened elsewhere before, must go
   into ``inside`` and is possible now. If something there is still to be done, some fence box must be pushed sooner or
   later; doing so first spoils nothing, as it only opens cells outside. Hence no other pushes need be looked at, and
   the fewest pushes stay the fewest.
6. *States* are rows ``[player, box, box, ...]`` in ascending order, the player being the smallest cell that he can
   walk to. A hash table finds them by Zobrist keys and compares whole rows. Boards whose floor and targets are
   symmetric keep one state of each class of mirror images.
7. *Searches.* Weighted A* with a bucket queue, last in, first out; for the fewest pushes, states of equal promise go by
   their bound, so that the last layer is short. ``weight`` above 1 (rounded down to sixteenths)
   bounds the cost by ``weight`` times the optimum without expanding anything twice (Likhachev, Gordon and Thrun 2003,
   ARA*). The objective ``any`` lets a search forwards and one backwards take turns in growing slices.

Simplifications: one thread; no macro moves, and deadlocks are not looked up in pattern tables. Compiled code never
looks at a clock: it returns after a number of expansions and is called again. All of it lives in this file because
numba's cache does not notice changes in other files; nothing is recursive. Arguments of helpers are made ``int64``,
because each helper is compiled once for every type (and for every constant) that it is called with.
"""

from __future__ import annotations

import time
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ragen_envs.jit import njit
from ragen_envs.sokoban.search import LIMIT, RUNNING, SOLVED, UNBOUNDED, UNSOLVABLE

FAR = 1 << 30
"""Distance of what cannot be reached. More than any finite sum of distances."""
LARGEST_KEY = SOLID = 1 << 62
ENTER, LEAVE, SPOT, REST, TIME = 0, 4, 8, 12, 13
"""Columns of :attr:`Board.sides`."""

# --- the board ------------------------------------------------------------------------------------------------------


class Board(NamedTuple):
    """What never changes during a search. ``n`` floor cells are numbered; number ``n`` is every wall."""

    cells: np.ndarray
    """``int32 [n]``: index in the framed buffer."""
    near: np.ndarray
    """``int32 [n + 1, 4]``: neighbours up, down, left, right."""
    goal: np.ndarray
    """``uint8 [n + 1]``: the cell is a target."""
    sides: np.ndarray
    """``int32 [n, 14]``: what :func:`spot_of` reads. A depth-first walk enters every cell at a time of its own. Columns
    0-3: when it entered the first cell of the part that a box here cuts off in each direction; 4-7: when it had left
    that part (0 and 0: nothing is cut off there); 8-11: the spots of a box here with the player in these parts; 12: the
    spot for the player anywhere else; 13: when the walk entered this cell."""
    place: np.ndarray
    """``int32 [spots]``: the cell of a spot."""
    images: np.ndarray
    """``int32 [m, n + 1]``: where each symmetry of floor and targets takes a cell; the identity first."""


@njit
def prepare(walls, targets, deltas, player, mirrored):  # type: ignore[no-untyped-def]
    """The :class:`Board` around ``player``; without symmetries unless ``mirrored``."""
    number = np.full(walls.shape[0], -1, np.int32)
    queue = np.empty(walls.shape[0], np.int32)
    queue[0] = player
    number[player] = 0
    head, n = 0, 1
    while head < n:
        for d in range(4):
            x = queue[head] + deltas[d]
            if not walls[x] and number[x] < 0:
                number[x] = 0
                queue[n] = x
                n += 1
        head += 1
    cells = np.empty(n, np.int32)
    goal = np.zeros(n + 1, np.uint8)
    c = 0
    for i in range(walls.shape[0]):
        if number[i] == 0:
            number[i] = c
            cells[c] = i
            goal[c] = targets[i]
            c += 1
    near = np.full((n + 1, 4), n, np.int32)
    for c in range(n):
        for d in range(4):
            if number[cells[c] + deltas[d]] >= 0:
                near[c, d] = number[cells[c] + deltas[d]]

    # Depth-first walk: the neighbour x below c is cut off by a box on c if nothing below x has an edge to above c.
    sides = np.zeros((n, 14), np.int32)
    time = np.full(n, -1, np.int32)
    highest = np.empty(n, np.int32)
    turn = np.zeros(n, np.int32)
    path = np.empty(n, np.int32)
    path[0] = time[0] = highest[0] = 0
    depth, clock = 1, 1
    while depth > 0:
        c = path[depth - 1]
        if turn[c] < 4:
            x = near[c, turn[c]]
            turn[c] += 1
            if x == n:
                continue
            if time[x] < 0:
                path[depth] = x
                time[x] = highest[x] = clock
                depth += 1
                clock += 1
            elif time[x] < highest[c]:
                highest[c] = time[x]
        else:
            depth -= 1
            if depth > 0:
                above = path[depth - 1]
                highest[above] = min(highest[above], highest[c])
                if highest[c] >= time[above]:
                    sides[above, ENTER + turn[above] - 1] = time[c]
                    sides[above, LEAVE + turn[above] - 1] = clock
    place = np.empty(5 * n, np.int32)
    spots = 0
    for c in range(n):
        sides[c, TIME] = time[c]
        for side in range(5):
            if side == 4 or sides[c, LEAVE + side] > 0:
                sides[c, SPOT + side] = spots
                place[spots] = c
                spots += 1

    images = np.empty((8, n + 1), np.int32)
    for c in range(n + 1):
        images[0, c] = c
    m = 1
    if mirrored:
        stride = deltas[1]
        top, bottom, left, right = cells[0] // stride, cells[n - 1] // stride, stride, 0
        for c in range(n):
            left = min(left, cells[c] % stride)
            right = max(right, cells[c] % stride)
        for kind in range(1, 8):
            if kind >= 4 and bottom - top != right - left:
                break
            images[m, n] = n
            same = True
            for c in range(n):
                row, column = cells[c] // stride - top, cells[c] % stride - left
                if kind >= 4:
                    row, column = column, row
                if kind & 1:
                    row = bottom - top - row
                if kind & 2:
                    column = right - left - column
                x = number[(row + top) * stride + column + left]
                if x < 0 or goal[x] != goal[c]:
                    same = False
                    break
                images[m, c] = x
            if same:
                m += 1
    return Board(cells, near, goal, sides, place[:spots].copy(), images[:m].copy())


@njit
def spot_of(sides, box, player):  # type: ignore[no-untyped-def]
    """The spot of a box with the player somewhere else, other boxes apart."""
    time = sides[player, TIME]
    for d in range(4):
        if sides[box, ENTER + d] <= time < sides[box, LEAVE + d]:
            return sides[box, SPOT + d]
    return sides[box, REST]


@njit
def distances(board, ends, player, backwards):  # type: ignore[no-untyped-def]
    """``int32 [spots, ends]``: fewest pushes of a lone box from a spot to each end, ``FAR`` where there is no way.

    With ``backwards``: from each end, the player standing at ``player``, to a spot.
    """
    near, sides, n_spots = board.near, board.sides, board.place.shape[0]
    n = near.shape[0] - 1
    table = np.full((n_spots, ends.shape[0]), FAR, np.int32)
    queue = np.empty(n_spots, np.int32)
    for j in range(ends.shape[0]):
        tail = 0
        if backwards:
            queue[0] = spot_of(sides, ends[j], player)
            tail = 1
        else:
            for spot in range(sides[ends[j], REST], -1, -1):  # the spots of a cell have successive numbers
                if board.place[spot] != ends[j]:
                    break
                queue[tail] = spot
                tail += 1
        for i in range(tail):
            table[queue[i], j] = 0
        head = 0
        while head < tail:
            here = queue[head]
            head += 1
            box = board.place[here]
            for d in range(4):
                # Of the push in direction d that starts (backwards) or ends (forwards) on this spot.
                origin = box if backwards else near[box, d ^ 1]
                if origin == n:
                    continue
                behind, ahead = near[origin, d ^ 1], near[origin, d]
                if behind == n or ahead == n:
                    continue
                before = spot_of(sides, np.int64(origin), np.int64(behind))
                after = spot_of(sides, np.int64(ahead), np.int64(origin))
                known, new = (before, after) if backwards else (after, before)
                if known == here and table[new, j] == FAR:
                    table[new, j] = table[here, j] + 1
                    queue[tail] = new
                    tail += 1
    return table


# --- the lower bound ------------------------------------------------------------------------------------------------


# A matching of boxes and ends with its dual prices, and scratch space, is an ``int64 [7, boxes]`` array. Prices never
# exceed the distance in sum, and for matched pairs they are exactly the distance.
BOX_SPOT, BOX_PRICE, END_PRICE, BOX_OF, BEST, PREVIOUS, DONE = range(7)


@njit
def _cheapest_path(table, m, spot):  # type: ignore[no-untyped-def]
    """Dijkstra over ends, from a box on ``spot`` to the nearest unmatched end: that end, and the reduced distance."""
    n_ends = m.shape[1]
    for j in range(n_ends):
        m[BEST, j] = table[spot, j] - m[END_PRICE, j]
        m[PREVIOUS, j] = -1
        m[DONE, j] = 0
    while True:
        end = -1
        for j in range(n_ends):
            if not m[DONE, j] and (end < 0 or m[BEST, j] < m[BEST, end]):
                end = j
        box = m[BOX_OF, end]
        if box < 0:
            return end, m[BEST, end]
        m[DONE, end] = 1
        base, row = m[BEST, end] - m[BOX_PRICE, box], m[BOX_SPOT, box]
        for j in range(n_ends):
            if not m[DONE, j]:
                through = base + table[row, j] - m[END_PRICE, j]
                if through < m[BEST, j]:
                    m[BEST, j] = through
                    m[PREVIOUS, j] = end


@njit
def match(table, m):  # type: ignore[no-untyped-def]
    """Match all boxes on ``m[BOX_SPOT]``; their total distance, or ``FAR`` if there is no finite perfect matching."""
    n_boxes = m.shape[1]
    for j in range(n_boxes):
        m[END_PRICE, j] = 0
        m[BOX_OF, j] = -1
    total = 0
    for i in range(n_boxes):
        end, length = _cheapest_path(table, m, m[BOX_SPOT, i])
        total += length
        if total >= FAR:
            return FAR
        for j in range(n_boxes):
            if m[DONE, j]:
                m[END_PRICE, j] += m[BEST, j] - length
                m[BOX_PRICE, m[BOX_OF, j]] += length - m[BEST, j]
        m[BOX_PRICE, i] = length
        while m[PREVIOUS, end] >= 0:
            m[BOX_OF, end] = m[BOX_OF, m[PREVIOUS, end]]
            end = m[PREVIOUS, end]
        m[BOX_OF, end] = i
    return total


@njit
def rematch(table, m, total, end, spot):  # type: ignore[no-untyped-def]
    """The total if the box that is matched with ``end`` stood on ``spot``. The matching stays as it is."""
    box = m[BOX_OF, end]
    if table[spot, end] == table[m[BOX_SPOT, box], end] - 1:
        return total - 1  # one push never gains more
    m[BOX_OF, end] = -1
    length = _cheapest_path(table, m, np.int64(spot))[1]  # as in `match`, so that it is compiled once
    m[BOX_OF, end] = box
    return min(total - m[BOX_PRICE, box] + length, FAR)


# --- deadlocks and corrals ------------------------------------------------------------------------------------------


@njit
def flood(near, seen, start, now, queue):  # type: ignore[no-untyped-def]
    """Stamp ``seen`` with ``now`` where the player can walk from ``start``; their number, listed in ``queue``.

    Older stamps are smaller; boxes and walls carry the stamp ``SOLID``.
    """
    seen[start] = now
    queue[0] = start
    head, tail = 0, 1
    while head < tail:
        c = queue[head]
        head += 1
        for d in range(4):
            x = near[c, d]
            if seen[x] < now:
                seen[x] = now
                queue[tail] = x
                tail += 1
    return tail


@njit
def _stuck(near, solid, dead, cell):  # type: ignore[no-untyped-def]
    """Along both axes, the box has something solid beside it, or squares without hope on both sides."""
    up, down, left, right = near[cell, 0], near[cell, 1], near[cell, 2], near[cell, 3]
    vertically = solid[up] | solid[down] | (dead[up] & dead[down])
    return vertically & (solid[left] | solid[right] | (dead[left] & dead[right])) != 0


@njit
def frozen(near, goal, solid, dead, cell, boxes):  # type: ignore[no-untyped-def]
    """Whether the box on ``cell`` can never move again: 0 no, 1 yes, 2 a box off target cannot either: a deadlock.

    ``solid`` marks walls and boxes. Boxes that could move if the others were solid lose their mark, until none is left
    that could: those with a mark at the end are frozen.
    """
    if not _stuck(near, solid, dead, cell):
        return 0
    changed = True
    while changed:
        changed = False
        for k in range(boxes.shape[0]):  # by index: an iterator over an array would cost more than the loop's body
            box = boxes[k]
            if solid[box] and not _stuck(near, solid, dead, box):
                solid[box] = 0
                changed = True
        if not solid[cell]:
            return 0
    for k in range(boxes.shape[0]):
        if solid[boxes[k]] and not goal[boxes[k]]:
            return 2
    return 1


@njit
def shut_out(near, ends, solid, box_at, n_boxes, rows, matching, queue):  # type: ignore[no-untyped-def]
    """The boxes that are not ``solid`` (see :func:`frozen`) have no perfect matching with targets in reach.

    ``rows [boxes, boxes]`` and ``matching`` are scratch space.
    """
    for k in range(n_boxes):
        matching[BOX_SPOT, k] = k
        for j in range(n_boxes):
            rows[k, j] = FAR
    for j in range(n_boxes):
        if solid[ends[j]]:
            rows[box_at[ends[j]] - 1, j] = 0
            continue
        # Breadth-first from the target backwards; 2 marks the cells found.
        queue[0] = ends[j]
        solid[ends[j]] = 2
        head, tail = 0, 1
        while head < tail:
            c = queue[head]
            head += 1
            if box_at[c] > 0:
                rows[box_at[c] - 1, j] = 0
            for d in range(4):
                x = near[c, d]
                if solid[x] == 0 and solid[near[x, d]] != 1:
                    solid[x] = 2
                    queue[tail] = x
                    tail += 1
        for i in range(tail):
            solid[queue[i]] = 0
    return match(rows, matching) >= FAR


@njit
def corral_pushes(near, goal, sides, alive, box_at, seen, now, inside, work, moves, scratch):  # type: ignore[no-untyped-def]
    """The pushes into the PI-corral with the fewest of them, as rows (box cell, direction) of ``moves``.

    ``seen`` is stamped with ``now`` where the player can walk; the other parts of the floor get up to ``n`` stamps
    above that. ``inside`` gets the same stamps on all cells and boxes of a corral.

    Returns:
        Their number (0 = deadlock), or -1 if there is no PI-corral.
    """
    n = near.shape[0] - 1
    fewest, stamp = -1, now
    for seed in range(n):
        if seen[seed] >= now:
            continue
        # Cells and boxes are added to one list until every push of a listed box is settled: it goes inside and is
        # possible now, or it is impossible before another listed box has moved.
        stamp += 1
        tail = flood(near, seen, seed, stamp, work)
        for i in range(tail):
            inside[work[i]] = stamp
        head, found = 0, 0
        unsolved, closed = False, True
        while head < tail and closed:
            c = work[head]
            head += 1
            if box_at[c] == 0:
                unsolved |= goal[c] != 0
                for d in range(4):
                    x = near[c, d]
                    if x != n and inside[x] != stamp:
                        inside[x] = stamp
                        work[tail] = x
                        tail += 1
                continue
            unsolved |= goal[c] == 0
            for d in range(4):
                behind, ahead = near[c, d ^ 1], near[c, d]
                if behind == n or ahead == n or not alive[spot_of(sides, np.int64(ahead), np.int64(c))]:
                    continue
                if inside[behind] == stamp or (box_at[ahead] > 0 and inside[ahead] == stamp):
                    continue
                add = behind
                if seen[behind] == now:
                    add = ahead
                    if seen[ahead] == now:  # it may go outside
                        closed = False
                        break
                    if box_at[ahead] == 0:
                        scratch[found, 0] = c
                        scratch[found, 1] = d
                        found += 1
                if inside[add] != stamp:
                    inside[add] = stamp
                    work[tail] = add
                    tail += 1
        if closed and unsolved and (fewest < 0 or found < fewest):
            fewest = found
            for i in range(found):
                moves[i, 0], moves[i, 1] = scratch[i, 0], scratch[i, 1]
            if found == 0:
                break
    return fewest


# --- the search -----------------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """One direction of search on one board."""

    board: Board
    table: np.ndarray
    """:func:`distances` to (backwards: from) the ends."""
    alive: np.ndarray
    """``uint8 [spots]``: some end is in reach."""
    dead: np.ndarray
    """``uint8 [n + 1]``: a box on the cell is lost, wherever the player is; walls count."""
    keys: np.ndarray
    """``int64 [2, n + 1]``: Zobrist keys of the player and of a box on a cell."""
    backwards: bool
    finish: np.ndarray
    """``uint16 [1 + boxes]``: backwards, the row to arrive at. Forwards it is enough that the bound is 0."""


class Frontier(NamedTuple):
    """The growing memory of a search. A state is an index into ``rows`` and ``nodes``."""

    rows: np.ndarray
    """``uint16 [capacity, 1 + boxes]``: player (smallest cell in reach) and boxes in ascending order."""
    nodes: np.ndarray
    """``int32 [capacity, 4]``: pushes so far, parent (-1 = root), how it was made, expanded.

    "How" is ``(box cell before the move * 4 + direction) * 8 + symmetry applied afterwards``.
    """
    slots: np.ndarray
    """``int64``, open-addressing hash table: 0 = free, else upper half of the key and, in 31 bits, index + 1."""
    heads: np.ndarray
    """``int32``: newest entry of the open list for each priority, -1 = none."""
    entries: np.ndarray
    """``int32 [capacity, 2]``: state, next older entry. A state may have several entries; the first one out counts."""
    numbers: np.ndarray
    """``int64``: see the constants that follow."""


COUNT, ENTRIES, SPARE, PRIORITY, TOP, EXPANDED, CUT, STATUS, FOUND = range(9)
# States, entries ever made, newest spare entry, lowest and highest priority that may be open, states expanded, whether
# something was cut off for its cost, status, and the solved state.


@njit
def _slot(rows, slots, row, key):  # type: ignore[no-untyped-def]
    """Where a state equal to ``row`` is in the hash table, or the free slot where it belongs."""
    mask = slots.shape[0] - 1
    slot = key & mask
    while slots[slot] != 0:
        if slots[slot] >> 31 == key >> 31:
            i = (slots[slot] & 0x7FFFFFFF) - 1
            same = True
            for k in range(row.shape[0]):
                if rows[i, k] != row[k]:
                    same = False
                    break
            if same:
                break
        slot = (slot + 1) & mask
    return slot


@njit
def _key(keys, rows, i):  # type: ignore[no-untyped-def]
    key = keys[0, rows[i, 0]]
    for k in range(1, rows.shape[1]):
        key ^= keys[1, rows[i, k]]
    return key


@njit
def _longer(array, size):  # type: ignore[no-untyped-def]
    new = np.empty((size, array.shape[1]), array.dtype)
    for i in range(array.shape[0]):
        for k in range(array.shape[1]):
            new[i, k] = array[i, k]
    return new


@njit
def _has_room(rows, slots, entries, numbers, more):  # type: ignore[no-untyped-def]
    count = numbers[COUNT] + more
    return count <= rows.shape[0] and 2 * count <= slots.shape[0] and numbers[ENTRIES] + more <= entries.shape[0]


@njit
def _with_room(rows, nodes, slots, entries, numbers, keys, more):  # type: ignore[no-untyped-def]
    """The arrays with room for ``more`` states and entries; the hash table at most half full."""
    need = numbers[COUNT] + more
    if need > rows.shape[0]:
        size = max(need, 2 * rows.shape[0])
        rows, nodes = _longer(rows, size), _longer(nodes, size)
    if 2 * need > slots.shape[0]:
        size = slots.shape[0]
        while size < 2 * need:
            size *= 2
        slots = np.zeros(size, np.int64)
        for i in range(numbers[COUNT]):
            key = _key(keys, rows, i)
            slot = key & (size - 1)
            while slots[slot] != 0:
                slot = (slot + 1) & (size - 1)
            slots[slot] = (key >> 31 << 31) | (i + 1)
    if numbers[ENTRIES] + more > entries.shape[0]:
        entries = _longer(entries, max(numbers[ENTRIES] + more, 2 * entries.shape[0]))
    return rows, nodes, slots, entries


@njit
def _open(heads, entries, numbers, state, priority):  # type: ignore[no-untyped-def]
    """Put ``state`` into the open list."""
    entry = numbers[SPARE]
    if entry >= 0:
        numbers[SPARE] = entries[entry, 1]
    else:
        entry = numbers[ENTRIES]
        numbers[ENTRIES] += 1
    entries[entry, 0] = state
    entries[entry, 1] = heads[priority]
    heads[priority] = entry
    numbers[PRIORITY] = min(numbers[PRIORITY], priority)
    numbers[TOP] = max(numbers[TOP], priority)


@njit
def begin(problem, boxes, player):  # type: ignore[no-untyped-def]
    """The frontier that holds the state of ``boxes`` with the player at ``player``, or, if -1, anywhere he can be."""
    near, keys = problem.board.near, problem.keys
    n, n_boxes = near.shape[0] - 1, boxes.shape[0]
    capacity = 256
    while capacity < n:
        capacity *= 2
    rows = np.empty((capacity, n_boxes + 1), np.uint16)
    nodes = np.empty((capacity, 4), np.int32)
    slots = np.zeros(2 * capacity, np.int64)
    heads = np.full(256, -1, np.int32)
    entries = np.empty((capacity, 2), np.int32)
    numbers = np.zeros(9, np.int64)
    numbers[SPARE] = numbers[FOUND] = -1
    numbers[PRIORITY] = UNBOUNDED
    numbers[STATUS] = RUNNING
    seen = np.zeros(n + 1, np.int64)
    seen[n] = SOLID
    for k in range(n_boxes):
        seen[boxes[k]] = SOLID
    queue = np.empty(n, np.int32)
    for cell in range(n):
        if seen[cell] == 0:
            flood(near, seen, cell, cell + 1, queue)
            if player < 0 or seen[player] == cell + 1:
                i = numbers[COUNT]
                numbers[COUNT] += 1
                rows[i, 0] = cell
                for k in range(n_boxes):
                    rows[i, k + 1] = boxes[k]
                nodes[i, 0], nodes[i, 1], nodes[i, 2], nodes[i, 3] = 0, -1, 0, 0
                key = _key(keys, rows, i)
                slots[_slot(rows, slots, rows[i], key)] = (key >> 31 << 31) | (i + 1)
                # The order of roots is not important, and the first state taken out needs no priority: 0 serves.
                _open(heads, entries, numbers, i, np.int64(0))
    return Frontier(rows, nodes, slots, heads, entries, numbers)


@njit
def _region_kept(near, solid, seen, now, origin, to, d):  # type: ignore[no-untyped-def]
    """After the push from ``origin`` to ``to`` the player surely reaches what he did, less ``to``, and ``origin``.

    True if nothing beyond ``origin`` opens up and the free neighbours of ``to`` are joined around it. Saves a flood.
    """
    for e in range(4):
        x = near[origin, e]
        if not solid[x] and seen[x] != now:
            return False
    if seen[to] != now:
        return True
    ahead = near[to, d]
    joined = solid[ahead] != 0
    for turned in range(2):
        e = turned if d >= 2 else turned + 2
        if not solid[near[to, e]]:
            if solid[near[origin, e]]:
                return False
            joined |= solid[near[ahead, e]] == 0
    return joined


@njit
def advance(problem, frontier, expansions, bound_weight, cost_weight, max_cost, node_limit, reopen):  # type: ignore[no-untyped-def]
    """Expand up to ``expansions`` states in the order of ``cost_weight * pushes + bound_weight * bound``.

    States whose pushes and bound exceed ``max_cost`` in sum are cut off. With ``reopen`` a state that turns out to be
    cheaper after it was expanded is expanded again.

    Returns:
        The frontier; its ``STATUS`` says whether the search is over.
    """
    board, table, alive, dead, keys, backwards, finish = problem
    near, goal, sides, images = board.near, board.goal, board.sides, board.images
    rows, nodes, slots, heads, entries, numbers = frontier
    n, n_images, n_boxes = near.shape[0] - 1, images.shape[0], finish.shape[0] - 1
    box_at = np.zeros(n + 1, np.int32)  # index of the box + 1; a wall is -1
    box_at[n] = -1
    seen = np.zeros(n + 1, np.int64)
    seen_after = np.zeros(n + 1, np.int64)
    seen[n] = seen_after[n] = SOLID
    inside = np.zeros(n + 1, np.int64)
    ends = np.empty(n_boxes, np.int32)
    j = 0
    for c in range(n):
        if goal[c] and not backwards:
            ends[j] = c
            j += 1
    queue = np.empty(n, np.int32)
    work = np.empty(n, np.int32)
    solid = np.zeros(n + 1, np.uint8)
    solid[n] = 1
    moves = np.empty((4 * n_boxes, 2), np.int32)
    scratch = np.empty((4 * n_boxes, 2), np.int32)
    matching = np.empty((7, n_boxes), np.int64)
    rough = np.empty((7, n_boxes), np.int64)
    rough_rows = np.empty((n_boxes, n_boxes), np.int32)
    end_of = np.empty(n_boxes, np.int64)
    boxes = np.empty(n_boxes, np.int64)
    player_low = np.empty(n_images, np.int64)
    boxes_key = np.empty(n_images, np.int64)
    row = np.empty(n_boxes + 1, np.uint16)
    now = now_after = 0
    while expansions > 0 and numbers[STATUS] == RUNNING:
        priority = numbers[PRIORITY]
        while priority <= numbers[TOP] and heads[priority] < 0:
            priority += 1
        numbers[PRIORITY] = priority
        if priority > numbers[TOP]:
            numbers[STATUS] = LIMIT if numbers[CUT] else UNSOLVABLE
            break
        entry = heads[priority]
        state = entries[entry, 0]
        heads[priority] = entries[entry, 1]
        entries[entry, 1] = numbers[SPARE]
        numbers[SPARE] = entry
        if nodes[state, 3]:
            continue
        nodes[state, 3] = 1
        if not _has_room(rows, slots, entries, numbers, 4 * n_boxes):
            rows, nodes, slots, entries = _with_room(rows, nodes, slots, entries, numbers, keys, 4 * n_boxes)

        # The state: who stands where, and the bound.
        now += n + 1
        player = np.int64(rows[state, 0])
        for k in range(n_boxes):
            boxes[k] = rows[state, k + 1]
            c = int(boxes[k])
            box_at[c] = k + 1
            solid[c] = 1
            seen[c] = seen_after[c] = SOLID
            matching[BOX_SPOT, k] = spot_of(sides, c, player)
        total = match(table, matching)
        if total == 0:
            arrived = True
            if backwards:
                for k in range(n_boxes + 1):
                    arrived &= rows[state, k] == finish[k]
            if arrived:
                numbers[STATUS] = SOLVED
                numbers[FOUND] = state
                break
        expansions -= 1
        numbers[EXPANDED] += 1

        n_moves = 0
        if total < FAR:
            for j in range(n_boxes):
                end_of[matching[BOX_OF, j]] = j
            walked = flood(near, seen, player, now, queue)
            for s in range(n_images):
                player_low[s] = player if s == 0 else n
                boxes_key[s] = 0
                for k in range(n_boxes):
                    boxes_key[s] ^= keys[1, images[s, boxes[k]]]
            for s in range(1, n_images):
                for i in range(walked):
                    player_low[s] = min(player_low[s], images[s, queue[i]])
            n_moves = -1
            if not backwards and walked + n_boxes < n:
                n_moves = corral_pushes(near, goal, sides, alive, box_at, seen, now, inside, work, moves, scratch)
            if n_moves < 0:
                n_moves = 0
                for k in range(n_boxes):
                    for d in range(4):
                        behind = near[boxes[k], d ^ 1]
                        ahead = near[behind, d ^ 1] if backwards else near[boxes[k], d]
                        if seen[behind] == now and box_at[ahead] == 0:
                            moves[n_moves, 0] = boxes[k]
                            moves[n_moves, 1] = d
                            n_moves += 1

        cost = nodes[state, 0] + 1
        for i in range(n_moves):
            c, d = moves[i, 0], moves[i, 1]
            if backwards:  # undo a push in direction d
                to = near[c, d ^ 1]
                player = near[to, d ^ 1]
            else:
                to = near[c, d]
                player = c
            spot = spot_of(sides, np.int64(to), np.int64(player))
            if not alive[spot]:
                continue
            box = box_at[c] - 1
            box_at[c] = 0
            box_at[to] = box + 1
            boxes[box] = to
            solid[c] = 0
            solid[to] = 1
            # The new state's key, of all mirror images the smallest one.
            kept = not backwards and _region_kept(near, solid, seen, now, c, to, d)
            walked = best = 0
            key = np.int64(LARGEST_KEY)
            for s in range(n_images):
                low = min(player_low[s], images[s, c])
                if not kept or player_low[s] == images[s, to]:
                    if walked == 0:
                        now_after += 1
                        seen_after[c] = 0
                        seen_after[to] = SOLID
                        walked = flood(near, seen_after, np.int64(player), now_after, work)
                        seen_after[c] = SOLID
                        seen_after[to] = 0
                    low = n
                    for j in range(walked):
                        low = min(low, images[s, work[j]])
                image_key = boxes_key[s] ^ keys[1, images[s, c]] ^ keys[1, images[s, to]] ^ keys[0, low]
                if image_key < key:
                    best, key = s, image_key
                    row[0] = low
            for k in range(n_boxes):
                x = images[best, boxes[k]]
                j = k + 1
                while j > 1 and row[j - 1] > x:
                    row[j] = row[j - 1]
                    j -= 1
                row[j] = x
            # Most states are known already, so the costly tests come after the look-up.
            slot = _slot(rows, slots, row, key)
            new = (slots[slot] & 0x7FFFFFFF) - 1
            if new >= 0:
                hopeless = cost >= nodes[new, 0] or (nodes[new, 3] and not reopen)
            elif backwards:
                hopeless = False
            else:
                stuck = frozen(near, goal, solid, dead, boxes[box], boxes)
                hopeless = stuck == 2 or (
                    stuck == 1 and shut_out(near, ends, solid, box_at, n_boxes, rough_rows, rough, queue)
                )
                for k in range(n_boxes):
                    solid[boxes[k]] = 1
            boxes[box] = c
            box_at[c] = box + 1
            box_at[to] = 0
            solid[to] = 0
            solid[c] = 1
            if hopeless:
                continue
            bound = rematch(table, matching, total, end_of[box], spot)
            if bound >= FAR:
                continue
            if cost + bound > max_cost:
                numbers[CUT] = 1
                continue
            if new < 0:
                if numbers[COUNT] >= node_limit:
                    numbers[STATUS] = LIMIT
                    break
                new = numbers[COUNT]
                numbers[COUNT] += 1
                slots[slot] = (key >> 31 << 31) | (new + 1)
                for k in range(n_boxes + 1):
                    rows[new, k] = row[k]
            nodes[new, 0] = cost
            nodes[new, 1] = state
            nodes[new, 2] = (c * 4 + d) * 8 + best
            nodes[new, 3] = 0
            priority = cost_weight * cost + bound_weight * bound
            if priority >= heads.shape[0]:
                longer = np.full(2 * priority, -1, np.int32)
                for k in range(heads.shape[0]):
                    longer[k] = heads[k]
                heads = longer
            _open(heads, entries, numbers, new, priority)
        for k in range(n_boxes):
            box_at[boxes[k]] = solid[boxes[k]] = 0
            seen[boxes[k]] = seen_after[boxes[k]] = 0
    return Frontier(rows, nodes, slots, heads, entries, numbers)


# --- the driver -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _zobrist(size: int) -> np.ndarray:
    """Fixed random keys below ``2 ** 62``, ``int64 [2, size]``."""
    return np.random.default_rng(size).integers(1 << 62, size=(2, size))


def _problem(board: Board, ends: np.ndarray, player: int, finish: np.ndarray, backwards: bool) -> Problem:
    table = distances(board, ends, player, backwards)
    alive = table.min(axis=1) < FAR
    dead = np.ones(len(board.near), np.uint8)
    dead[board.place[alive]] = 0
    return Problem(board, table, alive.astype(np.uint8), dead, _keys(len(dead)), backwards, finish)


def _keys(size: int) -> np.ndarray:
    return _zobrist(1 << (size - 1).bit_length())


FIRST_SLICE, LONGEST_SLICE = 512, 8192
"""States that a search expands in its first turn, and in its longest."""
FINEST_TIES = 2000
"""Bounds up to this are told apart among states of equal priority; the open list has about its square of buckets."""


def search(
    walls: np.ndarray,
    targets: np.ndarray,
    deltas: np.ndarray,
    row: np.ndarray,
    *,
    objective: str,
    weight: float,
    max_cost: int | None,
    node_limit: int,
    time_limit: float | None,
) -> tuple[int, list[tuple[int, int]], int]:
    """Solve a board from the state ``row``.

    Args:
        walls: ``uint8`` flags per index of the framed buffer; the frame is wall.
        targets: flags alike.
        deltas: ``int64 [4]``, offsets of the neighbours up, down, left, right.
        row: ``int32 [player, box, box, ...]``.
        objective: ``pushes``: at most ``weight`` times the fewest pushes; ``any``: any solution.
        weight: 1 for the fewest pushes; ``any`` does not use it.
        max_cost: give up with ``LIMIT`` when every solution has more pushes.
        node_limit: give up with ``LIMIT`` when this many states are stored, in both directions together.
        time_limit: give up with ``LIMIT`` after this many seconds. The clock is looked at between slices of the search
            and starts after the first one, so that compiling does not count.

    Returns:
        ``SOLVED``, ``UNSOLVABLE`` (a proof) or ``LIMIT``; the pushes in order, as (index of the box before the push,
        direction); and the number of states expanded.
    """
    board = prepare(walls, targets, deltas, int(row[0]), objective == "pushes")
    number = {cell: c for c, cell in enumerate(board.cells.tolist())}
    start, *box_cells = row.tolist()
    player = number[start]
    boxes = np.array(sorted(number[b] for b in box_cells if b in number), np.int64)
    ends = np.flatnonzero(board.goal)
    if len(boxes) != len(ends) or any(b not in number and not targets[b] for b in box_cells):
        return UNSOLVABLE, [], 0
    if not len(boxes):
        return SOLVED, [], 0
    nothing = np.zeros(len(boxes) + 1, np.uint16)
    forwards = _problem(board, ends, player, nothing, False)
    frontiers = [begin(forwards, boxes, player)]
    if objective == "pushes":
        ratio = Fraction(int(weight * 16), 16)
        # Among equals the smallest bound goes first, by a weight on it that all bounds together cannot make felt.
        largest = int(np.where(forwards.table < FAR, forwards.table, 0).max(axis=0).sum())
        fine = largest + 1 if ratio == 1 and largest < FINEST_TIES else 1
        weights = [(fine * ratio.numerator + (fine > 1), fine * ratio.denominator)]
        problems = [forwards]
    else:
        weights = [(3, 2), (3, 1)]
        problems = [forwards, _problem(board, boxes, player, frontiers[0].rows[0].copy(), True)]
        frontiers.append(begin(problems[1], ends, -1))
    cost = UNBOUNDED if max_cost is None else max_cost
    size, deadline = FIRST_SLICE, None
    while True:
        for i, problem in enumerate(problems):
            room = node_limit - sum(int(f.numbers[COUNT]) for k, f in enumerate(frontiers) if k != i)
            frontiers[i] = advance(problem, frontiers[i], size, *weights[i], cost, room, max_cost is not None)
            numbers = frontiers[i].numbers
            status = int(numbers[STATUS])
            if time_limit is not None:
                deadline = deadline or time.monotonic() + time_limit
                if status == RUNNING and time.monotonic() >= deadline:
                    status = LIMIT
            if status != RUNNING:
                expanded = sum(int(f.numbers[EXPANDED]) for f in frontiers)
                plan = _plan(problem, frontiers[i]) if status == SOLVED else []
                return status, plan, expanded
        size = min(2 * size, LONGEST_SLICE)


def _plan(problem: Problem, frontier: Frontier) -> list[tuple[int, int]]:
    """The pushes from the root to the solved state, or, backwards, from the start found to the root."""
    board = problem.board
    chain = []
    _, state, made, _ = frontier.nodes[frontier.numbers[FOUND]].tolist()
    while state >= 0:
        chain.append(made)
        _, state, made, _ = frontier.nodes[state].tolist()
    cells, near = board.cells.tolist(), board.near.tolist()
    if problem.backwards:  # without symmetries
        return [(cells[near[c][d ^ 1]], d) for c, d in (divmod(made >> 3, 4) for made in chain)]
    chain.reverse()
    if len(board.images) == 1:
        return [(cells[c], d) for c, d in (divmod(made >> 3, 4) for made in chain)]
    plan = []
    real = board.images[0]  # what the cells of the stored state are on the board
    for made in chain:
        c, d = divmod(made >> 3, 4)
        origin = int(real[c])
        plan.append((cells[origin], near[origin].index(real[near[c][d]])))
        after = np.empty_like(real)
        after[board.images[made & 7]] = real
        real = after
    return plan
