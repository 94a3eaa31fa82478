"""Where all luck comes from: seeds, and the two streams that grow out of each.

An episode has a level seed and a luck seed (usually equal). :func:`stream` turns each into a generator of its own, so
that one never disturbs the other; :func:`pick` chooses from a list without the cost of a generator. The batched
environments compute the same numbers in compiled code, so nothing here may change without new versions of all ids.
"""

from __future__ import annotations

from functools import lru_cache
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
    word: int = np_random.bit_generator.random_raw()  # type: ignore[attr-defined]
    return word >> 33


def pick(seed: int, n: int) -> int:
    """An index below ``n`` (at most 2**32), uniform over seeds, from ``seed`` (any whole number of at least 0) alone.

    The upper 32 bits of one step of SplitMix64 (Steele, Lea and Flood 2014), scaled to ``n``.
    """
    z = (seed + 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return (((z ^ (z >> 31)) >> 32) * n) >> 32


class Uniforms(list[float]):
    """Stands in for a luck stream that is asked for nothing but :meth:`random`: its first numbers, the next one last.

    Calling a numpy generator for one number costs as much as all the rest of a short action.
    """

    __slots__ = ()
    random = list.pop
    """The next number of the stream."""

    def generator(self, seed: int, n: int) -> np.random.Generator:
        """The stream of ``seed``, of which ``n`` numbers were taken in advance, where it stands now."""
        rng = stream(seed, LUCK)
        rng.bit_generator.advance(n - len(self))  # type: ignore[attr-defined]
        return rng


class LuckAhead:
    """:func:`stream` of ``LUCK`` for seeds that come from :func:`next_seed`, several times as fast.

    ``SeedSequence`` hashes one seed at a time, which costs more than a short episode. The seeds of the next episodes
    are the next words of ``np_random``, so they can be looked up in advance and hashed together, as arrays. What is
    kept is a cache: the numbers are those of ``stream``, whatever happens to ``np_random`` in between. Only ``spawn``
    differs, which games have no use for.

    Args:
        uniforms: give the first so many numbers as :class:`Uniforms`; 0: give generators.
    """

    FEW, MANY = 64, 1024

    def __init__(self, uniforms: int = 0) -> None:
        self._uniforms = uniforms
        self._batch, self._served = self.FEW, 0
        self._ready: dict[int, Any] = {}
        self._generator = np.random.Generator(np.random.PCG64(0))

    def stream(self, seed: int, np_random: np.random.Generator) -> np.random.Generator | Uniforms:
        """``stream(seed, LUCK)`` for the ``seed`` that was drawn last from ``np_random``, whose state stays.

        If it is a generator, every call returns the same object, put to the start of the stream.
        """
        ready = self._ready.pop(seed, None)
        if ready is None:
            # The larger the batch the less a seed costs, unless most of it goes to waste.
            self._batch = min(2 * self._batch, self.MANY) if 2 * self._served > self._batch else self.FEW
            self._served = 0
            source: Any = np_random.bit_generator
            now = source.state
            later = source.random_raw(self._batch - 1) >> 33
            source.state = now
            seeds = np.append(np.uint32(seed), later.astype(np.uint32))
            words = seed_words(seeds, LUCK)
            prepared = first_uniforms(words, self._uniforms)[:, ::-1] if self._uniforms else words
            self._ready = dict(zip(seeds.tolist(), prepared.tolist(), strict=True))
            ready = self._ready.pop(seed)
        self._served += 1
        if self._uniforms:
            return Uniforms(ready)
        self._generator.bit_generator.state = _pcg64_state(ready)
        return self._generator


def first_uniforms(words: np.ndarray, n: int) -> np.ndarray:
    """The first ``n`` numbers of ``random()`` of generators whose seed sequences gave ``words`` ``[N, 4]``: ``[N, n]``.

    ``PCG64`` (O'Neill 2014) is a linear congruential generator of 128 bits, ``s <- a s + c``, so its ``k``-th state is
    ``a^k s + (1 + a + ... + a^(k-1)) c``; all of them are made together, in halves of 64 bits.
    """
    high, low, sequence_high, sequence_low = (column[:, None] for column in words.T)
    c = (sequence_high << 1) | (sequence_low >> 63), (sequence_low << 1) | 1
    multiplier, (sum_high, sum_low) = _jumps(n)
    start = _plus((high, low), c)
    state_high, state_low = _plus(_times(start, multiplier), _times(c, (sum_high, sum_low)))
    word, turn = state_high ^ state_low, state_high >> 58
    return (((word >> turn) | (word << (-turn & 63))) >> 11) * 2.0**-53


_Halves = tuple[np.ndarray, np.ndarray]
"""Numbers of 128 bits: their upper and lower 64."""


@lru_cache(maxsize=16)
def _jumps(n: int) -> tuple[_Halves, _Halves]:
    """``a^(k+1)`` and ``1 + a + ... + a^k`` for ``k`` = 1 to ``n``; the seeding takes one step of its own."""
    powers, sums = [_PCG64_FACTOR], [1]
    for _ in range(n):
        sums.append((sums[-1] + powers[-1]) & _DOUBLE_WORD)
        powers.append(powers[-1] * _PCG64_FACTOR & _DOUBLE_WORD)

    def halves(numbers: list[int]) -> _Halves:
        return np.array([x >> 64 for x in numbers], np.uint64), np.array([x & _WORD for x in numbers], np.uint64)

    return halves(powers[1:]), halves(sums[1:])


def _plus(x: _Halves, y: _Halves) -> _Halves:
    low = x[1] + y[1]
    return x[0] + y[0] + (low < y[1]), low


def _times(x: _Halves, y: _Halves) -> _Halves:
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    x1, x0, y1, y0 = x[1] >> half, x[1] & mask, y[1] >> half, y[1] & mask
    middle = x1 * y0 + ((x0 * y0) >> half)
    carried = x0 * y1 + (middle & mask)
    high = x1 * y1 + (middle >> half) + (carried >> half)
    return high + x[0] * y[1] + x[1] * y[0], x[1] * y[1]


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
