"""What must change nothing, for every registered algorithm and on random batches of ragged turns.

Rows in another order, observations or pads added anywhere, turns that nobody played, the cut into micro-batches; and
what must be zero: advantages where nothing was sampled or where there is nothing to compare, the KL and the clipping
before the first update. An algorithm that is registered later is covered by being registered.
"""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from helpers import CONFIGS, IDS, Example, random_example
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_algos.algorithms import make
from ragen_algos.algorithms.base import Algorithm
from ragen_algos.trajectory import collate

torch.set_num_threads(1)

pytestmark = pytest.mark.filterwarnings("ignore:.*single trajectory")

TOKENS = ("values", "logp", "ref", "entropy")
KL = {"none": {}, "loss": {"kl_in": "loss", "kl_kind": "k2"}, "reward": {"kl_in": "reward", "kl_kind": "k1"}}
every_algorithm = pytest.mark.parametrize(("name", "options"), CONFIGS, ids=IDS)
random = given(seed=st.integers(0, 10_000), kl=st.sampled_from(sorted(KL)))
few = settings(max_examples=5, deadline=None)


def build(name: str, options: dict, kl: str = "none", **more: object) -> Algorithm:
    """The algorithm with a KL at one of its places; without, if it has none there."""
    where = {**KL[kl], "kl_coef": 0.1} if kl != "none" else {}
    try:
        return make(name, **{**options, **more, **where})
    except ValueError as error:
        if "does not read" not in str(error):
            raise
        return make(name, **{**options, **more})


