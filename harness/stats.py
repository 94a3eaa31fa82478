"""Intervals and normalised scores.

A level is the unit that is drawn. Episodes on one level are repeats and are never counted as independent: Bandit's val
split, for example, has 12 levels however many episodes are played.

* Success: a percentile bootstrap that resamples levels, whole, and independently of them the seeds (all seeds are
  measured on the same levels). With one seed and no level played twice it is the Wilson interval of a proportion. Where
  a bootstrap has no width (a rate of 0 or 1, for example) it is the Wilson interval of as many trials as there are
  levels.
* A gain over another policy: the same bootstrap over the differences of episodes with the same level and luck. Where
  all of them are equal it is d -+ w, w being the width of the Wilson interval of L successes in L trials, L levels: so
  large a share of levels may still be unseen on which the difference is another one, by 1 either way.

The interval answers: what would the mean be on other levels like these, and with other training seeds? That is also its
meaning on closed splits such as Bandit's (12 levels in val; 16 in test, which are 8 pairs in two orders): 256
episodes meet every level there, and for the split itself the interval is too wide.

With few seeds a bootstrap is too narrow where seeds differ. True coverage of the 95 % interval of a success rate near
one half, 3 seeds and 256 levels, by the standard deviation of the seeds' own rates (1000 simulations each):

    0: .99    .02: .98    .05: .94    .1: .85

(``coverage(sd, 1000)`` in ``tests/harness/test_stats.py``; the first two are too wide, because the luck of an episode
counts once with its level and once with its seed.) Resampling is seeded, so the same results give the same interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

DRAWS = 2_000
LEVEL = 0.95
_NO_WIDTH = 1e-9


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95 % interval, and how the interval was computed."""

    mean: float
    low: float
    high: float
    method: str


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Wilson score interval of a proportion (E. B. Wilson 1927), without continuity correction.

    Raises:
        ValueError: not 0 <= successes <= n with n >= 1.
    """
    if not (n >= 1 and 0 <= successes <= n):
        raise ValueError(f"need 0 <= successes <= n and n >= 1, got {successes} of {n}")
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    p, spread = successes / n, z * z / n
    centre = (p + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(p * (1 - p) / n + spread / (4 * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def success_rate(scores: np.ndarray, levels: np.ndarray) -> Estimate | None:
    """Mean success and interval.

    Args:
        scores: ``[seeds, episodes]`` of 0 and 1; NaN where an episode has no score.
        levels: ``[episodes]`` which level each episode was played on (any labels).

    Returns:
        None if no episode has a score.
    """
    known = np.isfinite(scores)
    valid = scores[known]
    if not valid.size:
        return None
    mean, n_levels = float(valid.mean()), _count(levels, known)
    found = _bootstrap(scores, levels, f"bootstrap over {_units(scores)}")
    if found.high - found.low < _NO_WIDTH or (len(scores) == 1 and n_levels == valid.size):
        return Estimate(mean, *wilson(mean * n_levels, n_levels), "Wilson, over levels")
    return found


def paired_gain(scores: np.ndarray, start: np.ndarray, levels: np.ndarray) -> Estimate | None:
    """Mean difference of ``scores [seeds, episodes]`` and ``start [episodes]``, paired by episode, and interval.

    Returns:
        None if no episode has both scores.
    """
    difference = scores - start[None, :]
    known = np.isfinite(difference)
    if not known.any():
        return None
    found = _bootstrap(difference, levels, f"paired bootstrap over {_units(scores)}")
    if found.high - found.low < _NO_WIDTH:
        n_levels = _count(levels, known)
        width = 1 - wilson(n_levels, n_levels)[0]
        low, high = max(-1.0, found.mean - width), min(1.0, found.mean + width)
        return Estimate(found.mean, low, high, "Wilson, over levels")
    return found


def _count(levels: np.ndarray, known: np.ndarray) -> int:
    """Distinct levels with a score."""
    return len(set(levels[known.any(0)].tolist()))


def _units(scores: np.ndarray) -> str:
    return "seeds and levels" if len(scores) > 1 else "levels"


def normalised(score: float, random: float, optimal: float) -> float:
    """``(score - random) / (optimal - random)``; NaN where optimal play is no better than random play."""
    return (score - random) / (optimal - random) if abs(optimal - random) > 1e-12 else math.nan


def _bootstrap(values: np.ndarray, levels: np.ndarray, method: str) -> Estimate:
    """Percentile bootstrap of the mean of ``[seeds, episodes]``: seeds and levels drawn independently."""
    known = np.isfinite(values)
    _, column = np.unique(levels, return_inverse=True)
    n_seeds, n_levels = len(values), int(column.max()) + 1
    filled = np.where(known, values, 0.0)
    total_of = np.array([np.bincount(column, weights=row, minlength=n_levels) for row in filled])
    count_of = np.array([np.bincount(column, weights=row, minlength=n_levels) for row in known])
    rng = np.random.default_rng(0)
    rows = rng.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=DRAWS).astype(np.float64)
    columns = rng.multinomial(n_levels, np.full(n_levels, 1 / n_levels), size=DRAWS).astype(np.float64)
    total = ((rows @ total_of) * columns).sum(1)
    count = ((rows @ count_of) * columns).sum(1)
    means = total[count > 0] / count[count > 0]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(float(total_of.sum() / count_of.sum()), float(low), float(high), method)
