from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import policies
from harness.suite import SUITES, Job, PolicySpec, UsageError, algorithm_names, expand, load_suite, suite_names
from ragen_algos.presets import PRESETS


@pytest.fixture(autouse=True)
def known_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded models may not be built where tests run."""
    real = policies.identify
    monkeypatch.setattr(policies, "identify", lambda n: (n, "0" * 16) if n in policies.EMBEDDED else real(n))


def test_the_suites_of_the_package_are_valid() -> None:
    assert suite_names() == ["algorithms", "collapse", "core", "order", "search", "smoke"]
    core = load_suite("core")
    assert core.train.iterations == 30
    assert core.train.groups * core.train.group_size == 128
    assert core.evaluation.episodes == 256
    jobs = expand(core)
    assert len({j.run_id for j in jobs}) == len(jobs) == 3 * (5 * core.seeds + 3)
    entries = {(j.config.environment.id, j.config.entry) for j in jobs}
    assert len(entries) == 24
    smoke = load_suite("smoke")
    assert [a.label for a in smoke.algorithms] == [a.label for a in core.algorithms]
    assert smoke.environments == core.environments
    options = [{k: v for k, v in a.kwargs.items() if k != "minibatches"} for a in smoke.algorithms]
    assert options == [{k: v for k, v in a.kwargs.items() if k != "minibatches"} for a in core.algorithms]
    assert {a.name for a in load_suite("algorithms").algorithms} == set(algorithm_names()) - set(PRESETS)
    assert ["minibatches" in a.kwargs for a in smoke.algorithms] == ["minibatches" in a.kwargs for a in core.algorithms]


@pytest.mark.parametrize(
    ("name", "overrides", "says"),
    [
        ("croe", [], "Did you mean 'core'? Known: algorithms, collapse, core, order, search, smoke"),
        ("core", ["train.iteration=5"], "Did you mean 'train.iterations'?"),
        ("core", ["train.iterations"], "wants key=value"),
        ("core", ["algorithm.lr=1"], "algorithms.OPTION"),
        ("core", ["train.levels=0"], "train.levels: Input should be greater than 0"),
        ("core", ["train.iterations=-1"], "train.iterations: Input should be greater than 0"),
        ("core", ["train.iterations=many"], "train.iterations: Input should be a valid integer"),
        ("core", ['evaluation.modes=["loud"]'], "evaluation.modes.0"),
    ],
)
def test_usage_errors(name: str, overrides: list[str], says: str) -> None:
    with pytest.raises(UsageError) as error:
        load_suite(name, overrides)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("version = 2", "version = 2\ncolour = 'red'"), "colour: unknown key"),
        (('headline = "val"', 'headline = "train"'), "headline split 'train' is not among splits"),
        (('label = "starpo-ppo"', 'label = "reinforce"'), "label 'reinforce' occurs twice"),
        (('id = "ragen/Bandit-v0"', 'id = "ragen/Bandit-v0"\nkwargs = { split = "val" }'), "must not set split"),
        (("version = 2", "version = 2\noverrides = ['seeds=2']"), "belong on the command line"),
        (("version = 2", "version ="), "Invalid value"),
    ],
)
def test_broken_files_say_what_is_wrong(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    text = (Path(__file__).parents[2] / "harness" / "suites" / "smoke.toml").read_text()
    assert change[0] in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(*change, 1))
    with pytest.raises(UsageError) as error:
        load_suite(str(path))
    assert says in str(error.value)


def test_a_suite_can_be_a_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((Path(__file__).parents[2] / "harness" / "suites" / "smoke.toml").read_text())
    assert load_suite(str(path)) == load_suite("smoke")


def test_overrides_change_ids_only_where_they_change_something() -> None:
    def ids(*overrides: str) -> dict[tuple[str, str], str]:
        jobs = expand(load_suite("core", overrides), seeds=1)
        return {(j.config.environment.id, j.config.entry): j.run_id for j in jobs}

    plain = ids()
    assert ids("train.iterations=30", "seeds=2") == plain
    assert ids("train.temperature=1", "train.checkpoint_every=5", 'evaluation.modes=["sampled", "greedy"]') == plain
    assert ids("train.micro_batch=4", "train.checkpoint_every=1") == plain
    assert ids("train.temperature=0.50") == ids("train.temperature = 5e-1") != plain
    assert ids("train.iterations=7", "train.iterations=5") == ids("train.iterations=5")
    assert load_suite("core", ["train.iterations=7", "train.iterations= 5"]).overrides == ("train.iterations=5",)
    assert load_suite("core", ["train.micro_batch=4"]).overrides == ()
    shorter = ids("train.iterations=5")
    kept = {k for k in plain if plain[k] == shorter[k]}
    assert {entry for _, entry in kept} == {"random", "oracle", "start"}
    assert not set(ids("evaluation.episodes=8").values()) & set(plain.values())


def test_an_entry_may_have_a_budget_of_its_own(tmp_path: Path) -> None:
    def levels(*overrides: str) -> dict[str, int | None]:
        jobs = expand(load_suite("collapse", overrides), seeds=1)
        return {j.config.entry: j.config.train.levels for j in jobs if j.config.train}

    plain = levels()
    assert set(plain.values()) == {None, 8}
    assert all((n == 8) == entry.startswith("levels-") for entry, n in plain.items())
    assert set(levels("train.levels=4").values()) == {4}
    # Equal to what the suite says is still a change of an entry that says something else.
    assert load_suite("core", ["train.iterations=30"]).overrides == ()
    text = (SUITES / "collapse.toml").read_text().replace("train = { levels = 8 }", "train = { iterations = 9 }")
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert load_suite(str(path), ["train.iterations=20"]).overrides == ("train.iterations=20",)
    path.write_text(text.replace("iterations = 9", "levls = 8"))
    with pytest.raises(UsageError, match="'levels-group-scale', train: levls: unknown key"):
        load_suite(str(path))


def test_options_of_the_algorithms_reach_those_that_read_them() -> None:
    def jobs(*overrides: str, **selection: Any) -> list[Job]:
        return [j for j in expand(load_suite("core", overrides), seeds=1, **selection) if j.config.kind == "trained"]

    plain, slower = jobs(), jobs("algorithms.lr=1e-6")
    assert [j.config.overrides for j in slower] == [("algorithms.lr=1e-06",)] * len(plain)
    assert all((j.config.algorithm or {})["lr"] == 1e-6 for j in slower)
    assert not {j.run_id for j in plain} & {j.run_id for j in slower}
    assert jobs("algorithms.lr=3e-4") == jobs("algorithms.gamma=1") == plain
    # Only those with a critic read it; the others stay what they are.
    changed = [j.config.entry for j, old in zip(jobs("algorithms.critic_lr=1"), plain, strict=True) if j != old]
    assert set(changed) == {"starpo-ppo", "starpo-s"}
    assert jobs("algorithms.critic_lr=1") == jobs("algorithms.critic_lr=1.0")
    ppo = jobs("algorithms.epochs=2", algorithms=["ppo"])
    assert all((j.config.algorithm or {})["epochs"] == 2 for j in ppo)
    for wrong, says in (
        (["algorithms.lrr=1"], "Did you mean 'lr'?"),
        (["algorithms.name=ppo"], "unknown option 'name'"),
        (["algorithms.lr=fast"], "lr must be"),
    ):
        with pytest.raises(UsageError, match=re.escape(says)):
            jobs(*wrong)
    with pytest.raises(UsageError, match="changes nothing for reinforce"):
        jobs("algorithms.gamma=0.9", algorithms=["reinforce"])
    start = [j for j in expand(load_suite("core", ["algorithms.lr=1"])) if j.config.kind != "trained"]
    assert all(not j.config.overrides for j in start)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ('id = "ragen/Sokobn-v0"', "Did you mean: `Sokoban`?"),
        ('id = "ragen/Sokoban-v9"', "v9"),
        ('id = "no_such_module:ragen/Sokoban-v0"', "no_such_module"),
        ('id = "CartPole-v1"', "CartPole"),
        ('id = "ragen/Sokoban-v0"\nkwargs = { colour = 1 }', "unknown arguments ['colour']"),
        ('id = "ragen/Sokoban-v0"\nkwargs = { max_turns = 0 }', "max_turns must be"),
        ('id = "ragen/Sokoban-v0"\nkwargs = { observation = "grid" }', "observation"),
        ('id = "ragen/Sokoban-v0"\nkwargs = { action = "discrete" }', "played in text"),
    ],
)
def test_environments_that_cannot_be_built_are_found_before_any_work(place: str, says: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "harness" / "suites" / "smoke.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('id = "ragen/Sokoban-v0"', place))
    with pytest.raises(UsageError) as error:
        expand(load_suite(str(path)), policy_names=["random"])
    assert says in str(error.value)


def test_tiny_checkpoints_are_known(tmp_path: Path) -> None:
    for name, card in (("a", '{"tiny": true}'), ("b", '{"tiny": false}'), ("c", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ragen_policy.json").write_text(card)
    names = ["tiny-mid", f"{tmp_path}/a", f"hf:{tmp_path}/a", f"{tmp_path}/b", f"{tmp_path}/c", "hf:org/name"]
    assert [policies.is_tiny(n) for n in names] == [True, True, True, False, False, False]


def test_selection() -> None:
    core = load_suite("core")
    jobs = expand(core, algorithms=["starpo"], environments=["ragen/Bandit-v0"], seeds=2)
    assert [(j.config.entry, j.config.seed) for j in jobs] == [
        ("starpo-ppo", 0),
        ("starpo-ppo", 1),
        ("starpo-grpo", 0),
        ("starpo-grpo", 1),
        ("start", 0),
        ("random", 0),
        ("oracle", 0),
    ]
    assert jobs[0].config.config_id == jobs[1].config.config_id != jobs[2].config.config_id
    assert jobs[0].config.algorithm is not None
    assert jobs[0].config.algorithm["lr"] > 0  # every option, not only those that were set
    listed_nowhere = expand(core, algorithms=["ppo"], environments=["ragen/Bandit-v0"])
    assert listed_nowhere[0].config.entry == "ppo"
    only_scripted = expand(core, policy_names=["random"])
    assert {j.config.entry for j in only_scripted} == {"random"}
    both = expand(core, policy_names=["tiny-mid", "tiny-full", "random"], algorithms=["reinforce"])
    assert len(both) == 3 * (2 * core.seeds + 2 + 2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"algorithms": ["reinforced"]}, "Did you mean 'reinforce'?"),
        ({"environments": ["ragen/Sokobann-v0"]}, "Did you mean 'ragen/Sokoban-v0'?"),
        ({"environments": ["sokoban"]}, "Did you mean 'ragen/Sokoban-v0'?"),
        ({"policy_names": ["tiny-midd"]}, "Did you mean 'tiny-mid'?"),
        ({"policy_names": ['../../a:b*?"']}, "unknown policy"),
        ({"policy_names": ["hf:/no/such/folder"]}, "unknown policy"),
        ({"policy_names": ["/"]}, "holds no checkpoint"),
    ],
)
def test_unknown_names(arguments: dict[str, list[str]], says: str) -> None:
    with pytest.raises(UsageError) as error:
        expand(load_suite("core"), **arguments)  # type: ignore[arg-type]
    assert says in str(error.value)


def test_options_that_an_algorithm_lacks_are_found_before_any_work(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "harness" / "suites" / "smoke.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('optimizer = "ppo"', "optimiser = 1"))
    with pytest.raises(UsageError, match="optimiser"):
        expand(load_suite(str(path)))


def test_per_environment_arguments(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "harness" / "suites" / "smoke.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text + 'per_environment = { "ragen/Sokoban-v0" = { lr = 0.5 } }\n')
    jobs = expand(load_suite(str(path)), algorithms=["seeupo"])
    rates = {j.config.environment.id: (j.config.algorithm or {}).get("lr") for j in jobs if j.config.kind == "trained"}
    assert rates["ragen/Sokoban-v0"] == 0.5 != rates["ragen/Bandit-v0"]


def test_weights_and_not_places_identify_a_policy(tmp_path: Path) -> None:
    for name, weights in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name / "sub").mkdir(parents=True)
        folder = tmp_path / name / "sub"
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text(weights)
    a, b, c = (policies.identify(str(tmp_path / n / "sub")) for n in "abc")
    assert a == b != c
    assert a[0] == "sub"
    assert policies.identify(f"hf:{tmp_path}/a/sub") == ("hf:sub", a[1])
    assert policies.identify("hf:org/name") == ("hf:org/name", None)


def test_run_ids_do_not_depend_on_the_process() -> None:
    code = (
        "from harness.suite import *; s = load_suite('core');"
        "print([j.run_id for j in expand(s, policy_names=['random', 'oracle'])])"
    )
    seen = set()
    for seed in ("0", "1"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        seen.add(done.stdout)
    here = [j.run_id for j in expand(load_suite("core"), policy_names=["random", "oracle"])]
    assert seen == {f"{here}\n"}


def test_every_setting_is_in_the_id() -> None:
    config = expand(load_suite("core"))[0].config
    assert config.train is not None
    assert config.algorithm is not None
    changed = [
        {"seed": 1},
        {"suite_version": 99},
        {"policy": PolicySpec(name="tiny-mid", digest="1" * 16)},
        {"train": config.train.model_copy(update={"temperature": 0.5})},
        {"algorithm": {**config.algorithm, "lr": 7.0}},
        {"environment": config.environment.model_copy(update={"kwargs": {"max_turns": 3}})},
    ]
    ids = {config.model_copy(update=update).run_id for update in changed} | {config.run_id}
    assert len(ids) == len(changed) + 1
    assert all(len(i) == 16 for i in ids)
