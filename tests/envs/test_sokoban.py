"""Sokoban against a slow twin: rules, levels, generator, solver and exact values.

The twin below knows walls, targets, boxes and player as plain sets of cells, and nothing of the package's buffers or
compiled searches.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import deque
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from level_files import level_file

from ragen_envs.game import Expectation
from ragen_envs.sokoban import Level, Sokoban, format_xsb, generate, load_levels, oracle, parse_xsb, rules, solve
from ragen_envs.sokoban.levels import BOX, EMPTY, PLAYER, TARGET, WALL

UP, DOWN, LEFT, RIGHT = range(4)
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


# --- the slow twin ----------------------------------------------------------------------------------------------------


class Twin:
    """The rules on sets of cells; a state is (player, frozenset of boxes)."""

    def __init__(self, level: Level):
        self.floor = {(r, c) for r in range(level.height) for c in range(level.width)} - set(level.walls)
        self.targets = frozenset(level.targets)
        self.start = (level.player, frozenset(level.boxes))

    def step(self, state, action):
        """(next state, reward, solved)."""
        (r, c), boxes = state
        dr, dc = MOVES[action]
        ahead, beyond = (r + dr, c + dc), (r + 2 * dr, c + 2 * dc)
        if ahead not in self.floor:
            return state, -0.1, False
        if ahead not in boxes:
            return (ahead, boxes), -0.1, False
        if beyond not in self.floor or beyond in boxes:
            return state, -0.1, False
        moved = boxes - {ahead} | {beyond}
        reward = -0.1 + len(moved & self.targets) - len(boxes & self.targets)
        solved = moved == self.targets
        return (ahead, moved), reward + 10.0 * solved, solved

    def shortest(self, state):
        """Fewest actions to success, -1 if there are none."""
        if state[1] == self.targets:
            return 0
        seen, queue = {state}, deque([(state, 0)])
        while queue:
            now, n = queue.popleft()
            for action in range(4):
                nxt, _, solved = self.step(now, action)
                if solved:
                    return n + 1
                if nxt not in seen:
                    seen.add(nxt)
                    queue.append((nxt, n + 1))
        return -1

    def q(self, state, horizon):
        """Values of the four actions by plain recursion."""
        if horizon == 0:
            return [0.0] * 4
        values = []
        for action in range(4):
            nxt, reward, solved = self.step(state, action)
            values.append(reward + (0.0 if solved or horizon == 1 else max(self.q(nxt, horizon - 1))))
        return values

    def random_play(self, state, horizon):
        @cache
        def expect(now, left):
            if left == 0:
                return 0.0, 0.0
            total = wins = 0.0
            for action in range(4):
                nxt, reward, solved = self.step(now, action)
                later = (0.0, 1.0) if solved else expect(nxt, left - 1)
                total, wins = total + (reward + later[0]) / 4, wins + later[1] / 4
            return total, wins

        return expect(state, horizon)


def twin_state(state):
    level = state.level
    boxes = {level.to_cell(i) for i, code in enumerate(state.cells) if code in (3, 4)}
    return level.to_cell(state.player), frozenset(boxes)


def random_board(rng, boxes=None, *, walls=0.3, solved=True) -> Level:
    """Any valid board, mostly not enclosed, often unsolvable."""
    while True:
        height, width = (int(n) for n in rng.integers(1, 6, 2))
        n = int(rng.integers(1, 4)) if boxes is None else boxes
        cells = [(r, c) for r in range(height) for c in range(width) if rng.random() > walls]
        if len(cells) < n + 2:
            continue
        pick = [cells[i] for i in rng.permutation(len(cells))]
        targets = [cells[i] for i in rng.permutation(len(cells))[:n]]
        every = {(r, c) for r in range(height) for c in range(width)}
        level = Level.from_parts(
            height, width, walls=sorted(every - set(cells)), targets=targets, boxes=pick[1 : n + 1], player=pick[0]
        )
        if solved or not level.solved:
            return level


@st.composite
def boards(draw) -> Level:
    return random_board(np.random.default_rng(draw(st.integers(0, 2**32))))


def play(game, level, actions):
    """(last outcome, sum of rewards, number of actions before success)."""
    state, total = game.initial(level), 0.0
    for n, action in enumerate(actions, start=1):
        outcome = game.step(state, action, None)
        state, total = outcome.state, total + outcome.reward
        if outcome.terminated:
            return outcome, total, n
    return outcome, total, None


# --- rules ------------------------------------------------------------------------------------------------------------


def test_one_push_level_returns_10_9():
    game = Sokoban()
    level = game.load_level("#####\n#@$.#\n#####")
    outcome = game.step(game.initial(level), RIGHT, None)
    assert outcome.reward == pytest.approx(10.9, abs=1e-12)
    assert outcome.terminated
    assert outcome.success
    assert outcome.effective
    assert game.describe(outcome.state, "grid") == "#####\n#_P√#\n#####"


def test_rewards_on_and_off_a_target():
    game = Sokoban()
    level = game.load_level("########\n#@$.--$#\n#-----.#\n########")
    state = game.initial(level)
    got = []
    for action in (RIGHT, RIGHT, LEFT, UP):
        outcome = game.step(state, action, None)
        got.append((round(outcome.reward, 12), outcome.effective, outcome.terminated))
        state = outcome.state
    assert got == [(0.9, True, False), (-1.1, True, False), (-0.1, True, False), (-0.1, False, False)]


def test_pushing_from_target_to_target_earns_nothing():
    game = Sokoban()
    level = game.load_level("#######\n#@*.$-#\n#######")
    assert game.step(game.initial(level), RIGHT, None).reward == -0.1


def test_blocked_pushes_change_nothing_and_return_the_same_state():
    game = Sokoban()
    for text in ("#####\n#-@$#\n#.--#\n#####", "#######\n#@$$-.#\n#----.#\n#######", "@$\n.-"):
        state = game.initial(game.load_level(text))
        outcome = game.step(state, RIGHT, None)
        assert outcome.state is state
        assert (outcome.reward, outcome.terminated, outcome.success, outcome.effective) == (-0.1, False, False, False)


def test_player_symbols_on_and_off_a_target():
    game = Sokoban(symbols="alternative")
    state = game.initial(
        game.load_level("######\n#-@.$#\n#---.#\n#---$#\n######".replace("@", "+").replace(".$", "-$", 1))
    )
    assert "@" in game.describe(state, "grid")
    state = game.step(state, LEFT, None).state
    assert game.describe(state, "grid").split("\n")[1] == "WAG.BW"


def test_steps_agree_with_the_twin_on_random_boards():
    rng = np.random.default_rng(1)
    game = Sokoban()
    for _ in range(300):
        level = random_board(rng, solved=False)
        twin, state, slow = Twin(level), game.initial(level), Twin(level).start
        for action in rng.integers(0, 4, 30).tolist():
            outcome = game.step(state, action, None)
            nxt, reward, solved = twin.step(slow, action)
            assert twin_state(outcome.state) == nxt
            assert outcome.reward == pytest.approx(reward, abs=1e-12)
            assert outcome.terminated is outcome.success is solved
            assert outcome.effective is (nxt != slow)
            assert outcome.state.missing == len(nxt[1] - twin.targets)
            state, slow = outcome.state, nxt
            if solved:
                break


def test_a_solved_board_is_absorbing():
    game = Sokoban()
    level = game.load_level("#####\n#@$.#\n#####")
    solved = game.step(game.initial(level), RIGHT, None).state
    outcome = game.step(solved, RIGHT, None)
    assert outcome.state is solved
    assert (outcome.reward, outcome.terminated, outcome.success, outcome.effective) == (0.0, True, True, False)


@pytest.mark.parametrize("action", [-1, 4])
def test_unknown_action_index(action):
    game = Sokoban()
    with pytest.raises(ValueError, match="action"):
        game.step(game.initial(game.load_level("@$.")), action, None)


def test_states_are_hashable_values():
    game = Sokoban()
    level = game.load_level("######\n#@-$.#\n######")
    a = game.initial(level)
    b = game.step(game.step(a, RIGHT, None).state, LEFT, None).state
    assert a == b
    assert len({a, b}) == 1
    assert game.state_key(a) == game.state_key(b) != game.state_key(game.step(a, RIGHT, None).state)


@pytest.mark.parametrize(
    ("kwargs", "word"),
    [
        ({"height": 2}, "height"),
        ({"width": 300}, "width"),
        ({"height": 4, "width": 4}, "too small"),
        ({"boxes": 0}, "boxes"),
        ({"boxes": 20}, "boxes"),
        ({"min_steps": 0}, "min_steps"),
        ({"min_steps": 5, "max_steps": 4}, "max_steps"),
        ({"symbols": "emoji"}, "symbols"),
        ({"height": 6.0}, "height"),
        ({"boxes": True}, "boxes"),
    ],
)
def test_bad_arguments(kwargs, word):
    with pytest.raises(ValueError, match=word):
        Sokoban(**kwargs)


def test_constants():
    game = Sokoban(height=7, width=9, boxes=2, max_steps=12)
    level = game.sample_level(np.random.default_rng(0))
    assert game.action_names(level) == ("Up", "Down", "Left", "Right")
    assert game.n_actions == 4
    assert game.longest_optimum == 12
    assert game.grid_spec() == ((7, 9), 7)
    state = game.initial(level)
    assert game.legal_actions(state) == (0, 1, 2, 3)
    assert game.level_of(state) is level
    grid = game.grid(state)
    assert grid.dtype == np.int8
    assert grid.shape == (7, 9)
    assert bytes(grid.astype(np.uint8).ravel()) == level.cells
    grid[:] = 0  # a fresh array
    assert game.grid(state).any()
    assert game.split_of(level) in ("train", "val", "test")


# --- levels and XSB ---------------------------------------------------------------------------------------------------


@given(boards())
@settings(max_examples=150, deadline=None)
def test_xsb_and_json_round_trip(level):
    assert parse_xsb(format_xsb(level)) == level
    game = Sokoban()
    if level.solved:
        with pytest.raises(ValueError, match="solved"):
            game.load_level(format_xsb(level))
        return
    level = Level(level.height, level.width, level.cells, 3)
    again = game.load_level(json.loads(json.dumps(game.dump_level(level))))
    assert again == level
    assert again.optimal_steps == 3
    state = game.initial(level)
    for action in (0, 1, 2, 3, 3, 1):
        state = game.step(state, action, None).state
        assert game.load_state(level, json.loads(json.dumps(game.dump_state(state)))) == state


def test_xsb_variants():
    level = parse_xsb("; 7\n\n#####\n#@ $.\n#_-  #\n######\n\n")
    assert (level.height, level.width) == (4, 6)
    assert level.cells[6:12] == bytes([WALL, PLAYER, EMPTY, BOX, TARGET, WALL])
    assert format_xsb(level) == "######\n#@-$.#\n#----#\n######"
    assert level.walls[0] == (0, 0)
    assert (level.targets, level.boxes, level.player, level.n_boxes) == (((1, 4),), ((1, 3),), (1, 1), 1)
    assert parse_xsb("#####\r\n#@$.#\r\n#####\r\n") == parse_xsb("#####\n#@$.#\n#####")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no rows"),
        ("#####\n#@$x#\n#####", r"'x' at cell \(1, 3\)"),
        ("#####\n#-$.#\n#####", "one player, not 0"),
        ("######\n#@$.@#\n######", r"one player, not 2 at cells \(1, 1\) \(1, 4\)"),
        ("####\n#@-#\n####", "at least one box"),
        ("######\n#@$.$#\n######", "2 box.* and 1 target"),
        ("######\n#@$..#\n######", "1 box.* and 2 target"),
        ("#####\n\n#@$.#", "row 1 is empty"),
        ("#" * 256, "255"),
    ],
)
def test_invalid_xsb(text, words):
    with pytest.raises(ValueError, match=words):
        parse_xsb(text)


def test_invalid_levels_and_parts():
    with pytest.raises(ValueError, match=r"cell \(0, 2\) has the unknown code 9"):
        Level(1, 3, bytes([PLAYER, BOX, 9]))
    with pytest.raises(ValueError, match="9 cells, not 3"):
        Level(3, 3, bytes([PLAYER, BOX, TARGET]))
    parts = {"walls": [(0, 0)], "targets": [(0, 1)], "boxes": [(1, 1)], "player": (1, 0)}
    assert format_xsb(Level.from_parts(2, 2, **parts)) == "#.\n@$"
    for change, words in (
        ({"boxes": [(0, 0)]}, r"box at \(0, 0\) stands on a wall"),
        ({"player": (1, 1)}, r"player at \(1, 1\) stands on a box"),
        ({"targets": [(0, 1), (0, 1)]}, "stands on a target"),
        ({"boxes": [(2, 0)]}, "outside"),
    ):
        with pytest.raises(ValueError, match=words):
            Level.from_parts(2, 2, **(parts | change))


@pytest.mark.parametrize(
    "data", [None, 3, [], {}, {"xsb": 3}, {"xsb": "@$.", "optimal_steps": "1"}, {"xsb": "@$.", "optimal_steps": 0}]
)
def test_invalid_level_data(data):
    with pytest.raises(ValueError, match=r"Sokoban level|optimal_steps"):
        Sokoban().load_level(data)


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"player": [1, 1]},
        {"player": [0, 0], "boxes": [[1, 2]]},
        {"player": [1, 2], "boxes": [[1, 2]]},
        {"player": [1, 1], "boxes": []},
        {"player": [1, 1], "boxes": [[9, 9]]},
    ],
)
def test_invalid_state_data(data):
    game = Sokoban()
    level = game.load_level("######\n#@-$.#\n######")
    with pytest.raises(ValueError, match=r"state|stands|box|outside"):
        game.load_state(level, data)


def test_load_levels(tmp_path):
    path = tmp_path / "levels.xsb"
    path.write_text("; 0\n####\n#@ #\n#$.#\n####\n\n; 1\n#####\n#@$.#\n#####\n")
    assert [(level.height, level.width) for level in load_levels(path)] == [(4, 4), (3, 5)]
    path.write_text("; 0\n#####\n#@$.#\n#####\n\n; 1\n###\n#@#\n###\n")
    with pytest.raises(ValueError, match=r"level from line 7: a level needs at least one box"):
        load_levels(path)


def test_level_key_is_the_same_for_equal_levels():
    rng = np.random.default_rng(5)
    game = Sokoban()
    keys = set()
    for i in range(40):
        level = random_board(rng) if i % 2 else game.sample_level(rng)
        board = np.frombuffer(level.cells, np.uint8).reshape(level.height, level.width)
        twins = []
        for turns in range(4):
            for image in (np.rot90(board, turns), np.rot90(board, turns).T):
                twins.append(image)
                twins.append(np.pad(image, rng.integers(0, 4, (2, 2))))  # in more wall, off centre
        # A pocket of floor that nobody can enter.
        pocket = np.pad(board, ((0, 0), (0, 3)))
        pocket[0, -1] = EMPTY
        twins.append(pocket)
        assert {game.level_key(Level(*t.shape, t.tobytes())) for t in twins} == {game.level_key(level)}
        keys.add(game.level_key(level))
    assert len(keys) > 30


def test_level_key_tells_levels_apart():
    texts = (
        "######\n#@-$.#\n#----#\n######",
        "######\n#-@$.#\n#----#\n######",
        "######\n#@$-.#\n#----#\n######",
        "######\n#@-$-#\n#---.#\n######",
        "######\n#@-$.#\n#--#-#\n######",
        "######\n#@-*-#\n#----#\n######",
        "######\n#+-$-#\n#----#\n######",
    )
    assert len({parse_xsb(text).key for text in texts}) == len(texts)


# --- words and pictures -----------------------------------------------------------------------------------------------


def read_coordinates(text: str) -> np.ndarray:
    """The board that a coordinates text describes, from the text alone."""
    lines = {line.split(" ")[0]: line.split(" ")[1:] for line in text.split("\n")}
    assert len(lines) == len(text.split("\n"))
    height, width = map(int, lines.pop("size"))
    cells = {kind: [tuple(map(int, w[1:-1].split(","))) for w in words] for kind, words in lines.items()}
    board = np.zeros((height, width), int)
    board[1:-1, 1:-1] = 1
    for kind, code in (("open", 1), ("walls", 0), ("targets", 2), ("boxes", 4), ("done", 3)):
        for cell in cells.get(kind, []):
            board[cell] = code
    (player,) = cells["player"]
    board[player] = {1: 5, 2: 6}[board[player]]
    return board


def test_coordinates_say_as_much_as_the_grid():
    rng = np.random.default_rng(6)
    for i in range(300):
        game = Sokoban(boxes=1 + i % 2)
        level = random_board(rng) if i % 3 == 0 else game.sample_level(rng)
        state = game.initial(level)
        for action in rng.integers(0, 4, 5).tolist():
            text = game.describe(state, "coordinates")
            assert (read_coordinates(text) == game.grid(state)).all(), text
            assert i % 3 == 0 or "open" not in text
            assert "  " not in text
            assert all(line == line.strip() for line in text.split("\n"))
            assert game.describe(state, "both") == text + "\n" + game.describe(state, "grid")
            state = game.step(state, action, None).state


def test_coordinates_text_exactly():
    game = Sokoban()
    level = game.load_level("######\n#-.*-#\n#--#-#\n#@$--#\n######")
    state = game.initial(level)
    expected = "size 5 6\nplayer (3,1)\nboxes (3,2)\ntargets (1,2)\ndone (1,3)\nwalls (2,3)"
    assert game.describe(state, "coordinates") == expected
    for action in (UP, UP, RIGHT):
        state = game.step(state, action, None).state
    assert game.describe(state, "grid").split("\n")[1] == "#_S√_#"
    assert game.describe(state, "coordinates") == expected.replace("(3,1)", "(1,2)")


@pytest.mark.parametrize("symbols", ["default", "alternative"])
def test_legend_explains_the_symbols_on_the_board_and_no_others(symbols):
    game = Sokoban(symbols=symbols)
    other = set(rules.SYMBOLS["default" if symbols == "alternative" else "alternative"])
    rng = np.random.default_rng(7)
    seen = set()
    for _ in range(100):
        level = random_board(rng)
        for view in ("grid", "both"):
            legend = game.instructions(level, view).split("Symbols on the board:\n")[1].split("\n")
            explained = {line[0]: line[2:] for line in legend}
            assert all(line[1] == " " for line in legend)
            assert not set(explained) & (other - set(rules.SYMBOLS[symbols]))
            grid = game.describe(game.initial(level), "grid").replace("\n", "")
            assert set(grid) <= set(explained)
            meant = [explained[letter] for letter in grid]
            assert meant == [rules.MEANINGS[code] for code in level.cells]
            seen |= set(grid)
        assert "Symbols" not in game.instructions(level, "coordinates")
    assert len(seen) == 7


def test_instructions_name_every_line_and_the_right_numbers():
    game = Sokoban()
    level = game.load_level("-######-\n#-.*-###\n#--#-###\n#@$--###\n########")
    text = game.instructions(level, "coordinates")
    for line in game.describe(game.initial(level), "coordinates").split("\n"):
        assert f"\n{line.split(' ')[0]}: " in text
    assert "rows 0 to 4" in text
    assert "columns 0 to 7" in text
    assert "Push all 2 boxes" in text
    enclosed = game.sample_level(np.random.default_rng(0))
    assert "open:" not in game.instructions(enclosed, "coordinates")
    for bad in ("rgb", ""):
        with pytest.raises(ValueError, match="view"):
            game.instructions(level, bad)
        with pytest.raises(ValueError, match="view"):
            game.describe(game.initial(level), bad)


def test_draw():
    game = Sokoban()
    state = game.initial(parse_xsb("#######\n#@$.*-#\n#######"))
    picture = game.draw(state)
    assert picture.dtype == np.uint8
    assert picture.shape == (3 * 32, 7 * 32, 3)
    tiles = {picture[32:64, 32 * c : 32 * c + 32].tobytes() for c in range(6)}
    assert len(tiles) == 6
    picture[:] = 0
    assert game.draw(state).any()


# --- solver -----------------------------------------------------------------------------------------------------------


def check_plan(level, solution):
    """The plan, replayed by the rules, ends solved in exactly its length."""
    if solution.moves == 0:
        return
    outcome, _, n = play(Sokoban(), level, solution.actions)
    assert outcome.success
    assert n == len(solution.actions) == solution.moves
    assert 1 <= solution.pushes <= solution.moves


def test_shortest_solutions_equal_plain_search():
    """C13: lengths as of a plain breadth-first search, and every plan, replayed, ends solved in its length."""
    rng = np.random.default_rng(8)
    levels = [generate(rng, 6, 6, 1) for _ in range(200)]
    levels += [generate(rng, 6, 6, 2) for _ in range(40)]
    levels += [generate(rng, 7, 8, 2, max_steps=12) for _ in range(10)]
    levels += [random_board(rng) for _ in range(300)]
    unsolvable = 0
    for level in levels:
        twin, solution = Twin(level), solve(level, objective="moves")
        n = twin.shortest(twin.start)
        unsolvable += n < 0
        assert solution.status == ("unsolvable" if n < 0 else "solved")
        if n >= 0:
            assert solution.moves == n
            assert level.optimal_steps in (None, n)
            check_plan(level, solution)
    assert unsolvable > 50


@pytest.mark.parametrize("name", ["unfiltered_test", "unfiltered_train", "medium", "hard"])
def test_boxoban_files(name):
    levels = load_levels(level_file(f"boxoban_{name}_100.xsb"))
    assert len(levels) == 100
    assert {(level.height, level.width, level.n_boxes) for level in levels} == {(10, 10, 4)}
    for level in levels[:15]:
        solution = solve(level, objective="moves")
        assert solution.status == "solved"
        check_plan(level, solution)


# --- generator --------------------------------------------------------------------------------------------------------


def check_room(level, height, width, boxes):
    assert (level.height, level.width, level.n_boxes) == (height, width, boxes)
    assert not level.solved
    board = np.frombuffer(level.cells, np.uint8).reshape(height, width)
    border = np.concatenate([board[0], board[-1], board[:, 0], board[:, -1]])
    assert not border.any()
    floor = {tuple(map(int, cell)) for cell in np.argwhere(board != WALL)}
    reached, stack = {level.player}, [level.player]
    while stack:
        r, c = stack.pop()
        for dr, dc in MOVES:
            near = (r + dr, c + dc)
            if near in floor and near not in reached:
                reached.add(near)
                stack.append(near)
    assert reached == floor


@pytest.mark.parametrize(
    ("height", "width", "boxes", "low", "high", "n"),
    [(6, 6, 1, 1, 10, 50), (5, 5, 1, 2, 6, 30), (3, 9, 1, 1, None, 20), (8, 8, 2, 3, 10, 30), (6, 9, 3, 12, 20, 6)],
)
def test_generator_keeps_its_bounds(height, width, boxes, low, high, n):
    rng = np.random.default_rng(9)
    optima, keys = set(), set()
    for _ in range(n):
        level = generate(rng, height, width, boxes, min_steps=low, max_steps=high)
        check_room(level, height, width, boxes)
        assert low <= level.optimal_steps <= (high or 1000)
        assert solve(level, objective="moves").moves == level.optimal_steps
        optima.add(level.optimal_steps)
        keys.add(level.key)
    assert len(optima) > 2
    assert len(keys) > 4


def test_ten_by_ten_with_four_boxes():
    level = generate(np.random.default_rng(10), 10, 10, 4, min_steps=5, max_steps=12)
    check_room(level, 10, 10, 4)
    assert 5 <= solve(level, objective="moves").moves == level.optimal_steps <= 12


def test_requests_that_cannot_be_met():
    rng = np.random.default_rng(11)
    with pytest.raises(ValueError, match="boxes must be at most 14"):
        generate(rng, 6, 6, 20)
    with pytest.raises(ValueError, match="was found in 20 tries"):
        generate(rng, 6, 6, 1, min_steps=200, max_tries=20)
    with pytest.raises(ValueError, match="was found in 20 tries"):
        generate(rng, 3, 5, 1, min_steps=2, max_steps=2, max_tries=20)


def test_seeds_give_solvable_levels_within_the_bounds():
    game = Sokoban()
    for seed in range(1000):
        level = game.sample_level(np.random.default_rng(seed))
        assert game.min_steps <= level.optimal_steps <= game.max_steps
        assert solve(level, objective="moves").moves == level.optimal_steps


PROCESS = """
import json, numpy as np
from ragen_envs.sokoban import Sokoban, format_xsb, solve
out = []
for kwargs in ({}, {"height": 7, "width": 7, "boxes": 2, "max_steps": 6}):
    game = Sokoban(**kwargs)
    for seed in range(4):
        level = game.sample_level(np.random.default_rng(seed))
        state = game.initial(level)
        values = game.oracle(state, 6)
        plan = solve(level, objective="moves").actions
        out.append([format_xsb(level), level.key, game.state_key(state), plan, values.q, values.optimal_steps,
                    game.random_play(state, 6).success])
