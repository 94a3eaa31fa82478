from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import store

SCRIPTED = ["--policy", "random", "--policy", "oracle"]


def start(*arguments: str, hash_seed: str = "0") -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "harness.run", *arguments]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def call(*arguments: str, hash_seed: str = "0") -> tuple[int, str]:
    process = start(*arguments, hash_seed=hash_seed)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def wait_for(condition: object, process: subprocess.Popen[str], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    assert callable(condition)
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        assert process.poll() is None, f"ended too early: {process.communicate()[0]}"
        time.sleep(0.02)


@contextlib.contextmanager
def closing(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def unlocked(folder: Path) -> bool:
    """Nobody works in any job folder."""
    for path in folder.glob("jobs/*/lock"):
        with path.open() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
    return True


def finished(folder: Path) -> set[str]:
    return {p.parent.name for p in folder.glob("jobs/*/run.parquet")}


@pytest.mark.parametrize("module", ["harness.run", "harness.leaderboard"])
def test_help_is_quick_and_light(module: str) -> None:  # C11
    code = (
        "import runpy, sys; sys.argv = ['x', '--help']\n"
        f"try: runpy.run_module({module!r}, run_name='__main__')\n"
        "except SystemExit as e: assert not e.code\n"
        "heavy = 'torch transformers pandas pyarrow gymnasium numba numpy'.split()\n"
        "print('LOADED', [m for m in heavy if m in sys.modules])"
    )
    best, output = 9.0, ""
    for _ in range(3):
        clock = time.monotonic()
        output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        best = min(best, time.monotonic() - clock)
    assert best < 1.0
    assert output.rstrip().endswith("LOADED []")


def test_list_is_light() -> None:
    code = (
        "import runpy, sys; sys.argv = ['x', '--list']\n"
        "try: runpy.run_module('harness.run', run_name='__main__')\n"
        "except SystemExit as e: assert not e.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    from ragen_algos import algorithms

    for name in ("core", "smoke", "ragen/Sokoban-v0", "tiny-mid", *algorithms.list_algorithms()):
        assert name in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--suite", "croe"], "Did you mean 'core'?"),
        ([*SCRIPTED, "--env", "ragen/Sokobann-v0"], "Did you mean 'ragen/Sokoban-v0'?"),
        (["--policy", "tiny-midd"], "Did you mean 'tiny-mid'?"),
        ([*SCRIPTED, "--algo", "reinforced"], "Did you mean 'reinforce'?"),
        ([*SCRIPTED, "--set", "train.iteration=3"], "Did you mean 'train.iterations'?"),
        ([*SCRIPTED, "--device", "tpu"], "auto, cpu or cuda"),
        ([*SCRIPTED, "--out", "/proc/nowhere"], "cannot write"),
        ([*SCRIPTED, "--out", f"{__file__}/below"], "cannot write"),
        ([*SCRIPTED, "--out", __file__], "cannot write"),
        (["--device", "cuda"], "sees no CUDA device"),
        (["--nonsense"], "No such option"),
    ],
)
def test_wrong_usage_is_refused_before_any_work(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, output = call(*arguments)
    assert code == 2
    assert says in output
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_scripted_policies_is_light(tmp_path: Path) -> None:
    arguments = ["x", "--suite", "core", *SCRIPTED, "--dry-run", "--device", "cuda", "--out", str(tmp_path / "out")]
    code = (
        f"import runpy, sys; sys.argv = {arguments}\n"
        "try: runpy.run_module('harness.run', run_name='__main__')\n"
        "except SystemExit as e: assert not e.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_a_game_of_ones_own_by_the_id_that_names_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nversion = 1\n[train]\niterations = 1\ngroups = 1\ngroup_size = 2\n'
        "[evaluation]\nepisodes = 3\nseed = 0\n"
        '[[environments]]\nid = "stub_game:tests/Pit-v0"\nkwargs = { max_turns = 2 }\n'
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    code, output = call("--suite", str(path), "--policy", "random", "--out", str(tmp_path / "out"))
    assert code == 0, output
    rows = store.read([tmp_path / "out" / "episodes.parquet"], store.SCHEMAS["episodes"]).to_pylist()
    assert [r["status"] for r in rows] == ["done"] * 3
    assert all(r["actions"] for r in rows)
    assert "Pit-v0 test" in output


def test_the_learning_rate_of_the_tiny_model_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    request = ["--suite", "smoke", "--dry-run", "--algo", "reinforce"]
    for more, warned in (([], True), (["--set", "algorithms.lr=1e-6"], False)):
        code, output = call(*request, "--policy", str(tmp_path), *more)
        assert code == 0, output
        assert output.count("lr 3e-4 suits the tiny model") == warned
    assert "suits the tiny" not in call(*request, "--policy", "tiny-mid")[1]


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, output = call("--suite", "smoke", *SCRIPTED, "--dry-run", "--out", str(out))
    assert code == 0
    assert "6 jobs" in output
    assert not out.exists()


def test_killed_and_resumed_equals_undisturbed(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    request = ["--suite", "smoke", *SCRIPTED, "--set", "evaluation.episodes=100"]
    code, output = call(*request, "--out", str(whole), hash_seed="1")
    assert code == 0, output

    with closing(start(*request, "--workers", "1", "--out", str(broken), hash_seed="2")) as process:
        wait_for(lambda: len(finished(broken)) >= 2, process)
        os.kill(process.pid, signal.SIGKILL)
    before = {p: p.stat().st_mtime_ns for p in broken.glob("jobs/*/run.parquet")}
    assert 2 <= len(before) < 6
    code, output = call(*request, "--out", str(broken), hash_seed="3")
    assert code == 0, output
    assert f"{len(before)} finished before" in output
    assert {p: p.stat().st_mtime_ns for p in before} == before
    a, b = (store.read([d / "episodes.parquet"], store.SCHEMAS["episodes"]) for d in (whole, broken))
    assert a.num_rows == 2 * 4 * 100
    assert a.equals(b)
    code, output = call(*request, "--out", str(broken))
    assert code == 0
    assert "6 finished before, 0 to run" in output
    assert store.read([broken / "episodes.parquet"], store.SCHEMAS["episodes"]).equals(a)
    apart = ["cpu_seconds", "code_version"]  # a commit may come in between
    boards = [store.read([d / "leaderboard.parquet"], store.SCHEMAS["leaderboard"]) for d in (whole, broken)]
    assert boards[0].drop_columns(apart).equals(boards[1].drop_columns(apart))
    shown = subprocess.run(
        [sys.executable, "-m", "harness.leaderboard", "show", str(broken)], capture_output=True, text=True, check=True
    ).stdout
    assert "Sokoban-v0 test" in shown
    built = subprocess.run([sys.executable, "-m", "harness.leaderboard", "build", str(broken)], check=False)
    assert built.returncode == 0


def test_a_killed_runner_takes_its_workers_along(tmp_path: Path) -> None:
    request = ["--suite", "smoke", "--policy", "oracle", "--set", "evaluation.episodes=20000", "--out", str(tmp_path)]
    process = start(*request, "--env", "ragen/FrozenLake-v0", "--workers", "1")
    try:
        wait_for(lambda: list(tmp_path.glob("jobs/*/progress.json")), process)
        assert not unlocked(tmp_path)
        process.kill()  # the runner alone, not its group
        process.wait()
        deadline = time.monotonic() + 10
        while not unlocked(tmp_path):
            assert time.monotonic() < deadline, "a worker outlived its parent"
            time.sleep(0.1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_interrupt_stops_everything_and_says_so(tmp_path: Path) -> None:
    request = ["--suite", "smoke", "--policy", "oracle", "--set", "evaluation.episodes=20000", "--out", str(tmp_path)]
    with closing(start(*request, "--env", "ragen/FrozenLake-v0", "--workers", "1")) as process:
        wait_for(lambda: list(tmp_path.glob("jobs/*/progress.json")), process)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 130, output
        assert "the same command continues" in output
        assert "Traceback" not in output
    assert unlocked(tmp_path)
    assert not finished(tmp_path)


def test_a_dead_worker_costs_one_retry(tmp_path: Path) -> None:
    request = ["--suite", "smoke", "--policy", "oracle", "--set", "evaluation.episodes=600", "--out", str(tmp_path)]
    with closing(start(*request, "--env", "ragen/FrozenLake-v0", "--workers", "1")) as process:
        wait_for(lambda: list(tmp_path.glob("jobs/*/progress.json")), process)
        worker = int(next(tmp_path.glob("jobs/*/lock")).read_text())
        assert worker != process.pid
        os.kill(worker, signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
    assert len(finished(tmp_path)) == 1


def test_leaderboard_of_nothing_is_refused(tmp_path: Path) -> None:
    for command in ("show", "build"):
        done = subprocess.run(
            [sys.executable, "-m", "harness.leaderboard", command, str(tmp_path)], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert "no results" in done.stderr
