"""Sokoban search for boards of any size and any number of boxes: forwards by pushes, backwards by pulls.

Read it from top to bottom:

1. *Board.* The floor that the player could walk on if there were no boxes is numbered 0, 1, ...; the number after the
   last stands for every wall. Boxes elsewhere never move: on a target they are ignored, off a target they are a proof
   that there is no solution.
2. *Lone boxes.* A box on a cut cell of the floor divides it, and the side on which the player stands decides where he
   can push it. A *spot* is a cell together with such a side. ``_distances`` holds the fewest pushes of a lone box
   between every spot and every target (or, for the search backwards, every start).
3. *Lower bound.* Every box needs a target of its own: the cheapest perfect matching by those distances (Hungarian
   method) never exceeds the pushes to go. Pushing one box leaves the player on the same side of all others, so one
   push lowers the bound by at most one: the bound is consistent, and A* expands no state twice.
4. *Deadlocks.* Cut off, without ever losing a solution, are spots without a target in reach, states without a perfect
   matching, boxes frozen off target (the greatest set in which each one blocks the others along both axes), and
   corrals into which nothing can be pushed.
5. *PI-corrals* (B. Damgaard; Sokoban wiki, "Solver"). Let ``inside`` be empty cells that the player cannot reach and
   ``fence`` boxes around them, such that the first push of a fence box, whatever happened elsewhere before, must go
   into ``inside`` and is possible now. If something there is still to be done, some fence box must be pushed sooner or
   later; doing so first spoils nothing, as it only opens cells outside. Hence no other pushes need be looked at, and
   the fewest pushes stay the fewest.
6. *States* are rows ``[player, box, box, ...]`` in ascending order, the player being the smallest cell that he can
   walk to. A hash table finds them by Zobrist keys and compares whole rows. Boards whose floor and targets are
   symmetric keep one state of each class of mirror images.
7. *Searches.* Weighted A* with a bucket queue, last in, first out. ``weight`` above 1 (rounded down to sixteenths)
   bounds the cost by ``weight`` times the optimum without expanding anything twice (Likhachev, Gordon and Thrun 2003,
   ARA*). The objective ``any`` lets a search forwards and one backwards take turns in growing slices.

Simplifications: one thread; no macro moves, and deadlocks are not looked up in pattern tables. Compiled code never
looks at a clock: it returns after a number of expansions and is called again. All of it lives in this file because
numba's cache does not notice changes in other files; nothing is recursive.
"""

from __future__ import annotations

import time
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ragen_envs.jit import njit
from ragen_envs.sokoban.search import LIMIT, SOLVED, UNBOUNDED, UNSOLVABLE

RUNNING = 3
"""Status of a search that may be continued."""
FAR = 1 << 30
"""Distance of what cannot be reached. More than any finite sum of distances."""
REST = 4
"""The side of a cell that lies behind none of its branches."""

# --- the board ------------------------------------------------------------------------------------------------------


