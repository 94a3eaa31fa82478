"""``check_text_env``: does a text environment keep its promises? For games of our own and of anybody else.

    from ragen_envs.testing import check_text_env
    check_text_env("mylab/Maze-v0")

or ``python -m ragen_envs.testing mylab.maze:mylab/Maze-v0``. Every rule has a name, says what it demands and how to
mend what breaks it; all rules are tried, then :class:`ConformanceError` lists the broken ones. Seeds are fixed, so a
verdict repeats.

Simplifications: rules look at samples (a few levels, random walks from them), not at every state. Whether a
``level_key`` really knows all symmetries of its game, and whether a legend tells the truth, no sample can show. Where
actions need luck, exact values are compared with averages of samples: an error below their noise (2 to 3 % of the range
of returns for ``q``, 15 % for the play of whole episodes) is not seen.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import copy
import functools
import importlib.util
import itertools
import json
import math
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from ragen_envs import protocol
from ragen_envs.game import Game, OracleValue, Outcome, Plan
from ragen_envs.seeding import LUCK, stream
from ragen_envs.splits import SPLITS
from ragen_envs.text_env import TextEnv

PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"

_THINK = "<think>x</think>"
_DEVIATIONS = 4.5
"""Standard errors that an average may be away from what an oracle says."""
_DRAWS = 24
"""Draws of luck per state and action."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one rule."""

    rule: str
    demands: str
    mend: str
    status: str
    """``passed``, ``failed`` or ``not applicable``."""
    found: str
    """Of a failed rule the evidence, else a remark or nothing."""
    seconds: float

    def __str__(self) -> str:
        if self.status == FAILED:
            found = self.found.replace("\n", "\n             ")
            return f"FAILED\n    demands: {self.demands}\n    found:   {found}\n    mend:    {self.mend}"
        return f"{self.status} ({self.found})" if self.found else f"{self.status} ({self.seconds:.2f} s)"


