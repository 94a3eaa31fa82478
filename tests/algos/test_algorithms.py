"""The algorithm table: names, options, and that each algorithm is the combination of formulas its docstring claims."""

from __future__ import annotations

import dataclasses
import json
import re
import sys

import numpy as np
import pytest
import torch
from helpers import CONFIGS, IDS

from ragen_algos.advantages import (
    bilevel_gae,
    broadcast_to_tokens,
    gigpo_advantages,
    group_advantages,
    mt_grpo_advantages,
    returns_to_go,
    rewards_at_end,
    token_gae,
    turn_gae,
    turns_to_tokens,
    whiten,
)
from ragen_algos.algorithms import Algorithm, list_algorithms, make
from ragen_algos.losses import aggregate, clip_fraction, global_denominator, kl_penalty, policy_loss
from ragen_algos.presets import PRESETS
from ragen_algos.trajectory import Batch, Trajectory, Turn, collate

torch.set_num_threads(1)


def episode(group: int, index: int, rewards: list[float], *, truncated=False, terminated=True, tokens=2) -> Trajectory:
    """A prompt of two tokens, then per turn ``tokens`` sampled tokens and two observation tokens."""
    turns, mask, turn_id = [], [False, False], [-1, -1]
    for k, reward in enumerate(rewards):
        turns.append(Turn("", "", "stop", "ok", True, "", 1, reward, 0.0, "", "", tokens))
        mask += [True] * tokens + [False, False]
        turn_id += [k] * tokens + [-1, -1]
    rng = np.random.default_rng(index)
    loss_mask = np.array(mask)
    logp = np.where(loss_mask, -rng.random(len(mask)), 0).astype(np.float32)
    return Trajectory(
        group_id=group,
        trajectory_id=index,
        seed=0,
        dynamics_seed=0,
        turns=turns,
        terminated=terminated,
        truncated=truncated,
        ids=rng.integers(0, 9, len(mask)),
        loss_mask=loss_mask,
        turn_id=np.array(turn_id),
        logp=logp,
    )


@pytest.fixture
def batch() -> Batch:
    return collate(
        [
            episode(0, 0, [-0.1, 1.0]),
            episode(0, 1, [-0.1], tokens=4),
            episode(0, 2, [0.0, -0.1, -0.1]),
            episode(1, 3, [2.0]),
            episode(1, 4, [0.0, 0.5], truncated=True, terminated=False),
            episode(1, 5, [-0.2]),
        ]
    )


@pytest.fixture
def critic(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(batch.ids.shape, generator=g), torch.randn(len(batch), generator=g)


def truncation_only(batch: Batch, bootstrap: torch.Tensor) -> torch.Tensor:
    return torch.where(batch.truncated, bootstrap.double(), 0.0)


def test_names_are_listed_and_typos_get_a_suggestion():
    """An unknown name is an error that helps."""
    names = list_algorithms()
    assert names == sorted(names)
    assert all(isinstance(make(name), Algorithm) for name in [*names, *PRESETS])
    known = ", ".join(sorted([*names, *PRESETS]))
    with pytest.raises(ValueError, match=re.escape(f"{known}; did you mean 'reinforce'?")):
        make("reinforc")
    with pytest.raises(ValueError, match=r"did you mean 'ppo'\?"):
        make("PPO")
    with pytest.raises(ValueError, match=r"valid options: lr.*did you mean 'clip_low'\?"):
        make("ppo", cliplow=0.1)


@pytest.mark.parametrize(("name", "options"), CONFIGS, ids=IDS)
def test_algorithms_are_frozen_and_round_trip_through_json(name, options):
    """H15: what is stored with a result rebuilds the same algorithm."""
    algorithm = make(name, lr=3e-4, **options)
    stored = json.loads(json.dumps(algorithm.to_dict()))
    assert stored["name"] == name
    assert make(**stored) == algorithm
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.lr = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("name", list_algorithms())
def test_each_file_explains_its_algorithm_in_the_common_form(name):
    """Five headings, in order."""
    text = sys.modules[type(make(name)).__module__].__doc__ or ""
    places = [text.find(f"\n{h}\n") for h in ("Objective", "Symbols", "Source", "Defaults", "Known weaknesses")]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": "fast"}, "lr must be a finite number"),
        ({"lr": float("nan")}, "lr must be a finite number"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1.5}, "epochs"),
        ({"minibatches": True}, "minibatches"),
        ({"clip_low": 1.2}, "clip_low"),
        ({"clip_high": -0.1}, "clip_high"),
        ({"dual_clip": 1.0}, "dual_clip must be above 1"),
        ({"gamma": 1.1}, "gamma"),
        ({"value_clip": 0.0}, "value_clip"),
        ({"aggregation": "mean"}, "aggregation must be one of token-mean"),
        ({"aggregation": "sum/const"}, "aggregation_const goes with"),
        ({"aggregation_const": 5.0}, "aggregation_const goes with"),
        ({"kl_kind": "k4"}, "kl_kind"),
        ({"kl_in": "both"}, "kl_in"),
        ({"truncated": "mask"}, "truncated must be one of bootstrap, terminal"),
        ({"kl_coef": 0.1, "kl_kind": "k1"}, "expected gradient of zero"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0"),
    ],
)
def test_impossible_options_are_rejected(options, match):
    """Every value is checked when the algorithm is built."""
    with pytest.raises(ValueError, match=match):
        make("ppo", **options)