class Board(NamedTuple):
    """What never changes during a search. ``n`` floor cells are numbered; number ``n`` is every wall."""

    cells: np.ndarray
    """``int32 [n]``: index in the framed buffer."""
    near: np.ndarray
    """``int32 [n + 1, 4]``: neighbours up, down, left, right."""
    goal: np.ndarray
    """``uint8 [n + 1]``: the cell is a target."""
    enter: np.ndarray
    """``int32 [n]``: when a depth-first walk enters the cell ..."""
    leave: np.ndarray
    """... and leaves it for good. The cells below ``c`` in the tree entered in ``enter[c]`` to ``leave[c] - 1``."""
    branch: np.ndarray
    """``uint8 [n, 4]``: the neighbour is a child in the tree that is cut off if a box stands on the cell."""
    spot: np.ndarray
    """``int32 [n, 5]``: number of the spot (cell, side), side = direction of a branch or ``REST``; -1 = none."""
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
    enter = np.full(n, -1, np.int32)
    leave = np.empty(n, np.int32)
    highest = np.empty(n, np.int32)
    turn = np.zeros(n, np.int32)
    branch = np.zeros((n, 4), np.uint8)
    path = np.empty(n, np.int32)
    path[0] = enter[0] = highest[0] = 0
    depth, clock = 1, 1
    while depth > 0:
        c = path[depth - 1]
        if turn[c] < 4:
            x = near[c, turn[c]]
            turn[c] += 1
            if x == n:
                continue
            if enter[x] < 0:
                path[depth] = x
                enter[x] = highest[x] = clock
                depth += 1
                clock += 1
            elif enter[x] < highest[c]:
                highest[c] = enter[x]
        else:
            leave[c] = clock
            depth -= 1
            if depth > 0:
                above = path[depth - 1]
                highest[above] = min(highest[above], highest[c])
                branch[above, turn[above] - 1] = highest[c] >= enter[above]
    if branch[0].sum() == 1:
        branch[0, :] = 0  # the walk began here: its only branch is all the rest
    spot = np.full((n, 5), -1, np.int32)
    place = np.empty(5 * n, np.int32)
    spots = 0
    for c in range(n):
        for side in range(5):
            if side == REST or branch[c, side]:
                spot[c, side] = spots
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
    return Board(cells, near, goal, enter, leave, branch, spot, place[:spots].copy(), images[:m].copy())


@njit
def spot_of(board, box, player):  # type: ignore[no-untyped-def]
    """The spot of a box with the player somewhere else, other boxes apart."""
    for d in range(4):
        if board.branch[box, d]:
            child = board.near[box, d]
            if board.enter[child] <= board.enter[player] < board.leave[child]:
                return board.spot[box, d]
    return board.spot[box, REST]


@njit
def distances(board, ends, player, backwards):  # type: ignore[no-untyped-def]
    """``int32 [spots, ends]``: fewest pushes of a lone box from a spot to each end, ``FAR`` where there is no way.

    With ``backwards``: from each end, the player standing at ``player``, to a spot.
    """
    near, n_spots = board.near, board.place.shape[0]
    n = near.shape[0] - 1
    table = np.full((n_spots, ends.shape[0]), FAR, np.int32)
    queue = np.empty(n_spots, np.int32)
    for j in range(ends.shape[0]):
        tail = 0
        if backwards:
            queue[0] = spot_of(board, ends[j], player)
            tail = 1
        else:
            for side in range(5):
                if board.spot[ends[j], side] >= 0:
                    queue[tail] = board.spot[ends[j], side]
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
                before, after = spot_of(board, origin, behind), spot_of(board, ahead, origin)
                known, new = (before, after) if backwards else (after, before)
                if known == here and table[new, j] == FAR:
                    table[new, j] = table[here, j] + 1
                    queue[tail] = new
                    tail += 1
    return table


# --- the lower bound ------------------------------------------------------------------------------------------------


class Matching(NamedTuple):
    """A cheapest perfect matching of boxes and ends with its dual prices, and scratch space. All ``int64 [boxes]``."""

    spots: np.ndarray
    """Spot of each box."""
    box_price: np.ndarray
    end_price: np.ndarray
    """Never more in sum than the distance, and exactly the distance for matched pairs."""
    box_of: np.ndarray
    """The box matched with an end, or -1."""
    best: np.ndarray
    previous: np.ndarray
    done: np.ndarray


@njit
def _new_matching(n_boxes):  # type: ignore[no-untyped-def]
    a = np.zeros((7, n_boxes), np.int64)
    return Matching(a[0], a[1], a[2], a[3], a[4], a[5], a[6])


