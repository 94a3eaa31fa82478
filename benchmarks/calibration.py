"""How far the echo-trap monitor can be trusted: false alarms, detections and lead time over runs of known outcome."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.stats import wilson
from ragen_algos.diagnostics import EchoTrapMonitor, Thresholds

WINDOW = 5
"""Iterations over which success is averaged before it is said to have halved. Eight levels an iteration are few: with
3, 21 of 72 runs of the suite ``search`` at its two lower rates had halved by the luck of the draw, with 5 none."""


@dataclass(frozen=True)
class Run:
    """A training run of a results folder."""

    suite: str
    environment: str
    entry: str
    overrides: str
    seed: int
    history: list[dict[str, Any]]
    """Its metrics, iteration by iteration."""
    success: float
    """Of its policy in the end, sampled, on the headline split."""
    start: float
    """Of the untrained policy on the same episodes."""

    @property
    def collapsed(self) -> bool:
        """Whether it lost more than half of the success that the untrained policy had, whatever any monitor says."""
        return self.success < self.start / 2


def load_runs(folder: Path) -> list[Run]:
    """The finished training runs of a results folder whose suite has the baseline ``start``."""
    from harness.leaderboard import collect

    tables = collect(folder)
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for e in tables["episodes"].select(["run_id", "split", "mode", "success"]).to_pylist():
        if e["mode"] == "sampled" and e["success"] is not None:
            scores[e["run_id"], e["split"]].append(float(e["success"]))
    histories: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in tables["iterations"].to_pylist():
        histories[row["run_id"]].append({**row, **dict(row["extra"] or ())})
    runs = [r for r in tables["runs"].to_pylist() if r["status"] == "done"]
    starts = {r["environment"]: fmean(scores[r["run_id"], r["headline"]]) for r in runs if r["kind"] == "start"}
    return [
        Run(
            r["suite"],
            r["environment"],
            r["entry"],
            r["overrides"],
            r["seed"],
            sorted(histories[r["run_id"]], key=lambda row: row["iteration"]),
            fmean(scores[r["run_id"], r["headline"]]),
            starts[r["environment"]],
        )
        for r in runs
        if r["kind"] == "trained" and r["environment"] in starts
    ]


@dataclass(frozen=True)
class Calibration:
    """How one level of alarm did. Intervals are 95 % Wilson intervals, None without a run of that kind."""

    healthy: int
    false_alarms: int
    """Healthy runs with an alarm of this level or a worse one."""
    false_alarm_interval: tuple[float, float] | None
    collapsed: int
    detected: int
    """Collapsed runs with such an alarm."""
    detection_interval: tuple[float, float] | None
    leads: tuple[int, ...]
    """Iterations from the first alarm to halved success, of the detected runs in which success halved; negative where
    the alarm came late."""


def calibrate(
    histories: Sequence[Sequence[Mapping[str, Any]]], collapsed: Sequence[bool], thresholds: Thresholds | None = None
) -> dict[str, Calibration]:
    """Replay runs through a fresh monitor each.

    Args:
        histories: The metrics of each run, iteration by iteration.
        collapsed: Whether that run collapsed, as judged by whoever made it.
        thresholds: Of the monitor.

    Returns:
        For ``warning`` (which a collapse counts as) and ``collapsed``.
    """
    first: dict[str, list[int | None]] = {"warning": [], "collapsed": []}
    for history in histories:
        monitor = EchoTrapMonitor(thresholds)
        levels = [monitor.update(record).level for record in history]
        first["warning"].append(next((i for i, level in enumerate(levels) if level != "healthy"), None))
        first["collapsed"].append(next((i for i, level in enumerate(levels) if level == "collapsed"), None))
    halved = [halved_at([record["success"] for record in history]) for history in histories]
    out = {}
    for level, alarms in first.items():
        good = [alarm is not None for alarm, bad in zip(alarms, collapsed, strict=True) if not bad]
        caught = [alarm is not None for alarm, bad in zip(alarms, collapsed, strict=True) if bad]
        out[level] = Calibration(
            healthy=len(good),
            false_alarms=sum(good),
            false_alarm_interval=wilson(sum(good), len(good)) if good else None,
            collapsed=len(caught),
            detected=sum(caught),
            detection_interval=wilson(sum(caught), len(caught)) if caught else None,
            leads=tuple(
                half - alarm
                for half, alarm, bad in zip(halved, alarms, collapsed, strict=True)
                if bad and half is not None and alarm is not None
            ),
        )
    return out


def halved_at(success: Sequence[float]) -> int | None:
    """The first iteration at which the mean of the last ``WINDOW`` is at most half the best such mean so far."""
    best = 0.0
    for i in range(WINDOW, len(success) + 1):
        mean = fmean(success[i - WINDOW : i])
        best = max(best, mean)
        if best > 0 and mean <= best / 2:
            return i - 1
    return None
