from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import StubTrainer, episodes_of, make_job, make_training_job

from benchmarks import experiments
from benchmarks.calibration import Run, load_runs
from harness import train
from harness.suite import Job, PolicySpec


def a_run(successes: list[float], *, success: float = 0.5, suite: str = "collapse", **changes: Any) -> Run:
    steady = {"in_group_std": 1.0, "entropy": 1.0, "format_ok": 1.0, "grad_norm": 1.0}
    history = [{**steady, "iteration": i, "success": s, **changes} for i, s in enumerate(successes)]
    return Run(suite, "ragen/Sokoban-v0", "grpo", "", 0, history, success, 0.5)


def test_runs_of_a_folder_have_their_metrics_and_what_they_started_from(
    tmp_path: Path, stub_training: type[StubTrainer]
) -> None:
    job = make_training_job(seed=2)
    start = Job(make_job("start", kind="start", policy=PolicySpec(name="stub")).config, "stub")
    for j in (Job(job.config, "stub"), start):
        assert train.run_job(j, tmp_path).status == "done"
    (run,) = load_runs(tmp_path)
    assert (run.suite, run.entry, run.seed) == ("tests", "stub", 2)
    assert [row["success"] for row in run.history] == pytest.approx([i / 10 for i in range(6)])
    assert run.history[0]["critic_loss"] == 0.5  # not a column of its own
    for j, found in ((job, run.success), (start, run.start)):
        rows = [e for e in episodes_of(tmp_path, j.run_id) if e["mode"] == "sampled"]
        assert found == pytest.approx(sum(e["success"] for e in rows) / len(rows))


def test_a_collapse_is_judged_by_held_out_success_alone() -> None:
    assert a_run([0.5], success=0.24).collapsed
    assert not a_run([0.0] * 20, success=0.25).collapsed


def test_tables_count_what_happened() -> None:
    narrow = a_run([0.5] * 4 + [0.0] * 16, success=0.1)
    for row in narrow.history[8:]:
        row["in_group_std"] = 0.01
    text = experiments.calibration([a_run([0.5] * 20), narrow, a_run([0.5] * 20, suite="search")])
    warning, verdict = (line for line in text.splitlines() if "judged" in line)
    # The mean of five iterations has halved at 6. At 8 success has been below 1 % for five iterations: a collapse.
    assert "| warning | 0 of 1 [0.00, 0.79] | 1 of 1 [0.21, 1.00] | 0 of 1 early; median -2, -2 to -2 |" in warning
    assert "| collapsed | 0 of 1" in verdict
    assert experiments.curve([a_run([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]), a_run([0.0] * 6)]) == "0.00 ▁▅ 0.50"
    assert experiments.share(0, 0) == "none"


def test_folders_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["experiments", str(tmp_path)])
    with pytest.raises(SystemExit) as error:
        experiments.main()
    assert error.value.code == 2
    assert "is not a results folder" in capsys.readouterr().err
