"""Golden numbers and exact relations of the joint algorithms beyond those of single formulas.

Goldens of the plain surrogate, REINFORCE, the KL, the value loss, token GAE, whitening and group statistics stand in
``test_losses`` and ``test_advantages``; here are those of ratios per sequence, turns, anchors and baselines, and what
must hold between algorithms. Numbers are given to six digits and checked to them; relations hold to 1e-12.
"""

from __future__ import annotations

import math

import pytest
import torch
from helpers import random_example
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_algos.advantages import (
    at_turn,
    bilevel_gae,
    gigpo_advantages,
    mt_grpo_advantages,
    opo_advantages,
    overlong_penalty,
    sum_per_turn,
    token_gae,
    turn_gae,
    turns_to_tokens,
    whiten,
)
from ragen_algos.algorithms import make
from ragen_algos.losses import (
    RATIOS,
    aggregate,
    clip_fraction,
    global_denominator,
    kl_penalty,
    policy_loss,
    reinforce_loss,
    sapo_loss,
)

torch.set_num_threads(1)

DIGITS = 6e-7
EXACT = {"atol": 1e-12, "rtol": 0.0}


def double(x: object) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def close(actual: torch.Tensor, expected: object) -> None:
    torch.testing.assert_close(actual, double(expected), atol=DIGITS, rtol=0)


def value_and_grad(f, x):
    x = x.clone().requires_grad_()
    loss = f(x)
    loss.backward()
    return loss.detach(), x.grad


# --- losses -----------------------------------------------------------------------------------------------------------

LP = double([[-1, -0.5, -2, -1], [-0.7, -1.2, -0.3, -2]])
OLD = double([[-1.3, -0.5, -1.5, -1], [-0.7, -0.8, -0.9, -1]])
ADV = double([[1] * 4, [-1] * 4])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()


@pytest.mark.parametrize(
    ("name", "options", "value", "grad"),
    [
        ("gspo", {}, 0.032097, [[-0.155918] * 3, [0, 0]]),
        ("gspo", {"clip_low": 0.2, "clip_high": 0.2}, -0.058388, [[-0.155918] * 3, [0.204683] * 2]),
        ("rloo", {}, -0.009365, [[-0.409365] * 3, [0, 0]]),
        ("cispo", {"clip_low": 0.2, "clip_high": 0.2}, 0.328, [[-0.24, -0.2, -0.16], [0.2, 0.16]]),
        ("cispo", {}, 0.311707, [[-0.269972, -0.2, -0.121306], [0.2, 0.134064]]),
        ("dr-grpo", {"aggregation_const": 4.0}, -0.125816, [[0, -0.125, -0.075816], [0.125, 0]]),
        ("grpo", {}, -0.017755, [[0, -0.166667, -0.101088], [0.25, 0]]),
        ("ppo", {}, -0.201306, [[0, -0.2, -0.121306], [0.2, 0]]),
        ("reinforce", {}, 0.32, [[-0.2] * 3, [0.2] * 2]),
    ],
)
@pytest.mark.parametrize("junk", [0.0, float("nan")])
def test_each_algorithm_has_the_golden_loss_and_gradient(name, options, value, grad, junk):
    """Whatever stands in masked slots. CISPO's default is the absolute cap of 5 (P25)."""
    algorithm = make(name, **options)
    lp, old, adv = (torch.where(MASK, x, junk) for x in (LP, OLD, ADV))
    loss, g = value_and_grad(lambda x: algorithm.loss(x, old, adv, MASK, algorithm.denominator(MASK)), lp)
    close(loss, value)
    close(g, [[*row, *[0] * (4 - len(row))] for row in grad])


@pytest.mark.parametrize(("rho", "adv", "value"), [(1.3, 1.0, -2.297770), (0.7, -1.0, 1.607218)])
def test_sapo_equals_the_golden_value_and_is_a_gate_around_one(rho, adv, value):
    one = torch.ones(1, 1).bool()

    def loss(x):
        return sapo_loss(x, double([[0]]), double([[adv]]), one, aggregation="token-mean", denominator=1.0)

    close(loss(double([[math.log(rho)]])), value)
    _, slope = value_and_grad(loss, double([[0]]))
    torch.testing.assert_close(slope, double([[-adv]]), **EXACT)
    for far in (-9.0, 9.0):
        assert value_and_grad(loss, double([[far]]))[1].abs() < 1e-3


