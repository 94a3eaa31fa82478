"""The documentation: pages of the games in one form with complete tables, snippets that run and print what they say,
and no link, file or command that does not exist."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import io
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ragen_envs import TABLE, Game, TextEnv

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "environments"
GAMES = {
    "bandit": "ragen_envs.bandit:Bandit",
    "frozen_lake": "ragen_envs.frozen_lake:FrozenLake",
    "sokoban": "ragen_envs.sokoban:Sokoban",
}
HEADINGS = [
    "What it is", "Try it", "Actions", "Observations", "Rewards and end", "Arguments", "Levels", "Presets", "Oracle",
    "Baselines", "Splits", "Differences from RAGEN", "Versions",
]  # fmt: skip
LONG = "# takes up to a minute"


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ragen_algos" / "tiny" / "CARD.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


def text_of(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def section(page: str, heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", without_code(text_of(page)), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def game_class(page: str) -> type[Game[Any, Any]]:
    module, _, name = GAMES[page].partition(":")
    found: type[Game[Any, Any]] = getattr(importlib.import_module(module), name)
    return found


def arguments(page: str, id: str) -> dict[str, Any]:
    """Every argument of an id, defaults included."""
    values: dict[str, Any] = {}
    for signature in (inspect.signature(TextEnv), inspect.signature(game_class(page))):
        values |= {name: p.default for name, p in signature.parameters.items() if p.default is not p.empty}
    return values | {"view": game_class(page).views[0]} | TABLE[id][1]


def value_of(text: str) -> Any:
    return float(Fraction(text)) if re.fullmatch(r"\d+/\d+", text) else ast.literal_eval(text)


def snippets(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_every_game_of_the_table_has_a_page_and_every_page_a_game() -> None:
    assert {path.stem for path in DOCS.glob("*.md")} - {"difficulty"} == set(GAMES)
    assert {game for game, _, _ in TABLE.values()} == set(GAMES.values())


@pytest.mark.parametrize("page", GAMES)
def test_pages_have_one_form(page: str) -> None:
    headings = re.findall(r"^(#+) (.*)$", without_code(text_of(page)), re.MULTILINE)
    title = game_class(page).__name__
    assert headings == [("#", title), *(("##", heading) for heading in HEADINGS)]
    module, _, name = GAMES[page].partition(":")
    line = f"`ragen/{title}-v0` · game class `{module}.{name}` · code in `ragen_envs/{page}/`"
    assert text_of(page).splitlines()[2] == line


@pytest.mark.parametrize("page", GAMES)
def test_the_presets_are_those_of_the_table_with_their_arguments(page: str) -> None:
    rows = re.findall(r"^\| `(ragen/[^`]+)` \| (.*?) \| (.+?) \|$", section(page, "Presets"), re.MULTILINE)
    assert [id for id, _, _ in rows] == [id for id, (game, _, _) in TABLE.items() if game == GAMES[page]]
    default = arguments(page, rows[0][0])
    assert rows[0][:2] == (f"ragen/{game_class(page).__name__}-v0", "none")
    for id, cell, _ in rows:
        written = {name: value_of(value) for name, value in re.findall(r"`(\w+)=([^`]+)`", cell)}
        assert written == {k: v for k, v in arguments(page, id).items() if v != default[k]}, id
        assert written or cell == "none"


@pytest.mark.parametrize("page", GAMES)
def test_the_arguments_are_those_of_the_class_and_of_the_default_id(page: str) -> None:
    rows = re.findall(r"^\| (`.+?`) \| (.+?) \| (.+?) \| .+ \|$", section(page, "Arguments"), re.MULTILINE)
    defaults = {name: p.default for name, p in inspect.signature(TextEnv).parameters.items()}
    defaults |= {name: p.default for name, p in inspect.signature(game_class(page)).parameters.items()}
    listed: dict[str, Any] = {}
    for names, by_class, by_id in rows:
        for i, name in enumerate(re.findall(r"`(\w+)`", names)):
            assert value_of(by_class.replace("`", "").split(", ")[i]) == defaults[name], name
            listed[name] = defaults[name] if by_id == "same" else value_of(by_id.split(", ")[i])
    of_id = arguments(page, f"ragen/{game_class(page).__name__}-v0")
    assert set(inspect.signature(game_class(page)).parameters) <= set(listed)
    assert {name for name, value in of_id.items() if value != defaults[name] and name != "view"} <= set(listed)
    assert {name: of_id[name] for name in listed} == listed


TESTED_ELSEWHERE = {"bring_your_own_game"}
SHORT = [
    (path, i)
    for path in PAGES
    if path.stem not in TESTED_ELSEWHERE
    for i, code in enumerate(snippets(path))
    if LONG not in code.splitlines() and "ragen_algos" not in code
]


@pytest.mark.parametrize(("path", "i"), SHORT, ids=[f"{path.stem}-{i}" for path, i in SHORT])
def test_snippets_run_and_print_what_they_say(path: Path, i: int) -> None:
    """A comment behind a ``print`` is what it prints."""
    code = snippets(path)[i]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, path.name, "exec"), {"__name__": path.stem})
    lines = iter(out.getvalue().splitlines())
    for said in re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE):
        assert said in lines, f"{said!r} was not printed, or not in this place"


def test_the_long_snippets_are_few_and_valid() -> None:
    left_out = [code for path in PAGES for i, code in enumerate(snippets(path)) if (path, i) not in SHORT]
    assert sum(LONG in code.splitlines() for code in left_out) == 2
    for code in left_out:
        ast.parse(code)


def anchors(path: Path) -> set[str]:
    """What ``#...`` can name on a page, as GitHub derives it from headings."""
    headings = re.findall(r"^#+ (.*)$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.stem))
def test_links_files_and_commands_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if target.startswith(("https:", "http:")):
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target
    for name in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        assert (ROOT / name).is_file(), name
    for module in re.findall(r"python -m\s+([\w.]+)", text):
        assert importlib.util.find_spec(module) is not None, module
