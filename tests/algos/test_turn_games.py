"""Turn games: the exact claims about SeeUPO and its rivals (U1 to U9), closed forms, book-keeping, command and page."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import fisher_exact

from ragen_algos.turn_games import __main__ as command
from ragen_algos.turn_games import batch, games, tables, updates
from ragen_algos.turn_games.games import TurnGame
from ragen_algos.turn_games.updates import (
    ORDERS,
    SCALES,
    Expected,
    advantages,
    best_response,
    clipped_argmax,
    gradient_step,
    improve,
    order_of,
    spread,
    sweep,
    telescope,
)

ROOT = Path(__file__).parent.parent.parent
EXACT = 1e-12
EVERY_RULE = pytest.mark.parametrize("rule", [best_response, clipped_argmax, gradient_step])


def values_of(game: TurnGame, start: games.Policies, rule: updates.Rule, order: str, sweeps: int, **options: object):
    """Expected return at the start and after each sweep of a game with one context."""
    return improve(game, start, rule, order, sweeps, **options)[0][:, 0]  # type: ignore[arg-type]


def agree(hits: int, n: int, reported: float, n_reported: int) -> bool:
    """Whether two counts can come from one probability, at 99.9 % (exact two-sample test); 1 and 1 must be equal."""
    if reported == 1:
        return hits == n
    k = round(reported * n_reported)
    return bool(fisher_exact([[hits, n - hits], [k, n_reported - k]]).pvalue > 0.001)


def given(m: np.ndarray) -> Expected:
    """Of weights [..., A] that are known for sure."""
    return Expected(m, np.maximum(m, 0), np.minimum(m, 0), np.ones_like(m))


# --- U1: telescoping --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sees", games.SEES)
@pytest.mark.parametrize("turns", [2, 3, 4])
@pytest.mark.parametrize("actions", [2, 3])
def test_u1_the_gain_of_each_turn_is_the_change_of_the_return(turns, actions, sees):
    """Any order, random old and new policies: per turn and in total, to 1e-12."""
    rng = np.random.default_rng(turns * 10 + actions)
    for _ in range(20):
        game = TurnGame(rng.standard_normal((2, *[actions] * turns)), sees=sees)
        old, new = game.random(rng), game.random(rng)
        for name in ("reverse", "forward", "random"):
            order = order_of(name, turns, rng=rng)[0].tolist()
            gains, now, before = telescope(game, old, new, order), list(old), game.value(old)
            for gain, turn in zip(gains, order, strict=True):
                now[turn] = new[turn]
                after = game.value(tuple(now))
                assert abs(gain - (after - before)) < EXACT
                before = after
            assert abs(gains.sum() - (game.value(new) - game.value(old))) < EXACT


# --- U2: complete best responses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("reverse", [0.55, 1.0, 1.0]),
        ("forward", [0.55, 0.6, 0.6, 0.6]),
        ("simultaneous", [0.55, 0.6, 1.0, 1.0]),
    ],
)
def test_u2_doors(order, expected):
    values = values_of(games.doors(), games.doors_start(), best_response, order, len(expected) - 1)
    np.testing.assert_allclose(values, expected, atol=EXACT)


@pytest.mark.parametrize(
    ("turns", "shares"),
    [
        (2, {"reverse": (1, 1), "forward": (0.63, 0.63), "random": (0.825, 0.825), "simultaneous": (0.63, 1)}),
        (3, {"reverse": (1, 1), "forward": (0.355, 0.355), "random": (0.565, 0.565), "simultaneous": (0.355, 0.88)}),
        (4, {"reverse": (1, 1), "forward": (0.18, 0.18), "random": (0.385, 0.385), "simultaneous": (0.18, 0.605)}),
    ],
)
def test_u2_share_of_gaussian_games_that_are_optimal_after_1_and_12_sweeps(turns, shares):
    """Reported shares are of 200 games; three actions, policies start uniform on the simplex. Nothing ever falls."""
    n, rng = 400, np.random.default_rng(20 + turns)
    game = games.gaussian(n, turns, 3, rng)
    start = game.random(rng)
    for order, reported in shares.items():
        values, _ = improve(game, start, best_response, order, 12, rng=rng)
        assert np.diff(values, axis=0).min() >= -EXACT
        for k, share in zip((1, 12), reported, strict=True):
            hits = int((values[k] >= game.best() - 1e-9).sum())
            assert agree(hits, n, share, 200), (order, k, hits / n)


# --- U2b: exact clipped steps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("reverse", [0.55, 0.6, 0.672, 0.7901, 0.9456, 1]),
        ("forward", [0.55, 0.6, 0.648, 0.7267, 0.8336, 0.8803, 0.9364, 1]),
        ("simultaneous", [0.55, 0.6, 0.648, 0.7267, 0.8336, 0.8803, 0.9364, 1]),
    ],
)
def test_u2b_doors_in_clipped_steps(order, expected):
    values = values_of(games.doors(), games.doors_start(), clipped_argmax, order, len(expected) - 1)
    np.testing.assert_allclose(values, expected, atol=5e-5)


@pytest.mark.parametrize(("order", "end"), [("reverse", 0.9433), ("forward", 0.8634)])
def test_u2b_doors_from_a_bad_start(order, end):
    values = values_of(games.doors(), games.doors_start(0.1), clipped_argmax, order, 9)
    np.testing.assert_allclose(values[[0, 9]], [0.35, end], atol=5e-5)


@pytest.mark.parametrize(
    ("family", "shares"),
    [(games.gaussian, (0.85, 0.88, 0.86, 0.88)), (games.sparse, (0.83, 0.87, 0.83, 0.87))],
)
def test_u2b_share_of_random_games_that_reach_the_optimum(family, shares):
    """Reported shares are of 300 games, orders as in ORDERS. Not a single sweep lowers the return of any game."""
    n, rng = 300, np.random.default_rng(7)
    game = family(n, 3, 4, rng)
    start = game.random(rng)
    for order, share in zip(ORDERS, shares, strict=True):
        values, _ = improve(game, start, clipped_argmax, order, 30, rng=rng)
        assert np.diff(values, axis=0).min() >= -1e-10
        hits = int((values[-1] >= game.best() - 1e-9).sum())
        assert agree(hits, n, share, 300), (order, hits / n)


def test_forward_with_m_and_simultaneous_clipped_steps_have_the_same_return_where_history_is_seen():
    """M is constant in each history there, so the argmax is the same wherever play can still come."""
    rng = np.random.default_rng(3)
    game = games.gaussian(100, 3, 3, rng)
    start = game.random(rng)
    forward, simultaneous = (improve(game, start, clipped_argmax, o, 30)[0] for o in ("forward", "simultaneous"))
    np.testing.assert_allclose(forward, simultaneous, atol=1e-9)


@EVERY_RULE
@pytest.mark.parametrize("sees", ["history", "context"])
def test_no_rule_lowers_the_return_with_m_and_every_order_agrees_without(rule, sees):
    rng = np.random.default_rng(4)
    game = TurnGame(rng.standard_normal((100, 3, 2, 3)), sees=sees)
    start = game.random(rng)
    if rule is not gradient_step:  # whose steps are small, but not exact maximisers
        for order in ("reverse", "forward", "random"):
            assert np.diff(improve(game, start, rule, order, 10, rng=rng)[0], axis=0).min() > -1e-10
    reverse, forward = (sweep(game, start, rule, order, "none") for order in ([2, 1, 0], [0, 1, 2]))
    for one, other in zip(reverse, forward, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("rule", [best_response, clipped_argmax])
@pytest.mark.parametrize("correction", updates.CORRECTIONS)
@pytest.mark.parametrize("sees", ["history", "context"])
def test_many_games_at_once_with_orders_of_their_own_are_each_game_alone(rule, correction, sees):
    rng = np.random.default_rng(6)
    game = TurnGame(rng.standard_normal((6, 3, 3, 3)), sees=sees)
    start = game.random(rng)
    orders = np.array([[2, 1, 0], [0, 1, 2], [1, 0, 2], [0, 2, 1], [1, 2, 0], [2, 0, 1]])
    together = sweep(game, start, rule, orders, correction)
    for i, order in enumerate(orders):
        one = TurnGame(game.returns[i : i + 1], sees=sees)
        alone = sweep(one, tuple(p[i : i + 1] for p in start), rule, order, correction)
        for p, q in zip(together, alone, strict=True):
            np.testing.assert_allclose(p[i : i + 1], q, atol=EXACT)


# --- U3: blind agents need M ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "correction"), [("simultaneous", "paper"), ("reverse", "none"), ("forward", "none")])
def test_u3_xor_without_m_oscillates(order, correction):
    values = values_of(games.xor(), games.xor_start(), clipped_argmax, order, 30, correction=correction)
    np.testing.assert_allclose(values[:2], [0.4992, 0.488448], atol=EXACT)
    assert (np.diff(values) < 0).sum() == 15
    assert round(values[-1], 4) == 0.4998


def test_u3_xor_with_m_rises_to_the_optimum():
    game, start = games.xor(), games.xor_start()
    assert game.value(sweep(game, start, clipped_argmax, [1])) == pytest.approx(0.503040, abs=EXACT)
    values = values_of(game, start, clipped_argmax, "reverse", 5)
    np.testing.assert_allclose(values, [0.4992, 0.517632, 0.562004, 0.651524, 0.872595, 1.0], atol=5e-7)


# --- U4: one standard deviation per group -----------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "end"), [("none", 0.9946), ("batch", 0.9829), ("group", 0.5002)])
def test_u4_the_sd_of_each_group_optimises_something_else(scale, end):
    """lr .05 on the one logit of a sigmoid is .025 on each of two softmax logits."""
    game = games.loud_context()
    values = improve(game, game.uniform(), lambda p, e: gradient_step(p, e, lr=0.025), "reverse", 4000, scale=scale)[
        0
    ].mean(1)
    np.testing.assert_allclose(values[[0, -1]], [0.75, end], atol=5e-5)
    assert ((np.diff(values) < 0) if scale == "group" else (np.diff(values) > 0)).all()


# --- U5 and the closed form of the clipped step -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shift", "ratios", "gain"),
    [(0, [1.2, 1, 0.8], 0.1 * 0.4 / 3), (1, [1.2, 1.2, 0.6], 0.02), (-1, [1.4, 0.8, 0.8], 0.02)],
)
def test_u5_a_shifted_baseline_pushes_ratios_out_of_the_clip_range(shift, ratios, gain):
    found, found_gain = tables.clipped_shift(shift)
    np.testing.assert_allclose(found, ratios, atol=EXACT)
    assert found_gain == pytest.approx(gain, abs=EXACT)


def test_no_shift_of_the_advantage_makes_a_clipped_step_lower_the_return():
    """20 000 random states of 2 to 5 actions."""
    rng = np.random.default_rng(0)
    for actions in (2, 3, 4, 5):
        policy = rng.dirichlet(np.ones(actions), 5000)
        q_values = rng.standard_normal((5000, actions))
        advantage = q_values - (policy * q_values).sum(1, keepdims=True)
        shift = rng.standard_normal((5000, 1)) * rng.choice([0.1, 1, 10], (5000, 1))
        q = clipped_argmax(policy, given(advantage + shift))
        np.testing.assert_allclose(q.sum(1), 1, atol=EXACT)
        assert (q >= 0).all()
        assert (q * advantage).sum(1).min() > -EXACT


def clipped_objective(q, policy, weight, m, eps):
    """E[min(u M, clip(u) M)] of outcomes [A, K] with probability ``weight`` given the action."""
    u = (q / policy)[:, None]
    return (policy[:, None] * weight * np.minimum(u * m, np.clip(u, 1 - eps, 1 + eps) * m)).sum()


@pytest.mark.parametrize("eps", [0.1, 0.2, 0.5])
def test_the_closed_form_is_the_optimum_of_a_linear_programme(eps):
    """Variables q [A] and one bound z per outcome, z <= u M and z <= clip(u) M as supporting lines."""
    rng = np.random.default_rng(1)
    for _ in range(40):
        actions, outcomes = rng.integers(2, 5), rng.integers(1, 4)
        policy = rng.dirichlet(np.ones(actions))
        weight = rng.dirichlet(np.ones(outcomes), actions)
        m = rng.integers(-2, 3, (actions, outcomes)).astype(float)  # many ties
        rows, bounds = [], []
        for a in range(actions):
            for k in range(outcomes):
                kink = 1 + eps if m[a, k] > 0 else 1 - eps
                for slope, offset in ((m[a, k] / policy[a], 0.0), (0.0, kink * m[a, k])):
                    row = np.zeros(actions + actions * outcomes)
                    row[a], row[actions + a * outcomes + k] = -slope, 1
                    rows.append(row)
                    bounds.append(offset)
        value = np.concatenate([np.zeros(actions), (policy[:, None] * weight).ravel()])
        simplex = np.concatenate([np.ones(actions), np.zeros(actions * outcomes)])[None]
        limits = [(0, 1)] * actions + [(None, None)] * (actions * outcomes)
        best = -linprog(-value, np.array(rows), np.array(bounds), simplex, [1.0], limits).fun
        parts = ((weight * x).sum(1) for x in (m, np.maximum(m, 0), np.minimum(m, 0)))
        q = clipped_argmax(policy[None], Expected(*(p[None] for p in parts), np.ones((1, actions))), eps)[0]
        assert clipped_objective(q, policy, weight, m, eps) == pytest.approx(best, abs=1e-9)


def test_ties_keep_the_old_policy_as_far_as_they_can():
    policy = np.array([[0.5, 0.3, 0.2]])
    for rule in (best_response, clipped_argmax):
        np.testing.assert_allclose(rule(policy, given(np.full((1, 3), 0.3))), policy, atol=EXACT)
    np.testing.assert_allclose(best_response(policy, given(np.array([[1.0, 1.0, 0]]))), [[0.625, 0.375, 0]], atol=EXACT)
    # .7 of the mass gains: it takes .84; the losers share the rest in their old proportions, below the clip range
    policy = np.array([[0.7, 0.2, 0.1]])
    q = clipped_argmax(policy, given(np.array([[1.0, -1.0, -2.0]])))
    np.testing.assert_allclose(q, [[0.84, 0.16 * 2 / 3, 0.16 / 3]], atol=EXACT)


def test_spread_is_the_closest_point_within_bounds():
    """No move of mass between two actions, within the bounds, comes closer to the old policy."""
    rng = np.random.default_rng(2)
    policy = rng.dirichlet(np.ones(4), 200)
    low = rng.random((200, 4)) * policy
    high = np.minimum(policy * (1 + rng.random((200, 4))), 1)
    low[:, 0] = np.minimum(policy[:, 0] * 1.1, high[:, 0])
    possible = low.sum(1) <= 1
    assert possible.sum() > 100
    policy, low, high = (x[possible] for x in (policy, low, high))
    q = spread(policy, low, high)
    np.testing.assert_allclose(q.sum(1), 1, atol=EXACT)
    assert ((q >= low - EXACT) & (q <= high + EXACT)).all()
    distance = (q * np.log(q / policy)).sum(1)
    for a in range(4):
        for b in range(4):
            moved = q.copy()
            step = np.minimum(1e-3, np.minimum(high[:, a] - q[:, a], q[:, b] - low[:, b])).clip(0)
            moved[:, a] += step
            moved[:, b] -= step
            terms = np.where(moved > 0, moved * np.log(np.maximum(moved, 1e-300) / policy), 0)
            assert (terms.sum(1) >= distance - EXACT).all()


@EVERY_RULE
def test_what_is_never_reached_keeps_its_policy(rule):
    first, second = games.doors_start(0.3)
    first = np.array([1.0, 0.0]).reshape(first.shape)
    new = sweep(games.doors(), (first, second), rule, [1, 0])
    np.testing.assert_array_equal(new[1][0, 1], second[0, 1])


# --- gradient and scales ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sees", games.SEES)
def test_a_gradient_step_follows_the_gradient_of_the_return(sees):
    """Each turn in order, with M, against finite differences of J at the policies of that moment."""
    rng = np.random.default_rng(5)
    game, h, lr = TurnGame(rng.standard_normal((2, 2, 3, 2)), sees=sees), 1e-6, 1e-4
    old = game.random(rng)
    now = list(old)
    new = sweep(game, old, lambda p, e: gradient_step(p, e, lr), [2, 0, 1])
    for turn in (2, 0, 1):
        logits = np.log(old[turn])

        def value(z, turn=turn):
            weights = np.exp(z)
            now[turn] = weights / weights.sum(turn + 1, keepdims=True)
            return game.value(tuple(now))

        slope = np.zeros_like(logits)
        for index in np.ndindex(logits.shape):
            bump = np.zeros_like(logits)
            bump[index] = h
            slope[index] = (value(logits + bump) - value(logits - bump)) / (2 * h)
        step = np.log(new[turn]) - logits
        step -= step.mean(turn + 1, keepdims=True)
        np.testing.assert_allclose(step / lr, slope, atol=1e-7)
        now[turn] = new[turn]


def test_scales_by_hand():
    game = games.loud_context()
    np.testing.assert_allclose(advantages(game, game.uniform()), [[-0.5, 0.5], [1, -1]])
    np.testing.assert_allclose(advantages(game, game.uniform(), "group"), [[-1, 1], [17**-0.5, -(17**-0.5)]])
    sd = math.sqrt((0.25 + 17) / 2)
    np.testing.assert_allclose(advantages(game, game.uniform(), "batch"), np.array([[-0.5, 0.5], [1, -1]]) / sd)
    flat = TurnGame(np.ones((1, 2)))
    for scale in SCALES:
        assert (advantages(flat, flat.uniform(), scale) == 0).all()


def test_best_of_agents_that_see_nothing_is_the_best_common_action():
    np.testing.assert_array_equal(games.loud_context().best(), [0, 2])
    np.testing.assert_array_equal(games.gaussian(5, 2, 2, np.random.default_rng(0)).best().shape, (5,))


# --- U6 to U9: book-keeping on sampled rows ---------------------------------------------------------------------------


def xor_rows() -> batch.Rows:
    """625 plays in which every joint action is exactly as frequent as the start of xor makes it."""
    one = np.repeat([1, 0], [12, 13])
    actions = np.stack([np.repeat(one, 25), np.tile(one, 25)], 1)
    zero = np.zeros(625, int)
    return batch.Rows(np.arange(625), zero, actions, (actions[:, 0] != actions[:, 1]).astype(float), zero)


def idle_rows(seed: int = 0) -> tuple[games.Policies, batch.Rows]:
    """Plays of three turns from two contexts, some of which stopped after one or two turns."""
    rng = np.random.default_rng(seed)
    game = games.gaussian(2, 3, 3, rng)
    policies = game.random(rng)
    rows = batch.sample(game, policies, 40, rng)
    length = rng.integers(1, 4, len(rows))
    actions = np.where(np.arange(3) < length[:, None], rows.actions, -1)
    return policies, batch.Rows(rows.trajectory, rows.context, actions, rows.returns, rows.group)


@pytest.mark.parametrize("rule", [clipped_argmax, gradient_step])
@pytest.mark.parametrize("correction", updates.CORRECTIONS)
@pytest.mark.parametrize("order", [[1, 0], [0, 1]])
def test_rows_in_exact_proportions_give_the_exact_sweep(rule, correction, order):
    exact = sweep(games.xor(), games.xor_start(), rule, order, correction)
    sampled = batch.sweep_rows(games.xor_start(), xor_rows(), rule, order, correction).policies
    for one, other in zip(exact, sampled, strict=True):
        np.testing.assert_allclose(one, other, atol=EXACT)


def test_sampled_rows_follow_the_policies():
    rng = np.random.default_rng(0)
    game = games.gaussian(1, 2, 3, rng)
    policies = game.random(rng)
    rows = batch.sample(game, policies, 40_000, rng)
    counts = np.zeros((3, 3))
    np.add.at(counts, tuple(rows.actions.T), 1)
    np.testing.assert_allclose(counts / len(rows), (policies[0] * policies[1])[0], atol=0.012)
    assert rows.returns.mean() == pytest.approx(game.value(policies), abs=0.05)


@EVERY_RULE
@pytest.mark.parametrize("correction", updates.CORRECTIONS)
def test_u6_shuffling_rows_between_turns_changes_nothing(rule, correction):
    policies, rows = idle_rows()
    straight = batch.sweep_rows(policies, rows, rule, [2, 1, 0], correction)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        shuffled = batch.sweep_rows(policies, rows.take(rng.permutation(len(rows))), rule, [2, 1, 0], correction, rng)
        for one, other in zip(straight.policies, shuffled.policies, strict=True):
            np.testing.assert_allclose(one, other, atol=EXACT)
        assert shuffled.corrections == pytest.approx(straight.corrections, abs=EXACT)
        assert shuffled.steps == straight.steps == 3


@EVERY_RULE
@pytest.mark.parametrize("where", [0, 1, 3])
def test_u7_turns_in_which_nothing_happens_change_nothing(rule, where):
    """A turn that no row took: no step, no change of M. In the exact games it is a turn of one action."""
    policies, rows = idle_rows()
    before = batch.sweep_rows(policies, rows, rule, [2, 1, 0])
    longer = tuple(np.expand_dims(p, where + 1) for p in policies)
    idle = np.ones((2, *[1] * 4))
    longer = (*longer[:where], idle, *longer[where:])
    actions = np.insert(rows.actions, where, -1, axis=1)
    padded = batch.Rows(rows.trajectory, rows.context, actions, rows.returns, rows.group)
    after = batch.sweep_rows(longer, padded, rule, [3, 2, 1, 0])
    assert after.corrections == before.corrections
    assert after.steps == before.steps == 3
    kept = [p for t, p in enumerate(after.policies) if t != where]
    for one, other in zip(before.policies, kept, strict=True):
        np.testing.assert_array_equal(one.ravel(), other.ravel())

    game = games.gaussian(2, 3, 3, np.random.default_rng(1))
    plain = sweep(game, policies, rule, [2, 1, 0])
    with_idle = sweep(TurnGame(np.expand_dims(game.returns, where + 1)), longer, rule, [3, 2, 1, 0])
    kept = [p for t, p in enumerate(with_idle) if t != where]
    for one, other in zip(plain, kept, strict=True):
        np.testing.assert_allclose(one.ravel(), other.ravel(), atol=EXACT)


def test_u7_rows_that_stopped_keep_their_m_and_count_in_the_mean():
    policies, rows = idle_rows()
    only_last = batch.sweep_rows(policies, rows, gradient_step, [2])
    stopped = rows.actions[:, 2] < 0
    assert stopped.any()
    assert {only_last.corrections[i] for i in rows.trajectory[stopped].tolist()} == {1.0}
    assert any(only_last.corrections[i] != 1 for i in rows.trajectory[~stopped].tolist())

    # one trajectory of two reaches turn 2 and its M is .5: the gradient of its logit is .5 * (1 - .5) / 2
    zero = np.zeros(2, int)
    two = batch.Rows(np.array([5, 9]), zero, np.array([[0, 0], [1, -1]]), np.array([1.0, 0.0]), zero)
    new = batch.sweep_rows(games.xor().uniform(), two, gradient_step, [1]).policies[1].ravel()
    assert np.log(new[0] / new[1]) == pytest.approx(2 * 0.5 * 0.5 / 2, abs=EXACT)


@EVERY_RULE
@pytest.mark.parametrize("group", [np.arange(80), np.repeat([0, 1], 40)], ids=["K=1", "equal"])
def test_u8_groups_of_one_and_equal_returns_give_no_signal_and_no_nan(rule, group):
    policies, rows = idle_rows()
    returns = rows.returns if len(np.unique(group)) == 80 else np.full(80, 0.1 + 0.2)
    np.testing.assert_array_equal(batch.group_centred(returns, group), 0)
    flat = batch.Rows(rows.trajectory, rows.context, rows.actions, returns, group)
    swept = batch.sweep_rows(policies, flat, rule, [2, 1, 0])
    for one, other in zip(policies, swept.policies, strict=True):
        np.testing.assert_allclose(one, other, atol=EXACT)
    assert all(c == pytest.approx(1, abs=EXACT) for c in swept.corrections.values())


def test_u8_centring_by_hand():
    returns, group = np.array([1.0, 5, 0, 2, 3]), np.array([0, 1, 0, 1, 7])
    np.testing.assert_array_equal(batch.group_centred(returns, group), [0.5, 1.5, -0.5, -1.5, 0])


def test_u9_ratios_of_a_turn():
    logs = np.log([[1.1, 0.9]])
    np.testing.assert_allclose(batch.turn_ratio(logs, "token"), [[1.1, 0.9]])
    np.testing.assert_allclose(batch.turn_ratio(logs, "seq_prod"), [0.99])
    np.testing.assert_allclose(batch.turn_ratio(logs, "seq_geo"), [0.994987], atol=5e-7)
    one = np.log([[1.3], [0.7]])
    for kind in batch.RATIOS:
        np.testing.assert_allclose(batch.turn_ratio(one, kind).ravel(), [1.3, 0.7])


@pytest.mark.parametrize(
    ("clip", "trace"), [(None, [1.1, 1.045, 1.3585]), (updates.CODE_CLIP, [1.1, 1.045, 1.2])], ids=["paper", "code"]
)
def test_trace_of_m(clip, trace):
    """A = 1, ratios 1.1, .95, 1.3; kept by id, whatever the order of the rows."""
    corrections: dict[int, float] = {}
    for ratio, expected in zip((1.1, 0.95, 1.3), trace, strict=True):
        batch.correct(corrections, [8, 3], [1.0, ratio], clip)
        assert corrections == pytest.approx({3: expected, 8: 1.0})


# --- wrong use --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, p, r: TurnGame(np.ones(3)), "returns"),
        (lambda g, p, r: TurnGame(np.array([[np.nan, 0]])), "finite"),
        (lambda g, p, r: TurnGame(np.ones((1, 2)), sees="all"), "history"),
        (lambda g, p, r: TurnGame(np.ones((1, 2)), noise=np.array([-1.0])), "variance"),
        (lambda g, p, r: sweep(g, p, best_response, [0], "geo"), "paper"),
        (lambda g, p, r: sweep(g, p, best_response, [0], scale="sd"), "batch"),
        (lambda g, p, r: sweep(games.loud_context(), r, best_response, [[0], [0]]), "one order"),
        (lambda g, p, r: improve(g, p, best_response, "sideways", 1), "reverse"),
        (lambda g, p, r: improve(g, p, best_response, "random", 1), "generator"),
        (lambda g, p, r: batch.sweep_rows(p, xor_rows(), best_response, [0], "geo"), "paper"),
        (lambda g, p, r: batch.sweep_rows(p, xor_rows().take(np.zeros(2, int)), best_response, [0]), "different"),
        (lambda g, p, r: batch.turn_ratio(np.zeros(1), "mean"), "seq_geo"),
    ],
)
def test_wrong_use_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(games.xor(), games.xor_start(), games.loud_context().uniform())


# --- command and page -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made() -> list[tables.Table]:
    return tables.tables()


def test_the_page_holds_what_the_command_gives(made):
    page = (ROOT / "docs" / "turn_games.md").read_text(encoding="utf-8")
    between = page.partition(command.BEGIN)[2].partition(command.END)[0].strip()
    assert between == command.markdown(made, tables.GAMES, tables.SEED), (
        "renew it: python -m ragen_algos.turn_games --write docs/turn_games.md"
    )


def test_the_code_of_the_page_runs():
    page = (ROOT / "docs" / "turn_games.md").read_text(encoding="utf-8")
    code = page.rpartition("```python\n")[2].partition("```")[0]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    promised = code.rpartition("# ")[2].strip()
    assert done.stdout.strip() == promised, done.stderr


def test_terminal_and_page_show_the_same_cells(made, capsys, monkeypatch):
    monkeypatch.setattr(command, "tables", lambda n, seed: made)
    command.main([])
    printed = capsys.readouterr().out
    assert tables.EXPLANATION in printed
    for table in made:
        assert all(cell in printed for row in table.rows for cell in row)
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_write_needs_a_page_with_markers_and_keeps_the_rest(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "tables", lambda n, seed: [])
    page = tmp_path / "page.md"
    page.write_text(f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n")
    command.main(["--games", "7", "--write", str(page)])
    text = page.read_text()
    assert text.startswith(f"before\n{command.BEGIN}\nWritten by")
    assert text.endswith(f"{command.END}\nafter\n")
    assert "--games 7" in text
    assert "old" not in text
    page.write_text("no markers")
    for bad in (page, tmp_path / "missing.md"):
        with pytest.raises(SystemExit) as stopped:
            command.main(["--write", str(bad)])
        assert stopped.value.code == 2
    assert page.read_text() == "no markers"


@pytest.mark.parametrize(
    "arguments",
    [["--games", "0"], ["--games", "x"], ["--seed", "-1"], ["--nonsense"], ["--markdown", "--write", "p"], ["word"]],
)
def test_wrong_arguments_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_the_command_needs_no_torch():
    code = """
import sys
import ragen_algos.turn_games.__main__ as command
assert not {"torch", "numba", "scipy"} & set(sys.modules)
command.main(["--help"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "--games" in done.stdout
