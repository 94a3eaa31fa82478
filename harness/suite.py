"""Suites: what is run. A TOML file, checked by pydantic, and its expansion into jobs.

One job is one environment x one entry (an algorithm or a baseline) x one policy x one seed. A job's id is a hash of its
fully resolved configuration, and of nothing else: not of the code, the machine, or the folder it is written to. Two
settings change memory and time alone, results by no more than float rounding, and are left out: see ``_NO_EFFECT``.

Simplifications: an entry trains on every environment with the same budget; what is said of one environment changes
arguments of the algorithm, never the budget. Not everything is found before any work: what a policy makes of a game
(its vocabulary, its context) shows when it plays.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from harness import policies

SUITES = Path(__file__).parent / "suites"

_NO_EFFECT = ("checkpoint_every", "micro_batch")
"""Settings of ``train`` that are no part of a job's id, nor of the protocol."""

Mode = Literal["sampled", "greedy"]
Split = Literal["train", "val", "test"]


class UsageError(ValueError):
    """The user asked for something that does not exist or cannot be; the message says what would be right."""


class Model(BaseModel):
    """Unknown keys are errors; values do not change once they are checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainSettings(Model):
    """The budget of one training run: ``iterations`` x ``groups`` x ``group_size`` episodes."""

    iterations: PositiveInt
    groups: PositiveInt
    group_size: PositiveInt
    temperature: float = Field(1.0, gt=0)
    levels: PositiveInt | None = None
    """Train on this many levels, the same in every iteration; None: new ones each time."""
    checkpoint_every: PositiveInt = 5
    max_new_tokens: PositiveInt | None = None
    """Sampled tokens per turn; None: the policy's own limit."""
    micro_batch: PositiveInt = 16
    stop_on_collapse: bool = False
    """End a run that has collapsed before its last iteration."""


class EvaluationSettings(Model):
    """How a policy is measured: on the same levels and with the same luck, whoever plays."""

    episodes: PositiveInt
    """Per split and mode."""
    modes: tuple[Mode, ...] = Field(("sampled", "greedy"), min_length=1)
    seed: int = Field(ge=0)
    temperature: float = Field(1.0, gt=0)
    """Of the sampled mode."""
    max_new_tokens: PositiveInt | None = None


class EnvironmentSpec(Model):
    """An environment and the splits to measure on."""

    id: str
    kwargs: dict[str, Any] = {}
    headline: Split = "test"
    """The split that tables show first."""
    splits: tuple[Split, ...] = ("test",)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.headline not in self.splits:
            raise ValueError(f"headline split {self.headline!r} is not among splits {list(self.splits)}")
        if "split" in self.kwargs:
            raise ValueError("kwargs must not set split: training uses train, evaluation uses splits")
        return self


class AlgorithmSpec(Model):
    """An algorithm under a label of its own."""

    label: str
    name: str
    kwargs: dict[str, Any] = {}
    per_environment: dict[str, dict[str, Any]] = {}
    """Environment id -> arguments that replace those of ``kwargs`` there."""
    train: dict[str, Any] = {}
    """Settings that replace those of the suite's ``train`` for this entry; ``--set`` goes over both."""


class Suite(Model):
    """A protocol. ``version`` grows with every change of a number in it."""

    name: str
    version: PositiveInt
    description: str = ""
    seeds: PositiveInt = 1
    """Training seeds 0, 1, ... of each algorithm."""
    policy: str = "tiny-mid"
    """What is trained, unless the command line names something else."""
    baselines: tuple[Literal["random", "oracle", "start"], ...] = ()
    """``start``: the policy before training."""
    train: TrainSettings
    evaluation: EvaluationSettings
    environments: tuple[EnvironmentSpec, ...] = Field(min_length=1)
    algorithms: tuple[AlgorithmSpec, ...] = ()
    overrides: tuple[str, ...] = ()
    """``key=value`` of ``--set`` that changed something in ``train``, ``evaluation`` or ``seeds``; not for files."""
    algorithm_options: dict[str, Any] = {}
    """Options that ``--set algorithms.KEY=VALUE`` puts over those of every algorithm that reads them; not for files."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        ids = [e.id for e in self.environments]
        labels = [*self.baselines, *(a.label for a in self.algorithms)]
        for what, names in (("environment", ids), ("label", labels)):
            twice = sorted({n for n in names if names.count(n) > 1})
            if twice:
                raise ValueError(f"{what} {twice[0]!r} occurs twice")
        for algorithm in self.algorithms:
            for id in algorithm.per_environment:
                if id not in ids:
                    raise ValueError(
                        f"algorithm {algorithm.label!r} has arguments for {id!r}, which is not in the suite"
                    )
            try:
                self.training(algorithm)
            except ValidationError as error:
                raise ValueError(f"algorithm {algorithm.label!r}, train: {_explain(error)}") from None
        return self

    def training(self, algorithm: AlgorithmSpec) -> TrainSettings:
        """The budget of one of the suite's algorithms."""
        return TrainSettings.model_validate({**self.train.model_dump(), **algorithm.train})


