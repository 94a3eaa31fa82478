"""Exact values of many states at once, and the difficulty figures made of them, against plain stepping of the rules.

The twins here know nothing of tables: they step a game's own rules and enumerate its luck, the lake's by a generator
that returns what it is told to.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import subprocess
import sys
from collections import deque

import gymnasium
import numpy as np
import pytest

from benchmarks import difficulty
from benchmarks.difficulty import Budget, Mean
from ragen_envs import Game, TextEnv
from ragen_envs.bandit import Bandit
from ragen_envs.frozen_lake import FrozenLake
from ragen_envs.sokoban import Level, Sokoban, oracle

SOKOBAN = Sokoban(height=5, width=6, boxes=2, min_steps=1, max_steps=12)
GAMES = {
    "one box": Sokoban(),
    "two boxes": SOKOBAN,
    "lake": FrozenLake(slip=0.3, frozen=0.7),
    "wide lake": FrozenLake(size=[2, 5], slip=0.0),
    "bandit": Bandit(),
}


class Luck:
    """Stands for a generator; ``random`` gives a fixed number."""

    def __init__(self, number: float = 0.5) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


def outcomes(game, state, action):
    """(probability, outcome) of an action, by the rules."""
    slip = getattr(game, "slip", 0.0)
    if not slip:
        return [(1.0, game.step(state, action, Luck()))]
    lucks = ((slip / 2, slip / 4), (slip / 2, 0.75 * slip), (1 - slip, (1 + slip) / 2))
    return [(p, game.step(state, action, Luck(number))) for p, number in lucks if p > 0]


def walk(game: Game, rng: np.random.Generator, levels: int, length: int) -> list:
    """States of random play on several levels, ended ones among them, in random order."""
    states = []
    for _ in range(levels):
        state = game.initial(game.sample_level(rng))
        states.append(state)
        for action in rng.integers(0, game.n_actions, length).tolist():
            outcome = game.step(state, action, rng)
            state = outcome.state
            states.append(state)
            if outcome.terminated:
                break
    return [states[i] for i in rng.permutation(len(states))]


def reachable(game, state):
    """Every unfinished state after ``state``, itself included, with its transitions ``[action][(p, outcome)]``."""
    found = {}
    queue = deque([state])
    while queue:
        now = queue.popleft()
        if now in found:
            continue
        found[now] = [outcomes(game, now, a) for a in range(4)]
        queue.extend(o.state for result in found[now] for _, o in result if not o.terminated)
    return found


def value_iteration(model, horizon):
    """``q`` by state for every number of actions up to ``horizon``."""
    by_left = [{state: [0.0] * 4 for state in model}]
    for _ in range(horizon):
        last = by_left[-1]
        by_left.append(
            {
                state: [
                    sum(p * (o.reward + (0.0 if o.terminated else max(last[o.state]))) for p, o in result)
                    for result in results
                ]
                for state, results in model.items()
            }
        )
    return by_left


def steps_to_success(model):
    """Fewest actions to success with the best of luck; states that are lost are left out."""
    steps: dict = {}
    while True:
        new = {
            state: 1 + min(nearest)
            for state, results in model.items()
            if state not in steps
            and (
                nearest := [
                    0 if o.success else steps[o.state] for r in results for _, o in r if o.success or o.state in steps
                ]
            )
        }
        if not new:
            return steps
        steps |= new


@pytest.mark.parametrize("name", GAMES)
def test_many_equal_one_by_one_to_the_last_bit(name: str) -> None:
    game, rng = GAMES[name], np.random.default_rng(3)
    states = walk(game, rng, 25, 12)
    # The same level as another object is another group; its values are the same.
    copies = [game.load_state(game.load_level(game.dump_level(s.level)), game.dump_state(s)) for s in states[:20]]
    states += copies
    left = rng.integers(0, 14, len(states))
    found = game.oracle_many(states, left)
    plain = Game.oracle_many(game, states, left)
    assert found is not None
    assert plain is not None
    for field in ("value", "q", "dead_end", "optimal_steps"):
        got, wanted = getattr(found, field), getattr(plain, field)
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(found.value, found.q.max(axis=1))
    same = game.oracle_many(states, 7)
    np.testing.assert_array_equal(same.q, game.oracle_many(states, [7] * len(states)).q)


@pytest.mark.parametrize("name", ["one box", "two boxes", "lake", "wide lake"])
def test_values_equal_plain_value_iteration_and_dead_ends_plain_reachability(name: str) -> None:
    """Also: the first rows of ``q`` of consecutive budgets are one step of Bellman's equation apart."""
    game, rng = GAMES[name], np.random.default_rng(5)
    dead = alive = 0
    for _ in range(2 if name == "two boxes" else 5):
        start = game.initial(game.sample_level(rng))
        model = reachable(game, start)
        if len(model) > 1500:
            continue
        states = list(model)
        horizon = 12 if name == "two boxes" else 25
        exact, steps = value_iteration(model, horizon), steps_to_success(model)
        for left in (0, 1, 2, 5, 11, horizon):
            found = game.oracle_many(states, left)
            np.testing.assert_allclose(found.q, [exact[left][s] for s in states], atol=1e-12)
        assert found.optimal_steps.tolist() == [steps.get(s, -1) for s in states]
        assert found.dead_end.tolist() == [s not in steps for s in states]
        dead, alive = dead + int(found.dead_end.sum()), alive + int((~found.dead_end).sum())
    assert alive > 20
    assert dead > 5 or "lake" in name  # ice that is walled off by holes cannot be walked onto


