"""The streams of :mod:`ragen_envs.seeding` for many environments at once, in compiled code.

A generator is one row of a ``uint64 [n, 4]`` array: state and increment of a PCG64 (O'Neill 2014), high words first.
Seeds are rows of four 32-bit words, lowest first, so whole numbers below 2**128 fit; :func:`set_generator` takes any.
Every function equals numpy's own generator (or ``seeding.pick``) bit for bit, which the tests check.

All sums and products are split into 32-bit halves held in ``uint64``. Compiled code would simply wrap around, but the
same code run by plain Python (``NUMBA_DISABLE_JIT=1``) must neither warn nor differ.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from ragen_envs.jit import njit

PLAIN = -1
"""The ``spawn`` of :func:`seed_generators` for the generator of ``SeedSequence(seed)`` without a spawn key."""

U = np.uint64
_LOW = U(0xFFFFFFFF)
_HALF = U(32)
_SPAN = U(1 << 32)
_ONE, _ZERO = U(1), U(0)

# SeedSequence (numpy's form of O'Neill's seed_seq_fe128).
_INIT_A, _MULT_A, _INIT_B, _MULT_B = U(0x43B0D7E5), U(0x931E8875), U(0x8B51F9DD), U(0x58F38DED)
_MIX_LEFT, _MIX_RIGHT, _SHIFT = U(0xCA01F9DD), U(0x4973F715), U(16)
# PCG64: the multiplier's high and low word.
_MULT_HIGH, _MULT_LOW = U(0x2360ED051FC65DA4), U(0x4385DF649FCCF645)
# SplitMix64, as in seeding.pick.
_GOLDEN, _MIX_1, _MIX_2 = U(0x9E3779B97F4A7C15), U(0xBF58476D1CE4E5B9), U(0x94D049BB133111EB)


@njit
def _add(a, b):
    """``a + b`` modulo 2**64."""
    low = (a & _LOW) + (b & _LOW)
    high = (a >> _HALF) + (b >> _HALF) + (low >> _HALF)
    return ((high & _LOW) << _HALF) | (low & _LOW)


@njit
def _times(a, b):
    """High and low word of ``a * b``."""
    a0, a1, b0, b1 = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    low, cross, other, high = a0 * b0, a0 * b1, a1 * b0, a1 * b1
    middle = (low >> _HALF) + (cross & _LOW) + (other & _LOW)
    return high + (cross >> _HALF) + (other >> _HALF) + (middle >> _HALF), ((middle & _LOW) << _HALF) | (low & _LOW)


@njit
def _advance(generators, i):
    """One step of generator ``i``; returns its 64-bit output (XSL-RR)."""
    high, low = generators[i, 0], generators[i, 1]
    carry, product = _times(low, _MULT_LOW)
    carry = _add(_add(carry, _times(high, _MULT_LOW)[1]), _times(low, _MULT_HIGH)[1])
    new_low = _add(product, generators[i, 3])
    new_high = _add(carry, generators[i, 2])
    if new_low < product:
        new_high = _add(new_high, _ONE)
    generators[i, 0], generators[i, 1] = new_high, new_low
    word, turn = new_high ^ new_low, new_high >> U(58)
    return (word >> turn) | (word << ((U(64) - turn) & U(63)))


@njit
def _hashed(value, constant, multiplier):
    """SeedSequence's ``hashmix``: the hashed value and the next constant."""
    following = (constant * multiplier) & _LOW
    value = ((value ^ constant) * following) & _LOW
    return value ^ (value >> _SHIFT), following


@njit
def _mixed(x, y):
    """SeedSequence's ``mix``."""
    value = (((_MIX_LEFT * x) & _LOW) + (_SPAN - ((_MIX_RIGHT * y) & _LOW))) & _LOW
    return value ^ (value >> _SHIFT)


@njit
def seed_generators(generators, rows, words, spawn):
    """Put ``PCG64(SeedSequence(seed, spawn_key=(spawn,)))`` into the chosen rows, or without key if ``spawn`` is PLAIN.

    Args:
        generators: ``uint64 [n, 4]``, changed in place.
        rows: ``bool [n]``.
        words: ``uint64 [n, 4]``: the seeds.
        spawn: the spawn key.
    """
    pool = np.empty(4, np.uint64)
    state = np.empty(8, np.uint64)
    for i in range(len(rows)):
        if not rows[i]:
            continue
        constant = _INIT_A
        for k in range(4):
            pool[k], constant = _hashed(words[i, k], constant, _MULT_A)
        for source in range(4):
            for target in range(4):
                if source != target:
                    value, constant = _hashed(pool[source], constant, _MULT_A)
                    pool[target] = _mixed(pool[target], value)
        if spawn >= 0:
            for target in range(4):
                value, constant = _hashed(U(spawn), constant, _MULT_A)
                pool[target] = _mixed(pool[target], value)
        constant = _INIT_B
        for k in range(8):
            state[k], constant = _hashed(pool[k % 4], constant, _MULT_B)
        start_high, start_low = (state[1] << _HALF) | state[0], (state[3] << _HALF) | state[2]
        high, low = (state[5] << _HALF) | state[4], (state[7] << _HALF) | state[6]
        generators[i, 2] = (high << _ONE) | (low >> U(63))
        generators[i, 3] = (low << _ONE) | _ONE
        # From state 0 a step leads to the increment; then the seed is added and another step taken.
        total = _add(generators[i, 3], start_low)
        carry = _ONE if total < start_low else _ZERO
        generators[i, 0] = _add(_add(generators[i, 2], start_high), carry)
        generators[i, 1] = total
        _advance(generators, i)


@njit
def next_seeds(generators, rows, words):
    """``seeding.next_seed`` of the chosen generators, written to their rows of ``words``."""
    for i in range(len(rows)):
        if rows[i]:
            words[i, 0] = _advance(generators, i) >> U(33)
            words[i, 1] = words[i, 2] = words[i, 3] = _ZERO


@njit
def draw(generators, counts, numbers):
    """``numbers[i, :counts[i]]`` becomes what ``Generator.random()`` of generator ``i`` gives next."""
    for i in range(len(counts)):
        for k in range(counts[i]):
            numbers[i, k] = np.float64(_advance(generators, i) >> U(11)) * (1.0 / 9007199254740992.0)


@njit
def pick_many(words, rows, n, picked):
    """``seeding.pick(seed, n)`` of the seeds in the chosen rows, written to ``picked``."""
    for i in range(len(rows)):
        if rows[i]:
            z = _add((words[i, 1] << _HALF) | words[i, 0], _GOLDEN)
            z = _times(z ^ (z >> U(30)), _MIX_1)[1]
            z = _times(z ^ (z >> U(27)), _MIX_2)[1]
            picked[i] = np.int64((((z ^ (z >> U(31))) >> _HALF) * U(n)) >> _HALF)


def words_of(seed: int) -> tuple[int, int, int, int]:
    """The four lowest 32-bit words of a whole number."""
    return seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, seed >> 64 & 0xFFFFFFFF, seed >> 96 & 0xFFFFFFFF


def set_generator(generators: np.ndarray, i: int, sequence: np.random.SeedSequence) -> None:
    """Put ``PCG64(sequence)`` into row ``i``: the way for seeds of more than 128 bits, and for none."""
    state = np.random.PCG64(sequence).state["state"]
    word = (1 << 64) - 1
    generators[i] = [state["state"] >> 64, state["state"] & word, state["inc"] >> 64, state["inc"] & word]
