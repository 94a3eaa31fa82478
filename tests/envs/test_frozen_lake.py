"""The frozen lake: rules, maps, words, and exact values against plain twins."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from functools import cache

import numpy as np
import pytest

from ragen_envs import splits
from ragen_envs.frozen_lake import FrozenLake, LakeLevel, LakeState
from ragen_envs.frozen_lake.maps import parse, shortest_path
from ragen_envs.frozen_lake.rules import MOVES, SYMBOLS

LEFT, DOWN, RIGHT, UP = range(4)
ROW = ["SFFFG", "FFFFF"]
SLIPS = (0.0, 0.1, 2 / 3)


def sampled(game: FrozenLake, n: int, seed: int = 0) -> list[LakeLevel]:
    """``n`` levels from one generator."""
    rng = np.random.default_rng(seed)
    return [game.sample_level(rng) for _ in range(n)]


# --- plain twins: dictionaries and recursion, straight from the rules ---------------------------------------------


def results(level: LakeLevel, cell: tuple[int, int], action: int, slip: float) -> list[tuple[float, tuple[int, int]]]:
    """(probability, cell reached) of an action."""
    out = []
    for direction, p in ((action, 1 - slip), ((action + 1) % 4, slip / 2), ((action - 1) % 4, slip / 2)):
        r, c = cell[0] + MOVES[direction][0], cell[1] + MOVES[direction][1]
        inside = 0 <= r < len(level.rows) and 0 <= c < len(level.rows[0])
        out.append((p, (r, c) if inside else cell))
    return out


def letter(level: LakeLevel, cell: tuple[int, int]) -> str:
    """The map's letter."""
    return level.rows[cell[0]][cell[1]]


class Twin:
    """Values of one level by plain recursion."""

    def __init__(self, level: LakeLevel, slip: float) -> None:
        self.level, self.slip = level, slip
        self.value, self.luck, self.turns = cache(self._value), cache(self._luck), cache(self._turns)

    def q(self, cell: tuple[int, int], action: int, left: int) -> float:
        return sum(p * self.value(to, left - 1) for p, to in results(self.level, cell, action, self.slip))

    def _value(self, cell: tuple[int, int], left: int) -> float:
        if letter(self.level, cell) in "GH" or left == 0:
            return float(letter(self.level, cell) == "G")
        return max(self.q(cell, action, left) for action in range(4))

    def _luck(self, cell: tuple[int, int], left: int) -> float:
        if letter(self.level, cell) in "GH" or left == 0:
            return float(letter(self.level, cell) == "G")
        found = [results(self.level, cell, action, self.slip) for action in range(4)]
        return sum(p * self.luck(to, left - 1) / 4 for result in found for p, to in result)

    def spread(self, cell: tuple[int, int], sequence: tuple[int, ...]) -> dict[tuple[int, int], float]:
        """Distribution over cells after a sequence; hole and goal keep what falls into them."""
        now = {cell: 1.0}
        for action in sequence:
            then: dict[tuple[int, int], float] = {}
            for at, mass in now.items():
                ended = letter(self.level, at) in "GH"
                for p, to in [(1.0, at)] if ended else results(self.level, at, action, self.slip):
                    then[to] = then.get(to, 0.0) + mass * p
            now = then
        return now

    def _turns(self, cell: tuple[int, int], turns: int, left: int, longest: int) -> float:
        if letter(self.level, cell) in "GH" or left == 0 or turns == 0:
            return float(letter(self.level, cell) == "G")
        return max(
            self.sequence_value(cell, sequence, turns, left, longest)
            for n in range(1, min(longest, left) + 1)
            for sequence in itertools.product(range(4), repeat=n)
        )

    def sequence_value(
        self, cell: tuple[int, int], sequence: tuple[int, ...], turns: int, left: int, longest: int
    ) -> float:
        return sum(
            mass * self.turns(to, turns - 1, left - len(sequence), longest)
            for to, mass in self.spread(cell, sequence).items()
        )