@pytest.mark.parametrize(
    ("name", "options", "unread"),
    [
        ("reinforce", {}, "epochs=4 minibatches=2 clip_high=0.28 dual_clip=3.0 gamma=0.9 lam=0.9 critic_lr=2e-3"),
        ("grpo", {}, "gamma=0.9 lam=0.9 critic_lr=2e-3 value_clip=0.2"),
        ("rloo", {}, "gamma=0.9 lam=0.9 critic_lr=2e-3"),
        ("reinforce++", {}, "lam=0.9 value_clip=0.2"),
        ("dr-grpo", {}, "gamma=0.9"),
        ("gspo", {}, "gamma=0.9"),
        ("cispo", {}, "gamma=0.9 dual_clip=2.0"),
        ("gigpo", {}, "lam=0.9 critic_lr=2e-3"),
        ("mt-grpo", {}, "gamma=0.9"),
        ("starpo", {"optimizer": "reinforce"}, "epochs=4 clip_high=0.28 dual_clip=2.0 gamma=0.9"),
        ("starpo", {"optimizer": "grpo"}, "lam=0.9 value_clip=0.2"),
    ],
)
def test_an_option_that_would_not_be_read_cannot_be_set(name, options, unread):
    """S3: what a result records had an effect."""
    for pair in unread.split():
        key, value = pair.split("=")
        number = float(value) if "." in value or "e" in value else int(value)
        with pytest.raises(ValueError, match=f"does not read {key}"):
            make(name, **options, **{key: number})
    with pytest.raises(ValueError, match="does not read scale"):
        make("starpo", scale="group")


def test_reinforce_and_grpo_credit_are_group_relative(batch):
    """Baseline and scale are passed on; every sampled token of a row gets the same number."""
    for name in ("reinforce", "grpo"):
        for scale in ("none", "batch", "group"):
            expected = group_advantages(batch.returns, batch.group_id, scale=scale)
            advantages, _ = make(name, scale=scale).credit(batch)
            torch.testing.assert_close(advantages, broadcast_to_tokens(expected, batch.loss_mask))
    assert make("reinforce").scale == make("grpo").scale == "batch"
    raw, _ = make("reinforce", scale="none", baseline="none").credit(batch)
    torch.testing.assert_close(raw, broadcast_to_tokens(batch.returns, batch.loss_mask))
    with pytest.raises(ValueError, match="scale must be one of"):
        make("grpo", scale="std")
    with pytest.raises(ValueError, match="baseline must be one of"):
        make("reinforce", baseline="loo")


def test_ppo_credit_is_whitened_token_gae_with_rewards_on_their_turns(batch, critic):
    """P2, P19: turn rewards stay on their turn; targets are raw advantages plus values."""
    values, bootstrap = critic
    algorithm = make("ppo", gamma=0.99, lam=0.95)
    advantages, targets = algorithm.credit(batch, values, bootstrap)
    raw, expected = token_gae(
        batch.rewards,
        values,
        batch.loss_mask,
        gamma=0.99,
        lam=0.95,
        bootstrap=truncation_only(batch, bootstrap),
    )
    torch.testing.assert_close(advantages, whiten(raw, batch.loss_mask))
    torch.testing.assert_close(targets, expected)


CRITICS = ["ppo", "ppo-bilevel", "ppo-turn", "starpo"]


