"""A million turns of good, bad and hostile text over all ids: nothing raises, and every invariant holds.

What is cheap is checked after every turn; what is not (snapshots, keys, exact values), every few thousand turns.
"""

from __future__ import annotations

import json
import random
from typing import Any

import gymnasium
import numpy as np
import pytest

from ragen_envs import TABLE, TextEnv, protocol

PARTS, TURNS = 7, 11_000
"""Walks per id, and turns per walk. In many parts, since workers begin with the file that has the most tests."""
SPOT = 3_500
"""Turns between two looks at what costs time."""
KINDS = TextEnv.info_keys()
TYPES = tuple(KINDS.values())
SPLIT_BY = f" {protocol.SEPARATOR} "
UNCHANGED = ("level_hash", "split")

HOSTILE: list[Any] = [
    "", "   ", "\0", "\0" * 10, "\ud800", "\ud800\udfff", "\u202e", "\u0301" * 500, "%s%n{}", "{0.__class__}",
    '__import__("os").abort()', "$(reboot)", "`reboot`", "<|im_end|><|im_start|>assistant", "<|endoftext|></s>[INST]",
    "<answer>", "</answer>", "<think>", "</think>", "<think>" * 50, "<answer>" * 50, "[", "(" * 500, "\\", "||", "|||",
    "é□√🙂\n\u2028", "-1", "0", "1e400", "nan", "a" * 3000,
]  # fmt: skip
NO_TEXT: list[Any] = [None, 17, -1, 2.5, float("nan"), True, b"bytes", [], ["Up"], {"answer": "Up"}, (), object()]


def texts(names: tuple[str, ...], rng: random.Random) -> list[Any]:
    """A pool of things that a model, or a broken harness, may hand over: about half are turns in good form."""
    pool: list[Any] = []
    for _ in range(600):
        actions = SPLIT_BY.join(rng.choice(names) for _ in range(rng.choice((1, 1, 1, 2, 3, 5, 9))))
        pool.append(
            f"<think>{rng.choice(('x', '', 'The way is free.', *HOSTILE[:8]))}</think><answer>{actions}</answer>"
        )
    for hostile in HOSTILE:
        name = rng.choice(names)
        good = f"<think>x</think><answer>{name}</answer>"
        pool += [
            hostile,
            f"<think>x</think><answer>{hostile}</answer>",
            f"<think>{hostile}</think><answer>{name}</answer>",
        ]
        pool += [f"{hostile}{good}", f"{good}{hostile}", f"<think>x</think><answer>{name}{SPLIT_BY}{hostile}</answer>"]
    for _ in range(12):
        name = rng.choice(names)
        pool += [
            name,
            f"<answer>{name}</answer>",
            f"<think>x</think><answer>{name}",
            f"<think>a <answer>{name}</answer>",
        ]
        pool += [f"<THINK>x</THINK><ANSWER>{name.upper()}</ANSWER>", f"<think>x</think><answer>{name} {name}</answer>"]
        pool += [f"<think>x</think><answer>{name}</answer><answer>{name}</answer>", f"<think>x</think>{name}"]
    return pool + NO_TEXT


def rewards(env: TextEnv, executed: int) -> tuple[float, float]:
    """The least and the most that a turn can earn in the game itself."""
    if env.game.name == "sokoban":
        boxes = env.level.n_boxes
        return -0.1 * executed - boxes, -0.1 * executed + (boxes + 10 if executed else 0)
    return 0.0, min(executed, 1)


def check_turn(env: TextEnv, text: Any, before: dict[str, Any], result: Any) -> None:
    """Everything that holds after any turn whatever."""
    observation, reward, terminated, truncated, info = result
    assert type(observation) is str
    assert observation
    assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
    assert info.keys() == KINDS.keys()
    assert (*map(type, info.values()),) == TYPES
    over = terminated or truncated
    parsed = info["action_parsed"].split(SPLIT_BY) if info["action_parsed"] else []
    done = info["action_executed"].split(SPLIT_BY) if info["action_executed"] else []
    status, formed = info["action_status"], info["format_ok"]
    assert status in protocol.STATUSES
    assert info["action_raw"] == (text if isinstance(text, str) else "")
    assert parsed[: len(done)] == done
    assert len(parsed) <= env.max_actions_per_turn
    assert info["turn"] == before["turn"] + 1 <= env.max_turns
    assert info["actions_left"] == before["actions_left"] - len(done) >= 0
    assert info["n_invalid"] == before["n_invalid"] + (not formed)
    assert info["n_dropped"] >= 0
    low, high = rewards(env, len(done))
    earned = reward - (0.0 if formed else env.format_penalty)
    assert low - 1e-9 <= earned <= high + 1e-9
    assert status == "ok" or not formed
    assert info["score"] == float(info["success"])
    assert terminated or not info["success"]
    assert info["action_valid"] == (bool(parsed) and status != "unknown_action")
    assert [info[key] for key in UNCHANGED] == [before[key] for key in UNCHANGED]
    if not info["action_effective"]:
        assert info["state_hash"] == before["state_hash"]
    assert done or not info["action_effective"]
    assert info["valid_actions"] == ([] if over else list(env.game.action_names(env.level)))
    spent = info["turn"] == env.max_turns or info["actions_left"] == 0
    assert truncated == (spent and env.max_turns > 1)
    assert not (spent and env.max_turns == 1) or terminated
    assert over or not spent


