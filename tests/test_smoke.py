"""The whole pipeline from the command line: train, evaluate, store, show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

TIMES = {"started", "finished", "wall_seconds", "cpu_seconds", "rollout_seconds", "update_seconds"}
PACKAGE = Path(__file__).parents[1]


def run(*arguments: str, hash_seed: str = "0") -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], env=env, cwd=PACKAGE, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results") / "smoke"
    run("harness.run", "--suite", "smoke", "--out", str(out))
    return out


def test_every_environment_and_entry_has_a_row(results: Path) -> None:
    """A row for each of environment x (five algorithms, start, random, oracle)."""
    rows = pq.read_table(results / "leaderboard.parquet").to_pylist()
    entries = {"reinforce", "starpo-ppo", "starpo-grpo", "starpo-s", "seeupo", "start", "random", "oracle"}
    for env in ("ragen/Bandit-v0", "ragen/FrozenLake-v0", "ragen/Sokoban-v0"):
        mine = [r for r in rows if r["environment"] == env]
        assert {r["entry"] for r in mine} == entries
        assert all(r["success"] is not None and r["episodes"] > 0 for r in mine)
    oracle = [r for r in rows if r["entry"] == "oracle" and r["environment"] != "ragen/FrozenLake-v0"]
    assert all(r["success"] == 1.0 for r in oracle)


def test_training_left_metrics_and_a_policy_that_loads(results: Path) -> None:
    """Every trained run has its iterations and a checkpoint folder; the row names it relative to the results."""
    from ragen_algos import LanguagePolicy

    runs = [r for r in pq.read_table(results / "runs.parquet").to_pylist() if r["kind"] == "trained"]
    iterations = pq.read_table(results / "iterations.parquet").to_pylist()
    assert len(runs) == 15
    for r in runs:
        assert r["status"] == "done"
        assert sum(i["run_id"] == r["run_id"] for i in iterations) == r["iterations"] == 2
    LanguagePolicy.load(str(results / runs[0]["checkpoint"]))


def test_the_same_command_gives_the_same_episodes(results: Path, tmp_path: Path) -> None:
    """Another folder and another PYTHONHASHSEED: the episodes are equal, times aside."""
    again = tmp_path / "again"
    selection = ["--env", "ragen/Sokoban-v0", "--algo", "starpo-ppo"]
    run("harness.run", "--suite", "smoke", "--out", str(again), *selection, hash_seed="1")
    ours = pq.read_table(again / "episodes.parquet").to_pylist()
    ids = {row["run_id"] for row in ours}
    theirs = [row for row in pq.read_table(results / "episodes.parquet").to_pylist() if row["run_id"] in ids]
    key = lambda row: (row["run_id"], row["split"], row["mode"], row["episode"])  # noqa: E731
    strip = lambda row: {k: v for k, v in row.items() if k not in TIMES}  # noqa: E731
    assert ours
    assert list(map(strip, sorted(ours, key=key))) == list(map(strip, sorted(theirs, key=key)))


def test_show_prints_the_table(results: Path) -> None:
    """``leaderboard show`` names environments and entries."""
    text = run("harness.leaderboard", "show", str(results))
    assert "Sokoban" in text
    assert "oracle" in text
