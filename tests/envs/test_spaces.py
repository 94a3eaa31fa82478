"""``FreeText``: any text of allowed length, cheap, reproducible, and never in shared memory."""

from __future__ import annotations

import copy
import os
import pickle
import string
import subprocess
import sys
import time
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import CustomSpaceError
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array, create_shared_memory

from ragen_envs import FreeText
from ragen_envs.spaces import SAMPLE_EXTRA

ALLOWED = set(string.ascii_letters + string.digits + string.punctuation + " \n\t")


class Echo(gymnasium.Env[str, str]):
    """Says back what it hears."""

    observation_space = FreeText(5000)
    action_space = FreeText(5000)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[str, dict]:
        super().reset(seed=seed)
        return "é□🙂\n", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        return str(action), 0.0, False, False, {}


@pytest.mark.parametrize(
    "text", ["", "a b\n\t<answer>Up</answer>", "é□√🙂", "\0", "\ud800", np.str_("numpy"), "x" * 50]
)
def test_any_text_within_the_lengths_is_a_member(text: str) -> None:
    assert FreeText(50).contains(text)
    assert text in FreeText(50)


@pytest.mark.parametrize("thing", [None, 3, b"bytes", ["a"], ("a",), np.array("a"), np.array(["a"]), "x" * 51])
def test_other_things_and_lengths_are_not(thing: object) -> None:
    assert not FreeText(50).contains(thing)
    assert not FreeText(60, min_length=52).contains("x" * 51)


def test_membership_takes_constant_time() -> None:
    space = FreeText(10_000_000)

    def seconds(text: str) -> float:
        start = time.perf_counter()
        for _ in range(1000):
            space.contains(text)
        return time.perf_counter() - start

    short, long = "a" * 10, "a" * 5_000_000
    assert any(seconds(long) < 20 * seconds(short) for _ in range(5))


def test_samples_are_printable_short_and_of_allowed_length() -> None:
    for low, high in ((0, 1 << 20), (0, 3), (7, 7), (1000, 1 << 20)):
        space = FreeText(high, min_length=low, seed=1)
        samples = [space.sample() for _ in range(200)]
        assert all(type(s) is str and space.contains(s) and set(s) <= ALLOWED for s in samples)
        assert max(map(len, samples)) <= low + SAMPLE_EXTRA
    space = FreeText(5000, seed=1)
    assert set("".join(space.sample() for _ in range(200))) == ALLOWED
    masked = FreeText(50, seed=1)
    letters = np.array([c == "b" for c in masked.character_list], np.int8)
    assert masked.sample(mask=(np.int64(4), letters)) == "bbbb"


def test_samples_follow_the_seed_in_every_process() -> None:
    code = "from ragen_envs import FreeText; s = FreeText(99, seed=5); print(ascii([s.sample() for _ in range(5)]))"
    space = FreeText(99, seed=5)
    wanted = ascii([space.sample() for _ in range(5)])
    for hash_seed in ("0", "99"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
        assert done.stdout.strip() == wanted


def test_only_the_lengths_are_shown_and_compared() -> None:
    space = FreeText(9, min_length=2)
    assert repr(space) == "FreeText(2, 9)"
    assert space == FreeText(9, min_length=2, seed=3)
    assert space != FreeText(9)
    assert space != FreeText(8, min_length=2)
    assert space != spaces.Text(9, min_length=2)
    for other in (copy.copy(space), copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert other == space
    seeded = FreeText(99, seed=1)
    assert copy.deepcopy(seeded).sample() == pickle.loads(pickle.dumps(seeded)).sample() == seeded.sample()


@pytest.mark.parametrize(("args", "error"), [((-1,), ValueError), (("9",), TypeError), ((2.5,), TypeError)])
def test_wrong_lengths_are_refused(args: tuple, error: type[Exception]) -> None:
    with pytest.raises(error):
        FreeText(*args)
    with pytest.raises(ValueError, match="min_length"):
        FreeText(2, min_length=3)


def test_it_can_be_batched_but_not_shared() -> None:
    batch = batch_space(FreeText(9), 2)
    assert batch.contains(("a", "é"))
    assert create_empty_array(FreeText(9), 2) == ("", "")
    for space in (FreeText(9), spaces.Dict({"text": FreeText(9)}), spaces.Tuple([FreeText(9)])):
        with pytest.raises(CustomSpaceError, match="shared_memory=False"):
            create_shared_memory(space, 2)


def test_vector_environments_carry_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="shared_memory"):
            AsyncVectorEnv([Echo, Echo])
        for vector in (SyncVectorEnv([Echo, Echo]), AsyncVectorEnv([Echo, Echo], shared_memory=False)):
            observations, _ = vector.reset(seed=1)
            assert observations == ("é□🙂\n",) * 2
            words = ("a", "√" * 4000)
            assert vector.step(words)[0] == words
            assert vector.observation_space.contains(words)
            vector.close()
