"""Credit functions against hand-computed numbers, known pitfalls (P), cases (C), house rules (H) and relations."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_algos.advantages import (
    broadcast_to_tokens,
    group_advantages,
    move_rewards_to_sampled,
    returns_to_go,
    rewards_at_end,
    singleton_groups,
    token_gae,
    whiten,
)

torch.set_num_threads(1)

ATOL = 1e-6
MASK = torch.tensor([[1, 1, 0, 0, 1, 1]]).bool()
VALUES = torch.tensor([[0.2, 0.3, 0.9, 0.9, 0.5, 0.6]], dtype=torch.float64)
LAST = torch.tensor([[0, 0, 0, 0, 0, 1.0]], dtype=torch.float64)
END = torch.zeros(1, dtype=torch.float64)


def close(actual: torch.Tensor, expected: object, atol: float = ATOL) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), atol=atol, rtol=0)


def one_group(returns: list[float], **options: object) -> torch.Tensor:
    return group_advantages(torch.tensor(returns), torch.zeros(len(returns), dtype=torch.long), **options)  # type: ignore[arg-type]


# --- group statistics -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returns", "options", "expected"),
    [
        ([1, 0, 0, 0], {"scale": "group"}, [1.499997, -0.499999, -0.499999, -0.499999]),
        ([1, 0, 0, 0], {}, [0.75, -0.25, -0.25, -0.25]),
        ([1, 0, 0, 0], {"baseline": "leave-one-out"}, [1, -1 / 3, -1 / 3, -1 / 3]),
        ([2, 0, 1, -0.5], {"scale": "group"}, [1.240215, -0.563734, 0.338240, -1.014721]),
        ([2, 0, 1, -0.5], {"baseline": "leave-one-out"}, [1.833333, -0.833333, 0.5, -1.5]),
        ([2, 0, 1, -0.5], {"baseline": "none"}, [2, 0, 1, -0.5]),
        (
            [0, 0, 0, 1],
            {"scale": "group"},
            [-0.499999, -0.499999, -0.499999, 1.499997],
        ),  # not 1.732
    ],
)
def test_group_advantages_equal_the_golden_vectors(returns, options, expected):
    """Golden GRPO, Dr. GRPO and RLOO vectors; P10 (Bessel sd), C18, H4."""
    close(one_group([float(r) for r in returns], **options), [float(e) for e in expected])


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.35])
@pytest.mark.parametrize("scale", ["none", "batch", "group"])
@pytest.mark.parametrize("baseline", ["mean", "leave-one-out"])
def test_equal_float32_returns_give_exactly_zero(reward, scale, baseline):
    """P7, C18: eight copies in float32, whose sd is not exactly 0."""
    assert (one_group([reward] * 8, scale=scale, baseline=baseline) == 0).all()


@pytest.mark.parametrize("scale", ["none", "batch", "group"])
def test_a_rounding_difference_is_no_signal(scale):
    """C18, P8: [.35] * 7 + [.35 + 1e-7] in float32, and sums in another order."""
    assert (one_group([0.35] * 7 + [0.35 + 1e-7], scale=scale, eps=1e-8) == 0).all()
    assert (one_group([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, 0.6], scale=scale) == 0).all()


@pytest.mark.parametrize("scale", ["none", "batch", "group"])
def test_a_group_of_one_gives_zero_and_one_warning(scale):
    """P9, C18: singletons carry no group-relative signal; they are counted, warned about once, and never NaN."""
    group = torch.tensor([7, 3, 3, 9])
    with pytest.warns(UserWarning, match="2 group") as caught:
        advantages = group_advantages(torch.tensor([5.0, 1.0, 0.0, -2.0]), group, scale=scale)
    assert len(caught) == 1
    assert advantages[0] == 0
    assert advantages[3] == 0
    assert advantages[1] > 0
    assert singleton_groups(group) == 2


def test_without_baseline_a_group_of_one_keeps_its_return():
    """No group statistic is used, so there is nothing to warn about."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(group_advantages(torch.tensor([5.0, 5.0]), torch.tensor([0, 1]), baseline="none"), [5.0, 5.0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_return_that_is_not_finite_raises_and_names_the_row(bad):
    """C18."""
    with pytest.raises(ValueError, match="row 2"):
        one_group([0.0, 1.0, bad, 0.0])


def test_interleaved_groups_equal_contiguous_groups():
    """C18: order g0,g1,g0,g1 against g0,g0,g1,g1."""
    returns, group = torch.tensor([1.0, 5.0, 0.0, 2.0]), torch.tensor([0, 1, 0, 1])
    order = torch.tensor([0, 2, 1, 3])
    for scale in ("none", "batch", "group"):
        mixed = group_advantages(returns, group, scale=scale)
        torch.testing.assert_close(mixed[order], group_advantages(returns[order], group[order], scale=scale))


