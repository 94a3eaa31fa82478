"""``python -m benchmarks.training``: where the time of a training iteration goes, tiny model, one thread.

Every function of a phase is timed on its own, without what it calls of other phases, so that a column adds up to the
whole iteration. For a comparison with another trainer see ``benchmarks.trl_grpo``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from ragen_algos import LanguagePolicy, TrainConfig, Trainer, make, trainer
from ragen_algos.sampler import Sampler
from ragen_envs.text_env import TextEnv

ALGORITHMS = ("reinforce", "grpo", "ppo", "starpo-s", "seeupo")
ITERATIONS = 5
"""Counted ones; one of them measures template collapse, as every fifth of a run does."""
PHASES: dict[str, tuple[tuple[Any, str], ...]] = {
    "environments": ((TextEnv, "reset"), (TextEnv, "step"), (TextEnv, "sibling")),
    "sampling: model": ((Sampler, "_feed"),),
    "sampling: choice and text": ((Sampler, "begin"), (Sampler, "reply"), (Sampler, "observe")),
    "diagnostics": ((trainer, "describe"), (trainer, "template_metrics"), (Trainer, "_kl_to_start")),
    "policy forward": ((LanguagePolicy, "log_probs"),),
    "critic forward": ((trainer.Critic, "forward"),),
    "backward": ((torch.Tensor, "backward"),),
    "optimiser": ((Trainer, "_step"),),
}


@contextmanager
def phases() -> Iterator[dict[str, float]]:
    """CPU-seconds of each phase, filled while the context is open."""
    spent: dict[str, float] = defaultdict(float)
    open_phases: list[str] = []
    mark = time.process_time()

    def turn() -> None:
        nonlocal mark
        now = time.process_time()
        spent[open_phases[-1] if open_phases else "rest"] += now - mark
        mark = now

    def timed(function: Any, phase: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            # What diagnostics have the model do is theirs.
            turn()
            open_phases.append("diagnostics" if "diagnostics" in open_phases else phase)
            try:
                return function(*args, **kwargs)
            finally:
                turn()
                open_phases.pop()

        return call

    with ExitStack() as stack:
        for phase, functions in PHASES.items():
            for owner, name in functions:
                stack.enter_context(patch.object(owner, name, timed(getattr(owner, name), phase)))
        yield spent
        turn()


def main() -> None:
    """Some iterations of 128 Sokoban episodes with each algorithm; one before them warms up and is not counted."""
    torch.set_num_threads(1)
    columns: dict[str, dict[str, float]] = {}
    for name in ALGORITHMS:
        config = TrainConfig(iterations=ITERATIONS + 1, groups=16, group_size=8, seed=0)
        run = Trainer(LanguagePolicy.load("tiny-mid"), make(name), "ragen/Sokoban-v0", None, config)
        run.iterate(0)
        before = run.sampled_tokens
        with phases() as spent:
            for i in range(1, ITERATIONS + 1):
                run.iterate(i)
        columns[name] = {**spent, "tokens": run.sampled_tokens - before}
    table = Table(title=f"ragen/Sokoban-v0, 128 episodes per iteration: CPU-seconds, mean of {ITERATIONS} iterations")
    table.add_column("phase")
    for name in columns:
        table.add_column(name, justify="right")
    for phase in (*PHASES, "rest"):
        table.add_row(phase, *(f"{spent.get(phase, 0.0) / ITERATIONS:.3f}" for spent in columns.values()))
    table.add_section()
    whole = [sum(v for k, v in spent.items() if k != "tokens") for spent in columns.values()]
    table.add_row("all", *(f"{seconds / ITERATIONS:.3f}" for seconds in whole))
    rates = [spent["tokens"] / seconds for spent, seconds in zip(columns.values(), whole, strict=True)]
    table.add_row("sampled tokens per CPU-second", *(f"{rate:,.0f}" for rate in rates))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