@njit
def _cheapest_path(table, matching, spot):  # type: ignore[no-untyped-def]
    """Dijkstra over ends, from a box on ``spot`` to the nearest unmatched end: that end, and the reduced distance."""
    box_of, best, done = matching.box_of, matching.best, matching.done
    n_ends = box_of.shape[0]
    for j in range(n_ends):
        best[j] = table[spot, j] - matching.end_price[j]
        matching.previous[j] = -1
        done[j] = 0
    while True:
        end = -1
        for j in range(n_ends):
            if not done[j] and (end < 0 or best[j] < best[end]):
                end = j
        box = box_of[end]
        if box < 0:
            return end, best[end]
        done[end] = 1
        base, row = best[end] - matching.box_price[box], matching.spots[box]
        for j in range(n_ends):
            if not done[j]:
                through = base + table[row, j] - matching.end_price[j]
                if through < best[j]:
                    best[j] = through
                    matching.previous[j] = end


@njit
def match(table, matching):  # type: ignore[no-untyped-def]
    """Match all boxes on ``matching.spots``; their total distance, or ``FAR`` if no finite perfect matching exists."""
    box_of, previous = matching.box_of, matching.previous
    n_boxes = box_of.shape[0]
    matching.end_price[:] = 0
    box_of[:] = -1
    total = 0
    for i in range(n_boxes):
        end, length = _cheapest_path(table, matching, matching.spots[i])
        total += length
        if total >= FAR:
            return FAR
        for j in range(n_boxes):
            if matching.done[j]:
                matching.end_price[j] += matching.best[j] - length
                matching.box_price[box_of[j]] += length - matching.best[j]
        matching.box_price[i] = length
        while previous[end] >= 0:
            box_of[end] = box_of[previous[end]]
            end = previous[end]
        box_of[end] = i
    return total


@njit
def rematch(table, matching, total, box, end, spot):  # type: ignore[no-untyped-def]
    """The total if ``box``, matched with ``end``, stood on ``spot``. The matching stays as it is."""
    shorter = table[matching.spots[box], end] - 1
    if table[spot, end] == shorter:
        return total - 1  # one push never gains more
    matching.box_of[end] = -1
    length = _cheapest_path(table, matching, spot)[1]
    matching.box_of[end] = box
    return min(total - matching.box_price[box] + length, FAR)


# --- deadlocks and corrals ------------------------------------------------------------------------------------------


@njit
def flood(near, box_at, start, reach, now, queue):  # type: ignore[no-untyped-def]
    """Stamp ``reach`` with ``now`` where the player can walk from ``start``; their number, listed in ``queue``."""
    reach[start] = now
    queue[0] = start
    head, tail = 0, 1
    while head < tail:
        c = queue[head]
        head += 1
        for d in range(4):
            x = near[c, d]
            if box_at[x] == 0 and reach[x] != now:
                reach[x] = now
                queue[tail] = x
                tail += 1
    return tail


@njit
def _blocked(near, box_at, dead, loose, cell, axis):  # type: ignore[no-untyped-def]
    """The box cannot move along the axis: something solid beside it, or squares without hope on both sides."""
    x, y = near[cell, axis], near[cell, axis + 1]
    return (
        (box_at[x] != 0 and not loose[x]) or (box_at[y] != 0 and not loose[y]) or (dead[x] and dead[y])
    )


@njit
def frozen(near, goal, box_at, dead, loose, cell, cluster):  # type: ignore[no-untyped-def]
    """The box on ``cell`` can never move again, and it or a box that it needs for that is off target.

    Starts from the whole cluster of touching boxes and takes out boxes that could move if the others were solid,
    until none can. ``loose`` (all zero between calls) marks the boxes taken out.
    """
    if not (_blocked(near, box_at, dead, loose, cell, 0) and _blocked(near, box_at, dead, loose, cell, 2)):
        return False
    cluster[0] = cell
    loose[cell] = 1
    head, n = 0, 1
    while head < n:
        for d in range(4):
            x = near[cluster[head], d]
            if box_at[x] > 0 and not loose[x]:
                loose[x] = 1
                cluster[n] = x
                n += 1
        head += 1
    for i in range(n):
        loose[cluster[i]] = 0
    changed = True
    while changed and not loose[cell]:
        changed = False
        for i in range(n):
            c = cluster[i]
            if not loose[c] and not (
                _blocked(near, box_at, dead, loose, c, 0) and _blocked(near, box_at, dead, loose, c, 2)
            ):
                loose[c] = 1
                changed = True
    stuck = False
    if not loose[cell]:
        for i in range(n):
            stuck |= not loose[cluster[i]] and not goal[cluster[i]]
    for i in range(n):
        loose[cluster[i]] = 0
    return stuck