class PolicySpec(Model):
    """Who plays: a name, and a digest of its files where there are any, so that new weights are a new policy."""

    name: str
    digest: str | None = None


class JobConfig(Model):
    """Everything that a job's result depends on."""

    suite: str
    suite_version: int
    overrides: tuple[str, ...] = ()
    environment: EnvironmentSpec
    entry: str
    """Label of the row: of the algorithm, or ``random``, ``oracle``, ``start``."""
    kind: Literal["trained", "start", "scripted"]
    algorithm: dict[str, Any] | None = None
    """The algorithm's name and every option, as its ``to_dict`` says; None where nothing is trained."""
    policy: PolicySpec
    seed: int = 0
    train: TrainSettings | None = None
    evaluation: EvaluationSettings

    @property
    def run_id(self) -> str:
        """16 hex characters: the same configuration, the same id, everywhere."""
        return _hash(self.model_dump(mode="json", exclude={"train": set(_NO_EFFECT)}))

    @property
    def config_id(self) -> str:
        """Like ``run_id`` without the seed: runs to be averaged share it."""
        return _hash(self.model_dump(mode="json", exclude={"seed": True, "train": set(_NO_EFFECT)}))


@dataclass(frozen=True)
class Job:
    """A configuration, and where its policy is loaded from (a path is no part of a result)."""

    config: JobConfig
    source: str

    @property
    def run_id(self) -> str:
        """See :attr:`JobConfig.run_id`."""
        return self.config.run_id

    @property
    def title(self) -> str:
        """For people."""
        c = self.config
        who = c.policy.name if c.kind != "scripted" else ""
        seed = f"seed {c.seed}" if c.kind == "trained" else ""
        return " ".join(filter(None, (c.environment.id, c.entry, who, seed)))


