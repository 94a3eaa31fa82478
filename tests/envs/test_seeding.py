"""Seeds: which level a seed picks, and the seeds of later episodes."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from ragen_envs import seeding
from ragen_envs.seeding import LEVEL, LUCK, LuckAhead, Uniforms, next_seed, seed_words, stream


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


def test_words_of_many_seeds_are_those_of_numpy() -> None:
    seeds = np.append(np.random.default_rng(2).integers(2**32, size=200), [0, 1, 2**31 - 1, 2**32 - 1]).astype(
        np.uint32
    )
    for which in (LEVEL, LUCK, 9):
        wanted = [np.random.SeedSequence(int(s), spawn_key=(which,)).generate_state(4, np.uint64) for s in seeds]
        assert np.array_equal(seed_words(seeds, which), wanted)


@pytest.mark.parametrize("source", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_luck_ahead_is_the_luck_of_the_seed(source: Any) -> None:
    """Over several batches, with other draws in between, and for seeds that were not foreseen; nothing is used up."""
    np_random, ahead = np.random.Generator(source(5)), LuckAhead()
    for i in range(300):
        seed = 10**9 + i if i % 50 == 49 else next_seed(np_random)
        before = pickle.dumps(np_random)
        luck, wanted = ahead.stream(seed, np_random), stream(seed, LUCK)
        assert pickle.dumps(np_random) == before
        assert luck.bit_generator.state == wanted.bit_generator.state
        assert pickle.loads(pickle.dumps(luck)).random() == luck.random() == wanted.random()
        if i % 40 == 0:
            np_random.random()


def test_numbers_ahead_are_those_of_the_stream() -> None:
    """Over batches of all sizes, with seeds that were not foreseen; copies draw from lists of their own."""
    np_random, ahead = np.random.default_rng(6), LuckAhead(uniforms=5)
    sizes = set()
    for i in range(4000):
        seed = 10**9 + i if 3000 < i < 3010 else next_seed(np_random)
        luck, wanted = ahead.stream(seed, np_random), stream(seed, LUCK)
        sizes.add(ahead._batch)
        assert isinstance(luck, Uniforms)
        assert luck.generator(seed, 5).bit_generator.state == wanted.bit_generator.state
        numbers = wanted.random(5).tolist()
        assert luck.random() == numbers[0]
        one, other = pickle.loads(pickle.dumps(luck)), copy.deepcopy(luck)
        for each in (one, other, luck):
            assert [each.random() for _ in range(4)] == numbers[1:]
            assert each.generator(seed, 5).bit_generator.state == wanted.bit_generator.state
        with pytest.raises(IndexError):
            luck.random()
    assert sizes == {64, 128, 256, 512, 1024}
