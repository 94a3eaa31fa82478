from __future__ import annotations

import fcntl
import io
import json
import math
import re
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import StubTrainer, episodes_of, make_job, make_training_job
from rich.console import Console
from typer.testing import CliRunner

from harness import executor, leaderboard, policies, run, store, train
from harness.suite import EnvironmentSpec, EvaluationSettings, Job

ENVIRONMENTS = ("ragen/Bandit-v0", "ragen/FrozenLake-v0", "ragen/Sokoban-v0")


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_random_and_oracle_reach_their_exact_expectations(env: str, tmp_path: Path) -> None:
    rows = {}
    for entry in ("random", "oracle"):
        job = make_job(entry, env, episodes=256)
        assert train.run_job(job, tmp_path).status == "done"
        rows[entry] = episodes_of(tmp_path, job.run_id)
        expected = np.array([r["random_success" if entry == "random" else "optimal_success"] for r in rows[entry]])
        sigma = math.sqrt((expected * (1 - expected)).sum()) / len(expected)
        success = np.mean([r["success"] for r in rows[entry]])
        assert abs(success - expected.mean()) <= 4 * sigma + 1e-9, (entry, success, expected.mean(), sigma)
        assert all(all(r["format_ok"]) for r in rows[entry])
    if env != "ragen/FrozenLake-v0":
        assert all(r["success"] for r in rows["oracle"])
    if env == "ragen/Sokoban-v0":
        assert all(r["total_return"] == pytest.approx(r["optimal_return"]) for r in rows["oracle"])
    # Everyone meets the same levels and luck.
    same = ("episode", "level_seed", "dynamics_seed", "sampling_seed", "level_key", "optimal_return", "random_success")
    assert [[r[k] for k in same] for r in rows["random"]] == [[r[k] for k in same] for r in rows["oracle"]]
    returns = [r["total_return"] - r["random_return"] for r in rows["random"]]
    assert abs(np.mean(returns)) <= 4 * np.std(returns) / math.sqrt(len(returns))


def test_scripted_policies_write_no_thoughts_where_none_are_wanted(tmp_path: Path) -> None:
    place = EnvironmentSpec(id="ragen/Bandit-v0", kwargs={"reasoning": "off"})
    job = make_job("oracle", environment=place)
    train.run_job(job, tmp_path)
    rows = episodes_of(tmp_path, job.run_id)
    assert all(r["texts"][0].startswith("<answer>") for r in rows)
    assert all(r["format_ok"] == [True] for r in rows)


def test_an_episode_that_cannot_be_played_has_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: None
) -> None:  # C21
    calls = 0

    def sometimes(env: Any, messages: Any, rng: Any) -> str:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ConnectionError("no answer from /srv/model/server")
        return policies.oracle_turn(env, messages, rng)

    monkeypatch.setitem(policies.SCRIPTED, "sometimes", sometimes)
    base = ["--suite", "smoke", "--policy", "sometimes", "--env", "ragen/Bandit-v0", "--set", "evaluation.episodes=4"]
    result = CliRunner().invoke(run.app, [*base, "--out", str(tmp_path)])
    assert result.exit_code == 1, result.output
    rows = store.read([tmp_path / "episodes.parquet"], store.SCHEMAS["episodes"]).to_pylist()
    second = next(r for r in rows if r["episode"] == 1 and r["split"] == "val")
    assert second["status"] == "error"
    assert second["success"] is None
    assert second["total_return"] is None
    assert second["error"] == "ConnectionError: no answer from server"
    board = store.read([tmp_path / "leaderboard.parquet"], store.SCHEMAS["leaderboard"]).to_pylist()
    val = next(r for r in board if r["split"] == "val")
    assert (val["episodes"], val["n_errors"], val["success"]) == (4, 1, 1.0)
    assert "1 episodes could not be played" in result.output
    # Kept, not counted again, and still reported.
    again = CliRunner().invoke(run.app, [*base, "--out", str(tmp_path)])
    assert again.exit_code == 1
    assert calls == 8
    assert CliRunner().invoke(run.app, [*base, "--out", str(tmp_path), "--allow-errors"]).exit_code == 0