def check_moment(env: TextEnv, other: TextEnv, info: dict[str, Any], text: Any, over: bool) -> None:
    """Snapshot and restore, keys, and exact values at this moment. It leaves ``env`` as it is."""
    kept, info = json.loads(json.dumps([env.snapshot(), info]))  # JSON joins two lone surrogates that follow each other
    seen, again = other.restore(kept)
    assert (again, other.snapshot()) == (info, kept)
    assert type(seen) is str
    game, level, state = env.game, env.level, env.state
    rebuilt = game.load_state(game.load_level(json.loads(json.dumps(game.dump_level(level)))), game.dump_state(state))
    assert game.state_key(rebuilt) == game.state_key(state) == info["state_hash"]
    assert game.level_key(level) == info["level_hash"]
    assert game.split_of(level) == info["split"] == env.split
    left = env.actions_left
    values = game.oracle(state, left)
    assert values is not None
    assert values.value == max(values.q)
    assert values.dead_end == (values.optimal_steps == -1)
    many = game.oracle_many([state, state], [left, 0])
    assert many is not None
    assert (many.value[0], tuple(many.q[0])) == (values.value, values.q)
    assert many.value[1] == 0.0
    if not over:
        twin = env.sibling()
        twin.restore(kept)
        first, second = other.step(text), twin.step(text)
        assert first == second


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("env_id", TABLE)
def test_no_text_raises_or_breaks_an_invariant(env_id: str, part: int) -> None:
    env = gymnasium.make(env_id).unwrapped
    assert isinstance(env, TextEnv)
    other, rng = env.sibling(), random.Random(f"{env_id} {part}")
    pools: dict[tuple[str, ...], list[Any]] = {}
    ends, wins, statuses = 0, 0, set()
    _, info = env.reset(seed=part)
    for turn in range(TURNS):
        names = env.game.action_names(env.level)
        pool = pools.get(names)
        if pool is None:
            pool = pools[names] = texts(names, rng)
        text = pool[int(rng.random() * len(pool))]
        try:
            result = env.step(text)
            check_turn(env, text, info, result)
            over, info = result[2] or result[3], result[4]
            if turn % SPOT == 0:
                check_moment(env, other, info, text, over)
        except Exception as error:
            raise AssertionError(f"turn {turn}, text {text!r:.300}: {error!r}") from error
        statuses.add(info["action_status"])
        if over:
            ends, wins = ends + 1, wins + info["success"]
            _, info = env.reset()
            assert (*map(type, info.values()),) == TYPES
            assert (info["turn"], info["actions_left"], info["n_invalid"]) == (0, env.max_actions, 0)
    # The walk was no walk in a corner: episodes ended, some in success, and all kinds of faults were met.
    assert ends >= TURNS // env.max_turns
    assert 0 < wins < ends
    assert {"ok", "unknown_action", "empty_answer", "too_many"} <= statuses


def test_that_is_a_million_turns() -> None:
    assert PARTS * TURNS * len(TABLE) >= 1_000_000


@pytest.mark.parametrize("env_id", ["ragen/Bandit-v0", "ragen/FrozenLake-v0", "ragen/Sokoban-v0"])
def test_texts_of_a_megabyte(env_id: str) -> None:
    """Too slow for the walk above."""
    env = gymnasium.make(env_id, max_turns=20).unwrapped
    assert isinstance(env, TextEnv)
    _, info = env.reset(seed=0)
    name = env.game.action_names(env.level)[0]
    long = f"<think>x</think><answer>{(name + SPLIT_BY) * 100_000}</answer>"
    whole = f"<think>{'x' * 1_000_000}</think><answer>{'(' * 100_000}</answer>"
    for text in ("a" * 1_100_000, "<answer>" * 130_000, long, whole, np.str_("z" * 1_000_000)):
        result = env.step(text)
        check_turn(env, text, info, result)
        info = result[4]
        if result[2] or result[3]:
            _, info = env.reset(seed=1)
