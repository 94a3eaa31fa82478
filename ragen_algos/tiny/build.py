"""Rebuild the embedded checkpoints from solvers' demonstrations: ``python -m ragen_algos.tiny.build``.

A Qwen2 architecture of about 0.4 M parameters with a word-level vocabulary learns, by plain supervised learning, to
answer compact prompts the way the games' oracles would. It never sees a validation or test level. In Bandit the
demonstrations pick an arm at random, so the model knows the words and nothing of what they pay.

The learning rate ends at zero. A snapshot taken at a high learning rate would gain from any few updates, and would
flatter whatever reinforcement learning comes after it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from ragen_algos.policy import LanguagePolicy
from ragen_algos.rollout import episode_seeds, rollout
from ragen_algos.sampler import Sampler
from ragen_envs.bandit.pairs import NAMED
from ragen_envs.protocol import SEPARATOR, STATUSES
from ragen_envs.text_env import TextEnv

HERE = Path(__file__).parent
MAX_NEW_TOKENS = 32
"""The longest demonstrated turn has 18 tokens."""

_LEVELS = {"levels": "generated", "min_steps": 1, "max_steps": 10}
"""Not from packs, so that the checkpoints can be rebuilt to the bit whatever ships."""

TASKS: dict[str, dict[str, Any]] = {
    "sokoban": {"game": "ragen_envs.sokoban:Sokoban", **_LEVELS},
    "frozen_lake": {"game": "ragen_envs.frozen_lake:FrozenLake", "slip": 0.1, **_LEVELS},
    "bandit": {"game": "ragen_envs.bandit:Bandit", "max_turns": 1, "max_actions": 1, "max_actions_per_turn": 1},
}
PER_STEP = {"sokoban": 16, "frozen_lake": 8, "bandit": 24}
"""Demonstrations of each game in every optimiser step. Never one game alone: Muon's steps have a fixed size, so a batch
that holds nothing but bandit's coin flips would shake what the other games taught."""

STRAY = 0.1
"""Share of turns that are random and not learned: the turns after them show how to recover."""
FUMBLES = {"tiny-mid": 0.2, "tiny-full": 0.0}
"""Chance that an action of a demonstrated turn is replaced by a random one, and learned as it is. tiny-mid imitates an
imperfect player, as the "medium" data sets of offline RL do, so that trial and error has something to find."""

PAIRS = [frozenset(pair) for s in NAMED.values() for pair in s.train + s.test]
ARMS = sorted(frozenset().union(*PAIRS))
"""Every arm name of every named set."""

TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)


# --- vocabulary -------------------------------------------------------------------------------------------------------


def words() -> list[str]:
    """Every word that a compact prompt or a demonstration can contain, control words first."""
    control = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<unk>"]
    roles = ["system", "user", "assistant"]
    tags = ["<think>", "</think>", "<answer>", "</answer>", SEPARATOR]
    state = ["sokoban", "frozen_lake", "bandit", "size", "player", "boxes", "targets", "done", "walls", "goal", "holes"]
    more = ["arms", "pulled", "points", "left", "note", "go", "push", "pick", "Up", "Down", "Left", "Right"]
    numbers = [str(i) for i in range(21)] + ["0.1", "0.15", "0.25"]
    cells = [f"({r},{c})" for r in range(8) for c in range(8)]
    return [*control, *roles, *tags, *state, *more, *numbers, *STATUSES, *cells, *ARMS]


def build_tokenizer():  # type: ignore[no-untyped-def]
    """A word-level tokenizer: words are separated by white space, and decoding joins them by single spaces."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(words())}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken(w, special=True) for w in list(vocabulary)[:4]])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        unk_token="<unk>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def build_model(vocabulary_size: int, pad: int, eos: int):  # type: ignore[no-untyped-def]
    """A freshly initialised Qwen2 of width 96 with 3 layers and tied embeddings."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocabulary_size,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    return Qwen2ForCausalLM(config)


