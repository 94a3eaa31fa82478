"""Turns measured lines into rows, and rows into ``RESULTS.md``."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.lines import LOWER_IS_BETTER, Line
from benchmarks.registry import Figure, Target
from benchmarks.timing import amount

_RELATIONS = {">=": operator.ge, "<=": operator.le, "=": operator.eq}
_ELSEWHERE = (
    "RAGEN cannot be installed from a registry, so it is in no ratio above. Measured elsewhere (its commit 20daedc, "
    "two AMD EPYC cores, per CPU-second): Sokoban as text 545 steps/s (it draws a picture at every step), FrozenLake "
    "as text 37,000 steps/s, rooms of 6x6 with 1, 8x8 with 2 and 10x10 with 4 boxes 486, 29 and 0.23 rooms/s."
)
_WORDS = {">=": "at least", "<=": "at most", "=": "exactly"}


@dataclass
class Results:
    """What one run measured. Further lines of one thing keep the better value."""

    ours: dict[tuple[str, str], Line] = field(default_factory=dict)
    """By module and the module's name of the figure."""
    peers: dict[tuple[str, str, str], Line] = field(default_factory=dict)
    """By peer, figure and note."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Module, peer or figure that gave nothing, or not everything, and why."""

    def add_ours(self, module: str, lines: Iterable[Line]) -> None:
        """Lines of one of our modules."""
        for line in lines:
            key = (module, line.figure)
            self.ours[key] = line.better(self.ours.get(key, line))

    def add_peer(self, peer: str, lines: Iterable[Line]) -> None:
        """Lines of a peer."""
        for line in lines:
            key = (peer, line.figure, line.note)
            self.peers[key] = line.better(self.peers.get(key, line))


@dataclass(frozen=True)
class Row:
    """One figure of ours beside its target and its best peer."""

    figure: Figure
    ours: Line | None
    best_peer: str
    """Name of the peer; empty if none was measured."""
    peer_line: Line | None
    ratio: float | None
    """How many times better than the best peer we are; None if either is missing or the peer's value is 0."""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None if there is none, or if it cannot be said."""
        target = self.figure.target
        if target is None or self.ours is None:
            return None
        reached = bool(_RELATIONS[target.relation](self.ours.value, target.value))
        if not reached or target.times_best_peer is None:
            return reached
        return None if self.ratio is None else self.ratio >= target.times_best_peer


def rows(results: Results, figures: Sequence[Figure]) -> list[Row]:
    """A row per figure."""
    found = []
    for figure in figures:
        ours = results.ours.get((figure.module, figure.source_name))
        best, peer = None, ""
        for (name, measured, _), line in results.peers.items():
            if measured in figure.compared_with and (best is None or line.better(best) is not best):
                best, peer = line, name
        ratio = None
        if ours is not None and best is not None and best.value and ours.value:
            ratio = ours.value / best.value
            if ours.unit in LOWER_IS_BETTER:
                ratio = 1 / ratio
        found.append(Row(figure, ours, peer, best, ratio))
    return found


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """Ours, target, met, best peer, ratio, as words."""
    ours = "not measured" if row.ours is None else f"{amount(row.ours.value)} {row.ours.unit}"
    target = "" if row.figure.target is None else _target(row.figure.target)
    met = {True: "yes", False: "**no**", None: "" if row.figure.target is None else "?"}[row.met]
    peer = ""
    if row.peer_line is not None:
        line = row.peer_line
        peer = f"{row.best_peer}: {amount(line.value)} {line.unit}" + (f" ({line.note})" if line.note else "")
    return ours, target, met, peer, "" if row.ratio is None else f"{amount(row.ratio)}x"


def _target(target: Target) -> str:
    words = f"{_WORDS[target.relation]} {amount(target.value)}"
    return words if target.times_best_peer is None else f"{words} and {amount(target.times_best_peer)}x the best peer"


def more_figures(results: Results, figures: Sequence[Figure]) -> list[tuple[str, Line]]:
    """What our modules measured beyond the registered figures: module and line."""
    registered = {(figure.module, figure.source_name) for figure in figures}
    return [(module, line) for (module, name), line in results.ours.items() if (module, name) not in registered]


def not_measured(results: Results, figures: Sequence[Figure]) -> dict[str, str]:
    """Everything that is missing, with the reason."""
    missing = dict(results.skipped)
    for figure in figures:
        if (figure.module, figure.source_name) not in results.ours and figure.module not in missing:
            missing[figure.name] = f"needs {figure.needs}" if figure.needs else f"not among {figure.module}'s figures"
    return missing


def markdown(results: Results, figures: Sequence[Figure], *, date: str, facts: dict[str, object], rounds: int) -> str:
    """The page.

    Args:
        results: what was measured.
        figures: in the order of the table.
        date: day of the run.
        facts: ``harness.store.environment_facts()``.
        rounds: how often the measurements that have peers were repeated.
    """
    packages = json.loads(str(facts["packages"]))
    versions = ", ".join(f"{name} {packages[name]}" for name in ("gymnasium", "numpy", "numba") if name in packages)
    lines = [
        "# Speed",
        "",
        f"Made by `python -m benchmarks.run` on {date}; one figure alone: `python -m benchmarks.run --only FIGURE`.",
        f"Machine: {facts['cpu_model'] or 'unknown CPU'}, {facts['cpu_cores']} cores, {facts['platform']}. "
        f"ragen-bench {facts['code_version']}, Python {facts['python']}, {versions}.",
        "",
        "Rates are per CPU-second of one process (all of its threads counted), resets included unless a note says "
        "otherwise. Every value comes from a process of its own and is the best of several rounds; ours and the peers' "
        f"take turns, {rounds} times, so that the noise of the machine meets both. Compare ratios, not bare rates of "
        "different runs. `best peer` is the peers' best value of that figure, also where it does less work than ours "
        "(its note says what); the ratio says how many times better ours is.",
        "",
        "| figure | what | ours | target | met | best peer | ratio |",
        "|---|---|---:|---|---|---|---:|",
    ]
    for row in rows(results, figures):
        lines.append(_table_row(f"`{row.figure.name}`", row.figure.title, *cells(row)))
    if more := more_figures(results, figures):
        lines += ["", "## More figures", "", "| module | figure | value |", "|---|---|---:|"]
        lines += [_table_row(f"`{m}`", line.figure, f"{amount(line.value)} {line.unit}") for m, line in more]
    if results.peers:
        lines += ["", "## All peers", "", "| peer | version | figure | how | value |", "|---|---|---|---|---:|"]
        for (peer, _, _), line in sorted(results.peers.items()):
            value = f"{amount(line.value)} {line.unit}" if line.value else "none finished in the time given"
            lines.append(_table_row(peer, line.version, f"`{line.figure}`", line.note, value))
    if missing := not_measured(results, figures):
        lines += ["", "## Not measured", "", "| what | why |", "|---|---|"]
        lines += [_table_row(f"`{name}`", reason) for name, reason in missing.items()]
    lines += ["", "## RAGEN", "", _ELSEWHERE]
    return "\n".join(lines) + "\n"


def _table_row(*texts: str) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
