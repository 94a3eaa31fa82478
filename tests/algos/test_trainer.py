"""Trainer: updates, what stops them, what repeats exactly, and what a checkpoint keeps.

Where an untrained policy would earn the same everywhere, ``paid`` rewards a token that it samples.
"""

from __future__ import annotations

import copy
import json
import math
import os

import numpy as np
import pytest
import torch
from helpers import CONFIGS, IDS, byte_tokenizer, gpt2, llama, louder, policy_of, qwen, qwen_tokenizer, tiny_mid

from ragen_algos import trainer as module
from ragen_algos.algorithms import make
from ragen_algos.algorithms.reinforce import Reinforce
from ragen_algos.policy import LanguagePolicy
from ragen_algos.rollout import episode_seeds, rollout
from ragen_algos.sampler import Sampler
from ragen_algos.tiny import build
from ragen_algos.trainer import MAX_BAD_STEPS, TrainConfig, Trainer, TrainingError
from ragen_algos.trajectory import collate

BANDIT, SOKOBAN = "ragen/Bandit-v0", "ragen/Sokoban-v0"
every_algorithm = pytest.mark.parametrize(("name", "options"), CONFIGS, ids=IDS)


def small_policy(name: str = "tiny") -> LanguagePolicy:
    policy = policy_of(name)
    policy.max_new_tokens = 6
    return policy


def config(**more) -> TrainConfig:
    return TrainConfig(**{"iterations": 2, "groups": 3, "group_size": 4, "seed": 0, **more})


def train(policy, algorithm, env_id=BANDIT, **more) -> Trainer:
    folder = more.pop("folder", None)
    trainer = Trainer(policy, algorithm, env_id, None, config(**more), folder=folder)
    trainer.run()
    return trainer


def weights(model) -> dict[str, torch.Tensor]:
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def timeless(metrics: list[dict]) -> list[dict]:
    return [{k: v for k, v in row.items() if not k.endswith("_seconds")} for row in metrics]


@pytest.fixture
def paid(monkeypatch):
    """A turn pays 1 more if its first token has an even id, whatever the game says of it."""

    def paying(*args, **more):
        episodes = rollout(*args, **more)
        for episode in episodes:
            for k, turn in enumerate(episode.turns):
                turn.reward += float(episode.ids[episode.turn_id == k][0] % 2 == 0)
        return episodes

    monkeypatch.setattr(module, "rollout", paying)
    return monkeypatch


def share_paid(policy, n: int = 64) -> float:
    episodes = rollout(Sampler(policy, max_new_tokens=1), BANDIT, {"split": "train"}, episode_seeds((77,), groups=n))
    return float(np.mean([e.ids[e.loss_mask][0] % 2 == 0 for e in episodes]))


# --- one update -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", [BANDIT, SOKOBAN])
@every_algorithm
def test_one_update_of_every_algorithm(name, options, env_id, paid):
    """H2, H6, C19: ratio 1 before the first step, finite numbers after it, no reward outside sampled tokens."""
    policy = small_policy()
    before = weights(policy.model)
    batches = []
    update = Trainer._update
    paid.setattr(Trainer, "_update", lambda self, batch, i: batches.append(batch) or update(self, batch, i))
    trainer = train(policy, make(name, **options), env_id, iterations=1)
    (row,) = trainer.metrics
    (batch,) = batches
    assert not batch.rewards[~batch.loss_mask].any()
    assert row["logp_gap"] < 1e-4
    assert row["kl_to_start"] == pytest.approx(0, abs=1e-8)
    assert all(math.isfinite(v) for v in row.values() if isinstance(v, (int, float)))
    assert row["grad_norm"] > 0
    assert row["skipped_steps"] == 0
    stages = trainer.algorithm.schedule(int(batch.turn_id.max()) + 1, torch.Generator())
    assert row["optimizer_steps"] == len(stages) * trainer.algorithm.epochs * trainer.algorithm.minibatches
    dropped = row["dropped_share"] > 0  # what a filter drops was played all the same
    assert (row["sampled_tokens"] > int(batch.loss_mask.sum())) == dropped
    assert 0 < row["entropy"] <= math.log(policy.model.config.vocab_size)
    assert not same(before, weights(policy.model))
    assert same(before, weights(trainer.reference))
    if trainer.algorithm.epochs * trainer.algorithm.minibatches * len(stages) == 1:
        assert row["clip_fraction"] == 0
    assert (trainer.critic is not None) == trainer.algorithm.needs_critic
    if trainer.critic is not None:
        assert row["critic_loss"] > 0
        assert trainer.critic.head.weight.abs().max() > 0


