"""Seeds: which level a seed picks, and the seeds of later episodes."""

import numpy as np
import pytest

from ragen_envs import seeding


def test_known_values() -> None:
    """SplitMix64 from state 0 starts with e220a8397b1dcdaf (its authors' reference)."""
    assert seeding.pick(0, 1 << 32) == 0xE220A839
    assert seeding.pick(1, 1 << 32) == 0x910A2DEC  # 910a2dec89025cc1
    assert seeding.pick(1 << 80, 10) == 8  # only the lower 64 bits count


def test_picks_are_uniform_over_consecutive_seeds() -> None:
    counts = np.bincount([seeding.pick(seed, 7) for seed in range(70_000)], minlength=7)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 22.5  # chi-squared, 6 degrees of freedom: 0.1 %


def test_the_next_seed_follows_from_the_generator() -> None:
    a, b = np.random.default_rng(3), np.random.default_rng(3)
    assert [seeding.next_seed(a) for _ in range(5)] == [int(b.bit_generator.random_raw()) >> 33 for _ in range(5)]


def test_streams_do_not_touch_each_other() -> None:
    level, luck = seeding.stream(5, seeding.LEVEL), seeding.stream(5, seeding.LUCK)
    assert level.random() != luck.random()
    with pytest.raises(ValueError, match="non-negative"):
        seeding.stream(-1, seeding.LEVEL)
