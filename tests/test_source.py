"""Rules that the source text of the packages must keep: nothing evaluates data, and imports run downwards only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("ragen_envs", "ragen_algos", "harness")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput",
    "subprocess.getstatusoutput", "pickle.load", "pickle.loads", "pickle.Unpickler", "cPickle.load", "dill.load",
    "dill.loads", "cloudpickle.load", "cloudpickle.loads", "marshal.load", "marshal.loads", "shelve.open", "yaml.load",
    "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "joblib.load", "pandas.read_pickle", "pd.read_pickle",
    "pandas.eval", "pd.eval",
}  # fmt: skip
BASE = {"gymnasium", "pettingzoo", "numpy", "numba", "ragen_envs"}
MAY_NOT_IMPORT = {
    "ragen_envs": {"torch", "transformers", "ragen_algos", "harness"},
    "ragen_algos": {"harness"},
    "harness": set(),
}


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a name or attribute, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else node.attr
    return ""


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Every call with its function's dotted name, names bound by imports written out in full."""
    full: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            full.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        elif isinstance(node, ast.Import):
            full.update({alias.asname: alias.name for alias in node.names if alias.asname})
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, _, rest = dotted(node.func).partition(".")
            name = full.get(first, first)
            yield (f"{name}.{rest}" if rest else name), node


def keyword(call: ast.Call, name: str) -> object:
    """The constant value of a keyword argument; ``...`` if it is there and no constant, None if it is not there."""
    for given in call.keywords:
        if given.arg == name:
            return given.value.value if isinstance(given.value, ast.Constant) else ...
    return None


def faults(source: str) -> list[str]:
    """What in this source could run data as code."""
    found = []
    for name, call in calls(ast.parse(source)):
        where = f"line {call.lineno}: {name}"
        if name in FORBIDDEN_CALLS:
            found.append(where)
        if name == "torch.load" and keyword(call, "weights_only") is not True:
            found.append(f"{where} without weights_only=True")
        if keyword(call, "shell") not in (None, False):
            found.append(f"{where} with shell=")
        if keyword(call, "allow_pickle") not in (None, False):
            found.append(f"{where} with allow_pickle=")
        if keyword(call, "trust_remote_code") not in (None, False):
            found.append(f"{where} with trust_remote_code=")
    return found


def imported(source: str) -> set[str]:
    """Top-level packages imported anywhere in this source, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_all_packages_are_looked_at() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(PACKAGES)


@pytest.mark.parametrize(
    "source",
    [
        "eval(x)",
        "exec(x)",
        "import pickle\npickle.load(f)",
        "from pickle import loads as read\nread(f)",
        "import yaml as y\ny.load(f)",
        "import torch\ntorch.load(p)",
        "from torch import load\nload(p, weights_only=False)",
        "import torch as t\nt.load(p, weights_only=flag)",
        "import subprocess\nsubprocess.run(x, shell=True)",
        "import numpy as np\nnp.load(p, allow_pickle=True)",
    ],
)
def test_the_search_finds_what_it_is_for(source: str) -> None:
    assert len(faults(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "import re\nre.compile(x)",
        "import torch\ntorch.load(p, weights_only=True)",
        "import yaml\nyaml.safe_load(f)",
        "import json\njson.load(f)",
        "import subprocess\nsubprocess.run([x], shell=False)",
        "import numpy as np\nnp.load(p, allow_pickle=False)",
    ],
)
def test_the_search_leaves_harmless_calls_alone(source: str) -> None:
    assert faults(source) == []


OWN_PICKLE = "pickle.loads(pickle.dumps("
"""The conformance kit pickles an environment and reads that back, in one expression: no data comes from outside."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_data_is_run_as_code(path: Path) -> None:
    """C24: no eval, exec, pickle, unsafe YAML or shell; checkpoints load weights only."""
    source = path.read_text(encoding="utf-8")
    if path == ROOT / "ragen_envs" / "testing.py":
        assert source.count(OWN_PICKLE) == 1
        source = source.replace(OWN_PICKLE, "copy((")
    assert faults(source) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_downwards(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    names = imported(path.read_text(encoding="utf-8"))
    assert not names & MAY_NOT_IMPORT[package]
    if package == "ragen_envs":
        assert names - sys.stdlib_module_names <= BASE


@pytest.mark.parametrize(
    ("statement", "missing", "extra"),
    [
        ("import ragen_algos; ragen_algos.make", "torch", "train"),
        ("from ragen_algos import LanguagePolicy", "transformers", "train"),
        ("import harness", "typer", "harness"),
    ],
)
def test_a_missing_extra_is_named(statement, missing, extra):
    """C11, C25: an error that says what to install."""
    hide = f"""
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == {missing!r} else real(name, *rest)
sys.modules[{missing!r}] = None  # importing it raises ModuleNotFoundError
"""
    done = subprocess.run([sys.executable, "-c", hide + statement], capture_output=True, text=True)
    assert done.returncode != 0
    assert f"pip install 'ragen-bench[{extra}]'" in done.stderr