def test_what_lost_boxes_can_still_earn() -> None:
    """One box is stuck for ever, the others can be brought home; a budget decides how many."""
    game = Sokoban()
    level = game.load_level("########\n#$-----#\n#-.$@-.#\n#-.-$--#\n#------#\n########")
    state = game.initial(level)
    model = reachable(game, state)
    exact = value_iteration(model, 14)
    states = list(model)[:300]
    for left in range(15):
        found = game.oracle_many(states, left)
        np.testing.assert_allclose(found.q, [exact[left][s] for s in states], atol=1e-12)
        assert found.dead_end.all()
    assert max(exact[14][state]) == pytest.approx(2 - 1.4)
    # Far beyond the last box there is nothing left to earn but the cost of the actions.
    assert game.oracle(state, 1000).value == pytest.approx(2 - 100)


def test_long_budgets_of_a_level_with_a_solution() -> None:
    game = Sokoban()
    state = game.initial(game.load_level("#######\n#@-$-.#\n#-----#\n#######"))
    for left in (3, 50, 3, 100_000):
        assert game.oracle(state, left).value == pytest.approx(10.7)


def test_states_that_no_play_of_the_level_reaches() -> None:
    game = Sokoban()
    level = game.load_level("#######\n#@-$-.#\n#-----#\n#######")
    cells = [(r, c) for r in (1, 2) for c in range(1, 6)]
    states = [
        game.load_state(level, {"player": list(player), "boxes": [list(box)]})
        for player, box in itertools.permutations(cells, 2)
    ]
    found = game.oracle_many(states, 9)
    for i, state in enumerate(states):
        one = game.oracle(state, 9)
        assert (found.value[i], tuple(found.q[i]), found.optimal_steps[i]) == (one.value, one.q, one.optimal_steps)
        if state.missing == 1:
            steps = steps_to_success(reachable(game, state))
            assert found.dead_end[i] == (state not in steps)
            assert found.optimal_steps[i] == steps.get(state, -1)


def test_first_questions_about_a_big_level_are_answered_as_by_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    states = walk(SOKOBAN, rng, 4, 8)
    left = rng.integers(0, 9, len(states)).tolist()
    tabled = [(SOKOBAN.oracle(s, n), SOKOBAN.random_play(s, n)) for s, n in zip(states, left, strict=True)]
    oracle._cache.clear()
    monkeypatch.setattr(oracle, "_most_states", lambda level: oracle.AT_ONCE + 1)
    monkeypatch.setattr(oracle, "PATIENCE", 10**9)
    assert [(SOKOBAN.oracle(s, n), SOKOBAN.random_play(s, n)) for s, n in zip(states, left, strict=True)] == tabled
    many = SOKOBAN.oracle_many(states, left)
    assert [tuple(q) for q in many.q] == [values.q for values, _ in tabled]
    assert not oracle._cache.tables
    # Where the states around are too many, or the questions, the table is made after all.
    monkeypatch.setattr(oracle, "AT_ONCE", 5)
    many = SOKOBAN.oracle_many(states, left)
    assert many.optimal_steps.tolist() == [values.optimal_steps for values, _ in tabled]
    assert oracle._cache.tables
    oracle._cache.clear()
    monkeypatch.setattr(oracle, "AT_ONCE", 100_000)
    monkeypatch.setattr(oracle, "PATIENCE", 3)
    for i, state in enumerate([states[0]] * 5):
        assert bool(oracle._cache.tables) == (i > 3)
        SOKOBAN.oracle(state, 4)
    oracle._cache.clear()


def test_the_bound_on_the_states_of_a_level_holds() -> None:
    for seed in range(5):
        level = SOKOBAN.sample_level(np.random.default_rng(seed))
        assert len(oracle._cache.table(level, level.buffer)) <= oracle._most_states(level)