@njit
def corral_pushes(board, alive, box_at, reach, now, marks, stamp, work, moves, scratch):  # type: ignore[no-untyped-def]
    """The pushes into the PI-corral with the fewest of them, as rows (box cell, direction) of ``moves``.

    ``reach`` is stamped with ``now`` where the player can walk. Rows of ``marks``: cells and boxes of the corral under
    construction, and empty cells from which one was begun; stamps up to ``stamp`` are old.

    Returns:
        Their number (0 = deadlock), or -1 if there is no PI-corral; and the last stamp used.
    """
    near, goal, inside, begun = board.near, board.goal, marks[0], marks[1]
    n = near.shape[0] - 1
    fewest, old = -1, stamp
    for seed in range(n):
        if box_at[seed] != 0 or reach[seed] == now or begun[seed] > old:
            continue
        # Cells and boxes are added to one list until every push of a listed box is settled: it goes inside and is
        # possible now, or it is impossible before another listed box has moved.
        stamp += 1
        tail = flood(near, box_at, seed, begun, stamp, work)
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
                if behind == n or ahead == n or not alive[spot_of(board, ahead, c)]:
                    continue
                if inside[behind] == stamp or (box_at[ahead] > 0 and inside[ahead] == stamp):
                    continue
                add = behind
                if reach[behind] == now:
                    add = ahead
                    if reach[ahead] == now:  # it may go outside
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
            moves[:found] = scratch[:found]
            if found == 0:
                break
    return fewest, stamp


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
def _key(keys, row):  # type: ignore[no-untyped-def]
    key = keys[0, row[0]]
    for k in range(1, row.shape[0]):
        key ^= keys[1, row[k]]
    return key


@njit
def _longer(array, size):  # type: ignore[no-untyped-def]
    new = np.empty((size, array.shape[1]), array.dtype)
    new[: array.shape[0]] = array
    return new


@njit
def _with_room(frontier, keys, more):  # type: ignore[no-untyped-def]
    """The frontier with room for ``more`` states and entries; the hash table at most half full."""
    rows, nodes, slots, heads, entries, numbers = frontier
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
            key = _key(keys, rows[i])
            slot = key & (size - 1)
            while slots[slot] != 0:
                slot = (slot + 1) & (size - 1)
            slots[slot] = (key >> 31 << 31) | (i + 1)
    if numbers[ENTRIES] + more > entries.shape[0]:
        entries = _longer(entries, max(numbers[ENTRIES] + more, 2 * entries.shape[0]))
    return Frontier(rows, nodes, slots, heads, entries, numbers)


@njit
def _with_entry(frontier, state, priority):  # type: ignore[no-untyped-def]
    """The frontier with ``state`` in its open list."""
    rows, nodes, slots, heads, entries, numbers = frontier
    if priority >= heads.shape[0]:
        longer = np.full(2 * priority + 64, -1, np.int32)
        longer[: heads.shape[0]] = heads
        heads = longer
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
    return Frontier(rows, nodes, slots, heads, entries, numbers)


