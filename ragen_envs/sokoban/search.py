"""Compiled searches over Sokoban states: forwards, backwards, and for a shortest plan.

A state is a row ``[player, box, box, ...]`` of indices into the framed board of :attr:`levels.Level.buffer`, boxes in
ascending order. Rows live in a ``pool``; an open-addressing ``table`` (index + 1, 0 = free) finds a row again.
``walls`` and ``targets`` are flags per buffer index; the frame counts as wall.

Simplifications: everything is breadth-first or A* over primitive actions, one state per player cell, in one thread.
All helpers live in this file because numba's cache does not notice changes in other files; nothing is recursive.
"""

from __future__ import annotations

import numpy as np

from ragen_envs.jit import njit

SOLVED, UNSOLVABLE, LIMIT, RUNNING, TOO_BIG = range(5)
"""Status of a search: a plan was found; proved that there is none; a limit was met; its slice of work ended; the board
is too big for this search."""
UNBOUNDED = 1 << 40
"""Stands for "no limit" in integer arguments."""
SOLVES, UNSEEN = -1, -2
"""In place of the index of a state: the board is solved; the state is not in the table."""
SLICE = 2_000
"""Expansions between two looks at the clock, where there is a time limit."""


@njit
def _hash(pool, i):  # type: ignore[no-untyped-def]
    # Kept below 2**31 so that compiled and interpreted arithmetic agree without overflow.
    h = 0
    for k in range(pool.shape[1]):
        h = ((h * 1000003) ^ int(pool[i, k])) & 0x7FFFFFFF
    return h ^ (h >> 15)


@njit
def _find(pool, i, table):  # type: ignore[no-untyped-def]
    """Slot of ``table`` that holds a row equal to ``pool[i]``, or the free slot where it belongs."""
    mask = table.shape[0] - 1
    slot = _hash(pool, i) & mask
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
def _grown(pool, table, count):  # type: ignore[no-untyped-def]
    """``pool`` and ``table`` of twice the size with the same rows."""
    bigger = _doubled(pool, count)
    slots = np.zeros(2 * table.shape[0], np.int32)
    for i in range(count):
        slots[_find(bigger, i, slots)] = i + 1
    return bigger, slots


@njit
def _doubled(array, count):  # type: ignore[no-untyped-def]
    bigger = np.empty((2 * array.shape[0], array.shape[1]), array.dtype)
    for i in range(count):  # loops, here and below: numba takes seconds to compile an assignment to a slice
        for k in range(array.shape[1]):
            bigger[i, k] = array[i, k]
    return bigger


@njit
def _copy_row(pool, i, row):  # type: ignore[no-untyped-def]
    for k in range(pool.shape[1]):
        pool[i, k] = row[k]


@njit
def _shift_box(pool, i, old, new):  # type: ignore[no-untyped-def]
    """Move the box at ``old`` to ``new`` in row ``i`` and keep the boxes sorted."""
    last = pool.shape[1] - 1
    k = 1
    while pool[i, k] != old:
        k += 1
    while k < last and pool[i, k + 1] < new:
        pool[i, k] = pool[i, k + 1]
        k += 1
    while k > 1 and pool[i, k - 1] > new:
        pool[i, k] = pool[i, k - 1]
        k -= 1
    pool[i, k] = new


