"""The search for boards of any size against brute force over (player, boxes), and each of its rules by itself.

The brute force below knows floor, targets, boxes and player as plain sets of cells and walks step by step.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import deque
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from level_files import level_file

from ragen_envs.sokoban import Level, Sokoban, general, load_levels, parse_xsb
from ragen_envs.sokoban.search import LIMIT, SOLVED, UNSOLVABLE
from ragen_envs.sokoban.solver import state_arrays

STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))


def search(level, **kwargs):
    asked = {"objective": "pushes", "weight": 1.0, "max_cost": None, "node_limit": 1_000_000, "time_limit": None}
    walls, targets, row = state_arrays(level.buffer, level.start)
    return general.search(walls, targets, np.array(level.deltas, np.int64), row, **(asked | kwargs))


# --- brute force ------------------------------------------------------------------------------------------------------


class Brute:
    """All states that can be reached from a level's start, and the fewest pushes from each of them to the end."""

    def __init__(self, level: Level):
        self.floor = {(r, c) for r in range(level.height) for c in range(level.width)} - set(level.walls)
        self.targets = frozenset(level.targets)
        self.start = (level.player, frozenset(level.boxes))
        before = {self.start: []}  # state -> [(previous state, pushes)]
        stack = [self.start]
        while stack:
            state = stack.pop()
            for new, pushes in self.successors(state):
                if new not in before:
                    before[new] = []
                    stack.append(new)
                before[new].append((state, pushes))
        self.states = list(before)
        self.to_go = {}
        queue = deque((state, 0) for state in before if state[1] == self.targets)
        while queue:  # 0-1 breadth-first, from the end backwards
            state, pushes = queue.popleft()
            if state not in self.to_go:
                self.to_go[state] = pushes
                for previous, more in before[state]:
                    (queue.append if more else queue.appendleft)((previous, pushes + more))

    def successors(self, state):
        (r, c), boxes = state
        for dr, dc in STEPS:
            ahead, beyond = (r + dr, c + dc), (r + 2 * dr, c + 2 * dc)
            if ahead not in self.floor:
                continue
            if ahead not in boxes:
                yield (ahead, boxes), 0
            elif beyond in self.floor and beyond not in boxes:
                yield (ahead, boxes - {ahead} | {beyond}), 1

    @property
    def optimum(self):
        return self.to_go.get(self.start)


def random_level(rng: random.Random, symmetric: bool = False) -> Level:
    """A board with random walls and things; rooms of odd shapes, open borders, cut-off parts, often unsolvable."""
    while True:
        height, width = rng.randint(2, 6), rng.randint(3, 7)
        density = rng.choice((0.0, 0.1, 0.2, 0.35))
        cells = [(r, c) for r in range(height) for c in range(width)]
        walls = {cell for cell in cells if rng.random() < density}
        n_boxes = rng.choice((1, 1, 2, 2, 3))
        marks = rng.sample(cells, n_boxes)
        if symmetric:
            half_turn = rng.random() < 0.5  # else a mirror image
            walls |= {(height - 1 - r if half_turn else r, width - 1 - c) for r, c in walls}
            images = [(height - 1 - r if half_turn else r, width - 1 - c) for r, c in marks]
            marks = list(dict.fromkeys(marks + images))
            if len(marks) > 3:
                continue
            n_boxes = len(marks)
        free = [cell for cell in cells if cell not in walls]
        if walls & set(marks) or len(free) < n_boxes + 1 or len(free) > (32, 32, 24, 17)[n_boxes]:
            continue
        *boxes, player = rng.sample(free, n_boxes + 1)
        if rng.random() < 0.8:  # few levels have a solution if boxes may begin in corners and along borders
            middle = [(r, c) for r, c in free if all((r + i, c + j) in free for i, j in STEPS)]
            boxes = rng.sample(middle, min(n_boxes, len(middle))) + boxes[len(middle) :]
        if rng.random() < 0.3:
            boxes[0] = marks[0]  # one box is at home
        if len({*boxes, player}) <= n_boxes:
            continue
        return Level.from_parts(height, width, walls=walls, targets=marks, boxes=boxes, player=player)


@cache
def samples() -> list[tuple[Level, Brute]]:
    rng = random.Random(5)
    drawn = [(level, Brute(level)) for level in (random_level(rng, symmetric=i % 3 == 0) for i in range(800))]
    # All that need pushes, and some of the others.
    return [sample for i, sample in enumerate(drawn) if sample[1].optimum or i % 5 == 0]