@pytest.mark.parametrize("name", CRITICS)
def test_a_row_that_is_both_terminated_and_truncated_is_not_continued(name):
    """C4, scenario 2: r=1, V(s)=.25, V(next)=10 gives .75 (10.75 would be the bug)."""
    both = collate([episode(0, 0, [1.0], tokens=1, truncated=True, terminated=True)])
    values = torch.full(both.ids.shape, 0.25)
    for truncated in (both.truncated, torch.ones(1).bool()):
        both.truncated = truncated
        _, targets = make(name).credit(both, values, torch.tensor([10.0]))
        assert (targets[both.loss_mask] - 0.25).item() == pytest.approx(0.75)


def test_turn_algorithms_are_their_formulas(batch, critic):
    """Rewards, turns, sights, groups and the bootstrap of truncated rows reach the pure functions."""
    values, bootstrap = critic
    rest = truncation_only(batch, bootstrap)
    raw, target, played = turn_gae(batch.rewards, values, batch.turn_id, gamma=0.99, lam=0.9, bootstrap=rest)
    expected = tuple(turns_to_tokens(x, batch.turn_id) for x in (whiten(raw, played), target))
    torch.testing.assert_close(make("ppo-turn").credit(batch, values, bootstrap), expected)
    discounts = {"gamma": 1.0, "lam": 1.0, "turn_gamma": 0.95}
    raw, target = bilevel_gae(batch.rewards, values, batch.loss_mask, batch.turn_end, **discounts, bootstrap=rest)
    bilevel = make("ppo-bilevel").credit(batch, values, bootstrap)
    torch.testing.assert_close(bilevel, (whiten(raw, batch.loss_mask), target))
    batch.observation_id[batch.turn_id >= 0] = batch.turn_id[batch.turn_id >= 0]
    expected = gigpo_advantages(batch.rewards, batch.turn_id, batch.observation_id, batch.group_id, gamma=0.95)
    torch.testing.assert_close(make("gigpo").credit(batch)[0], expected)
    expected = mt_grpo_advantages(batch.rewards, batch.turn_id, batch.group_id, scale="group")
    torch.testing.assert_close(make("mt-grpo", scale="group").credit(batch)[0], expected)


def test_reinforce_pp_credit_is_the_whitened_return_to_go(batch):
    """The return of the episode, less that of the group in the variant, at its end; KL and discount per token."""
    mask, ref = batch.loss_mask, batch.logp - torch.rand(batch.logp.shape, generator=torch.Generator().manual_seed(0))
    for baseline in ("none", "mean"):
        own = group_advantages(batch.returns, batch.group_id, baseline=baseline)
        rewards = rewards_at_end(own, mask) - 0.1 * torch.where(mask, batch.logp - ref, 0.0)
        algorithm = make("reinforce++", baseline=baseline, gamma=0.9, kl_coef=0.1)
        expected = whiten(returns_to_go(rewards, mask, 0.9), mask)
        torch.testing.assert_close(algorithm.credit(batch, ref_logp=ref)[0], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ppo-turn", {"gamma": 0.5}),
        ("ppo-turn", {"lam": 0.5}),
        ("ppo-turn", {"v_at": "end"}),
        ("ppo-turn", {"truncated": "terminal"}),
        ("ppo-bilevel", {"gamma": 0.5}),
        ("ppo-bilevel", {"lam": 0.5}),
        ("ppo-bilevel", {"turn_gamma": 0.5}),
        ("ppo-bilevel", {"truncated": "terminal"}),
        ("gigpo", {"gamma": 0.5}),
        ("gigpo", {"step_weight": 0.5}),
        ("gigpo", {"scale": "group"}),
        ("mt-grpo", {"turn_weight": 0.5}),
        ("mt-grpo", {"scale": "none"}),
        ("gspo", {"scale": "group"}),
        ("cispo", {"scale": "none"}),
        ("reinforce++", {"baseline": "mean"}),
        ("reinforce++", {"gamma": 0.5}),
    ],
)
def test_credit_options_are_read(name, options, batch, critic):
    """S3."""
    inputs = critic if make(name).needs_critic else ()
    default, changed = (make(name, **o).credit(batch, *inputs)[0] for o in ({}, options))
    assert not torch.allclose(default, changed)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("gigpo", {"scale": "std"}, "scale must be one of"),
        ("gigpo", {"step_weight": -1.0}, "step_weight must be at least 0"),
        ("mt-grpo", {"turn_weight": float("inf")}, "turn_weight must be a finite number"),
        ("ppo-turn", {"v_at": "middle"}, "v_at must be one of start, end"),
        ("ppo-bilevel", {"turn_gamma": 1.5}, "turn_gamma must be at least"),
        ("reinforce++", {"baseline": "leave-one-out"}, "baseline must be one of none, mean"),
        ("dr-grpo", {"aggregation_const": None}, "aggregation_const goes with"),
        ("rloo", {"kl_coef": 0.1, "kl_in": "loss"}, "expected gradient of zero"),
    ],
)
def test_impossible_options_of_one_algorithm_are_rejected(name, options, match):
    with pytest.raises(ValueError, match=match):
        make(name, **options)


