"""What is trained on: StarPO-S and its filters, DAPO and its extra batches, and runs that end early."""

from __future__ import annotations

import json
import math

import pytest
import torch
from helpers import policy_of, tiny_mid

from ragen_algos import trainer as module
from ragen_algos.advantages import broadcast_to_tokens, group_advantages, rewards_at_end, token_gae, whiten
from ragen_algos.algorithms import make
from ragen_algos.algorithms.dapo import DAPO
from ragen_algos.algorithms.starpo import StarPO
from ragen_algos.rollout import rollout
from ragen_algos.trainer import MAX_EMPTY_ITERATIONS, TrainConfig, Trainer, TrainingError

torch.set_num_threads(1)

SOKOBAN = "ragen/Sokoban-v0"


def small_policy():
    policy = policy_of("tiny")
    policy.max_new_tokens = 3
    return policy


def train(policy, algorithm, *, folder=None, **more) -> Trainer:
    config = TrainConfig(**{"iterations": 1, "groups": 4, "group_size": 3, "seed": 0, **more})
    trainer = Trainer(policy, algorithm, SOKOBAN, {"max_turns": 2}, config, folder=folder)
    trainer.run()
    return trainer


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.fixture
def games(monkeypatch):
    """The list of seeds of each rollout; ``games.pay`` maps (rollout number, seed, k-th of its group) to a reward."""

    class Games(list):
        pay = staticmethod(lambda call, seed, k: 0.0)

    games = Games()

    def playing(player, env_id, env_kwargs, seeds, **more):
        episodes = rollout(player, env_id, env_kwargs, seeds, **more)
        for k, (e, s) in enumerate(zip(episodes, seeds, strict=True)):
            for turn in e.turns:
                turn.reward = 0.0
            e.turns[-1].reward = games.pay(len(games), s, k % 3)
        games.append(seeds)
        return episodes

    monkeypatch.setattr(module, "rollout", playing)
    return games


@pytest.fixture
def credited(monkeypatch):
    """The batches that reach ``credit``, with what comes out."""
    seen = []
    for cls in (StarPO, DAPO):

        def credit(self, batch, values=None, bootstrap=None, *, ref_logp=None, plain=cls.credit):
            out = plain(self, batch, values, bootstrap, ref_logp=ref_logp)
            seen.append((batch, values, out[0]))
            return out

        monkeypatch.setattr(cls, "credit", credit)
    return seen


# --- StarPO-S ---------------------------------------------------------------------------------------------------------


def test_starpo_s_is_starpo_with_three_changes():
    plain, mine = make("starpo").to_dict(), make("starpo-s").to_dict()
    changed = {k: v for k, v in mine.items() if v != plain[k]}
    assert changed == {"name": "starpo-s", "filter": "top-k", "filter_value": 0.25, "clip_high": 0.28}
    assert mine["kl_coef"] == 0
    assert (mine["optimizer"], mine["entropy_coef"]) == ("ppo", 0.001)
    assert make("starpo-s").needs_critic
    assert not make("starpo-s").needs_reference
    with pytest.raises(ValueError, match="does not read kl_coef"):
        make("starpo-s", kl_coef=0.001)
    assert make("starpo-s-50") == make("starpo-s", filter_value=0.5)
    assert make("starpo-s", filter="top-p-linear", drop_equal=True).filter_value == 0.9
    for options in ({}, {"optimizer": "grpo"}, {"optimizer": "reinforce"}, {"filter": "none"}, {"filter": "min-p"}):
        algorithm = make("starpo-s", **options)
        assert make(**json.loads(json.dumps(algorithm.to_dict()))) == algorithm


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"filter": "top_k"}, "filter must be one of none, top-k"),
        ({"filter_value": 0.0}, "filter_value must be above 0"),
        ({"filter_value": 1.5}, "at most 1"),
        ({"filter": "none", "filter_value": 0.5}, "does not read filter_value"),
        ({"filter": "none", "extra_batches": 1}, "extra_batches replace"),
        ({"extra_batches": -1}, "extra_batches"),
        ({"minibatches": "many"}, "minibatches"),
    ],
)
def test_impossible_filters_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        make("starpo-s", **options)


