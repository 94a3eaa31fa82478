"""M: what updating one turn does to the advantages of the turns updated after it.

If turns are updated one after the other on one batch, the trajectories were sampled by a policy that no longer exists:
its turns already updated would now be chosen with other probabilities. SeeUPO (arXiv 2602.06554, eq. 6-8) multiplies
each trajectory's advantage ``A`` by the ratios of those turns, ``M_i = A_i * prod_j ratio_ij``. This class keeps the
product, ``weight``: one float64 number per trajectory, without gradient.

A row of a batch is a whole trajectory and never moves, so the row number is the trajectory's key, whatever the order in
which updates visit the rows. A trajectory that ended before a turn has no ratio there and keeps its weight.

The ratio of a turn needs the turn's log-probabilities *after* its update, which are those *before* the next turn's
update. So one forward pass before each update serves all: after :meth:`start`, ``watched`` says which turns it must
cover, :meth:`waiting` which rows, only those of which a turn to come will read the weight, and :meth:`note` takes what
came out. Before the first turn of the paper's setting there is nothing to ask for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ragen_algos.losses import importance_ratio
from ragen_algos.trajectory import Batch

MODES = ("paper", "code", "exact", "none")


def next_weight(weight: torch.Tensor, factor: torch.Tensor, clip: tuple[float, float] | None) -> torch.Tensor:
    """``weight * factor``; with ``clip`` both the factor and the product are clamped to that range. All [N]."""
    if clip is None:
        return weight * factor
    return (weight * factor.clamp(*clip)).clamp(*clip)


class TurnCorrection:
    """The running correction of one iteration.

    Args:
        batch: The trajectories; ``batch.logp`` under the policy that sampled.
        order: The turns that will be updated, in order.
        mode: ``paper``, factor = after the turn's update / at sampling, frozen then; ``code``, factor = after / before
            the turn's own update; ``exact``, the product over all updated turns of now / at sampling, anew before each
            turn; ``none``, always 1.
        anchor: What a turn's own ratio starts from: ``iteration``, the policy that sampled; ``turn``, the policy at the
            start of that turn's update. ``old`` holds its log-probabilities.
        ratio: ``seq_geo`` takes the geometric mean over the tokens of a turn; otherwise their product.
        clip: Range of factor and product, or None.
    """

    def __init__(
        self,
        batch: Batch,
        order: Sequence[int],
        *,
        mode: str = "paper",
        anchor: str = "iteration",
        ratio: str = "seq_geo",
        clip: tuple[float, float] | None = None,
    ) -> None:
        self.weight = torch.ones(len(batch), dtype=torch.float64)
        self.old = batch.logp.double()
        self.watched: list[int] = []
        self._batch, self._order, self._mode, self._anchor = batch, list(order), mode, anchor
        self._kind, self._clip = "seq_geo" if ratio == "seq_geo" else "seq_prod", clip
        self._before = batch.logp.double()
        self._done: list[int] = []
        self._factors: list[int] = []
        self._turn = -1
        turns = range(max(self._order, default=-1) + 1)
        self._live = torch.stack([self._has(t) for t in turns], 1) if turns else torch.zeros(len(batch), 0).bool()

    def _has(self, turn: int) -> torch.Tensor:
        return (self._batch.loss_mask & (self._batch.turn_id == turn)).any(1)

    def start(self, turn: int) -> None:
        """``turn`` is the next to be updated."""
        if self._turn >= 0:
            self._done.append(self._turn)
        self._turn = turn
        self._factors = {"none": [], "exact": list(self._done)}.get(self._mode, self._done[-1:])
        to_come = self._live[:, self._order[self._order.index(turn) :]].any(1)
        self._waiting = self._live[:, self._factors].any(1) & to_come
        self.watched = self._factors
        if self._anchor == "turn" or self._mode == "code":
            self._waiting = self._waiting | self._live[:, turn]
            self.watched = [*self._factors, turn]

    def waiting(self) -> torch.Tensor:
        """Row numbers whose log-probabilities are needed now and not yet noted."""
        return self._waiting.nonzero().squeeze(1)

    def note(self, index: torch.Tensor, logp: torch.Tensor) -> None:
        """Log-probabilities before the first update of the turn that was started; noting a row again changes nothing.

        Args:
            index: [n] row numbers.
            logp: [n, W] of the tokens of the watched turns; other columns are not read.
        """
        new = self._waiting[index]
        index, logp = index[new], logp.detach().to("cpu", torch.float64)[new]
        cut = (index, slice(0, logp.shape[1]))
        mask, turn_id = self._batch.loss_mask[cut], self._batch.turn_id[cut]
        weight = torch.ones_like(self.weight[index]) if self._mode == "exact" else self.weight[index]
        for turn in self._factors:
            factor = importance_ratio(logp, self._before[cut], mask & (turn_id == turn), self._kind).squeeze(1)
            # A row without that turn keeps its weight as it is, clip or no clip.
            weight = torch.where(self._live[index, turn], next_weight(weight, factor, self._clip), weight)
        self.weight[index] = weight
        own = mask & (turn_id == self._turn)  # covered in the two cases that read it
        if self._anchor == "turn":
            self.old[cut] = torch.where(own, logp, self.old[cut])
        if self._mode == "code":
            self._before[cut] = torch.where(own, logp, self._before[cut])
        self._waiting[index] = False
