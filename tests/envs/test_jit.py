"""Compiled functions wait for their first call, and work where numba finds no place for its cache (case C14)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from ragen_envs.jit import njit

@njit
def twice(x):
    return 2 * x

@njit
def later(x):
    return twice(x) + helper(x)

@njit
def helper(x):
    return twice(x) + 1
"""


def run(folder: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "compiled.py").write_text(MODULE)
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": path, **env})  # fmt: skip


@pytest.mark.parametrize("env", [{}, {"NUMBA_DISABLE_JIT": "1"}], ids=["compiled", "plain"])
def test_numba_is_imported_at_the_first_call(tmp_path: Path, env: dict[str, str]) -> None:
    """Functions of one file call each other in any order, also when they were imported elsewhere before that."""
    code = (
        "import sys\nfrom compiled import later, twice\nassert 'numba' not in sys.modules\n"
        "print(later(3), twice(4), later(5), twice.__name__)\nassert 'numba' in sys.modules\n"
        "import compiled\nprint(compiled.later(3), compiled.helper(1))"
    )
    done = run(tmp_path, code, NUMBA_CACHE_DIR=str(tmp_path / "cache"), **env)
    assert (done.stdout, done.stderr) == ("13 8 21 twice\n13 3\n", "")


def test_without_a_writable_cache_there_is_one_warning_and_the_same_result(tmp_path: Path) -> None:
    code = (
        "import numba.core.caching as caching\n"
        "def nowhere(*a): raise RuntimeError('cannot cache function: no locator available')\n"
        "caching.FunctionCache.__init__ = nowhere\n"
        "from compiled import later, twice\nprint(later(3), twice(4))"
    )
    done = run(tmp_path, code)
    assert done.stdout == "13 8\n"
    assert done.stderr.count("no writable cache folder") == 1
