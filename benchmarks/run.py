"""``python -m benchmarks.run`` (``make bench``): all figures, ours and the peers', in one run; writes ``RESULTS.md``.

Ours and the peers' measurements of the same figures take turns. A peer that is not installed, a module that fails and a
figure that needs files that are not there become a line in the results, never the end of the run.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import results as pages
from benchmarks.lines import Line, parse
from benchmarks.peers import PEERS, ROOT, Peer
from benchmarks.registry import BY_NAME, FIGURES, Figure
from benchmarks.results import Results
from benchmarks.timing import amount
from harness import store

ROUNDS = 3
"""How often measurements that have peers are repeated in turns (each one is the best of several short rounds)."""
PAGE = Path(__file__).with_name("RESULTS.md")
_LIMIT = 1200
"""Wall seconds after which a measuring process is stopped; what it has said by then counts."""
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Step:
    """One process to start."""

    name: str
    """Module of ours, or peer."""
    command: tuple[str, ...]
    add: Callable[[Results, Sequence[Line]], None]


def plan(figures: Sequence[Figure], peers: Sequence[Peer], *, everything: bool) -> list[Step]:
    """The processes that measure ``figures``, in order.

    Args:
        figures: of ours.
        peers: to measure beside them.
        everything: also what modules measure beyond the figures, and peers what is compared with none.
    """
    measured = {peer.name: {one.figure for one in peer.measurements} for peer in peers}
    steps = []
    for module in dict.fromkeys(figure.module for figure in figures):
        here = [figure for figure in figures if figure.module == module]
        wanted = {name for figure in here for name in figure.compared_with}
        beside = [peer for peer in peers if measured[peer.name] & wanted]
        turn = [
            _ours(module, () if everything else [figure.source_name for figure in here]),
            *(_theirs(peer, measured[peer.name] & wanted) for peer in beside),
        ]
        steps += turn * (ROUNDS if beside else 1)
    if everything:
        compared = {name for figure in FIGURES for name in figure.compared_with}
        rest = [(peer, measured[peer.name] - compared) for peer in peers]
        steps += [_theirs(peer, names) for peer, names in rest if names] * ROUNDS
    return steps


def _ours(module: str, names: Sequence[str]) -> Step:
    command = (sys.executable, "-m", "benchmarks.lines", module, *names)
    return Step(module, command, lambda results, lines: results.add_ours(module, lines))


def _theirs(peer: Peer, figures: set[str]) -> Step:
    command = (peer.python, "-m", peer.module, *sorted(figures))
    return Step(peer.name, command, lambda results, lines: results.add_peer(peer.name, lines))


def measure(command: Sequence[str], environment: dict[str, str]) -> tuple[list[Line], str]:
    """Run one process: what it measured, and what went wrong (empty if nothing)."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **_ONE_THREAD, **environment}, capture_output=True, timeout=_LIMIT
        )
        output, problem = done.stdout, ""
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines() or [f"ended with {done.returncode}"]
            problem = store.without_paths(said[-1])
    except subprocess.TimeoutExpired as error:
        output, problem = error.stdout or b"", f"stopped after {_LIMIT} s"
    except OSError as error:
        output, problem = b"", error.strerror or "could not be started"
    return parse(output.decode(errors="replace")), problem


def measure_all(steps: Sequence[Step], results: Results, environment: dict[str, str], console: Console) -> None:
    """Run the steps; a command that has failed is not run again."""
    failed: set[tuple[str, ...]] = set()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(steps))
        for step in steps:
            progress.update(task, description=step.name)
            if step.command not in failed:
                lines, problem = measure(step.command, environment)
                step.add(results, lines)
                if problem:
                    failed.add(step.command)
                    results.skipped[step.name] = problem
                    progress.console.print(f"{step.name}: {problem}")
            progress.advance(task)


def show(results: Results, figures: Sequence[Figure], console: Console, *, everything: bool) -> None:
    """Print the results."""
    table = Table(title="per CPU-second unless the unit is a time")
    for column in ("figure", "ours", "target", "met", "best peer", "ratio"):
        table.add_column(column, justify="right" if column in ("ours", "ratio") else "left")
    for row in pages.rows(results, figures):
        table.add_row(row.figure.name, *(text.strip("*") for text in pages.cells(row)))
    console.print(table)
    if everything:
        for module, line in pages.more_figures(results, figures):
            console.print(f"{module}: {line.figure} {amount(line.value)} {line.unit}")
    for name, reason in pages.not_measured(results, figures).items():
        console.print(f"not measured: {name} ({reason})")


@app.command()
def main(
    only: Annotated[
        list[str] | None, typer.Option(help="Measure this figure alone (repeatable); RESULTS.md stays as it is.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the figures, and stop.")] = False,
    levels: Annotated[
        Path | None,
        typer.Option(envvar="RAGEN_LEVELS", help="Folder with the Boxoban files (.xsb).", exists=True, file_okay=False),
    ] = None,
) -> None:
    """Measure the figures beside the peers that are installed, and write benchmarks/RESULTS.md."""
    if list_:
        for figure in FIGURES:
            typer.echo(f"{figure.name:36} {figure.title}")
        return
    unknown = sorted(set(only or ()) - set(BY_NAME))
    if unknown:
        raise typer.BadParameter(f"no such figure: {', '.join(unknown)}; --list shows them", param_hint="--only")
    figures = [BY_NAME[name] for name in dict.fromkeys(only)] if only else list(FIGURES)
    console, results = Console(), Results()
    environment = {"RAGEN_LEVELS": str(levels.resolve())} if levels else {}
    steps = plan(figures, PEERS, everything=not only)
    used = {step.name for step in steps}
    results.skipped.update({peer.name: peer.missing for peer in PEERS if peer.name in used and peer.missing})
    measure_all([step for step in steps if step.name not in results.skipped], results, environment, console)
    show(results, figures, console, everything=not only)
    if not only:
        facts = store.environment_facts()
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        store.write_text(PAGE, pages.markdown(results, figures, date=today, facts=facts, rounds=ROUNDS))
        console.print(f"written: benchmarks/{PAGE.name}")
    failed = {figure.module for figure in figures} & set(results.skipped)
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    app()