def test_batch_scale_divides_by_one_constant():
    """The Bessel sd of the centred returns of the whole batch, zeros of flat groups included."""
    returns = torch.tensor([1.0, 0, 0, 0, 3, 1, 2, 2, 4, 4, 4, 4])
    group = torch.arange(3).repeat_interleave(4)
    centred = group_advantages(returns, group)
    sd = (centred.square().sum() / 11).sqrt()
    torch.testing.assert_close(group_advantages(returns, group, scale="batch"), centred / sd)
    loo = group_advantages(returns, group, scale="batch", baseline="leave-one-out")
    torch.testing.assert_close(loo, centred * 4 / 3 / sd)
    raw = group_advantages(returns, group, scale="batch", baseline="none")
    torch.testing.assert_close(raw, returns.double() / returns.double().std())


def test_per_group_sd_inflates_small_differences_and_batch_scale_does_not():
    """Why the batch constant is the default: a group that fails with action costs only, beside one that succeeds."""
    returns = torch.tensor([-0.5, -0.6, -0.5, -0.6, 10.0, -0.5, 10.0, -0.5])
    group = torch.arange(2).repeat_interleave(4)
    by_group = group_advantages(returns, group, scale="group")
    by_batch = group_advantages(returns, group, scale="batch")
    assert by_group[:4].abs().min() > 0.8
    assert by_batch[:4].abs().max() < 0.02
    assert by_batch[4:].abs().min() > 1


@settings(max_examples=50, deadline=None)
@given(
    returns=st.lists(st.integers(-20, 20), min_size=4, max_size=12),
    a=st.floats(0.5, 20),
    b=st.floats(-10, 10),
    seed=st.integers(0, 1000),
)
def test_grpo_ignores_an_affine_change_of_rewards_and_the_row_order(returns, a, b, seed):
    """Relation 4.3 (R -> aR + b) and H11 (row order), per-group and per-batch scale."""
    r = torch.tensor(returns, dtype=torch.float64) / 2
    group = torch.arange(len(r)) % 2
    order = torch.randperm(len(r), generator=torch.Generator().manual_seed(seed))
    for scale in ("group", "batch"):
        plain = group_advantages(r, group, scale=scale)
        torch.testing.assert_close(group_advantages(a * r + b, group, scale=scale), plain, atol=1e-4, rtol=0)
        torch.testing.assert_close(group_advantages(r[order], group[order], scale=scale), plain[order])


def test_rloo_is_a_multiple_of_the_centred_return():
    """Relation 4.3: K/(K-1) times the Dr. GRPO advantage, and R minus the mean of the others."""
    r = torch.tensor([2.0, 0.0, 1.0, -0.5, 3.0], dtype=torch.float64)
    group = torch.zeros(5, dtype=torch.long)
    loo = group_advantages(r, group, baseline="leave-one-out")
    torch.testing.assert_close(loo, 5 / 4 * group_advantages(r, group))
    torch.testing.assert_close(loo, r - (r.sum() - r) / 4)


def test_group_advantages_are_detached_float64_and_reject_unknown_options():
    """H4."""
    returns = torch.tensor([1.0, 0.0], requires_grad=True)
    out = group_advantages(returns, torch.tensor([0, 0]), baseline="none")
    assert out.dtype == torch.float64
    assert not out.requires_grad
    with pytest.raises(ValueError, match="unknown scale"):
        one_group([1.0, 0.0], scale="std")
    with pytest.raises(ValueError, match="unknown baseline"):
        one_group([1.0, 0.0], baseline="loo")
    with pytest.raises(ValueError, match="two vectors"):
        group_advantages(torch.zeros(2), torch.zeros(3))
    assert group_advantages(torch.zeros(0), torch.zeros(0, dtype=torch.long), scale="batch").shape == (0,)


# --- GAE --------------------------------------------------------------------------------------------------------------


def gae(rewards=LAST, values=VALUES, mask=MASK, *, gamma=1.0, lam=0.95, bootstrap=END):
    return token_gae(rewards, values, mask, gamma=gamma, lam=lam, bootstrap=bootstrap)


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [
        (0.99, 0.95, [0.696308, 0.637223, 0.4702, 0.4]),
        (1.0, 0.95, [0.7232, 0.656, 0.48, 0.4]),
        (1.0, 1.0, [0.8, 0.7, 0.5, 0.4]),
    ],
)
def test_gae_skips_observations(gamma, lam, expected):
    """P2, H3 and the GAE goldens."""
    advantages, returns = gae(gamma=gamma, lam=lam)
    close(advantages[MASK], expected)
    close(returns[MASK], [e + v for e, v in zip(expected, [0.2, 0.3, 0.5, 0.6], strict=True)])
    assert (advantages[~MASK] == 0).all()
    assert (returns[~MASK] == 0).all()


