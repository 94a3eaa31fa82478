"""The solver against plain search over (player, boxes) in Python, on boards of every shape."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import deque
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from level_files import level_file

from ragen_envs.sokoban import Level, Sokoban, bitboard, generate, load_levels, parse_xsb, search, solve, solve_many
from ragen_envs.sokoban import solver as solver_module
from ragen_envs.sokoban.levels import BOX
from ragen_envs.sokoban.solver import Solution, solve_board

UP, DOWN, LEFT, RIGHT = range(4)
STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))


# --- the slow twin ----------------------------------------------------------------------------------------------------


def successors(floor, player, boxes):
    """``(player, boxes, pushed)`` after each action that changes something."""
    for dr, dc in STEPS:
        ahead = (player[0] + dr, player[1] + dc)
        if ahead in boxes:
            beyond = (ahead[0] + dr, ahead[1] + dc)
            if beyond in floor and beyond not in boxes:
                yield ahead, boxes - {ahead} | {beyond}, True
        elif ahead in floor:
            yield ahead, boxes, False


def brute_force(level: Level, objective: str) -> int:
    """Fewest pushes or moves, -1 if there is no solution: 0-1 breadth-first search over all states."""
    floor = {(r, c) for r in range(level.height) for c in range(level.width)} - set(level.walls)
    targets = frozenset(level.targets)
    start = (level.player, frozenset(level.boxes))
    cost, queue, done = {start: 0}, deque([start]), set()
    while queue:
        state = queue.popleft()
        if state in done:
            continue
        done.add(state)
        if state[1] == targets:
            return cost[state]
        for player, boxes, pushed in successors(floor, *state):
            step = 1 if pushed or objective == "moves" else 0
            new, then = cost[state] + step, (player, boxes)
            if new < cost.get(then, math.inf):
                cost[then] = new
                (queue.append if step else queue.appendleft)(then)
    return -1


def random_level(rng, height, width, boxes, walls):
    """Any valid board: holes, open borders, regions that nobody can reach, boxes on targets, mostly unsolvable."""
    every = [(r, c) for r in range(height) for c in range(width)]
    cells = [cell for cell in every if rng.random() >= walls]
    if len(cells) < boxes + 1:
        return random_level(rng, height, width, boxes, walls)
    order = [cells[i] for i in rng.permutation(len(cells))]
    targets = [cells[i] for i in rng.permutation(len(cells))[:boxes]]
    if boxes > 1 and rng.random() < 0.3:  # a box that is home already, maybe out of reach
        targets = [order[1], *[t for t in targets if t != order[1]][: boxes - 1]]
    return Level.from_parts(
        height,
        width,
        walls=sorted(set(every) - set(cells)),
        targets=targets,
        boxes=order[1 : boxes + 1],
        player=order[0],
    )


def many_levels(seed, n):
    """Random placements and, for harder solvable ones, generated rooms."""
    rng = np.random.default_rng(seed)
    levels = []
    for i in range(n):
        if i % 4 == 3:
            levels.append(generate(rng, 6, 6, 1 + i // 4 % 2, min_steps=8, max_steps=20))
        else:
            height, width = (int(k) for k in rng.integers(1, 6, 2))
            boxes = 1 if height * width < 6 else int(rng.integers(1, 4))
            levels.append(random_level(rng, max(height, 2), max(width, 2), boxes, rng.choice([0.0, 0.15, 0.3])))
    return levels


def check_plan(level: Level, solution: Solution) -> None:
    """The plan, replayed by the rules, ends solved in exactly its length and number of pushes."""
    assert solution.status == "solved"
    assert solution.moves == len(solution.actions)
    game, pushes, outcome = Sokoban(), 0, None
    state = game.initial(level)
    for action in solution.actions:
        assert outcome is None or not outcome.success
        outcome = game.step(state, action, None)
        assert outcome.effective
        pushes += {i for i, code in enumerate(state.cells) if code in (3, 4)} != {
            i for i, code in enumerate(outcome.state.cells) if code in (3, 4)
        }
        state = outcome.state
    assert BOX not in state.cells
    assert pushes == solution.pushes


# --- against the twin -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def solved_levels():
    """500 levels and their costs by plain search."""
    levels = many_levels(1, 500)
    return levels, {what: [brute_force(level, what) for level in levels] for what in ("pushes", "moves")}


@pytest.mark.parametrize("objective", ["pushes", "moves"])
def test_costs_equal_plain_search(solved_levels, objective):
    levels, costs = solved_levels
    for level, cost in zip(levels, costs[objective], strict=True):
        solution = solve(level, objective=objective)
        assert solution.status == ("unsolvable" if cost < 0 else "solved"), level
        if cost < 0:
            assert (solution.actions, solution.pushes, solution.moves) == ((), None, None)
        else:
            assert getattr(solution, objective) == cost
            check_plan(level, solution)
    assert sum(cost < 0 for cost in costs[objective]) > 100
    assert sum(cost > 2 for cost in costs[objective]) > 80
    assert sum(level.n_boxes > 1 for level in levels) > 150


@pytest.mark.parametrize(
    ("objective", "weight"), [("pushes", 1.5), ("pushes", 3), ("moves", 1.5), ("moves", 3), ("any", 1)]
)
def test_weights_keep_their_bound(solved_levels, objective, weight):
    levels, costs = solved_levels
    measured = "moves" if objective == "moves" else "pushes"
    for level, cost in zip(levels, costs[measured], strict=True):
        solution = solve(level, objective=objective, weight=weight)
        assert solution.status == ("unsolvable" if cost < 0 else "solved"), level
        if cost >= 0:
            check_plan(level, solution)
            assert cost <= getattr(solution, measured)
            if objective != "any":
                assert getattr(solution, measured) <= weight * cost


@pytest.mark.parametrize("objective", ["pushes", "moves"])
@pytest.mark.parametrize("weight", [1, 3])
def test_max_cost_is_exact(solved_levels, objective, weight):
    """A level is solved if and only if some solution costs at most ``max_cost``, whatever the weight."""
    levels, costs = solved_levels
    for level, cost in zip(levels[:200], costs[objective], strict=False):
        if cost > 0:
            exact = solve(level, objective=objective, weight=weight, max_cost=cost)
            assert (exact.status, getattr(exact, objective)) == ("solved", cost)
            assert solve(level, objective=objective, weight=weight, max_cost=cost - 1).status == "limit"
        elif cost < 0:
            assert solve(level, objective=objective, weight=weight, max_cost=5).status in ("unsolvable", "limit")


@pytest.mark.parametrize(
    ("height", "width", "boxes", "n"), [(8, 8, 1, 6), (8, 8, 2, 3), (4, 16, 1, 6), (2, 31, 2, 3), (16, 4, 1, 3)]
)
def test_words_that_are_full_do_not_wrap(height, width, boxes, n):
    """All 64 bits are in use, in several shapes: nothing crosses from the end of a row to the next."""
    rng = np.random.default_rng(height + boxes)
    for _ in range(n):
        level = random_level(rng, height, width, boxes, 0.15)
        cost = brute_force(level, "pushes")
        solution = solve(level)
        assert solution.status == ("unsolvable" if cost < 0 else "solved")
        assert cost < 0 or solution.pushes == cost


def transformed(level: Level, k: int) -> Level:
    board = np.frombuffer(level.cells, np.uint8).reshape(level.height, level.width)
    board = np.rot90(board, k % 4)
    board = board.T if k >= 4 else board
    return Level(*board.shape, np.ascontiguousarray(board).tobytes())


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(3, 9))
def test_symmetric_levels_cost_the_same(seed, k, boxes):
    """Also with more boxes than the exact assignment takes."""
    level = random_level(np.random.default_rng(seed), 4, 5, boxes, 0.05)
    here, there = solve(level), solve(transformed(level, k))
    assert (here.status, here.pushes) == (there.status, there.pushes)


def test_many_boxes():
    """More boxes than the exact assignment takes: a row of boxes, each one push from its target."""
    n = bitboard.MATCHED_BOXES + 3
    level = parse_xsb("\n".join(["-" * n, "@".ljust(n, "-"), "$" * n, "." * n, "-" * n]).replace("@", "@", 1))
    solution = solve(level)
    assert solution.pushes == n
    check_plan(level, solution)


# --- deadlocks --------------------------------------------------------------------------------------------------------


def prepared(level: Level) -> int:
    """What is known of a level before any search: dead cells and frozen boxes, above all."""
    size = len(level.cells)
    seen = np.zeros(size, np.uint8)
    status = bitboard.prepare(
        np.frombuffer(bytearray(level.cells), np.uint8),
        level.height,
        level.width,
        seen,
        np.empty(size, np.int64),
        np.empty(9, np.uint64),
        np.empty(3, np.int64),
        np.empty((64, 4), np.uint64),
        np.empty((256, level.n_boxes), np.int64),
    )
    assert not seen.any()
    return status


def solvable_states(floor, targets):
    """All (player, boxes) with as many boxes as targets, solvable or not, by search backwards from the solved ones."""
    states = [
        (player, frozenset(boxes))
        for boxes in combinations(sorted(floor), len(targets))
        for player in sorted(floor - set(boxes))
    ]
    before = {state: [] for state in states}
    for state in states:
        for player, boxes, _ in successors(floor, *state):
            before[player, boxes].append(state)
    solvable = {state for state in states if state[1] == targets}
    queue = deque(solvable)
    while queue:
        for state in before[queue.popleft()]:
            if state not in solvable:
                solvable.add(state)
                queue.append(state)
    return states, solvable


@pytest.mark.parametrize(
    ("height", "width", "boxes", "n"), [(3, 4, 2, 8), (4, 4, 2, 5), (3, 4, 3, 6), (3, 3, 4, 4), (3, 4, 9, 6)]
)
def test_deadlock_tests_never_hit_a_solvable_state(height, width, boxes, n):
    """Dead cells and frozen boxes, over every state of random rooms; the search proves the rest."""
    rng = np.random.default_rng(boxes * height)
    hits = 0
    for _ in range(n):
        level = random_level(rng, height, width, boxes, 0.1)
        floor = {(r, c) for r in range(height) for c in range(width)} - set(level.walls)
        states, solvable = solvable_states(floor, frozenset(level.targets))
        boards = []
        for player, now in states:
            board = Level.from_parts(
                height, width, walls=level.walls, targets=level.targets, boxes=sorted(now), player=player
            )
            boards.append(board)
            found = prepared(board)
            if (player, now) in solvable:
                assert found != search.UNSOLVABLE
            else:
                hits += found == search.UNSOLVABLE
        answers = solve_many(boards)
        assert [answer.status == "solved" for answer in answers] == [state in solvable for state in states]
    assert hits > 100


def test_frozen_boxes():
    """Two boxes side by side on a wall hold each other; a box that one push would free does not count."""

    def found(xsb):
        return prepared(parse_xsb(xsb))

    assert found("-.--.-\n-$$---\n------\n--@---") != search.UNSOLVABLE
    assert found("--$$--\n..----\n------\n--@---") == search.UNSOLVABLE
    assert found("--**--\n------\n-$.---\n--@---") != search.UNSOLVABLE
    assert found("#--###\n-@$$--\n..$$--\n..----") == search.UNSOLVABLE


# --- statuses and limits ----------------------------------------------------------------------------------------------


def test_statuses():
    """C13: solved, unsolvable, limit, or an error that names the rule; limits of cost and states are arguments."""
    assert solve(parse_xsb("#####\n#@*-#\n#####")) == Solution("solved", (), 0, 0, 0)
    for objective in ("pushes", "moves", "any"):
        corner = solve(parse_xsb("######\n#$---#\n#-@--#\n#---.#\n######"), objective=objective)
        assert (corner.status, corner.actions, corner.moves, corner.pushes) == ("unsolvable", (), None, None)

        corridor = parse_xsb("##########\n#@-$----.#\n##########")
        assert solve(corridor, objective=objective, max_cost=3).status == "limit"
        if objective != "any":  # which goes on with other searches
            assert solve(corridor, objective=objective, node_limit=3).status == "limit"
        full = solve(corridor, objective=objective, max_cost=6)
        assert (full.status, full.actions, full.pushes, full.moves) == ("solved", (RIGHT,) * 6, 5, 6)

        open_board = solve(
            parse_xsb("@---\n----\n-.--\n-$--"), objective=objective
        )  # no walls, the box in the last row
        assert open_board.status == "unsolvable"  # nobody can get below it
        open_board = solve(parse_xsb("@---\n----\n----\n-$.-"), objective=objective)
        assert (open_board.status, open_board.moves, open_board.pushes) == ("solved", 4, 1)

    with pytest.raises(ValueError, match=r"2 box.* and 1 target"):
        solve(parse_xsb("######\n#@$$.#\n######"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"objective": "steps"},
        {"weight": 0.5},
        {"weight": math.nan},
        {"weight": math.inf},
        {"max_cost": -1},
        {"node_limit": 0},
        {"time_limit": -1.0},
        {"time_limit": math.nan},
    ],
)
def test_wrong_arguments_are_named(wrong):
    level = parse_xsb("#####\n#@$.#\n#####")
    for call in (lambda: solve(level, **wrong), lambda: solve_many([level], **wrong)):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            call()


def test_what_is_out_of_reach():
    """A box on a target behind a wall stays there; one off its target, or a target without a box, is hopeless."""
    home = parse_xsb("#######\n#@$.#*#\n#######")
    assert (solve(home).pushes, solve(home).actions) == (1, (RIGHT,))
    assert solve(parse_xsb("########\n#@$.#$.#\n########")).status == "unsolvable"
    assert solve(parse_xsb("#########\n#@$-#.$$.\n#*-.#####")).status == "unsolvable"
    assert solve(parse_xsb("######\n#@-#*#\n######")) == Solution("solved", (), 0, 0, 0)


def test_walks_are_shortest():
    """At the same pushes, the way to each push is the shortest one."""
    level = parse_xsb("########\n#@-----#\n#-##-#-#\n#----$.#\n########")
    solution = solve(level)
    assert (solution.pushes, solution.moves) == (1, 6)
    rng = np.random.default_rng(2)
    for _ in range(50):
        level = generate(rng, 6, 6, 1, min_steps=3, max_steps=14)
        pushes, moves = solve(level), solve(level, objective="moves")
        if pushes.pushes == moves.pushes == 1:
            assert pushes.moves == moves.moves
        assert moves.moves <= pushes.moves


HARD = parse_xsb("----#--\n.#---$-\n--*.$--\n.$#---#\n--#----\n@-#---#")
"""More states than the first arrays hold."""


@pytest.mark.parametrize("objective", ["pushes", "moves"])
def test_slices_and_time_limits(monkeypatch, objective):
    """A time limit that is not met changes nothing, wherever the slices end; 0 seconds are not enough."""
    levels = many_levels(3, 60)
    free = [solve(level, objective=objective) for level in levels]
    for size in (1, 7, 100):
        monkeypatch.setattr(bitboard, "SLICE", size)
        monkeypatch.setattr(search, "SLICE", size)
        if size == 100 and objective == "pushes":  # through bigger arrays
            levels, free = [*levels, HARD], [*free, solve(HARD)]
        assert [solve(level, objective=objective, time_limit=600) for level in levels] == free
    for level, solution in zip(levels, free, strict=True):
        stopped = solve(level, objective=objective, time_limit=0)
        assert stopped.status in ("limit", solution.status)
        if solution.expanded:
            assert stopped.status == "limit"


def test_arrays_grow():
    solution = solve(HARD)
    check_plan(HARD, solution)
    assert solution.expanded > 2000
    assert solve(HARD, node_limit=2000).status == "limit"
    check_plan(HARD, solve(HARD, weight=60))  # a long queue, too


# --- many levels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight": 1.5},
        {"max_cost": 3},
        {"node_limit": 20},
        {"objective": "any"},
        {"objective": "moves"},
        {"time_limit": 60},
    ],
)
def test_solve_many_equals_solve(options):
    levels = [*many_levels(4, 120), HARD, parse_xsb("#####\n#@*-#\n#####")]
    if options.get("objective") == "moves":
        levels.pop(-2)
    if options.get("objective") == "any":
        options = options | {"node_limit": 10_000}
    assert solve_many(levels, **options) == [solve(level, **options) for level in levels]


def test_solve_many_of_nothing():
    assert solve_many([]) == []


def test_solve_board_starts_from_a_later_state():
    level = parse_xsb("########\n#@-$--.#\n########")
    game = Sokoban()
    state = game.initial(level)
    for done, action in enumerate([RIGHT, RIGHT, RIGHT, RIGHT]):
        assert solve_board(level, state.cells, state.player).actions == (RIGHT,) * (4 - done)
        state = game.step(state, action, None).state


def test_limits_are_integers_of_any_size():
    level = parse_xsb("#####\n#@$.#\n#####")
    for limits in ({"max_cost": 10**30}, {"node_limit": 10**30}, {"max_cost": np.int8(3), "node_limit": np.uint8(9)}):
        for objective in ("pushes", "moves", "any"):
            assert solve(level, objective=objective, **limits).pushes == 1
            assert solve_many([level], objective=objective, **limits)[0].pushes == 1
    for limits in ({"max_cost": 3.0}, {"node_limit": 1e6}):  # each of them would be compiled anew
        with pytest.raises(TypeError):
            solve(level, **limits)


def test_boards_beyond_a_word_are_handed_on(monkeypatch):
    """What the search on arrays gets and answers: framed cells, pushes as (cell of the box, direction)."""
    asked = []

    def stand_in(walls, targets, deltas, row, **options):
        asked.append(options)
        pushes = []
        box, goal = int(row[1]), int(np.flatnonzero(targets)[0])
        while box != goal:
            pushes.append((box, RIGHT))
            box += int(deltas[RIGHT])
        return search.SOLVED, pushes, 7

    monkeypatch.setattr(solver_module, "_general_search", stand_in)
    level = parse_xsb("\n".join(["-" * 12, "-" * 8 + "@---", "--$" + "-" * 6 + ".--"] + ["-" * 12] * 3))
    solution = solve(level, weight=2, max_cost=40)
    check_plan(level, solution)
    assert (solution.pushes, solution.moves, solution.expanded) == (7, 7 + 8, 7)
    assert asked == [{"objective": "pushes", "weight": 2, "max_cost": 40, "node_limit": 2_000_000, "time_limit": None}]
    small = parse_xsb("#####\n#@$.#\n#####")
    assert solve_many([small, level, small]) == [solve(small), solve(level), solve(small)]
    assert 50 < solve(level, time_limit=60).expanded + asked[-1]["time_limit"] <= 67


# --- compiled or not --------------------------------------------------------------------------------------------------

TWIN = """
import json, sys
import numpy as np
from ragen_envs.sokoban import Level, solve, solve_many
levels = [Level(h, w, bytes.fromhex(cells)) for h, w, cells in json.loads(sys.stdin.read())]
out = []
for options in ({}, {"weight": 1.5}, {"max_cost": 4}, {"node_limit": 40}, {"objective": "moves"}, {"time_limit": 600}):
    for s in solve_many(levels, **options):
        out.append([s.status, s.actions, s.pushes, s.moves, s.expanded])
print(json.dumps(out))
"""


def test_interpreted_code_gives_the_same_results():
    levels = many_levels(7, 25)
    data = json.dumps([(level.height, level.width, level.cells.hex()) for level in levels])
    answers = []
    for extra in ({}, {"NUMBA_DISABLE_JIT": "1"}):
        done = subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", "-c", TWIN],
            input=data,
            env={**os.environ, **extra},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    assert answers[0] == answers[1]


# --- files of other people --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "n", "pushes"),
    [
        ("unfiltered_test_100", 100, 1164),
        ("medium_100", 100, 1592),
        ("hard_100", 100, 1743),
        ("hard_all", 3332, 59_404),
    ],
)
def test_boxoban_sums(name, n, pushes):
    """Push-optimal sums on which independent solvers agree."""
    levels = load_levels(level_file(f"boxoban_{name}.xsb"))
    solutions = solve_many(levels)
    assert [solution.status for solution in solutions] == ["solved"] * n
    assert sum(solution.pushes for solution in solutions) == pushes
    for level, solution in list(zip(levels, solutions, strict=True))[:: n // 50]:
        check_plan(level, solution)
