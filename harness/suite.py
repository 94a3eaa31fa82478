"""Suites: what is run. A TOML file, checked by pydantic, and its expansion into jobs.

One job is one environment x one entry (an algorithm or a baseline) x one policy x one seed. A job's id is a hash of its
fully resolved configuration, and of nothing else: not of the code, the machine, or the folder it is written to.

Simplifications: every algorithm trains on every environment with the same budget; an override changes arguments of the
algorithm on one environment, never the budget.
"""

from __future__ import annotations

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
    checkpoint_every: PositiveInt = 5
    max_new_tokens: PositiveInt | None = None
    """Sampled tokens per turn; None: the policy's own limit."""
    micro_batch: PositiveInt = 16


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
    """``key=value`` given on the command line that changed something; not for files."""

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
        return self


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
        return _hash(self.model_dump(mode="json"))

    @property
    def config_id(self) -> str:
        """Like ``run_id`` without the seed: runs to be averaged share it."""
        return _hash(self.model_dump(mode="json", exclude={"seed"}))


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
        overrides: ``key=value``, keys dotted, values in TOML notation (or plain text): ``train.iterations=5``.

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
    if "overrides" in data:
        raise UsageError(f"suite {name}: overrides belong on the command line")
    effective = [text for text in overrides if _override(data, text)]
    if effective:
        data["overrides"] = sorted(effective)
    try:
        return Suite.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"suite {name}: {_explain(error)}") from None


def _override(data: dict[str, Any], text: str) -> bool:
    """Put one ``key=value`` into the suite's data; whether it changed anything."""
    key, found, raw = text.partition("=")
    key = key.strip()
    keys = _settable()
    if not found or key not in keys:
        problem = f"--set wants key=value, got {text!r}" if not found else unknown("key", key, keys)
        raise UsageError(f"{problem}; keys: {', '.join(keys)}" if not found else problem)
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    *sections, last = key.split(".")
    where = data
    for section in sections:
        where = where.setdefault(section, {})
    changed = bool(last not in where or where[last] != value)
    where[last] = value
    return changed


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
    """Names of the algorithms. Asks for them, which loads torch."""
    from ragen_algos import algorithms

    return list(algorithms.list_algorithms())


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
        UsageError: an unknown name, or arguments that an algorithm does not take.
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
            options = _resolve(algorithm, place.id)
            for source, policy in learners:
                for seed in range(seeds or suite.seeds):
                    config = JobConfig(
                        **common,
                        overrides=trained,
                        environment=place,
                        entry=algorithm.label,
                        kind="trained",
                        algorithm=options,
                        policy=policy,
                        seed=seed,
                        train=suite.train,
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


def _resolve(algorithm: AlgorithmSpec, environment: str) -> dict[str, Any]:
    from ragen_algos import algorithms

    kwargs = {**algorithm.kwargs, **algorithm.per_environment.get(environment, {})}
    try:
        options: dict[str, Any] = algorithms.make(algorithm.name, **kwargs).to_dict()
    except (ValueError, TypeError) as error:
        raise UsageError(f"algorithm {algorithm.label!r}: {error}") from None
    return options
