"""``python -m benchmarks.experiments FOLDER ... [--write]``: tables of finished suites, for docs/experiments.md.

A folder is what ``python -m harness.run --out FOLDER`` wrote for the suites ``search``, ``algorithms``, ``order`` or
``collapse``. ``--write`` puts the tables into the page, and the learning curves beside it as CSV; without it they are
printed.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.calibration import Calibration, Run, calibrate, halved_at, load_runs
from harness.leaderboard import collect, derive
from harness.stats import wilson
from ragen_algos.diagnostics import EchoTrapMonitor

PAGE = Path(__file__).parents[1] / "docs" / "experiments.md"
CURVES = PAGE.parent / "experiments"
BARS = "▁▂▃▄▅▆▇█"
WINDOW = 3
"""Iterations that one bar of a curve averages."""


def main() -> None:
    """Print or write the tables of every folder, and the calibration over all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(PAGE.parents[1])}")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        if not (folder / "jobs").is_dir():
            parser.error(f"{folder} is not a results folder")
    sections: dict[str, str] = {}
    runs: list[Run] = []
    for folder in arguments.folders:
        board, found = derive(collect(folder)).to_pylist(), load_runs(folder)
        runs += found
        suite = board[0]["suite"]
        if suite == "search":
            sections[suite] = search(board)
        elif suite == "collapse":
            sections[suite] = collapse(board, found)
        else:
            for environment in dict.fromkeys(row["environment"] for row in board):
                name = environment.removeprefix("ragen/").partition("-")[0].lower()
                sections[f"{suite} {name}"] = algorithms(
                    [r for r in board if r["environment"] == environment],
                    [r for r in found if r.environment == environment],
                    collect(folder)["runs"].to_pylist(),
                )
        if arguments.write and suite != "search":
            write_curves(CURVES / f"{suite}-curves.csv", found)
    sections["calibration"] = calibration(runs)
    if not arguments.write:
        print("\n\n".join(f"{name}\n\n{text}" for name, text in sections.items()))
        return
    page = PAGE.read_text(encoding="utf-8")
    for name, text in sections.items():
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        if begin not in page or end not in page:
            parser.error(f"{PAGE.name} has no place for {name}")
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(page, encoding="utf-8")


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def interval(mean: float | None, low: float | None, high: float | None, *, sign: bool = False) -> str:
    """``mean [low, high]``; empty if unknown."""
    if mean is None or low is None or high is None:
        return ""
    shape = "+.3f" if sign else ".3f"
    return f"{mean:{shape}} [{low:{shape}}, {high:{shape}}]"


def share(count: int, n: int) -> str:
    """``count of n`` with its 95 % Wilson interval."""
    if not n:
        return "none"
    low, high = wilson(count, n)
    return f"{count} of {n} [{low:.2f}, {high:.2f}]"


def search(board: list[dict[str, Any]]) -> str:
    """Entry by learning rate; the best one of an entry is bold."""
    found: dict[str, dict[float, float]] = defaultdict(dict)
    for row in board:
        if row["kind"] == "trained":
            rate = json.loads(dict(pair.split("=") for pair in row["overrides"].split())["algorithms.lr"])
            found[row["entry"]][rate] = row["success"]
    rates = sorted({rate for rows in found.values() for rate in rows})
    start = next(row["success"] for row in board if row["kind"] == "start")
    body = []
    for entry, rows in sorted(found.items(), key=lambda item: -max(item[1].values())):
        best = max(rows, key=lambda rate: rows[rate])
        body.append([f"`{entry}`", *(f"**{rows[r]:.3f}**" if r == best else f"{rows[r]:.3f}" for r in rates)])
    return markdown(["entry", *(f"lr {rate:g}" for rate in rates)], body) + f"\n\nUntrained: {start:.3f}."


def algorithms(board: list[dict[str, Any]], runs: list[Run], jobs: list[dict[str, Any]]) -> str:
    """One row per entry, best first."""
    options = {job["entry"]: json.loads(job["algorithm_kwargs"] or "{}") for job in jobs}
    by_entry = _by_entry(runs)
    greedy = {row["entry"]: row["success"] for row in board if row["mode"] == "greedy" and row["headline"]}
    body = []
    for row in board:
        if not row["headline"] or row["mode"] != "sampled":
            continue
        mine = by_entry.get(row["entry"], [])
        trained = row["kind"] == "trained"
        levels = [_first_alarms(run)[0] is not None for run in mine]
        body.append(
            [
                f"`{row['entry']}`",
                f"{options[row['entry']]['lr']:g}" if trained else "",
                interval(row["success"], row["success_low"], row["success_high"]),
                f"{greedy[row['entry']]:.3f}" if row["entry"] in greedy else "",
                f"{row['normalised']:.2f}",
                interval(row["gain"], row["gain_low"], row["gain_high"], sign=True),
                curve(mine),
                f"{row['well_formed']:.2f}",
                f"{row['optimizer_steps']:.0f}" if trained else "",
                f"{row['train_tokens'] / 1000:.0f} k" if trained else "",
                f"{row['cpu_seconds']:.0f}" if trained else "",
                f"{sum(levels)} of {len(levels)}" if trained else "",
            ]
        )
    header = "entry|lr|success, sampled [95 %]|greedy|normalised|gain over untrained [95 %]|training success"
    return markdown([*header.split("|"), "well-formed", "steps", "tokens", "CPU-s", "runs with an alarm"], body)