def test_a_fall_with_positive_return_is_no_success(tmp_path: Path) -> None:  # C21
    job = make_job("random", "stub_game:tests/Pit-v0")
    assert train.run_job(job, tmp_path).status == "done"
    row = episodes_of(tmp_path, job.run_id)[0]
    assert row["total_return"] == pytest.approx(0.2)
    assert row["terminated"] is True
    assert row["success"] is False
    # A game without oracle: unknown, not 0.
    assert row["optimal_success"] is None
    assert row["random_return"] is None
    board = leaderboard.build(tmp_path).to_pylist()
    assert board[0]["normalised"] is None
    assert board[0]["success"] == 0.0
    oracle = make_job("oracle", "stub_game:tests/Pit-v0")
    assert train.run_job(oracle, tmp_path).n_errors == 4
    board = leaderboard.build(tmp_path).to_pylist()
    assert next(r for r in board if r["entry"] == "oracle")["success"] is None


@pytest.mark.parametrize("name", ['../../a:b*?"', "x" * 300, "a/../../b", "naïve\nname"])
def test_hostile_names_stay_inside(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # C23
    monkeypatch.setitem(policies.SCRIPTED, name, policies.random_turn)
    out = tmp_path / "deep" / "out"
    job = make_job(name)
    assert train.run_job(job, out).status == "done"
    leaderboard.build(out)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["out"]
    assert [p.name for p in (out / "jobs").iterdir()] == [job.run_id]
    assert store.read([out / "leaderboard.parquet"], store.SCHEMAS["leaderboard"])["policy"].to_pylist() == [name]


def test_training_resumes_and_nothing_counts_twice(tmp_path: Path, stub_training: type[StubTrainer]) -> None:
    job = make_training_job()
    folder = store.job_folder(tmp_path, job.run_id)
    stub_training.fail_at = 3
    failed = train.run_job(job, tmp_path)
    assert (failed.status, failed.message) == ("error", "MemoryError: out of memory")
    assert "MemoryError" in (folder / "traceback.txt").read_text()
    row = store.run_row(tmp_path, job.run_id)
    assert row is not None
    assert row["status"] == "error"
    assert row["cpu_seconds"] is None
    board = leaderboard.build(tmp_path).to_pylist()
    assert {(r["seeds"], r["failed_seeds"], r["success"]) for r in board} == {(0, 1, None)}
    assert store.read([tmp_path / "episodes.parquet"], store.SCHEMAS["episodes"]).num_rows == 0

    spent = json.loads((folder / "usage.json").read_text())
    assert sorted(spent) == ["0", "1", "2"]
    stub_training.fail_at = None
    assert train.run_job(job, tmp_path).status == "done"
    assert stub_training.played == [0, 1, 2, 3, 4, 5]
    row = store.run_row(tmp_path, job.run_id)
    assert row is not None
    assert (row["iterations"], row["train_tokens"], row["optimizer_steps"], row["train_env_steps"]) == (6, 60, 18, 18)
    assert row["cpu_seconds"] >= sum(spent.values())
    assert row["checkpoint"] == f"jobs/{job.run_id}/policy"
    assert (tmp_path / row["checkpoint"] / "config.json").is_file()
    assert json.loads(row["env_kwargs"]) == {"prompt": "compact"}
    assert "/" not in row["cpu_model"]
    assert str(tmp_path) not in str(row)
    iterations = store.read([folder / "iterations.parquet"], store.SCHEMAS["iterations"]).to_pylist()
    assert [r["iteration"] for r in iterations] == list(range(6))
    assert math.isnan(iterations[0]["grad_norm"])
    assert iterations[0]["entropy"] is None
    assert iterations[0]["extra"] == [("critic_loss", 0.5)]
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        "episodes.parquet",
        "iterations.parquet",
        "lock",
        "policy",
        "run.parquet",
        "start",
    ]
    # An error that comes too late changes nothing.
    assert train.record_error(job, tmp_path, "too late").status == "done"
    # Done is done.
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*.parquet")}
    assert train.run_job(job, tmp_path).status == "done"
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*.parquet")} == before
    assert len(stub_training.played) == 6


