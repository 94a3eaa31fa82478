"""``python -m benchmarks.training``: where the time of a training iteration goes, tiny model, one thread."""

from __future__ import annotations

import time

import torch
from rich.console import Console
from rich.table import Table

from ragen_algos import LanguagePolicy, TrainConfig, Trainer, make

ALGORITHMS = ("reinforce", "grpo", "ppo")


def main() -> None:
    """Three iterations of 128 Sokoban episodes with each algorithm; the first one warms up and is not counted."""
    torch.set_num_threads(1)
    table = Table(title="ragen/Sokoban-v0, 128 episodes per iteration, mean of 2 iterations")
    for column in ("algorithm", "rollout s", "update s", "CPU-s", "sampled tokens/CPU-s"):
        table.add_column(column, justify="right")
    for name in ALGORITHMS:
        config = TrainConfig(iterations=3, groups=16, group_size=8, seed=0)
        trainer = Trainer(LanguagePolicy.load("tiny-mid"), make(name), "ragen/Sokoban-v0", None, config)
        trainer.iterate(0)
        start, tokens = time.process_time(), trainer.sampled_tokens
        rows = [trainer.iterate(i) for i in (1, 2)]
        cpu = time.process_time() - start
        table.add_row(
            name,
            f"{sum(r['rollout_seconds'] for r in rows) / 2:.2f}",
            f"{sum(r['update_seconds'] for r in rows) / 2:.2f}",
            f"{cpu / 2:.2f}",
            f"{(trainer.sampled_tokens - tokens) / cpu:,.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