@njit
def explore(walls, targets, deltas, start, depth_limit, limit):  # type: ignore[no-untyped-def]
    """Everything that can be reached from the unsolved row ``start`` in up to ``depth_limit`` actions.

    Returns:
        ``pool [S + 1, 1 + boxes]`` (its last row is scratch space), its ``table``, ``successor int32 [S, 4]``
        (``SOLVES`` where the action solves the board, ``UNSEEN`` where it was not looked at), ``missing int16 [S]``
        (boxes that are not on a target) and whether the search ended below ``limit`` states.
    """
    n_boxes = start.shape[0] - 1
    capacity = 256
    pool = np.empty((capacity, n_boxes + 1), np.int32)
    table = np.zeros(2 * capacity, np.int32)
    successor = np.empty((capacity, 4), np.int32)
    occupied = np.zeros(walls.shape[0], np.uint8)
    _copy_row(pool, 0, start)
    for a in range(4):
        successor[0, a] = UNSEEN
    table[_find(pool, 0, table)] = 1
    count = 1
    first = 0
    depth = 0
    while first < count and depth < depth_limit and count <= limit:
        last = count
        for s in range(first, last):
            done = 0
            for k in range(1, n_boxes + 1):
                occupied[pool[s, k]] = 1
                done += int(targets[pool[s, k]])
            for a in range(4):
                ahead = pool[s, 0] + deltas[a]
                beyond = ahead + deltas[a]
                successor[s, a] = s
                if walls[ahead] or (occupied[ahead] and (walls[beyond] or occupied[beyond])):
                    continue
                if occupied[ahead] and done + int(targets[beyond]) - int(targets[ahead]) == n_boxes:
                    successor[s, a] = SOLVES
                    continue
                if count + 1 >= capacity:
                    pool, table = _grown(pool, table, count)
                    successor = _doubled(successor, count)
                    capacity = pool.shape[0]
                _copy_row(pool, count, pool[s])
                pool[count, 0] = ahead
                if occupied[ahead]:
                    _shift_box(pool, count, ahead, beyond)
                slot = _find(pool, count, table)
                if table[slot] == 0:
                    for b in range(4):
                        successor[count, b] = UNSEEN
                    count += 1
                    table[slot] = count
                successor[s, a] = table[slot] - 1
            for k in range(1, n_boxes + 1):
                occupied[pool[s, k]] = 0
            if count > limit:
                break
        first = last
        depth += 1
    missing = np.empty(count, np.int16)  # enough: each of them leaves a target of the 255 x 255 board free
    for s in range(count):
        done = 0
        for k in range(1, n_boxes + 1):
            done += int(targets[pool[s, k]])
        missing[s] = n_boxes - done
    return pool[: count + 1].copy(), table, successor[:count].copy(), missing, count <= limit


@njit
def locate(pool, table, floor, kinds, boards):  # type: ignore[no-untyped-def]
    """Where boards are in an explored pool.

    Args:
        floor: the level's cells that are not wall, in ascending order.
        kinds: ``uint8 [256]``: of each cell code, 1 for a box, 2 for a box on a target, 3 for the player, else 0.
        boards: ``uint8 [N, buffer]``, framed boards of the level.

    Returns:
        ``int64 [N]``, indices; ``SOLVES`` for a solved board, ``UNSEEN`` for one that is not in the pool.
    """
    n_boxes = pool.shape[1] - 1
    scratch = pool.shape[0] - 1
    found = np.empty(boards.shape[0], np.int64)
    for i in range(boards.shape[0]):
        boxes = 0
        done = 0
        pool[scratch, 0] = -1
        for j in range(floor.shape[0]):
            kind = kinds[boards[i, floor[j]]]
            if kind == 3:
                pool[scratch, 0] = floor[j]
            elif kind != 0:
                boxes += 1
                done += kind == 2
                if boxes <= n_boxes:
                    pool[scratch, boxes] = floor[j]
        found[i] = UNSEEN
        if done == n_boxes:
            found[i] = SOLVES
        elif boxes == n_boxes:
            slot = _find(pool, scratch, table)
            if table[slot] != 0:
                found[i] = table[slot] - 1
    return found


@njit
def steps_to_go(successor):  # type: ignore[no-untyped-def]
    """``int32 [S]``: fewest actions to success by the table's transitions, -1 where there are none."""
    n = successor.shape[0]
    begin = np.zeros(n + 1, np.int64)
    for s in range(n):
        for a in range(4):
            if successor[s, a] >= 0:
                begin[successor[s, a] + 1] += 1
    for s in range(n):
        begin[s + 1] += begin[s]
    into = np.empty(begin[n], np.int32)
    fill = begin[:n].copy()
    steps = np.full(n, -1, np.int32)
    queue = np.empty(n, np.int32)
    tail = 0
    for s in range(n):
        for a in range(4):
            nxt = successor[s, a]
            if nxt >= 0:
                into[fill[nxt]] = s
                fill[nxt] += 1
            elif nxt == SOLVES and steps[s] < 0:
                steps[s] = 1
                queue[tail] = s
                tail += 1
    head = 0
    while head < tail:
        s = queue[head]
        head += 1
        for i in range(begin[s], begin[s + 1]):
            if steps[into[i]] < 0:
                steps[into[i]] = steps[s] + 1
                queue[tail] = into[i]
                tail += 1
    return steps


@njit
def fewest_missing(successor, rows, horizon):  # type: ignore[no-untyped-def]
    """Continue ``rows int16 [H, S]``: fewest boxes off target after exactly ``h`` actions that do not solve the board.

    Returns:
        Rows up to ``horizon``, and whether every further row would equal the last one (then there may be fewer rows).
    """
    n = successor.shape[0]
    count = rows.shape[0]
    longer = np.empty((max(count, horizon + 1), n), np.int16)
    longer[:count] = rows
    while count <= horizon:
        settled = True
        for s in range(n):
            best = np.int16(32767)
            for a in range(4):
                nxt = successor[s, a]
                if nxt >= 0:
                    best = min(best, longer[count - 1, nxt])
            longer[count, s] = best
            settled = settled and best == longer[count - 1, s]
        if settled:
            return longer[:count].copy(), True
        count += 1
    return longer, False


