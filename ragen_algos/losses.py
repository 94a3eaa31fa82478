"""Objectives: from log-probabilities and advantages to a scalar to minimise.

Pure functions on ``[N, L]`` tensors (trajectories by tokens). Three rules hold everywhere:

* A masked slot is *selected* away with ``torch.where`` before any arithmetic. Multiplying by the mask would keep a NaN
  (NaN * 0 is NaN), in the value or in the gradient.
* Sums are divided by a denominator computed once for all the rows of an optimiser step (:func:`global_denominator`) and
  handed to every micro-batch. Micro-batch losses therefore add up to the loss of the whole; nothing is averaged twice.
* Log-probabilities stay per token until the aggregation.

Simplifications: one temperature per batch, no top-k or top-p, and no importance weights for a second inference engine.
"""

from __future__ import annotations

import torch

AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "sum/const")
KL_KINDS = ("k1", "k2", "k3", "k3+")
RATIOS = ("token", "seq_prod", "seq_geo")
MAX_LOG_RATIO = 20.0
"""exp(20) is about 5e8: far outside any clip range, and far from overflow in float32."""


def _selected(mask: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Each tensor with 0 where ``mask`` is False, in the dtype and on the device of the first one."""
    first = tensors[0]
    return [torch.where(mask.to(first.device), x.to(first), 0.0) for x in tensors]


def global_denominator(loss_mask: torch.Tensor, how: str, const: float | None = None) -> float:
    """What :func:`aggregate` divides by, counted over all the rows that share one optimiser step.

    ======================  ==========================================
    ``how``                 denominator
    ======================  ==========================================
    ``token-mean``          number of sampled tokens
    ``seq-mean-token-mean`` N
    ``seq-mean-token-sum``  N
    ``sum/const``           N * ``const``
    ======================  ==========================================

    Rows without a sampled token count in ``N``. Never below 1, so an empty batch gives a loss of 0.

    Args:
        loss_mask: [N, L] of the whole step, not of a micro-batch.
        how: one of ``AGGREGATIONS``.
        const: the fixed length of ``sum/const``, for example the longest completion allowed.

    Raises:
        ValueError: unknown ``how``; ``sum/const`` without a positive ``const``; a ``const`` that would not be read.
    """
    if how not in AGGREGATIONS:
        raise ValueError(f"unknown aggregation {how!r}; choose from {', '.join(AGGREGATIONS)}")
    if how == "sum/const":
        if const is None or not const > 0:
            raise ValueError(f"aggregation sum/const needs a positive const, got {const}")
        return max(1, len(loss_mask)) * float(const)
    if const is not None:
        raise ValueError(f"aggregation {how} does not read const")
    return float(max(1, int(loss_mask.bool().sum()) if how == "token-mean" else len(loss_mask)))


def aggregate(x: torch.Tensor, mask: torch.Tensor, how: str, denominator: float) -> torch.Tensor:
    """Sum ``x`` over the sampled tokens and divide by ``denominator``.

    Under ``seq-mean-token-mean`` each row is first divided by its own number of sampled tokens (at least 1).

    Args:
        x: [N, L]; not read where ``mask`` is False.
        mask: [N, L].
        how: one of ``AGGREGATIONS``.
        denominator: from :func:`global_denominator` of the whole step with the same ``how``.

    Returns:
        A scalar. Over micro-batches that split the rows the scalars add up to that of the whole.

    Raises:
        ValueError: unknown ``how``, or a denominator that is not positive.

    Sources: token-mean, DAPO (arXiv 2503.14476, eq. 8); seq-mean-token-mean, GRPO (arXiv 2402.03300, eq. 3); sum/const,
    Dr. GRPO (arXiv 2503.20783).
    """
    if how not in AGGREGATIONS:
        raise ValueError(f"unknown aggregation {how!r}; choose from {', '.join(AGGREGATIONS)}")
    if not denominator > 0:
        raise ValueError(f"the denominator must be positive, got {denominator}")
    mask = mask.to(x.device).bool()
    rows = torch.where(mask, x, 0.0).sum(1)
    if how == "seq-mean-token-mean":
        rows = rows / mask.sum(1).clamp(min=1)
    return rows.sum() / denominator


def importance_ratio(
    logp: torch.Tensor, old_logp: torch.Tensor, mask: torch.Tensor, kind: str = "token"
) -> torch.Tensor:
    """``exp(clamp(x, -20, 20))`` with ``x`` as in :func:`policy_loss`; 1 where nothing was sampled.

    Args:
        logp: [N, L], with gradient if that is wanted.
        old_logp: [N, L]; no gradient flows into it.
        mask: [N, L]; nothing is read where it is False.
        kind: one of ``RATIOS``.

    Returns:
        [N, L], or [N, 1] for a ratio of the sequence.

    Raises:
        ValueError: unknown ``kind``.
    """
    if kind not in RATIOS:
        raise ValueError(f"unknown ratio {kind!r}; choose from {', '.join(RATIOS)}")
    mask = mask.to(logp.device).bool()
    logp, old_logp = _selected(mask, logp, old_logp.detach())
    log_ratio = logp - old_logp
    if kind != "token":
        log_ratio = log_ratio.sum(1, keepdim=True)
    if kind == "seq_geo":
        log_ratio = log_ratio / mask.sum(1, keepdim=True).clamp(min=1)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def policy_loss(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    loss_mask: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    ratio: str = "token",
    aggregation: str,
    denominator: float,
) -> torch.Tensor:
    """Clipped surrogate, to minimise.

    With the ratio ``rho = exp(clamp(x, -20, 20))`` ::

        loss = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high))

    and, with ``dual_clip = c``, where ``A < 0``: ``loss = min(loss, -A c)``. Where a clip binds the gradient is 0.

    ============  ============================================================
    ``ratio``     ``x``
    ============  ============================================================
    ``token``     ``logp - old_logp`` of the token
    ``seq_prod``  its sum over the sampled tokens of the row
    ``seq_geo``   its mean over the sampled tokens of the row
    ============  ============================================================

    A ratio of the sequence stands at every sampled token of its row; under ``seq-mean-token-mean`` the loss is then the
    mean over rows of one clipped term each.

    Args:
        logp: [N, L] under the current policy, with gradient.
        old_logp: [N, L] under the policy that sampled, at the same temperature; no gradient flows into it.
        advantages: [N, L]; cast to the dtype and device of ``logp``.
        loss_mask: [N, L]; nothing is read where it is False.
        clip_low: lower half-width.
        clip_high: upper half-width; larger than ``clip_low`` is DAPO's "clip-higher".
        dual_clip: bound on ``rho`` for negative advantages, above 1, or None.
        ratio: one of ``RATIOS``.
        aggregation: one of ``AGGREGATIONS``.
        denominator: from :func:`global_denominator`.

    Returns:
        A scalar; 0 if nothing was sampled.

    Raises:
        ValueError: unknown ``ratio`` or ``aggregation``.

    Sources: arXiv 1707.06347, eq. 7; dual clip arXiv 1912.09729, eq. 5; clip-higher arXiv 2503.14476; the geometric
    ratio of a sequence, GSPO (arXiv 2507.18071).
    """
    mask = loss_mask.bool()
    logp, advantages = _selected(mask, logp, advantages.detach())
    rho = importance_ratio(logp, old_logp, mask, ratio)
    loss = torch.maximum(-advantages * rho, -advantages * rho.clamp(1 - clip_low, 1 + clip_high))
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    return aggregate(loss, mask, aggregation, denominator)


def reinforce_loss(
    logp: torch.Tensor,
    advantages: torch.Tensor,
    loss_mask: torch.Tensor,
    *,
    aggregation: str,
    denominator: float,
) -> torch.Tensor:
    """``-A logp``, to minimise; right for the first update after sampling only, as nothing corrects for drift.

    Its gradient equals that of :func:`policy_loss` at ratio 1.

    Args:
        logp: [N, L] with gradient.
        advantages: [N, L].
        loss_mask: [N, L]; nothing is read where it is False.
        aggregation: one of ``AGGREGATIONS``.
        denominator: from :func:`global_denominator`.

    Returns:
        A scalar; 0 if nothing was sampled.

    Source: Williams (1992), "Simple statistical gradient-following algorithms".
    """
    mask = loss_mask.bool()
    logp, advantages = _selected(mask, logp, advantages.detach())
    return aggregate(-advantages * logp, mask, aggregation, denominator)


def cispo_loss(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    loss_mask: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    aggregation: str,
    denominator: float,
) -> torch.Tensor:
    """``-sg[clip(rho, 1 - clip_low, 1 + clip_high)] A logp`` per token, to minimise.

    The clipped ratio is a weight without gradient, so no token ever loses its gradient. An absolute cap ``c`` without a
    lower bound is ``clip_low=1, clip_high=c - 1``. Arguments and result as in :func:`policy_loss`.

    Source: CISPO, MiniMax-M1 (arXiv 2506.13585, section 3.1).
    """
    mask = loss_mask.bool()
    logp, advantages = _selected(mask, logp, advantages.detach())
    weight = importance_ratio(logp.detach(), old_logp, mask).clamp(1 - clip_low, 1 + clip_high)
    return aggregate(-weight * advantages * logp, mask, aggregation, denominator)


def sapo_loss(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    loss_mask: torch.Tensor,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
    aggregation: str,
    denominator: float,
) -> torch.Tensor:
    """``-A (4 / tau) sigmoid(tau (rho - 1))`` per token, to minimise: a soft gate in place of the clip.

    ``tau`` is ``tau_positive`` where ``A > 0``, else ``tau_negative``. At ``rho = 1`` the slope in ``rho`` is ``-A``,
    as without the gate; it falls off smoothly on both sides. Other arguments and result as in :func:`policy_loss`.

    Source: SAPO (arXiv 2511.20347).
    """
    mask = loss_mask.bool()
    logp, advantages = _selected(mask, logp, advantages.detach())
    tau = tau_negative + (tau_positive - tau_negative) * (advantages > 0).to(logp)
    gate = 4 / tau * torch.sigmoid(tau * (importance_ratio(logp, old_logp, mask) - 1))
    return aggregate(-advantages * gate, mask, aggregation, denominator)


def kl_penalty(
    logp: torch.Tensor, ref_logp: torch.Tensor, kind: str = "k3", loss_mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Per-token estimate of KL(policy || reference) from tokens that the policy sampled.

    With ``x = logp - ref_logp``: ``k1 = x``, ``k2 = x^2 / 2``, ``k3 = exp(-x) + x - 1`` (``x`` clamped to +-20 there).
    As a loss, k1 has an expected gradient of zero, k2 has the gradient of the KL, and k3 has a good value but not
    that gradient; ``k3+`` has the value of k3 and the gradient of k2. As a penalty in the reward, k1 is the usual
    choice.

    Args:
        logp: [N, L].
        ref_logp: [N, L]; no gradient flows into it.
        kind: one of ``KL_KINDS``.
        loss_mask: [N, L]; the result is 0 where it is False and nothing there enters value or gradient. None means
            that every entry is valid.

    Returns:
        [N, L].

    Raises:
        ValueError: unknown ``kind``.

    Source: J. Schulman, "Approximating KL divergence" (2020).
    """
    if kind not in KL_KINDS:
        raise ValueError(f"unknown kl kind {kind!r}; choose from {', '.join(KL_KINDS)}")
    if loss_mask is None:
        loss_mask = torch.ones_like(logp, dtype=torch.bool)
    logp, ref_logp = _selected(loss_mask.bool(), logp, ref_logp.detach())
    x = logp - ref_logp
    if kind == "k1":
        return x
    if kind == "k2":
        return x**2 / 2
    near = x.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    k3 = torch.exp(-near) + near - 1
    if kind == "k3+":
        k2 = x**2 / 2
        return k2 + (k3 - k2).detach()
    return k3