# --- maps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["SFF", "FHF", "FFF"], "no goal"),
        (["FFF", "FFF", "FFG"], "no start"),
        (["SFX", "FFG"], "unknown letter 'X' at row 0, column 2"),
        (["SFP", "FFG"], "unknown letter"),
        (["SFF", "FG"], "ragged map: row 1"),
        (["SFS", "FFG"], "more than one start"),
        (["SFG", "FFG"], "more than one goal"),
        (["SHF", "HHF", "FFG"], "walled off"),
        ([], "non-empty"),
        ([""], "rows and columns"),
        ([1, 2], "rows"),
        ({"rows": 1}, "rows"),
        (["S" + "F" * 40 + "G"], "1 to 32"),
    ],
)
def test_invalid_maps_are_refused_with_the_reason(rows: list[str], message: str) -> None:
    """C6."""
    with pytest.raises(ValueError, match=message):
        FrozenLake(map=rows)
    with pytest.raises(ValueError, match=message):
        FrozenLake().load_level(rows)


def test_on_a_free_rectangle_right_four_times_ends_in_column_four() -> None:
    """C6."""
    game = FrozenLake(map=["SFFFF", "FFFFG"], slip=0.0)
    rng = np.random.default_rng(0)
    state = game.initial(game.sample_level(rng))
    for column in range(1, 5):
        outcome = game.step(state, RIGHT, rng)
        state = outcome.state
        assert (state.row, state.column, outcome.effective) == (0, column, True)
    stay = game.step(state, RIGHT, rng)
    assert (stay.state, stay.effective, stay.terminated, stay.reward) == (state, False, False, 0.0)
    down = game.step(state, DOWN, rng)
    assert (down.reward, down.terminated, down.success) == (1.0, True, True)
    assert rng.random() == np.random.default_rng(0).random()  # without slipping no luck is used


def test_a_map_of_ones_own_is_always_given_and_draws_nothing() -> None:
    game = FrozenLake(map="SF\nFG")
    rng = np.random.default_rng(0)
    assert game.sample_level(rng) == game.fixed_level == LakeLevel(("SF", "FG"))
    assert rng.random() == np.random.default_rng(0).random()
    assert (game.longest_optimum, game.grid_spec()) == (2, ((2, 2), 6))
    assert FrozenLake().fixed_level is None


def test_hole_and_goal_end_the_game_and_only_the_goal_is_success() -> None:
    game = FrozenLake(map=["HSG"], slip=0.0)
    state = game.initial(game.load_level(["HSG"]))
    rng = np.random.default_rng(0)
    hole, goal = game.step(state, LEFT, rng), game.step(state, RIGHT, rng)
    assert (hole.reward, hole.terminated, hole.success, hole.effective) == (0.0, True, False, True)
    assert (goal.reward, goal.terminated, goal.success, goal.effective) == (1.0, True, True, True)
    assert game.legal_actions(hole.state) == game.legal_actions(goal.state) == ()
    for ended in (hole.state, goal.state):
        with pytest.raises(ValueError, match="over"):
            game.step(ended, LEFT, rng)
    with pytest.raises(ValueError, match="0 to 3"):
        game.step(state, 4, rng)


@pytest.mark.parametrize("slip", [0.0, 0.1, 2 / 3, 1.0])
def test_slips_have_the_documented_frequencies(slip: float) -> None:
    """C6: within three standard deviations over 20,000 steps."""
    game = FrozenLake(slip=slip)
    state = LakeState.at(LakeLevel(("FFF", "FFF", "SFG")), 1, 1)
    rng = np.random.default_rng(11)
    n = 20_000
    for action in range(4):
        counts = dict.fromkeys(MOVES, 0)
        for _ in range(n):
            after = game.step(state, action, rng).state
            counts[after.row - 1, after.column - 1] += 1
        for direction, p in ((action, 1 - slip), ((action + 1) % 4, slip / 2), ((action + 3) % 4, slip / 2)):
            assert abs(counts[MOVES[direction]] - n * p) <= 3 * math.sqrt(n * p * (1 - p)) + 1e-9
        assert counts[MOVES[(action + 2) % 4]] == 0


