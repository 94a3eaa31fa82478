"""Where all luck comes from: seeds, and the two streams that grow out of each.

An episode has a level seed and a luck seed (usually equal). :func:`stream` turns each into a generator of its own, so
that one never disturbs the other; :func:`pick` chooses from a list without the cost of a generator. The batched
environments compute the same numbers in compiled code, so nothing here may change without new versions of all ids.
"""

from __future__ import annotations

import numpy as np

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
