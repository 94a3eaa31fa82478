"""The page on games of one's own: its code is short, prints what it says, passes the kit and runs in the harness."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from ragen_envs.testing import ConformanceError, check_text_env

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "bring_your_own_game.md").read_text(encoding="utf-8")
ID = "jugs:mylab/Jugs-v0"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the page's game is saved as ``jugs.py``, and with a mistake in its oracle as ``wrong_jugs.py``."""
    folder = tmp_path_factory.mktemp("jugs")
    code = blocks("python")[0]
    wrong = code.replace("n < left", "n <= left").replace('"mylab/Jugs-v0", "jugs:', '"mylab/Wrong-v0", "wrong_jugs:')
    assert code.count("n < left") == 1
    (folder / "jugs.py").write_text(code, encoding="utf-8")
    (folder / "wrong_jugs.py").write_text(wrong, encoding="utf-8")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    yield folder
    sys.path.remove(str(folder))
    for name in ("jugs", "wrong_jugs"):
        sys.modules.pop(name, None)
    for id in ("mylab/Jugs-v0", "mylab/Wrong-v0"):
        gymnasium.registry.pop(id, None)


def test_a_game_with_oracle_takes_less_than_a_hundred_lines() -> None:
    lines = blocks("python")[0].splitlines()
    assert len(lines) < 100
    assert max(map(len, lines)) <= 120


def test_the_snippets_print_what_they_say(folder: Path) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(blocks("python")[1], "page", "exec"), {})
    assert out.getvalue().splitlines() == re.findall(r"^print\(.*\)  # (.*)$", blocks("python")[1], re.MULTILINE)


def test_the_game_passes_the_kit(folder: Path) -> None:
    report = check_text_env(ID)
    left_out = {r.rule for r in report.results if r.status != "passed"}
    assert left_out - {"vector"} == {"grid", "random_play"}


def test_the_mistake_on_the_page_is_found_as_it_says(folder: Path) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_text_env("wrong_jugs:mylab/Wrong-v0", rules=["oracle_values"])
    shown = " ".join(blocks("text")[0].split())
    assert " ".join(str(caught.value).split()).endswith(shown)


def test_the_suite_on_the_page_runs(folder: Path) -> None:
    (folder / "jugs.toml").write_text(blocks("toml")[0], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "harness.run", "--suite", "jugs.toml", "--policy", "random", "--policy", "oracle",
         "--set", "evaluation.episodes=4", "--workers", "1", "--out", "out"],
        cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder)))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "oracle: test success 1.000" in done.stdout + done.stderr