# --- demonstrations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Demonstration:
    """One episode as token ids, with the tokens to learn marked."""

    ids: list[int]
    learn: list[bool]


def demonstrations(
    policy: LanguagePolicy, rng: np.random.Generator, name: str, n: int, *, fumbles: float
) -> list[Demonstration]:
    """``n`` episodes of one game on train levels, written as turns; an action is random with chance ``fumbles``."""

    def play(**more: Any) -> TextEnv:
        return TextEnv(split="train", prompt="compact", observation="messages", **TASKS[name], **more)

    env = play()
    out = []
    for _ in tqdm(range(n), desc=f"demonstrations: {name}", unit="episode"):
        out.append(_demonstrate(policy, play(pairs=_mixed_pairs(rng)) if name == "bandit" else env, rng, fumbles))
    return out


def _demonstrate(policy: LanguagePolicy, env: TextEnv, rng: np.random.Generator, fumbles: float) -> Demonstration:
    messages, _ = env.reset(seed=int(rng.integers(2**31)))
    ids = policy.prompt_ids(messages)
    learn = [False] * len(ids)
    over = False
    while not over:
        thought, actions = _oracle_turn(env, rng)
        n = env.game.n_actions
        stray = env.game.name != "bandit" and rng.random() < STRAY
        if stray:
            actions = [int(a) for a in rng.integers(n, size=int(rng.integers(1, 4)))]
        elif env.game.name != "bandit":
            actions = [int(rng.integers(n)) if rng.random() < fumbles else a for a in actions]
        names = env.game.action_names(env.level)
        text = f"<think> {thought} </think> <answer> {f' {SEPARATOR} '.join(names[a] for a in actions)} </answer>"
        turn = [*policy.reply_ids(text), *policy.stop_ids]
        ids += turn
        learn += [not stray] * len(turn)
        messages, _, terminated, truncated, _ = env.step(text)
        over = terminated or truncated or _hopeless(env)
        if not over:
            more = policy.observation_ids(messages[-1]["content"], stopped=True)
            ids += more
            learn += [False] * len(more)
    return Demonstration(ids, learn)


def _mixed_pairs(rng: np.random.Generator) -> dict[str, list[list[str]]]:
    """Pairs of arm names that no set has: all names become familiar, and nothing is said about any level."""
    while True:
        a, b, c, d = map(str, rng.choice(ARMS, size=4, replace=False))
        if {a, b} not in PAIRS:
            return {"train": [[a, b]], "test": [[c, d]]}


def _hopeless(env: TextEnv) -> bool:
    values = env.game.oracle(env.state, env.actions_left)
    assert values is not None
    return values.dead_end or values.optimal_steps > env.actions_left


def _oracle_turn(env: TextEnv, rng: np.random.Generator) -> tuple[str, list[int]]:
    """The next sub-goal in words, and the actions that reach it."""
    if env.game.name == "bandit":
        arm = int(rng.integers(2))
        return f"pick {env.game.action_names(env.level)[arm]}", [arm]
    if env.game.name == "frozen_lake":
        return _lake_turn(env, rng)
    return _sokoban_turn(env, rng)


def _best(env: TextEnv, state: object, left: int, rng: np.random.Generator) -> int:
    values = env.game.oracle(state, left)
    assert values is not None
    return int(rng.choice(values.optimal_actions))


def _lake_turn(env: TextEnv, rng: np.random.Generator) -> tuple[str, list[int]]:
    """Up to as many actions as the turns left allow, each the best one if nothing slips."""
    length = math.ceil(env.actions_left / env.turns_left)
    state, actions = env.state, []
    dry = type(env.game)(slip=0.0)  # type: ignore[call-arg]
    for i in range(length):
        action = _best(env, state, env.actions_left - i, rng)
        outcome = dry.step(state, action, rng)
        state = outcome.state
        actions.append(action)
        if outcome.terminated:
            break
    row, column = _player_cell(env.game, state)
    return f"go ({row},{column})", actions