@pytest.mark.parametrize("name", CRITICS)
def test_a_critic_algorithm_asks_for_what_it_needs(name, batch, critic):
    """P19: a truncated row without a bootstrap value is an error, not silently an end."""
    algorithm = make(name, truncated="bootstrap")
    assert algorithm.needs_critic
    with pytest.raises(ValueError, match="pass values"):
        algorithm.credit(batch)
    with pytest.raises(ValueError, match="row 4 is truncated"):
        algorithm.credit(batch, critic[0])
    finished = batch.rows([0, 1, 2, 3])
    algorithm.credit(finished, critic[0][:4, : finished.ids.shape[1]])
    terminal = make(name, truncated="terminal")
    for bootstrap in (None, critic[1]):
        torch.testing.assert_close(
            terminal.credit(batch, critic[0], bootstrap), algorithm.credit(batch, critic[0], torch.zeros(len(batch)))
        )
    with pytest.raises(ValueError, match="has no critic"):
        make("grpo").critic_loss(*[critic[0]] * 3, batch.loss_mask, 1.0)


def test_starpo_variants_follow_the_table(batch, critic):
    """Section 5 of the formulas: credit, aggregation and place of the KL of each variant."""
    mask, (values, bootstrap) = batch.loss_mask, critic
    ppo, grpo, reinforce = (make("starpo", optimizer=o) for o in ("ppo", "grpo", "reinforce"))
    assert (ppo.aggregation, ppo.kl_in, ppo.kl_kind) == ("token-mean", "reward", "k1")
    assert (grpo.aggregation, grpo.kl_in, grpo.kl_kind) == ("seq-mean-token-mean", "loss", "k3")
    assert (reinforce.aggregation, reinforce.kl_in) == ("token-mean", "loss")
    assert all((a.kl_coef, a.clip_low, a.clip_high, a.dual_clip) == (0, 0.2, 0.2, 3.0) for a in (ppo, grpo, reinforce))

    end = rewards_at_end(batch.returns, mask)
    raw, targets = token_gae(end, values, mask, gamma=1.0, lam=1.0, bootstrap=torch.zeros(len(batch)))
    torch.testing.assert_close(ppo.credit(batch, values), (whiten(raw, mask), targets))
    raw, targets = token_gae(end, values, mask, gamma=1.0, lam=1.0, bootstrap=truncation_only(batch, bootstrap))
    bootstrapped = make("starpo", optimizer="ppo", truncated="bootstrap").credit(batch, values, bootstrap)
    torch.testing.assert_close(bootstrapped, (whiten(raw, mask), targets))
    by_group = group_advantages(batch.returns, batch.group_id, scale="group")
    torch.testing.assert_close(
        make("starpo", optimizer="grpo", scale="group").credit(batch)[0], broadcast_to_tokens(by_group, mask)
    )
    others = group_advantages(batch.returns, batch.group_id, scale="batch", baseline="leave-one-out")
    torch.testing.assert_close(reinforce.credit(batch)[0], broadcast_to_tokens(others, mask))
    with pytest.raises(ValueError, match="optimizer must be one of ppo, grpo, reinforce"):
        make("starpo", optimizer="dapo")


def test_kl_in_the_reward_is_taken_off_sampled_tokens_only(batch, critic):
    """P23: the reference at masked slots changes nothing; at sampled ones it lowers the return by beta (lp - ref)."""
    values, bootstrap = critic
    ref = batch.logp - 0.1
    dirty = torch.where(batch.loss_mask, ref, float("nan"))
    for name, options in CONFIGS:
        if "kl_coef" in make(name, **options).unread:
            continue
        algorithm = make(name, **options, kl_coef=0.5, kl_in="reward", kl_kind="k1")
        torch.testing.assert_close(
            algorithm.credit(batch, values, bootstrap, ref_logp=dirty),
            algorithm.credit(batch, values, bootstrap, ref_logp=ref),
        )
        with pytest.raises(ValueError, match="needs ref_logp"):
            algorithm.credit(batch, values, bootstrap)
    algorithm = make("reinforce", scale="none", baseline="none", kl_coef=0.5, kl_in="reward", kl_kind="k1")
    per_row = algorithm.credit(batch, ref_logp=ref)[0].amin(1)
    expected = batch.returns - 0.5 * 0.1 * batch.loss_mask.sum(1)
    torch.testing.assert_close(per_row, torch.minimum(expected, torch.zeros_like(expected)), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "options"), CONFIGS, ids=IDS)
