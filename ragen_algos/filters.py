"""Which groups to train on: filters on how much the returns of a group differ.

A group whose episodes all earn the same teaches a group-relative method nothing. The score of a group is its *spread*:
the Bessel-corrected standard deviation of its RAW episode returns, format penalties included, before anything is
normalised (after normalisation every living group has a spread of about 1, and a filter would only break ties). Groups
are kept or dropped whole. Nothing kept is a possible answer; the trainer then takes no step.

Pure functions. Those on ``spread`` [P], one float64 number per group in the order of the group ids, return a bool [P].

Simplifications: the score is always the spread, and large is always good; dropped groups are neither refilled nor is
the loss rescaled, so fewer groups are fewer (or smaller) optimiser steps, which the metrics show.

Sources: top-k, StarPO-S (arXiv 2504.20073); top-p and min-p, RAGEN-2 (arXiv 2604.06268) and its public code; dropping
groups of equal returns, DAPO (arXiv 2503.14476).
"""

from __future__ import annotations

import torch

from ragen_algos.advantages import EQUAL_RETURNS

FILTERS = ("none", "top-k", "top-p-linear", "top-p-softmax", "min-p", "percentile")
DEFAULT_VALUE = {"top-k": 0.25, "top-p-linear": 0.9, "top-p-softmax": 0.9, "min-p": 0.5, "percentile": 0.5}
"""StarPO-S keeps a quarter of the groups; RAGEN-2 recommends .9 for top-p; the other two are our choice."""

_ROUNDING = 1e-9


def group_spread(returns: torch.Tensor, group_id: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The spread of each group.

    Exactly 0 for a group of one and where the largest and the smallest return differ by less than ``EQUAL_RETURNS``: a
    standard deviation compared with 0 would take rounding for a signal.

    Args:
        returns: [N] raw episode returns.
        group_id: [N] integers, in any order.

    Returns:
        ``groups`` [P] int64, the ids in increasing order, and ``spread`` [P] float64.

    Raises:
        ValueError: wrong shapes, or a return that is not finite.
    """
    if returns.ndim != 1 or group_id.shape != returns.shape:
        raise ValueError(f"expected two vectors [N], got {tuple(returns.shape)} and {tuple(group_id.shape)}")
    returns = returns.detach().to("cpu", torch.float64)
    if not torch.isfinite(returns).all():
        raise ValueError(f"the return of row {int((~torch.isfinite(returns)).nonzero()[0])} is not finite")
    groups, spread = torch.unique(group_id.detach().to("cpu")), []
    for g in groups:
        own = returns[group_id.to("cpu") == g]
        spread.append(0.0 if own.max() - own.min() < EQUAL_RETURNS else float(own.std(correction=1)))
    return groups, torch.tensor(spread, dtype=torch.float64)


def _descending(spread: torch.Tensor) -> torch.Tensor:
    """Indices from the largest to the smallest; of equal ones the lower index first."""
    return torch.argsort(spread, descending=True, stable=True)


def _first(order: torch.Tensor, k: int) -> torch.Tensor:
    kept = torch.zeros(len(order), dtype=torch.bool)
    kept[order[:k]] = True
    return kept


def top_k(spread: torch.Tensor, fraction: float, *, of: int | None = None) -> torch.Tensor:
    """The ``max(1, int(fraction * P))`` groups of largest spread, zeros included; of equal ones the lower index.

    Args:
        spread: [P].
        fraction: share of the groups to keep.
        of: ``P`` to count with, where some groups were dropped before; by default ``len(spread)``.
    """
    k = max(1, int(fraction * (len(spread) if of is None else of) + _ROUNDING))
    return _first(_descending(spread), k)


def top_p_linear(spread: torch.Tensor, p: float, *, eps: float = 1e-3, relative: bool = True) -> torch.Tensor:
    """The fewest groups whose spreads add up to ``p`` of the total; never one without spread.

    ``p >= 1`` keeps every group. Otherwise the sum to reach is ``p * sum - eps * sum``, or ``p * sum - eps`` unless
    ``relative``: the public code does the latter with eps .01, and keeps too few groups where returns are small.
    """
    if p >= 1:
        return torch.ones(len(spread), dtype=torch.bool)
    total = float(spread.sum())
    target = p * total - (eps * total if relative else eps)
    order = _descending(spread)
    if target <= 0:
        return _first(order, 0)
    before = torch.cat([spread.new_zeros(1), spread[order].cumsum(0)[:-1]]) if len(spread) else spread
    return _first(order, int(((before < target) & (spread[order] > 0)).sum()))


def top_p_softmax(spread: torch.Tensor, p: float) -> torch.Tensor:
    """The fewest groups whose softmax probabilities add up to ``p``; ``p >= 1`` keeps every group.

    Not invariant to the scale of rewards: with returns of 0 or 1 the distribution is almost flat, and groups without
    any spread are kept.
    """
    if p >= 1 or not len(spread):
        return torch.ones(len(spread), dtype=torch.bool)
    order = _descending(spread)
    probability = torch.softmax(spread[order], 0)
    return _first(order, int((probability.cumsum(0) - probability < p - _ROUNDING).sum()))


def min_p(spread: torch.Tensor, p: float) -> torch.Tensor:
    """The groups with at least ``p`` of the largest spread; none if that is 0."""
    if not len(spread) or float(spread.max()) <= 0:
        return torch.zeros(len(spread), dtype=torch.bool)
    return spread >= p * spread.max()


def percentile(spread: torch.Tensor, low: float, high: float = 1.0) -> torch.Tensor:
    """The groups between two quantiles of the spreads (in [0, 1], linear interpolation), both included."""
    if not len(spread):
        return torch.zeros(0, dtype=torch.bool)
    return (spread >= torch.quantile(spread, low)) & (spread <= torch.quantile(spread, high))


def keep_rows(
    returns: torch.Tensor,
    group_id: torch.Tensor,
    how: str = "none",
    value: float | None = None,
    *,
    drop_equal: bool = False,
) -> torch.Tensor:
    """Which trajectories to train on: all those of the groups that a filter keeps.

    Args:
        returns: [N] raw episode returns.
        group_id: [N].
        how: one of ``FILTERS``; ``percentile`` keeps the groups from the quantile ``value`` upwards.
        value: what the filter takes; not read by ``none``.
        drop_equal: first drop every group whose returns are all equal. ``top-k`` still counts its share of all groups.

    Returns:
        bool [N]; possibly all False.

    Raises:
        ValueError: unknown ``how``, no ``value`` where one is needed, wrong shapes, or a return that is not finite.
    """
    if how not in FILTERS:
        raise ValueError(f"unknown filter {how!r}; choose from {', '.join(FILTERS)}")
    groups, spread = group_spread(returns, group_id)
    candidates = (spread > 0 if drop_equal else torch.ones(len(spread), dtype=torch.bool)).nonzero().squeeze(1)
    left = spread[candidates]
    if how != "none":
        if value is None:
            raise ValueError(f"filter {how} needs a value")
        if how == "top-k":
            chosen = top_k(left, value, of=len(spread))
        elif how == "top-p-linear":
            chosen = top_p_linear(left, value)
        elif how == "top-p-softmax":
            chosen = top_p_softmax(left, value)
        elif how == "min-p":
            chosen = min_p(left, value)
        else:
            chosen = percentile(left, value)
        candidates = candidates[chosen]
    return torch.isin(group_id.detach().to("cpu"), groups[candidates])