def curve(runs: Sequence[Run]) -> str:
    """Mean training success of all seeds, first and last value and bars between 0 and 1."""
    if not runs:
        return ""
    length = min(len(run.history) for run in runs)
    values = [
        fmean(fmean(row["success"] for row in run.history[i : i + WINDOW]) for run in runs)
        for i in range(0, length - WINDOW + 1, WINDOW)
    ]
    bars = "".join(BARS[min(len(BARS) - 1, int(value * len(BARS)))] for value in values)
    return f"{values[0]:.2f} {bars} {values[-1]:.2f}"


def collapse(board: list[dict[str, Any]], runs: list[Run]) -> str:
    """One row per arm, in the order of the suite."""
    first = {row["entry"]: row for row in board if row["kind"] == "trained"}
    body = []
    for entry, mine in _by_entry(runs).items():
        row, half = first[entry], [halved_at([r["success"] for r in run.history]) for run in mine]
        alarms = [_first_alarms(run) for run in mine]
        body.append(
            [
                f"`{entry}`",
                interval(row["success"], row["success_low"], row["success_high"]),
                share(sum(run.collapsed for run in mine), len(mine)),
                curve(mine),
                _iterations(half),
                _iterations([warning for warning, _ in alarms]),
                _iterations([stop for _, stop in alarms]),
                f"{row['optimizer_steps']:.0f}",
            ]
        )
    start = next(row for row in board if row["kind"] == "start")
    header = (
        "arm|success in the end [95 %]|collapsed runs [95 %]|training success|halved at|first warning|verdict|steps"
    )
    text = interval(start["success"], start["success_low"], start["success_high"])
    return markdown(header.split("|"), body) + f"\n\nUntrained: {text}."


def calibration(runs: list[Run]) -> str:
    """The monitor on the runs its thresholds were chosen on, and on the others."""
    body = []
    for name, chosen in (("chosen on `search`", True), ("judged on the other suites", False)):
        mine = [run for run in runs if (run.suite == "search") == chosen and run.environment == "ragen/Sokoban-v0"]
        if not mine:
            continue
        for level, found in calibrate([run.history for run in mine], [run.collapsed for run in mine]).items():
            body.append([name, level, *_rates(found)])
    return markdown(["runs", "level", "false alarms [95 %]", "detected [95 %]", "lead, iterations"], body)


def _rates(found: Calibration) -> list[str]:
    leads = sorted(found.leads)
    early = sum(lead > 0 for lead in leads)
    lead = f"{early} of {len(leads)} early; median {median(leads):g}, {leads[0]} to {leads[-1]}" if leads else "none"
    return [share(found.false_alarms, found.healthy), share(found.detected, found.collapsed), lead]


def _first_alarms(run: Run) -> tuple[int | None, int | None]:
    """Iterations of the first warning (or worse) and of the verdict ``collapsed``, by the monitor as it is now."""
    monitor = EchoTrapMonitor()
    levels = [monitor.update(row).level for row in run.history]
    return (
        next((i for i, level in enumerate(levels) if level != "healthy"), None),
        next((i for i, level in enumerate(levels) if level == "collapsed"), None),
    )


def _iterations(values: Sequence[int | None]) -> str:
    return ", ".join("-" if value is None else str(value) for value in values)


def _by_entry(runs: Sequence[Run]) -> dict[str, list[Run]]:
    out: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.seed):
        out[run.entry].append(run)
    return dict(out)


def write_curves(path: Path, runs: Sequence[Run]) -> None:
    """Training success of every entry and iteration: mean, least and most over seeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["environment", "entry", "iteration", "seeds", "mean", "least", "most"])
        groups: dict[tuple[str, str, int], list[float]] = defaultdict(list)
        for run in runs:
            for row in run.history:
                groups[run.environment, run.entry, row["iteration"]].append(row["success"])
        for key, values in sorted(groups.items()):
            numbers = (fmean(values), min(values), max(values))
            writer.writerow([*key, len(values), *(f"{number:.4f}" for number in numbers)])


if __name__ == "__main__":
    main()
