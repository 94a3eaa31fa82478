"""Rates per CPU-second, for our side and for the peers' side alike (so: standard library only).

CPU time, not wall time, because other work on the machine must not count; the best of several rounds, because whatever
still disturbs a round only makes it slower.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable

ROUNDS = 3


def per_cpu_second(work: Callable[[int], object], *, seconds: float = 0.5, rounds: int = ROUNDS) -> float:
    """Units of work per CPU-second of this process, all of its threads counted; the best of ``rounds``.

    Args:
        work: ``work(n)`` does ``n`` units. It is called with growing ``n`` first, which also warms it up.
        seconds: CPU time of a round, roughly.
        rounds: number of rounds.
    """
    n, used = 1, _cpu(work, 1)
    while used < seconds / 8:
        n *= 2
        used = _cpu(work, n)
    n = max(1, round(n * seconds / used))
    return n / min(_cpu(work, n) for _ in range(rounds))


def _cpu(work: Callable[[int], object], n: int) -> float:
    start = time.process_time()
    work(n)
    return max(time.process_time() - start, 1e-9)


class _TimeUp(BaseException):
    """Not an Exception: code under measurement that catches those must not swallow it."""


def finished_per_cpu_second(work: Callable[[int], object], *, seconds: float, patience: float = 60.0) -> float:
    """Calls ``work(0)``, ``work(1)``, ... that end within ``seconds`` of CPU time, per CPU-second.

    For calls of very uneven length: the last one is cut off, and its time counts although its result does not. If none
    has ended by then, the first one is waited for, ``patience`` CPU-seconds in all; 0 if even that was not enough.
    """
    done, late = 0, False

    def stop(*_: object) -> None:
        nonlocal late
        if done or late:
            raise _TimeUp
        late = True
        signal.setitimer(signal.ITIMER_PROF, patience - seconds)

    earlier = signal.signal(signal.SIGPROF, stop)
    start = time.process_time()
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        while not (late and done):
            work(done)
            done += 1
    except _TimeUp:
        pass
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, earlier)
    return done / (time.process_time() - start)


def show(figures: Iterable[tuple[str, float, str]]) -> None:
    """Print figures as they come."""
    for name, value, unit in figures:
        print(f"{name:32} {amount(value)} {unit}", flush=True)


def amount(value: float) -> str:
    """A number as people read it: three significant digits, or whole with thousands separated."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
