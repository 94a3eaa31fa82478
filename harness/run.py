"""Runs a suite: ``python -m harness.run --suite core``.

Names, options and environments that are wrong are found before any work. The same command again continues: finished
jobs are kept, unfinished ones resume, failed ones are tried once more. A job some of whose episodes could not be played
is finished: those episodes stay in its results, without a score. Exit codes: 0 done, 1 some jobs or episodes failed,
2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.suite import Job

app = typer.Typer(add_completion=False)

_NEEDED_BYTES = 200 * 2**20
_TINY_LR = 3e-4
"""The default of every algorithm."""


@app.command()
def main(
    suite: Annotated[str, typer.Option(help="Name of a suite, or path of a TOML file.")] = "core",
    algo: Annotated[list[str] | None, typer.Option(help="Train only this algorithm (repeatable).")] = None,
    env: Annotated[list[str] | None, typer.Option(help="Only this environment id (repeatable).")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="What is trained or evaluated: tiny-mid, random, a checkpoint folder, hf:NAME (repeatable)."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of training seeds.")] = None,
    out: Annotated[Path | None, typer.Option(help="Results folder; by default results/SUITE.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Jobs at a time; by default one per core, or 1 if a GPU is used.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the protocol: train.iterations=5, algorithms.lr=1e-6 (repeatable)."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete this selection's earlier jobs first.")] = False,
    allow_errors: Annotated[
        bool,
        typer.Option(
            "--allow-errors",
            help="Exit with 0 even if jobs fail or episodes could not be played (a job with such episodes counts as "
            "done and is not tried again; --fresh does).",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and stop.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show suites, algorithms, environments and policies.")] = False,
) -> None:
    """Train and evaluate policies, and print the leaderboard. The same command again continues where it stopped."""
    from harness.suite import UsageError, expand, load_suite

    if list_:
        _list()
        return
    try:
        if device not in ("auto", "cpu", "cuda"):
            raise UsageError(f"--device is auto, cpu or cuda, not {device!r}")
        loaded = load_suite(suite, set_ or ())
        jobs = expand(loaded, algorithms=algo or (), environments=env or (), policy_names=policy or (), seeds=seeds)
        _check_device(jobs, device)
        _warn_of_rate(jobs)
        folder = out or Path("results") / loaded.name
        if dry_run:
            _show_plan(jobs, folder)
            return
        _check_writable(folder)
        if fresh:
            _forget(jobs, folder)
    except UsageError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    code = _run(jobs, folder, workers=workers or _default_workers(jobs, device), device=device)
    raise typer.Exit(0 if code == 1 and allow_errors else code)


def _run(jobs: Sequence[Job], folder: Path, *, workers: int, device: str) -> int:
    from rich.console import Console

    from harness import leaderboard, store
    from harness.executor import execute
    from harness.train import finished

    console = Console()
    kept, others = [], []
    for job in jobs:
        row = store.run_row(folder, job.run_id)
        if row is not None and row["status"] == "done":
            kept.append(finished(row))
            if row["code_version"] != store.code_version():
                others.append(row["code_version"])
    have = {r.run_id for r in kept}
    todo = [j for j in jobs if j.run_id not in have]
    workers = min(workers, max(1, len(todo)))
    console.print(
        f"{len(jobs)} jobs, {len(kept)} finished before, {len(todo)} to run on {workers} workers", highlight=False
    )
    if others:
        versions = ", ".join(sorted(set(others)))
        typer.echo(
            f"warning: {len(others)} of them come from other code ({versions}; now {store.code_version()}); "
            "--fresh runs them again",
            err=True,
        )
    try:
        results = [*kept, *execute(todo, folder, workers=workers, device=device, console=console)]
        table = leaderboard.build(folder)
    except KeyboardInterrupt:
        typer.echo("Interrupted. Finished jobs are kept; the same command continues.", err=True)
        return 130
    leaderboard.print_table(table, leaderboard.wide_console())
    for name in (*leaderboard.TABLES, "leaderboard"):
        print(folder / f"{name}.parquet")
    failed = [r for r in results if r.status != "done"]
    errors = sum(r.n_errors for r in results)
    for r in failed:
        where = folder / "jobs" / r.run_id / "traceback.txt"
        more = f" ({where})" if where.is_file() else ""
        typer.echo(f"{r.status}: job {r.run_id}: {r.message}{more}", err=True)
    if errors:
        typer.echo(f"{errors} episodes could not be played; they are in no mean, see n_errors", err=True)
    return 1 if failed or errors else 0


def _check_device(jobs: Sequence[Job], device: str) -> None:
    from harness.suite import UsageError

    if device == "cuda" and any(j.config.kind != "scripted" for j in jobs):
        import torch

        if not torch.cuda.is_available():
            raise UsageError("--device cuda: this torch sees no CUDA device")


def _warn_of_rate(jobs: Sequence[Job]) -> None:
    from harness.policies import is_tiny

    trained = [j for j in jobs if j.config.algorithm and j.config.algorithm["lr"] == _TINY_LR]
    if any(not is_tiny(source) for source in {j.source for j in trained}):
        typer.echo(
            "warning: lr 3e-4 suits the tiny model; published runs of LLMs use 1e-6: --set algorithms.lr=1e-6", err=True
        )


def _default_workers(jobs: Sequence[Job], device: str) -> int:
    from harness.policies import EMBEDDED

    # The embedded models stay on the CPU under "auto"; bigger ones share one GPU badly.
    big = any(j.config.kind != "scripted" and j.source not in EMBEDDED for j in jobs)
    if device == "cuda" or (device == "auto" and big and Path("/dev/nvidiactl").exists()):
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_writable(folder: Path) -> None:
    from harness.suite import UsageError

    probe = folder / f".probe.{os.getpid()}.part"
    try:
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        probe.write_text("x")
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise UsageError(f"cannot write to --out {folder}: {error.strerror or error}") from None
    if free < _NEEDED_BYTES:
        raise UsageError(f"--out {folder}: {free >> 20} MiB free, at least {_NEEDED_BYTES >> 20} are needed")


def _forget(jobs: Sequence[Job], folder: Path) -> None:
    """Delete the jobs of this selection, whatever settings they ran with. Only folders that are ours."""
    import json

    from harness.suite import UsageError
    from harness.train import remove_job

    chosen = {(j.config.suite, j.config.environment.id, j.config.entry, j.config.policy.name) for j in jobs}
    for path in sorted((folder / "jobs").glob("*/config.json")):
        try:
            config = json.loads(path.read_text())
            key = (config["suite"], config["environment"]["id"], config["entry"], config["policy"]["name"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if key in chosen and not remove_job(path.parent):
            raise UsageError(f"--fresh: another process is working on job {path.parent.name}")


def _show_plan(jobs: Sequence[Job], folder: Path) -> None:
    for job in jobs:
        ended = (folder / "jobs" / job.run_id / "run.parquet").is_file()
        started = (folder / "jobs" / job.run_id).is_dir()
        state = "ended" if ended else "started" if started else "new"
        print(f"{job.run_id}  {state:7}  {job.title}")
    print(f"{len(jobs)} jobs; results in {folder}")


def _list() -> None:
    import importlib.util
    import pkgutil
    import re

    from harness import policies
    from harness.suite import load_suite, suite_names
    from ragen_algos.presets import PRESETS

    for name in suite_names():
        suite = load_suite(name)
        print(f"suite {name} v{suite.version}: {suite.description}")
        print(f"  algorithms: {', '.join(a.label for a in suite.algorithms)}; baselines: {', '.join(suite.baselines)}")
        print(f"  environments: {', '.join(e.id for e in suite.environments)}")
    # One file per algorithm, with _ for - and a final _pp for ++; importing them would load torch.
    spec = importlib.util.find_spec("ragen_algos.algorithms")
    found = pkgutil.iter_modules(spec.submodule_search_locations) if spec and spec.submodule_search_locations else ()
    names = [re.sub("_pp$", "++", m.name).replace("_", "-") for m in found if m.name != "base"]
    print(f"algorithms: {', '.join(sorted(names))}; presets: {', '.join(sorted(PRESETS))}")
    print(f"policies: {', '.join([*policies.SCRIPTED, *policies.EMBEDDED])}, a checkpoint folder, hf:NAME_OR_PATH")


if __name__ == "__main__":
    app()