@pytest.mark.parametrize("optimizer", ["ppo", "grpo"])
def test_the_filter_acts_on_raw_returns_before_any_normalisation(optimizer, games, credited):
    """Groups of spread 1, 5, 0, 3 times a constant: half of them stay, and credit knows of no others."""
    size = {0: 1.0, 1: 5.0, 2: 0.0, 3: 3.0}
    games.pay = lambda call, seed, k: size[seed.group_id] * k - 1
    trainer = train(small_policy(), make("starpo-s-50", optimizer=optimizer))
    ((batch, values, advantages),) = credited
    assert batch.group_id.unique().tolist() == [1, 3]
    assert len(batch) == 6
    if optimizer == "grpo":
        expected = broadcast_to_tokens(group_advantages(batch.returns, batch.group_id, scale="batch"), batch.loss_mask)
    else:
        end = rewards_at_end(batch.returns, batch.loss_mask)
        raw, _ = token_gae(end, values, batch.loss_mask, gamma=1.0, lam=1.0, bootstrap=torch.zeros(6))
        expected = whiten(raw, batch.loss_mask)
    torch.testing.assert_close(advantages, expected)
    (row,) = trainer.metrics
    assert (row["kept_groups"], row["dropped_share"], row["extra_batches"]) == (2, 0.5, 0)
    assert row["optimizer_steps"] == 1
    assert row["zero_groups"] == 1  # of all groups
    assert row["sampled_tokens"] > int(batch.loss_mask.sum())  # what was dropped was played too (H8, H16)


def test_filters_can_be_chosen_for_any_algorithm(games, credited):
    games.pay = lambda call, seed, k: {0: 1.0, 1: 5.0, 2: 0.0, 3: 3.0}[seed.group_id] * k
    for options, groups in (
        ({"filter": "top-k"}, 1),
        ({"filter": "top-p-linear"}, 3),
        ({"filter": "top-p-softmax"}, 2),
        ({"filter": "min-p"}, 2),
        ({"filter": "percentile", "filter_value": 0.25}, 3),
        ({"drop_equal": True}, 3),
        ({}, 4),
    ):
        (row,) = train(small_policy(), make("grpo", **options)).metrics
        assert row["kept_groups"] == groups, options


# --- DAPO -------------------------------------------------------------------------------------------------------------


def test_dapo_is_grpo_with_its_own_settings():
    a = make("dapo")
    assert (a.clip_low, a.clip_high, a.dual_clip, a.aggregation, a.kl_coef) == (0.2, 0.28, 10.0, "token-mean", 0)
    assert (a.drop_equal, a.extra_batches, a.filter) == (True, 3, "none")
    with pytest.raises(ValueError, match="does not read kl_coef"):
        make("dapo", kl_coef=0.1)
    assert make(**json.loads(json.dumps(a.to_dict()))) == a


def test_groups_of_equal_returns_are_replaced_until_there_are_enough(games, credited):
    """Four groups wanted; the first batch has one with a signal, every later one two: two more batches, one surplus."""
    games.pay = lambda call, seed, k: float(k) * (seed.group_id % 4 < (1 if call == 0 else 2))
    trainer = train(small_policy(), make("dapo"))
    ((batch, _, _),) = credited
    assert batch.group_id.unique().tolist() == [0, 4, 5, 8]
    assert len(batch.trajectory_id.unique()) == len(batch) == 12
    (row,) = trainer.metrics
    assert (row["kept_groups"], row["extra_batches"], row["optimizer_steps"]) == (4, 2, 1)
    assert row["dropped_share"] == pytest.approx(8 / 12)
    assert row["zero_groups"] == 3  # of the batch that every algorithm plays
    seeds = [s for seeds in games for s in seeds]
    assert len({s.sampling for s in seeds}) == len(seeds) == 36
    assert len({s.level for s in seeds}) == 12
    plain = list(games[0])
    games.clear()
    train(small_policy(), make("grpo"))
    assert games[0] == plain