def replay(level: Level, pushes) -> bool:
    """Play the pushes through the game, walking between them; True if the level is solved exactly at the end."""
    game = Sokoban()
    state = game.initial(level)
    for box, direction in pushes:
        goal = box - level.deltas[direction]
        parents = {state.player: None}
        queue = deque([state.player])
        while queue:
            here = queue.popleft()
            for delta in level.deltas:
                if here + delta not in parents and state.cells[here + delta] in b"\x01\x02\x05\x06":
                    parents[here + delta] = here
                    queue.append(here + delta)
        walk = []
        while parents[goal] is not None:
            walk.append(level.deltas.index(goal - parents[goal]))
            goal = parents[goal]
        for action in [*reversed(walk), direction]:
            assert state.missing > 0
            state = game.step(state, action, None).state
        assert state.player == box
    return state.missing == 0


# --- whole searches ---------------------------------------------------------------------------------------------------


def test_the_samples_hold_every_kind_of_level():
    optima = [brute.optimum for _, brute in samples()]
    assert sum(o is None for o in optima) > 60
    assert sum(o is not None and o > 3 for o in optima) > 60
    cut_off = [level for level, brute in samples() if any(all(p != b for p, _ in brute.states) for b in level.boxes)]
    assert len(cut_off) > 30
    assert sum(len(level.boxes) > 1 for level, _ in samples()) > 150


def test_fewest_pushes_equal_brute_force():
    for level, brute in samples():
        status, plan, expanded = search(level)
        assert status == (UNSOLVABLE if brute.optimum is None else SOLVED)
        assert expanded <= len(brute.states)
        if brute.optimum is not None:
            assert len(plan) == brute.optimum
            assert replay(level, plan)


@pytest.mark.parametrize("weight", [1.1, 1.5, 3.0, 64.0])
def test_weights_keep_their_bound(weight):
    for level, brute in samples():
        status, plan, _ = search(level, weight=weight)
        assert status == (UNSOLVABLE if brute.optimum is None else SOLVED)
        if brute.optimum is not None:
            assert brute.optimum <= len(plan) <= weight * brute.optimum
            assert replay(level, plan)


def test_any_solves_what_can_be_solved_and_proves_what_cannot():
    for level, brute in samples():
        status, plan, _ = search(level, objective="any")
        assert status == (UNSOLVABLE if brute.optimum is None else SOLVED)
        assert status == UNSOLVABLE or replay(level, plan)


@pytest.mark.parametrize("backwards", [False, True])
def test_each_direction_alone_is_optimal_at_weight_1(backwards):
    for level, brute in samples()[::2]:
        problem, frontier = one_direction(level, backwards)
        if problem is None:
            continue
        frontier = general.advance(problem, frontier, 10**6, 1, 1, general.UNBOUNDED, 10**6, False)
        status = frontier.numbers[general.STATUS]
        assert status == (UNSOLVABLE if brute.optimum is None else SOLVED)
        if status == SOLVED:
            plan = general._plan(problem, frontier)
            assert len(plan) == brute.optimum
            assert replay(level, plan)


def one_direction(level, backwards, mirrored=False):
    """Problem and frontier of a level; None twice if not all boxes and targets can be walked to."""
    walls, targets, row = state_arrays(level.buffer, level.start)
    board = general.prepare(walls, targets, np.array(level.deltas, np.int64), level.start, mirrored)
    number = {cell: i for i, cell in enumerate(board.cells.tolist())}
    if not all(box in number for box in row[1:].tolist()) or board.goal.sum() < len(row) - 1:
        return None, None
    boxes = np.array([number[box] for box in row[1:].tolist()], np.int64)
    start = general.begin(
        general._problem(board, boxes, 0, np.zeros(len(row), np.uint16), False), boxes, number[row[0]]
    )
    ends = np.flatnonzero(board.goal)
    if not backwards:
        problem = general._problem(board, ends, number[row[0]], np.zeros(len(row), np.uint16), False)
        return problem, general.begin(problem, boxes, number[row[0]])
    problem = general._problem(board, boxes, number[row[0]], start.rows[0].copy(), True)
    return problem, general.begin(problem, ends, -1)