def test_gain_and_seeds_on_the_leaderboard(tmp_path: Path, stub_training: type[StubTrainer]) -> None:
    start = make_job("stub", kind="start")
    jobs = [make_training_job(seed) for seed in range(3)]
    for job in [start, *jobs, make_job("oracle")]:
        assert train.run_job(job, tmp_path).status == "done"
    board = leaderboard.build(tmp_path).to_pylist()
    trained = next(r for r in board if r["kind"] == "trained" and r["mode"] == "sampled")
    assert (trained["seeds"], trained["episodes"], trained["iterations"]) == (3, 12, 6)
    # The stub plays the same whatever is trained, so the paired gain is exactly nothing.
    assert trained["gain"] == 0.0
    assert trained["gain_low"] == -trained["gain_high"] < 0
    assert trained["interval"] == "bootstrap over seeds and levels"
    assert trained["train_tokens"] == 60
    assert trained["levels"] <= 4
    assert trained["code_version"] == store.code_version()
    oracle = next(r for r in board if r["kind"] == "scripted")
    assert oracle["gain"] is None
    assert oracle["normalised"] == 1.0
    assert oracle["interval"] == "Wilson, over levels"
    assert {r["mode"] for r in board if r["kind"] == "start"} == {"sampled", "greedy"}
    for width in (80, 100, 160):
        console = Console(width=width, file=io.StringIO(), record=True)
        leaderboard.print_table(leaderboard.derive(leaderboard.collect(tmp_path)), console)
        text = console.export_text()
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
    # Another evaluation is no yardstick for the gain.
    other = make_training_job().config.model_copy(update={"evaluation": EvaluationSettings(episodes=4, seed=4)})
    train.run_job(type(start)(other, "stub"), tmp_path)
    board = leaderboard.build(tmp_path).to_pylist()
    assert next(r for r in board if r["config_id"] == other.config_id)["gain"] is None


