from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap

from harness import stats


@pytest.mark.parametrize(("k", "n"), [(0, 16), (16, 16), (7, 16), (128, 256), (1, 1)])
def test_wilson_equals_scipy(k: int, n: int) -> None:
    expected = binomtest(k, n).proportion_ci(0.95, method="wilson")
    assert stats.wilson(k, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_rejects_nonsense() -> None:
    for k, n in ((1, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="successes"):
            stats.wilson(k, n)


def each(n: int) -> np.ndarray:
    """Every episode on a level of its own."""
    return np.arange(n)


def test_one_seed_is_wilson_without_the_missing() -> None:
    found = stats.success_rate(np.array([[1.0, 0.0, math.nan, 1.0]]), each(4))
    assert found is not None
    assert found.mean == pytest.approx(2 / 3)
    assert (found.low, found.high) == stats.wilson(2, 3)
    assert stats.success_rate(np.array([[math.nan]]), each(1)) is None


def test_paired_bootstrap_over_levels_equals_scipy() -> None:
    rng = np.random.default_rng(1)
    before = (rng.random(200) < 0.3).astype(float)
    after = np.maximum(before, rng.random(200) < 0.2)
    found = stats.paired_gain(after[None, :], before, each(len(before)))
    expected = bootstrap(((after - before),), np.mean, method="percentile", n_resamples=4000, rng=2).confidence_interval
    assert found is not None
    assert found.mean == pytest.approx((after - before).mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_pairing_narrows_the_interval() -> None:
    rng = np.random.default_rng(1)
    before = (rng.random(256) < 0.5).astype(float)
    after = np.where(np.arange(256) < 20, 1.0, before)
    found = stats.paired_gain(after[None, :], before, each(len(before)))
    assert found is not None
    assert found.low > 0


def test_seeds_that_disagree_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    agree = np.tile((rng.random(200) < 0.5).astype(float), (4, 1))
    differ = np.repeat(np.array([[0.0], [0.0], [1.0], [1.0]]), 200, axis=1)
    a, b = stats.success_rate(agree, each(200)), stats.success_rate(differ, each(200))
    assert a is not None
    assert b is not None
    assert b.high - b.low > 3 * (a.high - a.low)
    again = stats.success_rate(differ, each(200))
    assert again == b
    assert "seeds" in b.method


def test_the_crossed_bootstrap_ignores_missing_scores() -> None:
    scores = np.array([[1.0, 0.0, math.nan], [1.0, 0.0, 1.0]])
    found = stats.success_rate(scores, each(3))
    assert found is not None
    assert found.mean == pytest.approx(3 / 5)
    assert 0.0 <= found.low <= 3 / 5 <= found.high <= 1.0


def test_repeats_of_a_level_are_not_independent() -> None:
    """Ten levels played twenty times each say no more than ten levels played once."""
    once = np.array([[1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0]])
    often, labels = np.repeat(once, 20, axis=1), np.repeat(each(10), 20)
    found = stats.success_rate(often, labels)
    naive = stats.success_rate(often, each(200))
    expected = bootstrap((once[0],), np.mean, method="percentile", n_resamples=4000, rng=2).confidence_interval
    assert found is not None
    assert naive is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.051)
    assert found.high - found.low > 3 * (naive.high - naive.low)


def test_a_perfect_rate_still_has_an_interval() -> None:
    """A bootstrap of equal scores has no width; the Wilson interval counts levels, not episodes."""
    found = stats.success_rate(np.ones((3, 40)), np.repeat(each(4), 10))
    assert found is not None
    assert (found.low, found.high) == stats.wilson(4, 4)


def test_a_gain_without_spread_still_has_an_interval() -> None:
    """All differences equal: what unseen levels may hold is as large as a Wilson interval says, by 1 either way."""
    levels, width = np.repeat(each(4), 10), 1 - stats.wilson(4, 4)[0]
    for gain in (0.0, 1.0):
        found = stats.paired_gain(np.full((3, 40), gain), np.zeros(40), levels)
        assert found is not None
        assert (found.mean, found.low, found.high) == (gain, gain - width, min(1.0, gain + width))


def test_equal_levels_still_have_an_interval() -> None:
    """One level, played often: nothing is known about others, whatever the rate on it is."""
    found = stats.success_rate(np.array([[1.0, 0.0, 1.0, 0.0]]), np.zeros(4))
    assert found is not None
    assert (found.low, found.high) == stats.wilson(0.5, 1)


def coverage(sd: float, simulations: int) -> float:
    """How often the interval holds the true rate: 3 seeds whose rates differ by ``sd``, 256 levels."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(simulations):
        chance = np.clip(rng.beta(2, 2, 256) + rng.normal(0, sd, (3, 1)), 0, 1)
        found = stats.success_rate((rng.random((3, 256)) < chance).astype(float), each(256))
        assert found is not None
        hits += found.low <= 0.5 <= found.high
    return hits / simulations


@pytest.mark.parametrize(("sd", "documented"), [(0.0, 0.99), (0.02, 0.98), (0.05, 0.94), (0.1, 0.85)])
def test_coverage_is_as_documented(sd: float, documented: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "DRAWS", 200)
    assert abs(coverage(sd, 200) - documented) < 0.07


def test_normalised() -> None:
    assert stats.normalised(0.6, 0.2, 1.0) == pytest.approx(0.5)
    assert math.isnan(stats.normalised(0.6, 0.5, 0.5))
