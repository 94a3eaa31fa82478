"""Intervals and normalised scores.

* One seed: the Wilson interval of a proportion, over episodes.
* Several seeds: a percentile bootstrap that resamples seeds and, independently of them, levels (all seeds are measured
  on the same levels). With fewer than about five seeds such an interval is too narrow; it is still the honest
  direction, since it is never narrower than resampling levels alone would be in expectation.
* A gain over another policy: the same bootstrap over the differences of episodes with the same level and luck.

Resampling is seeded, so the same results give the same interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

DRAWS = 2_000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95 % interval, and how the interval was computed."""

    mean: float
    low: float
    high: float
    method: str


def wilson(successes: int, n: int) -> tuple[float, float]:
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


def success_rate(scores: np.ndarray) -> Estimate | None:
    """Mean success and interval.

    Args:
        scores: ``[seeds, episodes]`` of 0 and 1; NaN where an episode has no score.

    Returns:
        None if no episode has a score.
    """
    valid = scores[np.isfinite(scores)]
    if not valid.size:
        return None
    if len(scores) == 1:
        low, high = wilson(int(valid.sum()), valid.size)
        return Estimate(float(valid.mean()), low, high, "wilson")
    return _bootstrap(scores, "bootstrap over seeds and levels")


def paired_gain(scores: np.ndarray, start: np.ndarray) -> Estimate | None:
    """Mean difference of ``scores [seeds, episodes]`` and ``start [episodes]``, paired by episode, and interval.

    Returns:
        None if no episode has both scores.
    """
    difference = scores - start[None, :]
    if not np.isfinite(difference).any():
        return None
    seeds = "seeds and " if len(scores) > 1 else ""
    return _bootstrap(difference, f"paired bootstrap over {seeds}levels")


def normalised(score: float, random: float, optimal: float) -> float:
    """``(score - random) / (optimal - random)``; NaN where optimal play is no better than random play."""
    return (score - random) / (optimal - random) if abs(optimal - random) > 1e-12 else math.nan


def _bootstrap(values: np.ndarray, method: str) -> Estimate:
    """Percentile bootstrap of the mean of ``[seeds, episodes]``: rows and columns drawn independently."""
    known = np.isfinite(values)
    filled = np.where(known, values, 0.0)
    n_seeds, n_episodes = values.shape
    rng = np.random.default_rng(0)
    rows = rng.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=DRAWS).astype(np.float64)
    columns = rng.multinomial(n_episodes, np.full(n_episodes, 1 / n_episodes), size=DRAWS).astype(np.float64)
    total = ((rows @ filled) * columns).sum(1)
    count = ((rows @ known) * columns).sum(1)
    means = total[count > 0] / count[count > 0]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(float(filled.sum() / known.sum()), float(low), float(high), method)
