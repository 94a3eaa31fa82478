"""One job: load a policy, train it if the job says so, evaluate it, write what was found.

A job owns its folder while it holds the folder's lock. Its ``run.parquet`` is written last, so a job without one has
not finished: running it again resumes training from the last checkpoint and evaluates anew. A job whose parent process
is gone stops at once, so that a restarted run never meets a ghost of the last one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import policies, store
from harness.suite import Job, JobConfig, canonical_json

LOCK_PATIENCE = 10.0
"""Seconds to wait for a job folder's lock: longer than an orphaned worker needs to notice and die."""


@dataclass(frozen=True)
class JobResult:
    """How a job ended."""

    run_id: str
    status: str
    """``done``, ``error``, or ``busy`` (another process holds the folder)."""
    message: str = ""
    n_errors: int = 0
    headline: str = ""
    """One line for people."""


class Progress:
    """A small file that says how far a job is; the executor's display reads it."""

    def __init__(self, path: Path) -> None:
        self._path, self._last = path, 0.0

    def __call__(self, phase: str, done: int, of: int, note: str = "") -> None:
        if done < of and time.monotonic() - self._last < 0.3:
            return
        self._last = time.monotonic()
        text = json.dumps({"phase": phase, "done": done, "of": of, "note": note})
        store.write_text(self._path, text, durable=False)