@pytest.mark.parametrize("cap", [0, 2])
def test_the_cap_ends_the_search_and_an_empty_iteration_changes_nothing(cap, games):
    """C20, H10: all returns equal; parameters and Adam state stay, nothing is NaN, everything played is counted."""
    policy = small_policy()
    before = weights(policy.model)
    trainer = train(policy, make("dapo", extra_batches=cap))
    assert len(games) == 1 + cap
    (row,) = trainer.metrics
    assert (row["kept_groups"], row["dropped_share"], row["extra_batches"]) == (0, 1.0, cap)
    assert row["optimizer_steps"] == 0
    assert all(math.isfinite(v) for v in row.values() if isinstance(v, float))
    assert row["entropy"] > 0
    assert torch.equal(before, weights(policy.model))
    assert trainer.optimizer.state_dict()["state"] == {}


def test_what_was_found_is_trained_on_when_the_cap_is_reached(games):
    games.pay = lambda call, seed, k: float(k) * (seed.group_id == 2)
    (row,) = train(small_policy(), make("dapo", extra_batches=1)).metrics
    assert (row["kept_groups"], row["extra_batches"], row["optimizer_steps"]) == (1, 1, 1)


def test_a_run_ends_after_some_empty_iterations_and_stays_ended(games, tmp_path):
    """C20: with a message; a resumed run does not start again."""
    assert MAX_EMPTY_ITERATIONS == 5
    algorithm = make("dapo", extra_batches=0)
    with pytest.warns(UserWarning, match="after 5 iterations: the filter kept no group"):
        trainer = train(small_policy(), algorithm, iterations=9, folder=tmp_path)
    assert len(trainer.metrics) == 5
    again = train(small_policy(), algorithm, iterations=9, folder=tmp_path)
    assert again.stopped == trainer.stopped != ""
    assert len(again.metrics) == len(games) == 5


def test_one_group_with_a_signal_keeps_a_run_going(games):
    games.pay = lambda call, seed, k: float(k) * (call == 4)
    assert len(train(small_policy(), make("dapo", extra_batches=0), iterations=7).metrics) == 7


def test_overlong_rules_reach_the_credit():
    """Turns of 1, 3 and 4 tokens, limit 4, buffer 2: penalties 0, -.5, -1, summed over the turns of an episode."""
    from test_seeupo import fake

    batch = fake([[1, 3], [4, 4], [1]], [1.0, 0.0, 2.0])
    plain = make("dapo", scale="none").credit(batch)[0]
    punished = make("dapo", scale="none", overlong="penalty", overlong_limit=4, overlong_buffer=2).credit(batch)[0]
    returns = torch.tensor([0.5, -2.0, 2.0]).double()
    torch.testing.assert_close(punished, broadcast_to_tokens(returns - returns.mean(), batch.loss_mask))
    masked = make("dapo", scale="none", overlong="mask", overlong_limit=4).credit(batch)[0]
    assert torch.equal(masked[[0, 2]], plain[[0, 2]])
    assert not masked[1].any()
    for options, match in (
        ({"overlong": "cut"}, "overlong must be one of"),
        ({"overlong": "mask"}, "overlong_limit goes with"),
        ({"overlong_limit": 5}, "overlong_limit goes with"),
        ({"overlong": "penalty", "overlong_limit": 4, "overlong_buffer": 5}, "must not be larger"),
        ({"overlong": "mask", "overlong_limit": 4, "overlong_buffer": 2}, "overlong_buffer goes with"),
    ):
        with pytest.raises(ValueError, match=match):
            make("dapo", **options)


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("starpo-s", {}),
        ("starpo-s-50", {"optimizer": "grpo"}),
        ("starpo-s", {"filter": "top-p-linear", "drop_equal": True}),
        ("dapo", {}),
    ],
)
def test_two_iterations_on_the_embedded_model(name, options):
    trainer = train(tiny_mid(), make(name, **options), iterations=2, groups=4, group_size=4)
    for row in trainer.metrics:
        assert all(math.isfinite(v) for v in row.values() if isinstance(v, float))
        assert row["logp_gap"] < 1e-3
        assert 0 <= row["dropped_share"] < 1
    assert not torch.equal(weights(trainer.policy.model), weights(trainer.reference))