def canonical_json(value: Any) -> str:
    """One text for one value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _hash(value: Any) -> str:
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=8).hexdigest()


def suite_names() -> list[str]:
    """Names of the suites that come with the package."""
    return sorted(p.stem for p in SUITES.glob("*.toml"))


def load_suite(name: str, overrides: Sequence[str] = ()) -> Suite:
    """A suite by name or by the path of a TOML file.

    Args:
        name: For example ``core`` or ``my/suite.toml``.
        overrides: ``key=value``, keys dotted, values in TOML notation (or plain text): ``train.iterations=5``,
            ``algorithms.lr=1e-6``. The last one of a key counts; those that change nothing are not recorded.

    Raises:
        UsageError: no such suite, or something in it or in the overrides is wrong.
    """
    path = SUITES / f"{name}.toml" if name in suite_names() else Path(name)
    if not path.is_file():
        raise UsageError(unknown("suite", name, suite_names()) + "; or give the path of a TOML file")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"suite {name}: {error}") from None
    for key in ("overrides", "algorithm_options"):
        if key in data:
            raise UsageError(f"suite {name}: {key} belong on the command line (--set)")
    published = _validate(name, data)
    given = dict(_override(text) for text in overrides)
    for key, value in given.items():
        section, _, last = key.rpartition(".")
        where = data.setdefault("algorithm_options", {}) if section == "algorithms" else data
        (where if section in ("", "algorithms") else where[section])[last] = value
        if section == "train":
            for algorithm in data.get("algorithms", ()):
                algorithm.get("train", {}).pop(last, None)
    suite = _validate(name, data)
    changed = []
    for key in given:
        now, before = _value(suite, key), _value(published, key)
        own = any(key.removeprefix("train.") in a.train for a in published.algorithms)
        if (now != before or own) and key not in [f"train.{free}" for free in _NO_EFFECT]:
            changed.append(f"{key}={canonical_json(now)}")
    return suite.model_copy(update={"overrides": tuple(sorted(changed))})


def _validate(name: str, data: dict[str, Any]) -> Suite:
    try:
        return Suite.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"suite {name}: {_explain(error)}") from None


def _override(text: str) -> tuple[str, Any]:
    """Key and value of one ``--set``."""
    key, found, raw = text.partition("=")
    key = key.strip()
    keys = _settable()
    if not found:
        raise UsageError(f"--set wants key=value, got {text!r}; keys: {', '.join(keys)}, algorithms.OPTION")
    section, _, option = key.partition(".")
    if key not in keys and not (section == "algorithms" and option.isidentifier()):
        raise UsageError(f"{unknown('key', key, keys)}, algorithms.OPTION")
    try:
        return key, tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return key, raw.strip()


def _value(suite: Suite, key: str) -> Any:
    """What the suite says at a dotted key, as JSON has it; of ``algorithms.`` nothing, that is decided per job."""
    value = suite.model_dump(mode="json")
    for part in key.split("."):
        value = value[part] if isinstance(value, dict) else None
    return value


def _settable() -> list[str]:
    sections: dict[str, type[Model]] = {"train": TrainSettings, "evaluation": EvaluationSettings}
    return ["seeds", *(f"{name}.{field}" for name, model in sections.items() for field in model.model_fields)]


def _explain(error: ValidationError) -> str:
    problems = []
    for e in error.errors():
        where = ".".join(map(str, e["loc"])) or "suite"
        message = "unknown key" if e["type"] == "extra_forbidden" else e["msg"].removeprefix("Value error, ")
        problems.append(f"{where}: {message}")
    return "; ".join(problems)


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """The message for a name that nobody has: the closest one, and all of them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    # Ids share long prefixes, so compare what differs as well.
    tails = {k.rpartition("/")[2].lower(): k for k in known}
    if not close:
        close = [tails[t] for t in difflib.get_close_matches(name.lower(), list(tails), n=1, cutoff=0.5)]
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"unknown {what} {name!r}.{hint} Known: {', '.join(known)}"


def algorithm_names() -> list[str]:
    """Names of the algorithms and of their presets. Asks for them, which loads torch."""
    from ragen_algos import algorithms
    from ragen_algos.presets import PRESETS

    return [*algorithms.list_algorithms(), *sorted(PRESETS)]


def expand(
    suite: Suite,
    *,
    algorithms: Sequence[str] = (),
    environments: Sequence[str] = (),
    policy_names: Sequence[str] = (),
    seeds: int | None = None,
) -> list[Job]:
    """The jobs of a suite, trained ones first.

    Args:
        suite: The suite.
        algorithms: Labels or names of algorithms to train, by default all of the suite's; one that the suite does not
            list runs with its default options. Baselines are always included.
        environments: Ids out of the suite's, by default all.
        policy_names: What is trained, by default the suite's policy. Scripted ones (``random``, ``oracle``) are only
            evaluated; if no other is named, nothing else runs.
        seeds: Number of training seeds, by default the suite's.

    Raises:
        UsageError: an unknown name, or arguments that an algorithm or an environment does not take.
    """
    chosen = list(suite.algorithms)
    if algorithms:
        chosen = []
        for name in algorithms:
            found = [a for a in suite.algorithms if a.label == name] or [a for a in suite.algorithms if a.name == name]
            if not found:
                known = list(dict.fromkeys([*(a.label for a in suite.algorithms), *algorithm_names()]))
                if name not in known:
                    raise UsageError(unknown("algorithm", name, known))
                found = [AlgorithmSpec(label=name, name=name)]
            chosen += [a for a in found if a not in chosen]
    ids = [e.id for e in suite.environments]
    for id in environments:
        if id not in ids:
            raise UsageError(unknown("environment", id, ids))
    places = [e for e in suite.environments if not environments or e.id in environments]
    named = list(dict.fromkeys(policy_names)) or [suite.policy]
    learners = [(n, _policy(n)) for n in named if n not in policies.SCRIPTED]
    scripted = [n for n in named if n in policies.SCRIPTED]
    if learners:
        scripted = list(dict.fromkeys([*(b for b in suite.baselines if b != "start"), *scripted]))

    for place in places:
        _check_environment(place, trained=bool(chosen and learners))
    if suite.algorithm_options:
        _check_options(suite.algorithm_options, chosen, places)
    common: dict[str, Any] = {
        "suite": suite.name,
        "suite_version": suite.version,
        "evaluation": suite.evaluation,
    }
    measured = tuple(o for o in suite.overrides if o.startswith("evaluation."))
    trained = tuple(o for o in suite.overrides if not o.startswith("seeds"))
    jobs = []
    for place in places:
        for algorithm in chosen if learners else []:
            options, changed = _resolve(algorithm, place.id, suite.algorithm_options)
            for source, policy in learners:
                for seed in range(seeds or suite.seeds):
                    config = JobConfig(
                        **common,
                        overrides=tuple(sorted((*trained, *changed))),
                        environment=place,
                        entry=algorithm.label,
                        kind="trained",
                        algorithm=options,
                        policy=policy,
                        seed=seed,
                        train=suite.training(algorithm),
                    )
                    jobs.append(Job(config, source))
    for place in places:
        for source, policy in learners if "start" in suite.baselines else []:
            config = JobConfig(
                **common, overrides=measured, environment=place, entry="start", kind="start", policy=policy
            )
            jobs.append(Job(config, source))
        for name in scripted:
            config = JobConfig(
                **common,
                overrides=measured,
                environment=place,
                entry=name,
                kind="scripted",
                policy=PolicySpec(name=name),
            )
            jobs.append(Job(config, name))
    return jobs


