"""Exact policy updates: what the algorithms do when every expectation is computed instead of sampled.

Notation of one sweep (one rollout batch in the paper). ``pi`` are the policies at its start, ``y`` a joint action::

    A(s, y) = R(s, y) - E_pi[R | s]             advantage: the mean of the group is the baseline
    M       = A                                 the weight with which a turn learns
    for t in order:
        pi'_t = argmax_q  E_pi[ surrogate(q(y_t) / pi_t(y_t), M) ]
        M     = M pi'_t(y_t) / pi_t(y_t)        correction="paper"; "none" leaves M = A

:func:`sweep` is these lines. Rules that solve the argmax, for every history by itself: :func:`best_response`,
:func:`clipped_argmax`, :func:`gradient_step`. The factor in the last line makes the next turn see the agents that have
already moved as they are now: E_pi[M f(y)] is the mean of A f(y) under the new policies of the turns done and the old
ones of the rest. Hence, with the unclipped surrogate (q/pi - 1) M, the objective of each turn *is* the change of J, and
the changes add up to the gain of the sweep (:func:`telescope`).

Without the correction the order does not matter: every turn answers the policies at the start of the sweep, which is a
simultaneous update.

Source: SeeUPO, arXiv 2602.06554, equations 3 to 9 (mirror learning for agents in sequence: HAML). The closed forms and
the tie rule are our own derivation. Simplification: every turn has parameters of its own and every response is one
token, so the ratios of sequence, token and turn agree, and so do the paper's M and the exact suffix ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ragen_algos.turn_games.games import Array, Policies, TurnGame

ORDERS = ("reverse", "forward", "random", "simultaneous")
CORRECTIONS = ("paper", "code", "none")
SCALES = ("none", "batch", "group")
CODE_CLIP = (0.8, 1.2)
"""Range to which the published code clips each factor of M, and their product."""
TIE = 1e-12
"""Slopes closer than this (times the largest return in absolute value, if that is above 1) count as equal."""


@dataclass(frozen=True)
class Expected:
    """What a rule knows of its turn: means given what the agent sees and its action ``a``, shape [..., A].

    ``mean``, ``up``, ``down``: of M, of max(M, 0) and of min(M, 0). ``reach``: probability of what the agent sees, the
    same for every action. Where it is 0 everything else is 0 too, and no rule changes the policy.
    """

    mean: Array
    up: Array
    down: Array
    reach: Array

    @classmethod
    def of(cls, m: Array, total: Callable[[Array], Array], weight: Array, reach: Array) -> Expected:
        """From the weights ``m``, their ``total`` for what is seen and done, and the ``weight`` that divides it."""
        safe = np.where(weight > 0, weight, 1.0)
        mean, up, down = (total(x) / safe for x in (m, np.maximum(m, 0), np.minimum(m, 0)))
        return cls(mean, up, down, reach)


Rule = Callable[[Array, Expected], Array]
"""From a policy [..., A] and what is expected to the new policy [..., A]."""


def spread(policy: Array, low: Array, high: Array) -> Array:
    """Among all q with ``low <= q <= high`` and sum 1 the one closest to ``policy`` (in KL from q to it), on [..., A].

    The optimum is ``q_a = clip(c policy_a, low_a, high_a)`` with one ``c``, found exactly among its breakpoints. An
    action with ``policy_a = 0`` gets ``low_a``.
    """
    safe = np.where(policy > 0, policy, 1.0)
    breaks = np.sort(np.concatenate([low / safe, high / safe], -1), -1)
    mass = np.clip(breaks[..., None] * policy[..., None, :], low[..., None, :], high[..., None, :]).sum(-1)
    after = np.clip((mass < 1).sum(-1, keepdims=True), 1, breaks.shape[-1] - 1)  # first break with enough mass
    left, right = (np.take_along_axis(breaks, after - step, -1) for step in (1, 0))
    m_left, m_right = (np.take_along_axis(mass, after - step, -1) for step in (1, 0))
    rise = m_right - m_left
    share = np.clip(np.divide(1 - m_left, rise, out=np.zeros_like(rise), where=rise > 0), 0, 1)
    q = np.clip((left + share * (right - left)) * policy, low, high)
    return q / q.sum(-1, keepdims=True)


def best_response(policy: Array, expected: Expected) -> Array:
    """The best action for sure; among equally good ones, the old proportions."""
    tie = TIE * max(1.0, float(np.abs(expected.mean).max()))
    best = expected.mean >= expected.mean.max(-1, keepdims=True) - tie
    kept = policy * best
    kept = np.where(kept.sum(-1, keepdims=True) > 0, kept, best)
    q = kept / kept.sum(-1, keepdims=True)
    return np.where(best.all(-1, keepdims=True), policy, q)


def clipped_argmax(policy: Array, expected: Expected, eps: float = 0.2) -> Array:
    """The exact maximiser over the simplex of ``E_pi[min(u M, clip(u, 1 - eps, 1 + eps) M)]``, ``u = q/pi``.

    For one action the objective is concave and piecewise linear in ``q_a``, with kinks at ``(1 - eps) pi_a`` and
    ``(1 + eps) pi_a``. Its slopes are E[max(M, 0) | a], E[M | a], E[min(M, 0) | a]: below the clip range only samples
    with positive M still count, above it only those with negative M. Such a sum is maximised by filling the segments in
    the order of their slopes until the mass is 1. What slopes leave open, :func:`spread` closes: of all maximisers the
    one closest to the old policy. Actions without probability stay without (nothing samples them).

    Own derivation. The surrogate never exceeds ``u M`` and equals it at ``u = 1``, so ``E_q[M] >= E_pi[M]``: this step
    never lowers the return as long as the other agents stay as M assumes them.
    """
    moving = (policy.max(-1) < 1) & (expected.reach[..., 0] > 0)  # the rest stays as it is
    pi, mean, up, down = (x[moving] for x in (policy, expected.mean, expected.up, expected.down))
    tie = TIE * max(1.0, float(np.abs([up, down]).max(initial=0.0)))
    slopes = np.concatenate([up, mean, down], -1)
    room = np.concatenate([(1 - eps) * pi, 2 * eps * pi, np.where(pi > 0, 1.0, 0.0)], -1)
    order = np.argsort(-slopes, axis=-1, kind="stable")
    filled = np.take_along_axis(room, order, -1).cumsum(-1)
    last = (filled < 1 - 1e-12).sum(-1, keepdims=True)  # the segment in which the mass reaches 1
    margin = np.take_along_axis(np.take_along_axis(slopes, order, -1), last, -1)
    by_action = (len(pi), 3, pi.shape[-1])
    low = np.where(slopes > margin + tie, room, 0.0).reshape(by_action).sum(1)
    high = np.where(slopes >= margin - tie, room, 0.0).reshape(by_action).sum(1)
    q = policy.copy()
    q[moving] = spread(pi, low, np.minimum(high, 1.0))
    return q


def gradient_step(policy: Array, expected: Expected, lr: float = 1.0) -> Array:
    """One step of exact gradient ascent on softmax logits, from ``u = 1``, where no clip acts."""
    gain = expected.mean - (policy * expected.mean).sum(-1, keepdims=True)
    step = lr * expected.reach * policy * gain
    weights = policy * np.exp(step - step.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def advantages(game: TurnGame, policies: Policies, scale: str = "none") -> Array:
    """``R - E[R | s]`` for every context and joint action, [S, A_1, ..., A_T], in the limit of large groups.

    Args:
        game: the game.
        policies: define the mean.
        scale: ``none``; ``batch`` divides by one standard deviation, that of ``R - E[R | s]`` over everything;
            ``group`` divides by that of each context (as GRPO does). Both include the noise; 0 divides by 1.
    """
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}; choose from {', '.join(SCALES)}")
    per_context = (len(game.returns), *[1] * game.turns)
    centred = game.returns - game.values(policies).reshape(per_context)
    if scale == "none":
        return centred
    joint = math.prod(policies, start=np.ones_like(game.returns))
    variance = (joint * centred**2).reshape(len(centred), -1).sum(1)
    if game.noise is not None:
        variance = variance + game.noise
    if scale == "batch":
        variance = np.full_like(variance, variance.mean())
    sd = np.sqrt(variance).reshape(per_context)
    return centred / np.where(sd > 0, sd, 1.0)


def ratio(new: Array, old: Array) -> Array:
    """``new / old``, and 1 where the old probability is 0 (nothing was sampled there)."""
    return np.divide(new, old, out=np.ones(np.broadcast_shapes(new.shape, old.shape)), where=old > 0)


def expected(game: TurnGame, policies: Policies, turn: int, m: Array) -> Expected:
    """:class:`Expected` of one turn by enumeration, with the actions of that turn on the last axis.

    Args:
        game: the game.
        policies: those that play (the old ones, during a sweep).
        turn: whose, 0 is the first.
        m: [S, A_1, ..., A_T] weight of every joint action.
    """
    others = math.prod((p for t, p in enumerate(policies) if t != turn), start=np.ones_like(game.returns))
    others = others / len(game.returns)
    unseen = tuple(axis for axis, n in enumerate(policies[turn].shape) if n == 1)

    def total(x: Array) -> Array:
        return np.moveaxis((others * x).sum(axis=unseen, keepdims=True), turn + 1, -1)

    reach = total(np.ones_like(m))
    return Expected.of(m, total, weight=reach, reach=reach)


def order_of(name: str, turns: int, contexts: int = 1, rng: np.random.Generator | None = None) -> npt.NDArray[np.int64]:
    """[contexts, T] the turns in the order of their update; ``random`` draws one order per context.

    ``simultaneous`` returns the reverse order: use it without a correction.
    """
    if name not in ORDERS:
        raise ValueError(f"unknown order {name!r}; choose from {', '.join(ORDERS)}")
    forward = np.tile(np.arange(turns), (contexts, 1))
    if name == "random":
        if rng is None:
            raise ValueError("a random order needs a generator")
        return rng.permuted(forward, axis=1)
    return forward if name == "forward" else forward[:, ::-1]


def sweep(
    game: TurnGame,
    policies: Policies,
    rule: Rule,
    order: Sequence[int] | npt.NDArray[np.int64],
    correction: str = "paper",
    scale: str = "none",
) -> Policies:
    """Update the turns in ``order``, all from the policies at the start; the docstring of this file has the formulas.

    Args:
        game: the game.
        policies: the old ones; not changed.
        rule: how a turn moves, e.g. :func:`clipped_argmax`.
        order: turns [T] (0 is the first; those left out do not move), or one order per context [S, T].
        correction: ``paper``: M is multiplied by the ratio of every turn that has moved. ``code``: the same with each
            factor and their product clipped to ``CODE_CLIP``, as in the published code. ``none``: M = A.
        scale: of the advantages.

    Returns:
        The new policies.

    Raises:
        ValueError: an unknown option, or one order per context for agents that do not see the context.

    Noise acts through the scale only. A rule that is not linear in M (:func:`clipped_argmax`) sees the mean returns.
    """
    if correction not in CORRECTIONS:
        raise ValueError(f"unknown correction {correction!r}; choose from {', '.join(CORRECTIONS)}")
    orders = np.atleast_2d(np.asarray(order, dtype=np.int64))
    if len(orders) > 1 and game.sees == "nothing":
        raise ValueError("agents that do not see the context need one order for all contexts")
    a = advantages(game, policies, scale)
    c = np.ones_like(a)
    new = list(policies)
    for position in range(orders.shape[1]):
        done = []  # ratios of the turns at this position: one for all contexts, or one for each
        for turn in np.unique(orders[:, position]).tolist():
            old = policies[turn]
            moved = np.moveaxis(
                rule(np.moveaxis(old, turn + 1, -1), expected(game, policies, turn, a * c)), -1, turn + 1
            )
            mine = (orders[:, position] == turn).reshape(-1, *[1] * game.turns)
            new[turn] = np.where(mine, moved, new[turn])
            done.append(np.where(mine, ratio(moved, old), 1.0))
        if correction == "paper":
            c = math.prod(done, start=c)
        elif correction == "code":
            c = np.clip(c * np.clip(math.prod(done), *CODE_CLIP), *CODE_CLIP)
    return tuple(new)


def improve(
    game: TurnGame,
    policies: Policies,
    rule: Rule,
    order: str,
    sweeps: int,
    correction: str = "paper",
    scale: str = "none",
    rng: np.random.Generator | None = None,
) -> tuple[Array, Policies]:
    """``sweeps`` sweeps of one kind; ``order`` is one of ``ORDERS``, and a random one is drawn anew in each sweep.

    Returns:
        [sweeps + 1, S] the values of every context at the start and after each sweep, and the last policies.
    """
    values = [game.values(policies)]
    if order == "simultaneous":
        correction = "none"
    for _ in range(sweeps):
        turns = order_of(order, game.turns, len(policies[0]), rng)
        new = sweep(game, policies, rule, turns, correction, scale)
        if order != "random" and all(np.array_equal(p, q) for p, q in zip(policies, new, strict=True)):
            values += [values[-1]] * (sweeps + 1 - len(values))  # nothing will ever move again
            break
        policies = new
        values.append(game.values(policies))
    return np.array(values), policies


def telescope(game: TurnGame, old: Policies, new: Policies, order: Sequence[int]) -> Array:
    """[len(order)] the objective ``E_old[(u_t - 1) M]`` of each turn as it moves from ``old`` to ``new``.

    Each equals J after minus J before that turn moved, for any order (own derivation; equations 3 to 5 of
    arXiv 2602.06554 in exact expectation).
    """
    a = advantages(game, old)
    joint = math.prod(old, start=np.ones_like(a)) / len(a)
    gains, c = [], np.ones_like(a)
    for turn in order:
        u = ratio(new[turn], old[turn])
        gains.append((joint * (u - 1) * c * a).sum())
        c = c * u
    return np.array(gains)