def test_whitened_gae_equals_the_golden_vector():
    """Golden: gamma 1, lam .95, then whitened over the sampled tokens."""
    close(whiten(gae()[0], MASK)[MASK], [1.053987, 0.606841, -0.564256, -1.096572])


def test_truncation_continues_with_the_value_after_the_last_token():
    """P19."""
    advantages, _ = gae(torch.zeros_like(LAST), gamma=0.99, bootstrap=torch.tensor([0.7]))
    close(advantages[MASK], [0.440912, 0.365669, 0.181466, 0.093])


@pytest.mark.parametrize("junk", [1e6, -1e6, float("nan"), float("inf")])
def test_values_on_observations_and_pads_are_not_read(junk):
    """P4, C16."""
    torch.testing.assert_close(gae(values=torch.where(MASK, VALUES, junk)), gae())


def test_a_reward_on_an_observation_raises():
    """P3, H6: such a reward would be lost."""
    reward = torch.tensor([[0, 0, 0, 1.0, 0, 0]])
    for call in (lambda: gae(reward), lambda: returns_to_go(reward, MASK)):
        with pytest.raises(ValueError, match=r"row 0 has reward 1\.0 on token 3"):
            call()


def test_a_trailing_observation_changes_nothing():
    """P3: the episode's advantages are the same with an observation appended."""
    wide = torch.nn.functional.pad
    advantages, returns = gae(wide(LAST, (0, 2)), wide(VALUES, (0, 2), value=9.0), wide(MASK, (0, 2)))
    torch.testing.assert_close((advantages[:, :6], returns[:, :6]), gae())


def test_a_reward_on_a_trailing_observation_moves_to_the_last_sampled_token():
    """C16: returns [1.5, 3], whatever the critic says about the observation."""
    mask = torch.tensor([[1, 1, 0]]).bool()
    rewards = move_rewards_to_sampled(torch.tensor([[0.0, 0.0, 3.0]]), mask)
    close(rewards, [[0.0, 3.0, 0.0]])
    for junk in (9.0, -1e6, float("nan")):
        values = torch.tensor([[0.0, 0.0, junk]])
        advantages, returns = gae(rewards, values, mask, gamma=0.5, lam=1.0)
        close(returns, [[1.5, 3.0, 0.0]])
        assert advantages[0, 2] == 0


def test_moved_rewards_keep_their_sum_and_need_a_sampled_token_before_them():
    """C16: rewards add up on one token; a reward before the first sampled token has no place."""
    mask = torch.tensor([[0, 1, 0, 0, 1, 0]]).bool()
    moved = move_rewards_to_sampled(torch.tensor([[0, 1.0, 2, 3, 4, 5]]), mask)
    close(moved, [[0.0, 6.0, 0.0, 0.0, 9.0, 0.0]])
    with pytest.raises(ValueError, match="row 0"):
        move_rewards_to_sampled(torch.tensor([[1.0, 0, 0, 0, 0, 0]]), mask)


def test_a_truncated_row_never_continues_into_the_next_row():
    """C4, scenario 1: r=0, V(s)=2, V(next)=2 gives 0; the next episode's first value of 50 would give 48."""
    mask = torch.tensor([[0, 1], [0, 1]]).bool()
    values = torch.tensor([[0.0, 2.0], [0.0, 50.0]])
    advantages, _ = gae(torch.zeros(2, 2), values, mask, lam=1.0, bootstrap=torch.tensor([2.0, 0.0]))
    assert advantages[0, 1] == 0


def test_gae_without_values_is_the_return_to_go():
    """Relation 4.3: gamma = lam = 1, V = 0."""
    rewards = torch.tensor([[0, 0.5, 0, 0, -0.1, 1]])
    advantages, returns = gae(rewards, torch.zeros(1, 6), lam=1.0)
    torch.testing.assert_close(advantages, returns_to_go(rewards, MASK))
    torch.testing.assert_close(returns, advantages)


def test_gae_rejects_bad_shapes_and_discounts():
    """Errors name what is wrong."""
    with pytest.raises(ValueError, match="one shape"):
        gae(values=VALUES[:, :3])
    with pytest.raises(ValueError, match="bootstrap must have shape"):
        gae(bootstrap=torch.zeros(2))
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        gae(gamma=1.5)


def plain_gae(rewards, values, gamma, lam, bootstrap):
    """Textbook recursion on a list without gaps."""
    result, next_value, advantage = [], bootstrap, 0.0
    for r, v in zip(reversed(rewards), reversed(values), strict=True):
        advantage = r + gamma * next_value - v + gamma * lam * advantage
        next_value = v
        result.append(advantage)
    return result[::-1]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), gamma=st.floats(0.5, 1), lam=st.floats(0, 1))
