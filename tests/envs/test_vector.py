"""``TextVectorEnv`` against ``SyncVectorEnv`` of ``TextEnv``: the same numbers, texts and infos, whatever is played."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import random
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

import ragen_envs
from ragen_envs import TABLE, TextEnv, batch_seeding, vector
from ragen_envs.bandit import Bandit
from ragen_envs.compiled_plays import CompiledPlays, Infos
from ragen_envs.frozen_lake import FrozenLake
from ragen_envs.game import Game, Outcome
from ragen_envs.seeding import LUCK, next_seed, pick, stream
from ragen_envs.sokoban import Level, Sokoban, parse_xsb
from ragen_envs.vector import TextVectorEnv

MODES = ("NextStep", "SameStep", "Disabled")
CORRIDOR = "########\n#@  $ .#\n########"
OPEN = "-$.-\n@-*-\n----"  # no border, two boxes, one of them done
ROWS = (
    "######\n#@$.-#\n#----#\n######",
    "######\n#-@--#\n#-$.-#\n######",
    "######\n#----#\n#.$@-#\n######",
    "######\n#.-$@#\n#-#--#\n######",
    "######\n#-.@-#\n#-$--#\n######",
)

TURNS = (
    "<think>x</think><answer>{}</answer>",
    "<answer>{}</answer>",
    "{}",
    "<think>a <answer>{}</answer>",
    "<think>x</think><answer>{}",
    "<think>x</think><answer>{} || Jump || {}</answer>",
    "<think>x</think><answer></answer>",
    "well <THINK>x</THINK><ANSWER>{}</ANSWER>",
    "<think>x</think><answer>{}</answer> <answer>{}</answer>",
    "<think>x</think><answer>{} || {} || {}</answer>",
    "<think>x</think><answer>{}</answer>" + "!" * 2000,
    "\ud800 <|im_end|> \x00",
    "",
    b"Up",
    None,
)


class Listed(Sokoban):
    """Sokoban with a short list of levels, to be drawn by ``pick``."""

    def __init__(self) -> None:
        super().__init__(height=4, width=6, min_steps=1, max_steps=10)

    def levels(self, split: str) -> list[Level]:
        return [parse_xsb(text) for text in ROWS] if split == "train" else []


class ListedLake(FrozenLake):
    """Lakes of a short list."""

    @lru_cache  # noqa: B019
    def levels(self, split: str) -> list[Any]:
        rng = np.random.default_rng(5)
        return [self.sample_level(rng) for _ in range(7)]


class Rough(FrozenLake):
    """A lake whose rules differ: the compiled ones must not be used."""

    def step(self, state: Any, action: int, rng: np.random.Generator) -> Outcome[Any]:
        outcome = super().step(state, action, rng)
        return Outcome(outcome.state, outcome.reward - 0.25, outcome.terminated, outcome.success, outcome.effective)


ragen_envs.register("tests/Rough-v0", "test_vector:Rough", slip=0.3, max_turns=4)


def same(one: Any, other: Any, where: str = "") -> None:
    """Equal in type and content, dtypes and bits of floats included; an ``Infos`` counts as the dict that it is."""
    if isinstance(one, dict):
        assert isinstance(other, dict), where
        assert set(one) == set(other), where
        for key in one:
            same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray), where
        assert (one.dtype, one.shape) == (other.dtype, other.shape), where
        if one.dtype == object:
            for i, (x, y) in enumerate(zip(one.ravel(), other.ravel(), strict=True)):
                same(x, y, f"{where}[{i}]")
        else:
            assert one.tobytes() == other.tobytes(), (where, one, other)
    elif isinstance(one, tuple | list):
        assert type(one) is type(other), where
        assert len(one) == len(other), where
        for i, (x, y) in enumerate(zip(one, other, strict=True)):
            same(x, y, f"{where}[{i}]")
    else:
        assert type(one) is type(other), (where, one, other)
        assert one == other, (where, one, other)


def some_actions(sync: SyncVectorEnv, rng: random.Random) -> Any:
    """Random indices, or turns of any kind, good ones more often."""
    if isinstance(sync.single_action_space, gymnasium.spaces.Discrete):
        return np.array([rng.randrange(int(sync.single_action_space.n)) for _ in sync.envs])
    actions = []
    for env in sync.envs:
        inner = env.unwrapped
        assert isinstance(inner, TextEnv)
        names = inner.game.action_names(inner.level)
        form = TURNS[0] if rng.random() < 0.6 else rng.choice(TURNS)
        picked = " || ".join(rng.choices(names, k=rng.randint(1, 4)))
        actions.append(form.replace("{}", picked) if isinstance(form, str) else form)
    return actions


def compare(sync: SyncVectorEnv, env: TextVectorEnv, *, steps: int = 24, seed: int = 0) -> None:
    """Play both with the same seeds and actions, with resets of every kind in between."""
    rng = random.Random(seed)
    n = env.num_envs
    seeds: list[Any] = [None, 3, 2**40 + 1, 2**130 + 7, 2**128 - 1]
    same(sync.reset(seed=seed), env.reset(seed=seed), "reset")
    for t in range(steps):
        actions = some_actions(sync, rng)
        ours = env.step(actions)
        same(sync.step(actions), ours, f"step {t}")
        assert ours[0] in env.observation_space
        if sync.autoreset_mode == AutoresetMode.DISABLED and (done := ours[2] | ours[3]).any():
            given: Any = [rng.choice(seeds) for _ in range(n)]
            both = [e.reset(seed=list(given), options={"reset_mask": done.copy()}) for e in (sync, env)]
            same(*both, where=f"reset after step {t}")
        if t == steps // 3:
            same(sync.reset(seed=seeds[:n]), env.reset(seed=seeds[:n]), "seeds")
        if t == steps // 2:
            same(sync.reset(), env.reset(), "no seeds")


def pair(game: Any, mode: str, n: int, **kwargs: Any) -> tuple[SyncVectorEnv, TextVectorEnv]:
    """``SyncVectorEnv`` and ours over one id, or over one game."""
    if isinstance(game, str):
        made = lambda: gymnasium.make(game, **kwargs)  # noqa: E731
        ours = gymnasium.make_vec(game, num_envs=n, autoreset_mode=mode, **kwargs)
        assert isinstance(ours, TextVectorEnv)
        return SyncVectorEnv([made] * n, autoreset_mode=mode), ours
    made = lambda: TextEnv(game, **kwargs)  # noqa: E731
    return SyncVectorEnv([made] * n, autoreset_mode=mode), TextVectorEnv(
        game, num_envs=n, autoreset_mode=mode, **kwargs
    )


GRID: dict[str, Any] = {"observation": "grid", "action": "discrete"}
CASES: list[tuple[Any, dict[str, Any]]] = [
    *((id, {}) for id in TABLE),
    ("ragen/Bandit-v0", {**GRID}),
    ("ragen/Bandit-v0", {"prompt": "compact", "split": "val", "max_actions_per_turn": 3, "max_turns": 4}),
    ("ragen/FrozenLake-v0", {**GRID, "max_steps": 3, "max_actions": 4}),
    ("ragen/FrozenLake-RAGEN-v1-v0", {"action": "discrete", "view": "both", "max_actions": 12}),
    ("ragen/FrozenLake-v0", {"prompt": "compact", "reasoning": "off", "group_noise": "common", "size": [3, 5]}),
    ("ragen/FrozenLake-v0", {"map": ["SFFG", "HFFH"], "observation": "grid", "format_penalty": 0}),
    ("ragen/Sokoban-v0", {**GRID, "split": "test"}),
    ("ragen/Sokoban-v0", {"prompt": "compact", "view": "grid"}),
    ("ragen/Sokoban-v0", {"action": "discrete", "observation": "messages"}),
    ("ragen/Sokoban-v0", {"action": "discrete"}),
    ("ragen/Sokoban-RAGEN-NewVocab-v0", {"action": "discrete", "prompt": "compact", "view": "grid", "max_actions": 12}),
    ("ragen/FrozenLake-v0", {"action": "discrete", "max_actions": 1001}),
    ("ragen/Bandit-v0", {"oracle": True}),
    ("tests/Rough-v0", {}),
    (Listed(), {**GRID}),
    (Listed(), {"max_actions": 10, "max_turns": 10, "max_actions_per_turn": 1}),
    (Listed(), {"action": "discrete"}),
    (Listed(), {"action": "discrete", "prompt": "compact"}),
    (Listed(), {"view": "both", "observation": "grid"}),
    (ListedLake(slip=0.4), {**GRID}),
    (ListedLake(slip=0.4), {"prompt": "compact"}),
]


@pytest.mark.parametrize(
    ("game", "kwargs"), CASES, ids=lambda value: type(value).__name__ if isinstance(value, Game) else str(value)[:60]
)
def test_equals_sync_vector_env(game: Any, kwargs: dict[str, Any]) -> None:
    for seed, mode in enumerate(MODES):
        compare(*pair(game, mode, 3 + seed, **kwargs), seed=seed)


def test_what_is_compiled() -> None:
    def kind(game: Game[Any, Any], **kwargs: Any) -> type:
        return type(TextVectorEnv(game, num_envs=2, **kwargs)._plays)

    assert kind(Listed()) is kind(FrozenLake(), observation="grid") is CompiledPlays
    assert kind(Rough()) is kind(Listed(), observation="messages") is kind(Listed(), oracle=True) is vector._Singles


@pytest.mark.parametrize(
    "game", [Listed(), ListedLake(slip=0.5), Rough(slip=0.5)], ids=lambda game: type(game).__name__
)
@pytest.mark.parametrize("kwargs", [{}, {"action": "discrete"}, {"group_noise": "common"}], ids=str)
def test_reset_options(game: Any, kwargs: dict[str, Any]) -> None:
    rng = random.Random(1)
    sync, env = pair(game, "SameStep", 3, **kwargs)
    sizes = (CORRIDOR, OPEN, ROWS[0]) if isinstance(game, Sokoban) else ("SFFF\nFFFG", "SG", "SFF\nHFF\nFFG")
    mask = np.array([True, False, True])
    for options in (
        {"dynamics_seed": 5},
        {"dynamics_seed": 2**130},
        *({"level": game.load_level(level)} for level in sizes),
        {"level": sizes[0], "dynamics_seed": 2, "reset_mask": mask},
        {"reset_mask": mask},
    ):
        given = dict(options)
        same(sync.reset(seed=7, options=dict(options)), env.reset(seed=7, options=options), str(options))
        assert options.keys() == given.keys()  # SyncVectorEnv takes the mask out of the caller's dict; we do not
        for t in range(6):
            actions = some_actions(sync, rng)
            same(sync.step(actions), env.step(actions), f"{options} step {t}")


def test_dynamics_seed_for_each() -> None:
    for game in (
        FrozenLake(slip=0.8, map=["FFFFF", "FFSFF", "FFFFG"]),
        Rough(slip=0.8, map=["FFFFF", "FFSFF", "FFFFG"]),
    ):
        env = TextVectorEnv(game, num_envs=4, action="discrete", observation="grid")
        singles = [TextEnv(game, action="discrete", observation="grid") for _ in range(4)]
        env.reset(seed=0, options={"dynamics_seed": np.array([4, 9, 4, 11])})
        for luck, single in zip((4, 9, 4, 11), singles, strict=True):
            single.reset(seed=0, options={"dynamics_seed": luck})
        for _ in range(5):
            seen = env.step([0, 0, 0, 0])[0]
            np.testing.assert_array_equal(seen, [single.step(0)[0] for single in singles])
        np.testing.assert_array_equal(seen[0], seen[2])


def test_time_limit() -> None:
    for mode in MODES:
        for id in ("ragen/FrozenLake-v0", "tests/Rough-v0"):
            spec = copy.deepcopy(gymnasium.spec(id))
            spec.max_episode_steps = 3
            made = lambda spec=spec: gymnasium.make(spec, **GRID)  # noqa: E731
            ours = gymnasium.make_vec(spec, num_envs=3, autoreset_mode=mode, **GRID)
            assert isinstance(ours, TextVectorEnv)
            compare(SyncVectorEnv([made] * 3, autoreset_mode=mode), ours, steps=12)


# --- streams --------------------------------------------------------------------------------------------------------


def test_streams_equal_numpy() -> None:
    rng = random.Random(0)
    seeds = [0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 2**64, 2**96 + 1, 2**128 - 1]
    seeds += [rng.getrandbits(rng.randint(1, 128)) for _ in range(500)]
    n = len(seeds)
    words = np.array([batch_seeding.words_of(seed) for seed in seeds], np.uint64)
    rows = np.arange(n) % 7 != 3
    for spawn, made in (
        (batch_seeding.PLAIN, lambda s: np.random.default_rng(np.random.SeedSequence(s))),
        (LUCK, lambda s: stream(s, LUCK)),
    ):
        generators = np.zeros((n, 4), np.uint64)
        batch_seeding.seed_generators(generators, rows, words, spawn)
        assert not generators[~rows].any()
        theirs = [made(seed) for seed in seeds]
        for _ in range(2):
            drawn = np.zeros((n, 4), np.uint64)
            batch_seeding.next_seeds(generators, rows, drawn)
            numbers, counts = np.zeros((n, 5)), np.where(rows, np.arange(n) % 6, 0)
            batch_seeding.draw(generators, counts, numbers)
            for i in np.flatnonzero(rows):
                assert drawn[i].tolist() == [next_seed(theirs[i]), 0, 0, 0]
                assert numbers[i, : counts[i]].tolist() == theirs[i].random(counts[i]).tolist()
                assert not numbers[i, counts[i] :].any()
    for many in (1, 2, 7, 8000, 2**32):
        picked = np.full(n, -1)
        batch_seeding.pick_many(words, rows, many, picked)
        assert picked.tolist() == [pick(seed, many) if row else -1 for seed, row in zip(seeds, rows, strict=True)]


TRANSCRIPT = """
import hashlib, warnings
warnings.simplefilter("error", RuntimeWarning)
import sys; sys.path.insert(0, {here!r})
from test_vector import digest_of_transcripts
print(digest_of_transcripts())
"""


def digest_of_transcripts() -> str:
    """A hash of what small vector environments of all three games show, pay and say."""
    seen = hashlib.blake2b()
    for game in (Listed(), FrozenLake(map=["SFH", "FFG"], slip=0.5), Bandit()):
        for kwargs in ({**GRID}, {}):
            env = TextVectorEnv(game, num_envs=3, **kwargs)
            env.reset(seed=3)
            for t in range(14):
                actions: Any = [(t + i) % game.n_actions for i in range(3)]
                if not kwargs:
                    names = game.action_names(game.draw_level(0, "train"))
                    actions = [TURNS[0].replace("{}", " || ".join(names[a:] + names[:a])) for a in actions]
                observation, *numbers, infos = env.step(actions)
                shown = observation.tobytes() if kwargs else "".join(observation).encode()
                seen.update(shown + b"".join(array.tobytes() for array in numbers))
                seen.update("".join([*infos["state_hash"], *infos["level_hash"], *infos["action_executed"]]).encode())
    return seen.hexdigest()


def test_equal_without_compilation() -> None:
    here = str(Path(__file__).parent)
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-c", TRANSCRIPT.format(here=here)]
    root = Path(ragen_envs.__file__).parents[1]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest_of_transcripts()


# --- infos ----------------------------------------------------------------------------------------------------------


def played(**kwargs: Any) -> TextVectorEnv:
    env = TextVectorEnv(Listed(), num_envs=4, **{"action": "discrete", "autoreset_mode": "SameStep", **kwargs})
    env.reset(seed=1)
    return env


def test_infos_stay_as_they_were() -> None:
    """Columns first read after later steps, resets and scribbling over what was returned."""
    early, late = played(observation="grid"), played(observation="grid")
    kept, wanted = [], []
    rng = np.random.default_rng(0)
    for _ in range(25):
        actions = rng.integers(4, size=4)
        *_, infos = early.step(actions)
        wanted.append(copy.deepcopy(infos))
        observation, *_, infos = late.step(actions)
        observation[:] = 99
        kept.append(infos)
    late.reset(options={"level": ROWS[1], "reset_mask": np.array([True, True, False, False])})
    late.reset(seed=4)
    assert any("final_obs" in infos for infos in wanted)
    for one, other in zip(wanted, kept, strict=True):
        same(one, other)


def test_infos_are_dicts() -> None:
    def infos() -> Any:
        return played().step([0, 1, 2, 3])[-1]

    plain = dict(infos())
    assert isinstance(infos(), dict)
    assert len(infos()) == len(plain) == 2 * len(TextEnv.info_keys())
    for form in (
        {**infos()},
        dict(infos().items()),
        dict(zip(infos().keys(), infos().values(), strict=True)),
        {key: infos()[key] for key in infos()},
        {key: infos().get(key) for key in plain},
        infos().copy(),
        copy.copy(infos()),
        copy.deepcopy(infos()),
        pickle.loads(pickle.dumps(infos())),
        infos() | {},
        {} | infos(),
    ):
        same(plain, form)
    one = infos()
    assert "state_hash" in one
    assert "_state_hash" in one
    assert "x" not in one
    assert one.get("x", 3) == 3
    with pytest.raises(KeyError):
        one["x"]
    one["state_hash"] = 5
    assert one.pop("turn").tolist() == [1, 1, 1, 1]
    del one["score"]
    assert one["state_hash"] == 5
    assert "turn" not in one
    assert "score" not in one
    assert repr(one) == repr(dict(one))
    assert infos()["turn"] is not infos()["turn"]
    lazy = Infos({"a": lambda key: key * 2})
    assert lazy == {"a": "aa"}


def test_observations_pickle_and_are_fresh() -> None:
    env = played(observation="grid")
    one, two = env.step([0] * 4)[0], env.step([0] * 4)[0]
    assert one is not two
    assert not np.shares_memory(one, two)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(one)), one)
    texts = played().step([0] * 4)[0]
    assert pickle.loads(pickle.dumps(texts)) == texts


# --- Gymnasium ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "game", [FrozenLake(map=["SFFFG"], slip=0.0), Rough(map=["SFFFG"], slip=0.0)], ids=["ours", "other"]
)
@pytest.mark.parametrize("mode", MODES)
def test_episode_statistics(game: Any, mode: str) -> None:
    """C5: four steps to the goal; no reset step is counted, and the last observation is delivered."""
    env = RecordEpisodeStatistics(TextVectorEnv(game, num_envs=2, autoreset_mode=mode, **GRID))
    env.reset(seed=0)
    env.step([2, 0])
    env.reset()  # in mid-episode: counters begin anew
    for _ in range(3):
        for step in range(4):
            seen, rewards, terminated, _, infos = env.step([2, 2])
            assert terminated.tolist() == [step == 3] * 2
        assert infos["episode"]["l"].tolist() == [4, 4]
        assert infos["episode"]["r"].tolist() == [4 * rewards[0] - 3] * 2 if isinstance(game, Rough) else [1, 1]
        last = infos["final_obs"][0] if mode == "SameStep" else seen[0]
        assert last[0, 4] == 5
        if mode == "NextStep":
            seen, rewards, terminated, _, infos = env.step([2, 2])
            assert not rewards.any()
            assert not terminated.any()
        elif mode == "Disabled":
            seen, infos = env.reset(options={"reset_mask": np.array([True, True])})
        assert infos["turn"].tolist() == [0, 0]
        assert infos["actions_left"].tolist() == [10, 10]
        assert seen[0, 0, 0] == 3
    assert list(env.length_queue) == [4] * 6


def test_statistics_of_a_partial_reset() -> None:
    env = RecordEpisodeStatistics(TextVectorEnv(Listed(), num_envs=2, autoreset_mode="Disabled", **GRID))
    env.reset(seed=0)
    for _ in range(2):
        env.step([0, 0])
    env.reset(options={"reset_mask": np.array([True, False])})
    assert env.episode_lengths.tolist() == [0, 2]


def test_wrappers_see_rows() -> None:
    listed = DictInfoToList(TextVectorEnv(Listed(), num_envs=2, action="discrete"))
    _, infos = listed.reset(seed=0)
    assert infos[1]["split"] in ("train", "val", "test")
    assert set(infos[0]) == set(TextEnv.info_keys())


def test_make_vec() -> None:
    for id in TABLE:
        env = gymnasium.make_vec(id, num_envs=3)
        assert isinstance(env, TextVectorEnv)
        assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        assert env.spec is not None
        assert env.spec.id == id
        single = gymnasium.make(id)
        assert env.single_observation_space == single.observation_space
        assert env.single_action_space == single.action_space
        assert env.observation_space == gymnasium.vector.utils.batch_space(single.observation_space, 3)
    again = gymnasium.make_vec(env.spec, num_envs=3)
    assert again.reset(seed=2)[0] == env.reset(seed=2)[0]
    other = gymnasium.make_vec("tests/Rough-v0", num_envs=2, autoreset_mode=AutoresetMode.SAME_STEP)
    assert isinstance(other, TextVectorEnv)
    assert other.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert isinstance(gymnasium.make_vec("ragen/Bandit-v0", 2, vectorization_mode="sync"), SyncVectorEnv)
    with pytest.raises(gymnasium.error.Error):
        gymnasium.make_vec("ragen/Bandit-v0", 2, vector_kwargs={"copy": False})
    with pytest.raises(TypeError, match="unknown arguments"):
        gymnasium.make_vec("ragen/Bandit-v0", 2, colour="red")
    with pytest.raises(ValueError, match="observation must be one of"):
        gymnasium.make_vec("ragen/Bandit-v0", 2, observation="picture")
    for wrong in ({"num_envs": 0}, {"num_envs": True}, {"max_episode_steps": 0}, {"autoreset_mode": "Never"}):
        with pytest.raises(ValueError, match=r"at least 1|AutoresetMode"):
            TextVectorEnv(Listed(), **wrong)
    env.close()
    env.close()


def test_async_fails_loudly_and_works() -> None:
    with pytest.raises(ValueError, match="shared_memory=False"):
        gymnasium.make_vec("ragen/FrozenLake-v0", 2, vectorization_mode="async")
    workers = gymnasium.make_vec(
        "ragen/FrozenLake-v0", 2, vectorization_mode="async", vector_kwargs={"shared_memory": False}
    )
    assert isinstance(workers, AsyncVectorEnv)
    ours = gymnasium.make_vec("ragen/FrozenLake-v0", 2)
    try:
        assert workers.reset(seed=1)[0] == ours.reset(seed=1)[0]
        actions = [TURNS[0].replace("{}", "Left || Down"), TURNS[1].replace("{}", "Up")]
        one, two = workers.step(actions), ours.step(actions)
        assert one[0] == two[0]
        assert one[1].tolist() == two[1].tolist()
        assert one[4]["state_hash"].tolist() == two[4]["state_hash"].tolist()
    finally:
        workers.close()


def test_interleaved_instances_and_global_state() -> None:
    """C7: instances that share a game do not touch each other, nor any global generator."""
    before = random.getstate(), str(np.random.get_state())  # noqa: NPY002
    game = ListedLake(slip=0.5)

    def transcript(envs: list[TextVectorEnv]) -> list[list[Any]]:
        seen: list[list[Any]] = [[env.reset(seed=9)[0]] for env in envs]
        for t in range(15):
            for env, mine in zip(envs, seen, strict=True):
                observation, rewards, *_, infos = env.step([t % 4, (t + 1) % 4, 2])
                mine.append((observation, rewards.tolist(), infos["state_hash"].tolist()))
        return seen

    def new() -> TextVectorEnv:
        return TextVectorEnv(game, num_envs=3, action="discrete")

    (alone,) = transcript([new()])
    assert transcript([new(), new()]) == [alone, alone]
    assert (random.getstate(), str(np.random.get_state())) == before  # noqa: NPY002


def test_unseeded_environments_differ() -> None:
    env = TextVectorEnv(ListedLake(slip=0.5), num_envs=32, **GRID)
    first = env.reset()[0]
    assert len({board.tobytes() for board in first}) > 1
    assert len(set(env.np_random_seed)) == 32
    again = TextVectorEnv(ListedLake(slip=0.5), num_envs=32, **GRID)
    np.testing.assert_array_equal(again.reset(seed=list(env.np_random_seed))[1]["_turn"], True)


def test_render() -> None:
    env = played(render_mode="ansi")
    assert env.render() == tuple(text.rsplit("State:\n", 1)[1] for text in env.reset(seed=1)[0])
    pictures = played(render_mode="rgb_array").render()
    assert [picture.shape for picture in pictures] == [(128, 192, 3)] * 4


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("game", [Listed(), Rough()], ids=["ours", "other"])
def test_wrong_actions_change_nothing(game: Any) -> None:
    def prepared(**kwargs: Any) -> TextVectorEnv:
        env = TextVectorEnv(game, num_envs=3, **kwargs)
        env.reset(seed=1)
        env.step([1, 1, 1] if kwargs["action"] == "discrete" else ["", "", ""])
        return env

    for wrong in (
        [0, 1], [0, 1, 4], [0, -1, 2], [[0, 1, 2]], 2, [0.0, 1.0, 2.0], [True, False, True], ["Up", "Up", "Up"],
        [0, 1, float("nan")], [0, None, 2], None, np.array([0, 1, 2**63], np.uint64), np.zeros((3, 1), int),
    ):  # fmt: skip
        env, untouched = prepared(action="discrete"), prepared(action="discrete")
        with pytest.raises(ValueError, match="discrete actions are"):
            env.step(wrong)
        same(untouched.step([2, 0, 3]), env.step([2, 0, 3]))
    for wrong in ("abc", ["a", "b"], 5, None, {"a": 1, "b": 2, "c": 3}, b"abc"[:2]):
        env, untouched = prepared(action="text"), prepared(action="text")
        with pytest.raises(ValueError, match="text actions are"):
            env.step(wrong)
        same(untouched.step(["", "", ""]), env.step(("", b"x", None)))
    same(prepared(action="text").step(np.array(["a", "b", "c"])), prepared(action="text").step(["a", "b", "c"]))


def test_the_action_of_a_beginning_environment_is_ignored() -> None:
    env = TextVectorEnv(FrozenLake(map=["SG"], slip=0.0), num_envs=2, **GRID)
    env.reset(seed=0)
    env.step([2, 0])
    assert env.step([77, 0])[-1]["turn"].tolist() == [0, 2]
    with pytest.raises(ValueError, match="got 77 for environment 0"):
        env.step([77, 0])


def test_ended_environments_with_autoreset_disabled() -> None:
    env = TextVectorEnv(FrozenLake(map=["SG"], slip=0.0), num_envs=3, autoreset_mode="Disabled", **GRID)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step([0, 0, 0])
    with pytest.raises(ValueError, match="first reset"):
        env.reset(options={"reset_mask": np.array([True, False, True])})
    env.reset(seed=0)
    env.step([0, 2, 0])
    with pytest.raises(AssertionError, match=r"environments \[1\] are over.*reset_mask"):
        env.step([0, 0, 0])
    _, infos = env.reset(options={"reset_mask": np.array([False, True, False])})
    assert infos["_turn"].tolist() == [False, True, False]
    assert env.step([0, 0, 0])[-1]["turn"].tolist() == [2, 1, 2]


@pytest.mark.parametrize("game", [ListedLake(slip=0.5), Rough(slip=0.5)], ids=["ours", "other"])
def test_wrong_resets_change_nothing(game: Any) -> None:
    env, untouched = (TextVectorEnv(game, num_envs=2, **GRID) for _ in range(2))
    for one in (env, untouched):
        one.reset(seed=5)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"seed": [1, 2, 3]}, ValueError, "2 entries"),
        ({"seed": -1}, gymnasium.error.Error, "greater or equal to zero"),
        ({"seed": [1, 2.5]}, gymnasium.error.Error, "python integer"),
        ({"options": {"colour": 1}}, ValueError, "unknown reset options"),
        ({"options": {"dynamics_seed": -1}}, ValueError, "dynamics_seed"),
        ({"options": {"dynamics_seed": [1, True]}}, ValueError, "dynamics_seed"),
        ({"options": {"dynamics_seed": [1]}}, ValueError, "2 entries"),
        ({"options": {"level": "SX"}}, ValueError, "unknown letter"),
        ({"options": {"level": "SG"}}, ValueError, "shape"),
        ({"options": {"reset_mask": [True, False]}}, TypeError, "array of bools"),
        ({"options": {"reset_mask": np.array([1, 0])}}, TypeError, "array of bools"),
        ({"options": {"reset_mask": np.array([True])}}, ValueError, "shape"),
        ({"options": {"reset_mask": np.array([False, False])}}, ValueError, "at least one True"),
    ]
    for arguments, error, match in wrong:
        with pytest.raises(error, match=match):
            env.reset(**arguments)
    for t in range(12):
        same(untouched.step([t % 4, 1]), env.step([t % 4, 1]))


def test_a_split_without_levels() -> None:
    with pytest.raises(ValueError, match="no val level"):
        TextVectorEnv(Listed(), num_envs=2, split="val").reset(seed=0)


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(ragen_envs.__file__).parents[1] / "docs" / "vector.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    exec(compile(code, "docs/vector.md", "exec"), {})
    assert capsys.readouterr().out.strip() == code.rsplit("# ", 1)[1].strip()