@dataclass(frozen=True, slots=True)
class Report:
    """All results for one environment."""

    name: str
    results: tuple[Result, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the broken rules."""
        return tuple(r.rule for r in self.results if r.status == FAILED)

    def __str__(self) -> str:
        lines = [f"{r.rule:<18} {r}" for r in self.results]
        return "\n".join([self.name, *lines])


class ConformanceError(AssertionError):
    """At least one rule is broken; the message says which and how to mend it."""

    def __init__(self, report: Report) -> None:
        self.report = report
        broken = [f"{r.rule:<18} {r}" for r in report.results if r.status == FAILED]
        super().__init__("\n".join([f"{report.name} breaks {len(broken)} of {len(report.results)} rules", *broken]))


class _Fault(Exception):
    """A rule is broken; the text is the evidence."""


class _NotApplicable(Exception):
    """A rule has nothing to say about this environment; the text is the reason."""


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    demands: str
    mend: str
    check: Callable[[_Subject], None]


_RULES: list[_Rule] = []


def _rule(demands: str, mend: str) -> Callable[[Callable[[_Subject], None]], Callable[[_Subject], None]]:
    def add(check: Callable[[_Subject], None]) -> Callable[[_Subject], None]:
        _RULES.append(_Rule(check.__name__.strip("_"), demands, mend, check))
        return check

    return add


def rule_names() -> tuple[str, ...]:
    """The names of all rules, in the order in which they are tried."""
    return tuple(rule.name for rule in _RULES)


def check_text_env(
    id_or_env: str | gymnasium.Env[Any, Any] | Callable[[], gymnasium.Env[Any, Any]],
    *,
    kwargs: dict[str, Any] | None = None,
    rules: Sequence[str] | None = None,
) -> Report:
    """Check a text environment against every rule and print what became of each.

    Args:
        id_or_env: An id as ``gymnasium.make`` takes it (``"mylab/Maze-v0"``, ``"mylab.maze:mylab/Maze-v0"``); or a
            :class:`~ragen_envs.TextEnv`, wrapped or not, which is left as it is: siblings of it are checked; or a
            function without arguments that builds one. Rules that need an id or another process say so and do not apply
            without.
        kwargs: Arguments for ``gymnasium.make``; only with an id.
        rules: The names of the rules to try (:func:`rule_names`); all by default.

    Returns:
        The report, if no rule is broken.

    Raises:
        ConformanceError: some rule is broken. All were tried.
        TypeError: this is not a text environment.
        ValueError: an unknown rule.
    """
    unknown = sorted(set(rules or ()) - set(rule_names()))
    if unknown:
        raise ValueError(f"unknown rules {unknown}; known are {', '.join(rule_names())}")
    subject = _Subject(id_or_env, kwargs)
    wanted = [rule for rule in _RULES if rules is None or rule.name in rules]
    print(f"{subject.name}: {len(wanted)} rules", flush=True)
    results = []
    for i, rule in enumerate(wanted, 1):
        print(f"[{i:>2}/{len(wanted)}] {rule.name:<18} ", end="", flush=True)
        results.append(_try(rule, subject))
        print(results[-1], flush=True)
    report = Report(subject.name, tuple(results))
    if report.failed:
        raise ConformanceError(report)
    return report


def _try(rule: _Rule, subject: _Subject) -> Result:
    start, status, found = time.perf_counter(), PASSED, ""
    try:
        rule.check(subject)
    except _NotApplicable as reason:
        status, found = NOT_APPLICABLE, str(reason)
    except _Fault as fault:
        status, found = FAILED, str(fault)
    except Exception as error:
        status, found = FAILED, _raised(error)
    return Result(rule.name, rule.demands, rule.mend, status, found, time.perf_counter() - start)


def _raised(error: BaseException) -> str:
    """The error and the line that raised it, as evidence."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    where = f" (line {step.tb_lineno} of {Path(step.tb_frame.f_code.co_filename).name})" if step is not None else ""
    return f"{type(error).__name__}: {_clip(str(error), 600)}{where}"


# --- what is checked -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Move:
    """One transition of a random walk through the game."""

    state: Any
    action: int
    outcome: Outcome[Any]
    left: int
    """Actions left before it."""
    lucky: bool
    """The game drew from its generator."""

    def __str__(self) -> str:
        return f"action {self.action} with {self.left} left"


class _Subject:
    """The environment under test: how to build it, and samples of its game."""

    def __init__(self, target: Any, kwargs: dict[str, Any] | None) -> None:
        if isinstance(target, str):
            self.build: Callable[[], Any] = lambda: gymnasium.make(target, **(kwargs or {})).unwrapped
        elif kwargs:
            raise TypeError("kwargs go with an id only: give the environment its arguments when you build it")
        elif isinstance(target, gymnasium.Env):
            self.build = lambda: target.unwrapped.sibling()  # type: ignore[attr-defined]
        elif callable(target):
            self.build = lambda: target().unwrapped
        else:
            raise TypeError(f"expected an id, an environment or a function that builds one, got {target!r}")
        if isinstance(target, gymnasium.Env) and not isinstance(target.unwrapped, TextEnv):
            raise TypeError(f"expected a ragen_envs.TextEnv, got {target.unwrapped!r}")
        env = self.build()
        if not isinstance(env, TextEnv):
            raise TypeError(f"expected a ragen_envs.TextEnv, got {env!r}")
        self.env: TextEnv = env
        self.game: Game[Any, Any] = env.game
        self.spec: EnvSpec | None = env.spec
        self.module = type(env.game).__module__
        self.name = self.spec.id if self.spec is not None else f"{type(env.game).__name__} (no id)"

    def make(self, **changes: Any) -> TextEnv:
        """A new environment, with some arguments changed."""
        env: TextEnv = self.build()
        if changes.get("action") == "text" and env.action_mode == "discrete":
            changes.setdefault("max_turns", env.max_actions)  # Turns, which did not count, must suffice.
        return env.sibling(**changes) if changes else env

    def importable(self) -> EnvSpec:
        """The spec, where another process can build the environment from it."""
        if self.spec is None:
            raise _NotApplicable("the environment has no id: register the game and check the id")
        if self.module == "__main__" or importlib.util.find_spec(self.module) is None:
            raise _NotApplicable(f"another process cannot import the game's module {self.module!r}")
        return self.spec

    @functools.cached_property
    def moves(self) -> list[_Move]:
        """About 300 transitions: random walks from drawn levels, and in each state up to 6 actions tried."""
        game, moves, rng = self.game, list[_Move](), random.Random(1)
        for seed in range(60):
            state = game.initial(game.draw_level(seed % 12, self.env.split))
            luck = stream(seed, LUCK)
            for left in range(self.env.max_actions, max(0, self.env.max_actions - 40), -1):
                tried = list(game.legal_actions(state))
                rng.shuffle(tried)
                for action in tried[:6]:
                    before = luck.bit_generator.state
                    outcome = game.step(state, action, luck)
                    moves.append(_Move(state, action, outcome, left, luck.bit_generator.state != before))
                if not tried or outcome.terminated:
                    break
                state = outcome.state
            if len(moves) >= 300:
                break
        return moves

    @property
    def lucky(self) -> bool:
        """The game uses luck."""
        return any(move.lucky for move in self.moves)

    def positions(self, most: int) -> Iterator[tuple[Any, int]]:
        """States in play with a number of actions left, spread over the walks."""
        moves = self.moves
        states = [move for i, move in enumerate(moves) if i == 0 or move.state is not moves[i - 1].state]
        for i, move in enumerate(states[:: max(1, len(states) // most)]):
            yield move.state, move.left if i % 3 else 1 + i % self.env.max_actions

    def oracle(self, state: Any, left: int) -> OracleValue:
        """The exact values, where the game has them."""
        found = self.game.oracle(state, left)
        if found is None:
            _need(not self.has_oracle, f"oracle gives None with {left} actions left, and values elsewhere: "
                  + _show(self.game.describe(state, self.game.views[0])))  # fmt: skip
            raise _NotApplicable("the game has no oracle")
        return found

    @functools.cached_property
    def has_oracle(self) -> bool:
        """The game has exact values somewhere at least."""
        asked = ((state, n) for state, left in self.positions(12) for n in (left, 1))
        return any(self.game.oracle(state, n) is not None for state, n in asked)


# --- evidence --------------------------------------------------------------------------------------------------------


def _need(truth: object, found: str) -> None:
    if not truth:
        raise _Fault(found)


def _clip(text: str, most: int = 160) -> str:
    return text if len(text) <= most else f"{text[: most - 30]} ... ({len(text)} characters)"


def _show(value: Any) -> str:
    if isinstance(value, str) and len(value) > 160:
        return f"{value[:130]!a} ... ({len(value)} characters)"
    return _clip(ascii(value) if isinstance(value, str) else repr(value))


def _contrast(a: Any, b: Any) -> str:
    """Two values, long texts from shortly before their first difference."""
    if isinstance(a, str) and isinstance(b, str):
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        if at > 60:
            return f"from character {at - 20}: {_show(a[at - 20 : at + 60])} against {_show(b[at - 20 : at + 60])}"
    return f"{_show(a)} against {_show(b)}"


def _plain(value: Any, *, exact: bool = True) -> Any:
    """As JSON-able values; ``exact`` keeps the types of numbers and arrays apart."""
    if isinstance(value, np.ndarray):
        items = _plain(value.tolist(), exact=exact)
        return {"array": str(value.dtype), "items": items} if exact else items
    if isinstance(value, np.generic):
        return {type(value).__name__: value.item()} if exact else value.item()
    if isinstance(value, dict):
        return {str(k): _plain(v, exact=exact) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, exact=exact) for v in value]
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _text(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True)


Entry = dict[str, Any]


def _difference(a: Sequence[Entry], b: Sequence[Entry]) -> str:
    """Where two transcripts part, or an empty string."""
    for i, (one, other) in enumerate(zip(a, b, strict=False)):
        for key in one:
            if _text(one[key]) == _text(other.get(key)):
                continue
            where = f"step {i} (action {_show(one['action'])})"
            if isinstance(one[key], dict) and isinstance(other.get(key), dict):
                for inner in sorted(set(one[key]) | set(other[key])):
                    if _text(one[key].get(inner)) != _text(other[key].get(inner)):
                        values = _contrast(one[key].get(inner), other[key].get(inner))
                        return f"{where}: {key}[{inner!r}] is {values}"
            return f"{where}: {key} is {_contrast(one[key], other.get(key))}"
    return "" if len(a) == len(b) else f"one has {len(a) - 1} steps, the other {len(b) - 1}"


def _same(a: Sequence[Entry], b: Sequence[Entry], what: str) -> None:
    parts = _difference(a, b)
    _need(not parts, f"{what}: {parts}")


def _entry(action: Any, returned: Sequence[Any]) -> Entry:
    names = (
        ("observation", "info") if len(returned) == 2 else ("observation", "reward", "terminated", "truncated", "info")
    )
    return {"action": action, **dict(zip(names, returned, strict=True))}


def _over(entry: Entry) -> bool:
    return bool(entry.get("terminated") or entry.get("truncated"))


def _answer(*names: str) -> str:
    return f"<answer>{f' {protocol.SEPARATOR} '.join(names)}</answer>"


def _some_turn(env: TextEnv, rng: random.Random) -> Any:
    """A turn of any kind, good ones more often."""
    if env.action_mode == "discrete":
        return rng.randrange(env.game.n_actions)
    names = env.game.action_names(env.level)
    answer = _answer(*(rng.choice(names) for _ in range(rng.randint(1, 3))))
    if rng.random() < 0.7:
        return _THINK + answer
    return rng.choice(("", "no tags", answer, f"{_THINK}<answer>", _THINK + _answer("no such action"), f"hm {answer}",
                       _THINK + answer * 2, _THINK + _answer(*names * 9), f"<think>{answer}"))  # fmt: skip


def _play_on(env: TextEnv, rng: random.Random, log: list[Entry]) -> list[Entry]:
    """Some turns until the episode ends; appends to ``log`` and returns it."""
    while not _over(log[-1]):
        action = _some_turn(env, rng)
        log.append(_entry(action, env.step(action)))
    return log


def _play(env: TextEnv, seed: int | None, **options: Any) -> list[Entry]:
    """A whole episode of some turns."""
    opening = _entry("reset", env.reset(seed=seed, options=options or None))
    return _play_on(env, random.Random(seed), [opening])


def _replay(env: TextEnv, actions: Iterable[Any], log: list[Entry]) -> list[Entry]:
    return [*log, *(_entry(action, env.step(action)) for action in actions)]


# --- Gymnasium and its registry --------------------------------------------------------------------------------------


@_rule(
    "gymnasium.utils.env_checker.check_env raises nothing and warns of nothing.",
    "Its own message says what is wrong with spaces, reset, step, render or close.",
)
def _gymnasium(subject: _Subject) -> None:
    env = subject.make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        for category in (UserWarning, RuntimeWarning):
            warnings.simplefilter("always", category)
        check_env(env, skip_render_check=env.spec is None)
    _need(not caught, "it warns: " + "; ".join(_clip(str(w.message)) for w in caught))


@_rule(
    "gymnasium.make builds the same environment from the spec's JSON and from 'module:id'.",
    "Register with ragen_envs.register(id, 'module:Class', ...) and arguments that are JSON values.",
)
def _registration(subject: _Subject) -> None:
    spec = subject.spec
    if spec is None:
        raise _NotApplicable("the environment has no id")
    try:
        text = spec.to_json()
    except (TypeError, ValueError) as error:
        raise _Fault(f"the spec does not become JSON: {error}") from None
    forms: dict[str, Any] = {"the spec from JSON": EnvSpec.from_json(text)}
    if subject.module != "__main__" and importlib.util.find_spec(subject.module) is not None:
        forms[f"{subject.module}:{spec.id}"] = f"{subject.module}:{spec.id}"
    wanted = _play(subject.make(), 1)
    for what, form in forms.items():
        env = gymnasium.make(form, **(spec.kwargs if isinstance(form, str) else {})).unwrapped
        assert isinstance(env, TextEnv)
        _same(wanted, _play(env, 1), f"seed 1, the id against {what}")


# --- determinism -----------------------------------------------------------------------------------------------------


@_rule(
    "The same seed and actions give the same transcript: again in the same environment, also after an episode "
    "that was broken off, and in a new one.",
    "All luck of a level comes from the rng of sample_level, all luck of play from the rng of step; no clock, "
    "no counter, no iteration over sets, nothing remembered from an earlier episode.",
)
def _same_seed(subject: _Subject) -> None:
    env = subject.make()
    for seed in range(5):
        wanted = _play(env, seed)
        env.reset(seed=seed + 100)
        env.step(_some_turn(env, random.Random(seed)))
        _same(wanted, _play(env, seed), f"seed {seed}, the same environment twice")
        _same(wanted, _play(subject.make(), seed), f"seed {seed}, an old and a new environment")


@_rule(
    "Resets without a seed go on from the last seed: two environments with one seed deal the same further levels.",
    "Do not override reset; draw_level and sample_level take all luck from their arguments.",
)
def _unseeded_resets(subject: _Subject) -> None:
    logs = []
    for env in (subject.make(), subject.make()):
        logs.append([*_play(env, 3), *(_entry("reset", env.reset()) for _ in range(4))])
    _same(logs[0], logs[1], "seed 3, then four resets without a seed, in two environments")


@_rule(
    "What is done to one environment changes no other, not even one that shares the game object.",
    "Keep nothing of an episode in the game, its class or its module: everything that changes belongs into the state.",
)
def _neighbours(subject: _Subject) -> None:
    for seed in range(4):
        wanted = _play(subject.make(), seed)
        env = subject.make()
        sharing, stranger = env.sibling(), subject.make()
        log, rng = [_entry("reset", env.reset(seed=seed))], random.Random(seed)
        while not _over(log[-1]):
            kept = _text(env.snapshot())
            for other in (sharing, stranger):
                _play(other, seed + 50 + len(log))
            _need(kept == _text(env.snapshot()), f"seed {seed}, step {len(log) - 1}: a neighbour changed the snapshot: "
                  + _contrast(kept, _text(env.snapshot())))  # fmt: skip
            action = _some_turn(env, rng)
            log.append(_entry(action, env.step(action)))
        _same(wanted, log, f"seed {seed}, alone and between the steps of neighbours")


@_rule(
    "16 environments that share one game object give the same transcripts in 1 and in 16 threads.",
    "Keep no work space in the game, its class or its module; caches of pure results must be safe "
    "(functools.lru_cache is).",
)
def _threads(subject: _Subject) -> None:
    base = subject.make()
    wanted = [_play(base.sibling(), seed) for seed in range(16)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # Threads must meet in the middle of things to be a test.
    try:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda seed: _play(base.sibling(), seed), range(16)))
    finally:
        sys.setswitchinterval(interval)
    for seed, (one, other) in enumerate(zip(wanted, found, strict=True)):
        _same(one, other, f"seed {seed}, 1 thread against 16")


def _transcripts(env: TextEnv) -> list[list[Entry]]:
    return [_play(env.sibling(split=split) if split != env.split else env, seed) for split in SPLITS for seed in (0, 1)]


def _answer_parent() -> None:
    """In another process: build what standard input says, print its transcripts."""
    asked = json.load(sys.stdin)
    spec = EnvSpec.from_json(asked["spec"])
    form: Any = asked["id"] or spec
    env = gymnasium.make(form, **(spec.kwargs if asked["id"] else {})).unwrapped
    assert isinstance(env, TextEnv)
    print(json.dumps(_plain(_transcripts(env))))


@_rule(
    "Processes of their own, with two values of PYTHONHASHSEED, give the same transcripts in every split; one "
    "of them knows the environment only as 'module:id'.",
    "Never use hash() or the order of a set; register the id at the end of the module that holds the game.",
)
def _processes(subject: _Subject) -> None:
    spec = subject.importable()
    wanted = _plain(_transcripts(subject.make()))
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    for hash_seed, id in (("1", f"{subject.module}:{spec.id}"), ("4242", None)):
        done = subprocess.run(
            [sys.executable, "-c", "import ragen_envs.testing; ragen_envs.testing._answer_parent()"],
            input=json.dumps({"spec": spec.to_json(), "id": id}), capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
        )  # fmt: skip
        what = f"gymnasium.make({id or 'the spec'!r}) in a process with PYTHONHASHSEED={hash_seed}"
        last = (done.stderr.strip().splitlines() or [""])[-1]
        _need(done.returncode == 0, f"{what} fails: {_clip(last, 400)}")
        for i, (here, there) in enumerate(zip(wanted, json.loads(done.stdout), strict=True)):
            _same(here, there, f"split {SPLITS[i // 2]}, seed {i % 2}, here against {what}")


@_rule(
    "make, reset, step, render and close leave the state of random, of numpy.random, the environment variables "
    "and the working directory alone.",
    "Draw only from the rng argument (a numpy.random.Generator); never call random.* or numpy.random.*.",
)
def _global_luck(subject: _Subject) -> None:
    def world() -> dict[str, Any]:
        state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
        return {"random": random.getstate(), "numpy.random": _text(state), "os.environ": dict(os.environ),
                "the working directory": os.getcwd()}  # fmt: skip

    for mode in ("ansi", "rgb_array"):
        before = world()
        env = subject.make(render_mode=mode)
        after = {"make": world()}
        _play(env, 0)
        after["reset or step"] = world()
        env.render()
        env.close()
        after["render or close"] = world()
        for call, now in after.items():
            changed = [name for name in before if before[name] != now[name]]
            _need(not changed, f"{call} changed {', '.join(changed)}")


@_rule(
    "options['level'] plays that level, options['dynamics_seed'] changes the luck and not the level, the same "
    "one gives the same luck, and unknown options are refused.",
    "load_level must read what dump_level wrote; do not override reset.",
)
def _options(subject: _Subject) -> None:
    env = subject.make()
    for seed in range(3):
        _, info = env.reset(seed=seed)
        for form in (json.loads(json.dumps(subject.game.dump_level(env.level))), env.level):
            _, got = env.reset(seed=seed + 1000, options={"level": form})
            _need(got["level_hash"] == info["level_hash"], f"seed {seed}: options['level'] = {_show(form)} plays "
                  f"{got['level_hash']} and not {info['level_hash']}")  # fmt: skip
        first = _play(env, seed, dynamics_seed=7)
        _same(first, _play(subject.make(), seed, dynamics_seed=7), f"seed {seed}, dynamics_seed 7 twice")
        _same(first[:1], _play(env, seed, dynamics_seed=8)[:1], f"seed {seed}, the reset with dynamics_seed 7 and 8")
    kept = _text(env.snapshot())
    try:
        env.reset(seed=1, options={"no such option": 1})
    except ValueError:
        _need(kept == _text(env.snapshot()), "a refused reset changed the environment")
    else:
        raise _Fault("reset(options={'no such option': 1}) raised no ValueError")


@_rule(
    "snapshot() is JSON; restored at any moment, in the same environment or in a sibling, it gives the same "
    "observation, info, future (luck included) and next level.",
    "dump_state must hold everything that the future depends on, and load_state must put all of it back.",
)
def _snapshots(subject: _Subject) -> None:
    for seed in range(6):
        env = subject.make()
        other = env.sibling()
        log, rng, kept = [_entry("reset", env.reset(seed=seed))], random.Random(seed), []
        while not _over(log[-1]):
            kept.append(json.dumps(env.snapshot()))
            action = _some_turn(env, rng)
            log.append(_entry(action, env.step(action)))
        kept.append(json.dumps(env.snapshot()))
        following = [_entry("reset", env.reset())]
        other.reset(seed=seed + 1)
        for i in sorted({0, len(kept) // 2, len(kept) - 2, len(kept) - 1} & set(range(len(kept)))):
            for target, where in ((env, "the same environment"), (other, "a sibling")):
                what = f"seed {seed}, snapshot before step {i + 1}, restored in {where}"
                seen, info = target.restore(json.loads(kept[i]))
                now = {key: log[i][key] for key in ("action", "observation", "info")}
                _same([now], [{"action": log[i]["action"], "observation": seen, "info": info}], what)
                _need(json.dumps(target.snapshot()) == kept[i], f"{what}: a snapshot of it differs: "
                      + _contrast(kept[i], json.dumps(target.snapshot())))  # fmt: skip
                _same(
                    log[i + 1 :],
                    _replay(target, [entry["action"] for entry in log[i + 1 :]], []),
                    f"{what}, its future",
                )
                _same(following, [_entry("reset", target.reset())], f"{what}, the level after it")


@_rule(
    "An environment that is pickled, or copied with copy.deepcopy, in mid-episode goes on as the original does.",
    "Classes of levels and states stand at the top level of a module; no lambdas, files or locks in game or states.",
)
def _copies(subject: _Subject) -> None:
    for seed in range(3):
        env = subject.make()
        log, rng = [_entry("reset", env.reset(seed=seed))], random.Random(seed)
        if env.max_turns > 2:
            log.append(_entry("first turn", env.step(_some_turn(env, rng))))
        twins = {"pickle": pickle.loads(pickle.dumps(env)), "copy.deepcopy": copy.deepcopy(env)}
        wanted = _play_on(env, rng, log[-1:])
        for how, twin in twins.items():
            got = _replay(twin, [entry["action"] for entry in wanted[1:]], log[-1:])
            _same(wanted, got, f"seed {seed}, the original and its copy by {how}")


# --- vector environments ---------------------------------------------------------------------------------------------


def _from_spec(text: str, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(EnvSpec.from_json(text), **kwargs)


def _of_one(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """The info of one environment out of a vector's."""
    found = {}
    for key in infos:
        if key.startswith("_") or (f"_{key}" in infos and not infos[f"_{key}"][i]):
            continue
        value = infos[key]
        found[key] = _of_one(value, i) if isinstance(value, dict) else _plain(value[i], exact=False)
    return found


def _compare_vectors(wanted: SyncVectorEnv, vector: Any, mode: AutoresetMode, what: str, *, steps: int = 20) -> None:
    """Drive both with the same seeds and actions; they must return the same for every environment."""
    n = wanted.num_envs
    seeds: list[int | None] = [11 * (i + 1) for i in range(n)]
    rngs = [random.Random(i) for i in range(n)]
    returned: list[Any] = [vec.reset(seed=seeds) for vec in (wanted, vector)]
    over = np.zeros(n, bool)
    for step in range(steps + 1):
        logs = []
        for values in returned:
            rows = []
            for i in range(n):
                row = [values[0][i], *(float(v[i]) for v in values[1:-1]), _of_one(values[-1], i)]
                rows.append(_entry(f"environment {i}", _plain(row, exact=False)))
            logs.append(rows)
        for one, other in zip(*logs, strict=True):
            _same([one], [other], f"{what}, step {step}, {one['action']}")
        if step == steps:
            return
        if len(returned[0]) == 5:
            over = np.logical_or(returned[0][2], returned[0][3])
        if mode is AutoresetMode.DISABLED and over.any():
            returned = [vec.reset(options={"reset_mask": over.copy()}) for vec in (wanted, vector)]
            over[:] = False
            continue
        actions: Any = tuple(_some_turn(env.unwrapped, rngs[i]) for i, env in enumerate(wanted.envs))  # type: ignore[arg-type]
        if wanted.envs[0].unwrapped.action_mode == "discrete":  # type: ignore[attr-defined]
            actions = np.array(actions)
        returned = [vec.step(actions) for vec in (wanted, vector)]


@_rule(
    "gymnasium.make_vec with the id's vector entry point equals gymnasium.vector.SyncVectorEnv of the single "
    "environment in every autoreset mode, for texts, grids and discrete actions: observations, rewards, ends and "
    "info.",
    "The batched kernels and the rules of the game must be the same game; compare them step by step on the seed named.",
)
def _vector(subject: _Subject) -> None:
    spec = subject.spec
    if spec is None or spec.vector_entry_point is None:
        raise _NotApplicable("the id has no vector entry point")
    shown = ("text",) if subject.game.grid_spec() is None else ("text", "grid")
    for action, observation, mode in itertools.product(("text", "discrete"), shown, AutoresetMode):
        face = {"action": action, "observation": observation}
        kwargs = {**spec.kwargs, **face}
        single = functools.partial(_from_spec, spec.to_json(), face)
        wanted = SyncVectorEnv([single] * 3, autoreset_mode=mode)
        vector = gymnasium.make_vec(spec.id, num_envs=3, vectorization_mode="vector_entry_point",
                                    autoreset_mode=mode, **kwargs)  # fmt: skip
        try:
            what = f"{observation} observations, {action} actions, {mode.value}, SyncVectorEnv against make_vec"
            _compare_vectors(wanted, vector, mode, what)
        finally:
            wanted.close()
            vector.close()


@_rule(
    "gymnasium.vector.AsyncVectorEnv(shared_memory=False) equals SyncVectorEnv, and with shared memory text is "
    "refused at construction instead of becoming garbage.",
    "Keep ragen_envs.FreeText as the space of text; what a worker process needs must come from the id's arguments.",
)
def _async_vector(subject: _Subject) -> None:
    single = functools.partial(_from_spec, subject.importable().to_json(), {})
    if subject.env.observation_mode != "grid":
        try:
            AsyncVectorEnv([single] * 2).close()
        except (TypeError, ValueError) as error:
            _need("shared_memory" in str(error), f"the refusal does not name shared_memory: {_clip(str(error))}")
        else:
            raise _Fault("AsyncVectorEnv took text into shared memory")
    wanted = SyncVectorEnv([single] * 2)
    vector = AsyncVectorEnv([single] * 2, shared_memory=False)
    try:
        _compare_vectors(wanted, vector, AutoresetMode.NEXT_STEP, "SyncVectorEnv against AsyncVectorEnv", steps=8)
    finally:
        wanted.close()
        vector.close()


# --- what reset and step return --------------------------------------------------------------------------------------


def _faces(subject: _Subject) -> Iterator[tuple[str, TextEnv]]:
    """The environment with each kind of observation and action."""
    grids = () if subject.game.grid_spec() is None else ("grid",)
    for observation, action in itertools.product(("text", "messages", *grids), ("text", "discrete")):
        yield f"observation={observation!r}, action={action!r}", subject.make(observation=observation, action=action)


@_rule(
    "Every observation of reset and step lies in the observation space, and an action space's sample can be played.",
    "Texts are str of at most 2**20 characters; grid() returns int8 codes of the shape and number that "
    "grid_spec() says.",
)
def _spaces(subject: _Subject) -> None:
    for face, env in _faces(subject):
        for seed in range(2):
            for i, entry in enumerate(_play(env, seed)):
                _need(env.observation_space.contains(entry["observation"]), f"{face}, seed {seed}, step {i}: "
                      f"{_show(entry['observation'])} is not in {env.observation_space}")  # fmt: skip
            env.reset(seed=seed)
            env.action_space.seed(seed)
            env.step(env.action_space.sample())


@_rule(
    "reset and step return the Python types float, bool, bool, and in info exactly the keys of "
    "TextEnv.info_keys(), always with the same Python types and as JSON; after reset counters are 0, flags "
    "False and action texts empty.",
    "Convert numpy scalars with float(), bool(), int(); never leave a key out; use -1, NaN or '' where there is "
    "no value.",
)
def _info(subject: _Subject) -> None:
    kinds = TextEnv.info_keys()
    blank = {"success": False, "score": 0.0, "turn": 0, "action_raw": "", "action_parsed": "", "action_executed": "",
             "action_status": "", "format_ok": False, "action_valid": False, "action_effective": False,
             "n_dropped": 0, "n_invalid": 0}  # fmt: skip
    for seed, oracle, action in itertools.product(range(2), (False, True), ("text", "discrete")):
        env = subject.make(oracle=oracle, action=action)
        log = _play(env, seed)
        for i, entry in enumerate(log):
            what, info = f"seed {seed}, step {i}", entry["info"]
            scalars = [type(entry[key]) for key in ("reward", "terminated", "truncated") if key in entry]
            _need(scalars in ([], [float, bool, bool]), f"{what}: reward and flags are "
                  + ", ".join(kind.__name__ for kind in scalars))  # fmt: skip
            _need(set(info) == set(kinds), f"{what}: the keys {sorted(set(info) ^ set(kinds))} are too many or missing")
            wrong = [f"{key} is {type(info[key]).__name__}, not {kind.__name__}" for key, kind in kinds.items()
                     if type(info[key]) is not kind]  # fmt: skip
            _need(not wrong, f"{what}: {'; '.join(wrong)}")
            json.dumps(info, allow_nan=False)
            _need(i == 0 or info["action_status"] in protocol.STATUSES, f"{what}: status {info['action_status']!r}")
            _need(info["split"] == subject.game.split_of(env.level), f"{what}: split {info['split']!r}")
        first = log[0]["info"]
        wrong = [f"{key} is {first[key]!r}, not {value!r}" for key, value in blank.items() if first[key] != value]
        _need(not wrong, f"seed {seed}, after reset: {'; '.join(wrong)}")
        values = subject.game.oracle(env.state, env.actions_left) if oracle else None
        if values is not None:
            last, wanted = log[-1]["info"], (values.optimal_steps, values.dead_end)
            _need((last["optimal_steps"], last["deadlock"]) == wanted, f"seed {seed}: optimal_steps and deadlock are "
                  f"{last['optimal_steps']}, {last['deadlock']}, the oracle says {wanted}")  # fmt: skip


def _spoil(value: Any) -> None:
    """Change whatever can be changed."""
    if isinstance(value, dict):
        for inner in value.values():
            _spoil(inner)
        value.clear()
    elif isinstance(value, list):
        value.clear()
    elif isinstance(value, tuple):
        for inner in value:
            _spoil(inner)
    elif isinstance(value, np.ndarray) and value.flags.writeable:
        value[...] = 0


@_rule(
    "What reset, step, snapshot and restore return belongs to the caller: changing it does not change the environment.",
    "grid() and draw() build a new array in each call; hand out copies of lists and dicts.",
)
def _fresh_objects(subject: _Subject) -> None:
    for face, env in _faces(subject):
        wanted = _play(env, 5)
        got, kept, other = [_entry("reset", env.reset(seed=5))], list[Entry](), env.sibling()
        for i in range(len(wanted)):
            kept.append(copy.deepcopy(got[i]))
            snapshot = env.snapshot()
            other.reset(seed=9)
            _spoil(other.restore(snapshot))
            _spoil(snapshot)
            _spoil({key: value for key, value in got[i].items() if key in ("observation", "info")})
            if i + 1 < len(wanted):
                got.append(_entry(wanted[i + 1]["action"], env.step(wanted[i + 1]["action"])))
        _same(wanted, kept, f"{face}, seed 5, left alone and with every returned object changed")


class _Twin:
    """What a turn must lead to, from the game and the budgets alone: a plain second version of ``TextEnv.step``."""

    def __init__(self, env: TextEnv, seed: int) -> None:
        self.env, self.game = env, env.game
        self.state = env.game.initial(env.game.draw_level(seed, env.split))
        self.luck = stream(seed, LUCK)
        self.turn = self.used = self.invalid = 0

    def step(self, action: Any) -> Entry:
        env, game, discrete = self.env, self.game, self.env.action_mode == "discrete"
        names = game.action_names(game.level_of(self.state))
        actions: Sequence[int] = (action,)
        status, formed = "ok", True
        if not discrete:
            actions, status, formed, _, _ = protocol.read_turn(
                action,
                lambda answer: game.parse_answer(answer, self.state, max_actions=env.max_actions_per_turn),
                reasoning=env.reasoning,
            )
        reward, ended, success, done = 0.0, False, False, []
        before = game.state_key(self.state)
        effective = False
        for one in actions[: env.max_actions - self.used]:
            if one not in game.legal_actions(self.state):
                status, formed = "illegal_action", False
                break
            outcome = game.step(self.state, one, self.luck)
            self.state, reward, ended = outcome.state, reward + outcome.reward, outcome.terminated
            success, effective = outcome.success if ended else False, effective or outcome.effective
            done.append(names[one])
            if ended:
                break
        self.turn += 1
        self.used = self.turn if discrete else self.used + len(done)
        self.invalid += not formed
        short = self.used >= env.max_actions or (not discrete and self.turn >= env.max_turns)
        single = (env.max_actions if discrete else env.max_turns) == 1
        info = {"success": success, "score": float(success), "turn": self.turn, "n_invalid": self.invalid,
                "actions_left": env.max_actions - self.used, "action_executed": f" {protocol.SEPARATOR} ".join(done),
                "action_status": status, "format_ok": formed, "action_effective": effective,
                "state_hash": game.state_key(self.state) if done else before}  # fmt: skip
        penalty = 0.0 if formed or discrete else env.format_penalty
        return {"action": action, "reward": float(reward + penalty), "terminated": ended or single,
                "truncated": short and not single, "info": info}  # fmt: skip


@_rule(
    "Rewards, ends and counters follow from the game and the budgets alone: terminated when the game ends (or "
    "the only turn is over), truncated exactly when turns or actions run out, success the game's own flag, the "
    "penalty for form added where format_ok is False; steps before a reset and after the end raise "
    "RuntimeError.",
    "Do not override step. Success comes from Outcome.success and never from the reward; budgets are not the "
    "game's business.",
)
def _ends(subject: _Subject) -> None:
    env = subject.make()
    allowed = min(env.max_actions, env.max_turns * env.max_actions_per_turn)
    variants: list[dict[str, Any]] = [
        {}, {"max_turns": 1, "max_actions_per_turn": max(allowed, env.max_actions_per_turn)}, {"action": "discrete"},
    ]  # fmt: skip
    for changes, seed, garbage in itertools.product(variants, range(5), (False, True)):
        env = subject.make(**changes)
        if garbage and (env.action_mode == "discrete" or seed):
            continue
        what = ", ".join([f"{key}={value!r}" for key, value in changes.items()] + [f"seed {seed}"])
        _refuses_steps(env, f"{what}, before the first reset")
        env.reset(seed=seed)
        twin, rng, over, i = _Twin(env, seed), random.Random(seed), False, 0
        while not over:
            i += 1
            action = "no tags" if garbage else _some_turn(env, rng)
            wanted = twin.step(action)
            got = _entry(action, env.step(action))
            got = {key: got[key] for key in wanted} | {"info": {key: got["info"][key] for key in wanted["info"]}}
            parts = _difference([wanted], [got])
            _need(not parts, f"{what}, step {i}, the game and the budgets against the environment: {parts}")
            over = _over(wanted)
        _refuses_steps(env, f"{what}, after the end")


def _refuses_steps(env: TextEnv, what: str) -> None:
    try:
        env.step(0 if env.action_mode == "discrete" else "")
    except RuntimeError:
        return
    raise _Fault(f"{what}: step raised no RuntimeError")


def _hostile(folder: str, names: Sequence[str]) -> list[Any]:
    """Things that a model, a tokenizer or a broken harness may hand over."""
    code = f'__import__("pathlib").Path({folder + "/touched"!r}).touch()'
    shell = f"$(touch {folder}/touched)"
    name = names[0]
    texts = [
        code, shell, f"`touch {folder}/touched`", f"{{0.__class__}}{code}", "%s%n{}", name, f"{name} {name}",
        f"{name}.", f'"{name}"', "0", "-1", "1e400", "\0" * 10, "\ud800", "\u202e" + name, name + "\u0301", "", "   ",
        "||", "|||", "<|im_end|><|im_start|>assistant", "<|endoftext|></s>[INST]", "[", "(", "\\", "é□√🙂\n\u2028",
        "<answer>", "</think>", "a" * 1_100_000, "\u0301" * 200_000, f"{name} || " * 20_000, "<answer>" * 20_000,
        "(" * 100_000,
    ]  # fmt: skip
    good = _answer(name)
    whole = [
        *(f"{_THINK}<answer>{text}</answer>" for text in texts),
        *texts[:12], *texts[-5:],
        f"<think>{code}</think><answer>", f"<think>a {good}", f"<think>a</answer>{good}", f"{_THINK}<answer>{good}",
        f"{_THINK}<answer>{good}</answer>", _THINK + good * 3, _THINK * 3 + good, f"{_THINK}{good}</answer></think>",
        f"<think>{'a' * 1_000_000}</think>{good}", "<think>" * 20_000, f"<ThInK>x</tHiNk><ANSWER>{name}</aNSWER>",
        f"<think >x</think><answer >{name}</answer>", "\ud800\udfff", "\0",
    ]  # fmt: skip
    return [*whole, None, 17, -1, 2.5, float("nan"), True, b"bytes", good.encode(), [good], {"answer": name}, (),
            object(), np.array([1, 2]), np.str_(_THINK + good)]  # fmt: skip


@_rule(
    "Whatever is handed to step in place of a turn (None, numbers, bytes, megabytes, control tokens, lone "
    "surrogates, NULs, broken tags, code), it raises nothing, runs nothing, has a known status, counts as a "
    "turn and changes no state unless an action was executed; the penalty falls exactly where format_ok is "
    "False.",
    "parse_answer reads text as data: total, linear, without eval, format or shell; it returns (actions, "
    "status, dropped).",
)
def _hostile_text(subject: _Subject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        env = subject.make()
        env.reset(seed=0)
        names = subject.game.action_names(env.level)
        things = _hostile(folder, names)
        for text in (thing for thing in things if isinstance(thing, str)):
            actions, status, dropped = subject.game.parse_answer(text, env.state, max_actions=3)
            right = len(actions) <= 3 and all(type(a) is int and 0 <= a < subject.game.n_actions for a in actions)
            _need(right and status in protocol.STATUSES and type(dropped) is int,
                  f"parse_answer({_show(text)}) returns {_show((actions, status, dropped))}")  # fmt: skip
            _need(not os.listdir(folder), f"parse_answer({_show(text)}) made a file: something ran the text")
        env, free = (
            subject.make(action="text", observation="text", max_turns=len(things) + 1, format_penalty=penalty)
            for penalty in (-0.25, 0.0)
        )
        over = True
        for thing in things:
            what = f"after {_show(thing)}"
            if over:
                _, before = env.reset(seed=0)
                free.reset(seed=0)
            observation, reward, terminated, truncated, info = env.step(thing)
            plain_reward = free.step(thing)[1]
            _need(info["action_status"] in protocol.STATUSES, f"{what} the status is {info['action_status']!r}")
            _need(info["turn"] == before["turn"] + 1, f"{what} turn is {info['turn']}, before it {before['turn']}")
            _need(env.observation_space.contains(observation), f"{what} the observation is {_show(observation)}")
            _need(info["action_raw"] == (thing if isinstance(thing, str) else ""), f"{what} action_raw differs")
            penalty = 0.0 if info["format_ok"] else -0.25
            paid = reward - plain_reward
            _need(_close(paid, penalty), f"{what} format_ok is {info['format_ok']} and the penalty {paid:g}")
            if not info["action_executed"]:
                for key in ("state_hash", "actions_left"):
                    _need(info[key] == before[key], f"{what} nothing was executed but {key} changed")
            _need(not os.listdir(folder), f"{what} a file was made: something ran the text")
            over, before = terminated or truncated, info


@_rule(
    "Discrete steps and text turns of one action each play the same game: same rewards, states, ends and success.",
    "Indices and names of actions must mean the same; luck may depend on the generator alone, not on the face.",
)
def _discrete(subject: _Subject) -> None:
    budget = {"max_turns": subject.env.max_actions, "max_actions_per_turn": 1}
    text, discrete = (subject.make(action=action, **budget) for action in ("text", "discrete"))
    keys = ("success", "state_hash", "actions_left", "valid_actions", "action_executed", "action_effective")
    for seed in range(6):
        rng, over, i = random.Random(seed), False, 0
        text.reset(seed=seed)
        discrete.reset(seed=seed)
        while not over:
            i += 1
            action = rng.choice(subject.game.legal_actions(text.state))
            name = subject.game.action_names(text.level)[action]
            logs = [_entry(name, env.step(turn)) for env, turn in ((text, _THINK + _answer(name)), (discrete, action))]
            over = _over(logs[0])
            for entry in logs:
                del entry["observation"]
                entry["info"] = {key: entry["info"][key] for key in keys}
            _same(logs[:1], logs[1:], f"seed {seed}, step {i}, text against discrete")


# --- the game --------------------------------------------------------------------------------------------------------


@_rule(
    "n_actions counts the action names of every level; each name, in any case, is read as its own index; legal "
    "actions are indices, each once, and at the start there is one.",
    "Names differ after case folding and hold no '||'; parse_answer of a name gives ((index,), 'ok', 0).",
)
def _actions(subject: _Subject) -> None:
    game = subject.game
    for seed in range(6):
        level = game.draw_level(seed, subject.env.split)
        state, names = game.initial(level), game.action_names(level)
        _need(len(names) == game.n_actions, f"seed {seed}: n_actions is {game.n_actions}, the names are {_show(names)}")
        folded = {unicodedata.normalize("NFKC", name).casefold() for name in names}
        _need(len(folded) == len(names), f"seed {seed}: some names differ in case only: {_show(names)}")
        for i, name in enumerate(names):
            for form in (name, name.upper(), f"  {name.lower()}\n"):
                read = game.parse_answer(form, state, max_actions=2)
                _need((tuple(read[0]), read[1], read[2]) == ((i,), "ok", 0),
                      f"seed {seed}: parse_answer({form!r}) gives {_show(read)}, wanted (({i},), 'ok', 0)")  # fmt: skip
        _need(game.legal_actions(state), f"seed {seed}: no action is legal at the start")
    for move in subject.moves:
        legal = game.legal_actions(move.state)
        good = len(set(legal)) == len(legal) and all(type(a) is int and 0 <= a < game.n_actions for a in legal)
        _need(good, f"legal_actions gives {_show(legal)} for n_actions {game.n_actions}")


@_rule(
    "instructions and describe give text for every view: not empty, describe as lines of words with single spaces; "
    "sight gives state_key, legal_actions and describe.",
    "Join words with one space and lines with one line break; a drawn row is one word, so draw blanks with a "
    "visible sign. Leave sight out, or let it give exactly what the three give.",
)
def _words(subject: _Subject) -> None:
    game = subject.game
    _need(len(game.views) > 0, "views is empty")
    for view in game.views:
        for move in subject.moves:
            for state in (move.state, move.outcome.state):
                text = game.describe(state, view)
                _need(isinstance(text, str) and text.strip(), f"describe(state, {view!r}) gives {_show(text)}")
                found, parts = game.sight(state, view), (game.state_key(state), game.legal_actions(state), text)
                _need(found == parts, f"sight(state, {view!r}) gives {_show(found)}, its three parts {_show(parts)}")
                crooked = [line for line in text.split("\n") if line != " ".join(line.split())]
                _need(not crooked, f"describe(state, {view!r}) has the line {_show(crooked[:1])}")
        for seed in range(6):
            text = game.instructions(game.draw_level(seed, subject.env.split), view)
            _need(isinstance(text, str) and text.strip(), f"instructions(level, {view!r}) gives {_show(text)}")


@_rule(
    "draw gives a new uint8 array, height x width x 3; render gives it for 'rgb_array' and a str for 'ansi'.",
    "Return numpy.uint8, not float, and three channels; or leave draw out and take the default picture.",
)
def _pictures(subject: _Subject) -> None:
    def right(picture: Any) -> bool:
        return (
            isinstance(picture, np.ndarray)
            and picture.dtype == np.uint8
            and picture.ndim == 3
            and picture.shape[2] == 3
        )

    for move in subject.moves[:: max(1, len(subject.moves) // 12)]:
        for state in (move.state, move.outcome.state):
            one, other = subject.game.draw(state), subject.game.draw(state)
            kind = f"{one.dtype} {one.shape}" if isinstance(one, np.ndarray) else type(one).__name__
            _need(right(one), f"draw gives {kind}")
            _need(np.array_equal(one, other), "draw gives two pictures of one state")
            _need(not np.shares_memory(one, other), "draw gives the same array twice")
    for mode in ("ansi", "rgb_array"):
        env = subject.make(render_mode=mode)
        env.reset(seed=0)
        shown = env.render()
        _need(isinstance(shown, str) if mode == "ansi" else right(shown), f"render in {mode!r} gives {_show(shown)}")


@_rule(
    "grid gives a new int8 array of the shape and with the codes that grid_spec says.",
    "Codes are 0 to n - 1; grid_spec must fit every level that the game draws.",
)
def _grid(subject: _Subject) -> None:
    spec = subject.game.grid_spec()
    if spec is None:
        raise _NotApplicable("the game is text only: grid_spec() is None")
    shape, codes = spec
    for move in subject.moves:
        for state in (move.state, move.outcome.state):
            one, other = subject.game.grid(state), subject.game.grid(state)
            _need(one.dtype == np.int8 and one.shape == tuple(shape),
                  f"grid gives {one.dtype} {one.shape}, wanted int8 {tuple(shape)}")  # fmt: skip
            _need(one.min() >= 0 and one.max() < codes, f"grid has codes {one.min()} to {one.max()}, {codes} are said")
            _need(not np.shares_memory(one, other), "grid gives the same array twice")


@_rule(
    "step returns an Outcome with a finite float reward and the bools terminated, success and effective; "
    "success only where the game ends; effective exactly where the state changed, as state_key tells; a game that "
    "says deterministic needs no rng.",
    "success is the goal of the game, not a paying step. state_key must hold the whole state, and effective "
    "compare it. deterministic is an attribute or a property, False where any action draws.",
)
def _outcomes(subject: _Subject) -> None:
    sure = subject.game.deterministic
    _need(type(sure) is bool, f"deterministic is {_show(sure)}, not a bool")
    for move in subject.moves:
        _need(not (sure and move.lucky), f"{move}: the game says that it is deterministic and drew from rng")
        if sure:
            try:
                subject.game.step(move.state, move.action, None)  # type: ignore[arg-type]
            except Exception as error:
                raise _Fault(f"{move}: the game says that it is deterministic, and with rng None step raises "
                             + _raised(error)) from None  # fmt: skip
        outcome = move.outcome
        _need(isinstance(outcome, Outcome), f"step gives {_show(outcome)}")
        _need(type(outcome.reward) is float and math.isfinite(outcome.reward), f"{move}: the reward is "
              f"{outcome.reward!r} ({type(outcome.reward).__name__})")  # fmt: skip
        for flag in ("terminated", "success", "effective"):
            _need(type(getattr(outcome, flag)) is bool, f"{move}: {flag} is {getattr(outcome, flag)!r}, "
                  f"a {type(getattr(outcome, flag)).__name__}")  # fmt: skip
        _need(outcome.terminated or not outcome.success, f"{move}: success with reward {outcome.reward:g} and no end")
        keys = [subject.game.state_key(state) for state in (move.state, outcome.state)]
        _need(outcome.effective == (keys[0] != keys[1]), f"{move}: effective is {outcome.effective}, "
              f"the state keys are {keys[0]} and {keys[1]}")  # fmt: skip


@_rule(
    "No method of the game changes its arguments, and step with the same state, action and generator gives the "
    "same again, whatever was played in between.",
    "Make levels and states frozen dataclasses, tuples or strings, and build a new state in step.",
)
def _pure(subject: _Subject) -> None:
    game = subject.game

    def image(state: Any) -> str:
        return _text([game.dump_level(game.level_of(state)), game.dump_state(state), game.state_key(state),
                      game.describe(state, game.views[0])])  # fmt: skip

    def uses(state: Any, left: int) -> dict[str, Callable[[], Any]]:
        return {
            "legal_actions": lambda: game.legal_actions(state),
            "draw": lambda: game.draw(state),
            "grid": lambda: game.grid(state) if game.grid_spec() is not None else None,
            "oracle": lambda: game.oracle(state, left),
            "random_play": lambda: game.random_play(state, left),
            "initial": lambda: game.initial(game.level_of(state)),
            "instructions": lambda: game.instructions(game.level_of(state), game.views[0]),
            "parse_answer": lambda: game.parse_answer("x || y", state, max_actions=3),
        }

    first = []
    for i, move in enumerate(subject.moves):
        before = image(move.state)
        for action in game.legal_actions(move.state):
            outcome = game.step(move.state, action, np.random.default_rng(i))
            first.append(
                (i, action, _text([outcome.reward, outcome.terminated, outcome.success]), image(outcome.state))
            )
            _need(image(move.state) == before, f"step with action {action} changed the state it was given: "
                  + _contrast(before, image(move.state)))  # fmt: skip
        if i % 20 == 0:
            for name, use in uses(move.state, move.left).items():
                use()
                _need(image(move.state) == before, f"{name} changed the state it was given")
    for i, action, flags, after in reversed(first):
        outcome = game.step(subject.moves[i].state, action, np.random.default_rng(i))
        again = _text([outcome.reward, outcome.terminated, outcome.success]), image(outcome.state)
        _need(again == (flags, after), f"action {action} of the same state with the same generator, later: "
              f"{_contrast(flags + after, ''.join(again))}")  # fmt: skip


@_rule(
    "A level goes through dump_level, JSON and load_level and keeps its dump, key, split and start; data that "
    "is no level raises ValueError.",
    "dump_level gives lists, dicts, strings and numbers (no tuple keys, no numpy); load_level checks before it builds.",
)
def _levels(subject: _Subject) -> None:
    game = subject.game
    for seed in range(12):
        level = game.draw_level(seed, subject.env.split)
        dump = game.dump_level(level)
        again = game.load_level(json.loads(json.dumps(dump)))
        keeps = {"dump": (_text(dump), _text(game.dump_level(again))),
                 "level_key": (game.level_key(level), game.level_key(again)),
                 "split": (game.split_of(level), game.split_of(again)),
                 "first state": (game.state_key(game.initial(level)), game.state_key(game.initial(again)))}  # fmt: skip
        for name, (one, other) in keeps.items():
            _need(one == other, f"seed {seed}: the {name} is {_contrast(one, other)} after load_level")
        _need(
            isinstance(game.level_key(level), str) and game.level_key(level), f"level_key is {game.level_key(level)!r}"
        )
        same = game.draw_level(seed, subject.env.split)
        _need(_text(game.dump_level(same)) == _text(dump), f"draw_level({seed}) twice gives "
              + _contrast(_text(dump), _text(game.dump_level(same))))  # fmt: skip
    for data in (None, "no level", [], {}, [None], {"no": "level"}):
        try:
            game.load_level(data)
        except ValueError:
            continue
        except Exception as error:
            raise _Fault(f"load_level({data!r}) raises {_raised(error)}, not ValueError") from None


@_rule(
    "A state goes through dump_state, JSON and load_state and keeps its dump, key, text and legal actions.",
    "dump_state holds all that is not in the level, as JSON values; load_state turns lists back into tuples.",
)
def _states(subject: _Subject) -> None:
    game = subject.game
    for move in subject.moves:
        for state in (move.state, move.outcome.state):
            level, dump = game.level_of(state), game.dump_state(state)
            again = game.load_state(game.load_level(json.loads(json.dumps(game.dump_level(level)))),
                                    json.loads(json.dumps(dump)))  # fmt: skip
            keeps = {"dump": (_text(dump), _text(game.dump_state(again))),
                     "state_key": (game.state_key(state), game.state_key(again)),
                     "description": (game.describe(state, game.views[0]), game.describe(again, game.views[0])),
                     "legal_actions": (list(game.legal_actions(state)), list(game.legal_actions(again)))}  # fmt: skip
            for name, (one, other) in keeps.items():
                _need(one == other, f"{move}: the {name} is {_contrast(one, other)} after load_state")


@_rule(
    "Every split has levels; a level drawn for a split is of that split by split_of; no two splits share a "
    "level_key; and levels with one key are worth the same.",
    "level_key must depend on all that makes levels different tasks, and on nothing else; leave split_of as it "
    "is, or let levels(split) list exactly the levels for which split_of says so.",
)
def _splits(subject: _Subject) -> None:
    game = subject.game
    if game.fixed_level is not None:
        raise _NotApplicable("the game has one fixed level")
    seen: dict[str, tuple[str, Any]] = {}
    for split in SPLITS:
        for seed in range(40):
            level = game.draw_level(seed, split)
            key = game.level_key(level)
            said = game.split_of(level)
            _need(said == split, f"draw_level({seed}, {split!r}) gives a level of split {said!r}: "
                  + _show(game.dump_level(level)))  # fmt: skip
            known, twin = seen.setdefault(key, (split, level))
            _need(known == split, f"level key {key} is in {known} and in {split}: {_show(game.dump_level(level))}")
            values = [game.oracle(game.initial(x), subject.env.max_actions) for x in (twin, level)]
            if values[0] is not None and values[1] is not None:
                pairs = [(v.value, v.optimal_steps) for v in values if v is not None]
                right = math.isclose(pairs[0][0], pairs[1][0], abs_tol=1e-9) and pairs[0][1] == pairs[1][1]
                _need(right, f"two levels have the key {key} but the values and optimal steps {pairs[0]} and "
                      f"{pairs[1]}: {_show(game.dump_level(twin))} and {_show(game.dump_level(level))}")  # fmt: skip


# --- exact values ----------------------------------------------------------------------------------------------------


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


def _unbiased(errors: Sequence[float], what: str, *, rare: float = 0.0) -> None:
    """The mean error is 0 within the noise; rare events that no sample may hold are allowed for (Bernstein).

    Args:
        rare: how large the error of such an event may be, if larger than any that was seen.
    """
    n, mean = len(errors), math.fsum(errors) / len(errors)
    deviation = math.sqrt(math.fsum((e - mean) ** 2 for e in errors) / max(1, n - 1))
    limit = _DEVIATIONS * deviation / math.sqrt(n) + 15 * max(rare, *map(abs, errors)) / n
    _need(abs(mean) <= limit + 1e-9, f"{what}: on average {mean:+.4g} away, {limit:.4g} allowed, over {n} samples")


@_rule(
    "The oracle's value is the largest q of a legal action and optimal_actions are those that have it; all is 0 "
    "without actions left and in finished states; dead_end exactly where optimal_steps is -1; neither depends "
    "on the budget.",
    "Fill OracleValue from one table of q (value = max(q), optimal_actions = best_actions(q)) that is 0 where nothing "
    "is left to do.",
)
def _oracle_values(subject: _Subject) -> None:
    game = subject.game
    for state, left in subject.positions(60):
        v = subject.oracle(state, left)
        what = f"with {left} actions left, {_show(game.describe(state, game.views[0]))}"
        legal = game.legal_actions(state)
        _need(len(v.q) == game.n_actions and all(type(q) is float for q in v.q), f"{what}: q is {_show(v.q)}")
        kinds = (type(v.value), type(v.dead_end), type(v.optimal_steps), type(v.optimal_actions))
        _need(kinds == (float, bool, int, tuple), f"{what}: value, dead_end, optimal_steps, optimal_actions are "
              + ", ".join(kind.__name__ for kind in kinds))  # fmt: skip
        top = max(v.q[a] for a in legal)
        _need(math.isfinite(v.value) and abs(v.value - top) <= 1e-9, f"{what}: value {v.value!r}, largest q {top!r}")
        best = tuple(a for a in legal if v.q[a] >= top - 1e-9)
        _need(v.optimal_actions == best, f"{what}: optimal_actions {v.optimal_actions}, by q {best}")
        _need(v.dead_end == (v.optimal_steps == -1) and v.optimal_steps != 0 and v.optimal_steps >= -1,
              f"{what}: dead_end {v.dead_end} with optimal_steps {v.optimal_steps}")  # fmt: skip
        for other in (0, 1, subject.env.max_actions):
            w = subject.oracle(state, other)
            lasting = [(x.dead_end, x.optimal_steps) for x in (v, w)]
            _need(lasting[0] == lasting[1], f"{what}: (dead_end, optimal_steps) are {lasting[0]}, with {other} actions "
                  f"left {lasting[1]}")  # fmt: skip
            _need(other or (w.value, set(w.q)) == (0.0, {0.0}), f"with 0 actions left value {w.value}, q {w.q}")
    for move in subject.moves:
        if move.outcome.terminated:
            v, steps = subject.oracle(move.outcome.state, move.left - 1), 0 if move.outcome.success else -1
            _need((v.value, set(v.q), v.optimal_steps, v.dead_end) == (0.0, {0.0}, steps, steps < 0),
                  f"finished with success {move.outcome.success}: {_show(v)}")  # fmt: skip


def _draws(subject: _Subject, state: Any, action: int, rng: np.random.Generator) -> tuple[list[Outcome[Any]], bool]:
    """Outcomes of an action, and whether they are all that there are (no luck was used)."""
    outcomes = []
    for _ in range(_DRAWS):
        before = rng.bit_generator.state
        outcomes.append(subject.game.step(state, action, rng))
        if rng.bit_generator.state == before:
            return outcomes, True
    return outcomes, False


@_rule(
    "q of an action is its expected reward plus the expected value of where it leads with one action less: "
    "exactly where no luck is used, on average where it is.",
    "Recompute q by one step of the game from the state named; rewards of the last step and ends of the game "
    "count too.",
)
def _oracle_q(subject: _Subject) -> None:
    game, errors, rng = subject.game, dict[int, list[float]](), np.random.default_rng(3)
    for state, left in subject.positions(50):
        q = subject.oracle(state, left).q
        for action in game.legal_actions(state):
            outcomes, sure = _draws(subject, state, action, rng)
            gains = [o.reward + (0.0 if o.terminated else subject.oracle(o.state, left - 1).value) for o in outcomes]
            if sure:
                seen = _show(game.describe(state, game.views[0]))
                _need(_close(q[action], gains[0]), f"with {left} actions left, {seen}: q[{action}] is "
                      f"{q[action]!r}, a step and the value behind it give {gains[0]!r}")  # fmt: skip
            else:
                errors.setdefault(action, []).extend(gain - q[action] for gain in gains)
    for action, found in errors.items():
        _unbiased(found, f"q[{action}] against sampled steps and the values behind them")


@_rule(
    "optimal_steps is 1 for a step that succeeds, and else one more than that of the best state behind: exactly "
    "where no luck is used, never more where it is.",
    "Search breadth first from the state, over all that luck can do; -1 only if no luck and no number of "
    "actions helps.",
)
def _optimal_steps(subject: _Subject) -> None:
    game, rng = subject.game, np.random.default_rng(4)
    for state, left in subject.positions(50):
        steps = float(subject.oracle(state, left).optimal_steps)
        behind, certain = [math.inf], True
        for action in game.legal_actions(state):
            outcomes, sure = _draws(subject, state, action, rng)
            certain = certain and sure
            for outcome in outcomes:
                if outcome.terminated:
                    behind.append(1.0 if outcome.success else math.inf)
                else:
                    further = subject.oracle(outcome.state, left).optimal_steps
                    behind.append(1.0 + further if further >= 0 else math.inf)
        best = min(behind)
        said = steps if steps >= 0 else math.inf
        right = said == best if certain else said <= best
        _need(right, f"{_show(game.describe(state, game.views[0]))}: optimal_steps is {steps:g}, the best state behind "
              f"allows {best if math.isfinite(best) else -1:g}")  # fmt: skip


@_rule(
    "oracle_many equals oracle entry by entry: any levels together, one budget or one each, no state at all.",
    "Leave oracle_many out (the default calls oracle), or compare it with oracle on the state named.",
)
def _oracle_many(subject: _Subject) -> None:
    game = subject.game
    pairs = [*subject.positions(80), *((m.outcome.state, m.left - 1) for m in subject.moves if m.outcome.terminated)]
    states, lefts = [state for state, _ in pairs], [left for _, left in pairs]
    for budget in (np.array(lefts), lefts, subject.env.max_actions):
        many = game.oracle_many(states, budget)
        each = [
            subject.oracle(s, n) for s, n in zip(states, np.broadcast_to(budget, len(states)).tolist(), strict=True)
        ]
        if many is None:
            raise _Fault("oracle_many gives None where oracle gives values")
        shapes = [x.shape for x in (many.value, many.q, many.dead_end, many.optimal_steps)]
        n = len(states)
        _need(shapes == [(n,), (n, game.n_actions), (n,), (n,)], f"the arrays for {n} states have the shapes {shapes}")
        for i, v in enumerate(each):
            one = (v.value, *v.q, float(v.dead_end), float(v.optimal_steps))
            other = (many.value[i], *many.q[i], float(many.dead_end[i]), float(many.optimal_steps[i]))
            _need(all(map(_close, one, other)), f"entry {i}: oracle gives {_show(one)}, oracle_many "
                  + _show(tuple(map(float, other))))  # fmt: skip
    none = game.oracle_many([], 3)
    _need(
        none is not None and none.q.shape == (0, game.n_actions), "oracle_many of no states has no arrays of length 0"
    )


@_rule(
    "Following best_turn (in text) or an optimal action (discrete) earns what the oracle says at the start: "
    "exactly where no luck is used, on average where it is; success comes as the plan expects, and a plan is "
    "never worth more than the value.",
    "plan must count turns and actions as the environment does: min(actions_left, turns_left * max_actions) at most.",
)
def _optimal_play(subject: _Subject) -> None:
    game = subject.game
    returns, wins = dict[str, list[float]](), dict[str, list[float]]()
    envs = {action: subject.make(action=action, group_noise="independent") for action in ("text", "discrete")}
    for (action, env), seed in itertools.product(envs.items(), range(240 if subject.lucky else 10)):
        env.reset(seed=seed % 12, options={"dynamics_seed": seed})
        value = subject.oracle(env.state, min(env.actions_left, env.turns_left * env.max_actions_per_turn)).value
        start = env.best_turn()
        what, expected = f"{action} actions, seed {seed % 12}", start.expected if start is not None else None
        if expected is None:
            raise _Fault("the game has an oracle but plan gives None")
        _need(expected.reward <= value + 1e-9, f"{what}: the plan expects {expected.reward!r}, the value is {value!r}")
        _need(0.0 <= expected.success <= 1.0, f"{what}: the plan expects success {expected.success!r}")
        total, over, success, i = 0.0, False, False, 0
        while not over:
            plan, names, i = env.best_turn(), game.action_names(env.level), i + 1
            most = 1 if action == "discrete" else env.max_actions_per_turn
            _need(
                isinstance(plan, Plan) and 1 <= len(plan.actions) <= most,
                f"{what}, step {i}: the plan is {_show(plan)}",
            )
            assert plan is not None
            turn: Any = _THINK + _answer(*(names[a] for a in plan.actions))
            if action == "discrete":
                turn = (
                    subject.oracle(env.state, env.actions_left).optimal_actions[0] if subject.lucky else plan.actions[0]
                )
            _, reward, terminated, truncated, info = env.step(turn)
            total, over, success = total + reward, terminated or truncated, info["success"]
        promised = value if action == "discrete" else expected.reward
        if subject.lucky:
            returns.setdefault(action, []).append(total - promised)
            if action == "text":
                wins.setdefault(action, []).append(success - expected.success)
            continue
        _need(
            _close(promised, value), f"{what}: the plan expects {promised!r}, the value is {value!r} without any luck"
        )
        _need(_close(total, promised), f"{what}: optimal play earned {total!r}, {promised!r} was promised")
        _need(float(success) == expected.success, f"{what}: success {success}, the plan expects {expected.success}")
    for action, errors in returns.items():
        _unbiased(errors, f"return of optimal play, {action} actions, against what was promised")
    for action, errors in wins.items():
        _unbiased(errors, f"success of optimal play, {action} actions, against what the plan expects", rare=1.0)


@_rule(
    "random_play is the mean return and success of uniformly random legal actions, and of a finished state it "
    "is 0 and how the game ended.",
    "Count the actions as they come: a finished game stops, a wasted action counts; or leave random_play out.",
)
def _random_play(subject: _Subject) -> None:
    game, budget = subject.game, subject.env.max_actions
    for move in subject.moves:
        if move.outcome.terminated:
            done = game.random_play(move.outcome.state, move.left)
            right = done is None or (done.reward, done.success) == (0.0, float(move.outcome.success))
            _need(right, f"of a game finished with success {move.outcome.success} random_play gives {_show(done)}")
    errors: tuple[list[float], list[float]] = ([], [])
    rng, best = random.Random(2), 0.0
    for seed in range(8):
        start = game.initial(game.draw_level(seed, subject.env.split))
        expected = game.random_play(start, budget)
        if expected is None:
            raise _NotApplicable("the game does not say what random play is worth")
        values = game.oracle(start, budget)
        best = max(best, abs(values.value) if values is not None else 0.0)
        for luck in (np.random.default_rng([seed, i]) for i in range(60)):
            state, total, success = start, 0.0, False
            for _ in range(budget):
                outcome = game.step(state, rng.choice(game.legal_actions(state)), luck)
                state, total, success = outcome.state, total + outcome.reward, outcome.success
                if outcome.terminated:
                    break
            errors[0].append(total - expected.reward)
            errors[1].append(success - expected.success)
    for what, found, most in zip(("return", "success"), errors, (best, 1.0), strict=True):
        _unbiased(found, f"{what} of random play against random_play", rare=most)


# --- command line ----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m ragen_envs.testing ID [ID ...] [--kwargs JSON] [--rule NAME ...]``.

    Returns:
        0 if every id keeps every rule, 1 if a rule is broken, 2 for wrong usage.
    """
    parser = argparse.ArgumentParser(prog="python -m ragen_envs.testing", description="Check text environments.")
    parser.add_argument("ids", nargs="+", metavar="ID", help="as for gymnasium.make: mylab.maze:mylab/Maze-v0")
    parser.add_argument("--kwargs", default="{}", metavar="JSON", help="arguments of the environments, a JSON object")
    parser.add_argument("--rule", action="append", metavar="NAME", help=f"only this rule: {', '.join(rule_names())}")
    given = parser.parse_args(arguments)
    try:
        kwargs = json.loads(given.kwargs)
        if not isinstance(kwargs, dict):
            raise ValueError("--kwargs is not a JSON object")
        subjects = [_Subject(id, kwargs) for id in given.ids]
        broken = 0
        for subject, id in zip(subjects, given.ids, strict=True):
            try:
                check_text_env(id, kwargs=kwargs, rules=given.rule)
            except ConformanceError as error:
                broken += 1
                print(f"{subject.name} breaks {', '.join(error.report.failed)}")
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(f"{len(subjects) - broken} of {len(subjects)} environments keep all rules")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