def test_levels_without_a_table_have_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    states = walk(SOKOBAN, rng, 4, 8)
    left = rng.integers(0, 9, len(states))
    tabled = SOKOBAN.oracle_many(states, left)
    oracle._cache.clear()
    monkeypatch.setattr(oracle, "TABLE_LIMIT", 0)
    deep = SOKOBAN.oracle_many(states, left)
    oracle._cache.clear()
    for field in ("value", "q", "dead_end", "optimal_steps"):
        np.testing.assert_array_equal(getattr(deep, field), getattr(tabled, field))


def test_boards_as_arrays() -> None:
    states = walk(SOKOBAN, np.random.default_rng(9), 1, 30)
    level: Level = states[0].level
    boards = np.stack([np.frombuffer(s.cells, np.uint8) for s in states])
    found = oracle.evaluate_boards(level, boards, 6)
    np.testing.assert_array_equal(found.q, SOKOBAN.oracle_many(states, 6).q)
    with pytest.raises(ValueError, match=r"shape \[N, \d+\]"):
        oracle.evaluate_boards(level, boards[:, 1:], 6)


@pytest.mark.parametrize("name", GAMES)
def test_wrong_budgets_are_refused_and_no_states_are_no_values(name: str) -> None:
    game = GAMES[name]
    states = walk(game, np.random.default_rng(1), 2, 1)[:3]
    for left, words in ((-1, "negative"), ([1, -2, 3], "negative"), (1.5, "whole"), ([1, 2], "one number or one per")):
        with pytest.raises(ValueError, match=words):
            game.oracle_many(states, left)
    none = game.oracle_many([], 5)
    assert none.value.shape == none.dead_end.shape == none.optimal_steps.shape == (0,)
    assert none.q.shape == (0, game.n_actions)


DIGEST = """
import hashlib, numpy as np
from ragen_envs.frozen_lake import FrozenLake
from ragen_envs.sokoban import Sokoban
out = []
for game in (Sokoban(), Sokoban(height=5, width=6, boxes=2, min_steps=1), FrozenLake(slip=0.2)):
    rng = np.random.default_rng(4)
    states = []
    for _ in range(2):
        state = game.initial(game.sample_level(rng))
        for action in rng.integers(0, 4, 6).tolist():
            states.append(state)
            outcome = game.step(state, action, rng)
            if outcome.terminated:
                break
            state = outcome.state
    found = game.oracle_many(states, np.arange(len(states)) % 7)
    out += [found.value, found.q, found.dead_end, found.optimal_steps, game.random_play(states[0], 4).reward]
print(hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in out)).hexdigest())
"""


def test_interpreted_and_compiled_values_are_the_same() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env=os.environ | {"NUMBA_DISABLE_JIT": flag},
            capture_output=True, text=True, check=True,
        ).stdout
        for flag in ("0", "1")
    }  # fmt: skip
    assert len(digests) == 1
    assert len(digests.pop().strip()) == hashlib.sha256().digest_size * 2


# --- the optimum of play in turns -------------------------------------------------------------------------------------


def turn_value(game, state, turns, left, longest):
    """Success of the best play in turns: every open-loop sequence of a turn is tried, every luck enumerated."""
    if turns == 0 or left == 0:
        return 0.0

    def run(now, sequence, rest):
        if not sequence:
            return turn_value(game, now, turns - 1, rest, longest)
        return sum(
            p * (float(o.success) if o.terminated else run(o.state, sequence[1:], rest - 1))
            for p, o in outcomes(game, now, sequence[0])
        )

    return max(
        run(state, sequence, left)
        for n in range(1, min(longest, left) + 1)
        for sequence in itertools.product(range(4), repeat=n)
    )


@pytest.mark.parametrize("slip", [0.1, 2 / 3])
def test_best_turn_expects_the_true_optimum_of_the_protocol(slip: float) -> None:
    env = TextEnv(FrozenLake(map=["SFH", "FFG"], slip=slip), max_turns=2, max_actions_per_turn=2, max_actions=4)
    env.reset(seed=0)
    plan = env.best_turn()
    assert plan is not None
    best = turn_value(env.game, env.state, 2, 4, 2)
    assert plan.expected.success == pytest.approx(best, abs=1e-12)
    assert best < env.game.oracle(env.state, 4).value - 0.001  # not seeing costs something here


# --- the difficulty figures -------------------------------------------------------------------------------------------


def test_mean_and_interval() -> None:
    x = [0.0, 1.0, 1.0, 4.0]
    mean = Mean.of(x)
    assert mean.value == 1.5
    assert mean.half == pytest.approx(1.96 * np.std(x, ddof=1) / 2)
    assert Mean.of([]).text() == "-"
    assert Mean.of([0.5, 0.5]).text(100) == "50.0"
    assert Mean(0.5, 0.021).text(100) == "50.0 ± 2.1"


