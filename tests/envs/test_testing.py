"""The conformance kit: every rule catches what it is for, in mutants of a small game that keeps them all."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import ragen_envs
from ragen_envs import Expectation, Game, OracleValue, Outcome, Plan, TextEnv
from ragen_envs.game import OracleValues, best_actions
from ragen_envs.testing import ConformanceError, check_text_env, main, rule_names

# --- a small game that keeps every rule, and mutants of it that break one ---------------------------------------------


@dataclass(frozen=True)
class Path:
    pit: int
    goal: int
    start: int


@dataclass(frozen=True)
class Place:
    level: Path
    at: int


class Walk(Game[Path, Place]):
    """Walk right to the goal, not left into the pit; with chance ``slip`` a step does nothing."""

    name = "walk"

    def __init__(self, *, slip: float = 0.3) -> None:
        self.slip = slip

    def sample_level(self, rng: np.random.Generator) -> Path:
        pit, length = int(rng.integers(20)), int(rng.integers(3, 9))
        return Path(pit, pit + length, pit + int(rng.integers(1, length)))

    def dump_level(self, level: Path) -> Any:
        return [level.pit, level.goal, level.start]

    def load_level(self, data: Any) -> Path:
        if not isinstance(data, list) or len(data) != 3 or not all(type(x) is int for x in data):
            raise ValueError("a level is [pit, goal, start]")
        return Path(*data)

    def action_names(self, level: Path) -> tuple[str, ...]:
        return ("Left", "Right")

    @property
    def n_actions(self) -> int:
        return 2

    def initial(self, level: Path) -> Place:
        return Place(level, level.start)

    def step(self, state: Place, action: int, rng: np.random.Generator) -> Outcome[Place]:
        moves = not self.slip or rng.random() >= self.slip
        at = state.at + (1 if action else -1) * moves
        won = at == state.level.goal
        return Outcome(dataclasses.replace(state, at=at), float(won), won or at == state.level.pit, won, moves)

    def dump_state(self, state: Place) -> Any:
        return state.at

    def load_state(self, level: Path, data: Any) -> Place:
        return Place(level, int(data))

    def instructions(self, level: Path, view: str) -> str:
        return "Walk Left or Right to the goal, not into the pit."

    def describe(self, state: Place, view: str) -> str:
        return f"at {state.at}\ngoal {state.level.goal}\npit {state.level.pit}"

    def grid(self, state: Place) -> np.ndarray:
        return np.array([state.at, state.level.goal], np.int8)

    def grid_spec(self) -> tuple[tuple[int, ...], int] | None:
        return (2,), 30

    def oracle(self, state: Place, actions_left: int) -> OracleValue:
        at, goal = self.place(state)
        q = _walk(at, goal, self.slip, actions_left)
        return OracleValue(max(q), q, best_actions(q), at == 0, goal - at if at else -1)

    def place(self, state: Place) -> tuple[int, int]:
        """Cells from the pit: of the player and of the goal."""
        return state.at - state.level.pit, state.level.goal - state.level.pit

    def plan(self, state: Place, *, turns_left: int, actions_left: int, max_actions: int) -> Plan:
        chance = self.oracle(state, min(actions_left, turns_left * max_actions)).value
        return Plan((1,) * min(max_actions, actions_left), Expectation(chance, chance))

    def random_play(self, state: Place, actions_left: int) -> Expectation:
        at, goal = self.place(state)
        chance = _blind(at, goal, self.slip, actions_left)
        return Expectation(0.0 if at in (0, goal) else chance, chance)


@cache
def _walk(at: int, goal: int, slip: float, left: int) -> tuple[float, float]:
    def after(to: int) -> float:
        return 1.0 if to == goal else 0.0 if to == 0 else max(_walk(to, goal, slip, left - 1))

    if at in (0, goal) or left == 0:
        return (0.0, 0.0)
    stay = slip * after(at) if slip else 0.0
    return (stay + (1 - slip) * after(at - 1), stay + (1 - slip) * after(at + 1))


@cache
def _blind(at: int, goal: int, slip: float, left: int) -> float:
    if at in (0, goal) or left == 0:
        return float(at == goal)
    sides = _blind(at - 1, goal, slip, left - 1) + _blind(at + 1, goal, slip, left - 1)
    return slip * _blind(at, goal, slip, left - 1) + (1 - slip) / 2 * sides


BUDGET: dict[str, Any] = {"max_turns": 4, "max_actions_per_turn": 3, "max_actions": 9}


def changed(outcome: Outcome[Place], **fields: Any) -> Outcome[Any]:
    names = ("state", "reward", "terminated", "success", "effective")
    return Outcome(**({name: getattr(outcome, name) for name in names} | fields))


class CountsCalls(Walk):
    def sample_level(self, rng: np.random.Generator) -> Path:
        self.calls = getattr(self, "calls", 0) + 1
        return Path(3, 20, 10 + self.calls % 7)


class SharedBoard(Walk):
    def initial(self, level: Path) -> Place:
        self.last = level
        return super().initial(level)

    def describe(self, state: Place, view: str) -> str:
        return f"at {state.at}\ngoal {self.last.goal}"


class WorkSpace(Walk):
    def step(self, state: Place, action: int, rng: np.random.Generator) -> Outcome[Place]:
        self.work = state
        time.sleep(1e-4)
        return super().step(self.work, action, rng)


class HashOrder(Walk):
    def sample_level(self, rng: np.random.Generator) -> Path:
        path = super().sample_level(rng)
        return dataclasses.replace(path, start=path.pit + 1 + hash(f"start {path.start}") % (path.goal - path.pit - 1))


class GlobalRandom(Walk):
    def step(self, state: Place, action: int, rng: np.random.Generator) -> Outcome[Place]:
        random.random()
        return super().step(state, action, rng)


class GlobalNumpy(Walk):
    def step(self, state: Place, action: int, rng: np.random.Generator) -> Outcome[Place]:
        np.random.random()  # noqa: NPY002
        return super().step(state, action, rng)


class OneLevelLoads(Walk):
    def load_level(self, data: Any) -> Path:
        super().load_level(data)
        return Path(2, 9, 5)


class TypeErrors(Walk):
    def load_level(self, data: Any) -> Path:
        return Path(data[0], data[1], data[2])


class Tired(Walk):
    """The state holds what ``dump_state`` does not."""

    def step(self, state: Place, action: int, rng: np.random.Generator) -> Outcome[Place]:
        outcome = super().step(state, action, rng)
        return changed(outcome, state=TiredPlace(state.level, outcome.state.at, getattr(state, "n", 0) + 1))

    def describe(self, state: Place, view: str) -> str:
        return super().describe(state, view) + f"\nsteps {getattr(state, 'n', 0)}"


@dataclass(frozen=True)
class TiredPlace(Place):
    n: int = 0


class Locked(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class BigCodes(Walk):
    def grid_spec(self) -> tuple[tuple[int, ...], int]:
        return (2,), 9


class OldGrid(Walk):
    board = np.zeros(2, np.int8)

    def grid(self, state: Place) -> np.ndarray:
        self.board[:] = super().grid(state)
        return self.board


class EvalAnswer(Walk):
    def parse_answer(self, answer: str, state: Place, *, max_actions: int) -> Any:
        with contextlib.suppress(Exception):
            eval(answer)
        return super().parse_answer(answer, state, max_actions=max_actions)


class CrashAnswer(Walk):
    def parse_answer(self, answer: str, state: Place, *, max_actions: int) -> Any:
        answer.encode()
        return super().parse_answer(answer, state, max_actions=max_actions)


class NewStatus(Walk):
    def parse_answer(self, answer: str, state: Place, *, max_actions: int) -> Any:
        actions, status, dropped = super().parse_answer(answer, state, max_actions=max_actions)
        return actions, "bad" if status == "unknown_action" else status, dropped


class CaseTwins(Walk):
    def action_names(self, level: Path) -> tuple[str, ...]:
        return ("go", "Go")


class ThreeActions(Walk):
    n_actions = 3  # type: ignore[assignment]


class DeafToCapitals(Walk):
    def parse_answer(self, answer: str, state: Place, *, max_actions: int) -> Any:
        read = {"Left": (0,), "Right": (1,)}.get(answer.strip())
        return (read, "ok", 0) if read else ((), "unknown_action", 0)


class WideWords(Walk):
    def describe(self, state: Place, view: str) -> str:
        return f"at  {state.at}"


class NoWords(Walk):
    def instructions(self, level: Path, view: str) -> str:
        return ""


class OtherWords(Walk):
    def sight(self, state: Place, view: str) -> tuple[str, tuple[int, ...], str]:
        key, legal, _ = super().sight(state, view)
        return key, legal, "somewhere"


class FloatPicture(Walk):
    def draw(self, state: Place) -> np.ndarray:
        return np.zeros((4, 4, 3))


class Sloppy(WideWords, FloatPicture):
    pass


class PaidIsWon(Walk):
    def step(self, state: Place, action: int, rng: np.random.Generator) -> Outcome[Place]:
        outcome = super().step(state, action, rng)
        return changed(outcome, reward=0.1 * action, success=action > 0)


class NumpyFlag(Walk):
    def step(self, state: Place, action: int, rng: np.random.Generator) -> Outcome[Place]:
        outcome = super().step(state, action, rng)
        return changed(outcome, terminated=np.bool_(outcome.terminated))


class SaysSure(Walk):
    deterministic = True


class SaysSureByMethod(Walk):
    def deterministic(self) -> bool:  # type: ignore[override]
        return False


class WantsRngAllTheSame(Walk):
    deterministic = True

    def step(self, state: Place, action: int, rng: np.random.Generator) -> Outcome[Place]:
        assert isinstance(rng, np.random.Generator), "no generator"
        return super().step(state, action, np.random.default_rng(0))


class AlwaysEffective(Walk):
    def step(self, state: Place, action: int, rng: np.random.Generator) -> Outcome[Place]:
        return changed(super().step(state, action, rng), effective=True)


class CoarseStateKey(Walk):
    def state_key(self, state: Place) -> str:
        return str(state.level)


@dataclass
class Mutable:
    level: Path
    at: int


class InPlace(Walk):
    def initial(self, level: Path) -> Any:
        return Mutable(level, level.start)

    def step(self, state: Any, action: int, rng: np.random.Generator) -> Any:
        outcome = super().step(Place(state.level, state.at), action, rng)
        state.at = outcome.state.at
        return changed(outcome, state=state)


class Remembers(Walk):
    steps = 0

    def step(self, state: Place, action: int, rng: np.random.Generator) -> Outcome[Place]:
        self.steps += 1
        return changed(super().step(state, action, rng), reward=float(self.steps))


class ForgetsPlace(Walk):
    def load_state(self, level: Path, data: Any) -> Place:
        return self.initial(level)


class LeakingList(Walk):
    def levels(self, split: str) -> list[Path]:
        return [Path(13, 20, i) for i in range(14, 20)]


class CoarseLevelKey(Walk):
    def level_key(self, level: Path) -> str:
        return str(level.goal - level.pit)


class SplitBySeed(Walk):
    def draw_level(self, seed: int, split: str) -> Path:
        return self.sample_level(np.random.default_rng(seed))


class AlwaysHope(Walk):
    def oracle(self, state: Place, actions_left: int) -> OracleValue:
        return dataclasses.replace(super().oracle(state, actions_left), dead_end=False)


class OneOptimum(Walk):
    def oracle(self, state: Place, actions_left: int) -> OracleValue:
        return dataclasses.replace(super().oracle(state, actions_left), optimal_actions=(1,))


class KnowsShortGamesOnly(Walk):
    def oracle(self, state: Place, actions_left: int) -> OracleValue | None:  # type: ignore[override]
        return super().oracle(state, actions_left) if actions_left < 3 else None


class WrongValue(Walk):
    def oracle(self, state: Place, actions_left: int) -> OracleValue:
        found = super().oracle(state, actions_left)
        return dataclasses.replace(found, value=found.value + 0.01)


class WrongQ(Walk):
    def oracle(self, state: Place, actions_left: int) -> OracleValue:
        found = super().oracle(state, actions_left)
        q = (found.q[0] * 0.7, found.q[1])
        return dataclasses.replace(found, q=q, optimal_actions=best_actions(q))


class FarGoal(Walk):
    def oracle(self, state: Place, actions_left: int) -> OracleValue:
        found = super().oracle(state, actions_left)
        steps = found.optimal_steps + (found.optimal_steps > 0)
        return dataclasses.replace(found, optimal_steps=steps)


class GivesUp(Walk):
    """Sees a dead end where one action too many is needed."""

    def oracle(self, state: Place, actions_left: int) -> OracleValue:
        found = super().oracle(state, actions_left)
        lost = found.optimal_steps > 5 or found.dead_end
        return dataclasses.replace(found, dead_end=lost, optimal_steps=-1 if lost else found.optimal_steps)


class OneBudget(Walk):
    def oracle_many(self, states: Any, actions_left: Any) -> OracleValues | None:
        return super().oracle_many(states, int(np.max(actions_left, initial=0)))


class HighHopes(Walk):
    def plan(self, state: Place, **budgets: int) -> Plan:
        found = super().plan(state, **budgets)
        return Plan(found.actions, Expectation(found.expected.reward * 0.7, found.expected.success))


class BadPlan(Walk):
    def plan(self, state: Place, **budgets: int) -> Plan:
        found = super().plan(state, **budgets)
        return Plan((0, *found.actions[1:]), found.expected)


class LuckyBeggar(Walk):
    def random_play(self, state: Place, actions_left: int) -> Expectation:
        found = super().random_play(state, actions_left)
        return Expectation(min(1.0, 1.5 * found.reward), found.success)


# Mutants of the environment.


class PlainText(TextEnv):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.observation_space = spaces.Text(100_000)


class OtherSeeds(TextEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed if seed is not None else time.perf_counter_ns(), options=options)


class ForgetsLuck(TextEnv):
    def restore(self, snapshot: dict[str, Any]) -> Any:
        returned = super().restore(snapshot)
        self._rng = np.random.default_rng(0)
        return returned


class NumpyFlags(TextEnv):
    def step(self, action: Any, **kwargs: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action, **kwargs)
        return observation, reward, np.bool_(terminated), truncated, info


class Clocked(TextEnv):
    def step(self, action: Any, **kwargs: Any) -> Any:
        *rest, info = super().step(action, **kwargs)
        return *rest, {**info, "time": time.perf_counter()}


class IntScore(TextEnv):
    def step(self, action: Any, **kwargs: Any) -> Any:
        *rest, info = super().step(action, **kwargs)
        return *rest, {**info, "score": int(info["score"])}


class LostKey(TextEnv):
    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        del info["action_status"]
        return observation, info


class SharedList(TextEnv):
    names: tuple[list[str], ...] = ()

    def step(self, action: Any, **kwargs: Any) -> Any:
        *rest, info = super().step(action, **kwargs)
        if not self.names:
            self.names = (["Left", "Right"],)
        return *rest, {**info, "valid_actions": self.names[0]}


class SuccessFromReward(TextEnv):
    def step(self, action: Any, **kwargs: Any) -> Any:
        *rest, info = super().step(action, **kwargs)
        return *rest, {**info, "success": rest[1] >= 0.0}


class EndsLate(TextEnv):
    def step(self, action: Any, **kwargs: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action, **kwargs)
        return observation, reward, terminated, truncated and info["turn"] > self.max_turns, info


class DoublePenalty(TextEnv):
    def step(self, action: Any, **kwargs: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action, **kwargs)
        late = not info["format_ok"] and info["n_invalid"] > 1
        return observation, reward + self.format_penalty * late, terminated, truncated, info


class Backwards(TextEnv):
    def step(self, action: Any, **kwargs: Any) -> Any:
        return super().step(1 - action if self.action_mode == "discrete" else action, **kwargs)


class PaysMore(SyncVectorEnv):
    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, rewards + 1.0, *rest


def vector(cls: type[SyncVectorEnv], num_envs: int, autoreset_mode: Any, **kwargs: Any) -> SyncVectorEnv:
    return cls([lambda: TextEnv(**kwargs)] * num_envs, autoreset_mode=autoreset_mode)


def good_vector(**kwargs: Any) -> SyncVectorEnv:
    return vector(SyncVectorEnv, **kwargs)


def bad_vector(**kwargs: Any) -> SyncVectorEnv:
    return vector(PaysMore, **kwargs)


ragen_envs.register("test/Walk-v0", "test_testing:Walk", **BUDGET)
ragen_envs.register("test/HashOrder-v0", "test_testing:HashOrder", **BUDGET)
for _name, _entry, _more in (
    ("PlainText", "test_testing:PlainText", {}),
    ("NoJson", lambda **kwargs: TextEnv(Walk()), {}),
    ("GoodVector", "ragen_envs.text_env:TextEnv", {"vector_entry_point": "test_testing:good_vector"}),
    ("BadVector", "ragen_envs.text_env:TextEnv", {"vector_entry_point": "test_testing:bad_vector"}),
):
    if f"test/{_name}-v0" not in gymnasium.registry:
        gymnasium.register(f"test/{_name}-v0", _entry, kwargs={"game": "test_testing:Walk", **BUDGET}, **_more)


def game(cls: type[Game[Any, Any]], **kwargs: Any) -> Callable[[], TextEnv]:
    return lambda: TextEnv(cls(**kwargs), **BUDGET)


def env(cls: type[TextEnv]) -> Callable[[], TextEnv]:
    return lambda: cls(Walk(), **BUDGET)


SURE = {"slip": 0.0}

MUTANTS: list[tuple[str, Any, str]] = [
    # rule that must notice, what is checked, what its evidence must say
    ("gymnasium", env(PlainText), "observation"),
    ("gymnasium", env(Clocked), "Deterministic step info"),
    ("registration", "test/NoJson-v0", "does not become JSON"),
    ("same_seed", game(CountsCalls), r"seed 0, the same environment twice: step 0 \(action 'reset'\): observation is"),
    ("same_seed", game(Remembers), r"step \d+ .*: (observation|reward|info)"),
    ("unseeded_resets", env(OtherSeeds), "seed 3, then four resets without a seed"),
    ("neighbours", game(SharedBoard), "a neighbour changed the snapshot|alone and between the steps of neighbours"),
    ("threads", game(WorkSpace), r"seed \d+, 1 thread against 16: step \d"),
    ("processes", "test/HashOrder-v0", r"split train, seed \d, here against .*PYTHONHASHSEED=1: step 0"),
    ("global_luck", game(GlobalRandom), "reset or step changed random$"),
    ("global_luck", game(GlobalNumpy), r"reset or step changed numpy\.random$"),
    ("options", game(OneLevelLoads), r"seed 0: options\['level'\] = \[\d+, \d+, \d+\] plays"),
    ("snapshots", game(Tired), r"restored in the same environment, its future: .*steps \d. against"),
    ("snapshots", env(ForgetsLuck), "differs|its future"),
    ("copies", game(Locked), "TypeError: cannot pickle '_thread.lock'"),
    ("vector", "test/BadVector-v0", r"text actions, NextStep, .* step 1, environment 0: .* reward is"),
    ("async_vector", "test/PlainText-v0", "AsyncVectorEnv took text into shared memory"),
    ("spaces", game(BigCodes), r"observation='grid', .* is not in Box"),
    ("info", env(NumpyFlags), "reward and flags are float, bool_?, bool|reward and flags are float, bool_, bool"),
    ("info", env(IntScore), r"seed 0, step 1: score is int, not float"),
    ("info", env(LostKey), r"seed 0, step 0: the keys \['action_status'\] are too many or missing"),
    ("fresh_objects", env(SharedList), r"every returned object changed: step \d .*valid_actions"),
    ("ends", env(SuccessFromReward), r"info\['success'\] is False against True"),
    ("ends", env(EndsLate), r"seed 0, step 4, .*: truncated is True against False"),
    ("ends", env(DoublePenalty), r"reward is -0.1 against -0.2"),
    ("hostile_text", game(EvalAnswer), r"parse_answer\(.*\) made a file: something ran the text"),
    ("hostile_text", game(CrashAnswer), "UnicodeEncodeError"),
    ("hostile_text", game(NewStatus), r"parse_answer\(.*\) returns \(\(\), 'bad', 0\)"),
    ("discrete", env(Backwards), r"text against discrete: step 0"),
    ("actions", game(CaseTwins), "differ in case only|action names must differ"),
    ("actions", game(ThreeActions), "n_actions is 3, the names are"),
    ("actions", game(DeafToCapitals), r"parse_answer\('LEFT'\) gives .* wanted \(\(0,\), 'ok', 0\)"),
    ("words", game(WideWords), r"has the line \['at  \d+'\]"),
    ("words", game(OtherWords), r"sight\(state, 'grid'\) gives .*somewhere"),
    ("words", game(NoWords), r"instructions\(level, 'grid'\) gives ''"),
    ("pictures", game(FloatPicture), r"draw gives float64 \(4, 4, 3\)"),
    ("grid", game(BigCodes), "grid has codes .* 9 are said"),
    ("grid", game(OldGrid), "the same array twice"),
    ("outcomes", game(PaidIsWon), "success with reward 0.1 and no end"),
    ("outcomes", game(NumpyFlag), r"terminated is np\.False_, a bool"),
    ("outcomes", game(SaysSure), "the game says that it is deterministic and drew from rng"),
    ("outcomes", game(SaysSureByMethod), "deterministic is .*method.*, not a bool"),
    ("outcomes", game(WantsRngAllTheSame), "with rng None step raises AssertionError: no generator"),
    ("outcomes", game(AlwaysEffective), "effective is True, the state keys are"),
    ("outcomes", game(CoarseStateKey), "effective is True, the state keys are"),
    ("pure", game(InPlace), "step with action 0 changed the state it was given"),
    ("pure", game(Remembers), "of the same state with the same generator, later"),
    ("levels", game(OneLevelLoads), "seed 0: the dump is"),
    ("levels", game(TypeErrors), r"load_level\(None\) raises TypeError: .*, not ValueError"),
    ("states", game(ForgetsPlace), "the dump is .* after load_state"),
    ("splits", game(LeakingList), r"draw_level\(\d+, '\w+'\) gives a level of split"),
    ("splits", game(SplitBySeed), r"draw_level\(\d+, '\w+'\) gives a level of split"),
    ("splits", game(CoarseLevelKey), r"two levels have the key \d+ but the values and optimal steps"),
    ("oracle_values", game(AlwaysHope), "finished with success False|dead_end False with optimal_steps -1"),
    ("oracle_values", game(OneOptimum), r"optimal_actions \(1,\), by q \(0, 1\)"),
    ("oracle_values", game(KnowsShortGamesOnly), "oracle gives None with 9 actions left, and values elsewhere"),
    ("oracle_values", game(WrongValue), "value 0.*, largest q"),
    ("oracle_q", game(WrongQ), r"q\[0\] against sampled steps .* on average \+0\.\d+ away"),
    ("oracle_q", game(WrongQ, **SURE), r"q\[0\] is 0.7, a step and the value behind it give 1.0"),
    ("optimal_steps", game(FarGoal, **SURE), r"optimal_steps is \d+, the best state behind allows \d+"),
    ("optimal_steps", game(GivesUp), r"optimal_steps is -1, the best state behind allows 6"),
    ("oracle_many", game(OneBudget), r"entry \d+: oracle gives .*, oracle_many"),
    ("optimal_play", game(HighHopes), "return of optimal play, text actions, against what was promised: on average"),
    ("optimal_play", game(HighHopes, **SURE), "the plan expects 0.7, the value is 1.0 without any luck"),
    ("optimal_play", game(BadPlan, **SURE), "optimal play earned 0.0, 1.0 was promised"),
    ("random_play", game(LuckyBeggar), "return of random play against random_play: on average -"),
]  # fmt: skip


@pytest.mark.parametrize("target", ["test/Walk-v0", game(Walk, **SURE)], ids=["luck", "sure"])
def test_the_game_of_which_the_mutants_are_made_keeps_every_rule(
    target: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    report = check_text_env(target)
    assert report.failed == ()
    assert tuple(r.rule for r in report.results) == rule_names()
    said = {r.rule: r.found for r in report.results if r.status == "not applicable"}
    need_an_id = {"registration", "processes", "async_vector"}
    assert set(said) - {"vector"} == (set() if isinstance(target, str) else need_an_id)
    assert all(said.values())
    assert capsys.readouterr().out.count("passed") == len(rule_names()) - len(said)


def test_a_vector_that_equals_the_single_environment_passes() -> None:
    check_text_env("test/GoodVector-v0", rules=["vector"])


@pytest.mark.parametrize(
    ("rule", "target", "says"), MUTANTS, ids=lambda value: value if isinstance(value, str) else None
)
def test_a_rule_catches_what_it_is_for(rule: str, target: Any, says: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_text_env(target, rules=[rule])
    (result,) = caught.value.report.results
    assert re.search(says, result.found, re.DOTALL), result.found
    for part in (rule, result.demands, result.mend):
        assert part in str(caught.value)


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, _, _ in MUTANTS} == set(rule_names())


def test_all_rules_are_tried_and_all_faults_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConformanceError, match="breaks 2 of 3 rules") as caught:
        check_text_env(game(Sloppy), rules=["words", "pictures", "same_seed"])
    assert caught.value.report.failed == ("words", "pictures")
    assert "[ 3/3]" in capsys.readouterr().out


def test_what_can_be_checked() -> None:
    wrapped = gymnasium.make("test/Walk-v0", max_turns=6)
    wrapped.reset(seed=3)
    kept = json.dumps(wrapped.unwrapped.snapshot())  # type: ignore[attr-defined]
    for target in (wrapped, wrapped.unwrapped, lambda: gymnasium.make("test/Walk-v0"), "test_testing:test/Walk-v0"):
        assert check_text_env(target, rules=["same_seed", "neighbours"]).name == "test/Walk-v0"
    assert json.dumps(wrapped.unwrapped.snapshot()) == kept, "an environment that is given is left as it is"  # type: ignore[attr-defined]
    assert check_text_env("test/Walk-v0", kwargs={"slip": 0.0}, rules=["optimal_play"]).failed == ()
    for wrong in (gymnasium.make("CartPole-v1"), lambda: 3, 3):
        with pytest.raises((TypeError, AttributeError)):
            check_text_env(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="kwargs go with an id"):
        check_text_env(wrapped, kwargs={"slip": 0.0})
    with pytest.raises(ValueError, match=r"unknown rules \['luck'\]; known are gymnasium, "):
        check_text_env("test/Walk-v0", rules=["luck"])


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["test/Walk-v0", "test/GoodVector-v0", "--kwargs", '{"slip": 0}', "--rule", "words"]) == 0
    assert "2 of 2 environments keep all rules" in capsys.readouterr().out
    assert main(["test/Walk-v0", "test/BadVector-v0", "--rule", "vector"]) == 1
    out = capsys.readouterr().out
    assert "test/BadVector-v0 breaks vector" in out
    assert "1 of 2 environments keep all rules" in out
    for wrong in (["no/Such-v0"], ["test/Walk-v0", "--kwargs", "[]"], ["test/Walk-v0", "--kwargs", "{"],
                  ["test/Walk-v0", "--kwargs", '{"size": 3}'], ["test/Walk-v0", "--rule", "luck"],
                  ["no_such_module:x/Y-v0"]):  # fmt: skip
        assert main(wrong) == 2
        assert "python -m ragen_envs.testing: " in capsys.readouterr().err


# --- what a game need not write --------------------------------------------------------------------------------------


class WordsOnly(Walk):
    grid_spec = Game.grid_spec  # type: ignore[assignment]
    grid = Game.grid


def test_the_defaults_of_a_game() -> None:
    game = WordsOnly()
    levels = [Path(0, 5, 2), Path(0, 5, 3)]
    one, other = (Place(level, 3) for level in levels)
    assert game.level_of(one) is levels[0]
    assert len({*map(game.level_key, levels), game.state_key(one), game.state_key(other)}) == 4
    assert game.state_key(one) == game.state_key(Place(Path(0, 5, 2), 3))
    picture = game.draw(one)  # at 3 / goal 5 / pit 0
    assert (picture.shape, picture.dtype) == ((3 * 12, 6 * 12, 3), np.uint8)
    assert (picture[:12, 24:36] == 255).all(), "a blank"
    assert (picture[:12, 12:24] == picture[24:36, 24:36]).all(), "two t"
    assert (picture[:12, 12:24] == picture[0, 12]).all()
    assert (picture[0, 0] != picture[0, 12]).any(), "a and t"


def test_a_game_without_grid_is_played_in_words() -> None:
    with pytest.raises(ValueError, match="walk is text only: observation must be 'text' or 'messages'"):
        TextEnv(WordsOnly(), observation="grid")
    report = check_text_env(
        lambda: TextEnv(WordsOnly(), **BUDGET), rules=["spaces", "grid", "pictures", "fresh_objects"]
    )
    assert [r.rule for r in report.results if r.status == "not applicable"] == ["grid"]


class Gate(Walk):
    """Without exact values, and Left is shut in every other cell."""

    def legal_actions(self, state: Place) -> tuple[int, ...]:
        return (1,) if state.at % 2 else (0, 1)

    oracle = Game.oracle
    plan = Game.plan
    random_play = Game.random_play


def test_a_game_without_oracle_and_with_illegal_actions_keeps_every_rule() -> None:
    report = check_text_env(lambda: TextEnv(Gate(), **BUDGET))
    missing = {r.rule for r in report.results if r.found == "the game has no oracle"}
    assert missing == {"oracle_values", "oracle_q", "optimal_steps", "oracle_many", "optimal_play"}


def test_a_sibling_may_differ() -> None:
    env = gymnasium.make("test/Walk-v0").unwrapped
    assert isinstance(env, TextEnv)
    other = env.sibling(max_turns=7, action="discrete")
    assert (other.max_turns, other.action_mode, other.max_actions) == (7, "discrete", env.max_actions)
    assert other.game is env.game
    assert other.spec is None, "the spec says something else"
    assert env.sibling().spec is env.spec
    with pytest.raises(TypeError):
        env.sibling(slip=0.0)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"action": "discrete", "observation": "grid", "max_turns": 1},
        {"observation": "messages", "prompt": "compact", "reasoning": "off", "group_noise": "common", "split": "test",
         "oracle": True, "format_penalty": 0},
        {"max_turns": 1, "max_actions_per_turn": 9},
        {"max_actions": 1},
    ],
    ids=["discrete", "compact", "one-turn", "one-action"],
)  # fmt: skip
def test_arguments_of_the_environment_do_not_matter(kwargs: dict[str, Any]) -> None:
    rules = [rule for rule in rule_names() if rule not in ("processes", "async_vector")]
    assert check_text_env("test/Walk-v0", kwargs=kwargs, rules=rules).failed == ()


def test_a_success_too_rare_to_be_seen_is_no_error() -> None:
    """Random play solves this game once in 400 times: 480 samples may well hold no success."""
    kwargs = {"height": 8, "width": 8, "boxes": 2}
    assert not check_text_env("ragen/Sokoban-v0", kwargs=kwargs, rules=["random_play"]).failed
