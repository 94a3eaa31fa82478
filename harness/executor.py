"""Runs jobs as processes of one thread each (joblib's loky), and shows how far they are.

At most ``workers`` jobs are handed out at a time, so what is handed out is what runs. If a worker process dies (killed,
out of memory), loky stops the others too; the jobs that were out are tried once more, each alone, so that one whose
process dies again is itself to blame and is recorded as failed.
"""

from __future__ import annotations

import json
import os
import signal
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Self

from joblib.externals.loky import get_reusable_executor
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from harness import store
from harness.suite import Job
from harness.train import JobResult, finished, record_error, run_job

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # bars of workers would be drawn over ours
    "TRANSFORMERS_VERBOSITY": "error",
}


def execute(jobs: Sequence[Job], out: Path, *, workers: int, device: str, console: Console) -> list[JobResult]:
    """Run jobs, in order, ``workers`` at a time.

    Returns:
        One result per job, in the order they ended.

    Raises:
        KeyboardInterrupt: after the workers were stopped.
    """
    waiting, running = deque(jobs), dict[Future[JobResult], Job]()
    suspects: set[str] = set()  # ids of jobs that were out when a process died
    results: list[JobResult] = []
    if not jobs:
        return results
    try:
        with _Display(console, len(jobs), out) as display:
            while waiting or running:
                try:
                    while waiting and len(running) < workers:
                        if running and suspects.intersection(j.run_id for j in (waiting[0], *running.values())):
                            break
                        future = _pool(workers).submit(_in_worker, waiting[0], out, device, os.getpid())
                        running[future] = waiting.popleft()
                    done, _ = wait(running, timeout=0.3, return_when=FIRST_COMPLETED)
                    display.refresh(list(running.values()))
                    for future in done:
                        result = _result(future, running[future])
                        display.ended(running.pop(future), result)
                        results.append(result)
                except BrokenProcessPool:
                    for job in reversed(running.values()):
                        row = store.run_row(out, job.run_id)
                        if row is not None and row["status"] == "done":  # it ended just before
                            result = finished(row)
                        elif job.run_id in suspects:
                            result = record_error(job, out, "the worker process died (killed, or out of memory)")
                        else:
                            suspects.add(job.run_id)
                            waiting.appendleft(job)
                            continue
                        display.ended(job, result)
                        results.append(result)
                    running.clear()
    except BaseException:
        _pool(workers).shutdown(wait=False, kill_workers=True)
        raise
    _pool(workers).shutdown(wait=True, kill_workers=True)  # all is written; a polite end takes seconds
    return results


def _result(future: Future[JobResult], job: Job) -> JobResult:
    """The job's result; what could not even be written down (a full disk) is a failure of this job alone."""
    try:
        return future.result()
    except BrokenProcessPool:
        raise
    except Exception as error:
        return JobResult(job.run_id, "error", f"{type(error).__name__}: {error}")


def _pool(workers: int) -> Any:
    return get_reusable_executor(max_workers=workers, timeout=600, env=_ENVIRONMENT, initializer=_ignore_interrupt)


def _ignore_interrupt() -> None:
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _in_worker(job: Job, out: Path, device: str, parent: int) -> JobResult:
    import torch

    import harness.evaluate  # noqa: F401  (imports are no part of the first job's CPU seconds)

    if job.config.kind != "scripted":
        from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401
    torch.set_num_threads(1)
    return run_job(job, out, device=device, parent=parent)


class _Display:
    """Bars on a terminal, one line per finished job elsewhere."""

    def __init__(self, console: Console, total: int, out: Path) -> None:
        self._console, self._total, self._out = console, total, out
        self._ended = 0
        self._tasks: dict[str, TaskID] = {}
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._overall = self._bars.add_task("all jobs", total=total, note="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def refresh(self, running: list[Job]) -> None:
        """Read the progress files of the running jobs."""
        if self._bars.disable:
            return
        for job in running:
            task = self._tasks.get(job.run_id)
            if task is None:
                task = self._tasks[job.run_id] = self._bars.add_task(job.title, total=1, note="")
            try:
                state = json.loads((store.job_folder(self._out, job.run_id) / "progress.json").read_text())
            except (OSError, ValueError):
                continue
            note = f"{state['phase']} {state['note']}"
            self._bars.update(task, completed=state["done"], total=state["of"], note=note)

    def ended(self, job: Job, result: JobResult) -> None:
        """A job has ended."""
        self._ended += 1
        task = self._tasks.pop(job.run_id, None)
        if task is not None:
            self._bars.remove_task(task)
        self._bars.update(self._overall, completed=self._ended)
        failed = f", {result.n_errors} episodes with errors" if result.n_errors else ""
        line = (
            f"[{self._ended}/{self._total}] {result.status:5} {job.title}: {result.headline or result.message}{failed}"
        )
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