def credit(algorithm: Algorithm, x: Example) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and value targets; targets are 0 if there is no critic."""
    values, bootstrap = (x.values, x.bootstrap) if algorithm.needs_critic else (None, None)
    advantages, targets = algorithm.credit(x.batch, values, bootstrap, ref_logp=x.ref)
    return advantages, torch.zeros_like(advantages) if targets is None else targets


def update(algorithm: Algorithm, x: Example, parts: list[list[int]] | None = None) -> dict[str, torch.Tensor]:
    """Credit, losses of actor and critic, and gradients, in micro-batches of these rows (all at once by default)."""
    advantages, targets = credit(algorithm, x)
    inputs = {"gradient": x.logp.clone(), "entropy gradient": x.entropy.clone(), "critic gradient": x.values + 0.3}
    logp, entropy, values = (t.requires_grad_() for t in inputs.values())
    d = algorithm.denominator(x.batch.loss_mask)
    total, critic = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for rows in parts or [list(range(len(x.batch)))]:
        small = x.batch.rows(rows)
        cut = (torch.tensor(rows), slice(0, small.ids.shape[1]))
        mask = small.loss_mask
        loss = algorithm.loss(
            logp[cut],
            small.logp.double(),
            advantages[cut],
            mask,
            d,
            ref_logp=x.ref[cut],
            entropy=entropy[cut],
        )
        loss.backward()
        total += loss.detach()
        if algorithm.needs_critic:
            loss = algorithm.critic_loss(values[cut], x.values[cut], targets[cut], mask, d)
            loss.backward()
            critic += loss.detach()
    grads = {k: torch.zeros_like(t) if t.grad is None else t.grad for k, t in inputs.items()}
    return {"advantages": advantages, "targets": targets, "loss": total, "critic loss": critic, **grads}


def shuffled(x: Example, rng: np.random.Generator) -> tuple[Example, list[int], list[np.ndarray]]:
    """Rows in another order, under new numbers."""
    order = rng.permutation(len(x.batch)).tolist()
    episodes = [copy.copy(x.trajectories[i]) for i in order]
    for new, episode in enumerate(episodes):
        episode.trajectory_id = new
    return rebuilt(x, episodes, order, [np.arange(len(e.ids)) for e in episodes])


def with_observations(x: Example, rng: np.random.Generator) -> tuple[Example, list[int], list[np.ndarray]]:
    """Zero to two tokens more before each token and after the last, none of them sampled, with junk in all tensors."""
    episodes, places = [], []
    for old in x.trajectories:
        more = rng.integers(0, 3, len(old.ids) + 1)
        place = np.arange(len(old.ids)) + more.cumsum()[:-1]
        episode, length = copy.copy(old), len(old.ids) + int(more.sum())
        for name, fill in (("ids", 3), ("loss_mask", False), ("turn_id", -1), ("logp", 0.0)):
            wide = np.full(length, fill, getattr(old, name).dtype)
            wide[place] = getattr(old, name)
            setattr(episode, name, wide)
        episodes.append(episode)
        places.append(place)
    return rebuilt(x, episodes, list(range(len(episodes))), places)


def with_pads(x: Example, rng: np.random.Generator) -> tuple[Example, list[int], list[np.ndarray]]:
    """One to five columns more on the right, with junk in all tensors."""
    n = int(rng.integers(1, 6))
    fills = {"turn_id": -1, "observation_id": -1}
    new, order, places = rebuilt(x, x.trajectories, list(range(len(x.batch))), _same_places(x))
    batch = {f.name: getattr(x.batch, f.name) for f in dataclasses.fields(x.batch)}
    for name, value in batch.items():
        if isinstance(value, torch.Tensor) and value.shape == x.batch.ids.shape:
            batch[name] = torch.nn.functional.pad(value, (0, n), value=fills.get(name, 0))
    new.batch = type(x.batch)(**batch)
    for name in TOKENS:
        setattr(new, name, torch.nn.functional.pad(getattr(new, name), (0, n), value=float("nan")))
    return new, order, places


def with_absent_turns(x: Example, rng: np.random.Generator) -> tuple[Example, list[int], list[np.ndarray]]:
    """In every row a turn of which nothing was sampled, before, between or after the others."""
    episodes = []
    for old in x.trajectories:
        episode, k = copy.copy(old), int(rng.integers(0, len(old.turns) + 1))
        nobody = dataclasses.replace(old.turns[0], reward=0.0, n_tokens=0, observation_key="sight 0")
        episode.turns = [*old.turns[:k], nobody, *old.turns[k:]]
        episode.turn_id = old.turn_id + (old.turn_id >= k)
        episodes.append(episode)
    return rebuilt(x, episodes, list(range(len(episodes))), _same_places(x))


def _same_places(x: Example) -> list[np.ndarray]:
    return [np.arange(len(e.ids)) for e in x.trajectories]


def rebuilt(
    x: Example, episodes: list, order: list[int], places: list[np.ndarray]
) -> tuple[Example, list[int], list[np.ndarray]]:
    """The example of changed episodes: row ``i`` was row ``order[i]``, its token ``j`` is now at ``places[i][j]``."""
    batch = collate(episodes)
    tokens = {name: torch.full(batch.ids.shape, float("nan"), dtype=torch.float64) for name in TOKENS}
    for i, (row, place) in enumerate(zip(order, places, strict=True)):
        for name, new in tokens.items():
            new[i, place] = getattr(x, name)[row, : len(place)]
    return Example(episodes, batch, **tokens, bootstrap=x.bootstrap[order]), order, places


CHANGES = {f.__name__: f for f in (shuffled, with_observations, with_pads, with_absent_turns)}


@pytest.mark.parametrize("change", CHANGES)
@every_algorithm
@few
@random
def test_nothing_changes(name, options, change, seed, kl):
    """H11, P2, P4, P13, P23: credit, losses and gradients move with their tokens, and what was added gets 0."""
    algorithm = build(name, options, kl)
    x = random_example(seed)
    y, order, places = CHANGES[change](x, np.random.default_rng(seed))
    before, after = update(algorithm, x), update(algorithm, y)
    for key, old in before.items():
        new = after[key]
        if old.ndim:
            expected = torch.zeros_like(new)
            for i, (row, place) in enumerate(zip(order, places, strict=True)):
                expected[i, place] = old[row, : len(place)]
            old = expected
        torch.testing.assert_close(new, old, atol=1e-10, rtol=1e-10, msg=lambda m, k=key: f"{k}: {m}")


@every_algorithm
@few
@random
def test_micro_batches_change_nothing(name, options, seed, kl):
    """P11, H5: one or four, rows in any order and cut to their own length; gradients within 1e-10."""
    algorithm = build(name, options, kl)
    x = random_example(seed)
    rows = np.random.default_rng(seed).permutation(len(x.batch))
    one, four = update(algorithm, x), update(algorithm, x, [p.tolist() for p in np.array_split(rows, 4) if len(p)])
    for key, old in one.items():
        torch.testing.assert_close(four[key], old, atol=1e-10, rtol=0, msg=lambda m, k=key: f"{k}: {m}")
    assert one["advantages"].abs().sum() > 0


@every_algorithm
@few
@random
def test_credit_is_finite_detached_float64_and_zero_where_nothing_was_sampled(name, options, seed, kl):
    """H4, H6, P9: with groups of one and groups of equal returns in the batch."""
    algorithm = build(name, options, kl)
    x = random_example(seed)
    for t in credit(algorithm, x):
        assert t.dtype == torch.float64
        assert t.device.type == "cpu"
        assert not t.requires_grad
        assert torch.isfinite(t).all()
        assert (t[~x.batch.loss_mask] == 0).all()


@every_algorithm
@few
@given(seed=st.integers(0, 10_000))
def test_equal_returns_or_one_episode_are_no_signal(name, options, seed):
    """P7, P9: exactly 0 without a critic, whose opinion is the only thing left; never NaN."""
    algorithm = build(name, options)
    x = random_example(seed, equal=True)
    alone = collate([dataclasses.replace(x.trajectories[0], group_id=9)])
    single = dataclasses.replace(x, batch=alone, **{k: getattr(x, k)[:1, : alone.ids.shape[1]] for k in TOKENS})
    single.bootstrap = x.bootstrap[:1]
    # Turns can be told apart where episodes cannot: by what followed the same sight, or by the first reward.
    by_turn = name in ("gigpo", "mt-grpo")
    for case, blind in ((x, algorithm.needs_critic or by_turn), (single, algorithm.needs_critic or name == "gigpo")):
        advantages, targets = credit(algorithm, case)
        assert torch.isfinite(advantages).all()
        assert torch.isfinite(targets).all()
        assert blind or (advantages == 0).all()


@every_algorithm
@few
@random
def test_before_the_first_update_nothing_is_clipped_and_the_kl_is_zero(name, options, seed, kl):
    """H6, C19: with the sampling policy as current policy and as reference."""
    x = random_example(seed)
    x.logp = x.ref = x.old
    x.entropy = torch.zeros_like(x.entropy)
    algorithm = build(name, options, kl)
    without = build(name, options)
    assert algorithm.clip_fraction(x.logp, x.old, x.batch.loss_mask) == 0
    with_kl, plain = update(algorithm, x), update(without, x)
    for key, old in plain.items():
        torch.testing.assert_close(with_kl[key], old, atol=1e-9, rtol=0, msg=lambda m, k=key: f"{k}: {m}")


@every_algorithm
@few
@given(seed=st.integers(0, 10_000))
def test_nothing_in_a_masked_slot_is_read(name, options, seed):
    """C17, P23: NaN in every input where nothing was sampled."""
    algorithm = build(name, options, "loss")
    x = random_example(seed)
    y = dataclasses.replace(x, **{k: torch.where(x.batch.loss_mask, getattr(x, k), float("nan")) for k in TOKENS})
    dirty = update(algorithm, y)
    for key, old in update(algorithm, x).items():
        torch.testing.assert_close(dirty[key], old, atol=0, rtol=0, msg=lambda m, k=key: f"{k}: {m}")