class Usage:
    """CPU seconds of each training iteration, kept beside the checkpoint so that a resumed job counts them once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds: dict[int, float] = {}
        if path.is_file():
            self.seconds = {int(k): float(v) for k, v in json.loads(path.read_text()).items()}
        self._mark = time.process_time()

    def lap(self, iteration: int) -> None:
        """The time since the last lap belongs to this iteration."""
        now = time.process_time()
        self.seconds[iteration] = now - self._mark
        self._mark = now
        store.write_text(self._path, json.dumps(self.seconds), durable=False)


def run_job(job: Job, out: Path, *, device: str = "auto", parent: int | None = None) -> JobResult:
    """Run a job to its end, or find that it has ended already. Errors become a row, not an exception.

    Args:
        job: What to run.
        out: The results folder.
        device: ``auto``, ``cpu`` or ``cuda``.
        parent: Process without which this one must not live; given in worker processes.
    """
    if parent is not None:
        _live_and_die_with(parent)
    folder = store.job_folder(out, job.run_id)
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder) as mine:
        if not mine:
            return JobResult(job.run_id, "busy", "another process is working on this job")
        row = store.run_row(out, job.run_id)
        if row is not None and row["status"] == "done":
            return finished(row)
        store.sweep(folder)
        store.write_text(folder / "config.json", json.dumps(job.config.model_dump(mode="json"), indent=1) + "\n")
        try:
            return _work(job, out, folder, device)
        except Exception as error:
            return record_error(job, out, f"{type(error).__name__}: {error}", traceback.format_exc())
        finally:
            (folder / "progress.json").unlink(missing_ok=True)


def finished(row: dict[str, Any]) -> JobResult:
    """The result of a job that has a row in ``runs``."""
    return JobResult(row["run_id"], row["status"], row["error"] or "", row["n_errors"] or 0)


def record_error(job: Job, out: Path, message: str, details: str = "") -> JobResult:
    """Write down that a job failed, unless it is done. The next run of the same command tries it again."""
    folder = store.job_folder(out, job.run_id)
    ended = store.run_row(out, job.run_id)
    if ended is not None and ended["status"] == "done":
        return finished(ended)
    folder.mkdir(parents=True, exist_ok=True)
    message = store.without_paths(message)
    if details:
        store.write_text(folder / "traceback.txt", details)
    now = datetime.now(UTC)
    row = {**_about(job.config), "status": "error", "error": message, "started": now, "finished": now}
    store.write(store.to_table([row], "runs"), folder / "run.parquet", "runs")
    return JobResult(job.run_id, "error", message)


def _work(job: Job, out: Path, folder: Path, device: str) -> JobResult:
    from harness.evaluate import evaluate

    config, started, clock, cpu = job.config, datetime.now(UTC), time.monotonic(), time.process_time()
    progress = Progress(folder / "progress.json")
    progress("load", 0, 1)
    model = policies.load(job.source, device=device)
    loading = time.process_time() - cpu

    usage = Usage(folder / "usage.json")
    metrics: list[dict[str, Any]] = []
    stopped = ""
    if config.train is not None:
        metrics, stopped = _train(config, model, folder, progress, usage)
    cpu = time.process_time()
    rows = evaluate(
        job.source,
        model,
        config.environment,
        config.evaluation,
        on_progress=lambda done, of: progress("evaluate", done, of),
    )
    spent = loading + sum(usage.seconds.values()) + time.process_time() - cpu

    about = _about(config)
    checkpoint = None
    if config.train is not None:
        assert model is not None
        _save_policy(model, folder / "policy")
        checkpoint = f"jobs/{job.run_id}/policy"
        _write(folder, "iterations", [_iteration_row(about, m, usage) for m in metrics])
    which = {key: about[key] for key in ("run_id", "suite", "environment", "entry", "policy", "seed")}
    _write(folder, "episodes", [{**which, **row} for row in rows])
    last = metrics[-1] if metrics else {}
    collapsed_at = next((m["iteration"] for m in metrics if m["verdict"] == "collapsed"), None)
    run = {
        **about,
        "env_kwargs": canonical_json({**(model.env_kwargs if model else {}), **config.environment.kwargs}),
        "status": "done",
        "iterations": len(metrics) if config.train else None,
        "collapsed_at": collapsed_at,
        "stopped": stopped or None,
        "train_tokens": last.get("sampled_tokens"),
        "eval_tokens": sum(row["tokens"] for row in rows),
        "optimizer_steps": last.get("optimizer_steps"),
        "train_env_steps": last.get("env_steps"),
        "eval_env_steps": sum(row["env_steps"] for row in rows),
        "episodes": len(rows),
        "n_errors": sum(row["status"] == "error" for row in rows),
        "started": started,
        "finished": datetime.now(UTC),
        "wall_seconds": time.monotonic() - clock,
        "cpu_seconds": spent,
        "checkpoint": checkpoint,
        "device": str(getattr(model, "device", "cpu")) if model else "cpu",
    }
    _write(folder, "runs", [run], "run.parquet")
    start = folder / "checkpoint" / "start"
    if job.source not in policies.EMBEDDED and start.is_dir():
        shutil.rmtree(folder / "start", ignore_errors=True)
        os.replace(start, folder / "start")
    # What only a resumed job would need.
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    for name in ("usage.json", "traceback.txt"):
        (folder / name).unlink(missing_ok=True)
    headline = _headline(config, rows)
    if collapsed_at is not None:
        headline += f"; training collapsed in iteration {collapsed_at}"
    return JobResult(job.run_id, "done", "", run["n_errors"], headline)


def _train(
    config: JobConfig, model: Any, folder: Path, progress: Progress, usage: Usage
) -> tuple[list[dict[str, Any]], str]:
    """The metrics of all iterations, and why there are fewer than asked for."""
    from ragen_algos import algorithms
    from ragen_algos.trainer import TrainConfig, Trainer

    if model is None:
        raise ValueError("a scripted policy cannot be trained")
    assert config.train is not None
    assert config.algorithm is not None
    total = config.train.iterations

    def on_iteration(metrics: dict[str, Any]) -> None:
        usage.lap(int(metrics["iteration"]))
        progress("train", int(metrics["iteration"]) + 1, total, f"success {metrics['success']:.2f}")

    progress("train", 0, total)
    trainer = Trainer(
        model,
        algorithms.make(**config.algorithm),
        config.environment.id,
        config.environment.kwargs,
        TrainConfig(**config.train.model_dump(), seed=config.seed),
        folder=folder / "checkpoint",
        on_iteration=on_iteration,
    )
    return trainer.run(), trainer.stopped


def _iteration_row(about: dict[str, Any], metrics: dict[str, Any], usage: Usage) -> dict[str, Any]:
    row = {key: about[key] for key in ("run_id", "suite", "environment", "entry", "policy", "seed")}
    known = store.SCHEMAS["iterations"].names
    extra = []
    for key, value in metrics.items():
        if key in known:
            row[key] = value
        elif isinstance(value, (int, float)):
            extra.append((key, float(value)))
    return {**row, "cpu_seconds": usage.seconds.get(int(metrics["iteration"])), "extra": sorted(extra)}


def _write(folder: Path, table: str, rows: list[dict[str, Any]], name: str = "") -> None:
    store.write(store.to_table(rows, table), folder / (name or f"{table}.parquet"), table)


def _save_policy(model: Any, folder: Path) -> None:
    """Save beside the final place and move, so that ``policy/`` is whole or absent."""
    part = folder.with_name("policy.part")
    for old in (part, folder):
        shutil.rmtree(old, ignore_errors=True)
    model.save(part)
    os.replace(part, folder)


def _about(config: JobConfig) -> dict[str, Any]:
    """The columns of ``runs`` that follow from the configuration, the code and the machine."""
    algorithm = dict(config.algorithm) if config.algorithm else None
    return {
        "run_id": config.run_id,
        "config_id": config.config_id,
        "suite": config.suite,
        "suite_version": config.suite_version,
        "overrides": " ".join(config.overrides),
        "environment": config.environment.id,
        "env_kwargs": canonical_json(config.environment.kwargs),
        "headline": config.environment.headline,
        "entry": config.entry,
        "kind": config.kind,
        "algorithm": algorithm.pop("name") if algorithm else None,
        "algorithm_kwargs": canonical_json(algorithm) if algorithm is not None else None,
        "policy": config.policy.name,
        "policy_digest": config.policy.digest,
        "seed": config.seed,
        "config": canonical_json(config.model_dump(mode="json")),
        **store.environment_facts(),
    }


def _headline(config: JobConfig, rows: list[dict[str, Any]]) -> str:
    split = config.environment.headline
    scores = [
        r["success"] for r in rows if r["split"] == split and r["mode"] == rows[0]["mode"] and r["status"] == "done"
    ]
    if not scores:
        return f"{split}: no episode could be played"
    return f"{split} success {sum(scores) / len(scores):.3f}"


@contextlib.contextmanager
def _lock(folder: Path, *, patience: float | None = None) -> Iterator[bool]:
    """Hold the folder's lock; False if somebody else keeps it. The kernel frees it when its holder dies."""
    deadline = time.monotonic() + (LOCK_PATIENCE if patience is None else patience)
    with (folder / "lock").open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(0.1)
        handle.truncate(0)
        handle.write(str(os.getpid()))  # for people who wonder who holds it
        handle.flush()
        yield True


def remove_job(folder: Path) -> bool:
    """Delete a job folder, unless somebody works in it (then False)."""
    with _lock(folder, patience=0.0) as mine:
        if mine:
            shutil.rmtree(folder)
        return mine


_watched: set[int] = set()


def _live_and_die_with(parent: int) -> None:
    """Leave this process as soon as its parent is another one than ``parent``."""
    if parent in _watched:
        return
    _watched.add(parent)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