def board_text(out: Path, width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    leaderboard.print_table(leaderboard.derive(leaderboard.collect(out)), console)
    return console.export_text()


def test_failed_seeds_levels_and_other_code_are_visible(
    tmp_path: Path, stub_training: type[StubTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "environment_facts", lambda: {"code_version": "1"})
    evaluation = EvaluationSettings(episodes=40, seed=3)
    for seed in range(3):
        stub_training.fail_at = 0 if seed == 2 else None
        config = make_training_job(seed).config.model_copy(update={"evaluation": evaluation})
        train.run_job(Job(config, "stub"), tmp_path)
    text = board_text(tmp_path)
    assert "x2, 1 failed" in text
    assert re.search(r" 40/1[0-6] ", text)  # Bandit's test split has 16 levels
    assert "**" not in text
    assert " 18 " in text  # optimizer steps
    # Another row, of other code; and the file that was derived before it is not what is shown.
    leaderboard.build(tmp_path)
    monkeypatch.setattr(store, "environment_facts", lambda: {"code_version": "2"})
    train.run_job(make_job("random", evaluation=evaluation), tmp_path)
    assert "** not all rows come from the same code: 1, 2" in board_text(tmp_path)
    shown = CliRunner().invoke(leaderboard.app, ["show", str(tmp_path)])
    assert "random" in shown.output
    stub_training.fail_at = None
    config = make_training_job(2).config.model_copy(update={"evaluation": evaluation})
    train.run_job(Job(config, "stub"), tmp_path)
    rows = leaderboard.derive(leaderboard.collect(tmp_path)).to_pylist()
    assert {r["code_version"] for r in rows} == {"mixed", "2"}


def test_a_collapse_is_in_the_row(tmp_path: Path, stub_training: type[StubTrainer]) -> None:
    for seed, at in enumerate((None, 2)):
        stub_training.collapse_at = at
        result = train.run_job(make_training_job(seed), tmp_path)
        assert ("; training collapsed in iteration 2" in result.headline) == (at is not None)
    rows = store.read(sorted(tmp_path.glob("jobs/*/run.parquet")), store.SCHEMAS["runs"]).to_pylist()
    found = sorted((r["seed"], r["iterations"], r["collapsed_at"], r["stopped"]) for r in rows)
    assert found == [(0, 6, None, None), (1, 5, 2, "collapsed")]
    board = leaderboard.build(tmp_path).to_pylist()
    assert {(r["seeds"], r["collapsed_seeds"]) for r in board} == {(2, 1)}
    assert "x2, 1 collapsed" in board_text(tmp_path)


def test_kept_jobs_of_other_code_are_named(tmp_path: Path, in_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    base = ["--suite", "smoke", "--policy", "random", "--set", "evaluation.episodes=2", "--out", str(tmp_path)]
    assert "other code" not in CliRunner().invoke(run.app, base).output
    assert "other code" not in CliRunner().invoke(run.app, base).output
    monkeypatch.setattr(store, "code_version", lambda: "9")
    assert "3 of them come from other code" in CliRunner().invoke(run.app, base).output


class Pool:
    """Runs jobs when they are handed out; the process of those in ``deadly`` dies."""

    def __init__(self, out: Path, deadly: set[str]) -> None:
        self.out, self.deadly, self.together = out, deadly, []
        self.broken: list[Future[Any]] = []

    def submit(self, function: Any, job: Job, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.broken = [f for f in self.broken if not f.done()] + [future]
        self.together.append(len(self.broken))
        if job.run_id in self.deadly:
            for other in self.broken:
                other.set_exception(BrokenProcessPool())
        elif job.config.entry == "oracle":
            train.run_job(job, self.out)  # done, but its process dies before it can say so
        else:
            future.set_result(train.run_job(job, self.out))
        return future

    def shutdown(self, **_: Any) -> None:
        pass


def test_only_the_guilty_job_fails_when_a_process_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [make_job("oracle"), make_job("random", episodes=3), make_job("random")]
    pool = Pool(tmp_path, {jobs[1].run_id})
    monkeypatch.setattr(executor, "_pool", lambda workers: pool)
    console = Console(file=io.StringIO())
    results = executor.execute(jobs, tmp_path, workers=2, device="cpu", console=console)
    assert {r.run_id: r.status for r in results} == {
        jobs[0].run_id: "done",
        jobs[1].run_id: "error",
        jobs[2].run_id: "done",
    }
    assert pool.together == [1, 2, 1, 1]  # the second try of the suspect is alone


def test_two_processes_never_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "LOCK_PATIENCE", 0.2)
    job = make_job("random")
    folder = store.job_folder(tmp_path, job.run_id)
    folder.mkdir(parents=True)
    with (folder / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert train.run_job(job, tmp_path).status == "busy"
        assert train.remove_job(folder) is False
        assert store.run_row(tmp_path, job.run_id) is None
    assert train.run_job(job, tmp_path).status == "done"
    assert train.remove_job(folder) is True
    assert not folder.exists()


def test_fresh_removes_only_what_is_ours_and_selected(tmp_path: Path, in_process: None) -> None:
    base = ["--suite", "smoke", "--set", "evaluation.episodes=2", "--out", str(tmp_path)]
    both = ["--policy", "random", "--policy", "oracle", "--env", "ragen/Bandit-v0"]
    assert CliRunner().invoke(run.app, [*base, *both]).exit_code == 0
    foreign = tmp_path / "jobs" / "mine"
    foreign.mkdir()
    (foreign / "config.json").write_text("not ours")
    times = {p.parent.name: p.stat().st_mtime_ns for p in tmp_path.glob("jobs/*/run.parquet")}
    assert len(times) == 2
    again = CliRunner().invoke(run.app, [*base, "--policy", "random", "--env", "ragen/Bandit-v0", "--fresh"])
    assert again.exit_code == 0, again.output
    now = {p.parent.name: p.stat().st_mtime_ns for p in tmp_path.glob("jobs/*/run.parquet")}
    assert now.keys() == times.keys()
    assert sum(now[k] != times[k] for k in times) == 1
    assert (foreign / "config.json").is_file()
