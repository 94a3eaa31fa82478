from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import executor, policies, store, train
from harness.suite import EnvironmentSpec, EvaluationSettings, Job, JobConfig, PolicySpec, TrainSettings


def make_job(entry: str, env: str = "ragen/Bandit-v0", episodes: int = 4, **changes: Any) -> Job:
    """A scripted job, or whatever ``changes`` make of it."""
    fields: dict[str, Any] = {
        "suite": "tests",
        "suite_version": 1,
        "environment": EnvironmentSpec(id=env, splits=("test",)),
        "entry": entry,
        "kind": "scripted",
        "policy": PolicySpec(name=entry),
        "evaluation": EvaluationSettings(episodes=episodes, seed=3),
    }
    return Job(JobConfig(**{**fields, **changes}), entry)


def make_training_job(seed: int = 0, iterations: int = 6) -> Job:
    algorithm = {"name": "reinforce", "lr": 0.1}
    budget = TrainSettings(iterations=iterations, groups=1, group_size=2)
    return make_job("stub", kind="trained", algorithm=algorithm, train=budget, seed=seed)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run here, one after the other, so that they see what a test has patched."""

    def execute(jobs: Any, out: Path, **_: Any) -> list[train.JobResult]:
        return [train.run_job(job, out) for job in jobs]

    monkeypatch.setattr(executor, "execute", execute)


class StubModel:
    name, env_kwargs, device = "stub", {"prompt": "compact"}, "cpu"

    def save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")


class StubTrainer:
    """Keeps one file per finished iteration, as a checkpoint of every iteration would."""

    fail_at: int | None = None
    collapse_at: int | None = None
    """The monitor's word from this iteration on; the run ends two iterations later."""
    played: list[int] = []  # noqa: RUF012

    def __init__(self, *arguments: Any, folder: Path, on_iteration: Callable[[dict[str, Any]], None], **_: Any) -> None:
        self.config, self.folder, self.on_iteration = arguments[4], folder, on_iteration
        self.stopped = ""

    def run(self) -> list[dict[str, Any]]:
        (self.folder / "start").mkdir(parents=True, exist_ok=True)
        metrics = []
        for i in range(self.config.iterations):
            steps = 3 * (i + 1)
            row = {"iteration": i, "success": i / 10, "optimizer_steps": steps, "env_steps": steps}
            row |= {"sampled_tokens": 10 * (i + 1), "grad_norm": float("nan"), "critic_loss": 0.5}
            collapsed = self.collapse_at is not None and i >= self.collapse_at
            row["verdict"] = "collapsed" if collapsed else "healthy"
            metrics.append(row)
            if (self.folder / str(i)).exists():
                continue
            if i == self.fail_at:
                raise MemoryError("out of /tmp/some/where/memory")
            self.played.append(i)
            (self.folder / str(i)).touch()
            self.on_iteration(row)
            if self.collapse_at is not None and i == self.collapse_at + 2:
                self.stopped = "collapsed"
                break
        return metrics


@pytest.fixture
def stub_training(monkeypatch: pytest.MonkeyPatch) -> type[StubTrainer]:
    """A policy named ``stub`` that plays at random and is trained by ``StubTrainer``."""
    from ragen_algos import algorithms, trainer
    from ragen_algos.rollout import FunctionPlayer

    monkeypatch.setattr(policies, "load", lambda source, device: StubModel() if source == "stub" else None)
    real = policies.player

    def player(name: str, model: Any, **settings: Any) -> Any:
        return FunctionPlayer(policies.random_turn) if model else real(name, model, **settings)

    monkeypatch.setattr(policies, "player", player)
    monkeypatch.setattr(algorithms, "make", lambda **kwargs: kwargs)
    monkeypatch.setattr(trainer, "Trainer", StubTrainer)
    StubTrainer.fail_at, StubTrainer.collapse_at, StubTrainer.played = None, None, []
    return StubTrainer


def episodes_of(out: Path, run_id: str) -> list[dict[str, Any]]:
    path = store.job_folder(out, run_id) / "episodes.parquet"
    rows: list[dict[str, Any]] = store.read([path], store.SCHEMAS["episodes"]).to_pylist()
    return rows
