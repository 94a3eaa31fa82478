"""Credit: from rewards and returns to one advantage per trajectory or per sampled token.

Pure functions on plain tensors. Everything is computed in float64 on the CPU from detached inputs, whatever comes in,
because rounding of float32 rewards is enough to turn a group of equal returns into large advantages.

Shapes: ``N`` trajectories (one row each), ``L`` tokens, ``T`` turns. ``loss_mask`` is True where the policy sampled the
token; only those tokens carry rewards, values and advantages, and observations in between are skipped as if they were
not there. ``turn_id`` is the index of the turn of a sampled token and -1 elsewhere; a turn without a sampled token was
not played and is skipped likewise.

Simplifications: rows are whole trajectories, never single turns, so group statistics need no de-duplication; the
tolerance for "equal returns" is absolute (``EQUAL_RETURNS``), which suits returns of ordinary size.
"""

from __future__ import annotations

import warnings

import torch

SCALES = ("none", "batch", "group")
BASELINES = ("mean", "leave-one-out", "none")
VALUE_PLACES = ("start", "end")
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


def _finite_returns(returns: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
    """Returns in float64; ValueError on wrong shapes or, with the row named, on one that is not finite."""
    if returns.ndim != 1 or group_id.shape != returns.shape:
        raise ValueError(f"expected two vectors [N], got {tuple(returns.shape)} and {tuple(group_id.shape)}")
    returns = _float64(returns)
    bad = ~torch.isfinite(returns)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ValueError(f"the return of row {row} is {returns[row].item()}")
    return returns


def _groups(returns: torch.Tensor, group_id: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Group index [N] of each row, size of each group, and whether a row's group has equal returns [N]."""
    _, group, size = torch.unique(group_id.detach().to("cpu"), return_inverse=True, return_counts=True)
    zeros = torch.zeros(len(size), dtype=torch.float64)
    lowest = zeros.scatter_reduce(0, group, returns, "amin", include_self=False)
    highest = zeros.scatter_reduce(0, group, returns, "amax", include_self=False)
    return group, size, (highest - lowest < EQUAL_RETURNS)[group]  # groups of one are flat too


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
    returns = _finite_returns(returns, group_id)
    if len(returns) == 0:
        return returns

    group, size, flat = _groups(returns, group_id)
    zeros = torch.zeros(len(size), dtype=torch.float64)
    mean = zeros.index_add(0, group, returns) / size
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


def opo_advantages(returns: torch.Tensor, lengths: torch.Tensor, group_id: torch.Tensor) -> torch.Tensor:
    """``R - sum(len R) / sum(len)`` within each group.

    The baseline of least variance if the squared gradient of a row grows with its length.

    Args:
        returns: [N] raw episode returns.
        lengths: [N] sampled tokens of each row, at least 1.
        group_id: [N] integers.

    Returns:
        [N] float64; 0 for groups of one and for groups of equal returns.

    Raises:
        ValueError: wrong shape, or a return that is not finite.

    Source: OPO (arXiv 2505.23585).
    """
    returns = _finite_returns(returns, group_id)
    if lengths.shape != returns.shape:
        raise ValueError(f"lengths must have shape {tuple(returns.shape)}, got {tuple(lengths.shape)}")
    group, size, flat = _groups(returns, group_id)
    zeros, lengths = torch.zeros(len(size), dtype=torch.float64), _float64(lengths)
    baseline = zeros.index_add(0, group, lengths * returns) / zeros.index_add(0, group, lengths)
    return (returns - baseline[group]).masked_fill(flat, 0.0)


def overlong_penalty(lengths: torch.Tensor, max_length: float, buffer: float, factor: float = 1.0) -> torch.Tensor:
    """What to add to the return of a row that ends within ``buffer`` tokens of ``max_length``, or beyond.

    ``min(0, -factor (len - (max_length - buffer)) / buffer)``: 0 up to the buffer, ``-factor`` at ``max_length``.

    Args:
        lengths: any shape, in sampled tokens.
        max_length: the longest length allowed.
        buffer: where the penalty begins, counted back from ``max_length``; above 0.
        factor: the penalty at ``max_length``.

    Returns:
        float64 of the shape of ``lengths``, never positive.

    Source: DAPO (arXiv 2503.14476, section 3.4).
    """
    if not buffer > 0:
        raise ValueError(f"buffer must be positive, got {buffer}")
    return (-factor * (_float64(lengths) - (max_length - buffer)) / buffer).clamp(max=0.0)


def _backwards(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    gamma: float,
    lam: float,
    bootstrap: torch.Tensor,
    ends: torch.Tensor | None = None,
) -> torch.Tensor:
    """The recursion of :func:`token_gae`; nothing follows a column where ``ends`` is True."""
    advantages = torch.zeros_like(rewards)
    next_value = bootstrap
    next_advantage = torch.zeros_like(next_value)
    for t in mask.any(0).nonzero().flatten().flip(0).tolist():  # columns in which no row sampled change nothing
        if ends is not None:
            next_value = torch.where(ends[:, t], 0.0, next_value)
            next_advantage = torch.where(ends[:, t], 0.0, next_advantage)
        sampled, value = mask[:, t], values[:, t]
        advantage = rewards[:, t] + gamma * next_value - value + gamma * lam * next_advantage
        advantages[:, t] = torch.where(sampled, advantage, 0.0)
        next_value = torch.where(sampled, value, next_value)
        next_advantage = torch.where(sampled, advantage, next_advantage)
    return advantages


def _gae_inputs(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    bootstrap: torch.Tensor,
    *discounts: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, values and bootstrap in float64, or ValueError."""
    if not all(0 <= x <= 1 for x in discounts):
        raise ValueError(f"gamma and lam must lie in [0, 1], got {' and '.join(map(str, discounts))}")
    if bootstrap.shape != mask.shape[:1]:
        raise ValueError(f"bootstrap must have shape ({mask.shape[0]},), got {tuple(bootstrap.shape)}")
    return _rewards(rewards, mask), _float64(values), _float64(bootstrap)


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
    mask = _mask(loss_mask, rewards, values)
    rewards, values, bootstrap = _gae_inputs(rewards, values, mask, bootstrap, gamma, lam)
    advantages = _backwards(rewards, values, mask, gamma, lam, bootstrap)
    return advantages, torch.where(mask, advantages + values, 0.0)


def _turns(turn_id: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The column [N, L] of each token in a table of turns, and ``T``; what was not sampled has a last column, ``T``."""
    turn_id = turn_id.detach().to("cpu")
    count = int(turn_id.max()) + 1 if turn_id.numel() else 0
    return torch.where(turn_id < 0, count, turn_id), count


def sum_per_turn(x: torch.Tensor, turn_id: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum over the sampled tokens of each turn.

    Args:
        x: [N, L]; read where ``turn_id`` is not negative.
        turn_id: [N, L].

    Returns:
        The sums [N, T] float64, ``T`` being the largest turn index plus 1, and [N, T] whether the turn was played.
    """
    _mask(turn_id >= 0, x)
    index, count = _turns(turn_id)
    sums = torch.zeros(len(index), count + 1, dtype=torch.float64).scatter_add(1, index, _float64(x))
    counts = torch.zeros(len(index), count + 1, dtype=torch.long).scatter_add(1, index, torch.ones_like(index))
    return sums[:, :-1], counts[:, :-1] > 0


def at_turn(x: torch.Tensor, turn_id: torch.Tensor, where: str) -> torch.Tensor:
    """[N, T]: ``x`` [N, L] at the first (``start``) or last (``end``) sampled token of each turn, 0 if not played."""
    if where not in VALUE_PLACES:
        raise ValueError(f"unknown place {where!r}; choose from {', '.join(VALUE_PLACES)}")
    index, count = _turns(turn_id)
    column = torch.arange(index.shape[1]).expand(index.shape)
    places = torch.full((len(index), count + 1), -1)
    places = places.scatter_reduce(1, index, column, "amin" if where == "start" else "amax", include_self=False)
    places = places[:, :-1]
    return torch.where(places < 0, torch.zeros((), dtype=x.dtype), x.detach().to("cpu").gather(1, places.clamp(min=0)))


def turns_to_tokens(x: torch.Tensor, turn_id: torch.Tensor) -> torch.Tensor:
    """Every sampled token of a turn gets the number of its turn.

    Args:
        x: [N, T].
        turn_id: [N, L].

    Returns:
        [N, L] float64, 0 where nothing was sampled.
    """
    index, _ = _turns(turn_id)
    return torch.nn.functional.pad(_float64(x), (0, 1)).gather(1, index)


def turn_gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    turn_id: torch.Tensor,
    *,
    gamma: float,
    lam: float,
    bootstrap: torch.Tensor,
    v_at: str = "start",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation with the turn as the step.

    ``r_k`` sums the rewards of the tokens of turn ``k``, ``V_k`` is the value before the first token of the turn
    (``v_at="start"``: the state in which the turn is decided) or before its last (``"end"``: almost all is said), and::

        delta_k = r_k + gamma V_{k+1} - V_k
        A_k     = delta_k + gamma lam A_{k+1}

    Args:
        rewards, values: [N, L] as in :func:`token_gae`.
        turn_id: [N, L].
        gamma, lam: discount and trace decay per turn.
        bootstrap: [N] as in :func:`token_gae`.
        v_at: one of ``VALUE_PLACES``.

    Returns:
        Raw advantages, returns ``A_k + V_k``, and whether the turn was played, all [N, T]; float64, and 0 for turns
        not played. Whiten over turns, then :func:`turns_to_tokens`.

    Raises:
        ValueError: as :func:`token_gae`, or an unknown ``v_at``.

    Source: Turn-PPO (arXiv 2512.17008) and StepPO (arXiv 2604.18401); ``v_at="end"`` is the "turn-wise" form of VAGEN
    (arXiv 2510.16907).
    """
    mask = _mask(turn_id >= 0, rewards, values)
    rewards, values, bootstrap = _gae_inputs(rewards, values, mask, bootstrap, gamma, lam)
    per_turn, played = sum_per_turn(rewards, turn_id)
    before = at_turn(values, turn_id, v_at)
    advantages = _backwards(per_turn, before, played, gamma, lam, bootstrap)
    return advantages, torch.where(played, advantages + before, 0.0), played


def bilevel_gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    loss_mask: torch.Tensor,
    turn_end: torch.Tensor,
    *,
    gamma: float,
    lam: float,
    turn_gamma: float,
    bootstrap: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages over turns first, then within each turn.

    ``e_1 < e_2 < ...`` are the last sampled tokens of the turns of a row. Over turns, with ``r_k`` the rewards from
    ``e_k`` up to, but without, ``e_{k+1}``::

        delta_k = r_k + turn_gamma V(e_{k+1}) - V(e_k)
        A_k     = delta_k + turn_gamma lam A_{k+1}
        G_k     = A_k + V(e_k)

    After the last turn ``V`` is ``bootstrap``. Then token GAE with ``gamma`` and ``lam`` inside each turn, as if
    nothing followed its end and ``G_k`` were the reward there. So a discount can work between turns, whatever their
    lengths.

    Turn ends are given, never guessed from rewards that are not 0: a turn without reward keeps its boundary.

    Args:
        rewards, values, loss_mask, bootstrap: as in :func:`token_gae`.
        turn_end: [N, L] bool, True on the last sampled token of each turn.
        gamma, lam: per token within a turn; ``lam`` also per turn.
        turn_gamma: discount per turn.

    Returns:
        Raw ``advantages`` and ``returns = advantages + values``, as in :func:`token_gae`. With all three discounts at 1
        they are equal to those of :func:`token_gae`.

    Raises:
        ValueError: as :func:`token_gae`, or a turn end that does not fit the mask.

    Source: VAGEN (arXiv 2510.16907). With rewards on turn ends only, ``r_k`` is the reward of the turn; the placing of
    other rewards, such as a KL penalty per token, is ours and counts each of them once.
    """
    mask = _mask(loss_mask, rewards, values)
    ends = _mask(turn_end, loss_mask)
    rewards, values, bootstrap = _gae_inputs(rewards, values, mask, bootstrap, gamma, lam, turn_gamma)
    last = mask & (mask.flip(1).long().cumsum(1).flip(1) == 1)
    bad = (ends & ~mask) | (last & ~ends)
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(f"turn_end and loss_mask disagree in row {row} at token {column}")
    since = ends.long().cumsum(1) - 1  # the turn whose end was passed last, -1 before the first
    between, _ = sum_per_turn(torch.where(since < 0, 0.0, rewards), since)
    at_end, ended = sum_per_turn(torch.where(ends, values, 0.0), torch.where(ends, since, -1))
    over_turns = _backwards(between, at_end, ended, turn_gamma, lam, bootstrap) + at_end
    rewards = torch.where(ends, turns_to_tokens(over_turns, torch.where(ends, since, -1)), rewards)
    advantages = _backwards(rewards, values, mask, gamma, lam, bootstrap, ends)
    return advantages, torch.where(mask, advantages + values, 0.0)


def gigpo_advantages(
    rewards: torch.Tensor,
    turn_id: torch.Tensor,
    observation_id: torch.Tensor,
    group_id: torch.Tensor,
    *,
    gamma: float,
    step_weight: float = 1.0,
    scale: str = "none",
) -> torch.Tensor:
    """Credit of the episode against its group, plus credit of the turn against turns taken from the same sight.

    ``A = A_episode + step_weight A_turn``. ``A_episode`` compares episode returns within a group of trajectories, each
    trajectory counting once. ``A_turn`` compares the discounted return from turn ``k`` on,
    ``G_k = r_k + gamma G_{k+1}``, among all turns of the same group before which the same was observed (an anchor); a
    turn whose anchor nobody shares gets 0. Both by :func:`group_advantages` with ``scale``.

    Args:
        rewards: [N, L], non-zero on sampled tokens only.
        turn_id: [N, L].
        observation_id: [N, L], equal for equal observations, constant within a turn.
        group_id: [N].
        gamma: discount per turn.
        step_weight: weight of the second part.
        scale: one of ``SCALES``; ``batch`` divides by one constant for each part.

    Returns:
        [N, L] float64, constant within a turn, 0 where nothing was sampled.

    Source: GiGPO (arXiv 2505.10978, section 4). Its public code averages episode returns over turns; the paper, and
    this, over trajectories.
    """
    mask = _mask(turn_id >= 0, rewards, observation_id)
    per_turn, played = sum_per_turn(_rewards(rewards, mask), turn_id)
    episode = group_advantages(per_turn.sum(1), group_id, scale=scale)
    to_go = returns_to_go(per_turn, played, gamma)[played]
    sights = at_turn(observation_id, turn_id, "start")[played]
    groups = group_id.detach().to("cpu")[:, None].expand(played.shape)[played]
    _, anchor, size = torch.unique(torch.stack([groups, sights], 1), dim=0, return_inverse=True, return_counts=True)
    shared = size[anchor] > 1
    turn = torch.zeros_like(to_go)
    turn[shared] = group_advantages(to_go[shared], anchor[shared], scale=scale)
    per_turn = torch.zeros_like(per_turn).masked_scatter(played, turn)
    return turns_to_tokens(torch.where(played, episode[:, None] + step_weight * per_turn, 0.0), turn_id)


def mt_grpo_advantages(
    rewards: torch.Tensor,
    turn_id: torch.Tensor,
    group_id: torch.Tensor,
    *,
    turn_weight: float = 1.0,
    scale: str = "group",
) -> torch.Tensor:
    """The first turn is credited with its own reward and with what came after it, later turns with the latter alone.

    ``A_first`` and ``A_rest`` are :func:`group_advantages` of the reward of the first turn and of the sum of all later
    rewards, with an ``eps`` of 1e-4 under ``scale="group"``. Tokens of the first turn get
    ``A_rest + turn_weight A_first``, later tokens ``A_rest``. A row of a single turn gets the group advantage of its
    whole return instead.

    Args:
        rewards, turn_id: [N, L].
        group_id: [N].
        turn_weight: weight of the first turn's own reward.
        scale: one of ``SCALES``.

    Returns:
        [N, L] float64, 0 where nothing was sampled.

    Source: MT-GRPO (arXiv 2505.11821), with the tool call as first turn and the answer as the rest.
    """
    mask = _mask(turn_id >= 0, rewards)
    per_turn, played = sum_per_turn(_rewards(rewards, mask), turn_id)
    whole = per_turn.sum(1)
    is_first = played & (played.long().cumsum(1) == 1)
    first = torch.where(is_first, per_turn, 0.0).sum(1)
    of_first, of_rest, of_whole = (
        group_advantages(x, group_id, scale=scale, eps=1e-4) for x in (first, whole - first, whole)
    )
    credit = of_rest[:, None] + turn_weight * torch.where(is_first, of_first[:, None], 0.0)
    credit = torch.where(played.sum(1, keepdim=True) > 1, credit, of_whole[:, None])
    return turns_to_tokens(torch.where(played, credit, 0.0), turn_id)


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

    Call it on the whole batch, before cutting micro-batches. With fewer than two valid entries the result is 0, and
    also if all of them are equal up to rounding (``EQUAL_RETURNS``), as their residue is no signal.

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
    if len(valid) < 2 or valid.max() - valid.min() < EQUAL_RETURNS:
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