@every_algorithm
def test_two_iterations_of_every_algorithm_on_the_embedded_model(name, options):
    """G4, H6: several steps per batch, so that ratios move; before the first of all they are 1, and the KL is 0."""
    algorithm = make(name, **options)
    steps = {} if "minibatches" in algorithm.unread else {"minibatches": 2}
    algorithm = make(name, **options, **steps)
    metrics = train(tiny_mid(), algorithm, SOKOBAN, groups=2, group_size=2, max_new_tokens=8).metrics
    assert len(metrics) == 2
    for row in metrics:
        assert all(math.isfinite(v) for v in row.values() if isinstance(v, (int, float)))
        assert row["skipped_steps"] == 0
        assert row["logp_gap"] < 1e-4
    assert metrics[0]["kl_to_start"] == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_other_architectures_train_through_full_prompts(kind, paid):
    policy = LanguagePolicy({"gpt2": gpt2, "llama": llama}[kind](), byte_tokenizer(), max_new_tokens=3)
    for algorithm in (make("ppo"), make("reinforce")):
        (row,) = train(policy, algorithm, iterations=1, groups=1).metrics
        assert row["optimizer_steps"] == 1
        assert row["logp_gap"] < 1e-4


def test_qwen_from_a_folder_trains_through_full_prompts(tmp_path, paid):
    """A model and tokenizer as other tools save them; tags and separators are several tokens here."""
    tokenizer, model = qwen_tokenizer(), qwen()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    policy = LanguagePolicy.load(f"hf:{tmp_path}", device="cpu")
    policy.max_new_tokens = 8
    assert policy.env_kwargs == {}
    assert policy.stop_ids == {151645}
    text = "<think>你好</think><answer>Up || Left</answer>"
    assert policy.reply_ids(text) == tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    before = weights(policy.model)
    episodes = []
    trainer = Trainer(policy, make("starpo", optimizer="grpo"), BANDIT, None, config(groups=2, iterations=1))
    paid.setattr(module, "describe", lambda given: episodes.extend(given) or {})
    trainer.run()
    assert trainer.metrics[0]["optimizer_steps"] == 1
    assert trainer.metrics[0]["logp_gap"] < 1e-4
    assert not same(before, weights(policy.model))
    prompt = tokenizer.decode(episodes[0].ids[: int(episodes[0].loss_mask.argmax())])
    assert prompt.startswith("<|im_start|>system\n")
    assert "<think>" in prompt
    assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_sampling_at_another_temperature_than_reported_stops_the_run(monkeypatch):
    """H7, P21: no importance correction hides it."""

    class Warmer(Sampler):
        def _choose(self, logits, uniform):
            return super()._choose(logits / 1.3, uniform)

    monkeypatch.setattr(module, "Sampler", Warmer)
    policy = small_policy()
    before = weights(policy.model)
    with pytest.raises(TrainingError, match="log-probabilities differ"):
        train(policy, make("reinforce"))
    assert same(before, weights(policy.model))


@pytest.mark.parametrize("temperature", [0.7, 1.4])
def test_sampling_and_training_agree_at_any_temperature(temperature, paid):
    """P21."""
    (row,) = train(small_policy(), make("grpo"), iterations=1, temperature=temperature).metrics
    assert row["logp_gap"] < 1e-4


def test_a_context_too_small_for_one_turn_stops_the_run():
    """Talking too long is a failure of an episode; a model that cannot even begin is a mistake of the user."""
    policy = LanguagePolicy(gpt2(positions=64), byte_tokenizer())
    with pytest.raises(TrainingError, match="context of 64 tokens"):
        train(policy, make("reinforce"))


# --- no step without a signal -----------------------------------------------------------------------------------------


# These tell the turns of one episode apart by what followed them, and find something to learn in equal returns too.
BY_TURN = ("gigpo", "ppo", "ppo-bilevel", "ppo-turn")


