"""The same sweep on sampled trajectories: what has to be kept in mind when rows are shuffled, missing or idle.

:func:`sweep_rows` is one iteration of SeeUPO on a batch: weights M start at the advantage of each trajectory, each turn
learns from the trajectories that reached it, and M of exactly those is multiplied by their ratio. Its rules:

1. The correction belongs to a trajectory, so it is kept by trajectory id, never by position.
2. A turn that did not happen (action -1) has ratio 1, no gradient and no change of M; a turn that happened nowhere is
   no step at all.
3. Means divide by *all* trajectories, those without this turn included.
4. A group of one, or one of equal returns, has advantage 0.

Source: the practical algorithm of SeeUPO (arXiv 2602.06554, equations 6 to 9); rules 1, 2 and 4 repair its published
code (AgentEvolver), rule 3 is our own. Simplification: tables instead of networks, one token per response.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ragen_algos.turn_games.games import Array, Policies, TurnGame
from ragen_algos.turn_games.updates import CODE_CLIP, CORRECTIONS, Expected, Rule

Ints = npt.NDArray[np.int64]
RATIOS = ("token", "seq_prod", "seq_geo")
EQUAL_RETURNS = 1e-6
"""Returns of a group that differ by less than this count as equal."""


def turn_ratio(log_ratio: Array, kind: str) -> Array:
    """Ratios of one turn from the log-ratios [..., L] of its tokens; all kinds agree for a turn of one token.

    Args:
        log_ratio: log of new over old probability of each token of the turn, no padding.
        kind: ``token``: [..., L], one ratio per token. ``seq_prod``: [...], their product, the ratio of the whole
            response, which the theory needs. ``seq_geo``: [...], their geometric mean, which the paper uses (as GSPO
            does, arXiv 2507.18071).
    """
    if kind not in RATIOS:
        raise ValueError(f"unknown ratio {kind!r}; choose from {', '.join(RATIOS)}")
    if kind == "token":
        return np.exp(log_ratio)
    return np.exp(log_ratio.sum(-1) if kind == "seq_prod" else log_ratio.mean(-1))


def correct(
    corrections: dict[int, float],
    trajectories: Iterable[int],
    ratios: Iterable[float],
    clip: tuple[float, float] | None = None,
) -> None:
    """Multiply the running correction of each trajectory by its ratio, in place; 1 where none is kept yet.

    Args:
        corrections: by trajectory id.
        trajectories: ids of the rows of this turn, in any order.
        ratios: new over old probability, in the same order.
        clip: range of each factor *and* of the product (``CODE_CLIP`` is that of the published code); None for none.
    """
    for trajectory, factor in zip(trajectories, ratios, strict=True):
        if clip is not None:
            factor = min(max(factor, clip[0]), clip[1])
        product = corrections.get(trajectory, 1.0) * factor
        corrections[trajectory] = product if clip is None else min(max(product, clip[0]), clip[1])


def group_centred(returns: Array, group: Ints) -> Array:
    """[N] return minus the mean of its group, and exactly 0 in groups of one or of equal returns."""
    _, index, size = np.unique(group, return_inverse=True, return_counts=True)
    mean = np.bincount(index, weights=returns) / size
    low, high = np.full(len(size), np.inf), np.full(len(size), -np.inf)
    np.minimum.at(low, index, returns)
    np.maximum.at(high, index, returns)
    return np.where((high - low < EQUAL_RETURNS)[index], 0.0, returns - mean[index])


@dataclass(frozen=True, eq=False)
class Rows:
    """N trajectories, in any order.

    ``trajectory`` [N] ids, all different; ``context`` [N]; ``actions`` [N, T], -1 from the turn on that did not happen;
    ``returns`` [N]; ``group`` [N], trajectories whose mean return is the baseline.
    """

    trajectory: Ints
    context: Ints
    actions: Ints
    returns: Array
    group: Ints

    def __len__(self) -> int:
        return len(self.trajectory)

    def take(self, rows: Ints) -> Rows:
        """These rows in this order."""
        return Rows(self.trajectory[rows], self.context[rows], self.actions[rows], self.returns[rows], self.group[rows])


def sample(game: TurnGame, policies: Policies, trajectories: int, rng: np.random.Generator) -> Rows:
    """``trajectories`` plays of each context, one group per context."""
    context = np.repeat(np.arange(len(game.returns)), trajectories)
    actions = np.full((len(context), game.turns), -1)
    for turn, policy in enumerate(policies):
        chances = np.moveaxis(policy, turn + 1, -1)
        seen = [np.where(n > 1, column, 0) for n, column in zip(policy.shape, [context, *actions.T], strict=True)]
        p = chances[tuple(np.delete(np.array(seen), turn + 1, axis=0))]
        drawn = (p.cumsum(-1) < rng.random((len(p), 1))).sum(-1)
        actions[:, turn] = np.minimum(drawn, p.shape[-1] - 1)
    returns = game.returns[(context, *actions.T)]
    if game.noise is not None:
        returns = returns + rng.standard_normal(len(returns)) * np.sqrt(game.noise[context])
    return Rows(np.arange(len(context)), context, actions, returns, context)


def cells(policy: Array, rows: Rows) -> Ints:
    """[N] where in the flattened policy the choice of each row stands."""
    columns = [rows.context, *rows.actions.T]
    seen = [column if n > 1 else np.zeros_like(column) for n, column in zip(policy.shape, columns, strict=True)]
    return np.ravel_multi_index(tuple(seen), policy.shape).astype(np.int64)


@dataclass(frozen=True)
class Swept:
    """Outcome of :func:`sweep_rows`: new policies, the final correction by trajectory id, steps taken."""

    policies: Policies
    corrections: dict[int, float]
    steps: int


def sweep_rows(
    policies: Policies,
    rows: Rows,
    rule: Rule,
    order: Sequence[int],
    correction: str = "paper",
    rng: np.random.Generator | None = None,
) -> Swept:
    """Update the turns in ``order`` from one batch.

    Args:
        policies: those that sampled the batch; not changed.
        rows: the batch.
        rule: how a turn moves; it is given sample means, weighted by 1/pi, in place of expectations.
        order: turns, 0 is the first.
        correction: as in :func:`~ragen_algos.turn_games.updates.sweep`.
        rng: if given, the rows are shuffled before every turn, as balancing them over devices would do.

    Raises:
        ValueError: an unknown correction, or two rows of one trajectory.
    """
    if correction not in CORRECTIONS:
        raise ValueError(f"unknown correction {correction!r}; choose from {', '.join(CORRECTIONS)}")
    if len(np.unique(rows.trajectory)) < len(rows):
        raise ValueError("trajectory ids must all be different")
    advantage = dict(zip(rows.trajectory.tolist(), group_centred(rows.returns, rows.group).tolist(), strict=True))
    corrections = dict.fromkeys(advantage, 1.0)
    new, steps = list(policies), 0
    for turn in order:
        live = np.flatnonzero(rows.actions[:, turn] >= 0)
        if not len(live):
            continue
        batch = rows.take(live if rng is None else rng.permutation(live))
        ids = batch.trajectory.tolist()
        m = np.array([advantage[i] * corrections[i] for i in ids])
        old, where = policies[turn], cells(policies[turn], batch)
        new[turn] = _apply(rule, old, turn, where, m, len(rows))
        steps += 1
        if correction != "none":
            ratios = new[turn].flat[where] / old.flat[where]
            correct(corrections, ids, ratios.tolist(), CODE_CLIP if correction == "code" else None)
    return Swept(tuple(new), corrections, steps)


def _apply(rule: Rule, old: Array, turn: int, where: Ints, m: Array, total: int) -> Array:
    def sums(x: Array) -> Array:
        """[..., A] of ``x`` summed over the rows of each cell, per trajectory of the whole batch."""
        table = np.bincount(where, weights=x, minlength=old.size).reshape(old.shape) / total
        return np.moveaxis(table, turn + 1, -1)

    policy = np.moveaxis(old, turn + 1, -1)
    reach = np.broadcast_to(sums(np.ones_like(m)).sum(-1, keepdims=True), policy.shape)
    return np.moveaxis(rule(policy, Expected.of(m, sums, weight=reach * policy, reach=reach)), -1, turn + 1)