@pytest.mark.parametrize("kwargs", [{}, {"weight": 1.5}, {"objective": "any"}])
def test_cost_limit_is_exact(kwargs):
    for level, brute in samples()[::3]:
        if brute.optimum:
            status, plan, _ = search(level, max_cost=brute.optimum, **kwargs)
            assert status == SOLVED
            assert len(plan) == brute.optimum
            assert search(level, max_cost=brute.optimum - 1, **kwargs)[:2] == (LIMIT, [])
        elif brute.optimum is None:
            assert search(level, max_cost=9, **kwargs)[0] in (LIMIT, UNSOLVABLE)


def test_node_and_time_limits():
    level = parse_xsb("#########\n#   #   #\n# $   . #\n#   # $.#\n# $   . #\n# @ #   #\n#########")
    assert search(level)[0] == SOLVED
    for objective in ("pushes", "any"):
        assert search(level, objective=objective, node_limit=3)[:2] == (LIMIT, [])
    # Boxes that have to swap rooms: far more than one slice.
    hard = parse_xsb(
        "#########\n#.$ # $.#\n# $.  .$#\n#.$ @ $.#\n# $.  .$#\n#.$ # $.#\n#########".replace(".$#", "$.#")
    )
    status, plan, expanded = search(hard, time_limit=0.0)
    assert (status, plan) == (LIMIT, [])
    assert 0 < expanded <= general.FIRST_SLICE


@pytest.mark.parametrize("objective", ["pushes", "any"])
def test_slices_do_not_change_the_result(objective, monkeypatch):
    levels = [level for level, brute in samples() if len(brute.states) > 2000][:10]
    whole = []
    for level in levels:
        problem, frontier = one_direction(level, False, mirrored=True)
        if problem is not None:
            frontier = general.advance(problem, frontier, 10**6, 1, 1, general.UNBOUNDED, 10**6, False)
            pieces = one_direction(level, False, mirrored=True)[1]
            while pieces.numbers[general.STATUS] == general.RUNNING:
                pieces = general.advance(problem, pieces, 3, 1, 1, general.UNBOUNDED, 10**6, False)
            count = frontier.numbers[general.COUNT]
            assert (pieces.numbers == frontier.numbers).all()
            assert (pieces.rows[:count] == frontier.rows[:count]).all()
            assert (pieces.nodes[:count] == frontier.nodes[:count]).all()
            whole.append(count)
    assert len(whole) > 5
    results = [search(level, objective=objective) for level in levels]
    assert [search(level, objective=objective) for level in levels] == results
    if objective == "pushes":
        monkeypatch.setattr(general, "FIRST_SLICE", 1)
        monkeypatch.setattr(general, "LONGEST_SLICE", 7)
        assert [search(level) for level in levels] == results


# --- the rules, one by one --------------------------------------------------------------------------------------------


class Position:
    """A brute-force state as the kernels see it."""

    def __init__(self, level, problem, state):
        board = problem.board
        self.problem, self.near = problem, board.near
        self.n = len(board.near) - 1
        number = {cell: i for i, cell in enumerate(board.cells.tolist())}
        self.player = number[level.to_index(state[0])]
        self.boxes = sorted(number[level.to_index(cell)] for cell in state[1])
        self.box_at = np.zeros(self.n + 1, np.int32)
        self.box_at[self.n] = -1
        self.box_at[self.boxes] = np.arange(1, len(self.boxes) + 1)
        self.seen = np.zeros(self.n + 1, np.int64)
        self.seen[[*self.boxes, self.n]] = general.SOLID
        self.queue = np.empty(self.n, np.int32)
        general.flood(self.near, self.seen, self.player, 1, self.queue)

    def bound(self):
        matching = np.empty((7, len(self.boxes)), np.int64)
        matching[general.BOX_SPOT] = [general.spot_of(self.problem.board.sides, box, self.player) for box in self.boxes]
        return general.match(self.problem.table, matching), matching

    def frozen(self, box):
        """What the rules of frozen boxes say: 0 to 2, and 3 if the others are shut out."""
        boxes = np.array(self.boxes)
        board = self.problem.board
        solid = (self.box_at != 0).astype(np.uint8)
        stuck = general.frozen(self.near, board.goal, solid, self.problem.dead, box, boxes)
        if stuck == 1:
            n = len(boxes)
            ends = np.flatnonzero(board.goal).astype(np.int32)
            rows, scratch = np.empty((n, n), np.int32), np.empty((7, n), np.int64)
            if general.shut_out(self.near, ends, solid, self.box_at, n, rows, scratch, self.queue):
                return 3
        return stuck

    def corral(self):
        """Allowed pushes, or None."""
        moves, scratch = np.empty((2, 4 * len(self.boxes), 2), np.int32)
        found = general.corral_pushes(
            self.near,
            self.problem.board.goal,
            self.problem.board.sides,
            self.problem.alive,
            self.box_at,
            self.seen.copy(),
            1,
            np.zeros(self.n + 1, np.int64),
            self.queue,
            moves,
            scratch,
        )
        return None if found < 0 else moves[:found].tolist()


