"""What the training benchmarks count; nothing here asserts a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from helpers import tiny_mid

from benchmarks import training, trl_grpo
from ragen_algos import TrainConfig, Trainer, make
from ragen_algos.rollout import episode_seeds, rollout
from ragen_envs.text_env import TextEnv


def test_the_rollout_given_to_trl_plays_the_same_game():
    policy = tiny_mid()
    player = trl_grpo.GeneratePlayer(policy, policy.model)
    episodes = rollout(player, trl_grpo.ENV, {"split": "train"}, episode_seeds((1, 0), groups=4, group_size=2))
    assert not any(e.error for e in episodes)
    assert any(len(e.turns) > 1 for e in episodes)
    for e in episodes:
        assert sum(t.n_tokens for t in e.turns) == e.loss_mask.sum()
        said = policy.decode(e.ids[e.loss_mask].tolist())
        assert said.replace(" ", "") == "".join(t.text for t in e.turns).replace(" ", "")
        prompt = e.ids[: int(e.loss_mask.argmax())].tolist()
        assert policy.decode(prompt).startswith("<|im_start|>")


def test_phases_cover_an_iteration_and_leave_nothing_behind():
    step, backward = TextEnv.step, Trainer._step
    config = TrainConfig(iterations=1, groups=2, group_size=2, seed=0)
    trainer = Trainer(tiny_mid(), make("ppo"), "ragen/Sokoban-v0", None, config)
    with training.phases() as spent:
        trainer.iterate(0)
    assert set(spent) == {*training.PHASES, "rest"}
    assert all(seconds >= 0 for seconds in spent.values())
    assert (TextEnv.step, Trainer._step) == (step, backward)


def test_no_rounds_are_a_usage_error():
    command = [sys.executable, "-m", "benchmarks.trl_grpo", "--rounds", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 2
    assert "--rounds must be at least 1" in done.stderr