@pytest.mark.parametrize(("name", "options"), [c for c in CONFIGS if c[0] not in BY_TURN])
def test_equal_returns_leave_parameters_alone(name, options):
    """H10, C20: an untrained policy earns the same in every episode, and nothing moves for it: no entropy either."""
    policy = small_policy()
    before = weights(policy.model)
    algorithm = make(name, **options)
    # A critic starts at 0 and has no opinion yet; after its first step it has one, and there is something to learn.
    trainer = train(policy, algorithm, SOKOBAN, iterations=1 if algorithm.needs_critic else 2)
    assert same(before, weights(policy.model))
    assert trainer.optimizer.state_dict()["state"] == {}
    for row in trainer.metrics:
        assert row["zero_groups"] == 3
        assert row["in_group_std"] == pytest.approx(0, abs=1e-12)
        assert row["optimizer_steps"] == 0
        assert not math.isnan(row["loss"])


def test_momentum_does_not_move_parameters_when_returns_are_equal(paid):
    """H10: parameters and Adam state are bit-identical after an iteration without a signal."""
    trainer = Trainer(small_policy(), make("starpo", optimizer="grpo", lr=1e-2), BANDIT, None, config())
    trainer.iterate(0)
    paid.setattr(module, "rollout", rollout)
    before, state = weights(trainer.policy.model), copy.deepcopy(trainer.optimizer.state_dict()["state"])
    row = trainer.iterate(1)
    assert same(before, weights(trainer.policy.model))
    after = trainer.optimizer.state_dict()["state"]
    assert state.keys() == after.keys()
    assert all(same(state[k], after[k]) for k in state)
    assert row["optimizer_steps"] == 1
    assert row["kl_to_start"] > 0  # the policy is not where it started, step or no step


def test_a_minibatch_without_a_signal_takes_no_step(monkeypatch):
    """H10: of eight one-row minibatches only those of the group with unequal returns count."""

    def pay_one(*args, **more):
        episodes = rollout(*args, **more)
        for e in episodes:
            e.turns[-1].reward = float(e.trajectory_id == 0)
        return episodes

    monkeypatch.setattr(module, "rollout", pay_one)
    trainer = train(small_policy(), make("grpo", minibatches=8), groups=2, iterations=1)
    assert trainer.metrics[0]["optimizer_steps"] == 4


def test_non_finite_losses_are_skipped_counted_and_end_the_run(paid):
    """H14."""
    loss = Reinforce.loss
    broken = set()

    def sometimes(self, *args, **more):
        return loss(self, *args, **more) * (math.nan if trainer.now in broken else 1.0)

    class Watched(Trainer):
        def iterate(self, iteration):
            self.now = iteration
            return super().iterate(iteration)

    paid.setattr(Reinforce, "loss", sometimes)
    broken.update({0, 1, 3, 4, 5, 6})
    trainer = Watched(small_policy(), make("reinforce"), BANDIT, None, config(iterations=7))
    start = weights(trainer.policy.model)
    for i in (0, 1):
        row = trainer.iterate(i)
        assert (row["skipped_steps"], row["optimizer_steps"], trainer.bad_steps) == (1, 0, i + 1)
        assert same(start, weights(trainer.policy.model))
        assert trainer.optimizer.state_dict()["state"] == {}
    row = trainer.iterate(2)
    assert (row["skipped_steps"], row["optimizer_steps"], trainer.bad_steps) == (0, 1, 0)
    broken.update({7, 8})
    assert MAX_BAD_STEPS == 5
    for i in (3, 4, 5, 6):
        trainer.iterate(i)
    with pytest.raises(TrainingError, match="5 non-finite updates in a row"):
        trainer.iterate(7)


def test_a_critic_that_diverges_ends_the_run(paid):
    """H14: good steps of the policy do not hide bad ones of the critic."""
    step = Trainer._critic_step

    def diverging(self, *args):
        loss, _ = step(self, *args)
        return loss, math.nan

    paid.setattr(Trainer, "_critic_step", diverging)
    with pytest.raises(TrainingError, match="non-finite"):
        train(small_policy(), make("ppo"), iterations=5, group_size=2)