def random_success(game, state, left):
    """(success, return) of uniformly random play, by recursion over the rules."""
    if left == 0:
        return 0.0, 0.0
    success = reward = 0.0
    for action in range(game.n_actions):
        for p, o in outcomes(game, state, action):
            later = (float(o.success), 0.0) if o.terminated else random_success(game, o.state, left - 1)
            success += p * later[0] / game.n_actions
            reward += p * (o.reward + later[1]) / game.n_actions
    return success, reward


@pytest.mark.parametrize("env_id", ["ragen/Sokoban-RAGEN-Simple-v0", "ragen/FrozenLake-RAGEN-v1-v0"])
def test_figures_of_a_few_levels_equal_brute_force(env_id: str) -> None:
    game, registered = difficulty.game_of(env_id)
    env = gymnasium.make(env_id).unwrapped
    assert registered == (env.max_turns, env.max_actions_per_turn, env.max_actions)
    levels = [game.draw_level(seed, "test") for seed in range(4)]
    found = difficulty.expected(game, levels, [Budget(4, None, 4), Budget(3, 1, 3), Budget(1, 2, 2)])
    starts = [game.initial(level) for level in levels]
    luck = np.array([random_success(game, s, 4) for s in starts])
    assert found[Budget(4, None, 4)].success.value == pytest.approx(luck[:, 0].mean())
    assert found[Budget(4, None, 4)].reward.value == pytest.approx(luck[:, 1].mean())
    assert found[Budget(4, None, 4)].success.half == pytest.approx(1.96 * luck[:, 0].std(ddof=1) / 2)
    for budget in (Budget(3, 1, 3), Budget(1, 2, 2)):
        wanted = [turn_value(game, s, *budget[:1], budget.actions, budget.per_turn) for s in starts]
        assert found[budget].success.value == pytest.approx(np.mean(wanted))
    model = [reachable(game, s) for s in starts]
    rewards = [max(value_iteration(m, 3)[3][s]) for m, s in zip(model, starts, strict=True)]
    assert found[Budget(3, 1, 3)].reward.value == pytest.approx(np.mean(rewards))


def fewest_pushes(game: Sokoban, state) -> int:
    """Breadth-first search over pushes: walking is free."""
    pushes, queue = {state: 0}, deque([state])
    while queue:
        now = queue.popleft()
        for action in range(4):
            outcome = game.step(now, action, None)
            moved = [i for i, code in enumerate(outcome.state.cells) if code in (3, 4)]
            pushed = moved != [i for i, code in enumerate(now.cells) if code in (3, 4)]
            if outcome.success:
                # 0-1 search: states leave the queue in order of pushes, so the first push that solves is the best one.
                return pushes[now] + 1
            if pushes[now] + pushed < pushes.get(outcome.state, math.inf):
                pushes[outcome.state] = pushes[now] + pushed
                (queue.append if pushed else queue.appendleft)(outcome.state)
    raise AssertionError("unsolvable")


def test_lengths_and_one_push_shares_equal_brute_force() -> None:
    game, _ = difficulty.game_of("ragen/Sokoban-RAGEN-Simple-v0")
    levels = [game.draw_level(seed, "train") for seed in range(25)]
    levels += levels[:1]
    found = difficulty.lengths(game, levels)
    starts = [game.initial(level) for level in levels]
    steps = [steps_to_success(reachable(game, s))[s] for s in starts]
    assert (found.levels, found.different) == (26, len({level.key for level in levels}))
    assert (found.mean.value, found.median, found.longest) == (np.mean(steps), np.median(steps), max(steps))
    assert {n: share.value for n, share in found.within.items()} == {
        n: np.mean([s <= n for s in steps]) for n in (1, 2, 5, 10)
    }
    pushes = [fewest_pushes(game, s) for s in starts]
    assert found.one_push.value == np.mean([n == 1 for n in pushes])
    assert 0 < found.one_push.value < 1


def test_the_page_is_renewed_between_its_markers(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{difficulty.BEGIN}\nold\n{difficulty.END}\nafter\n", encoding="utf-8")
    found = {"ragen/Bandit-v0": difficulty.measure("ragen/Bandit-v0", 3)}
    difficulty.write(page, difficulty.markdown(found, 3))
    text = page.read_text(encoding="utf-8")
    assert text.startswith(
        f"before\n{difficulty.BEGIN}\nWritten by `python -m benchmarks.difficulty --episodes 3 --write`"
    )
    assert text.endswith(f"{difficulty.END}\nafter\n")
    assert "old" not in text
    assert "| Bandit-v0 | 50.0 | - |" in text  # random success
    assert "| Bandit-v0 | 0.175 | - |" in text  # random return
    assert "| Bandit-v0 | 1 | 1 x 1: 100.0 / 0.250 | - | - | - |" in text
    (tmp_path / "bare.md").write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match="begin: written by"):
        difficulty.write(tmp_path / "bare.md", text)