def test_k3_plus_has_the_value_of_k3_and_the_gradient_of_k2():
    ref = double([[-1.1, -0.6, -1.9, -1], [-0.9, -1, -0.4, -2]])
    loss, g = value_and_grad(lambda x: aggregate(kl_penalty(x, ref, "k3+", MASK), MASK, "token-mean", 5.0), LP)
    close(loss, 0.010996)
    close(g, [[0.02, 0.02, -0.02, 0], [0.04, -0.04, 0, 0]])


def test_the_sum_over_a_constant_alone():
    """The form without N: X=[[1,1,1,1],[3]] over C=4."""
    x, mask = double([[1] * 4, [3, 0, 0, 0]]), torch.tensor([[1] * 4, [1, 0, 0, 0]]).bool()
    close(aggregate(x, mask, "sum/const", 4.0), 1.75)


def test_ratios_of_a_sequence():
    """S6: token ratios 1.1 and .9 have the product .99 and the geometric mean .994987; 1-token rows have one ratio."""
    mask, old = torch.ones(1, 2).bool(), torch.zeros(1, 2, dtype=torch.float64)
    logp = double([[1.1, 0.9]]).log()
    for ratio, expected in (("token", 1.0), ("seq_prod", 0.99), ("seq_geo", 0.994987)):
        how = {"aggregation": "seq-mean-token-mean", "denominator": 1.0, "ratio": ratio}
        close(policy_loss(logp, old, torch.ones(1, 2), mask, **how), -expected)
        single = policy_loss(logp[:, :1], old[:, :1], torch.ones(1, 1), mask[:, :1], **how)
        close(single, -1.1)
    assert clip_fraction(logp, old, mask, 0.05, 0.05) == 1
    assert clip_fraction(logp, old, mask, 0.05, 0.05, "seq_prod") == 0
    assert clip_fraction(logp, old, mask, 0.007, 0.2, "seq_prod") == 1
    assert clip_fraction(logp, old, mask, 0.007, 0.2, "seq_geo") == 0
    with pytest.raises(ValueError, match="unknown ratio 'sequence'; choose from " + ", ".join(RATIOS)):
        clip_fraction(logp, old, mask, ratio="sequence")


@pytest.mark.parametrize("ratio", RATIOS)
def test_extreme_ratios_stay_finite(ratio):
    """P24: 200 tokens that each moved by 5 nats, either way; and a row in which nothing was sampled."""
    logp = double([[5.0] * 200, [-5.0] * 200, [0.0] * 200])
    mask = torch.ones(3, 200).bool()
    mask[2] = False
    for sign in (1.0, -1.0):
        loss, g = value_and_grad(
            lambda x, a=sign: policy_loss(
                x,
                torch.zeros_like(x),
                torch.full_like(x, a),
                mask,
                ratio=ratio,
                aggregation="token-mean",
                denominator=400.0,
            ),
            logp,
        )
        assert torch.isfinite(loss)
        assert torch.isfinite(g).all()
        assert (g[2] == 0).all()


# --- turns ------------------------------------------------------------------------------------------------------------

ROW = torch.tensor([[1, 1, 0, 0, 1, 1]]).bool()
TURN = torch.tensor([[0, 0, -1, -1, 1, 1]])
ENDS = torch.tensor([[0, 1, 0, 0, 0, 1]]).bool()
VALUES = double([[0.2, 0.3, 0.9, 0.9, 0.5, 0.6]])
HALF_ONE = double([[0, 0.5, 0, 0, 0, 1]])
LAST = double([[0, 0, 0, 0, 0, 1]])
END = torch.zeros(1)


@pytest.mark.parametrize(
    ("gamma", "lam", "v_at", "expected"),
    [
        (0.95, 0.95, "start", [1.22625, 0.5]),
        (0.99, 0.9, "start", [1.2405, 0.5]),
        (0.95, 0.95, "end", [1.131, 0.4]),
    ],
)
@pytest.mark.parametrize("junk", [0.9, float("nan"), 1e6])
def test_turn_gae_equals_the_golden_vector(gamma, lam, v_at, expected, junk):
    """P4: values on observations are not read."""
    values = torch.where(ROW, VALUES, junk)
    advantages, returns, played = turn_gae(HALF_ONE, values, TURN, gamma=gamma, lam=lam, bootstrap=END, v_at=v_at)
    close(advantages, [expected])
    start = [0.2, 0.5] if v_at == "start" else [0.3, 0.6]
    close(returns, [[a + v for a, v in zip(expected, start, strict=True)]])
    assert played.all()
    a, b = expected
    close(turns_to_tokens(advantages, TURN), [[a, a, 0, 0, b, b]])