# --- invariances ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options"), [("reinforce", {}), ("grpo", {}), ("ppo", {}), ("starpo", {})])
def test_micro_batches_change_nothing(name, options, paid):
    """H5, H11: in float64, as Adam's first step would blow up rounding of gradients near zero."""
    after = []
    for micro in (2, 5, 64):
        policy = small_policy()
        policy.model.double()
        trainer = train(policy, make(name, **options), SOKOBAN, iterations=1, groups=2, micro_batch=micro)
        assert trainer.metrics[0]["optimizer_steps"] == 1
        after.append((weights(policy.model), trainer.metrics[0]))
    for other, row in after[1:]:
        for k, v in after[0][0].items():
            torch.testing.assert_close(other[k], v, atol=1e-6, rtol=0)
        for k in ("loss", "entropy", "grad_norm", "kl_to_start", "critic_loss"):
            assert row[k] == pytest.approx(after[0][1][k], abs=1e-6)


def test_the_order_of_rows_changes_nothing(paid):
    """H11: groups and rows may come in any order."""
    after = []
    for order in (1, -1):
        policy = small_policy()
        policy.model.double()
        trainer = Trainer(policy, make("grpo"), BANDIT, None, config())
        episodes = module.rollout(
            Sampler(policy), BANDIT, {"split": "train"}, episode_seeds((0, 0), groups=3, group_size=4)
        )
        trainer._update(collate(episodes[::order]), 0)
        after.append(weights(policy.model))
    for k, v in after[0].items():
        torch.testing.assert_close(after[1][k], v, atol=1e-6, rtol=0)


@every_algorithm
def test_the_same_run_twice_gives_the_same_numbers(name, options, paid):
    """H12."""
    first, again = (train(small_policy(), make(name, **options), groups=2).metrics for _ in range(2))
    assert timeless(first) == timeless(again)
    other = train(small_policy(), make(name, **options), groups=2, iterations=1, seed=1).metrics
    assert timeless(first[:1]) != timeless(other)


def test_every_algorithm_meets_the_same_levels_whatever_it_did_before(paid):
    """The seeds of an iteration follow from the run's seed and its number alone."""
    paying, met = module.rollout, {}

    def noting(player, env_id, env_kwargs, seeds, **more):
        met[key].append(seeds)
        return paying(player, env_id, env_kwargs, seeds, **more)

    paid.setattr(module, "rollout", noting)
    for key, options in (("once", {}), ("often", {"epochs": 2, "minibatches": 2})):
        met[key] = []
        train(small_policy(), make("grpo", **options))
    assert met["once"] == met["often"]
    assert len({s.level for seeds in met["once"] for s in seeds}) == 2 * 3


def test_training_levels_are_train_levels():
    policy = small_policy()
    trainer = Trainer(policy, make("reinforce"), SOKOBAN, {"split": "test"}, config())
    assert trainer.env_kwargs["split"] == "train"


# --- the reference ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("grpo", {"kl_in": "loss", "kl_kind": "k3"}),
        ("grpo", {"kl_in": "loss", "kl_kind": "k2"}),
        ("grpo", {"kl_in": "reward", "kl_kind": "k1"}),
        ("ppo", {"kl_in": "reward", "kl_kind": "k1"}),
        ("starpo", {}),
        ("starpo", {"optimizer": "reinforce"}),
    ],
)
def test_a_kl_to_the_start_enters_loss_or_reward(name, options, paid):
    """The first step is the same with and without it, as the KL is 0 there; later ones are not."""
    with_kl, without = (
        train(small_policy(), make(name, lr=3e-3, **options, kl_coef=c), iterations=3).metrics for c in (2.0, 0.0)
    )
    assert with_kl[0]["kl_to_start"] == pytest.approx(0, abs=1e-6)
    assert with_kl[1]["kl_to_start"] > 1e-4
    assert with_kl[0]["grad_norm"] == pytest.approx(without[0]["grad_norm"], rel=1e-2)
    assert with_kl[2]["grad_norm"] != pytest.approx(without[2]["grad_norm"], rel=1e-3)


def test_a_strong_kl_keeps_the_policy_near_its_start(paid):
    def last_kl(kl_coef: float) -> float:
        algorithm = make("reinforce", lr=3e-3, kl_coef=kl_coef, kl_kind="k2")
        return train(small_policy(), algorithm, iterations=6, groups=8).metrics[-1]["kl_to_start"]

    assert last_kl(10.0) < 0.5 * last_kl(0.0)


# --- learning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reinforce", "grpo", "gspo", "cispo", "ppo", "ppo-turn", "starpo-s", "seeupo"])
def test_what_pays_is_said_more_often(name, paid):
    """A wrong sign anywhere between reward and step would make it rarer."""
    policy = small_policy()
    before = share_paid(policy)
    train(policy, make(name, lr=3e-3), groups=4, group_size=8, iterations=12, max_new_tokens=1)
    after = share_paid(policy)
    assert 0.2 < before < 0.8
    assert after > before + 0.15


