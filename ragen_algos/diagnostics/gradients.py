"""Which groups teach, and which part of the loss pulls: gradient norms by reward spread and by term.

Episodes of a group whose returns are all equal have no advantage, but entropy bonus and KL pull on them all the same.
Where most groups are like that, the regularisers decide what the policy becomes. The probe splits a batch by the reward
spread of its groups and measures what each part would do on its own.

Simplification: gradients at the present weights, before any optimiser and any clipping; the critic is left out.

Source: arXiv 2604.06268 (RAGEN-2), gradient analysis; the signal-to-noise ratio is our own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ragen_algos.algorithms.base import Algorithm
from ragen_algos.losses import aggregate, kl_penalty
from ragen_algos.policy import LanguagePolicy
from ragen_algos.trajectory import Batch


@dataclass(frozen=True)
class GradientBucket:
    """L2 norms of the gradients of three losses on some groups, each loss averaged over these groups as the algorithm
    averages and without its coefficient."""

    groups: int
    rows: int
    tokens: int
    """Sampled ones."""
    std_min: float
    """Smallest Bessel-corrected standard deviation of raw returns in a group; 0 for a group of one."""
    std_mean: float
    std_max: float
    policy: float
    """The policy gradient (the algorithm's surrogate)."""
    entropy: float
    """Mean entropy."""
    kl: float | None
    """Mean KL to the reference; None without ``ref_logp``."""
    snr: float | None
    """``policy / (entropy_coef * entropy + kl_coef * kl)``; None if nothing is in the denominator."""


def gradient_buckets(
    policy: LanguagePolicy,
    algorithm: Algorithm,
    batch: Batch,
    advantages: torch.Tensor,
    *,
    ref_logp: torch.Tensor | None = None,
    buckets: int = 6,
    micro_batch: int = 16,
) -> list[GradientBucket]:
    """Gradient norms of groups with alike reward spread.

    Groups are sorted by the standard deviation of their raw returns (ties: by group id) and cut into ``buckets`` parts
    of equal size, up to one group. Gradients are taken beside the training state: no ``.grad``, parameter, optimiser or
    generator is touched. One forward and three backward passes over the batch.

    The KL is of the algorithm's kind if it is in the loss. As a penalty on the reward it acts through the advantages,
    and k2, whose gradient is that of the KL, stands for it here.

    Args:
        policy: With the weights before the update.
        algorithm: Whose surrogate, averaging and coefficients count.
        batch: Whole groups.
        advantages: [N, L] from ``algorithm.credit``.
        ref_logp: [N, L] log-probabilities under the reference, or None to leave the KL out.
        buckets: At most; fewer if there are fewer groups.
        micro_batch: Rows per forward pass.

    Returns:
        One entry per bucket, lowest spread first, and a last one for the whole batch.

    Source: arXiv 2604.06268 and its code, with quantile buckets.
    """
    ids, group = torch.unique(batch.group_id, return_inverse=True)
    returns = batch.returns.to("cpu", torch.float64).numpy()
    members = [np.flatnonzero(group.numpy() == g) for g in range(len(ids))]
    spread = np.array([returns[m].std(ddof=1) if len(m) > 1 else 0.0 for m in members])
    parts = np.array_split(np.argsort(spread, kind="stable"), min(buckets, len(ids)))

    whole: list[torch.Tensor] | None = None
    everything = algorithm.denominator(batch.loss_mask)
    out = []
    for part in parts:
        rows = torch.from_numpy(np.concatenate([members[g] for g in part]))
        share = algorithm.denominator(batch.loss_mask[rows])
        vectors = term_gradients(policy, algorithm, batch, advantages, rows, ref_logp=ref_logp, micro_batch=micro_batch)
        # A loss times its denominator is a sum over rows, so the parts add up to the whole.
        weighted = [v * (share / everything) for v in vectors]
        whole = weighted if whole is None else [a + b for a, b in zip(whole, weighted, strict=True)]
        out.append(_bucket(algorithm, batch, rows, spread[part], vectors))
    assert whole is not None
    out.append(_bucket(algorithm, batch, torch.arange(len(batch)), spread, whole))
    return out


def term_gradients(
    policy: LanguagePolicy,
    algorithm: Algorithm,
    batch: Batch,
    advantages: torch.Tensor,
    rows: torch.Tensor,
    *,
    ref_logp: torch.Tensor | None = None,
    micro_batch: int = 16,
) -> list[torch.Tensor]:
    """Gradients of surrogate, mean entropy and (with ``ref_logp``) mean KL over some rows, each as one flat vector.

    Arguments as in :func:`gradient_buckets`; the denominator is that of these rows.
    """
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    denominator = algorithm.denominator(batch.loss_mask[rows])
    kind = algorithm.kl_kind if algorithm.kl_in == "loss" and algorithm.kl_kind != "k1" else "k2"
    sums: list[torch.Tensor] | None = None
    for index in rows.split(micro_batch):
        part = batch.rows(index)
        width = part.ids.shape[1]
        with torch.enable_grad():
            logp, entropy = policy.log_probs(part, with_entropy=True)
            assert entropy is not None
            mask = part.loss_mask.to(logp.device)
            now = advantages[index, :width].to(logp.device)
            losses = [
                algorithm.surrogate(logp, part.logp.to(logp.device), now, mask, denominator),
                aggregate(entropy, mask, algorithm.aggregation, denominator),
            ]
            if ref_logp is not None:
                kl = kl_penalty(logp, ref_logp[index, :width].to(logp.device), kind, mask)
                losses.append(aggregate(kl, mask, algorithm.aggregation, denominator))
        vectors = []
        for k, loss in enumerate(losses):
            again = k + 1 < len(losses)
            found = torch.autograd.grad(loss, parameters, retain_graph=again, allow_unused=True)
            vectors.append(_flat(found, parameters))
        sums = vectors if sums is None else [a + b for a, b in zip(sums, vectors, strict=True)]
    assert sums is not None
    return sums


def _flat(gradients: tuple[torch.Tensor | None, ...], parameters: list[torch.Tensor]) -> torch.Tensor:
    pairs = zip(gradients, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def _bucket(
    algorithm: Algorithm, batch: Batch, rows: torch.Tensor, spread: np.ndarray, vectors: list[torch.Tensor]
) -> GradientBucket:
    policy, entropy, *kl = [float(v.norm()) for v in vectors]
    noise = algorithm.entropy_coef * entropy + algorithm.kl_coef * (kl[0] if kl else 0.0)
    return GradientBucket(
        groups=len(spread),
        rows=len(rows),
        tokens=int(batch.loss_mask[rows].sum()),
        std_min=float(spread.min()),
        std_mean=float(spread.mean()),
        std_max=float(spread.max()),
        policy=policy,
        entropy=entropy,
        kl=kl[0] if kl else None,
        snr=policy / noise if noise > 0 else None,
    )