@njit
def returns(successor, missing, steps, fewest, index, left, rewards):  # type: ignore[no-untyped-def]
    """Best returns from states ``index [N]`` (negative: the game is over) with ``left [N]`` actions.

    Solving as soon as possible is best wherever it can be done in time, since it brings every box home and saves
    actions; otherwise all actions are spent and what counts is how many boxes are on targets in the end.

    Args:
        rewards: of an action (below 0), of a box brought onto a target, and (at least 0) of the solution.

    Returns:
        ``value [N]`` and ``q [N, 4]``.
    """
    n = index.shape[0]
    value = np.zeros(n)
    q = np.zeros((n, 4))
    longest = fewest.shape[0] - 1
    for i in range(n):
        s = index[i]
        if s < 0 or left[i] == 0:
            continue
        for a in range(4):
            nxt = successor[s, a]
            taken = left[i]
            off = 0
            bonus = rewards[2]
            if nxt < 0:
                taken = 1
            elif 0 < steps[nxt] < taken:
                taken = steps[nxt] + 1
            else:
                off = int(fewest[min(taken - 1, longest), nxt])
                bonus = 0.0
            q[i, a] = rewards[0] * taken + rewards[1] * (missing[s] - off) + bonus
        value[i] = q[i].max()
    return value, q


@njit
def pull_back(walls, boxes, deltas, depth_limit, limit):  # type: ignore[no-untyped-def]
    """States by their distance to the solved board: breadth-first search backwards, by pulling boxes.

    The search starts from all player cells of the solved board at once, so a state's depth is exactly the length of
    its shortest solution, also when the search stops at ``limit`` states.

    Args:
        boxes: ``int32``, the solved board's box cells (its targets) in ascending order.

    Returns:
        ``pool [S, 1 + boxes]`` and ``depth [S]`` of all states found, solved ones (depth 0) included.
    """
    n_boxes = boxes.shape[0]
    capacity = 256
    while capacity < walls.shape[0] + 2:
        capacity *= 2
    pool = np.empty((capacity, n_boxes + 1), np.int32)
    table = np.zeros(2 * capacity, np.int32)
    depths = np.zeros((capacity, 1), np.int32)
    occupied = np.zeros(walls.shape[0], np.uint8)
    count = 0
    for k in range(n_boxes):
        occupied[boxes[k]] = 1
    for cell in range(walls.shape[0]):
        if not walls[cell] and not occupied[cell]:
            pool[count, 0] = cell
            for k in range(n_boxes):
                pool[count, 1 + k] = boxes[k]
            table[_find(pool, count, table)] = count + 1
            depths[count, 0] = 0
            count += 1
    for k in range(n_boxes):
        occupied[boxes[k]] = 0
    s = 0
    while s < count and depths[s, 0] < depth_limit and count < limit:
        for k in range(1, n_boxes + 1):
            occupied[pool[s, k]] = 1
        for a in range(4):
            back = pool[s, 0] - deltas[a]
            if walls[back] or occupied[back]:
                continue
            ahead = pool[s, 0] + deltas[a]
            for pulls in range(2):  # the action that led here was a walk (0) or a push of the box ahead (1)
                if pulls == 1 and not occupied[ahead]:
                    continue
                if count + 1 >= capacity:
                    pool, table = _grown(pool, table, count)
                    depths = _doubled(depths, count)
                    capacity = pool.shape[0]
                _copy_row(pool, count, pool[s])
                if pulls == 1:
                    _shift_box(pool, count, ahead, pool[s, 0])
                pool[count, 0] = back
                slot = _find(pool, count, table)
                if table[slot] == 0:
                    depths[count, 0] = depths[s, 0] + 1
                    count += 1
                    table[slot] = count
        for k in range(1, n_boxes + 1):
            occupied[pool[s, k]] = 0
        s += 1
    return pool[:count], depths[:count, 0].copy()


@njit
def push_distances(walls, targets, deltas):  # type: ignore[no-untyped-def]
    """``[N]``: fewest pushes that bring a lone box from a cell to some target, -1 if it can never get there.

    The player is taken to be wherever he is needed, so the distance is a lower bound, and -1 is certain.
    """
    distance = np.full(walls.shape[0], -1, np.int64)
    queue = np.empty(walls.shape[0], np.int64)
    tail = 0
    for cell in range(walls.shape[0]):
        if targets[cell] and not walls[cell]:
            distance[cell] = 0
            queue[tail] = cell
            tail += 1
    head = 0
    while head < tail:
        cell = queue[head]
        head += 1
        for a in range(4):
            origin = cell - deltas[a]
            if walls[origin] or distance[origin] >= 0 or walls[origin - deltas[a]]:
                continue
            distance[origin] = distance[cell] + 1
            queue[tail] = origin
            tail += 1
    return distance