def test_turn_gae_continues_after_a_budget_with_the_value_there():
    """P19, by hand: delta_2 = .9 * .7 - .5 = .13 and A_1 = .9 * .5 - .2 + .9 * .8 * .13 = .3436."""
    advantages, _, _ = turn_gae(
        torch.zeros(1, 6), VALUES, TURN, gamma=0.9, lam=0.8, bootstrap=double([0.7]), v_at="start"
    )
    close(advantages, [[0.3436, 0.13]])


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        (HALF_ONE, [1.17445, 1.131, 0.48, 0.4]),
        (LAST, [0.69945, 0.631, 0.48, 0.4]),
        (torch.zeros(1, 6), [-0.157925, -0.2715, -0.47, -0.6]),
    ],
)
def test_bilevel_gae_equals_the_golden_vector(rewards, expected):
    """P5: turn ends are given, so a turn without reward keeps its boundary and no reward at all is no error."""
    advantages, returns = bilevel_gae(rewards, VALUES, ROW, ENDS, gamma=1.0, lam=0.95, turn_gamma=0.95, bootstrap=END)
    close(advantages[ROW], expected)
    close(returns[ROW], [a + v for a, v in zip(expected, [0.2, 0.3, 0.5, 0.6], strict=True)])
    assert (advantages[~ROW] == 0).all()
    assert (returns[~ROW] == 0).all()


def test_turn_ends_must_fit_the_mask():
    for ends in (torch.zeros(1, 6).bool(), torch.tensor([[0, 1, 1, 0, 0, 1]]).bool()):
        with pytest.raises(ValueError, match="turn_end and loss_mask disagree in row 0"):
            bilevel_gae(LAST, VALUES, ROW, ends, gamma=1.0, lam=1.0, turn_gamma=1.0, bootstrap=END)


def test_turn_functions_reject_what_does_not_fit():
    stray = double([[0, 0, 1, 0, 0, 0]])
    with pytest.raises(ValueError, match=r"row 0 has reward .* on token 2"):
        turn_gae(stray, VALUES, TURN, gamma=1.0, lam=1.0, bootstrap=END)
    with pytest.raises(ValueError, match=r"row 0 has reward .* on token 2"):
        mt_grpo_advantages(stray, TURN, torch.zeros(1))
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        turn_gae(LAST, VALUES, TURN, gamma=1.0, lam=2.0, bootstrap=END)
    with pytest.raises(ValueError, match="unknown place 'middle'"):
        at_turn(VALUES, TURN, "middle")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), gamma=st.floats(0.5, 1), lam=st.floats(0, 1))
def test_relations_between_the_gaes(seed, gamma, lam):
    """Relation 4.3: bi-level(1, 1, 1) is token GAE(1, 1), for any rewards; and turns of one token are tokens."""
    x = random_example(seed)
    batch, values = x.batch, x.values
    g = torch.Generator().manual_seed(seed)
    dense = torch.where(batch.loss_mask, torch.randn(batch.ids.shape, generator=g, dtype=torch.float64), 0.0)
    bootstrap = torch.where(batch.truncated, x.bootstrap, 0.0)
    for rewards in (batch.rewards, dense):
        token = token_gae(rewards, values, batch.loss_mask, gamma=1.0, lam=1.0, bootstrap=bootstrap)
        bilevel = bilevel_gae(
            rewards, values, batch.loss_mask, batch.turn_end, gamma=1.0, lam=1.0, turn_gamma=1.0, bootstrap=bootstrap
        )
        torch.testing.assert_close(bilevel, token, **EXACT)
    each = torch.where(batch.loss_mask, batch.loss_mask.long().cumsum(1) - 1, -1)
    token = token_gae(dense, values, batch.loss_mask, gamma=gamma, lam=lam, bootstrap=bootstrap)
    for v_at in ("start", "end"):
        advantages, returns, _ = turn_gae(dense, values, each, gamma=gamma, lam=lam, bootstrap=bootstrap, v_at=v_at)
        torch.testing.assert_close((turns_to_tokens(advantages, each), turns_to_tokens(returns, each)), token, **EXACT)
    per_turn, played = sum_per_turn(dense, batch.turn_id)
    torch.testing.assert_close(per_turn.sum(1), dense.sum(1), **EXACT)
    assert (per_turn[~played] == 0).all()