@pytest.mark.parametrize("name", ["starpo-s", "dapo"])
def test_a_resumed_run_is_the_run_that_was_never_interrupted(name, games, tmp_path):
    games.pay = lambda call, seed, k: float(k * (seed.level % 2))
    algorithm = make(name, lr=1e-3)
    straight = train(small_policy(), algorithm, iterations=4, folder=tmp_path / "a")
    train(small_policy(), algorithm, iterations=2, folder=tmp_path / "b")
    resumed = train(small_policy(), algorithm, iterations=4, folder=tmp_path / "b")
    assert torch.equal(weights(straight.policy.model), weights(resumed.policy.model))
    rows = [
        [{k: v for k, v in r.items() if not k.endswith("_seconds")} for r in t.metrics] for t in (straight, resumed)
    ]
    assert rows[0] == rows[1]
    assert any(r["dropped_share"] for r in rows[0])


def test_a_nan_in_a_filtered_update_never_reaches_the_weights(games, monkeypatch):
    """H14."""
    games.pay = lambda call, seed, k: float(k)
    surrogate = DAPO.surrogate
    monkeypatch.setattr(DAPO, "surrogate", lambda self, *args: surrogate(self, *args) * math.nan)
    policy = small_policy()
    before = weights(policy.model)
    with pytest.raises(TrainingError, match="5 non-finite updates in a row"):
        train(policy, make("dapo"), iterations=6)
    assert torch.equal(before, weights(policy.model))


def test_a_collapse_ends_a_run_only_if_asked_to(games, monkeypatch, tmp_path):
    """The monitor's verdict; a resumed run ends where the uninterrupted one does."""
    games.pay = lambda call, seed, k: float(k)

    class Verdict:
        def __init__(self, level):
            self.level = level

        def to_row(self):
            return {"verdict": self.level, "signals": [], "alarm": "it broke"}

    def update(self, row):
        return Verdict("collapsed" if row["iteration"] >= 2 else "healthy")

    monkeypatch.setattr(module.EchoTrapMonitor, "update", update)
    algorithm = make("grpo")
    assert len(train(small_policy(), algorithm, iterations=4).metrics) == 4
    with pytest.warns(UserWarning, match="after 3 iterations: it broke"):
        straight = train(small_policy(), algorithm, iterations=4, stop_on_collapse=True)
    train(small_policy(), algorithm, iterations=2, stop_on_collapse=True, folder=tmp_path)
    more = {"iterations": 4, "stop_on_collapse": True, "folder": tmp_path}
    with pytest.warns(UserWarning, match="after 3 iterations: it broke"):
        train(small_policy(), algorithm, **more)
    resumed = train(small_policy(), algorithm, **more)  # there is nothing left to do
    assert resumed.stopped == "it broke"
    assert len(resumed.metrics) == 3
    assert torch.equal(weights(straight.policy.model), weights(resumed.policy.model))


def test_few_levels_are_the_same_ones_in_every_iteration(monkeypatch, tmp_path):
    played: list[list[int]] = []
    play = Trainer._play

    def record(self, seeds):
        played.append([s.level for s in seeds])
        assert len({s.dynamics for s in seeds}) == len({s.sampling for s in seeds}) == len(seeds)
        return play(self, seeds)

    monkeypatch.setattr(Trainer, "_play", record)
    train(small_policy(), make("grpo"), iterations=3, levels=6)
    groups = [level for batch in played for level in batch[::3]]
    assert len(set(groups)) == 6
    assert groups == [groups[i % 6] for i in range(12)]  # in turn, each as often as any other
    straight = list(played)
    played.clear()
    for iterations in (2, 3):  # also after a resume
        train(small_policy(), make("grpo"), iterations=iterations, levels=6, folder=tmp_path)
    assert played == straight
    played.clear()
    train(small_policy(), make("grpo"), iterations=2)
    assert not set(played[0]) & set(played[1])
    with pytest.raises(ValueError, match="levels must be at least 1"):
        TrainConfig(iterations=1, groups=1, group_size=1, seed=0, levels=0)
