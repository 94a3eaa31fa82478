"""``python -m benchmarks.trl_grpo [--rounds N]``: GRPO over several turns, ours beside TRL's, in one process.

Both train ``tiny-mid`` on Sokoban: the same environments, 16 levels x 8 episodes per iteration, one optimiser step,
the same micro-batch, advantages of the batch, no KL, one thread. TRL's ``GRPOTrainer`` has a ``rollout_func`` for
several turns and an ``env_mask`` for what the environment said; the rollout given to it here is the usual one,
``generate`` on all conversations that go on, once per turn. The learning rate is next to nothing, so that both do the
same work to the end. Iterations alternate, so that both meet the same noise of the machine; the first of each is not
counted.

*All-in* tokens per CPU-second: tokens that the policy sampled in an iteration, by the CPU-seconds of all of it. What
the environment said, and prompts, are not counted as tokens; their cost is.

Needs TRL: ``pip install trl==1.16.0``.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from ragen_algos import LanguagePolicy, TrainConfig, Trainer, make
from ragen_algos.rollout import EpisodeSeed, Messages, Reply, Tokens, episode_seeds, rollout
from ragen_envs.text_env import TextEnv

ENV = "ragen/Sokoban-v0"
GROUPS, GROUP_SIZE, MICRO_BATCH, LR = 16, 8, 16, 1e-9


class GeneratePlayer:
    """Plays with transformers' ``generate``: every turn, the whole conversation of every episode that goes on."""

    temperature = 1.0

    def __init__(self, policy: LanguagePolicy, model: Any) -> None:
        self.policy, self.model, self.env_kwargs = policy, model, policy.env_kwargs
        answer = policy.tokenizer.convert_tokens_to_ids("</answer>")
        self.stop = [*policy.stop_ids, answer]

    def begin(self, envs: Sequence[TextEnv], prompts: Sequence[Messages], seeds: Sequence[EpisodeSeed]) -> None:
        self.ids = [self.policy.prompt_ids(p) for p in prompts]
        self.mask = [[False] * len(ids) for ids in self.ids]
        self.stopped = [True] * len(prompts)

    def reply(self, rows: Sequence[int]) -> list[Reply]:
        width, pad = max(len(self.ids[r]) for r in rows), self.policy.tokenizer.pad_token_id or 0
        ids = torch.tensor([[pad] * (width - len(self.ids[r])) + self.ids[r] for r in rows])
        attention = torch.tensor([[0] * (width - len(self.ids[r])) + [1] * len(self.ids[r]) for r in rows])
        with torch.no_grad():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=attention,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=self.policy.max_new_tokens,
                eos_token_id=self.stop,
                pad_token_id=pad,
            )
        replies = []
        for r, tokens in zip(rows, out[:, width:].tolist(), strict=True):
            end = next((i + 1 for i, token in enumerate(tokens) if token in self.stop), len(tokens))
            sampled = tokens[:end]
            self.ids[r] += sampled
            self.mask[r] += [True] * end
            self.stopped[r] = sampled[-1] in self.policy.stop_ids
            reason = "stop" if sampled[-1] in self.stop else "length"
            replies.append(Reply(self.policy.primed + self.policy.decode(sampled), reason, end))
        return replies

    def observe(self, rows: Sequence[int], texts: Sequence[str]) -> None:
        for r, text in zip(rows, texts, strict=True):
            more = self.policy.observation_ids(text, stopped=self.stopped[r])
            self.ids[r] += more
            self.mask[r] += [False] * len(more)

    def tokens(self, row: int) -> Tokens:
        n = len(self.ids[row])
        return Tokens(np.array(self.ids[row]), np.array(self.mask[row]), np.zeros(n, int), np.zeros(n, np.float32))