def _sokoban_turn(env: TextEnv, rng: np.random.Generator) -> tuple[str, list[int]]:
    """Walk to a box and push it while the push goes on in one direction; longer if turns run short."""
    game = env.game
    left, turns = env.actions_left, env.turns_left
    state, actions, pushes = env.state, [], []
    cells = []
    for i in range(left):
        action = _best(env, state, left - i, rng)
        cells.append(_player_cell(game, state))
        before = game.grid(state)
        outcome = game.step(state, action, rng)
        pushes.append(_boxes(before) != _boxes(game.grid(outcome.state)))
        actions.append(action)
        state = outcome.state
        if outcome.terminated:
            break
    first = next((i for i, pushed in enumerate(pushes) if pushed), len(actions) - 1)
    end = first
    while end + 1 < len(actions) and pushes[end + 1] and actions[end + 1] == actions[first]:
        end += 1
    needed = len(actions) - env.max_actions_per_turn * (turns - 1)
    length = min(max(end + 1, needed), env.max_actions_per_turn)
    row, column = cells[first]
    name = game.action_names(env.level)[actions[first]]
    return f"go ({row},{column}) push {name}", actions[:length]


def _player_cell(game: object, state: object) -> tuple[int, int]:
    grid = game.grid(state)  # type: ignore[attr-defined]
    row, column = np.argwhere(grid >= (5 if game.name == "sokoban" else 3))[0]  # type: ignore[attr-defined]
    return int(row), int(column)


def _boxes(grid: np.ndarray) -> bytes:
    return ((grid == 3) | (grid == 4)).tobytes()


# --- training ---------------------------------------------------------------------------------------------------------


def batches(data: Sequence[Demonstration], size: int, rng: np.random.Generator) -> Iterator[list[Demonstration]]:
    """Endless random batches of similar length."""
    while True:
        order = np.argsort([len(d.ids) + rng.random() * 8 for d in data], kind="stable")
        chunks = [order[i : i + size] for i in range(0, len(order) - size + 1, size)]
        for k in rng.permutation(len(chunks)):
            yield [data[i] for i in chunks[k]]


