"""Echo trap: a policy that re-uses the same phrases until nothing is left to learn from.

Diversity goes first and the reward follows: the returns of one level become equal, entropy drops or explodes, gradients
spike, thoughts shrink to a template. :class:`EchoTrapMonitor` reads the metrics of every training iteration, compares
them with the beginning of the same run and says what it sees. It changes nothing in training.

Simplifications: a signal is compared with one baseline, the mean of its first iterations, and with no model of its
noise; the gradient norm is that of an iteration (mean over its optimiser steps).

Source: arXiv 2504.20073 (RAGEN) and the trainer of its public code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from statistics import fmean, median
from typing import Any

LEVELS = ("healthy", "warning", "collapsed")
"""Verdicts, from good to bad."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """When a signal fires.

    ``b`` is the mean of the signal's first ``baseline`` values. *Code*: a rule of RAGEN's public trainer, with its
    numbers. *Calibrated*: the paper and its code give no number; ours, chosen on the magnitudes that the paper's
    figures show and on runs of the embedded model, and to be judged by ``benchmarks.calibration``.

    Two conditions are ours as well. A policy that has mastered its task agrees with itself, so nothing that narrows
    (reward spread, entropy, thoughts) counts while success is at least ``solved``. And a model that never knew the form
    or never succeeded has not collapsed: ``invalid`` and ``success`` count only after better times.
    """

    baseline: int = 5
    """Values that make the baseline (calibrated; the code has 10, by when the embedded model may be ruined)."""
    std_warning: float = 0.5
    """In-group reward spread below this times ``b`` is a warning (calibrated) ..."""
    std_warning_for: int = 3
    """... if it lasts this many iterations (calibrated)."""
    std_collapse: float = 0.1
    """In-group reward spread below this times ``b`` is a collapse (code) ..."""
    std_collapse_for: int = 10
    """... if it lasts this many iterations (code)."""
    grad_warning: float = 10.0
    """Gradient norm above this times the running median (calibrated; the figures show 1-30 in healthy training)."""
    grad_collapse: float = 100.0
    """The same for a collapse (calibrated; the figures show spikes of 1e3 to 1e7)."""
    grad_window: int = 50
    """Finite norms, this one excluded, of which the median is taken (calibrated)."""
    entropy_warning: float = 1.5
    """Entropy above this times ``b`` is a warning (calibrated; the figures show a rise by a factor of 4) ..."""
    entropy_collapse: float = 2.0
    """... and above this times ``b`` a collapse (calibrated)."""
    entropy_low: float = 0.1
    """Entropy below this times ``b`` is a warning (calibrated; healthy runs fall to a third)."""
    entropy_for: int = 5
    """Iterations that any of the three must last (calibrated)."""
    length_low: float = 0.15
    """Thoughts shorter than this times ``b`` are a warning (calibrated; healthy runs shrink to .3)."""
    unique_low: float = 0.3
    """A share of distinct thoughts below this times ``b`` is a warning (calibrated) ..."""
    unique_for: int = 5
    """... if it lasts this many iterations (calibrated)."""
    repetition: float = 0.5
    """Repetition across prompts above this is a warning while it rises (calibrated) ..."""
    repetition_rise: float = 0.05
    """... by this from one half of the window to the other (calibrated)."""
    repetition_window: int = 10
    """Iterations of that window (calibrated)."""
    invalid: float = 0.9
    """A share of badly formed turns above this is a collapse (calibrated; the paper's collapsed runs end at 1) ..."""
    invalid_for: int = 5
    """... if it lasts this many iterations and was lower before (calibrated)."""
    success: float = 0.01
    """Success below this is a collapse (code, there of validation; here of training episodes on fresh levels) ..."""
    success_for: int = 5
    """... if it lasts this many iterations (code) ..."""
    success_before: float = 0.05
    """... and the mean over as many iterations has been at least this (calibrated)."""
    empty_for: int = 5
    """Iterations in a row in which the filter kept no group (code)."""
    solved: float = 0.9
    """Success from which narrowing is no sign of anything (calibrated)."""


@dataclass(frozen=True)
class Signal:
    """One alarm of one iteration."""

    rule: str
    """``reward_std``, ``grad_norm``, ``grad_finite``, ``entropy_rise``, ``entropy_fall``, ``thought_length``,
    ``unique_thoughts``, ``repetition``, ``invalid``, ``success`` or ``empty_filter``."""
    level: str
    """``warning`` or ``collapsed``."""
    value: float
    baseline: float | None
    """What the value is compared with; None where the limit is absolute."""
    message: str


@dataclass(frozen=True)
class Verdict:
    """What the monitor says after one iteration."""

    iteration: int
    level: str
    """One of ``LEVELS``. A collapse stays: runs in an echo trap do not recover."""
    signals: tuple[Signal, ...]
    """What fired in this iteration."""
    message: str
    """In plain words."""

    def to_row(self) -> dict[str, Any]:
        """JSON-able, for the metrics of the iteration: ``verdict``, ``signals`` (rules) and ``alarm`` (None if
        healthy)."""
        alarm = None if self.level == "healthy" else self.message
        return {"verdict": self.level, "signals": [signal.rule for signal in self.signals], "alarm": alarm}


_BASED = ("in_group_std", "entropy", "thought_length", "unique_thoughts")
_LEAST = {"entropy": 0.01}
"""Below a baseline this small (nats), a multiple of it says nothing."""


class EchoTrapMonitor:
    """Watches one training run; feed it with one record per iteration.

    Keys it reads, as the trainer's metrics have them: ``iteration``, ``in_group_std``, ``grad_norm`` (NaN: not finite,
    0: no optimiser step), ``skipped_steps``, ``entropy``, ``thought_length``, ``unique_thoughts``, ``repetition``,
    ``format_ok``, ``success``, ``kept_groups``. A key that is missing, None or not finite leaves its rules as they
    were; other keys do not matter.

    Its verdicts depend on the records alone, so the stored metrics of a run give the same ones again.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._first: dict[str, list[float]] = {}
        self._recent: dict[str, list[float]] = {}
        self._streaks: dict[str, int] = {}
        self._best_success = 0.0
        self._was_valid = False
        self._seen = 0
        self._collapse: str | None = None

    def update(self, record: Mapping[str, Any]) -> Verdict:
        """The verdict on one more iteration."""
        t, signals = self.thresholds, []
        iteration = int(record.get("iteration", self._seen))
        self._seen += 1
        value = {key: v for key in record if (v := _number(record[key])) is not None}
        base = {key: self._baseline(key, value[key]) for key in _BASED if key in value}
        success = value.get("success")
        solved = success is not None and success >= t.solved

        def fire(rule: str, level: str, key: str, baseline: float | None, message: str) -> None:
            signals.append(Signal(rule, level, value[key], baseline, message))

        if (b := base.get("in_group_std")) is not None:
            std = value["in_group_std"]
            gone = self._lasts("std_collapse", not solved and std < t.std_collapse * b, t.std_collapse_for)
            low = self._lasts("std_warning", not solved and std < t.std_warning * b, t.std_warning_for)
            if gone or low:
                fire(
                    "reward_std",
                    "collapsed" if gone else "warning",
                    "in_group_std",
                    b,
                    f"episodes of one level earn almost the same: in-group reward spread {std:.3g}, at first {b:.3g}",
                )

        norms = self._recent.setdefault("grad_norm", [])
        if (norm := value.get("grad_norm", 0.0)) > 0:
            if len(norms) >= t.baseline:
                usual = median(norms)
                if norm > t.grad_warning * usual:
                    level = "collapsed" if norm > t.grad_collapse * usual else "warning"
                    fire("grad_norm", level, "grad_norm", usual, f"gradient norm {norm:.3g}, usually {usual:.3g}")
            norms.append(norm)
            del norms[: -t.grad_window]
        infinite = record.get("grad_norm") is not None and "grad_norm" not in value
        if infinite or value.get("skipped_steps", 0.0) > 0:
            message = "loss or gradients were not finite, and a step was skipped"
            signals.append(Signal("grad_finite", "warning", math.nan, None, message))

        if (b := base.get("entropy")) is not None:
            entropy = value["entropy"]
            wild = self._lasts("entropy_collapse", entropy > t.entropy_collapse * b, t.entropy_for)
            high = self._lasts("entropy_warning", entropy > t.entropy_warning * b, t.entropy_for)
            if wild or high:
                level = "collapsed" if wild else "warning"
                fire("entropy_rise", level, "entropy", b, f"entropy has risen to {entropy:.3g} nats from {b:.3g}")
            if self._lasts("entropy_low", not solved and entropy < t.entropy_low * b, t.entropy_for):
                fire("entropy_fall", "warning", "entropy", b, f"entropy has fallen to {entropy:.3g} nats from {b:.3g}")

        if (b := base.get("thought_length")) is not None:
            length = value["thought_length"]
            if not solved and length < t.length_low * b:
                message = f"thoughts have shrunk to {length:.3g} characters from {b:.3g}"
                fire("thought_length", "warning", "thought_length", b, message)

        if (b := base.get("unique_thoughts")) is not None:
            unique = value["unique_thoughts"]
            if self._lasts("unique_low", not solved and unique < t.unique_low * b, t.unique_for):
                message = f"the same thoughts come again: {unique:.1%} are distinct, at first {b:.1%}"
                fire("unique_thoughts", "warning", "unique_thoughts", b, message)

        if (repeated := value.get("repetition")) is not None:
            window = self._recent.setdefault("repetition", [])
            window.append(repeated)
            del window[: -t.repetition_window]
            half = t.repetition_window // 2
            full = len(window) == t.repetition_window
            rise = fmean(window[half:]) - fmean(window[:half]) if full else 0.0
            if not solved and repeated > t.repetition and rise >= t.repetition_rise:
                message = f"{repeated:.0%} of the phrases in thoughts come up whatever the prompt, and ever more"
                fire("repetition", "warning", "repetition", None, message)

        if (well_formed := value.get("format_ok")) is not None:
            value["invalid"] = 1 - well_formed
            bad = value["invalid"] > t.invalid
            self._was_valid = self._was_valid or not bad
            if self._lasts("invalid", bad and self._was_valid, t.invalid_for):
                fire("invalid", "collapsed", "invalid", None, f"{value['invalid']:.0%} of the turns are badly formed")

        if success is not None:
            window = self._recent.setdefault("success", [])
            window.append(success)
            del window[: -t.success_for]
            if len(window) == t.success_for:
                self._best_success = max(self._best_success, fmean(window))
            lost = self._best_success >= t.success_before
            if self._lasts("success", success < t.success, t.success_for) and lost:
                message = f"success is {success:.1%}, after {self._best_success:.1%} at its best"
                fire("success", "collapsed", "success", self._best_success, message)

        if (kept := value.get("kept_groups")) is not None and self._lasts("empty", kept == 0, t.empty_for):
            message = f"the filter has kept no group for {self._streaks['empty']} iterations"
            fire("empty_filter", "collapsed", "kept_groups", None, message)

        return self._verdict(iteration, tuple(signals))

    def _verdict(self, iteration: int, signals: tuple[Signal, ...]) -> Verdict:
        said = "; ".join(signal.message for signal in signals)
        if self._collapse is not None:
            return Verdict(iteration, "collapsed", signals, self._collapse + (f"; now: {said}" if said else ""))
        stops = [signal.message for signal in signals if signal.level == "collapsed"]
        if stops:
            self._collapse = f"collapsed at iteration {iteration}: {'; '.join(stops)}"
            return Verdict(iteration, "collapsed", signals, self._collapse)
        return Verdict(iteration, "warning" if signals else "healthy", signals, said or "no sign of collapse")

    def _baseline(self, key: str, value: float) -> float | None:
        """The baseline of a signal; None while this value is still part of it, or if it is too small to compare."""
        first = self._first.setdefault(key, [])
        if len(first) < self.thresholds.baseline:
            first.append(value)
            return None
        mean = fmean(first)
        return mean if mean > _LEAST.get(key, 0.0) else None

    def _lasts(self, name: str, holds: bool, needed: int) -> bool:
        """Whether something has been so for ``needed`` iterations in a row."""
        self._streaks[name] = self._streaks.get(name, 0) + 1 if holds else 0
        return self._streaks[name] >= needed

    def state_dict(self) -> dict[str, Any]:
        """All that the monitor remembers, JSON-able and of bounded size."""
        return {
            "first": {k: list(v) for k, v in self._first.items()},
            "recent": {k: list(v) for k, v in self._recent.items()},
            "streaks": dict(self._streaks),
            "best_success": self._best_success,
            "was_valid": self._was_valid,
            "seen": self._seen,
            "collapse": self._collapse,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self._first = {k: list(v) for k, v in state["first"].items()}
        self._recent = {k: list(v) for k, v in state["recent"].items()}
        self._streaks = dict(state["streaks"])
        self._best_success, self._was_valid = state["best_success"], state["was_valid"]
        self._seen, self._collapse = state["seen"], state["collapse"]


def _number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    return float(value) if isinstance(value, Real) and math.isfinite(value) else None
