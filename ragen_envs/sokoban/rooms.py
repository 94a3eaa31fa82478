"""Compiled work of the generator: carving rooms, random placements, and the exact optimum of a start.

Everything is laid out on the flat board, ``height * width`` cells whose border is wall, so that a neighbour is one
fixed offset away. A start is a row ``[player, box, box, ...]`` of cells, boxes in ascending order.

Simplifications: the search for an optimum is A* over whole pushes, the player's walk in between being a flood fill;
its estimate is the cheapest matching of boxes to targets, each box alone in the room and the player wherever he is
needed (with more than ``MATCHED`` boxes: each box to its nearest target). Of deadlocks it sees dead cells, impossible
matchings and frozen boxes. All helpers live in this file because numba's cache does not notice changes elsewhere.
"""

from __future__ import annotations

import numpy as np

from ragen_envs.jit import njit

UNSOLVABLE, LIMIT = -1, -2
"""What :func:`optimum` returns where it has no number: proved unsolvable, or given up."""
MATCHED = 8
_FAR = 1 << 20


@njit
def draw(random, n):  # type: ignore[no-untyped-def]
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
def carve(random, height, width, boxes):  # type: ignore[no-untyped-def]
    """A room: ``floor [height * width]`` flags with a border of zeros, and the cells of its targets, ascending.

    The walker keeps its direction with probability 2/3 and opens a random cell beside its path now and then, until a
    random share of the interior is open. All open cells are connected because each one touches an earlier one.
    """
    inner_height, inner_width = height - 2, width - 2
    interior = inner_height * inner_width
    fewest = min(interior, max(2 * boxes + 2, interior // 2))
    wanted = fewest + draw(random, max(1, (9 * interior + 9) // 10 - fewest + 1))
    floor = np.zeros(height * width, np.uint8)
    row = 1 + draw(random, inner_height)
    column = 1 + draw(random, inner_width)
    floor[row * width + column] = 1
    n_open = 1
    turn = draw(random, 4)
    for _ in range(200 * interior):
        if n_open >= wanted:
            break
        if draw(random, 3) == 0:
            turn = draw(random, 4)
        beside = draw(random, 4) == 0  # open a neighbour without going there
        way = draw(random, 4) if beside else turn
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
            turn = draw(random, 4)
            continue
        if not floor[r * width + c]:
            floor[r * width + c] = 1
            n_open += 1
        if not beside:
            row, column = r, c
    cells = np.flatnonzero(floor)
    n_targets = min(boxes, n_open)
    _shuffle(random, cells, n_targets)
    return floor, _ascending(cells[:n_targets])


@njit
def _shuffle(random, cells, n):  # type: ignore[no-untyped-def]
    """Make the first ``n`` of ``cells`` a uniform draw without replacement, in random order."""
    for k in range(n):
        other = k + draw(random, cells.shape[0] - k)
        cells[k], cells[other] = cells[other], cells[k]


@njit
def _ascending(cells):  # type: ignore[no-untyped-def]
    """A sorted copy of a few cells (``np.sort`` takes seconds to compile)."""
    out = np.empty(cells.shape[0], np.int64)
    for k in range(cells.shape[0]):
        j = k
        while j > 0 and out[j - 1] > cells[k]:
            out[j] = out[j - 1]
            j -= 1
        out[j] = cells[k]
    return out


@njit
def push_distances(floor, targets, deltas):  # type: ignore[no-untyped-def]
    """``[targets, cells]``: fewest pushes that bring a lone box from a cell to the target, ``_FAR`` if it never can.

    The player is taken to be wherever he is needed, so the distance is a lower bound, and ``_FAR`` is certain.
    """
    n = floor.shape[0]
    distance = np.full((targets.shape[0], n), _FAR, np.int32)
    queue = np.empty(n, np.int32)
    for t in range(targets.shape[0]):
        near = distance[t]
        near[targets[t]] = 0
        queue[0] = targets[t]
        head, tail = 0, 1
        while head < tail:
            cell = queue[head]
            head += 1
            for a in range(4):
                origin = cell - deltas[a]
                if floor[origin] and near[origin] == _FAR and floor[origin - deltas[a]]:
                    near[origin] = near[cell] + 1
                    queue[tail] = origin
                    tail += 1
    return distance


@njit
def _estimate(distance, row, best):  # type: ignore[no-untyped-def]
    """Fewest pushes by cheapest matching, at least ``_FAR`` if no matching exists; ``best [2 ** boxes]`` is scratch.

    A push changes it by at most 1, so it is consistent.
    """
    n_boxes = row.shape[0] - 1
    if n_boxes == 1:
        return int(distance[0, row[1]])
    if n_boxes > MATCHED:
        total = 0
        for k in range(1, n_boxes + 1):
            near = _FAR
            for t in range(n_boxes):
                near = min(near, int(distance[t, row[k]]))
            total += near
        return total
    best[0] = 0
    for taken in range(1, 1 << n_boxes):  # the targets taken by the first boxes, as a bit set
        k = 0
        for t in range(n_boxes):
            k += (taken >> t) & 1
        cell = row[k]
        least = n_boxes * _FAR
        for t in range(n_boxes):
            if (taken >> t) & 1:
                least = min(least, int(best[taken ^ (1 << t)]) + int(distance[t, cell]))
        best[taken] = least
    return int(best[(1 << n_boxes) - 1])


@njit
def _flood(open_, deltas, start, seen, stamp, walk, queue):  # type: ignore[no-untyped-def]
    """Walk everywhere from ``start`` over ``open_`` cells: ``seen`` gets ``stamp``, ``walk`` the distance.

    Returns the smallest cell reached, which names the region.
    """
    seen[start] = stamp
    walk[start] = 0
    queue[0] = start
    head, tail = 0, 1
    least = start
    while head < tail:
        cell = queue[head]
        head += 1
        least = min(least, cell)
        for a in range(4):
            near = cell + deltas[a]
            if open_[near] and seen[near] != stamp:
                seen[near] = stamp
                walk[near] = walk[cell] + 1
                queue[tail] = near
                tail += 1
    return least


@njit
def _frozen(floor, alive, is_target, deltas, row, held):  # type: ignore[no-untyped-def]
    """Some box that is not on a target can never move again. ``held [cells]`` is scratch, all 0 before and after.

    Hold every box, then let go each one that has, along some axis, no wall and no held box on either side, and a cell
    to go to from which a target can be reached; what is still held in the end is blocked by walls and by each other.
    """
    n_boxes = row.shape[0] - 1
    for k in range(1, n_boxes + 1):
        held[row[k]] = 1
    changed = True
    while changed:
        changed = False
        for k in range(1, n_boxes + 1):
            box = int(row[k])
            if not held[box]:
                continue
            for axis in range(1, 4, 2):
                a, b = box - deltas[axis], box + deltas[axis]
                if floor[a] and floor[b] and not held[a] and not held[b] and (alive[a] or alive[b]):
                    held[box] = 0
                    changed = True
                    break
    frozen = False
    for k in range(1, n_boxes + 1):
        frozen = frozen or (held[row[k]] != 0 and not is_target[row[k]])
        held[row[k]] = 0
    return frozen


@njit
def _slot(pool, i, table):  # type: ignore[no-untyped-def]
    """Slot of ``table`` (index + 1, 0 = free) that holds a row equal to ``pool[i]``, or the free one for it."""
    h = 0
    for k in range(pool.shape[1]):
        # Kept below 2**31 so that compiled and interpreted arithmetic agree without overflow.
        h = ((h * 1000003) ^ int(pool[i, k])) & 0x7FFFFFFF
    mask = table.shape[0] - 1
    slot = (h ^ (h >> 15)) & mask
    while table[slot] != 0:
        j = table[slot] - 1
        same = True
        for k in range(pool.shape[1]):
            if pool[i, k] != pool[j, k]:
                same = False
                break
        if same:
            break
        slot = (slot + 1) & mask
    return slot


@njit
def _grown(array, n):  # type: ignore[no-untyped-def]
    """A copy of twice the length; only the first ``n`` rows are filled."""
    bigger = np.empty((2 * array.shape[0], array.shape[1]), np.int64)
    for i in range(n):  # loops, here and below: numba takes seconds to compile an assignment to a slice
        for k in range(array.shape[1]):
            bigger[i, k] = array[i, k]
    return bigger


@njit
def optimum(floor, targets, deltas, distance, start, by_moves, node_limit):  # type: ignore[no-untyped-def]
    """Fewest pushes (or, ``by_moves``, fewest primitive actions) that solve the start row ``start``.

    A node is a placement of the boxes and the cell of the player after the last push; for pushes alone, the region
    that he can reach stands for his cell. The estimate is consistent for both, so a node is expanded once.

    Args:
        floor: ``uint8 [cells]`` flags.
        targets: cells, ascending.
        distance: of :func:`push_distances`.
        node_limit: give up when this many nodes are stored.

    Returns:
        The optimum, ``UNSOLVABLE`` or ``LIMIT``, and the number of nodes stored.
    """
    n_boxes = start.shape[0] - 1
    n_cells = floor.shape[0]
    best = np.empty(1 << min(n_boxes, MATCHED), np.int32)
    estimate = _estimate(distance, start, best)
    if estimate >= _FAR:
        return UNSOLVABLE, 0
    if estimate == 0:
        return 0, 0
    is_target = np.zeros(n_cells, np.uint8)
    alive = np.zeros(n_cells, np.uint8)
    for t in range(n_boxes):
        is_target[targets[t]] = 1
        for cell in range(n_cells):
            if distance[t, cell] < _FAR:
                alive[cell] = 1
    held = np.zeros(n_cells, np.uint8)
    if _frozen(floor, alive, is_target, deltas, start, held):
        return UNSOLVABLE, 0
    seen = np.zeros(n_cells, np.int64)
    walk = np.zeros(n_cells, np.int32)
    marked = np.zeros(n_cells, np.int64)
    unused = np.zeros(n_cells, np.int32)
    queue = np.empty(n_cells, np.int64)
    open_ = floor.copy()
    stamp = mark = 0

    capacity = 128
    pool = np.empty((capacity, n_boxes + 1), np.int64)
    table = np.zeros(2 * capacity, np.int64)
    node = np.empty((capacity, 2), np.int64)  # cost, and the estimate, -1 once the node is expanded
    # One chain of entries per total of cost and estimate; a node may have several entries, the cheapest counts.
    chain = np.full(estimate + 256, -1, np.int64)
    entries = np.empty((capacity, 2), np.int64)  # node, next entry
    for k in range(n_boxes + 1):
        pool[0, k] = start[k]
    table[_slot(pool, 0, table)] = 1
    node[0, 0], node[0, 1] = 0, estimate
    count = n_entries = 1
    entries[0, 0], entries[0, 1] = 0, -1
    chain[estimate] = 0
    total = highest = estimate
    while total <= highest:
        if chain[total] < 0:
            total += 1
            continue
        s = entries[chain[total], 0]
        chain[total] = entries[chain[total], 1]
        if node[s, 1] < 0:
            continue
        if node[s, 1] == 0:
            return node[s, 0], count
        node[s, 1] = -1
        for k in range(1, n_boxes + 1):
            open_[pool[s, k]] = 0
        stamp += 1
        _flood(open_, deltas, int(pool[s, 0]), seen, stamp, walk, queue)
        for k in range(1, n_boxes + 1):
            box = int(pool[s, k])
            for a in range(4):
                beyond = box + deltas[a]
                stand = box - deltas[a]
                if not open_[beyond] or not alive[beyond] or seen[stand] != stamp:
                    continue
                if count + 1 >= pool.shape[0]:
                    pool, node = _grown(pool, count), _grown(node, count)
                    table = np.zeros(2 * pool.shape[0], np.int64)
                    for i in range(count):
                        table[_slot(pool, i, table)] = i + 1
                for j in range(1, n_boxes + 1):
                    pool[count, j] = pool[s, j]
                pool[count, 0] = box
                j = k
                while j < n_boxes and pool[count, j + 1] < beyond:
                    pool[count, j] = pool[count, j + 1]
                    j += 1
                while j > 1 and pool[count, j - 1] > beyond:
                    pool[count, j] = pool[count, j - 1]
                    j -= 1
                pool[count, j] = beyond
                estimate = _estimate(distance, pool[count], best)
                if estimate >= _FAR:
                    continue
                if _frozen(floor, alive, is_target, deltas, pool[count], held):
                    continue
                if not by_moves:
                    open_[box], open_[beyond] = 1, 0
                    mark += 1
                    pool[count, 0] = _flood(open_, deltas, box, marked, mark, unused, queue)
                    open_[box], open_[beyond] = 0, 1
                cost = node[s, 0] + 1
                if by_moves:
                    cost += walk[stand]
                slot = _slot(pool, count, table)
                if table[slot] == 0:
                    if count >= node_limit:
                        return LIMIT, count
                    i = count
                    count += 1
                    table[slot] = count
                else:
                    i = table[slot] - 1
                    if node[i, 1] < 0 or node[i, 0] <= cost:
                        continue
                node[i, 0], node[i, 1] = cost, estimate
                f = cost + estimate
                if f >= chain.shape[0]:
                    longer = np.full(2 * f, -1, np.int64)
                    for j in range(chain.shape[0]):
                        longer[j] = chain[j]
                    chain = longer
                if n_entries >= entries.shape[0]:
                    entries = _grown(entries, n_entries)
                entries[n_entries, 0], entries[n_entries, 1] = i, chain[f]
                chain[f] = n_entries
                n_entries += 1
                highest = max(highest, f)
        for k in range(1, n_boxes + 1):
            open_[pool[s, k]] = 1
    return UNSOLVABLE, count


@njit
def furnish(random, height, width, boxes, n):  # type: ignore[no-untyped-def]
    """A room and ``n`` random placements in it.

    Boxes are drawn among the cells from which a box can be brought to some target, off the targets if there are
    enough of them; the player anywhere else.

    Returns:
        ``floor`` and ``targets`` of :func:`carve`, ``distance`` of :func:`push_distances`, and the start rows
        ``[n, 1 + boxes]``: none if the room has not enough cells.
    """
    floor, targets = carve(random, height, width, boxes)
    distance = push_distances(floor, targets, np.array((-width, width, -1, 1), np.int64))
    alive = np.zeros(height * width, np.uint8)
    for t in range(targets.shape[0]):
        for cell in range(height * width):
            if distance[t, cell] < _FAR:
                alive[cell] = 1
    n_alive = np.sum(alive)
    if n_alive >= 2 * boxes:
        for t in range(boxes):
            alive[targets[t]] = 0
    box_cells = np.flatnonzero(alive)
    cells = np.flatnonzero(floor)
    if targets.shape[0] < boxes or box_cells.shape[0] < boxes or cells.shape[0] <= boxes:
        n = 0
    rows = np.zeros((n, boxes + 1), np.int64)
    for i in range(n):
        _shuffle(random, box_cells, boxes)
        drawn = _ascending(box_cells[:boxes])
        for k in range(boxes):
            rows[i, 1 + k] = drawn[k]
        taken = True
        while taken:
            rows[i, 0] = cells[draw(random, cells.shape[0])]
            taken = False
            for k in range(1, boxes + 1):
                taken = taken or rows[i, k] == rows[i, 0]
    return floor, targets, distance, rows


@njit
def place(  # type: ignore[no-untyped-def]
    random, height, width, boxes, placements, steps_between, pushes_between, with_steps, limits
):
    """Carve rooms and draw placements until one has its optima within bounds.

    Args:
        random: ``uint64 [1]``, the state of :func:`draw`.
        placements: random placements per room.
        steps_between, pushes_between: pairs of bounds, both included.
        with_steps: find the fewest actions too; without it they are 0, and their bounds do not count.
        limits: most rooms; most nodes of a search for pushes, of one for actions, and of all of them together.

    Returns:
        Number of rooms tried, ``floor``, ``targets``, start row, fewest actions, fewest pushes; these are 0 if there
        was no such placement.
    """
    deltas = np.array((-width, width, -1, 1), np.int64)
    rooms, push_nodes, step_nodes, work = limits
    tries = 0
    while tries < rooms and work >= 0:
        tries += 1
        floor, targets, distance, rows = furnish(random, height, width, boxes, placements)
        for i in range(rows.shape[0]):
            pushes, nodes = optimum(floor, targets, deltas, distance, rows[i], False, push_nodes)
            work -= nodes
            if not pushes_between[0] <= pushes <= pushes_between[1]:
                continue
            steps = 0
            if with_steps:
                steps, nodes = optimum(floor, targets, deltas, distance, rows[i], True, step_nodes)
                work -= nodes
                if not steps_between[0] <= steps <= steps_between[1]:
                    continue
            return tries, floor, targets, rows[i], steps, pushes
    return tries, np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 0