def value_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    mask: torch.Tensor,
    clip: float | None = 0.5,
    *,
    aggregation: str = "token-mean",
    denominator: float,
) -> torch.Tensor:
    """Half the squared error of the critic, clipped around its old prediction (the larger of both errors counts).

    ``0.5 * max((v - ret)^2, (v_old + clamp(v - v_old, -clip, clip) - ret)^2)``, aggregated.

    Args:
        values: [N, L] with gradient.
        old_values: [N, L] predictions at the start of the update.
        returns: [N, L] targets.
        mask: [N, L]; nothing is read where it is False.
        clip: half-width, or None for the plain squared error.
        aggregation: one of ``AGGREGATIONS``.
        denominator: from :func:`global_denominator`.

    Returns:
        A scalar; 0 if nothing was sampled.

    Source: the value clipping of public PPO implementations; not in arXiv 1707.06347.
    """
    mask = mask.bool()
    values, old_values, returns = _selected(mask, values, old_values.detach(), returns.detach())
    error = (values - returns) ** 2
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns) ** 2)
    return aggregate(0.5 * error, mask, aggregation, denominator)


def clip_fraction(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    loss_mask: torch.Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ratio: str = "token",
) -> float:
    """Share of the sampled tokens whose ratio lies outside ``[1 - clip_low, 1 + clip_high]``.

    Both sides count, whatever the sign of the advantage, so the clip binds on a part of these tokens only.

    Args:
        logp, old_logp, loss_mask: [N, L] as in :func:`policy_loss`.
        clip_low, clip_high: half-widths.
        ratio: one of ``RATIOS``; with a ratio of the sequence all sampled tokens of a row count, or none.

    Returns:
        A number in [0, 1]; 0 if nothing was sampled.
    """
    mask = loss_mask.to(logp.device).bool()
    rho = importance_ratio(logp.detach(), old_logp, mask, ratio)
    return float((((rho < 1 - clip_low) | (rho > 1 + clip_high)) & mask).sum()) / max(1, int(mask.sum()))