print(json.dumps(out))
"""


def test_same_results_in_every_process_compiled_or_not():
    answers = []
    for extra in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"}, {"NUMBA_DISABLE_JIT": "1"}):
        done = subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", "-c", PROCESS],
            env={**os.environ, **extra},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    assert answers[0] == answers[1]
    assert answers[0] == answers[2]


def test_global_random_state_is_untouched():
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    game = Sokoban()
    level = game.sample_level(np.random.default_rng(0))
    state = game.initial(level)
    game.step(state, UP, np.random.default_rng(0))
    game.oracle(state, 5)
    game.random_play(state, 5)
    game.draw(state)
    solve(level)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002


def test_levels_depend_on_the_generator_passed_in_alone():
    game, other = Sokoban(), Sokoban(boxes=2)
    first = [game.sample_level(np.random.default_rng(seed)) for seed in range(5)]
    mixed = []
    for seed in range(5):
        other.sample_level(np.random.default_rng(99 + seed))
        mixed.append(game.sample_level(np.random.default_rng(seed)))
    assert first == mixed
    assert len(set(first)) > 3


# --- oracle -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["table", "no table"])
def oracle_path(request, monkeypatch):
    """Both ways of the oracle: one table per level, and none."""
    oracle._cache.clear()
    oracle._solver_steps.cache_clear()
    if request.param == "no table":
        monkeypatch.setattr(oracle, "TABLE_LIMIT", 0)
    yield request.param
    oracle._cache.clear()


def wander(game, level, rng, n):
    """Up to ``n`` unsolved states along a random walk."""
    state, states = game.initial(level), []
    for action in rng.integers(0, 4, n).tolist():
        states.append(state)
        outcome = game.step(state, action, None)
        if outcome.terminated:
            break
        state = outcome.state
    return states


def test_oracle_against_recursion(oracle_path):
    rng = np.random.default_rng(12)
    game = Sokoban()
    levels = [random_board(rng, solved=False) for _ in range(30)]
    levels += [generate(rng, 6, 6, 1 + i % 2, max_steps=5) for i in range(12)]
    dead = wins = 0
    for level in levels:
        twin = Twin(level)
        for state in wander(game, level, rng, 9)[::4]:
            for horizon in (0, 1, 4):
                slow = twin.q(twin_state(state), horizon)
                values = game.oracle(state, horizon)
                assert values.q == pytest.approx(slow, abs=1e-9)
                assert values.value == pytest.approx(max(slow), abs=1e-9)
                assert values.optimal_actions == tuple(a for a in range(4) if slow[a] > max(slow) - 1e-9)
                wins += values.value > 5
            n = twin.shortest(twin_state(state))
            assert values.optimal_steps == n
            assert values.dead_end is (n < 0)
            dead += n < 0
            got = game.random_play(state, 6)
            assert (got.reward, got.success) == pytest.approx(twin.random_play(twin_state(state), 6), abs=1e-9)
    assert dead > 10
    assert wins > 10


def test_dead_ends_in_two_box_rooms(oracle_path):
    rng = np.random.default_rng(13)
    game = Sokoban(height=5, width=6, boxes=2, max_steps=12)
    dead = 0
    for _ in range(6):
        level = game.sample_level(rng)
        twin = Twin(level)
        for state in wander(game, level, rng, 40)[::3]:
            values, n = game.oracle(state, 2), twin.shortest(twin_state(state))
            assert (values.optimal_steps, values.dead_end) == (n, n < 0)
            dead += n < 0
    assert dead > 5


def test_both_oracle_paths_agree_to_the_bit(monkeypatch):
    rng = np.random.default_rng(14)
    game = Sokoban(height=7, width=7, boxes=2)
    states = [state for _ in range(5) for state in wander(game, game.sample_level(rng), rng, 6)]
    tabled = [(game.oracle(state, 8), game.random_play(state, 8)) for state in states]
    monkeypatch.setattr(oracle, "TABLE_LIMIT", 0)
    oracle._cache.clear()
    assert [(game.oracle(state, 8), game.random_play(state, 8)) for state in states] == tabled
    oracle._cache.clear()


def test_oracle_at_the_ends(oracle_path):
    game = Sokoban()
    level = game.load_level("#####\n#@$.#\n#####")
    start = game.initial(level)
    last = game.step(start, RIGHT, None).state
    values = game.oracle(start, 1)
    assert values.q == pytest.approx((-0.1, -0.1, -0.1, 10.9))
    assert (values.optimal_actions, values.dead_end, values.optimal_steps) == ((RIGHT,), False, 1)
    assert game.oracle(start, 0).value == 0.0
    assert game.oracle(start, 0).q == (0.0,) * 4
    assert game.oracle(start, 0).optimal_steps == 1
    solved = game.oracle(last, 5)
    assert (solved.value, solved.q, solved.dead_end, solved.optimal_steps) == (0.0, (0.0,) * 4, False, 0)
    assert game.random_play(last, 5) == Expectation(0.0, 1.0)
    assert game.random_play(start, 0) == Expectation(0.0, 0.0)
    corner = game.initial(game.load_level("#####\n#$@-#\n#--.#\n#####"))
    assert game.oracle(corner, 3).value == pytest.approx(-0.3)
    assert game.oracle(corner, 3).dead_end
    for ask in (game.oracle, game.random_play):
        with pytest.raises(ValueError, match="actions_left"):
            ask(start, -1)


def test_states_that_the_start_cannot_reach(oracle_path):
    game = Sokoban()
    level = game.load_level("#######\n#@-$-.#\n#-----#\n#######")
    stuck = game.load_state(level, {"player": [1, 1], "boxes": [[2, 1]]})
    assert game.oracle(stuck, 3).dead_end
    close = game.load_state(level, {"player": [1, 3], "boxes": [[1, 4]]})
    assert game.oracle(close, 3).value == pytest.approx(10.9)


def test_plan_takes_the_best_turn():
    game = Sokoban()
    rng = np.random.default_rng(15)
    for _ in range(10):
        level = game.sample_level(rng)
        plan = game.plan(game.initial(level), turns_left=5, actions_left=10, max_actions=5)
        assert plan.expected.success == 1.0
        assert plan.expected.reward == pytest.approx(game.oracle(game.initial(level), 10).value)
        assert len(plan.actions) == min(5, level.optimal_steps)
        assert plan.expected.reward == pytest.approx(11 - 0.1 * level.optimal_steps)


def test_limits_are_named(monkeypatch):
    monkeypatch.setattr(oracle, "TABLE_LIMIT", 0)
    oracle._cache.clear()
    oracle._solver_steps.cache_clear()
    game = Sokoban()
    state = game.initial(game.load_level("#######\n#@-$-.#\n#-----#\n#######"))
    monkeypatch.setattr(oracle, "HORIZON_LIMIT", 5)
    with pytest.raises(RuntimeError, match="HORIZON_LIMIT = 5"):
        game.oracle(state, 10)
    assert game.oracle(state, 1).optimal_steps == 3
    monkeypatch.setattr(oracle, "solve_board", lambda *a, **k: solve(a[0], node_limit=1, **k))
    oracle._solver_steps.cache_clear()
    with pytest.raises(RuntimeError, match="NODE_LIMIT"):
        game.oracle(state, 1)
    oracle._cache.clear()
    oracle._solver_steps.cache_clear()


def test_cache_is_bounded_and_harmless(monkeypatch):
    game = Sokoban()
    rng = np.random.default_rng(16)
    states = [game.initial(game.sample_level(rng)) for _ in range(30)]
    first = [game.oracle(state, 6) for state in states]
    monkeypatch.setattr(oracle, "CACHE_STATES", 500)
    oracle._cache.clear()
    assert [game.oracle(state, 6) for state in states] == first
    assert 1 <= len(oracle._cache.tables) < 10


def test_a_big_level_has_exact_values_too():
    game = Sokoban(height=10, width=10, boxes=4, max_steps=12)
    level = game.sample_level(np.random.default_rng(17))
    values = game.oracle(game.initial(level), 12)
    assert values.optimal_steps == level.optimal_steps
    assert not values.dead_end
    assert values.value > 10
