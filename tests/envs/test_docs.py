"""The pages of the games: one form, complete tables, and snippets that run and print what they say."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ragen_envs import TABLE, Game, TextEnv

DOCS = Path(__file__).parents[2] / "docs" / "environments"
GAMES = {
    "bandit": "ragen_envs.bandit:Bandit",
    "frozen_lake": "ragen_envs.frozen_lake:FrozenLake",
    "sokoban": "ragen_envs.sokoban:Sokoban",
}
HEADINGS = [
    "What it is", "Try it", "Actions", "Observations", "Rewards and end", "Arguments", "Presets", "Oracle", "Baselines",
    "Splits", "Differences from RAGEN", "Versions",
]  # fmt: skip
LONG = "# takes up to a minute"


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


def snippets(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text_of(page), re.DOTALL | re.MULTILINE)


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


SHORT = [(page, i) for page in GAMES for i, code in enumerate(snippets(page)) if LONG not in code.splitlines()]


@pytest.mark.parametrize(("page", "i"), SHORT)
def test_snippets_run_and_print_what_they_say(page: str, i: int) -> None:
    """A comment behind a ``print`` is what it prints."""
    code = snippets(page)[i]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, f"{page}.md", "exec"), {"__name__": page})
    lines = iter(out.getvalue().splitlines())
    for said in re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE):
        assert said in lines, f"{said!r} was not printed, or not in this place"


def test_the_long_snippets_are_few_and_valid() -> None:
    long = [code for page in GAMES for code in snippets(page) if LONG in code.splitlines()]
    assert len(long) == 2
    for code in long:
        ast.parse(code)