def test_turn_ppo_whitens_over_turns():
    """The golden whitening of [2, 0, 3] as the rewards of three turns, however many tokens they have."""
    for lengths in ((1, 1, 1), (1, 5, 2)):
        turn_id = torch.cat([torch.full((n,), k) for k, n in enumerate(lengths)])[None]
        rewards = torch.zeros(turn_id.shape, dtype=torch.float64)
        rewards[0, torch.tensor(lengths).cumsum(0) - 1] = double([2, 0, 3])
        advantages, _, played = turn_gae(rewards, torch.zeros_like(rewards), turn_id, gamma=0.0, lam=0.0, bootstrap=END)
        close(whiten(advantages, played), [[0.218218, -1.091089, 0.872872]])


def test_whitening_over_pads_would_be_wrong():
    """P6: what the golden whitening is not."""
    x = double([2, 0, 3, 0, 0])
    close(whiten(x, torch.ones(5).bool())[:3], [0.707107, -0.707107, 1.414214])


# --- groups -----------------------------------------------------------------------------------------------------------


def test_opo_equals_the_golden_vector():
    """And gives 0 to groups without a signal."""
    returns, group = double([2, 0, 1, -0.5, 0.3, 0.3, 0.3, 7]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 2])
    lengths = torch.tensor([2, 4, 6, 8, 1, 3, 5, 2])
    advantages = opo_advantages(returns, lengths, group)
    close(advantages, [1.7, -0.3, 0.7, -0.8, 0, 0, 0, 0])
    assert (advantages[4:] == 0).all()
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(opo_advantages(returns[order], lengths[order], group[order]), advantages[order], **EXACT)


def test_the_overlong_penalty_equals_the_golden_values():
    penalty = overlong_penalty(torch.tensor([100, 16384, 18432, 20480]), 20480, 4096)
    close(penalty, [0, 0, -0.5, -1])
    with pytest.raises(ValueError, match="buffer"):
        overlong_penalty(torch.tensor([1]), 10, 0)


GIGPO_TURN = torch.tensor([[0, -1, 1, 1, -1, -1], [0, -1, 1, -1, 2, 2]])
GIGPO_SIGHT = torch.tensor([[7, -1, 8, 8, -1, -1], [7, -1, 8, -1, 9, 9]])
GIGPO_REWARD = double([[0, 0, 0, 1, 0, 0], [0] * 6])


def gigpo(turn_id=GIGPO_TURN, sight=GIGPO_SIGHT, group=(0, 0), **options):
    return gigpo_advantages(GIGPO_REWARD, turn_id, sight, torch.tensor(group), gamma=0.95, **options)


def test_gigpo_equals_the_golden_vectors():
    """P13: episodes of 2 and 3 turns count once each (mean .5, not .4); a sight nobody shares gives 0."""
    close(gigpo(), [[0.975, 0, 1, 1, 0, 0], [-0.975, 0, -1, 0, -0.5, -0.5]])
    close(gigpo(step_weight=0.0), [[0.5, 0, 0.5, 0.5, 0, 0], [-0.5, 0, -0.5, 0, -0.5, -0.5]])
    by_sd = gigpo(scale="group")
    close(by_sd[0], [2 * 0.5**0.5 - 2.553e-6, 0, 2 * 0.5**0.5 - 2e-6, 2 * 0.5**0.5 - 2e-6, 0, 0])
    close(by_sd[1, 4:], [-(0.5**0.5) + 1e-6] * 2)


@pytest.mark.filterwarnings("ignore:.*single trajectory")
def test_turns_are_compared_only_where_the_same_was_seen():
    """P14: equal turn indices make no anchor, equal observations do, across turn indices, and within a group only."""
    alone = GIGPO_SIGHT.clone()
    alone[1] = torch.tensor([17, -1, 18, -1, 19, 19])
    close(gigpo(sight=alone), gigpo(step_weight=0.0).tolist())
    close(gigpo(group=(0, 1)), torch.zeros(2, 6).tolist())
    crossed = GIGPO_SIGHT.clone()
    crossed[1] = torch.tensor([17, -1, 7, -1, 19, 19])  # what row 0 saw in its first turn, row 1 sees in its second
    close(gigpo(sight=crossed)[:, [0, 2]], [[0.975, 0.5], [-0.5, -0.975]])


