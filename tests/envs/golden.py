"""The golden digests: a fixed transcript of every id, so that no behaviour changes unnoticed.

``golden.json`` holds for each id the digest of ten fixed episodes in each prompt (observations, rewards, ends and info)
and the release that published it (null before). A released id never changes: what behaves differently is a new version.

    PYTHONPATH=. python tests/envs/golden.py [ID ...]

renews the digests of the ids named (default: all), adds those of new ids, and refuses released ones. Exit code 0: done,
1: refused, 2: unknown id.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from ragen_envs import TABLE, TextEnv

STORE = Path(__file__).with_name("golden.json")
T = "<think>x</think>"


def make(id: str, **kwargs: Any) -> TextEnv:
    env = gymnasium.make(id, **kwargs).unwrapped
    assert isinstance(env, TextEnv)
    return env


def turn(*names: str) -> str:
    return f"{T}<answer>{' || '.join(names)}</answer>"


def some_turn(env: TextEnv, rng: random.Random) -> Any:
    """A turn of any kind, good ones more often, from ``rng`` alone. The digests depend on every choice here."""
    if env.action_mode == "discrete":
        return rng.randrange(env.game.n_actions)
    names = env.game.action_names(env.level)
    picked = [rng.choice(names) for _ in range(rng.randint(1, 3))]
    spoilt = ("", "garbage", "<think>", T, f"{T}<answer>", f"{T}<answer></answer>", turn("Jump"),
              turn(picked[0], "Jump"), turn(*picked * 4), f"hm {turn(*picked)}", turn(*picked).removeprefix(T),
              turn(*picked) * 2, "é□√🙂\n\u202e", "x" * 5000)  # fmt: skip
    return turn(*picked) if rng.random() < 0.6 else rng.choice(spoilt)


def play(env: TextEnv, seed: int | None, **reset: Any) -> list[Any]:
    """A whole episode of mixed turns: everything that ``reset`` and ``step`` returned."""
    rng = random.Random(seed)
    log: list[Any] = [env.reset(seed=seed, **reset)]
    while len(log) == 1 or not (log[-1][2] or log[-1][3]):
        log.append(env.step(some_turn(env, rng)))
    return log


def digest_of(log: Any) -> str:
    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray | np.generic) else list(value)

    return hashlib.blake2b(json.dumps(log, default=plain, sort_keys=True).encode(), digest_size=8).hexdigest()


def digest_of_id(id: str, **kwargs: Any) -> str:
    """Digest of ten fixed episodes in each prompt: observations, rewards, ends and info."""
    prompts = ("full", "compact")
    return digest_of([play(make(id, prompt=prompt, **kwargs), seed) for prompt in prompts for seed in range(10)])


def stored(path: Path = STORE) -> dict[str, dict[str, str | None]]:
    """For each id its ``digest`` and the version it was ``released`` with, or None."""
    found: dict[str, dict[str, str | None]] = json.loads(path.read_text())
    return found


def advice(id: str) -> str:
    """What to do when the digest of an id is not the stored one."""
    changed = f"the behaviour of {id} changed (levels, rules, rewards, prompt, parsing or info). Not meant: undo it. "
    release = stored()[id]["released"]
    if release is not None:
        return f"{changed}Meant: {id} was released with {release}; register a new version of it and leave this one."
    return f"{changed}Meant: say so on its page and renew its digest: PYTHONPATH=. python tests/envs/golden.py {id}"


def renew(ids: Sequence[str], path: Path = STORE) -> int:
    """Store the digests of these ids; returns the exit code."""
    unknown = [id for id in ids if id not in TABLE]
    if unknown:
        print(f"unknown ids: {', '.join(unknown)}")
        return 2
    entries = stored(path) if path.exists() else {}
    refused = 0
    for id in ids:
        old, new = entries.get(id, {"digest": None, "released": None}), digest_of_id(id)
        if old["digest"] == new:
            print(f"{id}: unchanged")
        elif old["released"] is not None:
            print(f"{id}: released with {old['released']}, so its behaviour is fixed: register a new version")
            refused = 1
        else:
            print(f"{id}: {old['digest']} -> {new}")
            entries[id] = {"digest": new, "released": None}
    kept = {id: entries[id] for id in TABLE if id in entries}
    path.write_text(json.dumps(kept, indent=2) + "\n")
    return refused


if __name__ == "__main__":
    sys.exit(renew(sys.argv[1:] or list(TABLE)))