@njit
def begin(problem, boxes, player):  # type: ignore[no-untyped-def]
    """The frontier that holds the state of ``boxes`` with the player at ``player``, or, if -1, anywhere he can be."""
    near, keys = problem.board.near, problem.keys
    n, n_boxes = near.shape[0] - 1, boxes.shape[0]
    rows = np.empty((256, n_boxes + 1), np.uint16)
    nodes = np.empty((256, 4), np.int32)
    slots = np.zeros(512, np.int64)
    heads = np.full(256, -1, np.int32)
    entries = np.empty((256, 2), np.int32)
    numbers = np.zeros(9, np.int64)
    numbers[SPARE] = numbers[FOUND] = -1
    numbers[PRIORITY] = UNBOUNDED
    numbers[STATUS] = RUNNING
    frontier = Frontier(rows, nodes, slots, heads, entries, numbers)
    box_at = np.zeros(n + 1, np.int32)
    box_at[n] = -1
    for k in range(n_boxes):
        box_at[boxes[k]] = k + 1
    reach = np.zeros(n + 1, np.int64)
    queue = np.empty(n, np.int32)
    for cell in range(n):
        if box_at[cell] == 0 and reach[cell] == 0:
            flood(near, box_at, cell, reach, cell + 1, queue)
            if player < 0 or reach[player] == cell + 1:
                frontier = _with_room(frontier, keys, 1)
                i = numbers[COUNT]
                row = frontier.rows[i]
                row[0] = cell
                row[1:] = boxes
                frontier.nodes[i, 0], frontier.nodes[i, 1], frontier.nodes[i, 2], frontier.nodes[i, 3] = 0, -1, 0, 0
                key = _key(keys, row)
                frontier.slots[_slot(frontier.rows, frontier.slots, row, key)] = (key >> 31 << 31) | (i + 1)
                numbers[COUNT] += 1
                # The bound is computed when the state is taken out; among roots the order is not important, so that
                # the lowest priority serves.
                frontier = _with_entry(frontier, i, 0)
    return frontier