@pytest.mark.parametrize("seed", [0, 1])
def test_the_embedded_checkpoint_learns_the_bandit(seed):
    """Success on train levels: the last three iterations against the first two."""
    algorithm = make("reinforce", lr=5e-4)
    metrics = train(tiny_mid(), algorithm, iterations=10, groups=16, group_size=8, seed=seed).metrics
    success = [row["success"] for row in metrics]
    assert np.mean(success[-3:]) > np.mean(success[:2]) + 0.08
    assert metrics[-1]["format_ok"] > metrics[0]["format_ok"] - 0.05


def test_small_steps_are_not_lost_in_half_precision(paid):
    """Weights are float32 even where the model computes in bfloat16: at this rate bfloat16 weights would not move."""
    policy = small_policy()
    policy.half = True
    before = weights(policy.model)
    (row,) = train(policy, make("reinforce", lr=1e-6), iterations=1).metrics
    assert row["optimizer_steps"] == 1
    after = weights(policy.model)
    assert not any(torch.equal(before[k], after[k]) for k in before)
    lost = torch.cat([(before[k].bfloat16() == after[k].bfloat16()).flatten() for k in before])
    assert float(lost.float().mean()) > 0.95


# --- checkpoints ------------------------------------------------------------------------------------------------------


def adam(trainer: Trainer) -> list[dict]:
    out = []
    for optimizer in (trainer.optimizer, trainer.critic_optimizer):
        if optimizer is not None:
            out += [{k: torch.as_tensor(v) for k, v in s.items()} for s in optimizer.state_dict()["state"].values()]
    return out


@pytest.mark.parametrize(
    ("name", "options"),
    [("reinforce", {}), ("ppo", {"epochs": 2, "minibatches": 2}), ("grpo", {"kl_coef": 0.1}), ("starpo", {})],
)
def test_a_resumed_run_is_the_run_that_was_never_interrupted(name, options, paid, tmp_path):
    """Four iterations at once, or two and two: parameters, critic, Adam state and metrics are bit-identical."""
    algorithm = make(name, lr=1e-3, **options)
    straight = train(small_policy(), algorithm, iterations=4, checkpoint_every=3, folder=tmp_path / "a")
    train(small_policy(), algorithm, iterations=2, folder=tmp_path / "b")
    other_start = louder(small_policy().model, 1.5)  # what a resumed run starts with is in its folder
    policy = small_policy()
    policy.model = other_start
    resumed = Trainer(policy, algorithm, BANDIT, None, config(iterations=4), folder=tmp_path / "b")
    fresh = []
    resumed.on_iteration = lambda row: fresh.append(row["iteration"])
    resumed.run()
    assert fresh == [2, 3]
    assert same(weights(straight.policy.model), weights(policy.model))
    assert same(weights(straight.reference), weights(resumed.reference))
    assert timeless(straight.metrics) == timeless(resumed.metrics)
    assert [row["iteration"] for row in resumed.metrics] == [0, 1, 2, 3]
    a, b = adam(straight), adam(resumed)
    assert len(a) == len(b) > 0
    assert all(same(x, y) for x, y in zip(a, b, strict=True))
    if straight.critic is not None:
        assert same(weights(straight.critic), weights(resumed.critic))
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["iteration-000004", "start"]
    kept = LanguagePolicy.load(str(tmp_path / "b" / "iteration-000004" / "policy"))
    assert same(weights(kept.model), weights(policy.model))


def test_the_start_of_a_run_is_kept(paid, tmp_path):
    """H13."""
    policy = small_policy()
    before = weights(policy.model)
    train(policy, make("reinforce", lr=1e-2), iterations=2, checkpoint_every=1, folder=tmp_path)
    kept = LanguagePolicy.load(str(tmp_path / "start"))
    assert same(weights(kept.model), before)
    assert not same(weights(policy.model), before)
    assert kept.env_kwargs == policy.env_kwargs


def test_a_finished_run_is_not_run_again(paid, tmp_path):
    first = train(small_policy(), make("reinforce"), folder=tmp_path)
    again = train(small_policy(), make("reinforce"), folder=tmp_path)
    assert again.metrics == first.metrics
    assert same(weights(first.policy.model), weights(again.policy.model))


