"""Level packs and bounds on pushes: what is in a pack, how it is found, built, damaged, and left whole."""

from __future__ import annotations

import copy
import importlib.resources
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
import zlib
from collections import Counter, deque
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from level_files import level_file

from ragen_envs import TABLE, TextEnv, packs
from ragen_envs.frozen_lake import FrozenLake
from ragen_envs.frozen_lake.maps import shortest_path
from ragen_envs.sokoban import Level, Sokoban, format_xsb, generate, load_levels, parse_xsb
from ragen_envs.splits import SPLITS, split_of

PACKED = [id for id, (game, _, _) in TABLE.items() if "Bandit" not in game]
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
SMALL = packs.request_of(Sokoban(height=5, width=6, min_steps=1, max_steps=4), 60)
ONE_PUSH = "#####\n#@$.#\n#####\n"


def game_of(id: str) -> Any:
    env = gymnasium.make(id).unwrapped
    assert isinstance(env, TextEnv)
    return env.game


def all_levels(game: Any) -> list[Any]:
    return [level for split in SPLITS for level in game.levels(split)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees packs of another test, or of the person who runs it."""
    packs._opened.cache_clear()
    folder = tmp_path / "cache"
    monkeypatch.setenv("RAGEN_CACHE", str(folder))
    return folder


def optima(level: Level) -> tuple[int, int]:
    """Fewest actions and fewest pushes by plain search over sets of cells: pushes are the cost of a 0-1 search."""
    floor = {(r, c) for r in range(level.height) for c in range(level.width)} - set(level.walls)
    goal = frozenset(level.targets)

    def best(walk: int) -> int:
        queue = deque([(0, level.player, frozenset(level.boxes))])
        cost = {(level.player, frozenset(level.boxes)): 0}
        while queue:
            n, (r, c), boxes = queue.popleft()
            if boxes == goal:
                return n
            if n > cost[(r, c), boxes]:
                continue
            for dr, dc in MOVES:
                ahead, beyond, more, moved = (r + dr, c + dc), (r + 2 * dr, c + 2 * dc), walk, boxes
                if ahead not in floor:
                    continue
                if ahead in boxes:
                    if beyond not in floor or beyond in boxes:
                        continue
                    more, moved = 1, boxes - {ahead} | {beyond}
                if n + more < cost.get((ahead, moved), 1 << 30):
                    cost[ahead, moved] = n + more
                    (queue.append if more else queue.appendleft)((n + more, ahead, moved))
        return -1

    return best(1), best(0)


# --- bounds on pushes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "bounds", "n"),
    [
        ((6, 6, 1), {"max_steps": 10}, 40),
        ((6, 6, 1), {}, 40),
        ((5, 8, 1), {"min_pushes": 3, "max_pushes": 6}, 20),
        ((6, 7, 2), {"min_pushes": 4, "max_pushes": 9}, 15),
        ((6, 6, 2), {"min_steps": 8}, 15),
        ((6, 6, 2), {"min_pushes": 4, "min_steps": 10, "max_steps": 25}, 10),
        ((6, 6, 2), {"min_steps": 4, "max_steps": 14}, 15),
        ((5, 6, 3), {"min_steps": 2, "max_pushes": 8}, 8),
    ],
)
def test_both_optima_are_right_and_within_the_bounds(shape: Any, bounds: dict[str, int], n: int) -> None:
    rng = np.random.default_rng(3)
    for _ in range(n):
        level = generate(rng, *shape, **bounds)
        assert (level.optimal_steps, level.optimal_pushes) == optima(level)
        assert bounds.get("min_pushes", 1) <= level.optimal_pushes <= bounds.get("max_pushes", 1000)
        assert bounds.get("min_steps", 1) <= level.optimal_steps <= bounds.get("max_steps", 1000)
        assert parse_xsb(format_xsb(level)) == level  # the rules of a level hold, although generate skips the check
        assert not level.solved


def test_many_boxes_have_fewest_pushes_and_fewest_actions_on_demand() -> None:
    rng = np.random.default_rng(4)
    found = [generate(rng, 10, 10, 4, min_pushes=8, max_pushes=20) for _ in range(10)]
    assert all(8 <= level.optimal_pushes <= 20 and level.optimal_steps is None for level in found)
    level = generate(rng, 7, 7, 3, min_pushes=3, max_pushes=7, max_steps=40)
    assert (level.optimal_steps, level.optimal_pushes) == optima(level)
    level = generate(rng, 6, 6, 3)
    assert level.optimal_steps is None
    assert level.optimal_pushes == optima(level)[1]


def test_a_request_beyond_the_backward_search_is_met_by_placement() -> None:
    level = generate(np.random.default_rng(5), 8, 8, 3, min_steps=12, max_steps=40, state_limit=500)
    assert 12 <= level.optimal_steps <= 40
    assert not level.solved


@pytest.mark.parametrize(
    ("arguments", "bounds", "words"),
    [
        ((6, 6, 20), {}, "boxes must be at most 14"),
        ((5, 5, 1), {"min_pushes": 50}, "needs more than 36: min_pushes=50"),
        ((5, 5, 1), {"min_steps": 100}, "needs more than 72: min_steps=100"),
        ((6, 6, 1), {"min_pushes": 0}, "min_pushes must be at least 1"),
        ((6, 6, 1), {"min_pushes": 5, "max_pushes": 4}, "max_pushes must be at least min_pushes"),
        ((6, 6, 1), {"min_pushes": 11, "max_steps": 10}, "min_pushes must be at most max_steps"),
        ((5, 5, 1), {"min_pushes": 30}, "5 x 5 room with 1 box.* 30 to any number of pushes.*ask for less"),
        ((6, 6, 14), {"min_pushes": 9}, "6 x 6 room with 14 box.*in 1000 tries"),
        ((255, 255, 60_000), {}, "boxes must be at most 1032 on a 255 x 255 board"),
    ],
)
def test_a_request_that_cannot_be_met_is_an_error(arguments: Any, bounds: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        generate(np.random.default_rng(0), *arguments, **bounds)


def test_a_node_counts_more_on_a_larger_board(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragen_envs.sokoban.generator.WORK_LIMIT", 100_000)
    with pytest.raises(ValueError, match=r"80 x 80 room with 2 box.*in [1-9] tries"):
        generate(np.random.default_rng(0), 80, 80, 2, min_pushes=400)


def test_the_game_takes_bounds_on_pushes_and_keeps_optima_in_its_json() -> None:
    game = Sokoban(boxes=2, min_pushes=4, max_pushes=6, max_steps=None)
    assert game.longest_optimum is None
    level = game.sample_level(np.random.default_rng(0))
    assert 4 <= level.optimal_pushes <= 6
    again = game.load_level(json.loads(json.dumps(game.dump_level(level))))
    assert (again, again.optimal_steps, again.optimal_pushes) == (level, level.optimal_steps, level.optimal_pushes)
    with pytest.raises(ValueError, match="optimal_pushes must be a positive"):
        game.load_level({"xsb": ONE_PUSH, "optimal_pushes": 0})
    for wrong in ({"min_pushes": 1.5}, {"max_pushes": True}, {"min_pushes": 20}, {"min_steps": None}):
        with pytest.raises(ValueError, match=r"whole number|min_pushes must be at most"):
            Sokoban(**wrong)


# --- the packs that ship ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", PACKED)
def test_every_id_has_a_pack_whose_levels_fit_its_arguments(id: str) -> None:
    """C12 for all levels: solvable, not solved, within the budget; splits by content; no two alike in Sokoban."""
    game = game_of(id)
    env = gymnasium.make(id).unwrapped
    assert isinstance(env, TextEnv)
    sizes = [len(game.levels(split)) for split in SPLITS]
    assert sum(sizes) == packs.LEVELS
    assert sizes == pytest.approx([8000, 1000, 1000], rel=0.1)
    levels = all_levels(game)
    steps = [level.optimal_steps if "Sokoban" in id else shortest_path(level) for level in levels]
    assert min(steps) >= game.min_steps
    assert max(steps) <= game.max_steps <= min(env.max_actions, env.max_turns * env.max_actions_per_turn)
    if "Sokoban" in id:
        assert all((level.height, level.width, level.n_boxes) == (game.height, game.width, game.boxes)
                   for level in levels)  # fmt: skip
        assert all(1 <= level.optimal_pushes <= level.optimal_steps and not level.solved for level in levels)
    else:
        assert all(level.shape == (4, 4) for level in levels)


@pytest.mark.parametrize("id", ["ragen/Sokoban-v0", "ragen/Sokoban-RAGEN-Larger-v0", "ragen/FrozenLake-v0"])
def test_splits_are_by_content_and_copies_are_kept_or_not(id: str) -> None:
    game = game_of(id)
    keys = {split: [game.level_key(level) for level in game.levels(split)[:3000]] for split in SPLITS}
    assert all(split_of(key) == split for split, found in keys.items() for key in found)
    every = [key for found in keys.values() for key in found]
    assert (len(set(every)) == len(every)) is game.distinct_levels


@pytest.mark.parametrize("id", ["ragen/Sokoban-v0", "ragen/Sokoban-RAGEN-Larger-v0"])
def test_the_optima_of_shipped_levels_are_right(id: str) -> None:
    levels = game_of(id).levels("val")
    for level in levels[:: 25 if "Larger" not in id else 100]:
        assert (level.optimal_steps, level.optimal_pushes) == optima(level)
        assert parse_xsb(format_xsb(level)) == level


@pytest.mark.parametrize("id", PACKED)
def test_the_first_thousand_resets(id: str) -> None:
    """C12: seeds 0 to 999 by the level that a reset deals."""
    game = game_of(id)
    dealt = {split: [game.draw_level(seed, split) for seed in range(1000)] for split in SPLITS}
    assert all(level is not None for found in dealt.values() for level in found)
    assert len(set(dealt["train"])) > 800
    env = gymnasium.make(id, split="test").unwrapped
    assert isinstance(env, TextEnv)
    for seed in range(20):
        _, info = env.reset(seed=seed)
        assert env.level is dealt["test"][seed] or env.level == dealt["test"][seed]
        assert info["split"] == "test"


def test_a_lake_pack_keeps_the_distribution_of_the_generator() -> None:
    game, rng = game_of("ragen/FrozenLake-v0"), np.random.default_rng(1)
    new = Counter(shortest_path(game.sample_level(rng)) for _ in range(4000))
    packed = Counter(map(shortest_path, all_levels(game)))
    for steps in (2, 3, 4, 5):
        assert packed[steps] / packs.LEVELS == pytest.approx(new[steps] / 4000, abs=0.03)


def test_exactly_the_packs_of_the_ids_ship_and_are_small() -> None:
    folder = importlib.resources.files("ragen_envs") / "data"
    files = {file.name: len(file.read_bytes()) for file in folder.iterdir() if file.name.endswith(".pack")}
    wanted = packs.shipped_requests()
    assert len(wanted) == 6
    assert sorted(name.split("-")[1] for name in files) == sorted(request.key for request in wanted)
    assert sum(files.values()) < 1_500_000
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '"ragen_envs" = ["data/*.pack"]' in text


def test_symbols_and_slip_do_not_matter_and_bounds_do() -> None:
    assert Sokoban(symbols="alternative").levels("val") is Sokoban().levels("val")
    assert FrozenLake(min_steps=2, slip=0.5).levels("val") is FrozenLake(min_steps=2).levels("val")
    assert Sokoban(min_steps=4).levels("val") is None
    assert Sokoban(levels="generated").levels("val") is None
    assert FrozenLake(map=["SG"]).levels("val") is None


def test_rows_are_a_sequence_and_make_a_level_once() -> None:
    rows = Sokoban().levels("val")
    assert rows is not None
    assert rows[3] is rows[3]
    assert rows[-1] is rows[len(rows) - 1]
    assert rows[1:4] == [rows[1], rows[2], rows[3]]
    with pytest.raises(IndexError):
        rows[len(rows)]


def test_copies_and_pickles_of_a_game_hold_no_levels() -> None:
    game = Sokoban()
    assert len(pickle.dumps(game)) < 2000
    for other in (copy.deepcopy(game), pickle.loads(pickle.dumps(game))):
        assert other.levels("test") is game.levels("test")


# --- building, and files ----------------------------------------------------------------------------------------------

BUILD = """
import numpy as np
from ragen_envs import packs
from ragen_envs.sokoban import Sokoban, format_xsb, generate
name, content = packs.build(packs.request_of(Sokoban(height=5, width=6, min_steps=1, max_steps=4), 12))
print(name, content.hex())
rng = np.random.default_rng(0)
print([(format_xsb(level), level.optimal_steps, level.optimal_pushes) for level in
       (generate(rng, 5, 6, 1), generate(rng, 5, 6, 2, min_pushes=2, max_steps=20), generate(rng, 6, 6, 3))])
"""


def test_packs_and_new_rooms_are_the_same_in_every_process_compiled_or_not() -> None:
    made = []
    for extra in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "4242"}, {"NUMBA_DISABLE_JIT": "1"}):
        done = subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", "-c", BUILD], env={**os.environ, **extra},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        made.append(done.stdout)
    name, content = packs.build(SMALL._replace(levels=12))
    assert made[0].startswith(f"{name} {content.hex()}\n")
    assert made == made[:1] * 3


def test_a_pack_says_what_it_is_and_the_command_builds_it_again(tmp_path: Path, capsys: Any) -> None:
    name, content = packs.build(SMALL)
    packs.write(tmp_path / name, content)
    header, pack = packs.load(tmp_path / name)
    assert header["arguments"] == {"height": 5, "width": 6, "boxes": 1, "min_steps": 1, "max_steps": 4,
                                   "min_pushes": 1, "max_pushes": None}  # fmt: skip
    assert sum(header["splits"].values()) == header["distinct"] == 60
    assert {split: len(levels) for split, levels in pack.splits.items()} == header["splits"]
    command = header["made by"].split()
    assert command[:3] == ["python", "-m", "ragen_envs.packs"]
    assert packs.main([*command[3:], "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / name).read_bytes() == content
    capsys.readouterr()
    assert packs.main(["show", str(tmp_path / name)]) == 0
    shown = capsys.readouterr().out
    assert '"levels": 60' in shown
    assert "optimal_pushes: mean" in shown


def test_the_command_takes_ids_and_says_what_is_wrong(tmp_path: Path, capsys: Any) -> None:
    out = ["--out", str(tmp_path)]
    assert packs.main(["build", "ragen/FrozenLake-v0", "--levels", "20", "--set", "size=3", *out]) == 0
    (file,) = tmp_path.iterdir()
    game = FrozenLake(levels=str(file))
    assert (game.height, game.width, game.min_steps) == (3, 3, 2)
    assert len(all_levels(game)) == 20
    assert {level.shape for level in all_levels(game)} == {(3, 3)}
    for wrong, words in (
        (["build", "ragen/Nothing-v0"], "neither an id"),
        (["build", "ragen/Sokoban-v0", "--set", "boxes=99"], "boxes must be at most"),
        (["build", "ragen/Sokoban-v0", "--levels", "0"], "at least one level"),
        (["show", str(tmp_path / "nothing.pack")], "nothing.pack"),
    ):
        assert packs.main(wrong) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"not of ragen_envs\.sokoban"):
        Sokoban(levels=str(file))


def test_a_request_with_few_levels_gives_a_smaller_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "BARREN", 100)
    name, content = packs.build(packs.request_of(Sokoban(height=3, width=6, min_steps=1, max_steps=2), 5000))
    header, pack = packs.decode(content, name)
    assert 1 <= header["distinct"] == sum(map(len, pack.splits.values())) < 20


def test_any_flipped_byte_is_noticed(tmp_path: Path) -> None:
    name, content = packs.build(SMALL)
    for i in itertools.chain(range(0, len(content), 37), [0, len(content) - 1]):
        damaged = bytearray(content)
        damaged[i] ^= 1
        with pytest.raises(ValueError, match=r"is damaged .*delete it|is not a level pack"):
            packs.decode(bytes(damaged), name)
    with pytest.raises(ValueError, match="is damaged"):
        packs.decode(content[:-9], name)
    (tmp_path / name).write_bytes(content[:-1])
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        Sokoban(levels=str(tmp_path / name))


KILLED = """
import os, sys, time
from pathlib import Path
from ragen_envs import packs
os.fsync = lambda handle: (print("writing", flush=True), time.sleep(60))
packs.write(Path(sys.argv[1]), b"new" * 100000)
"""


def repacked(content: bytes, **changes: Any) -> tuple[str, bytes]:
    """A pack with another header and the digest that belongs to it, as anybody could make one."""
    line, _, packed = content[len(packs._MAGIC) :].partition(b"\n")
    header = json.loads(line) | changes
    line = json.dumps(header, sort_keys=True).encode() + b"\n"
    columns = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(header["record"], -1)
    name = f"sokoban-0-{packs._content_digest(line, columns.T.tobytes())}.pack"
    return name, packs._MAGIC + line + packed


@pytest.mark.parametrize("game", ["pathlib:Path", "json:dumps", "no.such.module:X", "json:nothing", ":", ""])
def test_a_pack_cannot_have_anything_called_but_a_game(game: str, tmp_path: Path) -> None:
    _, content = packs.build(packs.request_of(Sokoban(height=5, width=6), 3))
    name, content = repacked(content, game=game)
    with pytest.raises(ValueError, match=r"no game|not a class|not a game with level packs"):
        packs.decode(content, name)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"is a pack of .*, not of ragen_envs\.sokoban"):
        Sokoban(levels=str(tmp_path / name))


def test_a_cached_pack_under_another_name_is_not_used(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs.request_of, "__defaults__", (20,))
    kwargs: dict[str, Any] = {"height": 5, "width": 6, "max_steps": 5, "levels": "pack"}
    Sokoban(**kwargs).levels("train")
    (file,) = own_cache.iterdir()
    other = Sokoban(**kwargs | {"max_steps": 6})
    digest = file.name.split("-")[-1]
    file.rename(file.with_name(f"a-{packs.request_of(other).key}-{digest}"))
    with pytest.warns(UserWarning, match="holds other levels than its name says"):
        found = all_levels(other)
    generated = packs.decode(*reversed(packs.build(packs.request_of(other))))[1]
    assert found == [level for split in SPLITS for level in generated.splits[split]]


def test_a_cached_pack_of_another_version_of_the_format_stays_unused(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs.request_of, "__defaults__", (20,))
    kwargs: dict[str, Any] = {"height": 5, "width": 6, "max_steps": 5, "levels": "pack"}
    with monkeypatch.context() as other:
        other.setattr(packs, "VERSION", 1)
        name, content = packs.build(packs.request_of(Sokoban(**kwargs | {"levels": "generated"})))
    packs.write(own_cache / name, content)
    with pytest.raises(ValueError, match="has version 1 of the pack format"):
        Sokoban(levels=str(own_cache / name)).levels("train")
    assert len(all_levels(Sokoban(**kwargs))) == 20
    assert len(list(own_cache.iterdir())) == 2


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "some.pack"
    packs.write(target, b"old")
    writer = subprocess.Popen([sys.executable, "-c", KILLED, str(target)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert target.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".pack"] == ["some.pack"]
    packs.write(target, b"new")
    assert target.read_bytes() == b"new"


def test_packs_are_built_once_and_kept_in_the_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "LEVELS", 50)
    monkeypatch.setattr(packs.request_of, "__defaults__", (50,))
    kwargs: dict[str, Any] = {"height": 5, "width": 6, "min_steps": 2, "max_steps": 6, "levels": "pack"}
    first = all_levels(Sokoban(**kwargs))
    (file,) = own_cache.iterdir()
    assert len(first) == 50
    packs._opened.cache_clear()
    monkeypatch.setattr(packs, "build", lambda request: pytest.fail("built again"))
    assert all_levels(Sokoban(**kwargs)) == first
    assert all_levels(Sokoban(levels=str(file))) == first
    packs._opened.cache_clear()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="damaged"):
        Sokoban(**kwargs).levels("train")


@pytest.mark.parametrize("home", ["a file", "none"])
def test_without_a_cache_there_is_one_warning(home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs.request_of, "__defaults__", (30,))
    if home == "a file":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("RAGEN_CACHE", str(tmp_path / "file" / "cache"))
    else:
        monkeypatch.delenv("RAGEN_CACHE")
        for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
            monkeypatch.delenv(name, raising=False)

        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", no_home)
    game = Sokoban(height=5, width=6, min_steps=2, max_steps=5, levels="pack")
    with pytest.warns(UserWarning, match="in memory only .*RAGEN_CACHE"):
        first = game.levels("train")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert game.levels("train") is first


def test_building_for_long_is_announced(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) * 0.3)
    packs.build(SMALL)
    shown = capsys.readouterr().err
    assert "building a pack of sokoban levels" in shown
    assert shown.endswith("of 60\n")


# --- files of others --------------------------------------------------------------------------------------------------

SOK = """:: a collection
Title: Two rooms
Author: nobody
Comment:
three lines that mean nothing
#####
Comment-End:

Level 1
#####
#@$.#
#####
Title: first
date: 1.1.1999

; 2
  ####
###  #
#@ $.#
######
"""


def test_level_files_with_metadata(tmp_path: Path) -> None:
    path = tmp_path / "two.sok"
    path.write_text(SOK.replace("\n", "\r\n"))
    first, second = load_levels(path)
    assert first == parse_xsb(ONE_PUSH)
    assert (second.height, second.width, second.player) == (4, 6, (2, 1))
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "b.xsb").write_text("\n" + ONE_PUSH)
    (tmp_path / "README.md").write_text("no level")
    assert load_levels(tmp_path) == [first, first, second]
    (tmp_path / "deeper" / "b.xsb").rename(tmp_path / "deeper" / "B.XSB")
    (tmp_path / "mark.txt").write_text(ONE_PUSH, encoding="utf-8-sig")  # a byte order mark, as some editors write it
    assert load_levels(tmp_path) == [first, first, first, second]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ONE_PUSH + "\n4#\n", r"bad.xsb, line 5: neither a row.*'4#'"),
        ("what is this\n" + ONE_PUSH, r"bad.xsb, line 1: neither"),
        (ONE_PUSH + "\n#####\n#@$ #\n#####\n", r"bad.xsb, level from line 5: .*1 box.* and 0 target"),
        (ONE_PUSH + "\n#####\n#@*-#\n#####\n", r"bad.xsb, level from line 5: .*solved at the start"),
        ("; nothing\n", "no level in .*bad.xsb"),
        (b"\xff\xfe\x00", "not a text file"),
        (ONE_PUSH + "\nComment:\nof two lines\n\n" + ONE_PUSH, "line 5: a comment that no line"),
        ("#" * 5000 + "\n#" * 5000, "sides must be 1 to 255 cells, not 5001 x 5000"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str | bytes, words: str) -> None:
    path = tmp_path / "bad.xsb"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError, match=words):
        Sokoban(levels=str(path))


def test_a_file_of_levels_is_a_pack(tmp_path: Path) -> None:
    path = tmp_path / "levels.xsb"
    rng = np.random.default_rng(0)
    made = [generate(rng, 7, 8, 2, max_steps=12) for _ in range(60)]
    mirrored = [Level(7, 8, bytes(np.frombuffer(m.cells, np.uint8).reshape(7, 8)[::-1].ravel())) for m in made[:9]]
    path.write_text("\n\n".join(map(format_xsb, [*made, *mirrored])))
    game = Sokoban(levels=str(path))
    assert (game.height, game.width, game.boxes, game.longest_optimum) == (7, 8, 2, None)
    assert len(all_levels(game)) == len({level.key for level in made}) <= 60
    for split in SPLITS:
        assert all(game.split_of(level) == split for level in game.levels(split))
    assert game.sample_level(rng) in made
    env = TextEnv("ragen_envs.sokoban:Sokoban", levels=str(path), observation="grid", height=6)
    assert env.observation_space.contains(env.reset(seed=0)[0])
    assert env.level in made
    path.write_text(path.read_text() + "\n\n" + ONE_PUSH)
    with pytest.raises(ValueError, match="no grid observations"):
        TextEnv("ragen_envs.sokoban:Sokoban", levels=str(path), observation="grid")
    TextEnv("ragen_envs.sokoban:Sokoban", levels=str(path)).reset(seed=0)
    packs._opened.cache_clear()
    assert game.sample_level(rng) in made  # what is open stays
    with pytest.raises(ValueError, match="has changed"):
        pickle.loads(pickle.dumps(game)).levels("train")


def test_a_split_that_a_file_has_not_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "one.xsb"
    path.write_text(ONE_PUSH)
    game = Sokoban(levels=str(path))
    for split in set(SPLITS) - {game.split_of(parse_xsb(ONE_PUSH))}:
        with pytest.raises(ValueError, match=f"has no {split} level"):
            game.draw_level(0, split)


def test_boxoban_files_are_packs() -> None:
    game = Sokoban(levels=str(level_file("boxoban_medium_100.xsb")))
    assert game.grid_spec() == ((10, 10), 7)
    assert game.boxes == 4
    assert len(all_levels(game)) == 100


@pytest.mark.parametrize("kind", [Sokoban, FrozenLake])
def test_wrong_values_of_levels(kind: Any, tmp_path: Path) -> None:
    for wrong in ("", None, 3, "packs", str(tmp_path / "missing.xsb")):
        with pytest.raises(ValueError, match="levels must be 'auto', 'generated', 'pack' or a path"):
            kind(levels=wrong)
    (tmp_path / "other").write_text("x")
    with pytest.raises(ValueError, match=r"not a level pack|neither a row"):
        kind(levels=str(tmp_path / "other"))
    with pytest.raises(ValueError, match="exclude each other"):
        FrozenLake(map=["SG"], levels="pack")