def _summed_loss(policy: LanguagePolicy, batch: Sequence[Demonstration]) -> tuple[torch.Tensor, int]:
    """Summed negative log-likelihood of the tokens to learn, in nats, and their number."""
    width = max(len(d.ids) for d in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    attention = torch.zeros_like(ids)
    labels = torch.full_like(ids, -100)
    for i, d in enumerate(batch):
        n = len(d.ids)
        ids[i, :n] = torch.tensor(d.ids)
        attention[i, :n] = 1
        labels[i, :n] = torch.where(torch.tensor(d.learn), ids[i, :n], -100)
    logits = policy.model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    return loss, int((labels[:, 1:] >= 0).sum())


def train(
    policy: LanguagePolicy, data: dict[str, list[Demonstration]], *, steps: int, seed: int, label: str
) -> dict[str, float]:
    """Supervised learning with Muon for the hidden matrices and AdamW for the rest; the rate decays to zero.

    Returns:
        Mean loss of the last 50 steps by game, in nats per token.
    """
    rng = np.random.default_rng(seed)
    hidden: list[torch.nn.Parameter] = []
    rest: list[torch.nn.Parameter] = []
    for name, p in policy.model.named_parameters():
        (hidden if p.ndim == 2 and "embed" not in name else rest).append(p)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(hidden, lr=0.01, weight_decay=0.01, adjust_lr_fn="original"),
        torch.optim.AdamW(rest, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    groups = [group for o in optimizers for group in o.param_groups]
    base = [group["lr"] for group in groups]
    streams = {name: batches(data[name], PER_STEP[name], rng) for name in PER_STEP}
    losses: dict[str, list[float]] = {name: [] for name in PER_STEP}
    bar = tqdm(range(steps), desc=label, unit="step")
    for step in bar:
        rate = min(1.0, (step + 1) / 40) * min(1.0, (steps - step) / (0.6 * steps))
        for group, lr in zip(groups, base, strict=True):
            group["lr"] = lr * rate
        for o in optimizers:
            o.zero_grad()
        total = 0
        for name, stream in streams.items():
            loss, n = _summed_loss(policy, next(stream))
            loss.backward()
            losses[name].append(loss.item() / n)
            total += n
        for p in policy.model.parameters():
            assert p.grad is not None
            p.grad /= total
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        for o in optimizers:
            o.step()
        if step % 20 == 0:
            bar.set_postfix({name: f"{np.mean(values[-20:]):.3f}" for name, values in losses.items()})
    return {name: round(float(np.mean(values[-50:])), 4) for name, values in losses.items()}


def fresh_policy(seed: int) -> LanguagePolicy:
    """An untrained tiny policy."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id)
    return LanguagePolicy(
        model, tokenizer, name="tiny", env_kwargs={"prompt": "compact"}, max_new_tokens=MAX_NEW_TOKENS, tiny=True
    )


# --- measurement ------------------------------------------------------------------------------------------------------

MEASURED = (
    ("ragen/Bandit-v0", "val"),
    ("ragen/Bandit-v0", "test"),
    ("ragen/FrozenLake-v0", "test"),
    ("ragen/Sokoban-v0", "test"),
)


def measure(folder: Path, episodes: int) -> None:
    """Print the table of the card: success on unseen levels with 95 % Wilson intervals, sampled and greedy."""
    print("| checkpoint | environment | split | sampled | greedy | well-formed |\n|---|---|---|---|---|---|")
    for name in FUMBLES:
        policy = LanguagePolicy.load(str(folder / name))
        for env_id, split in MEASURED:
            cells, form = [], ""
            for greedy in (False, True):
                player = Sampler(policy, greedy=greedy)
                played = []
                for part in range(0, episodes, 250):
                    seeds = episode_seeds((7, part), groups=min(250, episodes - part))
                    played += rollout(player, env_id, {"split": split}, seeds)
                cells.append(_wilson(sum(e.success for e in played), len(played)))
                turns = [turn.format_ok for e in played for turn in e.turns]
                form = form or f"{np.mean(turns):.3f}"
            print(f"| {name} | {env_id} | {split} | {cells[0]} | {cells[1]} | {form} |")


def _wilson(k: int, n: int) -> str:
    z = 1.96
    centre, half = (k + z * z / 2) / (n + z * z), z * math.sqrt(k * (n - k) / n + z * z / 4) / (n + z * z)
    return f"{k / n:.3f} [{centre - half:.3f}, {centre + half:.3f}]"


def main() -> None:
    """Build the embedded checkpoints, or measure them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=HERE, help="folder for tiny-mid/ and tiny-full/ (default: here)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--demonstrations", type=int, default=10_000, help="of Sokoban; half as many of the others")
    parser.add_argument("--mid-steps", type=int, default=1_600)
    parser.add_argument("--full-steps", type=int, default=3_000)
    parser.add_argument("--only", choices=("tiny-mid", "tiny-full"))
    parser.add_argument("--measure", type=int, metavar="EPISODES", help="play and print the card's table")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.measure:
        measure(args.out, args.measure)
        return

    for name, steps in (("tiny-mid", args.mid_steps), ("tiny-full", args.full_steps)):
        if args.only not in (None, name):
            continue
        start = time.process_time()
        policy = fresh_policy(args.seed)
        rng = np.random.default_rng(args.seed)
        data = {
            game: demonstrations(
                policy, rng, game, args.demonstrations // (1 if game == "sokoban" else 2), fumbles=FUMBLES[name]
            )
            for game in PER_STEP
        }
        loss = train(policy, data, steps=steps, seed=args.seed, label=name)
        policy.save(args.out / name)
        seconds = time.process_time() - start
        tokens = sum(sum(d.learn) for part in data.values() for d in part)
        report = {"checkpoint": name, "steps": steps, "loss": loss, "learned_tokens": tokens}
        print(json.dumps({**report, "cpu_seconds": round(seconds)}))


if __name__ == "__main__":
    main()
