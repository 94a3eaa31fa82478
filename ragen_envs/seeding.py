"""Where all luck comes from: seeds, and the two streams that grow out of each.

An episode has a level seed and a luck seed (usually equal). :func:`stream` turns each into a generator of its own, so
that one never disturbs the other; :func:`pick` chooses from a list without the cost of a generator. The batched
environments compute the same numbers in compiled code, so nothing here may change without new versions of all ids.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

LEVEL, LUCK = 0, 1
"""Stream numbers."""

_WORD = (1 << 64) - 1


def stream(seed: int, which: int) -> np.random.Generator:
    """The generator of a seed for levels (``LEVEL``) or for what happens in play (``LUCK``)."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(which,)))


def next_seed(np_random: np.random.Generator) -> int:
    """The seed (31 bits) of the next episode of an environment that is reset without one."""
    return int(np_random.bit_generator.random_raw() >> 33)  # type: ignore[attr-defined]


def pick(seed: int, n: int) -> int:
    """An index below ``n`` (at most 2**32), uniform over seeds, from ``seed`` (any whole number of at least 0) alone.

    The upper 32 bits of one step of SplitMix64 (Steele, Lea and Flood 2014), scaled to ``n``.
    """
    z = (seed + 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return (((z ^ (z >> 31)) >> 32) * n) >> 32


class LuckAhead:
    """:func:`stream` of ``LUCK`` for seeds that come from :func:`next_seed`, ten times as fast.

    ``SeedSequence`` hashes one seed at a time, which costs more than a short episode. The seeds of the next episodes
    are the next words of ``np_random``, so they can be looked up in advance and hashed together, as arrays. What is
    kept is a cache: the numbers are those of ``stream``, whatever happens to ``np_random`` in between.
    """

    BATCH = 64

    def __init__(self) -> None:
        self._words: dict[int, np.ndarray] = {}

    def stream(self, seed: int, np_random: np.random.Generator) -> np.random.Generator:
        """``stream(seed, LUCK)`` for the ``seed`` that was drawn last from ``np_random``, whose state stays."""
        words = self._words.get(seed)
        if words is None:
            source: Any = np_random.bit_generator
            now = source.state
            later = source.random_raw(self.BATCH - 1) >> 33
            source.state = now
            seeds = np.append(np.uint32(seed), later.astype(np.uint32))
            self._words = dict(zip(seeds.tolist(), seed_words(seeds, LUCK), strict=True))
            words = self._words[seed]
        known: Any = _KnownSequence(seed, words)  # numpy's types know SeedSequence only
        return np.random.Generator(np.random.PCG64(known))


class _KnownSequence(ISpawnableSeedSequence):
    """The ``SeedSequence`` of a luck seed, whose words for PCG64 are known already."""

    def __init__(self, seed: int, words: np.ndarray) -> None:
        self._seed, self._words = seed, words

    @cached_property
    def _sequence(self) -> np.random.SeedSequence:
        return np.random.SeedSequence(self._seed, spawn_key=(LUCK,))

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        if n_words == 4 and dtype is np.uint64:
            return self._words
        return self._sequence.generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> list[Any]:
        return self._sequence.spawn(n_children)


def seed_words(seeds: np.ndarray, which: int) -> np.ndarray:
    """``SeedSequence(seed, spawn_key=(which,)).generate_state(4, uint64)`` of many ``uint32`` seeds: ``[N, 4]``.

    The hash of O'Neill's ``seed_seq_fe`` as numpy defines it: a pool of four 32-bit words, each mixed into the others.
    """
    factor, constant = 0x931E8875, 0x43B0D7E5

    def hashed(value: np.ndarray) -> np.ndarray:
        nonlocal constant
        value = value ^ constant
        constant = constant * factor & 0xFFFFFFFF
        value = value * constant
        return value ^ (value >> 16)

    def mixed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        z = x * 0xCA01F9DD - y * 0x4973F715
        return z ^ (z >> 16)

    zero = np.zeros_like(seeds)
    pool = [hashed(word) for word in (seeds, zero, zero, zero)]
    for source in range(4):
        for target in range(4):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source]))
    for target in range(4):
        pool[target] = mixed(pool[target], hashed(zero + np.uint32(which)))
    factor, constant = 0x58F38DED, 0x8B51F9DD
    halves = [hashed(pool[i % 4]).astype(np.uint64) for i in range(8)]
    return np.stack([low | (high << 32) for low, high in zip(halves[::2], halves[1::2], strict=True)], axis=1)