def main() -> None:
    """Alternate, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4, help="counted iterations of each (default 4)")
    rounds = parser.parse_args().rounds
    if rounds < 1:
        parser.error(f"--rounds must be at least 1, got {rounds}")
    if find_spec("trl") is None:
        sys.exit("TRL is not installed: pip install trl==1.16.0")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    torch.set_num_threads(1)
    ours, theirs = measure(rounds)
    Console(width=110).print(table(ours, theirs))


def measure(rounds: int) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """``rollout`` and ``update`` CPU-seconds, ``tokens`` and ``success`` of each iteration; one more than asked for."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    config = TrainConfig(iterations=rounds + 1, groups=GROUPS, group_size=GROUP_SIZE, seed=0, micro_batch=MICRO_BATCH)
    trainer = Trainer(LanguagePolicy.load("tiny-mid"), make("grpo", lr=LR), ENV, None, config)
    policy = LanguagePolicy.load("tiny-mid", device="cpu")
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    now: dict[str, float] = {}

    def our_iteration() -> None:
        played: dict[str, float] = {}
        play = trainer._play

        def timed(seeds: list[EpisodeSeed]) -> Any:
            mark = time.process_time()
            episodes = play(seeds)
            played["rollout"] = time.process_time() - mark
            return episodes

        trainer._play = timed  # type: ignore[method-assign]
        mark, before = time.process_time(), trainer.sampled_tokens
        row = trainer.iterate(len(ours))
        spent = time.process_time() - mark
        trainer._play = play  # type: ignore[method-assign]
        tokens = trainer.sampled_tokens - before
        ours.append({**played, "update": spent - played["rollout"], "tokens": tokens, "success": row["success"]})

    def rollout_func(prompts: list[str], peer: Any) -> dict[str, Any]:
        mark = time.process_time()
        seeds = episode_seeds((1, len(theirs)), groups=GROUPS, group_size=GROUP_SIZE)
        assert len(prompts) == len(seeds)
        player = GeneratePlayer(policy, peer.accelerator.unwrap_model(peer.model))
        episodes = rollout(player, ENV, {"split": "train"}, seeds)
        assert not any(e.error for e in episodes)
        first = [int(e.loss_mask.argmax()) for e in episodes]
        now.update(rollout=time.process_time() - mark, tokens=sum(int(e.loss_mask.sum()) for e in episodes))
        now["success"] = float(np.mean([e.success for e in episodes]))
        return {
            "prompt_ids": [e.ids[:n].tolist() for e, n in zip(episodes, first, strict=True)],
            "completion_ids": [e.ids[n:].tolist() for e, n in zip(episodes, first, strict=True)],
            "env_mask": [e.loss_mask[n:].astype(int).tolist() for e, n in zip(episodes, first, strict=True)],
            "logprobs": None,
            "returns": [e.total_return for e in episodes],
        }

    class Alternate(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            now.setdefault("mark", time.process_time())

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            spent = time.process_time() - now.pop("mark")
            theirs.append({"rollout": now["rollout"], "update": spent - now["rollout"], **now})
            our_iteration()
            now["mark"] = time.process_time()  # fetching the next batch is theirs

    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=MICRO_BATCH,
            gradient_accumulation_steps=GROUPS * GROUP_SIZE // MICRO_BATCH,
            num_generations=GROUP_SIZE,
            max_completion_length=512,
            max_steps=rounds + 1,
            learning_rate=LR,
            beta=0.0,
            scale_rewards="batch",
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        GRPOTrainer(
            model=policy.model,
            reward_funcs=lambda returns, **_: returns,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": [str(i) for i in range(GROUPS)]}),
            processing_class=policy.tokenizer,
            rollout_func=rollout_func,
            callbacks=[Alternate()],
        ).train()
    return ours, theirs


def table(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> Table:
    """By phase; the first iteration of each is left out."""
    out = Table(title=f"{ENV}, {GROUPS * GROUP_SIZE} episodes per iteration, means of {len(ours) - 1} iterations")
    columns = ("", "rollout CPU-s", "update CPU-s", "all CPU-s", "sampled tokens", "success", "all-in tokens/CPU-s")
    for column in columns:
        out.add_column(column, justify="right")
    rates = []
    for name, rows in (("ragen-bench grpo", ours[1:]), ("TRL GRPOTrainer", theirs[1:])):
        rates.append(np.array([r["tokens"] / (r["rollout"] + r["update"]) for r in rows]))
        mean = {key: float(np.mean([r[key] for r in rows])) for key in ("rollout", "update", "tokens", "success")}
        out.add_row(
            name,
            f"{mean['rollout']:.2f}",
            f"{mean['update']:.2f}",
            f"{mean['rollout'] + mean['update']:.2f}",
            f"{mean['tokens']:,.0f}",
            f"{mean['success']:.2f}",
            f"{rates[-1].mean():,.0f}",
        )
    ratio = rates[0] / rates[1]
    out.caption = f"ratio of all-in rates: {ratio.mean():.2f}, in single rounds {ratio.min():.2f} to {ratio.max():.2f}"
    return out


if __name__ == "__main__":
    main()