@njit
def _jammed(walls, targets, occupied, deltas, box):  # type: ignore[no-untyped-def]
    """The box is in a 2 x 2 block of boxes and walls in which not every box stands on a target: stuck for ever."""
    for v in range(2):
        for h in range(2, 4):
            # The corner index can be -1 in the first row: that wraps to the frame's last cell, which is wall as well.
            a, b, c = box + deltas[v], box + deltas[h], box + deltas[v] + deltas[h]
            if (
                (walls[a] or occupied[a])
                and (walls[b] or occupied[b])
                and (walls[c] or occupied[c])
                and not (
                    targets[box] and (walls[a] or targets[a]) and (walls[b] or targets[b]) and (walls[c] or targets[c])
                )
            ):
                return True
    return False


# Columns of a stored state: moves so far, bound on the moves to go, parent, action that led to it, whether it has been
# expanded since its moves were last lowered.
_MOVES, _BOUND, _PARENT, _ACTION, _DONE = range(5)
# Numbers of a running search: states, entries of the queue, the total at which it is read, the highest total in it,
# expansions, whether ``max_moves`` cut something off, the solved state.
_COUNT, _ENTRIES, _TOTAL, _HIGHEST, EXPANDED, _CUT, _FOUND = range(7)


@njit
def shortest_begin(walls, targets, deltas, start, max_moves):  # type: ignore[no-untyped-def]
    """Set up :func:`shortest` from row ``start``.

    Returns:
        status (``RUNNING``, or what is known already), and the arrays that :func:`shortest` reads and hands on.
    """
    n_boxes = start.shape[0] - 1
    goal_distance = push_distances(walls, targets, deltas)
    estimate = 0
    dead = False
    for k in range(1, n_boxes + 1):
        dead = dead or goal_distance[start[k]] < 0
        estimate += goal_distance[start[k]]
    capacity = 256
    pool = np.empty((capacity, n_boxes + 1), np.int32)
    table = np.zeros(2 * capacity, np.int32)
    node = np.empty((capacity, 5), np.int32)
    # Open list: one chain of entries per total. A state may have several entries, one counts.
    chain = np.full(256, -1, np.int64)
    entries = np.empty((256, 2), np.int64)  # state, next entry
    control = np.zeros(7, np.int64)
    _copy_row(pool, 0, start)
    table[_find(pool, 0, table)] = 1
    node[0, _MOVES], node[0, _BOUND], node[0, _PARENT], node[0, _ACTION], node[0, _DONE] = 0, estimate, -1, -1, 0
    # The first state waits at total 0, whatever its bound: totals only order what is compared.
    entries[0, 0], entries[0, 1] = 0, -1
    chain[0] = 0
    control[_COUNT] = control[_ENTRIES] = 1
    status = UNSOLVABLE if dead else LIMIT if estimate > max_moves else RUNNING
    return status, goal_distance, (pool, table, node, chain, entries, control)


