"""Where all luck comes from: seeds, and the two streams that grow out of each.

An episode has a level seed and a luck seed (usually equal). :func:`stream` turns each into a generator of its own, so
that one never disturbs the other; :func:`pick` chooses from a list without the cost of a generator. The batched
environments compute the same numbers in compiled code, so nothing here may change without new versions of all ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LEVEL, LUCK = 0, 1
"""Stream numbers."""

_WORD, _DOUBLE_WORD = (1 << 64) - 1, (1 << 128) - 1
_PCG64_FACTOR = 0x2360ED051FC65DA44385DF649FCCF645


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
    """:func:`stream` of ``LUCK`` for seeds that come from :func:`next_seed`, several times as fast.

    ``SeedSequence`` hashes one seed at a time, which costs more than a short episode. The seeds of the next episodes
    are the next words of ``np_random``, so they can be looked up in advance and hashed together, as arrays. What is
    kept is a cache: the numbers are those of ``stream``, whatever happens to ``np_random`` in between. Only ``spawn``
    differs, which games have no use for.
    """

    BATCH = 64

    def __init__(self) -> None:
        self._words: dict[int, list[int]] = {}
        self._generator = np.random.Generator(np.random.PCG64(0))

    def stream(self, seed: int, np_random: np.random.Generator) -> np.random.Generator:
        """``stream(seed, LUCK)`` for the ``seed`` that was drawn last from ``np_random``, whose state stays.

        Every call returns the same generator object, put to the start of the stream.
        """
        words = self._words.get(seed)
        if words is None:
            source: Any = np_random.bit_generator
            now = source.state
            later = source.random_raw(self.BATCH - 1) >> 33
            source.state = now
            seeds = np.append(np.uint32(seed), later.astype(np.uint32))
            self._words = dict(zip(seeds.tolist(), seed_words(seeds, LUCK).tolist(), strict=True))
            words = self._words[seed]
        self._generator.bit_generator.state = _pcg64_state(words)
        return self._generator


def _pcg64_state(words: list[int]) -> dict[str, Any]:
    """What ``PCG64`` makes of the four 64-bit words of its ``SeedSequence`` (O'Neill's ``pcg_setseq_128_srandom``)."""
    high, low, sequence_high, sequence_low = words
    inc = ((sequence_high << 65) | (sequence_low << 1) | 1) & _DOUBLE_WORD
    state = ((inc + ((high << 64) | low)) * _PCG64_FACTOR + inc) & _DOUBLE_WORD
    return {"bit_generator": "PCG64", "state": {"state": state, "inc": inc}, "has_uint32": 0, "uinteger": 0}


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