def positions():
    """(level, brute force, state, position) of many states, the solvable and the others."""
    rng = random.Random(3)
    for level, brute in samples():
        problem, _ = one_direction(level, False)
        if problem is not None:
            for state in rng.sample(brute.states, min(40, len(brute.states))):
                yield level, brute, state, Position(level, problem, state)


def test_bound_never_exceeds_the_pushes_to_go_and_drops_by_at_most_one():
    exact = larger = 0
    for level, brute, state, position in positions():
        bound, matching = position.bound()
        to_go = brute.to_go.get(state)
        assert to_go is None or bound <= to_go
        exact += to_go is not None and bound == to_go
        if to_go is not None:
            simple = sum(min(abs(r - i) + abs(c - j) for i, j in brute.targets) for r, c in state[1])
            assert bound >= simple
            larger += bound > simple
        if bound < general.FAR:
            for new, pushes in brute.successors(state):
                after = Position(level, position.problem, new)
                assert after.bound()[0] >= bound - pushes
                if pushes:
                    (moved,) = set(position.boxes) - set(after.boxes)
                    (to,) = set(after.boxes) - set(position.boxes)
                    box = position.boxes.index(moved)
                    end = matching[general.BOX_OF].tolist().index(box)
                    spot = general.spot_of(position.problem.board.sides, to, after.player)
                    again = general.rematch(position.problem.table, matching, bound, end, spot)
                    assert again == after.bound()[0]
    assert exact > 1000
    assert larger > 200


def test_no_deadlock_rule_hits_a_state_that_can_be_solved():
    counts = {"frozen": 0, "shut out": 0, "corral": 0, "spot": 0, "matching": 0}
    for _, brute, state, position in positions():
        if state[1] == brute.targets:
            continue
        problem = position.problem
        spots = [general.spot_of(problem.board.sides, box, position.player) for box in position.boxes]
        hits = {
            "frozen": any(position.frozen(box) == 2 for box in position.boxes),
            "shut out": any(position.frozen(box) == 3 for box in position.boxes),
            "corral": position.corral() == [],
            "spot": not problem.alive[spots].all(),
            "matching": position.bound()[0] >= general.FAR,
        }
        if any(hits.values()):
            assert state not in brute.to_go
        for rule, hit in hits.items():
            counts[rule] += hit
    assert min(counts.values()) > 50, counts


def test_some_push_into_the_corral_is_among_the_best():
    used = 0
    for level, brute, state, position in positions():
        pushes = position.corral()
        if pushes and state in brute.to_go:
            best = []
            cells = position.problem.board.cells
            for box, direction in pushes:
                box_cell = level.to_cell(int(cells[box]))
                to = level.to_cell(int(cells[position.near[box, direction]]))
                best.append(brute.to_go.get((box_cell, state[1] - {box_cell} | {to}), 10**6))
                assert position.seen[position.near[box, direction ^ 1]] == 1
            assert min(best) == brute.to_go[state] - 1
            used += 1
    assert used > 100


def test_region_shortcut_agrees_with_a_flood():
    kept = 0
    for level, brute, state, position in positions():
        for new, pushes in brute.successors(state):
            if not pushes:
                continue
            after = Position(level, position.problem, new)
            (moved,) = set(position.boxes) - set(after.boxes)
            (to,) = set(after.boxes) - set(position.boxes)
            d = position.near[moved].tolist().index(to)
            if general._region_kept(
                position.near, (after.box_at != 0).astype(np.uint8), position.seen, 1, moved, to, d
            ):
                kept += 1
                reached = set(np.flatnonzero(position.seen == 1)) - {to} | {moved}
                assert reached == set(np.flatnonzero(after.seen == 1))
    assert kept > 500