@pytest.mark.parametrize(
    "other",
    [
        {"algorithm": make("reinforce", lr=1e-3)},
        {"algorithm": make("grpo")},
        {"env_id": SOKOBAN},
        {"env_kwargs": {"format_penalty": -0.2}},
        {"config": config(seed=1)},
        {"config": config(group_size=5)},
        {"name": "other"},
        {"config": config(iterations=1)},
    ],
)
def test_a_checkpoint_of_another_run_is_refused(other, tmp_path):
    train(small_policy(), make("reinforce"), folder=tmp_path)
    policy = small_policy()
    policy.name = other.get("name", policy.name)
    before = weights(policy.model)
    trainer = Trainer(
        policy,
        other.get("algorithm", make("reinforce")),
        other.get("env_id", BANDIT),
        other.get("env_kwargs"),
        other.get("config", config()),
        folder=tmp_path,
    )
    with pytest.raises(ValueError, match=r"another run|more than the 1"):
        trainer.run()
    assert same(before, weights(policy.model))


@pytest.mark.parametrize("where", ["replace", "save", "fsync"])
def test_a_run_killed_while_writing_resumes_from_the_checkpoint_before(where, paid, tmp_path):
    """C23: a checkpoint is there whole or not at all."""
    algorithm = make("ppo", lr=1e-3)
    straight = train(small_policy(), algorithm, iterations=3, checkpoint_every=1, folder=tmp_path / "a")
    train(small_policy(), algorithm, iterations=1, folder=tmp_path / "b")

    def killed(*args, **more):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch if where == "save" else os, where, killed)
        with pytest.raises(KeyboardInterrupt):
            train(small_policy(), algorithm, iterations=3, checkpoint_every=1, folder=tmp_path / "b")
    assert [p.name for p in (tmp_path / "b").glob("iteration-*")] == ["iteration-000001"]
    resumed = train(small_policy(), algorithm, iterations=3, checkpoint_every=1, folder=tmp_path / "b")
    assert same(weights(straight.policy.model), weights(resumed.policy.model))
    assert timeless(straight.metrics) == timeless(resumed.metrics)
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["iteration-000003", "start"]


def test_a_start_without_a_checkpoint_belongs_to_nobody(paid, tmp_path):
    """A run killed between its two first folders leaves ``start``; the next run writes its own."""
    other = small_policy()
    louder(other.model, 2.0)
    other.save(tmp_path / "start")
    policy = small_policy()
    before = weights(policy.model)
    train(policy, make("reinforce"), folder=tmp_path)
    assert same(weights(LanguagePolicy.load(str(tmp_path / "start")).model), before)


def test_a_checkpoint_holds_no_code(paid, tmp_path):
    """C24: safetensors, JSON, and an optimiser file that loads with weights only."""
    train(small_policy(), make("ppo"), folder=tmp_path)
    (folder,) = tmp_path.glob("iteration-*")
    assert {p.suffix for p in folder.rglob("*") if p.is_file()} <= {".safetensors", ".json", ".jinja", ".pt"}
    torch.load(folder / "optimizers.pt", weights_only=True)
    state = json.loads((folder / "state.json").read_text())
    assert len(state["metrics"]) == 2


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"iterations": 0},
        {"groups": 0},
        {"group_size": 0},
        {"checkpoint_every": 0},
        {"micro_batch": 0},
        {"max_new_tokens": 0},
        {"temperature": 0.0},
        {"temperature": math.nan},
    ],
)
def test_impossible_sizes_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        config(**wrong)


def test_progress_can_be_shown(paid, capsys):
    trainer = Trainer(small_policy(), make("reinforce"), BANDIT, None, config(), progress=True)
    assert len(trainer.run()) == 2
    assert "reinforce" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_algorithm
def test_training_works_on_cuda(name, options, paid):
    policy = small_policy("llama")
    policy.model.to("cuda")
    for half in (False, True):
        policy.half = half
        (row,) = train(policy, make(name, **options), iterations=1).metrics
        assert row["optimizer_steps"] >= 1
        assert math.isfinite(row["loss"])


def test_the_untrained_embedded_model_has_the_promised_size():
    n = sum(p.numel() for p in build.fresh_policy(0).model.parameters())
    assert 250_000 < n < 500_000