def mt_grpo(first, rest, **options):
    rewards = torch.stack([double(first), torch.zeros(4, dtype=torch.float64), double(rest)], 1)
    return mt_grpo_advantages(rewards, torch.tensor([[0, -1, 1]] * 4), torch.zeros(4), **options)


def test_mt_grpo_equals_the_golden_vectors():
    """Before the first observation A_O + A_T, after it A_O."""
    advantages = mt_grpo([1, 0, 1, 0], [1, 0, 0, 0])
    close(advantages[:, 0], [2.365575, -1.365775, 0.365975, -1.365775])
    torch.testing.assert_close(advantages[:, 2], double([1.4997, -0.4999, -0.4999, -0.4999]), atol=5e-5, rtol=0)
    difference = advantages[:, 0] - advantages[:, 2]
    close(difference, [0.865875, -0.865875, 0.865875, -0.865875])
    close(mt_grpo([1, 0, 1, 0], [1, 0, 0, 0], turn_weight=0.0)[:, 0], advantages[:, 2].tolist())


def test_mt_grpo_without_a_second_turn_compares_the_whole_return():
    rewards = double([[1, 0, 0], [0, 0, 1], [1, 0, 1], [0, 0, 0]])
    turns = torch.tensor([[0, -1, -1], [0, -1, 1], [0, -1, 1], [0, -1, -1]])
    advantages = mt_grpo_advantages(rewards, turns, torch.zeros(4), scale="none")
    close(advantages, [[0, 0, 0], [0, 0, 0.5], [1, 0, 0.5], [-1, 0, 0]])


# --- relations between algorithms -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*single trajectory")
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_rloo_credit_is_a_multiple_of_dr_grpo_credit(seed):
    """Relation 4.3: K/(K-1) in groups of K."""
    batch = random_example(seed).batch
    size = (batch.group_id[:, None] == batch.group_id).sum(1)
    factor = torch.where(size > 1, size / (size - 1).clamp(min=1), 0.0).double()
    rloo, dr_grpo = (make(name).credit(batch)[0] for name in ("rloo", "dr-grpo"))
    torch.testing.assert_close(rloo, factor[:, None] * dr_grpo, **EXACT)


JOINT = [
    "cispo",
    "dr-grpo",
    "gigpo",
    "grpo",
    "gspo",
    "mt-grpo",
    "ppo",
    "ppo-bilevel",
    "ppo-turn",
    "reinforce++",
    "reinforce",
    "rloo",
    "starpo",
]


@pytest.mark.filterwarnings("ignore:.*single trajectory")
@pytest.mark.parametrize("name", JOINT)
def test_the_first_step_is_reinforce_under_the_same_aggregation(name):
    """Relation 4.3: at ratio 1 all gradients are those of -A logp; a product over the sequence sums over its tokens."""
    x = random_example(3)
    batch, mask = x.batch, x.batch.loss_mask
    algorithm = make(name, entropy_coef=0.0)
    advantages, _ = algorithm.credit(batch, *((x.values, x.bootstrap) if algorithm.needs_critic else ()))
    how = "seq-mean-token-sum" if algorithm.clipped_ratio == "seq_prod" else algorithm.aggregation
    d = global_denominator(mask, how, algorithm.aggregation_const)
    _, expected = value_and_grad(lambda y: reinforce_loss(y, advantages, mask, aggregation=how, denominator=d), x.old)
    _, grad = value_and_grad(lambda y: algorithm.loss(y, x.old, advantages, mask, algorithm.denominator(mask)), x.old)
    torch.testing.assert_close(grad, expected, **EXACT)
    assert grad.abs().sum() > 0


@pytest.mark.filterwarnings("ignore:.*single trajectory")
def test_variants_that_coincide():
    """GiGPO without turn weight is the group's credit, REINFORCE++-baseline the whitened one, bi-level(1) is PPO."""
    x = random_example(5)
    batch = x.batch
    episode, _ = make("gigpo", step_weight=0.0).credit(batch)
    torch.testing.assert_close(episode, make("dr-grpo").credit(batch)[0], **EXACT)
    with_group, _ = make("reinforce++", baseline="mean").credit(batch)
    torch.testing.assert_close(with_group, whiten(make("dr-grpo").credit(batch)[0], batch.loss_mask), **EXACT)
    critic = (x.values, x.bootstrap)
    bilevel = make("ppo-bilevel", turn_gamma=1.0).credit(batch, *critic)
    torch.testing.assert_close(bilevel, make("ppo").credit(batch, *critic), **EXACT)