def test_same_seed_same_map_and_same_slips() -> None:
    """C6."""
    game = FrozenLake(slip=2 / 3)
    walks = []
    for _ in range(2):
        rng = np.random.default_rng(4)
        state, walk = game.initial(game.sample_level(rng)), []
        for _ in range(30):
            outcome = game.step(state, int(rng.integers(4)), rng)
            state = game.initial(game.sample_level(rng)) if outcome.terminated else outcome.state
            walk.append(game.describe(outcome.state, "both"))
        walks.append(walk)
    assert walks[0] == walks[1]


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"size": [2, 5], "frozen": 0.9},
        {"size": 6, "min_steps": 5, "max_steps": 8},
        {"size": [1, 2]},
        {"max_steps": None, "frozen": 0.6},
        {"frozen": 0.0, "max_steps": 1},
    ],
)
def test_sampled_maps_are_valid_and_within_the_limits(kwargs: dict) -> None:
    game = FrozenLake(**kwargs)
    for level in sampled(game, 200):
        assert parse(list(level.rows)) == level
        assert level.shape == (game.height, game.width)
        assert game.min_steps <= shortest_path(level) <= (game.max_steps or 99)
        assert game.oracle(game.initial(level), 1).optimal_steps == shortest_path(level)


def test_start_and_goal_are_uniform_and_the_share_of_ice_is_right_without_limits() -> None:
    # On a fully frozen lake nothing is thrown away, so every ordered pair of cells is equally likely.
    game = FrozenLake(size=3, frozen=1.0, max_steps=None)
    counts: dict[tuple, int] = {}
    for level in sampled(game, 7200):
        pair = (level.find("S"), level.find("G"))
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 72
    assert sum((n - 100) ** 2 / 100 for n in counts.values()) < 71 + 5 * math.sqrt(2 * 71)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"min_steps": 30, "max_steps": None}, "no 4 x 4 map"),
        ({"min_steps": 0}, "at least 1"),
        ({"min_steps": 2.5}, "whole"),
        ({"max_steps": True}, "whole"),
        ({"min_steps": 5, "max_steps": 4}, "below"),
        ({"slip": 1.1}, "slip"),
        ({"slip": float("nan")}, "slip"),
        ({"frozen": -0.1}, "frozen"),
        ({"size": 1}, "size"),
        ({"size": 33}, "size"),
        ({"size": [2, 3, 4]}, "size"),
        ({"size": [2, 2.5]}, "size"),
    ],
)
def test_impossible_arguments_are_refused(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrozenLake(**kwargs)


def test_a_request_that_random_maps_never_meet_is_an_error_after_bounded_tries() -> None:
    game = FrozenLake(min_steps=14, max_steps=None)
    with pytest.raises(ValueError, match=r"none of .* random 4 x 4 maps"):
        game.sample_level(np.random.default_rng(0))


def test_no_level_is_solved_or_lost_at_the_start_or_beyond_ten_actions() -> None:
    game = FrozenLake()
    for level in sampled(game, 1000):
        found = game.oracle(game.initial(level), 10)
        assert 1 <= found.optimal_steps <= 10 == game.longest_optimum
        assert not found.dead_end
        assert found.value > 0


# --- keys, splits, dumps ------------------------------------------------------------------------------------------


def test_level_key_is_the_same_for_the_eight_symmetries_and_so_are_split_and_values() -> None:
    for game in (FrozenLake(), FrozenLake(size=[3, 5])):
        for level in sampled(game, 40):
            board = np.array([list(row) for row in level.rows])
            images = [np.rot90(b, turns) for b in (board, board.T) for turns in range(4)]
            twins = [game.load_level(["".join(row) for row in image]) for image in images]
            assert len({game.level_key(twin) for twin in twins}) == 1
            assert {game.split_of(twin) for twin in twins} == {splits.split_of(game.level_key(level))}
            values = [game.oracle(game.initial(twin), 10).value for twin in twins]
            assert np.ptp(values) < 1e-12


def test_level_key_tells_start_from_ice_and_shapes_apart() -> None:
    game = FrozenLake()
    maps = [["SFFG"], ["FSFG"], ["SF", "FG"], ["SFHG"[::-1].replace("H", "F"), "FFFF"], ["SFFG", "FFFH"]]
    assert len({game.level_key(game.load_level(rows)) for rows in maps}) == len(maps)


def test_levels_and_states_survive_json() -> None:
    game = FrozenLake(size=[3, 4])
    for level in sampled(game, 50):
        assert game.load_level(json.loads(json.dumps(game.dump_level(level)))) == level
        assert game.load_level("\n".join(level.rows)) == level
        keys = set()
        for row, column in np.ndindex(*level.shape):
            state = LakeState.at(level, int(row), int(column))
            assert game.load_state(level, json.loads(json.dumps(game.dump_state(state)))) == state
            assert game.level_of(state) is level
            keys.add(game.state_key(state))
        assert len(keys) == 12
    for bad in ([3, 0], [0, -1], [0], "00", [0.0, 1], None, [True, 0]):
        with pytest.raises(ValueError, match="state"):
            game.load_state(level, bad)


# --- words and pictures -------------------------------------------------------------------------------------------


def test_views_show_the_documented_text() -> None:
    game = FrozenLake()
    level = game.load_level(["SFH", "HFG"])
    state = game.initial(level)
    assert game.describe(state, "grid") == "P_O\nO_G"
    assert game.describe(state, "coordinates") == "size 2 3\nplayer (0,0)\ngoal (1,2)\nholes (0,2) (1,0)"
    assert game.describe(LakeState.at(level, 0, 1), "both").splitlines()[-2:] == ["_PO", "O_G"]
    assert game.describe(LakeState.at(level, 0, 2), "grid") == "__X\nO_G"
    assert game.describe(LakeState.at(level, 1, 2), "grid") == "__O\nO_√"
    free = game.load_level(["SG"])
    assert game.describe(game.initial(free), "both") == "size 1 2\nplayer (0,0)\ngoal (0,1)\nPG"
    with pytest.raises(ValueError, match="view"):
        game.describe(state, "pixels")


def test_legend_covers_every_symbol_and_the_grid_codes_follow_it() -> None:
    game = FrozenLake(frozen=0.7)
    seen = set()
    for level in sampled(game, 60):
        for row, column in np.ndindex(*level.shape):
            state = LakeState.at(level, int(row), int(column))
            board = game.describe(state, "grid").splitlines()
            codes = game.grid(state)
            assert codes.dtype == np.int8
            assert [[SYMBOLS[code][0] for code in line] for line in codes] == [list(line) for line in board]
            seen |= set("".join(board))
    assert seen == {symbol for symbol, _ in SYMBOLS}
    for view in ("grid", "both"):
        legend = game.instructions(level, view).splitlines()[-1]
        assert all(f"{symbol} {meaning}" in legend for symbol, meaning in SYMBOLS)
    assert "Symbols" not in game.instructions(level, "coordinates")


def test_coordinates_lose_nothing() -> None:
    game = FrozenLake(size=[3, 4], frozen=0.7)
    for level in sampled(game, 60):
        for row, column in np.ndindex(*level.shape):
            state = LakeState.at(level, int(row), int(column))
            text = game.describe(state, "coordinates")
            assert "  " not in text
            words = {line.split(" ")[0]: line.split(" ")[1:] for line in text.splitlines()}
            board = np.zeros([int(x) for x in words["size"]], dtype=np.int8)
            for code, kind in ((1, "holes"), (2, "goal"), (3, "player")):
                for word in words.get(kind, []):
                    board[tuple(int(x) for x in word.strip("()").split(","))] += code
            assert np.array_equal(board, game.grid(state))
            assert game.describe(state, "both") == text + "\n" + game.describe(state, "grid")


def test_instructions_carry_the_game_s_own_chance_and_range() -> None:
    level = LakeLevel(("SFFFG", "FFFFF"))
    assert "66.7 %" in FrozenLake(slip=2 / 3).instructions(level, "grid")
    assert "33.3 %" in FrozenLake(slip=2 / 3).instructions(level, "grid")
    assert "not slippery" in FrozenLake(slip=0.0).instructions(level, "grid")
    assert "(1,4)" in FrozenLake().instructions(level, "coordinates")


def test_pictures_differ_by_state() -> None:
    game = FrozenLake()
    level = game.load_level(["SFH", "HFG"])
    pictures = [game.draw(LakeState.at(level, int(r), int(c))) for r, c in np.ndindex(2, 3)]
    assert all(p.dtype == np.uint8 and p.shape == (64, 96, 3) for p in pictures)
    assert len({p.tobytes() for p in pictures}) == 6


# --- exact values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slip", SLIPS)
def test_oracle_equals_plain_recursion(slip: float) -> None:
    game = FrozenLake(slip=slip, frozen=0.75)
    levels = sampled(game, 25) + sampled(FrozenLake(size=[2, 5], slip=slip), 10)
    for level in levels:
        twin = Twin(level, slip)
        for row, column in np.ndindex(*level.shape):
            state = LakeState.at(level, int(row), int(column))
            ended = letter(level, (int(row), int(column))) in "GH"
            for left in (0, 1, 3, 10):
                found = game.oracle(state, left)
                luck = game.random_play(state, left)
                assert luck.success == pytest.approx(twin.luck((row, column), left), abs=1e-9)
                if ended:
                    assert (found.value, found.q) == (0.0, (0.0,) * 4)
                    assert luck.reward == 0.0
                    continue
                assert found.value == pytest.approx(twin.value((row, column), left), abs=1e-9)
                if left:
                    q = [twin.q((row, column), action, left) for action in range(4)]
                    assert found.q == pytest.approx(q, abs=1e-9)
                    assert found.optimal_actions == tuple(a for a in range(4) if q[a] >= max(q) - 1e-9)
                assert luck.reward == luck.success


@pytest.mark.parametrize("slip", [0.0, 0.1, 1.0])
def test_dead_ends_and_shortest_luck(slip: float) -> None:
    game = FrozenLake(slip=slip)
    level = game.load_level(["SFGHF", "FHHHF"])
    for row, column in np.ndindex(2, 5):
        state = LakeState.at(level, int(row), int(column))
        found = game.oracle(state, 40)
        # Success is possible exactly where some number of actions gives it a chance, and no sooner than optimal_steps.
        lost = letter(level, (int(row), int(column))) == "H" or column == 4
        assert found.dead_end == lost
        assert (found.optimal_steps == -1) == lost
        if found.optimal_steps > 0:
            assert game.oracle(state, found.optimal_steps).value > 0
            assert game.oracle(state, found.optimal_steps - 1).value == 0
        if lost:
            assert found.value == 0
    assert game.oracle(LakeState.at(level, 0, 2), 5).optimal_steps == 0
    with pytest.raises(ValueError, match="actions_left"):
        game.oracle(state, -1)


def test_slip_does_not_matter_to_random_play() -> None:
    for level in sampled(FrozenLake(), 20):
        chances = [
            FrozenLake(slip=slip).random_play(LakeState.at(level, *level.find("S")), 10).success for slip in SLIPS
        ]
        assert np.ptp(chances) < 1e-12


TINY = (["SFF", "FHG"], ["FSF", "HGF"])


@pytest.mark.parametrize("slip", [0.0, 0.1, 2 / 3, 1.0])
@pytest.mark.parametrize("rows", TINY)
def test_plan_equals_the_enumeration_of_all_sequences(rows: list[str], slip: float) -> None:
    game = FrozenLake(map=rows, slip=slip)
    level = game.load_level(rows)
    twin = Twin(level, slip)
    for (row, column), turns, longest, left in itertools.product(
        np.ndindex(2, 3), (1, 2, 3), (1, 2, 3), (1, 2, 3, 4, 6)
    ):
        cell = (int(row), int(column))
        plan = game.plan(LakeState.at(level, *cell), turns_left=turns, actions_left=left, max_actions=longest)
        best = twin.turns(cell, turns, left, longest)
        assert plan.expected.success == pytest.approx(best, abs=1e-9)
        if letter(level, cell) in "GH":
            assert (plan.actions, plan.expected.reward) == ((), 0.0)
        else:
            assert 1 <= len(plan.actions) <= min(longest, left)
            assert plan.expected.reward == plan.expected.success
            # The sequence itself, not only its promised value, is the best one.
            assert twin.sequence_value(cell, plan.actions, turns, left, longest) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("slip", [0.1, 2 / 3])
def test_plan_equals_the_enumeration_on_larger_maps(slip: float) -> None:
    game = FrozenLake(slip=slip, frozen=0.75)
    for level in sampled(game, 3, seed=5):
        twin, start = Twin(level, slip), level.find("S")
        plan = game.plan(game.initial(level), turns_left=2, actions_left=5, max_actions=3)
        best = twin.turns(start, 2, 5, 3)
        assert plan.expected.success == pytest.approx(best, abs=1e-9)
        assert twin.sequence_value(start, plan.actions, 2, 5, 3) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("slip", SLIPS)
def test_plan_is_the_oracle_with_one_action_per_turn_and_never_above_it(slip: float) -> None:
    game = FrozenLake(slip=slip)
    for level in sampled(game, 40):
        state = game.initial(level)
        top = game.oracle(state, 10).value
        single = game.plan(state, turns_left=10, actions_left=10, max_actions=1)
        assert single.expected.success == pytest.approx(top, abs=1e-12)
        assert len(single.actions) == 1
        worse = [
            game.plan(state, turns_left=t, actions_left=10, max_actions=k).expected.success
            for t, k in ((5, 5), (5, 2), (2, 5), (1, 10))
        ]
        assert max(worse) <= top + 1e-12
        assert worse[0] >= max(worse) - 1e-12  # 5 turns of up to 5 can do all that the others can
        if slip == 0:
            assert worse == [1.0] * 4
            # A deterministic plan is a shortest path.
            steps = game.oracle(state, 10).optimal_steps
            assert len(game.plan(state, turns_left=5, actions_left=10, max_actions=5).actions) == min(steps, 5)


def test_plan_ends_with_its_budget() -> None:
    game = FrozenLake(map=ROW, slip=0.1)
    state = game.initial(game.load_level(ROW))
    for turns, left in ((0, 10), (5, 0)):
        plan = game.plan(state, turns_left=turns, actions_left=left, max_actions=5)
        assert (plan.actions, plan.expected.success) == ((), 0.0)
    straight = FrozenLake(map=ROW, slip=0.0)
    short = straight.plan(state, turns_left=1, actions_left=10, max_actions=3)
    assert (short.actions, short.expected.success) == ((RIGHT,) * 3, 0.0)


@pytest.mark.parametrize(("slip", "longest"), [(0.1, 5), (2 / 3, 5), (2 / 3, 2)])
def test_following_the_plan_reaches_what_it_expects(slip: float, longest: int) -> None:
    game = FrozenLake(slip=slip)
    rng = np.random.default_rng(21)
    expected, won = [], 0
    n = 3000
    for level in sampled(game, 30, seed=8) * (n // 30):
        state, left, solved, ended = game.initial(level), 10, False, False
        for turn in range(5):
            plan = game.plan(state, turns_left=5 - turn, actions_left=left, max_actions=longest)
            if turn == 0:
                expected.append(plan.expected.success)
            for action in plan.actions:
                outcome = game.step(state, action, rng)
                state, left, solved, ended = outcome.state, left - 1, outcome.success, outcome.terminated
                if ended:
                    break
            if ended or left == 0:
                break
        won += solved
    p = np.array(expected)
    assert abs(won - p.sum()) < 4 * math.sqrt((p * (1 - p)).sum())


@pytest.mark.parametrize(
    ("frozen", "optimal", "luck"),
    [(0.8, (0.512, 0.907, 1.0), 0.229), (0.9, (0.575, 0.955, 1.0), 0.265)],
)
def test_baselines_agree_with_the_reference_table(frozen: float, optimal: tuple[float, ...], luck: float) -> None:
    # RAGEN's maps have no upper limit of the path. Both means come from 300 random maps, so their difference has a
    # standard error of sqrt(2) times the one of our sample.
    levels = sampled(FrozenLake(frozen=frozen, max_steps=None), 300, seed=1)
    for slip, target in zip((2 / 3, 0.2, 0.0), optimal, strict=True):
        game = FrozenLake(slip=slip, max_steps=None)
        values = np.array([game.oracle(game.initial(level), 10).value for level in levels])
        error = math.sqrt(2) * values.std() / math.sqrt(300)
        assert abs(values.mean() - target) < 4 * error + 0.0006  # the table is rounded to 0.1 %
        randoms = np.array([game.random_play(game.initial(level), 10).success for level in levels])
        assert abs(randoms.mean() - luck) < 4 * math.sqrt(2) * randoms.std() / math.sqrt(300) + 0.0006


def test_two_processes_agree_whatever_their_hash_seed() -> None:
    script = (
        "import numpy as np\nfrom ragen_envs.frozen_lake import FrozenLake\n"
        "game, rng = FrozenLake(), np.random.default_rng(9)\n"
        "for level in [game.sample_level(rng) for _ in range(30)]:\n"
        "    state = game.initial(level)\n"
        "    after = game.step(state, 2, rng).state\n"
        "    print(level.rows, game.level_key(level), game.split_of(level), game.state_key(after))\n"
        "    print(game.oracle(state, 10), game.plan(state, turns_left=5, actions_left=10, max_actions=3))"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] != ""
