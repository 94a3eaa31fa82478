"""The contract between an algorithm and the trainer: a frozen set of hyper-parameters and four pure methods.

``keep`` says which trajectories are trained on (whole groups); ``credit`` turns those into advantages (and targets for
the critic, if there is one); ``loss`` turns log-probabilities and advantages into the scalar to minimise; ``schedule``
says in which order turns are updated, by default all together. The formulas live in :mod:`ragen_algos.filters`,
:mod:`ragen_algos.advantages` and :mod:`ragen_algos.losses`; an algorithm file only says which of them it uses.

Simplifications: one actor, at most one critic. An option that an algorithm would not read cannot be set (``unread``),
so every option that appears in a result had an effect.

The trainer's part: ``values[:, t]`` is the critic's value of the state *before* token ``t``; ``old_logp`` comes from
the policy that sampled; the denominator is counted over all rows of an optimiser step, whatever the micro-batches.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ragen_algos.filters import DEFAULT_VALUE, FILTERS, keep_rows
from ragen_algos.losses import (
    AGGREGATIONS,
    KL_KINDS,
    aggregate,
    clip_fraction,
    global_denominator,
    kl_penalty,
    policy_loss,
    value_loss,
)
from ragen_algos.trajectory import Batch
from ragen_algos.turn_correction import TurnCorrection

CRITIC_OPTIONS = ("critic_lr", "value_clip", "lam", "truncated")
"""What only an algorithm with a critic reads."""


def check_choice(name: str, value: object, options: Sequence[str]) -> None:
    """ValueError unless ``value`` is one of ``options``."""
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(options)}; got {value!r}")


def check_number(name: str, value: object, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    """ValueError unless ``value`` is a finite number in [low, high], or in (low, high] with ``open_low``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    if value < low or value > high or (open_low and value == low):
        above = f"above {low}" if open_low else f"at least {low}"
        raise ValueError(f"{name} must be {above}{'' if high == math.inf else f' and at most {high}'}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """Hyper-parameters that every algorithm shares. Defaults suit the tiny model; ValueError on impossible values."""

    name: ClassVar[str]
    """The key under which ``make`` finds it."""

    lr: float = 3e-4
    """Learning rate of the policy."""
    critic_lr: float = 1e-3
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    filter: str = "none"
    """Which groups are trained on, by the spread of their returns: one of :data:`ragen_algos.filters.FILTERS`."""
    filter_value: float | None = None
    """What the filter takes (share of the groups, of the spread, ...); None: the usual value of that filter."""
    drop_equal: bool = False
    """Never train on a group whose returns are all equal."""
    extra_batches: int = 0
    """While the filter keeps fewer groups than an iteration should have, play at most so many further batches."""
    epochs: int = 1
    """Passes over one rollout batch; ``epochs`` * ``minibatches`` updates are made before it is replaced."""
    minibatches: int | str = 1
    """Optimiser steps per pass; "turns": as many as the longest episode has turns, the control arm of methods that
    update turn by turn."""
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    """Bound on the ratio for negative advantages, or None."""
    value_clip: float | None = 0.5
    """Half-width of the value clip, or None."""
    aggregation: str = "token-mean"
    """One of :data:`ragen_algos.losses.AGGREGATIONS`."""
    aggregation_const: float | None = None
    """Length C of ``sum/const``; needed there and only there."""
    kl_coef: float = 0.0
    kl_kind: str = "k3"
    """One of :data:`ragen_algos.losses.KL_KINDS`."""
    kl_in: str = "loss"
    """``loss`` adds the KL to the objective; ``reward`` subtracts it from the reward of each sampled token."""
    entropy_coef: float = 0.0
    gamma: float = 1.0
    """Discount per sampled token."""
    lam: float = 1.0
    """Trace decay per sampled token."""
    truncated: str = "bootstrap"
    """What follows the end of a budget: ``bootstrap``, the critic's value there; ``terminal``, nothing."""

    def __post_init__(self) -> None:
        for name in ("lr", "critic_lr", "max_grad_norm"):
            check_number(name, getattr(self, name), 0.0, open_low=True)
        for name in ("weight_decay", "clip_high", "kl_coef", "entropy_coef"):
            check_number(name, getattr(self, name), 0.0)
        for name in ("clip_low", "gamma", "lam"):
            check_number(name, getattr(self, name), 0.0, 1.0)
        for name, least in (("epochs", 1), ("minibatches", 1), ("extra_batches", 0)):
            value = getattr(self, name)
            if name == "minibatches" and value == "turns":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        check_choice("filter", self.filter, FILTERS)
        if self.filter == "none":
            if self.filter_value is not None:
                raise ValueError("filter='none' does not read filter_value; leave it at None")
            if self.extra_batches and not self.drop_equal:
                raise ValueError("extra_batches replace groups that a filter drops: set filter or drop_equal")
        else:
            if self.filter_value is None:
                # What a result records is the value that was used.
                object.__setattr__(self, "filter_value", DEFAULT_VALUE[self.filter])
            check_number("filter_value", self.filter_value, 0.0, 1.0, open_low=True)
        if self.dual_clip is not None:
            check_number("dual_clip", self.dual_clip, 1.0, open_low=True)
        if self.value_clip is not None:
            check_number("value_clip", self.value_clip, 0.0, open_low=True)
        check_choice("aggregation", self.aggregation, AGGREGATIONS)
        check_choice("kl_kind", self.kl_kind, KL_KINDS)
        check_choice("kl_in", self.kl_in, ("loss", "reward"))
        check_choice("truncated", self.truncated, ("bootstrap", "terminal"))
        if (self.aggregation == "sum/const") != (self.aggregation_const is not None):
            raise ValueError("aggregation_const goes with aggregation='sum/const', and only with it")
        if self.aggregation_const is not None:
            check_number("aggregation_const", self.aggregation_const, 0.0, open_low=True)
        if self.kl_coef and self.kl_in == "loss" and self.kl_kind == "k1":
            raise ValueError(
                "kl_kind='k1' in the loss has an expected gradient of zero; use k2 or k3, or kl_in='reward'"
            )
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        for name in self.unread:
            if getattr(self, name) != defaults[name]:
                raise ValueError(f"{self.name} does not read {name}; leave it at {defaults[name]!r}")

    @property
    def clipped_ratio(self) -> str:
        """What is clipped: one of :data:`ragen_algos.losses.RATIOS`."""
        return "token"

    @property
    def unread(self) -> tuple[str, ...]:
        """Options that have no effect here; setting one is an error."""
        return ()

    @property
    def needs_critic(self) -> bool:
        """Whether ``credit`` needs ``values``."""
        return False

    @property
    def needs_reference(self) -> bool:
        """Whether ``credit`` or ``loss`` needs ``ref_logp``."""
        return self.kl_coef > 0

    def keep(self, batch: Batch) -> torch.Tensor:
        """bool [N]: the trajectories to train on, whole groups of them, by their raw returns."""
        return keep_rows(batch.returns, batch.group_id, self.filter, self.filter_value, drop_equal=self.drop_equal)

    def schedule(self, n_turns: int, generator: torch.Generator) -> list[int | None]:
        """The updates of one iteration, in order: a turn number (from 0), or None for all turns together.

        Args:
            n_turns: turns of the longest episode.
            generator: what a random order must be drawn from.
        """
        return [None]

    def correction(self, batch: Batch, order: Sequence[int]) -> TurnCorrection | None:
        """What turns already updated do to the advantages of those still to come; None: nothing."""
        return None

    def steps_per_pass(self, n_turns: int) -> int:
        """``minibatches`` as a number."""
        return n_turns if isinstance(self.minibatches, str) else self.minibatches

    def to_dict(self) -> dict[str, Any]:
        """Name and every option, JSON-able: ``make(**algorithm.to_dict())`` gives an equal algorithm."""
        return {"name": self.name, **dataclasses.asdict(self)}

    @abstractmethod
    def credit(
        self,
        batch: Batch,
        values: torch.Tensor | None = None,
        bootstrap: torch.Tensor | None = None,
        *,
        ref_logp: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Advantages, and targets for the critic.

        Args:
            batch: ``N`` whole trajectories; all of them, since the statistics are global.
            values: [N, L] critic values before each token; needed if ``needs_critic``.
            bootstrap: [N] critic value after the last token, used on truncated rows only; needed if ``needs_critic``,
                a row is truncated and ``truncated="bootstrap"``.
            ref_logp: [N, L] reference log-probabilities; needed if the KL is in the reward.

        Returns:
            ``advantages`` [N, L] and ``value_targets`` [N, L] (None without a critic): float64, CPU, no gradient,
            0 where nothing was sampled.

        Raises:
            ValueError: a needed input is missing, or a return or reward is out of place.
        """

    def surrogate(
        self,
        logp: torch.Tensor,
        old_logp: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
        denominator: float,
    ) -> torch.Tensor:
        """The policy-gradient part of :meth:`loss`, a scalar; unless overridden, the clipped surrogate."""
        return policy_loss(
            logp,
            old_logp,
            advantages,
            mask,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
            ratio=self.clipped_ratio,
            aggregation=self.aggregation,
            denominator=denominator,
        )

    def clip_fraction(self, logp: torch.Tensor, old_logp: torch.Tensor, mask: torch.Tensor) -> float:
        """Share of the sampled tokens whose ratio, of the kind that is clipped, lies outside the clip range."""
        return clip_fraction(logp, old_logp, mask, self.clip_low, self.clip_high, self.clipped_ratio)

    def denominator(self, mask: torch.Tensor) -> float:
        """The denominator for :meth:`loss`, from the loss mask [N, L] of all rows of one optimiser step."""
        return global_denominator(mask, self.aggregation, self.aggregation_const)

    def loss(
        self,
        logp: torch.Tensor,
        old_logp: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
        denominator: float,
        *,
        ref_logp: torch.Tensor | None = None,
        entropy: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Actor loss of one micro-batch: surrogate - ``entropy_coef`` * entropy + ``kl_coef`` * KL, one denominator.

        Args:
            logp: [N, L] under the current policy, with gradient.
            old_logp: [N, L] at sampling.
            advantages: [N, L] from :meth:`credit`.
            mask: [N, L] loss mask.
            denominator: from :meth:`denominator`.
            ref_logp: [N, L]; needed if ``kl_coef`` > 0 and the KL is in the loss.
            entropy: [N, L] with gradient; needed if ``entropy_coef`` > 0.

        Returns:
            A scalar to minimise.

        Raises:
            ValueError: a needed input is missing.
        """
        total = self.surrogate(logp, old_logp, advantages, mask, denominator)
        if self.entropy_coef:
            if entropy is None:
                raise ValueError(f"{self.name} with entropy_coef={self.entropy_coef} needs entropy")
            total = total - self.entropy_coef * aggregate(entropy, mask, self.aggregation, denominator)
        if self.kl_coef and self.kl_in == "loss":
            if ref_logp is None:
                raise ValueError(f"{self.name} with kl_coef={self.kl_coef} needs ref_logp")
            kl = kl_penalty(logp, ref_logp, self.kl_kind, mask)
            total = total + self.kl_coef * aggregate(kl, mask, self.aggregation, denominator)
        return total

    def critic_loss(
        self,
        values: torch.Tensor,
        old_values: torch.Tensor,
        value_targets: torch.Tensor,
        mask: torch.Tensor,
        denominator: float,
    ) -> torch.Tensor:
        """Clipped value loss of one micro-batch, aggregated like the actor loss; all tensors [N, L].

        Raises:
            ValueError: the algorithm has no critic.
        """
        if not self.needs_critic:
            raise ValueError(f"{self.name} has no critic")
        return value_loss(
            values,
            old_values,
            value_targets,
            mask,
            self.value_clip,
            aggregation=self.aggregation,
            denominator=denominator,
        )

    def reward_kl(self, batch: Batch, ref_logp: torch.Tensor | None) -> torch.Tensor:
        """[N, L] float64: what the KL takes off the reward of each sampled token; 0 unless ``kl_in='reward'``."""
        if not (self.kl_coef and self.kl_in == "reward"):
            return torch.zeros_like(batch.rewards)
        if ref_logp is None:
            raise ValueError(f"{self.name} with kl_in='reward' needs ref_logp")
        logp = batch.logp.detach().to("cpu", torch.float64)
        return self.kl_coef * kl_penalty(logp, ref_logp.detach(), self.kl_kind, batch.loss_mask)

    def critic_inputs(
        self, batch: Batch, values: torch.Tensor | None, bootstrap: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``values`` as given, and the bootstrap values with 0 on every row after which nothing follows.

        A row that is both terminated and truncated counts as terminated: nothing follows the end of the game.

        Raises:
            ValueError: no values, or a truncated row that needs a bootstrap value and has none.
        """
        if values is None:
            raise ValueError(f"{self.name} has a critic: pass values [N, L]")
        cut = batch.truncated & ~batch.terminated
        if self.truncated == "terminal":
            cut = torch.zeros_like(cut)
        if bootstrap is None:
            if cut.any():
                raise ValueError(
                    f"row {int(cut.nonzero()[0])} is truncated: pass bootstrap [N] or truncated='terminal'"
                )
            bootstrap = torch.zeros(len(batch), dtype=torch.float64)
        return values, torch.where(cut, bootstrap.detach().to("cpu", torch.float64), 0.0)