@njit
def _region_kept(near, box_at, reach, now, origin, to, d):  # type: ignore[no-untyped-def]
    """After the push from ``origin`` to ``to`` the player surely reaches what he did, less ``to``, and ``origin``.

    True if nothing beyond ``origin`` opens up and the free neighbours of ``to`` are joined around it. Saves a flood.
    """
    for e in range(4):
        x = near[origin, e]
        if box_at[x] == 0 and reach[x] != now:
            return False
    if reach[to] != now:
        return True
    ahead = near[to, d]
    joined = box_at[ahead] != 0
    for turned in range(2):
        e = turned if d >= 2 else turned + 2
        if box_at[near[to, e]] == 0:
            if box_at[near[origin, e]] != 0:
                return False
            joined |= box_at[near[ahead, e]] == 0
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
    near, goal, images = board.near, board.goal, board.images
    numbers = frontier.numbers
    n, n_images, n_boxes = near.shape[0] - 1, images.shape[0], finish.shape[0] - 1
    box_at = np.zeros(n + 1, np.int32)  # index of the box + 1; a wall is -1
    box_at[n] = -1
    reach = np.zeros(n + 1, np.int64)
    reach_after = np.zeros(n + 1, np.int64)
    marks = np.zeros((2, n + 1), np.int64)
    queue = np.empty(n, np.int32)
    work = np.empty(n, np.int32)
    loose = np.zeros(n + 1, np.uint8)
    moves = np.empty((4 * n_boxes, 2), np.int32)
    scratch = np.empty((4 * n_boxes, 2), np.int32)
    matching = _new_matching(n_boxes)
    end_of = np.empty(n_boxes, np.int64)
    player_low = np.empty(n_images, np.int64)
    boxes_key = np.empty(n_images, np.int64)
    row = np.empty(n_boxes + 1, np.uint16)
    now = stamp = 0
    while expansions > 0 and numbers[STATUS] == RUNNING:
        priority = numbers[PRIORITY]
        while priority <= numbers[TOP] and frontier.heads[priority] < 0:
            priority += 1
        numbers[PRIORITY] = priority
        if priority > numbers[TOP]:
            numbers[STATUS] = LIMIT if numbers[CUT] else UNSOLVABLE
            break
        entry = frontier.heads[priority]
        state = frontier.entries[entry, 0]
        frontier.heads[priority] = frontier.entries[entry, 1]
        frontier.entries[entry, 1] = numbers[SPARE]
        numbers[SPARE] = entry
        if frontier.nodes[state, 3]:
            continue
        frontier.nodes[state, 3] = 1
        frontier = _with_room(frontier, keys, 4 * n_boxes)
        rows, nodes, slots = frontier.rows, frontier.nodes, frontier.slots

        # The state: who stands where, where the player can walk, the bound.
        now += 1
        player = int(rows[state, 0])
        for k in range(n_boxes):
            c = int(rows[state, k + 1])
            box_at[c] = k + 1
            matching.spots[k] = spot_of(board, c, player)
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
        if total < FAR:
            for j in range(n_boxes):
                end_of[matching.box_of[j]] = j
            walked = flood(near, box_at, player, reach, now, queue)
            for s in range(n_images):
                player_low[s] = n
                for i in range(walked):
                    player_low[s] = min(player_low[s], images[s, queue[i]])
                boxes_key[s] = 0
                for k in range(1, n_boxes + 1):
                    boxes_key[s] ^= keys[1, images[s, rows[state, k]]]

            n_moves = -1
            if not backwards and walked + n_boxes < n:
                n_moves, stamp = corral_pushes(
                    board, alive, box_at, reach, now, marks, stamp, work, moves, scratch
                )
            if n_moves < 0:
                n_moves = 0
                for k in range(1, n_boxes + 1):
                    c = rows[state, k]
                    for d in range(4):
                        behind = near[c, d ^ 1]
                        if reach[behind] == now and box_at[near[behind, d ^ 1] if backwards else near[c, d]] == 0:
                            moves[n_moves, 0] = c
                            moves[n_moves, 1] = d
                            n_moves += 1

            for i in range(n_moves):
                c, d = moves[i, 0], moves[i, 1]
                if backwards:  # undo a push in direction d
                    to = near[c, d ^ 1]
                    player = near[to, d ^ 1]
                else:
                    to = near[c, d]
                    player = c
                spot = spot_of(board, to, player)
                if not alive[spot]:
                    continue
                box = box_at[c] - 1
                bound = rematch(table, matching, total, box, end_of[box], spot)
                if bound >= FAR:
                    continue
                cost = nodes[state, 0] + 1
                if cost + bound > max_cost:
                    numbers[CUT] = 1
                    continue
                box_at[c] = 0
                box_at[to] = box + 1
                if backwards or not frozen(near, goal, box_at, dead, loose, to, queue):
                    # The new state's row, of all mirror images the one with the smallest key.
                    kept = not backwards and _region_kept(near, box_at, reach, now, c, to, d)
                    walked = 0
                    best = 0
                    key = UNBOUNDED << 22
                    for s in range(n_images):
                        low = min(player_low[s], images[s, c])
                        if not kept or player_low[s] == images[s, to]:
                            if walked == 0:
                                now_after = now * 4 * n_boxes + i
                                walked = flood(near, box_at, player, reach_after, now_after, work)
                            low = n
                            for j in range(walked):
                                low = min(low, images[s, work[j]])
                        image_key = boxes_key[s] ^ keys[1, images[s, c]] ^ keys[1, images[s, to]] ^ keys[0, low]
                        if image_key < key:
                            best, key = s, image_key
                            row[0] = low
                    for k in range(1, n_boxes + 1):
                        x = images[best, to if k == box + 1 else rows[state, k]]
                        j = k
                        while j > 1 and row[j - 1] > x:
                            row[j] = row[j - 1]
                            j -= 1
                        row[j] = x
                    slot = _slot(rows, slots, row, key)
                    new = (slots[slot] & 0x7FFFFFFF) - 1
                    if new < 0:
                        if numbers[COUNT] >= node_limit:
                            numbers[STATUS] = LIMIT
                            break
                        new = numbers[COUNT]
                        numbers[COUNT] += 1
                        rows[new] = row
                        slots[slot] = (key >> 31 << 31) | (new + 1)
                        better = True
                    else:
                        better = cost < nodes[new, 0] and (reopen or not nodes[new, 3])
                    if better:
                        nodes[new, 0], nodes[new, 1], nodes[new, 2], nodes[new, 3] = cost, state, (c * 4 + d) * 8 + best, 0
                        frontier = _with_entry(frontier, new, cost_weight * cost + bound_weight * bound)
                box_at[c] = box + 1
                box_at[to] = 0
        for k in range(1, n_boxes + 1):
            box_at[rows[state, k]] = 0
    return frontier


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
        objective: ``pushes``: at most ``weight`` times the fewest pushes; ``any``: any solution (``weight`` is not used).
        weight: 1 for the fewest pushes.
        max_cost: give up with ``LIMIT`` when every solution has more pushes.
        node_limit: give up with ``LIMIT`` when this many states are stored, in both directions together.
        time_limit: give up with ``LIMIT`` after this many seconds; looked at between slices of the search.

    Returns:
        ``SOLVED``, ``UNSOLVABLE`` (a proof) or ``LIMIT``; the pushes in order, as (index of the box before the push,
        direction); and the number of states expanded.
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    board = prepare(walls, targets, deltas, int(row[0]), objective == "pushes")
    number = {int(cell): c for c, cell in enumerate(board.cells)}
    boxes = np.array(sorted(number[b] for b in row[1:].tolist() if b in number), np.int64)
    ends = np.flatnonzero(board.goal)
    if len(boxes) != len(ends) or any(b not in number and not targets[b] for b in row[1:].tolist()):
        return UNSOLVABLE, [], 0
    player = number[int(row[0])]
    if not len(boxes):
        return SOLVED, [], 0
    nothing = np.zeros(len(boxes) + 1, np.uint16)
    forwards = _problem(board, ends, player, nothing, False)
    frontiers = [begin(forwards, boxes, player)]
    if objective == "pushes":
        ratio = Fraction(int(weight * 16), 16)
        weights = [(ratio.numerator, ratio.denominator)]
        problems = [forwards]
    else:
        weights = [(3, 1), (3, 1)]
        problems = [forwards, _problem(board, boxes, player, frontiers[0].rows[0].copy(), True)]
        frontiers.append(begin(problems[1], ends, -1))
    cost = UNBOUNDED if max_cost is None else max_cost
    size = FIRST_SLICE
    while True:
        for i, problem in enumerate(problems):
            room = node_limit - sum(int(f.numbers[COUNT]) for k, f in enumerate(frontiers) if k != i)
            frontiers[i] = advance(problem, frontiers[i], size, *weights[i], cost, room, max_cost is not None)
            numbers = frontiers[i].numbers
            status = int(numbers[STATUS])
            if status == RUNNING and deadline is not None and time.monotonic() > deadline:
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
    state = int(frontier.numbers[FOUND])
    while frontier.nodes[state, 1] >= 0:
        chain.append(int(frontier.nodes[state, 2]))
        state = int(frontier.nodes[state, 1])
    if problem.backwards:  # no symmetries there
        moves = [divmod(made >> 3, 4) for made in chain]
        return [(int(board.cells[board.near[c, d ^ 1]]), d) for c, d in moves]
    plan = []
    real = board.images[0]  # what the cells of the stored state are on the board
    for made in reversed(chain):
        c, d = divmod(made >> 3, 4)
        origin, to = real[c], real[board.near[c, d]]
        plan.append((int(board.cells[origin]), board.near[origin].tolist().index(to)))
        after = np.empty_like(real)
        after[board.images[made & 7]] = real
        real = after
    return plan
