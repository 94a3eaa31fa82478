"""Objectives against hand-computed values and gradients, known pitfalls (P), cases (C), house rules (H), relations."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import entropy, gather_log_probs
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_algos.losses import (
    AGGREGATIONS,
    aggregate,
    clip_fraction,
    global_denominator,
    kl_penalty,
    policy_loss,
    reinforce_loss,
    value_loss,
)

torch.set_num_threads(1)

ATOL = 1e-6
NAN = float("nan")


def double(x: object) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


LP = double([[-1, -0.5, -2, -1], [-0.7, -1.2, -0.3, -2]])
OLD = double([[-1.3, -0.5, -1.5, -1], [-0.7, -0.8, -0.9, -1]])
REF = double([[-1.1, -0.6, -1.9, -1], [-0.9, -1, -0.4, -2]])
ADV = double([[1] * 4, [-1] * 4])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).bool()


def close(actual: torch.Tensor, expected: object, atol: float = ATOL) -> None:
    torch.testing.assert_close(actual.double(), double(expected), atol=atol, rtol=0)


def const(how: str) -> float | None:
    return 4.0 if how == "sum/const" else None


def clipped(logp, old=OLD, adv=ADV, mask=MASK, how="token-mean", denominator=None, **options):
    denominator = denominator or global_denominator(mask, how, const(how))
    return policy_loss(logp, old, adv, mask, aggregation=how, denominator=denominator, **options)


def plain(logp, adv=ADV, mask=MASK, how="token-mean", denominator=None):
    denominator = denominator or global_denominator(mask, how, const(how))
    return reinforce_loss(logp, adv, mask, aggregation=how, denominator=denominator)


def value_and_grad(f, x=LP, **options):
    x = x.clone().requires_grad_()
    loss = f(x, **options)
    loss.backward()
    return loss.detach(), x.grad


# --- goldens ----------------------------------------------------------------------------------------------------------

PPO_GRAD = [[0, -0.2, -0.121306, 0], [0.2, 0, 0, 0]]


@pytest.mark.parametrize(
    ("options", "value", "grad"),
    [
        ({}, -0.201306, PPO_GRAD),
        ({"dual_clip": 3.0}, -0.201306, PPO_GRAD),
        ({"how": "seq-mean-token-mean"}, -0.017755, [[0, -0.166667, -0.101088, 0], [0.25, 0, 0, 0]]),
        ({"clip_high": 0.28}, -0.217306, PPO_GRAD),
        ({"how": "sum/const"}, -0.125816, [[0, -0.125, -0.075816, 0], [0.125, 0, 0, 0]]),
    ],
    ids=["ppo", "ppo-dual-clip-idle", "grpo", "dapo", "dr-grpo"],
)
def test_clipped_surrogate_equals_the_golden_value_and_gradient(options, value, grad):
    """Goldens of PPO, GRPO, DAPO and Dr. GRPO; the gradient at masked slots is exactly 0."""
    loss, g = value_and_grad(clipped, **options)
    close(loss, value)
    close(g, grad)
    assert (g[~MASK] == 0).all()


def test_reinforce_equals_the_golden_value_and_gradient():
    """Golden."""
    loss, g = value_and_grad(plain)
    close(loss, 0.32)
    close(g, [[-0.2, -0.2, -0.2, 0], [0.2, 0.2, 0, 0]])


@pytest.mark.parametrize(
    ("rho", "adv", "options", "value", "grad"),
    [
        (1.25, 1.0, {}, -1.2, 0.0),
        (1.25, 1.0, {"clip_high": 0.28}, -1.25, -1.25),
        (5.0, -1.0, {}, 5.0, 5.0),
        (5.0, -1.0, {"dual_clip": 3.0}, 3.0, 0.0),
        (0.5, -1.0, {}, 0.8, 0.0),
        (0.5, 1.0, {}, -0.5, -0.5),
    ],
)
def test_clip_cases_of_one_token(rho, adv, options, value, grad):
    """Goldens: clip-higher, dual clip, and both harmless sides."""
    one = torch.ones(1, 1).bool()
    loss, g = value_and_grad(
        clipped, double([[math.log(rho)]]), old=double([[0]]), adv=double([[adv]]), mask=one, **options
    )
    close(loss, value)
    close(g, [[grad]])


@pytest.mark.parametrize(
    ("kind", "value", "grad"),
    [
        ("k1", 0.02, [[0.2, 0.2, 0.2, 0], [0.2, 0.2, 0, 0]]),
        ("k2", 0.011, [[0.02, 0.02, -0.02, 0], [0.04, -0.04, 0, 0]]),
        ("k3", 0.010996, [[0.019033, 0.019033, -0.021034, 0], [0.036254, -0.044281, 0, 0]]),
    ],
)
def test_kl_estimators_equal_the_golden_value_and_gradient(kind, value, grad):
    """Goldens; P23 (k2 gradient)."""
    loss, g = value_and_grad(lambda x: aggregate(kl_penalty(x, REF, kind), MASK, "token-mean", 5.0))
    close(loss, value)
    close(g, grad)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_on_observations_changes_nothing_and_kl_to_itself_is_zero(kind):
    """P23, C19: whatever the reference says where nothing was sampled, NaN included."""

    def loss(x, ref):
        return aggregate(kl_penalty(x, ref, kind, MASK), MASK, "token-mean", 5.0)

    expected = value_and_grad(loss, ref=REF)
    for junk in (7.0, NAN):
        torch.testing.assert_close(value_and_grad(loss, ref=torch.where(MASK, REF, junk)), expected)
    assert (kl_penalty(LP, LP, kind) == 0).all()
    with pytest.raises(ValueError, match="unknown kl kind"):
        kl_penalty(LP, LP, "k4")


def test_value_loss_equals_the_golden_value():
    """Golden v=.9, v_old=.2, ret=1, clip .5 -> .045; without clip .005."""
    v, old, ret, one = double([[0.9]]), double([[0.2]]), double([[1.0]]), torch.ones(1, 1).bool()
    close(value_loss(v, old, ret, one, denominator=1.0), 0.045)
    close(value_loss(v, old, ret, one, None, denominator=1.0), 0.005)


# --- masks and aggregation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "c17", "ragged"),
    [
        ("token-mean", 13 / 3, 1.4),
        ("seq-mean-token-mean", 3.75, 2.0),
        ("seq-mean-token-sum", 6.5, 3.5),
        ("sum/const", 13 / 8, 0.875),
    ],
)
@pytest.mark.parametrize("hidden", [9.0, NAN])
def test_aggregation_equals_the_golden_value(how, c17, ragged, hidden):
    """C17, P12 and the aggregation goldens; a NaN in a masked slot reaches neither value nor gradient."""
    mask = torch.tensor([[1, 0], [1, 1]]).bool()
    x = double([[2, hidden], [4, 7]])
    loss, g = value_and_grad(lambda y: aggregate(y, mask, how, global_denominator(mask, how, const(how))), x)
    close(loss, c17)
    assert g[0, 1] == 0
    x = double([[1, 1, 1, 1], [3, hidden, hidden, hidden]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    close(aggregate(x, mask, how, global_denominator(mask, how, const(how))), ragged)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_nothing_leaks_from_masked_slots(how):
    """C17: NaN in every input at masked slots leaves value and gradient of every loss unchanged."""
    junk = [torch.where(MASK, x, NAN) for x in (LP, OLD, ADV, REF)]
    for options in ({}, {"dual_clip": 3.0}):
        clean = value_and_grad(clipped, how=how, **options)
        dirty = value_and_grad(clipped, junk[0], old=junk[1], adv=junk[2], how=how, **options)
        torch.testing.assert_close(dirty, clean)
    torch.testing.assert_close(value_and_grad(plain, junk[0], adv=junk[2], how=how), value_and_grad(plain, how=how))

    def critic(v, old, ret):
        return value_loss(v, old, ret, MASK, aggregation=how, denominator=3.0)

    torch.testing.assert_close(
        value_and_grad(critic, junk[0], old=junk[1], ret=junk[3]), value_and_grad(critic, old=OLD, ret=REF)
    )


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("objective", ["policy", "reinforce", "value", "kl"])
def test_micro_batches_add_up_to_the_whole(how, objective):
    """P11, H5: one batch against four micro-batches of unequal lengths, gradients equal within 1e-10."""
    g = torch.Generator().manual_seed(0)
    shape = (8, 12)
    mask = torch.arange(12)[None] < torch.tensor([12, 1, 3, 0, 7, 2, 9, 5])[:, None]
    logp, old, adv, ref = (torch.randn(shape, generator=g, dtype=torch.float64) * s for s in (0.3, 0.3, 1, 0.3))
    denominator = global_denominator(mask, how, const(how))

    def loss(x, rows):
        m, keep = mask[rows], {"aggregation": how, "denominator": denominator}
        if objective == "policy":
            return policy_loss(x[rows], old[rows], adv[rows], m, dual_clip=3.0, **keep)
        if objective == "reinforce":
            return reinforce_loss(x[rows], adv[rows], m, **keep)
        if objective == "value":
            return value_loss(x[rows], old[rows], adv[rows], m, **keep)
        return aggregate(kl_penalty(x[rows], ref[rows], "k3", m), m, how, denominator)

    whole, parts = logp.clone().requires_grad_(), logp.clone().requires_grad_()
    loss(whole, slice(None)).backward()
    for rows in ([0, 1], [2], [3, 4, 5], [6, 7]):
        loss(parts, rows).backward()
    assert (whole.grad - parts.grad).abs().max() < 1e-10
    assert whole.grad.abs().sum() > 0


def test_averaging_micro_batch_token_means_would_be_wrong():
    """P11: 2.0 instead of 1.4; the global denominator gives 1.4."""
    x = double([[1, 1, 1, 1], [3, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    wrong = sum(aggregate(x[i : i + 1], mask[i : i + 1], "token-mean", float(mask[i].sum())) for i in (0, 1)) / 2
    close(wrong, 2.0)
    right = sum(aggregate(x[i : i + 1], mask[i : i + 1], "token-mean", 5.0) for i in (0, 1))
    close(right, 1.4)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_rows_without_sampled_tokens_give_zero_not_nan(how):
    """S4, H10: an empty row adds nothing; an empty batch has loss 0 and gradient 0; empty rows count in N (S5)."""
    nothing = torch.zeros_like(MASK)
    for f in (clipped, plain):
        loss, g = value_and_grad(f, mask=nothing, how=how)
        assert loss == 0
        assert (g == 0).all()
    assert clip_fraction(LP, OLD, nothing) == 0
    assert global_denominator(torch.zeros(0, 4), "token-mean") == 1
    assert global_denominator(nothing, "seq-mean-token-sum") == 2


def test_denominators_and_their_errors():
    """What each aggregation divides by."""
    assert [global_denominator(MASK, how, const(how)) for how in AGGREGATIONS] == [5, 2, 2, 8]
    with pytest.raises(ValueError, match="unknown aggregation"):
        global_denominator(MASK, "mean")
    with pytest.raises(ValueError, match="positive const"):
        global_denominator(MASK, "sum/const")
    with pytest.raises(ValueError, match="does not read const"):
        global_denominator(MASK, "token-mean", 4)
    with pytest.raises(ValueError, match="unknown aggregation"):
        aggregate(LP, MASK, "mean", 1.0)
    with pytest.raises(ValueError, match="must be positive"):
        aggregate(LP, MASK, "token-mean", 0.0)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), how=st.sampled_from(AGGREGATIONS), side=st.sampled_from(["left", "right"]))
def test_row_order_and_padding_do_not_matter(seed, how, side):
    """H11: rows shuffled and padding added on either side, with junk in it."""
    g = torch.Generator().manual_seed(seed)
    shape = (3, 7)
    logp, old, adv = (torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(3))
    mask = torch.rand(shape, generator=g) < 0.6
    denominator = global_denominator(mask, how, const(how))
    loss, grad = value_and_grad(clipped, logp, old=old, adv=adv, mask=mask, how=how)
    order, pad = torch.randperm(3, generator=g), (3, 0) if side == "left" else (0, 3)

    def moved(x, fill):
        return torch.nn.functional.pad(x[order], pad, value=fill)

    wide = value_and_grad(
        clipped,
        moved(logp, NAN),
        old=moved(old, 4.0),
        adv=moved(adv, 5.0),
        mask=moved(mask, False),
        how=how,
        denominator=denominator,
    )
    torch.testing.assert_close(wide, (loss, moved(grad, 0.0)), atol=1e-6, rtol=0)


# --- relations and ratios ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("options", [{}, {"clip_high": 0.28, "dual_clip": 10.0}, {"dual_clip": 3.0}])
def test_at_ratio_one_the_surrogate_has_the_gradient_of_reinforce(how, options):
    """Relation 4.3 for PPO, DAPO and GRPO under the same aggregation."""
    _, surrogate = value_and_grad(clipped, old=LP, how=how, **options)
    _, reinforce = value_and_grad(plain, how=how)
    torch.testing.assert_close(surrogate, reinforce)


def test_before_the_first_step_ratio_is_one_and_nothing_is_clipped():
    """C19, H6: same logits, same temperature; clip fraction 0 and loss -mean A."""
    logits = torch.tensor([[[2.0, 0.0], [0.3, -1.0], [0.0, 0.0]]])
    ids = torch.tensor([[0, 0, 1]])
    mask = torch.tensor([[0, 1, 1]]).bool()
    logp, old = gather_log_probs(logits, ids, 0.5), gather_log_probs(logits.clone(), ids, 0.5)
    assert ((logp - old).exp() - 1).abs().max() < 1e-5
    assert clip_fraction(logp, old, mask) == 0
    close(clipped(logp, old, torch.ones(1, 3), mask), -1.0)


def test_mixed_temperatures_show_as_a_ratio():
    """C19, P21: logits [2, 0]; 1.115 is the sign of temperature .5 on one side only."""
    logits, ids = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]]), torch.tensor([[1, 0]])
    cold, warm = (gather_log_probs(logits, ids, t)[0, 1] for t in (0.5, 1.0))
    assert (cold - warm).exp().item() == pytest.approx(1.115, abs=1e-3)


def test_clip_fraction_counts_sampled_tokens_outside_the_range():
    """Ratios 1.35, 1, .61 and 1, .67 on the golden example; what lies in a masked slot does not count."""
    assert clip_fraction(LP, OLD, MASK) == pytest.approx(3 / 5)
    assert clip_fraction(torch.where(MASK, LP, NAN), OLD, MASK, 0.5, 0.2) == pytest.approx(1 / 5)
    assert clip_fraction(LP, OLD, MASK, 0.35, 0.4) == pytest.approx(1 / 5)
    assert clip_fraction(LP, LP, MASK) == 0


def test_extreme_log_ratios_stay_finite():
    """P24: the log-ratio is clamped to +-20."""
    far = double([[0.0, -500.0]])
    loss, g = value_and_grad(
        clipped, far, old=double([[-500.0, 0.0]]), adv=double([[-1.0, 1.0]]), mask=torch.ones(1, 2)
    )
    assert torch.isfinite(loss)
    assert torch.isfinite(g).all()
    assert torch.isfinite(kl_penalty(far, double([[0.0, 0.0]]), "k3")).all()


def test_no_gradient_flows_into_old_reference_or_advantages():
    """They are constants of the update."""
    old, adv, ref = (x.clone().requires_grad_() for x in (OLD, ADV, REF))
    logp = LP.clone().requires_grad_()
    (clipped(logp, old, adv) + kl_penalty(logp, ref, "k2", MASK).sum()).backward()
    assert old.grad is None
    assert adv.grad is None
    assert ref.grad is None


# --- log-probabilities ------------------------------------------------------------------------------------------------


def test_logits_score_the_next_token():
    """P22: a known distribution over three tokens, different at each position, gives exact log-probabilities."""
    p = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.6, 0.3, 0.1]]])
    ids = torch.tensor([[2, 1, 0]])
    logp = gather_log_probs(p.log(), ids)
    close(logp, [[0.0, math.log(0.3), math.log(0.1)]], atol=1e-6)
    assert logp.dtype == torch.float32
    h = [-sum(q * math.log(q) for q in row) for row in p[0, :2].tolist()]
    close(entropy(p.log()), [[0.0, *h]], atol=1e-6)


def test_a_one_token_answer_trains_the_position_that_predicts_it():
    """C17: three prompt tokens, one sampled token; only logits[2] receive gradient."""
    logits = torch.randn(1, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    ids, mask = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[0, 0, 0, 1]]).bool()
    plain(gather_log_probs(logits, ids), adv=torch.ones(1, 4), mask=mask).backward()
    assert logits.grad.abs().sum(-1)[0].gt(0).tolist() == [False, False, True, False]


def test_gathered_log_probs_sum_to_the_cross_entropy():
    """P22: minus their sum is the mean cross-entropy of the shifted logits times the number of predictions."""
    g = torch.Generator().manual_seed(1)
    logits, ids = torch.randn(2, 6, 11, generator=g), torch.randint(0, 11, (2, 6), generator=g)
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert -gather_log_probs(logits, ids).sum().item() == pytest.approx(10 * expected.item(), abs=1e-4)


def test_temperature_divides_the_logits():
    """P21: log_softmax(logits / .7)."""
    logits, ids = torch.tensor([[[1.0, 2.0, -1.0], [0.0, 0.0, 0.0]]]), torch.tensor([[0, 2]])
    expected = torch.log_softmax(logits[0, 0] / 0.7, -1)
    assert gather_log_probs(logits, ids, 0.7)[0, 1].item() == pytest.approx(expected[2].item(), abs=1e-6)
    assert entropy(logits, 0.7)[0, 1].item() == pytest.approx(-(expected.exp() * expected).sum().item(), abs=1e-6)
    for bad in (0.0, -1.0):
        with pytest.raises(ValueError, match="temperature"):
            gather_log_probs(logits, ids, bad)


def test_log_probs_are_computed_in_float32_and_stay_finite():
    """P24: logit 200 against 0 gives -200, not -inf; bfloat16 logits are lifted first."""
    logits, ids = torch.tensor([[[200.0, 0.0], [0.0, 0.0]]]), torch.tensor([[0, 1]])
    assert gather_log_probs(logits, ids)[0, 1] == -200
    half = torch.randn(1, 3, 7, generator=torch.Generator().manual_seed(2)).bfloat16()
    ids = torch.tensor([[0, 3, 5]])
    assert torch.equal(gather_log_probs(half, ids), gather_log_probs(half.float(), ids))
    assert entropy(half).dtype == torch.float32


def test_entropy_bounds_and_forbidden_tokens():
    """ln V for uniform logits; a logit of -inf contributes 0 and its gradient is finite."""
    logits = torch.zeros(1, 2, 4)
    assert entropy(logits)[0, 1].item() == pytest.approx(math.log(4))
    logits[0, 0, 3] = -math.inf
    logits.requires_grad_()
    h = entropy(logits)
    assert h[0, 1].item() == pytest.approx(math.log(3))
    h.sum().backward()
    assert torch.isfinite(logits.grad).all()
    with pytest.raises(ValueError, match="shape"):
        entropy(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="do not fit"):
        gather_log_probs(torch.zeros(1, 2, 3), torch.zeros(1, 3, dtype=torch.long))