@njit
def shortest(walls, targets, deltas, goal_distance, arrays, max_moves, scale, factor, node_limit, budget):  # type: ignore[no-untyped-def]
    """A* for the fewest primitive actions, for up to ``budget`` expansions.

    The estimate is the sum over boxes of :func:`push_distances`. One action changes it by at most 1, so it never
    overestimates and is consistent: with ``factor == scale`` a state is expanded once, and the first solved state taken
    out is optimal. ``factor / scale`` is the weight of the estimate; where it exceeds 1, states for which a shorter way
    turns up are expanded again, and the plan is at most that many times as long as the shortest one.

    Returns:
        status (``SOLVED``, ``UNSOLVABLE``, ``LIMIT``, ``RUNNING``), the actions in order, and the arrays, grown.
    """
    pool, table, node, chain, entries, control = arrays
    n_boxes = pool.shape[1] - 1
    actions = np.empty(0, np.int64)
    count, n_entries = control[_COUNT], control[_ENTRIES]
    total, highest, expanded = control[_TOTAL], control[_HIGHEST], control[EXPANDED]
    last_expansion = expanded + budget
    capacity = pool.shape[0]
    occupied = np.zeros(walls.shape[0], np.uint8)
    status = RUNNING
    while status == RUNNING and expanded < last_expansion:
        while total <= highest and chain[total] < 0:
            total += 1
        if total > highest:
            status = LIMIT if control[_CUT] else UNSOLVABLE
            break
        s = entries[chain[total], 0]
        chain[total] = entries[chain[total], 1]
        if node[s, _DONE]:
            continue
        node[s, _DONE] = 1
        if node[s, _BOUND] == 0:
            length = node[s, _MOVES]
            actions = np.empty(length, np.int64)
            for i in range(length - 1, -1, -1):
                actions[i] = node[s, _ACTION]
                s = node[s, _PARENT]
            status = SOLVED
            break
        expanded += 1
        for k in range(1, n_boxes + 1):
            occupied[pool[s, k]] = 1
        for a in range(4):
            ahead = pool[s, 0] + deltas[a]
            if walls[ahead]:
                continue
            pushes = occupied[ahead] != 0
            estimate = int(node[s, _BOUND])
            beyond = ahead + deltas[a]
            if pushes:
                if walls[beyond] or occupied[beyond] or goal_distance[beyond] < 0:
                    continue
                estimate += goal_distance[beyond] - goal_distance[ahead]
                occupied[ahead] = 0
                occupied[beyond] = 1
                stuck = _jammed(walls, targets, occupied, deltas, beyond)
                occupied[ahead] = 1
                occupied[beyond] = 0
                if stuck:
                    continue
            moves = node[s, _MOVES] + 1
            if moves + estimate > max_moves:
                control[_CUT] = 1
                continue
            if count + 1 >= capacity:
                pool, table = _grown(pool, table, count)
                node = _doubled(node, count)
                capacity = pool.shape[0]
            _copy_row(pool, count, pool[s])
            pool[count, 0] = ahead
            if pushes:
                _shift_box(pool, count, ahead, beyond)
            slot = _find(pool, count, table)
            if table[slot] == 0:
                if count >= node_limit:
                    status = LIMIT
                    break
                i = count
                count += 1
                table[slot] = count
            else:
                i = table[slot] - 1
                if node[i, _MOVES] <= moves:
                    continue
            node[i, _MOVES], node[i, _BOUND], node[i, _PARENT], node[i, _ACTION] = moves, estimate, s, a
            node[i, _DONE] = 0
            then = scale * moves + factor * estimate
            if then >= chain.shape[0]:
                longer = np.full(2 * then, -1, np.int64)
                for k in range(chain.shape[0]):
                    longer[k] = chain[k]
                chain = longer
            if n_entries >= entries.shape[0]:
                entries = _doubled(entries, n_entries)
            entries[n_entries, 0], entries[n_entries, 1] = i, chain[then]
            chain[then] = n_entries
            n_entries += 1
            total = min(total, then)
            highest = max(highest, then)
        for k in range(1, n_boxes + 1):
            occupied[pool[s, k]] = 0
    control[_COUNT], control[_ENTRIES] = count, n_entries
    control[_TOTAL], control[_HIGHEST], control[EXPANDED] = total, highest, expanded
    return status, actions, (pool, table, node, chain, entries, control)


@njit
def walk_between(walls, deltas, start, pushes):  # type: ignore[no-untyped-def]
    """The actions of a plan that is given by its pushes alone, with shortest walks between them.

    Args:
        pushes: ``int64 [P, 2]``, the box's cell before the push and the direction.
    """
    blocked = walls.copy()
    for k in range(1, start.shape[0]):
        blocked[start[k]] = 1
    came_by = np.empty(walls.shape[0], np.int64)
    queue = np.empty(walls.shape[0], np.int64)
    actions = np.empty(256, np.int64)
    used = 0
    player = int(start[0])
    for i in range(pushes.shape[0]):
        box, push = pushes[i, 0], pushes[i, 1]
        # Backwards from the push, so that following the marks walks forwards.
        for cell in range(walls.shape[0]):
            came_by[cell] = -1
        queue[0] = box - deltas[push]
        came_by[queue[0]] = push
        head, tail = 0, 1
        while came_by[player] < 0:
            cell = queue[head]
            head += 1
            for a in range(4):
                before = cell - deltas[a]
                if not blocked[before] and came_by[before] < 0:
                    came_by[before] = a
                    queue[tail] = before
                    tail += 1
        while True:
            if used == actions.shape[0]:
                actions = _doubled(actions.reshape(used, 1), used).reshape(-1)
            a = came_by[player]
            actions[used] = a
            used += 1
            player += deltas[a]
            if player == box:
                break
        blocked[box] = 0
        blocked[box + deltas[push]] = 1
    return actions[:used]
