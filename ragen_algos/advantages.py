"""Credit: from rewards and returns to one advantage per trajectory or per sampled token.

Pure functions on plain tensors. Everything is computed in float64 on the CPU from detached inputs, whatever comes in,
because rounding of float32 rewards is enough to turn a group of equal returns into large advantages.

Shapes: ``N`` trajectories (one row each), ``L`` tokens. ``loss_mask`` is True where the policy sampled the token; only
those tokens carry rewards, values and advantages, and observations in between are skipped as if they were not there.

Simplifications: rows are whole trajectories, never single turns, so group statistics need no de-duplication; the
tolerance for "equal returns" is absolute (``EQUAL_RETURNS``), which suits returns of ordinary size.
"""

from __future__ import annotations

import warnings

import torch

SCALES = ("none", "batch", "group")
BASELINES = ("mean", "leave-one-out", "none")
EQUAL_RETURNS = 1e-6
"""Returns that differ by less than this count as equal: well above rounding, well below any reward difference."""


def _float64(x: torch.Tensor) -> torch.Tensor:
    return x.detach().to("cpu", torch.float64)


def _mask(loss_mask: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    if loss_mask.ndim != 2 or any(x.shape != loss_mask.shape for x in others):
        shapes = ", ".join(str(tuple(x.shape)) for x in (*others, loss_mask))
        raise ValueError(f"expected tensors of one shape [N, L], got {shapes} (the mask last)")
    return loss_mask.detach().to("cpu").bool()


def _rewards(rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Rewards in float64, or ValueError if one sits where nothing was sampled (it would be lost silently)."""
    rewards = _float64(rewards)
    stray = (rewards != 0) & ~mask
    if stray.any():
        row, column = stray.nonzero()[0].tolist()
        raise ValueError(
            f"row {row} has reward {rewards[row, column].item()} on token {column}, which was not sampled; "
            "see move_rewards_to_sampled"
        )
    return rewards


def group_advantages(
    returns: torch.Tensor,
    group_id: torch.Tensor,
    *,
    scale: str = "none",
    baseline: str = "mean",
    eps: float = 1e-6,
) -> torch.Tensor:
    """One advantage per trajectory, relative to the trajectories of the same group (same level and prompt).

    With ``mu`` the mean and ``sd`` the Bessel-corrected standard deviation of the returns ``R`` of a group of ``K``:

    ============  =================  ========================================================
    argument      value              meaning
    ============  =================  ========================================================
    ``baseline``  ``mean``           ``A = R - mu``
    ..            ``leave-one-out``  ``A = K/(K-1) (R - mu)``: R minus the mean of the others
    ..            ``none``           ``A = R``
    ``scale``     ``none``           as is
    ..            ``group``          ``A / (sd + eps)``, each group by its own
    ..            ``batch``          ``A / s``, one constant for the whole batch
    ============  =================  ========================================================

    ``s`` is the Bessel-corrected standard deviation over all ``N`` entries of ``R - mu``, before the leave-one-out
    factor and with the zeros of groups that carry no signal included (of ``R`` itself under ``baseline="none"``); no
    ``eps`` is added. If those ``N`` entries are all equal, every advantage is 0. A batch constant changes the step
    size only, while a constant per group re-weights the levels.

    A group whose largest and smallest return differ by less than ``EQUAL_RETURNS`` gets exactly 0, and so does a group
    of one, with a single warning per call (:func:`singleton_groups` counts them). Under ``baseline="none"`` no group
    statistic is needed unless ``scale="group"``, so both rules apply only there.

    Row order does not matter; groups may be interleaved.

    Args:
        returns: [N] raw episode returns.
        group_id: [N] integers.
        scale: one of ``SCALES``.
        baseline: one of ``BASELINES``.
        eps: added to the standard deviation of a group.

    Returns:
        [N] float64.

    Raises:
        ValueError: unknown option, wrong shape, or a return that is not finite (the message names the row).

    Sources: group mean and sd, DeepSeekMath (arXiv 2402.03300, section 4.1); mean only, Dr. GRPO (arXiv 2503.20783);
    leave-one-out, RLOO (arXiv 2402.14740, eq. 8). The batch constant and the zero rules are our own choice.
    """
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}; choose from {', '.join(SCALES)}")
    if baseline not in BASELINES:
        raise ValueError(f"unknown baseline {baseline!r}; choose from {', '.join(BASELINES)}")
    if returns.ndim != 1 or group_id.shape != returns.shape:
        raise ValueError(f"expected two vectors [N], got {tuple(returns.shape)} and {tuple(group_id.shape)}")
    returns = _float64(returns)
    bad = ~torch.isfinite(returns)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ValueError(f"the return of row {row} is {returns[row].item()}")
    if len(returns) == 0:
        return returns

    _, group, size = torch.unique(group_id.detach().to("cpu"), return_inverse=True, return_counts=True)
    zeros = torch.zeros(len(size), dtype=torch.float64)
    mean = zeros.index_add(0, group, returns) / size
    lowest = zeros.scatter_reduce(0, group, returns, "amin", include_self=False)
    highest = zeros.scatter_reduce(0, group, returns, "amax", include_self=False)
    flat = (highest - lowest < EQUAL_RETURNS)[group]  # groups of one are flat too
    # Set to 0, not left to subtraction: the residue of R - mu would be divided by a residue of sd.
    centred = (returns - mean[group]).masked_fill(flat, 0.0)

    if baseline == "none":
        advantages, basis = returns, returns
    else:
        factor = size / (size - 1).clamp(min=1) if baseline == "leave-one-out" else torch.ones_like(mean)
        advantages, basis = centred * factor[group], centred
    if scale == "group":
        sd = (zeros.index_add(0, group, centred**2) / (size - 1).clamp(min=1)).sqrt()
        advantages = (advantages / (sd + eps)[group]).masked_fill(flat, 0.0)
    elif scale == "batch":
        constant = bool(basis.max() - basis.min() < EQUAL_RETURNS)
        advantages = torch.zeros_like(advantages) if constant else advantages / basis.std(correction=1)

    singles = int((size == 1).sum())
    if singles and (baseline != "none" or scale == "group"):
        warnings.warn(f"{singles} group(s) hold a single trajectory; their advantage is 0", stacklevel=2)
    return advantages.clone() if advantages is returns else advantages


def singleton_groups(group_id: torch.Tensor) -> int:
    """How many groups of ``group_id`` [N] hold a single trajectory (their group-relative advantage is 0)."""
    _, size = torch.unique(group_id, return_counts=True)
    return int((size == 1).sum())


def token_gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    loss_mask: torch.Tensor,
    *,
    gamma: float,
    lam: float,
    bootstrap: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation over the sampled tokens, observations skipped.

    Over sampled tokens only, from the last to the first::

        delta_t = r_t + gamma V_next - V_t
        A_t     = delta_t + gamma lam A_next

    where ``V_next`` and ``A_next`` belong to the next *sampled* token; after the last one they are ``bootstrap`` and 0.
    An observation in between costs no factor ``gamma lam`` and its value is never read.

    Args:
        rewards: [N, L], non-zero on sampled tokens only.
        values: [N, L], the value of the state *before* each token; anything (even NaN) where nothing was sampled.
        loss_mask: [N, L], True on sampled tokens.
        gamma: discount per sampled token.
        lam: trace decay per sampled token.
        bootstrap: [N], the value of the state after the last token for truncated rows, 0 for terminated rows.

    Returns:
        ``advantages`` and ``returns = advantages + values``, both [N, L] float64 and 0 where nothing was sampled. The
        advantages are raw; whiten them afterwards.

    Raises:
        ValueError: shapes that differ, ``gamma`` or ``lam`` outside [0, 1], or a reward where nothing was sampled.

    Source: arXiv 1506.02438, eq. 16, on the compressed sequence of sampled tokens.
    """
    if not (0 <= gamma <= 1 and 0 <= lam <= 1):
        raise ValueError(f"gamma and lam must lie in [0, 1], got {gamma} and {lam}")
    mask = _mask(loss_mask, rewards, values)
    if bootstrap.shape != mask.shape[:1]:
        raise ValueError(f"bootstrap must have shape ({mask.shape[0]},), got {tuple(bootstrap.shape)}")
    rewards = _rewards(rewards, mask)
    values = _float64(values)
    advantages = torch.zeros_like(rewards)
    next_value = _float64(bootstrap)
    next_advantage = torch.zeros_like(next_value)
    for t in mask.any(0).nonzero().flatten().flip(0).tolist():  # columns in which no row sampled change nothing
        sampled, value = mask[:, t], values[:, t]
        advantage = rewards[:, t] + gamma * next_value - value + gamma * lam * next_advantage
        advantages[:, t] = torch.where(sampled, advantage, 0.0)
        next_value = torch.where(sampled, value, next_value)
        next_advantage = torch.where(sampled, advantage, next_advantage)
    return advantages, torch.where(mask, advantages + values, 0.0)


def returns_to_go(rewards: torch.Tensor, loss_mask: torch.Tensor, gamma: float = 1.0) -> torch.Tensor:
    """``G_t = r_t + gamma G_next`` over sampled tokens, carried unchanged through observations.

    Resetting the sum at a masked token would leave every turn but the last without return.

    Args:
        rewards: [N, L], non-zero on sampled tokens only.
        loss_mask: [N, L].
        gamma: discount per sampled token, counted backwards from the end.

    Returns:
        [N, L] float64, 0 where nothing was sampled.

    Raises:
        ValueError: shapes that differ, ``gamma`` outside [0, 1], or a reward where nothing was sampled.

    Source: REINFORCE++ (arXiv 2501.03262), with the observation rule of this project.
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma}")
    mask = _mask(loss_mask, rewards)
    rewards = _rewards(rewards, mask)
    result = torch.zeros_like(rewards)
    running = torch.zeros(len(rewards), dtype=torch.float64)
    for t in mask.any(0).nonzero().flatten().flip(0).tolist():
        running = torch.where(mask[:, t], rewards[:, t] + gamma * running, running)
        result[:, t] = torch.where(mask[:, t], running, 0.0)
    return result


def move_rewards_to_sampled(rewards: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
    """Move each reward on an observation or pad to the last sampled token before it, adding to what is there.

    Args:
        rewards: [N, L].
        loss_mask: [N, L].

    Returns:
        [N, L] float64 with the same row sums, non-zero on sampled tokens only.

    Raises:
        ValueError: shapes that differ, or a reward before the first sampled token of its row.
    """
    mask = _mask(loss_mask, rewards)
    rewards = _float64(rewards)
    column = torch.arange(mask.shape[1]).expand(mask.shape)
    target = torch.where(mask, column, -1).cummax(1).values if mask.numel() else column
    orphan = (rewards != 0) & (target < 0)
    if orphan.any():
        row, where = orphan.nonzero()[0].tolist()
        raise ValueError(f"row {row} has a reward on token {where}, before anything was sampled")
    return torch.zeros_like(rewards).scatter_add(1, target.clamp(min=0), rewards)


def rewards_at_end(returns: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
    """The whole episode return on the last sampled token of its row, 0 elsewhere.

    Args:
        returns: [N].
        loss_mask: [N, L].

    Returns:
        [N, L] float64.

    Raises:
        ValueError: wrong shapes, or a row with a return but without a sampled token.
    """
    mask = _mask(loss_mask)
    if returns.shape != mask.shape[:1]:
        raise ValueError(f"returns must have shape ({mask.shape[0]},), got {tuple(returns.shape)}")
    returns = _float64(returns)
    empty = ~mask.any(1) & (returns != 0)
    if empty.any():
        raise ValueError(f"row {int(empty.nonzero()[0])} has a return but no sampled token to put it on")
    left = mask.flip(1).long().cumsum(1).flip(1)  # sampled tokens from here on
    return torch.where(mask & (left == 1), returns[:, None], 0.0)


def whiten(x: torch.Tensor, mask: torch.Tensor, eps: float = 1e-8) -> torch.Tensor:
    """``(x - mean) / sqrt(var + eps)`` over the entries where ``mask`` is True, ``var`` Bessel-corrected.

    Call it on the whole batch, before cutting micro-batches. With fewer than two valid entries the result is 0.

    Args:
        x: any shape; read only where ``mask`` is True.
        mask: same shape.
        eps: added to the variance.

    Returns:
        float64 of the same shape, 0 where ``mask`` is False.

    Raises:
        ValueError: shapes that differ.
    """
    if x.shape != mask.shape:
        raise ValueError(f"x and mask differ in shape: {tuple(x.shape)} and {tuple(mask.shape)}")
    mask = mask.detach().to("cpu").bool()
    x = torch.where(mask, _float64(x), 0.0)
    valid = x[mask]
    if len(valid) < 2:
        return torch.zeros_like(x)
    return torch.where(mask, (x - valid.mean()) * torch.rsqrt(valid.var(correction=1) + eps), 0.0)


def broadcast_to_tokens(advantages: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
    """Every sampled token of a row gets the advantage of its trajectory.

    Args:
        advantages: [N].
        loss_mask: [N, L].

    Returns:
        [N, L] float64, 0 where nothing was sampled.

    Raises:
        ValueError: wrong shapes.
    """
    mask = _mask(loss_mask)
    if advantages.shape != mask.shape[:1]:
        raise ValueError(f"advantages must have shape ({mask.shape[0]},), got {tuple(advantages.shape)}")
    return torch.where(mask, _float64(advantages)[:, None], 0.0)