def test_the_loss_is_surrogate_minus_entropy_plus_kl_over_one_denominator(name, options, batch):
    """Relation 4.3 (total actor loss), P11 (one normaliser for all three)."""
    if "kl_coef" in make(name, **options).unread:
        pytest.skip("has no KL")
    algorithm = make(name, **options, kl_coef=0.2, kl_in="loss", kl_kind="k2", **{"entropy_coef": 0.01})
    g = torch.Generator().manual_seed(0)
    old = batch.logp.double()
    logp, ref = (old + 0.1 * torch.randn(old.shape, generator=g, dtype=torch.float64) for _ in range(2))
    advantages, h = (torch.randn(old.shape, generator=g, dtype=torch.float64) for _ in range(2))
    mask, how = batch.loss_mask, algorithm.aggregation
    d = algorithm.denominator(mask)
    assert d == global_denominator(mask, how, algorithm.aggregation_const)
    pg = algorithm.surrogate(logp, old, advantages, mask, d)
    kl = aggregate(kl_penalty(logp, ref, "k2"), mask, how, d)
    expected = pg - 0.01 * aggregate(h, mask, how, d) + 0.2 * kl
    torch.testing.assert_close(algorithm.loss(logp, old, advantages, mask, d, ref_logp=ref, entropy=h), expected)
    assert algorithm.needs_reference
    with pytest.raises(ValueError, match="needs ref_logp"):
        algorithm.loss(logp, old, advantages, mask, d, entropy=h)
    with pytest.raises(ValueError, match="needs entropy"):
        algorithm.loss(logp, old, advantages, mask, d, ref_logp=ref)


CLIPPED = [
    ("dr-grpo", {}),
    ("gigpo", {}),
    ("grpo", {}),
    ("gspo", {}),
    ("mt-grpo", {}),
    ("ppo", {}),
    ("ppo-bilevel", {}),
    ("ppo-turn", {}),
    ("reinforce++", {}),
    ("rloo", {}),
    ("starpo", {}),
    ("starpo", {"optimizer": "grpo"}),
]


@pytest.mark.parametrize(("name", "options"), CLIPPED)
def test_clip_options_reach_the_surrogate(name, options, batch):
    """S3: each of the three changes the loss, and together they give the surrogate with the same numbers."""
    g = torch.Generator().manual_seed(0)
    old, mask = batch.logp.double(), batch.loss_mask
    logp = old + torch.randn(old.shape, generator=g, dtype=torch.float64)
    advantages = torch.randn(old.shape, generator=g, dtype=torch.float64)
    clips = {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 1.5}
    ratio = {"gspo": "seq_geo", "rloo": "seq_prod"}.get(name, "token")

    def loss(**changes):
        algorithm = make(name, **options, entropy_coef=0.0, **changes)
        return algorithm.loss(logp, old, advantages, mask, algorithm.denominator(mask))

    algorithm = make(name, **options, **clips)
    d = algorithm.denominator(mask)
    expected = policy_loss(
        logp, old, advantages, mask, **clips, ratio=ratio, aggregation=algorithm.aggregation, denominator=d
    )
    torch.testing.assert_close(loss(**clips), expected)
    expected_fraction = clip_fraction(logp, old, mask, 0.1, 0.3, ratio)
    assert algorithm.clip_fraction(logp, old, mask) == expected_fraction > 0
    assert all(loss() != loss(**{key: value}) for key, value in clips.items())


def test_critic_loss_uses_the_value_clip(batch):
    """Golden v=.9, v_old=.2, ret=1 on every sampled token -> .045; .005 without the clip."""
    v, old, target = (torch.full(batch.ids.shape, x) for x in (0.9, 0.2, 1.0))
    for clip, expected in ((0.5, 0.045), (None, 0.005)):
        algorithm = make("ppo", value_clip=clip)
        loss = algorithm.critic_loss(v, old, target, batch.loss_mask, algorithm.denominator(batch.loss_mask))
        assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_sum_over_constant_needs_its_constant(batch):
    """Dr. GRPO: denominator N * C."""
    algorithm = make("grpo", scale="none", aggregation="sum/const", aggregation_const=32)
    assert algorithm.denominator(batch.loss_mask) == 6 * 32
