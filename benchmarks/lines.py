"""What a measuring process says: one JSON line per value.

Everything is measured in a process of its own, ours like the peers', so that both start from the same state and nothing
of the caller (progress bars, other figures' memory) is in the times. ``python -m benchmarks.lines MODULE [NAME...]``
runs ``figures()`` of one of our modules that way; the peers' modules call :func:`report`. Standard library only:
peers' environments have nothing else.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

LOWER_IS_BETTER = ("s", "CPU-s")
"""Units of which less is better; of all others, more is."""


@dataclass(frozen=True)
class Line:
    """One measured value."""

    figure: str
    """Name of the figure; a peer's line is compared with ours of the same name."""
    value: float
    unit: str
    version: str = ""
    """Version of the peer; empty for ours."""
    note: str = ""
    """In what this differs from other lines of the same figure."""

    def better(self, other: Line) -> Line:
        """The better of two values of one thing."""
        pick = min if self.unit in LOWER_IS_BETTER else max
        return pick(self, other, key=lambda line: line.value)

    def say(self) -> None:
        """Print it."""
        print(json.dumps(dataclasses.asdict(self)), flush=True)


def parse(output: str) -> list[Line]:
    """The lines in a process's output; whatever else it printed is left out."""
    found = []
    for text in output.splitlines():
        try:
            found.append(Line(**json.loads(text)))
        except (ValueError, TypeError):
            continue
    return found


@dataclass(frozen=True)
class Measurement:
    """One value that a peer's module can measure."""

    figure: str
    unit: str
    note: str
    measure: Callable[[], float]


def report(version_of: str, measurements: Iterable[Measurement], wanted: Sequence[str] | None = None) -> None:
    """Measure and print, one after the other.

    Args:
        version_of: distribution whose version goes into the lines.
        measurements: what can be measured.
        wanted: figures; by default the arguments of the command line, and all if there are none.
    """
    from importlib.metadata import version

    wanted = sys.argv[1:] if wanted is None else wanted
    for one in measurements:
        if not wanted or one.figure in wanted:
            Line(one.figure, one.measure(), one.unit, version(version_of), one.note).say()


def main() -> None:
    """``figures()`` of the module that the command line names; with names of figures, until those are measured."""
    module, *wanted = sys.argv[1:]
    missing = set(wanted)
    for name, value, unit in importlib.import_module(module).figures():
        if not wanted or name in missing:
            Line(name, float(value), unit).say()
        missing.discard(name)
        if wanted and not missing:
            break


if __name__ == "__main__":
    main()