def _policy(source: str) -> PolicySpec:
    name, digest = policies.identify(source)
    return PolicySpec(name=name, digest=digest)


def _check_environment(place: EnvironmentSpec, *, trained: bool) -> None:
    """Build it once on each split it will be played on."""
    import gymnasium

    from ragen_envs import TextEnv

    for split in dict.fromkeys((*place.splits, *(("train",) if trained else ()))):
        try:
            env = gymnasium.make(
                place.id, disable_env_checker=True, observation="messages", split=split, **place.kwargs
            ).unwrapped
        except (gymnasium.error.Error, ValueError, TypeError, ImportError, AttributeError) as error:
            reason = str(error).partition(" was raised from the environment creator")[0]
            raise UsageError(f"environment {place.id!r}, split {split}: {reason}") from None
        if not isinstance(env, TextEnv) or env.action_mode != "text":
            raise UsageError(f"environment {place.id!r} is not a text environment of ragen_envs that is played in text")


def _check_options(over: dict[str, Any], chosen: Sequence[AlgorithmSpec], places: Sequence[EnvironmentSpec]) -> None:
    """Every option of ``--set algorithms.`` must be read by one of the algorithms."""
    read = {option: None for a in chosen for e in places for option in _read(_make(a, _kwargs(a, e.id)))}
    for option in over:
        if option not in read:
            names = ", ".join(a.label for a in chosen) or "no algorithm"
            raise UsageError(
                f"--set algorithms.{option} changes nothing for {names}: {unknown('option', option, [*read])}"
            )


def _resolve(algorithm: AlgorithmSpec, environment: str, over: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Every option of an algorithm on an environment, and which of ``over`` (``key=value``) changed something."""
    before = _make(algorithm, _kwargs(algorithm, environment))
    over = {key: value for key, value in over.items() if key in _read(before)}
    after: dict[str, Any] = _make(algorithm, {**_kwargs(algorithm, environment), **over}).to_dict()
    old = before.to_dict()
    return after, [f"algorithms.{key}={canonical_json(after[key])}" for key in over if after[key] != old[key]]


def _kwargs(algorithm: AlgorithmSpec, environment: str) -> dict[str, Any]:
    return {**algorithm.kwargs, **algorithm.per_environment.get(environment, {})}


def _make(spec: AlgorithmSpec, kwargs: dict[str, Any]) -> Any:
    from ragen_algos import algorithms

    try:
        algorithm = algorithms.make(spec.name, **kwargs)
        # One spelling of one number: 1 and 1.0 are the same option, and must give the same id.
        whole: dict[str, Any] = {
            f.name: float(value)
            for f in dataclasses.fields(algorithm)
            if "float" in str(f.type) and type(value := getattr(algorithm, f.name)) is int
        }
        return dataclasses.replace(algorithm, **whole)
    except (ValueError, TypeError) as error:
        raise UsageError(f"algorithm {spec.label!r}: {error}") from None


def _read(algorithm: Any) -> list[str]:
    """The options that have an effect."""
    return [f.name for f in dataclasses.fields(algorithm) if f.name not in algorithm.unread]