def test_gae_equals_the_textbook_recursion_on_the_compressed_row(seed, gamma, lam):
    """H3, H11: any pattern of observations and pads, left or right; rows in any order; rows without tokens."""
    g = torch.Generator().manual_seed(seed)
    n, width = 4, 9
    mask = torch.rand(n, width, generator=g) < 0.5
    mask[3] = False
    rewards = torch.where(mask, torch.randn(n, width, generator=g, dtype=torch.float64), 0.0)
    values = torch.randn(n, width, generator=g, dtype=torch.float64)
    bootstrap = torch.randn(n, generator=g, dtype=torch.float64)
    advantages, returns = token_gae(rewards, values, mask, gamma=gamma, lam=lam, bootstrap=bootstrap)
    for i in range(n):
        expected = plain_gae(rewards[i][mask[i]].tolist(), values[i][mask[i]].tolist(), gamma, lam, bootstrap[i].item())
        close(advantages[i][mask[i]], expected, atol=1e-10)
    torch.testing.assert_close(returns, torch.where(mask, advantages + values, 0.0))
    order = torch.randperm(n, generator=g)
    shuffled = token_gae(rewards[order], values[order], mask[order], gamma=gamma, lam=lam, bootstrap=bootstrap[order])
    torch.testing.assert_close(shuffled, (advantages[order], returns[order]))


# --- returns to go, whitening, broadcasting ---------------------------------------------------------------------------


def test_the_return_to_go_is_carried_through_observations():
    """P1: 1 on all four sampled tokens, not only on those of the last turn."""
    close(returns_to_go(LAST, MASK)[MASK], [1.0, 1.0, 1.0, 1.0])


def test_the_discount_counts_from_the_end():
    """P25: T=3, R=1, gamma .95."""
    mask = torch.ones(1, 3).bool()
    close(returns_to_go(torch.tensor([[0, 0, 1.0]]), mask, 0.95), [[0.9025, 0.95, 1.0]])


def test_reinforce_plus_plus_goldens():
    """Golden: whitened return-to-go over two rows, and with a k1 penalty of beta .1 in the reward."""
    mask = torch.cat([MASK, torch.tensor([[1, 1, 1, 0, 0, 0]]).bool()])
    rewards = torch.cat([LAST, torch.zeros_like(LAST)])
    white = whiten(returns_to_go(rewards, mask), mask)
    close(white[0][mask[0]], [0.801784] * 4)
    close(white[1][mask[1]], [-1.069045] * 3)
    k1 = torch.tensor([[0.2, -0.1, 0, 0, 0.3, 0.05]])
    close(returns_to_go(LAST - 0.1 * k1, MASK)[MASK], [0.955, 0.975, 0.965, 0.995])


@pytest.mark.parametrize("pads", [0, 2, 50])
def test_whitening_reads_valid_entries_only(pads):
    """P6: the golden, whatever the padding holds."""
    x = torch.tensor([[2.0, 0.0, 3.0] + [float("nan")] * pads])
    mask = torch.tensor([[1, 1, 1] + [0] * pads]).bool()
    close(whiten(x, mask), [[0.218218, -1.091089, 0.872872] + [0.0] * pads])


def test_whitening_equal_entries_gives_exactly_zero():
    """P7: the residue of sums in another order is no signal, though divided by 1e-4 only."""
    x = torch.tensor([[0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, 0.6, 9.0]], dtype=torch.float64)
    assert (whiten(x, torch.tensor([[1, 1, 1, 0]]).bool()) == 0).all()


def test_whitening_one_or_no_entry_gives_zero():
    """P6: no exception, no NaN."""
    x = torch.tensor([[5.0, 7.0]])
    close(whiten(x, torch.tensor([[True, False]])), [[0.0, 0.0]])
    close(whiten(x, torch.zeros(1, 2).bool()), [[0.0, 0.0]])
    with pytest.raises(ValueError, match="shape"):
        whiten(x, torch.ones(2, 1))


def test_broadcasting_and_the_final_reward_touch_sampled_tokens_only():
    """One number per row onto its sampled tokens, or onto the last of them."""
    mask = torch.tensor([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0]]).bool()
    close(broadcast_to_tokens(torch.tensor([2.0, 3.0]), mask), [[0.0, 2.0, 0.0, 2.0, 0.0], [0.0] * 5])
    close(rewards_at_end(torch.tensor([2.0, 0.0]), mask), [[0.0, 0.0, 0.0, 2.0, 0.0], [0.0] * 5])
    with pytest.raises(ValueError, match="row 1"):
        rewards_at_end(torch.tensor([2.0, 3.0]), mask)
    with pytest.raises(ValueError, match="shape"):
        broadcast_to_tokens(torch.zeros(3), mask)
