"""Filters of groups: golden cases, and what must hold for any spreads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_algos.filters import (
    FILTERS,
    group_spread,
    keep_rows,
    min_p,
    percentile,
    top_k,
    top_p_linear,
    top_p_softmax,
)

torch.set_num_threads(1)

LADDER = torch.tensor([5, 4, 3, 2, 1, 0, 0, 0], dtype=torch.float64)
STARPO_S = [
    (1, 1, 1, 1),
    (0, 1, 0, 1),
    (0, 0, 0, 0),
    (10.9, -0.5, -0.5, 10.9),
    (0.1, 0.2, 0.1, 0.2),
    (0, 0, 0, 1),
    (2, 2, 2, 2),
    (-0.5, -0.4, -0.5, -0.5),
]


def flat(groups) -> tuple[torch.Tensor, torch.Tensor]:
    returns = torch.tensor([x for g in groups for x in g], dtype=torch.float64)
    return returns, torch.tensor([i for i, g in enumerate(groups) for _ in g])


def kept(groups, *args, **more) -> list[int]:
    returns, group_id = flat(groups)
    rows = keep_rows(returns, group_id, *args, **more)
    for g in group_id.unique():
        assert len(rows[group_id == g].unique()) == 1  # whole groups only
    return group_id[rows].unique().tolist()


def test_the_starpo_s_filter_equals_its_golden_vector():
    groups, spread = group_spread(*flat(STARPO_S))
    assert groups.tolist() == list(range(8))
    expected = torch.tensor([0, 0.577350, 0, 6.581793, 0.057735, 0.5, 0, 0.05], dtype=torch.float64)
    torch.testing.assert_close(spread, expected, atol=1e-6, rtol=0)
    assert (spread[[0, 2, 6]] == 0).all()
    assert kept(STARPO_S, "top-k", 0.25) == [1, 3]


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.01, 0.001, 0.0001])
def test_linear_top_p_with_the_absolute_tolerance_of_the_public_code(scale):
    """The goldens of the two tolerances: the absolute one swamps small returns, the relative one does not."""
    absolute = {0.001: 1, 0.0001: 0}.get(scale, 4)
    assert int(top_p_linear(LADDER * scale, 0.9, eps=0.01, relative=False).sum()) == absolute
    assert int(top_p_linear(LADDER * scale, 0.9, eps=0.0).sum()) == 4
    assert top_p_linear(LADDER * scale, 0.9).tolist() == [True] * 4 + [False] * 4


@pytest.mark.parametrize(("spread", "n"), [([9, 5, 1], 2), ([0.5] * 8, 8), ([10, 0.1, 0.1, 0.1], 1), ([0.0] * 4, 0)])
def test_linear_top_p_goldens(spread, n):
    spread = torch.tensor(spread, dtype=torch.float64)
    assert int(top_p_linear(spread, 0.9).sum()) == int(top_p_linear(spread, 0.9, eps=0.01, relative=False).sum()) == n


def test_softmax_top_p_depends_on_the_scale():
    assert top_p_softmax(LADDER, 0.9).tolist() == [True] * 3 + [False] * 5
    for scale in (0.1, 0.01):
        assert top_p_softmax(LADDER * scale, 0.9).all()
    # 128 groups, a quarter of them at the largest spread that 16 returns of 0 or 1 can have.
    spread = torch.zeros(128, dtype=torch.float64)
    spread[:32] = 0.516
    assert int(top_p_softmax(spread, 0.9).sum()) == 114
    assert int(top_p_linear(spread, 0.9).sum()) == 29


def test_top_k_rounds_down_but_keeps_one_and_prefers_low_indices():
    assert int(top_k(LADDER, 0.25).sum()) == 2
    assert int(top_k(torch.rand(3), 0.25).sum()) == 1
    assert int(top_k(torch.rand(100), 0.29).sum()) == 29  # .29 * 100 is 28.999999999999996
    assert top_k(torch.tensor([1.0, 2.0, 2.0, 2.0, 2.0]), 0.4).tolist() == [False, True, True, False, False]
    assert top_k(torch.zeros(8), 0.25).tolist() == [True, True] + [False] * 6
    assert top_k(torch.zeros(0), 0.25).tolist() == []


def test_min_p_and_percentile():
    assert min_p(LADDER, 0.5).tolist() == [True] * 3 + [False] * 5
    assert not min_p(torch.zeros(4), 0.5).any()
    assert percentile(torch.arange(5.0).double(), 0.5).tolist() == [False, False, True, True, True]
    assert percentile(torch.arange(5.0).double(), 0.25, 0.75).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("how", FILTERS)
def test_equal_returns_are_dropped_when_asked(how):
    """C20, P8: rounding is no spread; all equal leaves nothing, one mixed group leaves that one."""
    residue = (0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, 0.6)
    assert np.std(residue) > 0
    equal = [(1, 1, 1), residue, (0.3,) * 3, (5,)]
    value = None if how == "none" else 0.5
    assert kept(equal * 2, how, value, drop_equal=True) == []
    assert kept([*equal, (0, 1, 1, 1), *equal], how, value, drop_equal=True) == [4]


def test_top_k_counts_its_share_of_all_groups():
    groups = [(0, i) for i in (0, 0, 0, 0, 1, 2, 3, 4)]
    assert kept(groups, "top-k", 0.5) == kept(groups, "top-k", 0.5, drop_equal=True) == [4, 5, 6, 7]
    assert kept(groups, "top-k", 1.0, drop_equal=True) == [4, 5, 6, 7]
    assert kept(groups, "none") == list(range(8))


def test_interleaved_rows_and_any_ids():
    returns, group_id = flat(STARPO_S)
    order = torch.randperm(len(returns), generator=torch.Generator().manual_seed(0))
    rows = keep_rows(returns, group_id, "top-k", 0.25)
    assert torch.equal(keep_rows(returns[order], group_id[order] * 7 + 3, "top-k", 0.25), rows[order])


def test_bad_input_is_refused():
    returns, group_id = flat(STARPO_S)
    with pytest.raises(ValueError, match="unknown filter 'top_k'"):
        keep_rows(returns, group_id, "top_k", 0.5)
    with pytest.raises(ValueError, match="needs a value"):
        keep_rows(returns, group_id, "top-k")
    with pytest.raises(ValueError, match="row 2 is not finite"):
        keep_rows(torch.tensor([0.0, 1.0, float("nan")]), torch.zeros(3).long())
    with pytest.raises(ValueError, match="two vectors"):
        group_spread(returns, group_id[:-1])


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), min_size=1, max_size=12),
    st.sampled_from([0.25, 0.5, 0.9]),
    st.integers(0, 99),
)
def test_what_holds_for_any_spreads(values, p, seed):
    """Invariance to scale where claimed, equivariance to the order up to ties, and the promised share of the sum."""
    spread = torch.tensor(values, dtype=torch.float64)
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    for rule in (top_k, top_p_linear, min_p, percentile, top_p_softmax):
        mine = rule(spread, p)
        if rule is not top_p_softmax:
            assert torch.equal(rule(spread * 8, p), mine)  # a power of 2 leaves rounding as it is
        assert rule(spread[order], p).sum() == mine.sum()
        assert sorted(spread[order][rule(spread[order], p)].tolist()) == sorted(spread[mine].tolist())
        if mine.any() and not mine.all() and rule is not percentile:
            assert spread[mine].min() >= spread[~mine].max()
    linear = top_p_linear(spread, p)
    assert spread[linear].sum() >= (p - 0.001) * spread.sum() - 1e-12
    assert (spread[linear] > 0).all()
