"""SeeUPO: turns are agents that are updated one after the other, the last one first.

Objective
    For each turn t in ``order`` on one rollout batch, with the turns already updated frozen::

        L_t = -(1/N) sum_i min(u_it M_i, clip(u_it, 1 - clip_low, 1 + clip_high) M_i)  +  kl_coef (1/N) sum_i k3_it
        M_i = A_i prod_j f_ij     over the turns j updated before t          A_i = (R_i - mean of the group) / s

    One optimiser step per turn (``epochs`` * ``minibatches`` in general). N counts all trajectories of the step, also
    those that ended before turn t: these are no-ops, with ratio 1, no gradient and no change of M. A turn that nobody
    reached, or without any advantage, takes no step.

Symbols
    R_i: undiscounted episode return, penalties included. s: ``scale``, one constant per batch (``batch``), the standard
    deviation of the group (``group``) or 1 (``none``); ``adv_clamp`` then bounds A. u_it: ratio of turn t of trajectory
    i, one number for the whole turn: ``seq_geo``, geometric mean over its n tokens; ``seq_prod``, product (what the
    theory needs); ``token``, each token its own ratio, then the mean. All agree for turns of one token.
    ``anchor``: what u compares with: the policy that sampled (``iteration``) or that at the start of the turn's update
    (``turn``). f_ij: ratio of turn j after its update to its sampling (``paper``), to the start of its own update
    (``code``), as ``paper`` but computed anew before every turn, since shared weights go on moving (``exact``), or 1
    (``none``); ``m_clip`` bounds each f and their product. k3_it: mean over the tokens of the turn.

Source
    SeeUPO, arXiv 2602.06554v1, eq. 3-9; what the released code does is from modelscope/AgentEvolver, branch ``seeupo``.

Defaults
    Those of the paper. ``make`` knows the other arms by name (:data:`ragen_algos.presets.PRESETS`):

    ========================  =================================================================================
    name                      differs from the defaults in
    ========================  =================================================================================
    ``seeupo-paper``          nothing
    ``seeupo-official-code``  m_mode code, anchor turn, adv_clamp 3, m_clip (.8, 1.2)
    ``seeupo-theory``         m_mode exact, ratio seq_prod, scale none
    ``seeupo-without-m``      m_mode none: sequential updates alone, a control
    ``grpo-step-matched``     another algorithm: GRPO with as many minibatches as there are turns, a control
    ========================  =================================================================================

    order reverse (``forward``, ``random``: drawn anew each iteration, or a list of turn numbers from 0), clip .2 / .2,
    KL .002 k3, entropy 0, one step per turn, lr 3e-4 (tiny model). Maximal turns and group size belong to the
    environment and to the training budget. The names of the paper's options are: adv_norm = ``scale``, clip_eps =
    ``clip_low`` and ``clip_high``, steps_per_turn = ``epochs``.

Known weaknesses
    All turns share their weights, so updating one moves the others: the monotone improvement that is proved for
    separate agents is not promised here, and ``theory`` too shares them. M is a product of importance ratios, whose
    variance grows with the turns. Under ``seq_geo`` a ratio moves like 1/n, so a clip of .2 hardly ever binds. It takes
    as many optimiser steps per batch as there are turns where others take one: compare with ``grpo-step-matched`` and
    ``seeupo-without-m`` by ``optimizer_steps`` before crediting M. Of the released code's faults the following are not
    copied: its factor follows row positions although batches are re-ordered, idle turns still enter KL and factor,
    groups of one keep their raw return, and the ratio type that its files set is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ragen_algos.advantages import SCALES, broadcast_to_tokens, group_advantages
from ragen_algos.algorithms.base import CRITIC_OPTIONS, Algorithm, check_choice, check_number
from ragen_algos.losses import RATIOS
from ragen_algos.trajectory import Batch
from ragen_algos.turn_correction import MODES, TurnCorrection

ORDERS = ("reverse", "forward", "random")
ANCHORS = ("iteration", "turn")


@dataclass(frozen=True, kw_only=True)
class SeeUPO(Algorithm):
    """Sequence-level sequential update policy optimisation; formulas in the docstring of this file."""

    name: ClassVar[str] = "seeupo"
    order: str | tuple[int, ...] = "reverse"
    """One of ``ORDERS``, or turn numbers from 0, each once."""
    m_mode: str = "paper"
    anchor: str = "iteration"
    ratio: str = "seq_geo"
    scale: str = "batch"
    adv_clamp: float | None = None
    """Bound on the size of advantages, or None."""
    m_clip: tuple[float, float] | None = None
    """Range of each factor and of their product, around 1, or None."""
    kl_coef: float = 0.002
    aggregation: str = "seq-mean-token-mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("order", "m_clip"):  # JSON and TOML know lists only
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.order, tuple):
            if sorted(self.order) != list(range(len(self.order))):
                raise ValueError(f"order must name the turns 0, 1, ... once each, got {list(self.order)}")
        else:
            check_choice("order", self.order, ORDERS)
        check_choice("m_mode", self.m_mode, MODES)
        check_choice("anchor", self.anchor, ANCHORS)
        check_choice("ratio", self.ratio, RATIOS)
        check_choice("scale", self.scale, SCALES)
        if self.adv_clamp is not None:
            check_number("adv_clamp", self.adv_clamp, 0.0, open_low=True)
        if self.m_clip is not None:
            if len(self.m_clip) != 2:
                raise ValueError(f"m_clip must be a range such as (0.8, 1.2), got {self.m_clip!r}")
            check_number("m_clip", self.m_clip[0], 0.0, 1.0)
            check_number("m_clip", self.m_clip[1], 1.0)
            object.__setattr__(self, "m_clip", (float(self.m_clip[0]), float(self.m_clip[1])))
            if self.m_mode in ("exact", "none"):
                raise ValueError(f"m_mode={self.m_mode!r} does not read m_clip; leave it at None")
        if isinstance(self.minibatches, str):
            raise ValueError("minibatches='turns' is for methods that update all turns together")

    @property
    def clipped_ratio(self) -> str:
        """``ratio``, of one turn at a time: the mask of a loss is True on that turn's tokens, which all carry M."""
        return self.ratio

    @property
    def unread(self) -> tuple[str, ...]:
        """No critic; whole returns; every sum is over trajectories."""
        return (*CRITIC_OPTIONS, "gamma", "dual_clip", "aggregation", "aggregation_const")

    def schedule(self, n_turns: int, generator: torch.Generator) -> list[int | None]:
        """The turns in ``order``.

        Raises:
            ValueError: an episode has turns that a custom order does not name.
        """
        if isinstance(self.order, tuple):
            if n_turns > len(self.order):
                raise ValueError(f"an episode has {n_turns} turns, but order names {len(self.order)} only")
            return [t for t in self.order if t < n_turns]
        turns = list(range(n_turns))
        if self.order == "random":
            turns = torch.randperm(n_turns, generator=generator).tolist()
        return list(turns[::-1] if self.order == "reverse" else turns)

    def correction(self, batch: Batch, order: Sequence[int]) -> TurnCorrection:
        """M / A, to be kept while the turns are updated."""
        return TurnCorrection(batch, order, mode=self.m_mode, anchor=self.anchor, ratio=self.ratio, clip=self.m_clip)

    def credit(
        self,
        batch: Batch,
        values: torch.Tensor | None = None,
        bootstrap: torch.Tensor | None = None,
        *,
        ref_logp: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, None]:
        """A, before any correction; see :meth:`Algorithm.credit`. ``values`` and ``bootstrap`` are not read."""
        returns = batch.returns - self.reward_kl(batch, ref_logp).sum(1)
        advantages = group_advantages(returns, batch.group_id, scale=self.scale)
        if self.adv_clamp is not None:
            advantages = advantages.clamp(-self.adv_clamp, self.adv_clamp)
        return broadcast_to_tokens(advantages, batch.loss_mask), None
