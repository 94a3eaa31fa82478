"""``TextEnv`` against a twin that keeps nothing: what is worked out once must be what would be worked out each time.

The twin follows the documentation line by line, draws luck from :func:`stream` at every reset, and makes observation,
info and keys anew in every step.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import pickle
import random
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from ragen_envs import TABLE, TextEnv
from ragen_envs.frozen_lake import FrozenLake
from ragen_envs.frozen_lake.rules import SYMBOLS as ICE_SYMBOLS
from ragen_envs.protocol import FAILURES, STRAY_TEXT, format_rules, parse_turn
from ragen_envs.seeding import LUCK, next_seed, stream
from ragen_envs.sokoban import Sokoban
from ragen_envs.sokoban.levels import OUTSIDE
from ragen_envs.sokoban.rules import SYMBOLS as SOKOBAN_SYMBOLS

MAIN = ("ragen/Bandit-v0", "ragen/FrozenLake-v0", "ragen/Sokoban-v0")
T = "<think>x</think>"


def digest(*parts: object) -> str:
    return hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).hexdigest()


class Twin:
    """The episode of a ``TextEnv`` that has just been reset, played again from its level and luck seed."""

    def __init__(self, env: TextEnv, luck_seed: int) -> None:
        self.env, self.game, self.level = env, env.game, env.level
        self.names, self.text = env.game.action_names(env.level), env.action_mode == "text"
        self.state, self.rng = self.game.initial(self.level), stream(luck_seed, LUCK)
        self.turn = self.used = self.invalid = 0
        self.over = False
        self.messages = [{"role": "user", "content": self.shown()}]
        if env.prompt == "full":
            self.messages.insert(0, {"role": "system", "content": self.rules()})

    def rules(self) -> str:
        env = self.env
        rules = self.game.instructions(self.level, env.view)
        if not self.text:
            return rules
        per_turn = min(env.max_actions_per_turn, env.max_actions)
        turns = "one turn" if env.max_turns == 1 else f"{env.max_turns} turns"
        rules += f"\n\nYou have {turns} and " + ("one action" if env.max_actions == 1 else f"{env.max_actions} actions")
        rules += " in all."
        if env.max_turns > 1:
            rules += " The episode ends when either runs out, if not before."
            if per_turn > 1:
                rules += " You see the state between turns, not between the actions of a turn."
        rules += "\n" + format_rules(self.names, max_actions=per_turn, reasoning=env.reasoning)
        if env.format_penalty:
            rules += f"\nA turn in any other form costs {-env.format_penalty:.6g} of reward."
        return rules

    def shown(self) -> str:
        env, left = self.env, self.env.max_actions - self.used
        state = self.game.describe(self.state, env.view)
        if env.prompt == "compact":
            return f"{self.game.name}\n{state}\nleft {left}"
        if self.over:
            return f"The episode is over. Final state:\n{state}"
        turn = f"Turn {self.turn + 1} of {env.max_turns}, actions left: " if self.text else "Actions left: "
        return f"{turn}{left}. State:\n{state}"

    def observation(self) -> Any:
        if self.env.observation_mode == "grid":
            return self.game.grid(self.state).tolist()
        if self.env.observation_mode == "messages":
            return copy.deepcopy(self.messages)
        return "\n\n".join(m["content"] for m in self.messages) if self.turn == 0 else self.messages[-1]["content"]

    def info(self, raw: str = "", wanted: Any = (), done: Any = (), status: str = "", format_ok: bool = False,
             effective: bool = False, dropped: int = 0, success: bool = False) -> dict[str, Any]:  # fmt: skip
        left = self.env.max_actions - self.used
        values = self.game.oracle(self.state, left) if self.env.oracle_info else None
        return {
            "success": success,
            "score": float(success),
            "turn": self.turn,
            "actions_left": left,
            "action_raw": raw,
            "action_parsed": " || ".join(self.names[a] for a in wanted),
            "action_executed": " || ".join(self.names[a] for a in done),
            "action_status": status,
            "format_ok": format_ok,
            "action_valid": bool(wanted) and status not in ("unknown_action", "illegal_action"),
            "action_effective": effective,
            "n_dropped": dropped,
            "n_invalid": self.invalid,
            "valid_actions": [] if self.over else [self.names[a] for a in self.game.legal_actions(self.state)],
            "level_hash": self.game.level_key(self.level),
            "state_hash": self.key(),
            "split": self.game.split_of(self.level),
            "optimal_steps": -1 if values is None else values.optimal_steps,
            "deadlock": values is not None and values.dead_end,
        }

    def key(self) -> str:
        state = self.state
        if isinstance(self.game, Sokoban):
            board = [code for code in state.cells if code != OUTSIDE]
            players, boxes = (np.frombuffer(hashlib.shake_256(b"ragen sokoban").digest(16 * len(state.cells)), "<u8")
                              .reshape(-1, 2).T.tolist())  # fmt: skip
            still = bytes({3: 2, 4: 1, 5: 1, 6: 2}.get(code, code) for code in board).hex()
            found = int(digest("sokoban board", state.level.height, state.level.width, still), 16)
            for i, code in enumerate(state.cells):
                found ^= {3: boxes, 4: boxes, 5: players, 6: players}[code][i] if 3 <= code <= 6 else 0
            return f"{found:016x}"
        if isinstance(self.game, FrozenLake):
            width = len(state.level.rows[0])
            return digest("frozen_lake", *state.level.rows) + f"{state.row * width + state.column:04x}"
        return digest(self.game.level_key(state.level), state.pulled, repr(state.points))

    def step(self, action: Any, finish_reason: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        env, raw, dropped = self.env, "", 0
        if self.text:
            raw = str(action) if isinstance(action, str) else ""
            turn = parse_turn(raw, self.names, max_actions=env.max_actions_per_turn, reasoning=env.reasoning,
                              finish_reason=finish_reason)  # fmt: skip
            wanted = [self.names.index(name) for name in turn.actions]
            status, format_ok, dropped = turn.status, turn.format_ok, turn.n_dropped
        else:
            wanted, status, format_ok = [int(action)], "ok", True
        done: list[int] = []
        reward, terminated, success, effective = 0.0, False, False, False
        for i, one in enumerate(wanted):
            if self.used == env.max_actions:
                dropped += len(wanted) - i
                break
            if one not in self.game.legal_actions(self.state):
                status, format_ok = "illegal_action", False
                break
            before = self.rng.bit_generator.state
            outcome = self.game.step(self.state, one, self.rng)
            assert not self.game.deterministic or self.rng.bit_generator.state == before
            self.state = outcome.state
            self.used += 1
            done.append(one)
            reward += outcome.reward
            effective = effective or outcome.effective
            if outcome.terminated:
                terminated, success = True, outcome.success
                break
        self.turn += 1
        self.invalid += not format_ok
        penalty = env.format_penalty if self.text and not format_ok else 0.0
        if not self.text:
            self.used = self.turn
        truncated = self.used >= env.max_actions or (self.text and self.turn >= env.max_turns)
        if (env.max_turns if self.text else env.max_actions) == 1:
            terminated, truncated = True, False
        self.over = terminated or truncated
        if self.text:
            self.messages.append({"role": "assistant", "content": raw})
            self.messages.append({"role": "user", "content": self.feedback(done, status, format_ok, reward, penalty)})
        elif env.observation_mode != "grid":
            self.messages.append({"role": "user", "content": self.shown()})
        info = self.info(raw, wanted, done, status, format_ok, effective, dropped, success)
        return self.observation(), reward + penalty, terminated, truncated, info

    def feedback(self, done: list[int], status: str, format_ok: bool, reward: float, penalty: float) -> str:
        env = self.env
        if env.prompt == "compact":
            return self.shown() + ("" if status == "ok" else f"\nnote {status}")
        lines = [f"Last turn: {' || '.join(self.names[a] for a in done) or 'no action'}. Reward {reward:.6g}."]
        if not format_ok:
            lines.append("Problem: " + (STRAY_TEXT if status == "ok" else FAILURES[status]))
        if penalty:
            lines.append(f"Penalty for form {penalty:.6g}.")
        lines.append(self.shown())
        if status in ("no_answer", "length") and not self.over:
            left = min(env.max_actions_per_turn, env.max_actions - self.used)
            lines.append(format_rules(self.names, max_actions=left, reasoning=env.reasoning))
        return "\n".join(lines)


def some_action(env: TextEnv, rng: random.Random) -> Any:
    """An action of any kind, from ``rng`` alone."""
    if env.action_mode == "discrete":
        index = rng.randrange(env.game.n_actions)
        return rng.choice([index, index, np.int64(index)])
    names = [rng.choice(env.game.action_names(env.level)) for _ in range(rng.randint(1, 3))]
    answer = f"<answer>{' || '.join(names)}</answer>"
    spoilt = ["", "x" * 300, None, 7, b"bytes", "\ud800", "<think>", T, T + "<answer>", T + "<answer></answer>",
              T + "<answer>Jump</answer>", f"{T}<answer>{names[0]}||Jump</answer>", "hm " + T + answer, answer,
              T + answer * 2, T + answer.upper(), f"<think>a < b</think>\n{answer}\n", T + T + answer, T + answer + T,
              f"{T}<answer>{'||'.join(names * 4)}</answer>", np.str_(T + answer)]  # fmt: skip
    return T + answer if rng.random() < 0.5 else rng.choice(spoilt)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else json.loads(json.dumps(value))


BUDGETS: list[dict[str, Any]] = [
    {},
    {"max_turns": 7, "max_actions": 12, "max_actions_per_turn": 2, "reasoning": "off", "format_penalty": -0.25},
    {"max_turns": 1, "max_actions_per_turn": 10, "format_penalty": 0.0, "oracle": True, "split": "val"},
]


@pytest.mark.parametrize("action", ["text", "discrete"])
@pytest.mark.parametrize("id", TABLE)
def test_a_twin_that_keeps_nothing_plays_the_same(id: str, action: str) -> None:
    """Observations, prompts, views and budgets; seeded and unseeded, with snapshots and pickles on the way.

    All of them for the three main ids, a third for each preset.
    """
    modes = list(enumerate(itertools.product(("text", "messages", "grid"), ("full", "compact"), BUDGETS)))
    for i, (observation, prompt, budget) in modes if id in MAIN else modes[list(TABLE).index(id) % 3 :: 3]:
        env: Any = gymnasium.make(id, observation=observation, action=action, prompt=prompt, **budget).unwrapped
        views = env.game.views
        env = env.sibling() if i % 2 else TextEnv(env.game, **{**env._arguments, "view": views[i % len(views)]})
        rng = random.Random(i)
        seeds = np.random.default_rng(i)  # what np_random is after reset(seed=i)
        for seed, options in ((i, None), (None, None), (None, {"dynamics_seed": 3}), (None, {}), (2**40, None)):
            if seed is not None:
                seeds = np.random.Generator(np.random.PCG64(seed))
            drawn = next_seed(seeds) if seed is None else seed
            observed, info = env.reset(seed=seed, options=options)
            twin = Twin(env, (options or {}).get("dynamics_seed", drawn))
            assert (plain(observed), info) == (plain(twin.observation()), twin.info())
            while not twin.over:
                if rng.random() < 0.2:
                    kept = json.loads(json.dumps(env.snapshot()))
                    if rng.random() < 0.5:
                        env = env.sibling()
                        env.reset(seed=9)
                    env.restore(kept)
                elif rng.random() < 0.2:
                    env = rng.choice([copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])(env)
                move, reason = some_action(env, rng), rng.choice(["stop", "stop", "length"])
                observed, *rest = env.step(move, finish_reason=reason)
                wanted, *twins = twin.step(move, reason)
                assert plain(observed) == plain(wanted)
                assert rest == twins
                assert [type(x) for x in rest[:3]] == [float, bool, bool]
                assert {key: type(value) for key, value in rest[3].items()} == TextEnv.info_keys()
            messages = env.snapshot()["messages"]
            if observation != "grid" or action == "text":
                assert messages == twin.messages


def test_what_was_returned_can_be_changed_without_harm() -> None:
    for id, observation in itertools.product(("ragen/Sokoban-v0", "ragen/FrozenLake-v0"), ("messages", "grid")):
        a, b = (gymnasium.make(id, observation=observation, action="discrete") for _ in range(2))
        spoilt, kept = a.reset(seed=1), b.reset(seed=1)
        for action in (0, 1, 2, 3, 0):
            if observation == "grid":
                assert np.array_equal(spoilt[0], kept[0])
                spoilt[0][:] = 0
            else:
                assert spoilt[0] == kept[0]
                spoilt[0][-1]["content"] = ""
            assert spoilt[-1] == kept[-1]
            spoilt[-1]["valid_actions"].clear()
            spoilt[-1].clear()
            if len(kept) == 5 and (kept[2] or kept[3]):
                break
            spoilt, kept = a.step(action), b.step(action)


@pytest.mark.parametrize("id", ["ragen/Sokoban-v0", "ragen/Sokoban-RAGEN-NewVocab-v0", "ragen/FrozenLake-v0"])
def test_a_board_is_its_codes_in_symbols(id: str) -> None:
    """The grid view, made quickly, is the grid array with each code replaced by its symbol."""
    env: Any = gymnasium.make(id, action="discrete").unwrapped
    if isinstance(env.game, Sokoban):
        symbols = SOKOBAN_SYMBOLS[env.game.symbols]
    else:
        symbols = "".join(symbol for symbol, _ in ICE_SYMBOLS)
    rng = random.Random(0)
    for seed in range(60):
        env.reset(seed=seed)
        while not env._over:
            rows = ["".join(symbols[code] for code in row) for row in env.game.grid(env.state)]
            assert env.game.describe(env.state, "grid") == "\n".join(rows)
            env.step(rng.randrange(4))


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def test_a_snapshot_goes_on_in_another_process() -> None:
    """State, luck and budgets, also where the luck stream was made from a batch or not made at all."""
    for id in ("ragen/FrozenLake-RAGEN-v1-v0", "ragen/Sokoban-v0"):
        env: Any = gymnasium.make(id, action="discrete").unwrapped
        env.reset(seed=5)
        env.reset()
        env.step(0)
        snapshot = json.dumps(env.snapshot())
        code = (
            "import gymnasium, json, ragen_envs\n"
            f"env = gymnasium.make({id!r}, action='discrete').unwrapped\n"
            f"env.restore(json.loads({snapshot!r}))\n"
            "print(json.dumps([env.step(a) for a in range(4) if not env._over] + [env.reset()]))"
        )
        wanted = [env.step(a) for a in range(4) if not env._over] + [env.reset()]
        assert json.loads(run_python(code)) == json.loads(json.dumps(wanted))


def test_playing_without_compiled_code_imports_no_numba() -> None:
    """A level of one's own needs no generator, so a Sokoban episode must not pay for numba's import."""
    code = (
        "import sys, gymnasium, ragen_envs\n"
        "env = gymnasium.make('ragen/Sokoban-v0')\n"
        "env.reset(options={'level': '######\\n#@ $.#\\n######'})\n"
        "env.step('<think>x</think><answer>Right</answer>')\n"
        "print('numba' in sys.modules, end=' ')\n"
        "env.reset(seed=0)\n"
        "print('numba' in sys.modules)"
    )
    assert run_python(code).startswith("False")


def test_arguments_that_json_does_not_know() -> None:
    """They work as their plain twins do; only nothing is kept on the levels."""
    lake = "ragen_envs.frozen_lake:FrozenLake"
    odd, plain = TextEnv(lake, slip=np.float64(0.5)), TextEnv(lake, slip=0.5)
    odd32 = TextEnv(lake, slip=np.float32(0.5))
    assert odd.reset(seed=3) == plain.reset(seed=3) == odd32.reset(seed=3)