def test_matching_equals_all_permutations():
    from itertools import permutations

    rng = np.random.default_rng(1)
    for _ in range(200):
        n = int(rng.integers(1, 6))
        table = rng.integers(0, 30, (8, n)).astype(np.int32)
        table[rng.random(table.shape) < 0.2] = general.FAR
        matching = np.empty((7, n), np.int64)
        matching[general.BOX_SPOT] = rng.integers(8, size=n)
        rows = matching[general.BOX_SPOT].copy()
        best = min(sum(int(table[rows[i], p[i]]) for i in range(n)) for p in permutations(range(n)))
        assert general.match(table, matching) == min(best, general.FAR)


def test_spots_are_the_parts_of_the_floor_around_a_box():
    parts = 0
    for level, _ in samples()[::4]:
        problem, _ = one_direction(level, False)
        if problem is None:
            continue
        board = problem.board
        n = len(board.near) - 1
        for box in range(n):
            seen = {}
            for player in set(range(n)) - {box}:
                stamps = np.zeros(n + 1, np.int64)
                stamps[[box, n]] = general.SOLID
                general.flood(board.near, stamps, player, 1, np.empty(n, np.int32))
                seen.setdefault(stamps.tobytes(), set()).add(general.spot_of(board.sides, box, player))
            assert all(len(spots) == 1 for spots in seen.values())
            assert len(set.union(*seen.values())) == len(seen) if seen else True
            assert all((board.place[list(spots)] == box).all() for spots in seen.values())
            parts += len(seen) > 1
    assert parts > 50


@pytest.mark.parametrize(
    ("drawing", "count"),
    [
        ("#####\n#.$@#\n#   #\n# $.#\n#####", 4),  # both diagonals, half a turn
        ("#####\n#. .#\n#$@$#\n#####", 2),
        ("######\n#.   #\n#$ @ #\n######", 1),
        ("#####\n#$  #\n# . #\n# @ #\n#####", 8),
    ],
)
def test_symmetries_of_floor_and_targets(drawing, count):
    level = parse_xsb(drawing)
    board = one_direction(level, False, mirrored=True)[0].board
    assert len(board.images) == count
    for image in board.images:
        assert sorted(image) == list(range(len(image)))
        assert (board.goal[image] == board.goal).all()
        for c in range(len(image) - 1):
            assert set(board.near[image[c]]) == set(image[board.near[c]])
    assert len(one_direction(level, False)[0].board.images) == 1


# --- boards from elsewhere, and without a compiler --------------------------------------------------------------------


@pytest.mark.parametrize(("name", "pushes"), [("unfiltered_test", 1164), ("medium", 1592), ("hard", 1743)])
def test_boxoban_sums(name, pushes):
    levels = load_levels(level_file(f"boxoban_{name}_100.xsb"))
    results = [search(level) for level in levels]
    assert {status for status, _, _ in results} == {SOLVED}
    assert sum(len(plan) for _, plan, _ in results) == pushes
    for level, (_, plan, _) in zip(levels[::10], results[::10], strict=True):
        assert replay(level, plan)
        assert replay(level, search(level, objective="any")[1])


def test_a_large_board_and_many_boxes():
    corridor = Level.from_parts(255, 255, walls=[], targets=[(3, 200)], boxes=[(200, 3)], player=(0, 0))
    status, plan, _ = search(corridor, weight=3.0)
    assert status == SOLVED
    assert len(plan) == 197 + 197
    rows = range(1, 40, 2)
    many = Level.from_parts(
        41, 6, walls=[], targets=[(r, 4) for r in rows], boxes=[(r, 3) for r in rows], player=(0, 0)
    )
    assert [len(search(many, objective=objective)[1]) for objective in ("pushes", "any")] == [20, 20]


PLAIN = """
import numpy as np
from test_general_solver import random_level, search
import random
rng = random.Random(9)
for _ in range(12):
    level = random_level(rng)
    print([search(level, objective=objective) for objective in ("pushes", "any")])
"""


def test_the_same_without_a_compiler():
    outputs = []
    for disabled in ("0", "1"):
        environment = os.environ | {"NUMBA_DISABLE_JIT": disabled, "PYTHONPATH": str(Path(__file__).parent)}
        command = [sys.executable, "-W", "error::RuntimeWarning", "-c", PLAIN]
        outputs.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].count("[") > 12
