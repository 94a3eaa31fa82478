"""SeeUPO: the correction M, the order of turns, and a plain twin that shares no code with the trainer."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
import torch
from helpers import policy_of, tiny_mid

from ragen_algos import trainer as module
from ragen_algos.algorithms import make
from ragen_algos.algorithms.seeupo import SeeUPO
from ragen_algos.losses import importance_ratio
from ragen_algos.presets import PRESETS
from ragen_algos.rollout import episode_seeds, rollout
from ragen_algos.sampler import Sampler
from ragen_algos.trainer import TrainConfig, Trainer, TrainingError
from ragen_algos.trajectory import Batch, Trajectory, Turn, collate
from ragen_algos.turn_correction import TurnCorrection, next_weight

torch.set_num_threads(1)

SOKOBAN = "ragen/Sokoban-v0"
SEED = 1
VARIANTS = {
    "paper": {},
    "official-code": PRESETS["seeupo-official-code"][1],
    "theory": PRESETS["seeupo-theory"][1],
    "without-m": PRESETS["seeupo-without-m"][1],
    "forward-token": {"order": "forward", "ratio": "token"},
    "custom-exact": {"order": (2, 0, 1, 4, 3), "m_mode": "exact"},
    "random-clipped": {"order": "random", "m_clip": (0.99, 1.01), "scale": "group"},
    "two-steps": {"anchor": "turn", "epochs": 2, "minibatches": 2},
}


def fake(turn_tokens: list[list[int]], returns: list[float], groups: list[int] | None = None) -> Batch:
    """A batch from the numbers of tokens of each turn."""
    out = []
    for i, (tokens, total) in enumerate(zip(turn_tokens, returns, strict=True)):
        turn_id = [-1]
        for k, n in enumerate(tokens):
            turn_id += [k] * n + [-1]
        turn = np.array(turn_id)
        turns = [
            Turn("", "", "stop", "ok", True, "", 1, total * (k == len(tokens) - 1), 0.0, "", "", n)
            for k, n in enumerate(tokens)
        ]
        rng = np.random.default_rng(i)
        logp = np.where(turn >= 0, -rng.random(len(turn)), 0).astype(np.float32)
        group = groups[i] if groups else 0
        out.append(
            Trajectory(
                group, i, 0, 0, turns=turns, terminated=True, ids=turn + 1, loss_mask=turn >= 0, turn_id=turn, logp=logp
            )
        )
    return collate(out)


@pytest.fixture(scope="module")
def played() -> list[Trajectory]:
    """Sokoban episodes of one to five turns, by the embedded checkpoint."""
    episodes = rollout(Sampler(tiny_mid()), SOKOBAN, {"split": "train"}, episode_seeds((SEED,), groups=2, group_size=4))
    assert len({len(e.turns) for e in episodes}) >= 3
    return episodes


def updated(episodes, options, *, lr=0.3, micro=16, iteration=0, order=None, change=None):
    """One update in float64 by plain gradient steps, which are linear in the gradient: Adam would amplify rounding."""
    policy = tiny_mid()
    policy.model.double()
    algorithm = make("seeupo", **{"max_grad_norm": 1e9, **options})
    trainer = Trainer(policy, algorithm, SOKOBAN, None, TrainConfig(9, 3, 6, seed=0, micro_batch=micro))
    trainer.optimizer = torch.optim.SGD(policy.model.parameters(), lr=lr)
    batch = collate(episodes if order is None else [episodes[i] for i in order])
    if change is not None:
        change(batch)
    row = trainer._update(batch, iteration)
    return trainer, row


def flat(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def moved(trainer) -> torch.Tensor:
    return flat(trainer.policy.model) - flat(trainer.reference)


# --- a plain twin -----------------------------------------------------------------------------------------------------


def plain_update(episodes, *, lr, order, m_mode, anchor, ratio, scale, adv_clamp, m_clip, kl_coef=0.002, eps=0.2):
    """SeeUPO from its equations: whole rows, one at a time, and M in a dictionary keyed by trajectory id."""
    policy = tiny_mid()
    model = policy.model.double()
    start = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def logp(net, e, t):
        """Log-probabilities of the tokens of turn t."""
        with torch.set_grad_enabled(net is model):
            return scored(net, e, t)

    def scored(net, e, t):
        ids = torch.from_numpy(e.ids)
        every = torch.log_softmax(net(input_ids=ids[None]).logits[0], -1)
        where = np.flatnonzero(e.turn_id == t)
        return every[where - 1].gather(1, ids[where, None])[:, 0]

    def ratios(new, old):
        x = new - old
        if ratio == "token":
            return x.exp()
        return (x.mean() if ratio == "seq_geo" else x.sum()).exp()

    def whole(new, old):
        """A factor is one number also where the loss takes token ratios."""
        x = new - old
        return float((x.mean() if ratio == "seq_geo" else x.sum()).exp())

    ids = [e.trajectory_id for e in episodes]
    group = {i: e.group_id for i, e in zip(ids, episodes, strict=True)}
    total = {i: e.total_return for i, e in zip(ids, episodes, strict=True)}
    a = {i: total[i] - np.mean([total[j] for j in ids if group[j] == group[i]]) for i in ids}
    if scale == "batch":
        sd = np.std(list(a.values()), ddof=1)
        a = {i: x / sd for i, x in a.items()}
    if adv_clamp:
        a = {i: float(np.clip(x, -adv_clamp, adv_clamp)) for i, x in a.items()}
    first = {(e.trajectory_id, t): logp(model, e, t).detach() for e in episodes for t in range(len(e.turns))}
    c = dict.fromkeys(ids, 1.0)
    done: list[int] = []
    for t in order:
        live = [e for e in episodes if len(e.turns) > t]
        if not live:
            continue
        if m_mode == "exact":
            for e in live:
                i = e.trajectory_id
                factors = [whole(logp(model, e, j).detach(), first[i, j]) for j in done if j < len(e.turns)]
                c[i] = float(np.prod(factors))
        before = {e.trajectory_id: logp(model, e, t).detach() for e in live}
        loss = torch.zeros((), dtype=torch.float64)
        for e in live:
            i = e.trajectory_id
            now = logp(model, e, t)
            u = ratios(now, first[i, t] if anchor == "iteration" else before[i])
            m = a[i] * c[i]
            x = logp(start, e, t).detach() - now
            kl = (x.exp() - x - 1).mean()
            loss = loss - torch.minimum(u * m, u.clamp(1 - eps, 1 + eps) * m).mean() + kl_coef * kl
        optimizer.zero_grad()
        (loss / len(episodes)).backward()
        optimizer.step()
        if m_mode in ("paper", "code"):
            for e in live:
                i = e.trajectory_id
                f = whole(logp(model, e, t).detach(), first[i, t] if m_mode == "paper" else before[i])
                if m_clip:
                    f = float(np.clip(f, *m_clip))
                c[i] = float(np.clip(c[i] * f, *m_clip)) if m_clip else c[i] * f
        done.append(t)
    return flat(model) - flat(start)


@pytest.mark.parametrize("name", ["paper", "official-code", "theory", "forward-token", "custom-exact"])
def test_an_update_equals_the_plain_twin(name, played):
    """Prefixes, micro-batches, M, idle turns and the denominator over all trajectories, for every preset."""
    algorithm = make("seeupo", **VARIANTS[name])
    order = {"reverse": [4, 3, 2, 1, 0], "forward": [0, 1, 2, 3, 4]}.get(algorithm.order, algorithm.order)
    keys = ("m_mode", "anchor", "ratio", "scale", "adv_clamp", "m_clip")
    # A big step, so that M matters; where M grows faster, a smaller one.
    lr = 0.02 if algorithm.ratio != "seq_geo" or algorithm.m_mode == "exact" else 0.3
    expected = plain_update(played, lr=lr, order=order, **{k: getattr(algorithm, k) for k in keys})
    trainer, row = updated(played, VARIANTS[name], lr=lr)
    assert row["skipped_steps"] == 0
    assert expected.abs().max() > 1e-3
    assert (moved(trainer) - expected).abs().max() < 1e-4 * expected.abs().max()
    if name == "paper":  # M is there, and big enough for this test to see it
        plain = plain_update(
            played, lr=lr, order=order, **{**{k: getattr(algorithm, k) for k in keys}, "m_mode": "none"}
        )
        assert (plain - expected).abs().max() > 1e-2 * expected.abs().max()
        trainer, _ = updated(played, VARIANTS["without-m"], lr=lr)
        assert (moved(trainer) - plain).abs().max() < 1e-4 * plain.abs().max()


def test_one_turn_is_sequence_ppo_with_a_group_mean(played):
    """Relation 4.3: with T=1 nothing is left of the sequence of updates; two epochs, so that ratios differ from 1."""
    short = []
    for e in played:
        e = copy.deepcopy(e)
        end = int(np.flatnonzero(e.turn_id == 0)[-1]) + 1
        e.turns = [e.turns[0]]
        e.turns[0].reward = float(e.trajectory_id % 3)
        e.ids, e.loss_mask, e.turn_id, e.logp = e.ids[:end], e.loss_mask[:end], e.turn_id[:end], e.logp[:end]
        short.append(e)
    trainer, _ = updated(short, {"scale": "none", "kl_coef": 0.0, "epochs": 2})
    policy = tiny_mid()
    policy.model.double()
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.3)
    batch = collate(short)
    old = policy.log_probs(batch)[0].detach()
    a = batch.returns - torch.stack([batch.returns[batch.group_id == g].mean() for g in batch.group_id])
    for _ in range(2):
        u = importance_ratio(policy.log_probs(batch)[0], old, batch.loss_mask, "seq_geo").squeeze(1)
        optimizer.zero_grad()
        (-torch.minimum(u * a, u.clamp(0.8, 1.2) * a).mean()).backward()
        optimizer.step()
    torch.testing.assert_close(flat(trainer.policy.model), flat(policy.model), atol=1e-6, rtol=0)
    assert trainer.optimizer_steps == 2


# --- invariances ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["paper", "official-code", "random-clipped"])
def test_row_order_and_micro_batches_change_nothing(name, played):
    """U6, S1, H5: the rows of every turn are visited in another order, at another size."""
    options = {**VARIANTS[name], "minibatches": 1}  # which rows share a step is luck of the row number
    trainer, row = updated(played, options, lr=0.02)
    shuffled = torch.randperm(len(played), generator=torch.Generator().manual_seed(1)).tolist()
    for more in ({"order": shuffled, "micro": 64}, {"micro": 2}):
        other, other_row = updated(played, options, lr=0.02, **more)
        assert (moved(other) - moved(trainer)).abs().max() < 1e-5 * moved(trainer).abs().max()
        assert other_row["loss"] == pytest.approx(row["loss"], abs=1e-6)
        assert other.optimizer_steps == trainer.optimizer_steps


@pytest.mark.parametrize("name", ["paper", "official-code"])
def test_turns_that_nobody_played_change_nothing(name, played):
    """U7, S2: M, gradients and the number of steps."""

    def spread(batch):
        batch.turn_id = torch.where(batch.turn_id >= 0, 2 * batch.turn_id + 1, -1)

    trainer, _ = updated(played, VARIANTS[name], lr=0.02)
    other, _ = updated(played, VARIANTS[name], lr=0.02, change=spread)
    assert torch.equal(moved(trainer), moved(other))
    assert trainer.optimizer_steps == other.optimizer_steps == max(len(e.turns) for e in played)


@pytest.mark.parametrize("name", ["paper", "official-code", "theory", "two-steps"])
@pytest.mark.parametrize("why", ["equal", "single"])
def test_without_a_signal_nothing_moves(why, name, played):
    """U8, H10: equal returns or groups of one; no NaN, no step, Adam untouched."""

    def flatten(batch):
        if why == "equal":
            batch.returns = torch.full_like(batch.returns, 0.3)
        else:
            batch.group_id = torch.arange(len(batch))

    with pytest.warns(UserWarning, match="single trajectory") if why == "single" else _nothing():
        trainer, row = updated(played, VARIANTS[name], change=flatten)
    assert trainer.optimizer_steps == 0
    assert not moved(trainer).any()
    assert all(math.isfinite(v) for v in row.values())


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


def test_none_and_paper_agree_at_the_first_turn_and_not_after_it(played, monkeypatch):
    """Relation 4.3."""
    step, after = Trainer._step, []

    def noting(self, optimizer, model, loss):
        norm = step(self, optimizer, model, loss)
        after[-1].append(flat(model))
        return norm

    monkeypatch.setattr(Trainer, "_step", noting)
    for mode in ("none", "paper", "exact"):
        after.append([])
        updated(played, {"m_mode": mode})
    none, paper, exact = after
    assert torch.equal(none[0], paper[0])
    assert torch.equal(none[0], exact[0])
    assert not torch.equal(none[1], paper[1])
    torch.testing.assert_close(paper[1], exact[1])  # one turn is done: frozen now or computed now is the same
    assert not torch.allclose(paper[2], exact[2], atol=1e-7)


# --- M ----------------------------------------------------------------------------------------------------------------


def test_the_trace_of_m_equals_the_golden_vector():
    """A=1, ratios 1.1, .95, 1.3 in order: the paper ends at 1.3585, the released code at its bound."""
    for clip, expected in ((None, [1.1, 1.045, 1.3585]), ((0.8, 1.2), [1.1, 1.045, 1.2])):
        weight, seen = torch.ones(1, dtype=torch.float64), []
        for factor in (1.1, 0.95, 1.3):
            weight = next_weight(weight, torch.tensor([factor], dtype=torch.float64), clip)
            seen.append(weight.item())
        assert seen == pytest.approx(expected)


@pytest.mark.parametrize("clip", [None, (0.8, 1.2)])
def test_the_trace_of_m_through_the_class(clip):
    """The same trace, turn by turn; a trajectory of one turn keeps exactly 1, and rows may be noted in any order."""
    batch = fake([[1, 1, 1, 1], [1], [2, 1, 1, 1]], [1.0, 0.0, 0.0])
    mode = "code" if clip else "paper"
    correction = TurnCorrection(batch, [3, 2, 1, 0], mode=mode, clip=clip)
    now, seen = batch.logp.double(), []
    for turn, factor in ((3, 1.1), (2, 0.95), (1, 1.3), (0, None)):
        correction.start(turn)
        waiting = correction.waiting()
        assert 1 not in waiting.tolist() or (mode == "code" and turn == 0)
        for index in waiting.flip(0).split(1):
            correction.note(index, now[index])
            correction.note(index, 0 * now[index])  # a second time counts for nothing
        seen.append(correction.weight[0].item())
        if factor:
            now = torch.where(batch.turn_id == turn, now + math.log(factor), now)
    assert seen == pytest.approx([1, 1.1, 1.045, 1.2 if clip else 1.3585])
    assert correction.weight.dtype == torch.float64
    assert correction.weight[1] == 1
    assert correction.weight[2].item() == pytest.approx(seen[-1])  # the mean over tokens: length does not matter


def test_modes_and_anchors_differ_where_they_should():
    """Weights shared by turns: updating turn 1 also moves turn 2 before, and turn 0 after."""
    batch = fake([[1, 2, 1]], [1.0])

    def weights(mode, anchor="iteration", ratio="seq_geo"):
        correction = TurnCorrection(batch, [2, 1, 0], mode=mode, anchor=anchor, ratio=ratio)
        now, out = batch.logp.double(), []
        for turn in (2, 1, 0):
            correction.start(turn)
            for index in correction.waiting().split(1):
                correction.note(index, now[index])
            out.append(correction.weight.item())
            if anchor == "turn":
                own = batch.turn_id == turn
                torch.testing.assert_close(correction.old[own], now[own])
            else:
                torch.testing.assert_close(correction.old, batch.logp.double())
            now = now + torch.where(batch.loss_mask, 0.1, 0.0)  # every update moves every token
        return out

    e = math.exp
    assert weights("none") == [1, 1, 1]
    assert weights("paper") == pytest.approx([1, e(0.1), e(0.1) * e(0.2)])
    assert weights("code", "turn") == weights("code") == pytest.approx([1, e(0.1), e(0.2)])
    assert weights("exact") == pytest.approx([1, e(0.1), e(0.4)])
    assert weights("paper", ratio="seq_prod") == pytest.approx([1, e(0.1), e(0.1) * e(0.4)])
    assert weights("paper", "turn") == weights("paper")


def test_factors_are_asked_for_only_where_a_later_turn_reads_them():
    batch = fake([[1, 1, 1], [1, 1], [1]], [1.0, 0.0, 0.0])
    correction = TurnCorrection(batch, [0, 2, 1])
    asked = []
    for turn in (0, 2, 1):
        correction.start(turn)
        asked.append(correction.waiting().tolist())
        correction.note(correction.waiting(), batch.logp[correction.waiting()])
    assert asked == [[], [0, 1], [0]]


# --- ratios and loss --------------------------------------------------------------------------------------------------


def test_sequence_ratios():
    """U9, S4, S6: token ratios 1.1, .9; masked NaN is not read; an empty row has ratio 1."""
    mask = torch.tensor([[True, True, False], [False, False, False]])
    old = torch.zeros(2, 3, dtype=torch.float64)
    new = torch.tensor([[math.log(1.1), math.log(0.9), math.nan], [5.0, 5.0, 5.0]], dtype=torch.float64)
    assert importance_ratio(new, old, mask, "seq_prod").flatten().tolist() == pytest.approx([0.99, 1])
    assert importance_ratio(new, old, mask, "seq_geo").flatten().tolist() == pytest.approx([0.994987, 1], abs=1e-6)
    new.requires_grad_()
    importance_ratio(new, old, mask, "seq_prod").log().sum().backward()
    assert new.grad.flatten().tolist() == pytest.approx([1, 1, 0, 0, 0, 0])
    assert importance_ratio(new + 100, old, mask, "seq_prod").log().flatten().tolist() == pytest.approx([20, 0])


def test_the_ratio_changes_the_loss_unless_turns_have_one_token():
    """S3, 7.2."""
    g = torch.Generator().manual_seed(0)
    for tokens, equal in (([1, 1], True), ([3, 1], False)):
        batch = fake([tokens, tokens], [1.0, 0.0]).only([0])
        logp = batch.logp.double() + 0.3 * torch.randn(batch.logp.shape, generator=g, dtype=torch.float64)
        losses = []
        for ratio in ("seq_geo", "seq_prod", "token"):
            algorithm = make("seeupo", ratio=ratio, kl_coef=0.0)
            advantages, _ = algorithm.credit(batch)
            losses.append(
                algorithm.loss(logp, batch.logp, advantages, batch.loss_mask, algorithm.denominator(batch.loss_mask))
            )
        assert (len({round(x.item(), 9) for x in losses}) == 1) == equal


def test_geo_in_token_form_has_the_same_value_and_gradient():
    """log u_t = sg[mean log-ratio] + lp_t - sg[lp_t], averaged over the tokens of each row."""
    batch = fake([[3], [5], [2]], [1.0, -1.0, 0.0])
    mask, a = batch.loss_mask, torch.tensor([1.5, -0.5, 0.7]).double()[:, None].expand(batch.ids.shape)
    g = torch.Generator().manual_seed(0)
    x = batch.logp.double() + 0.4 * torch.randn(batch.logp.shape, generator=g, dtype=torch.float64)
    mine = x.clone().requires_grad_()
    make("seeupo", kl_coef=0.0).surrogate(mine, batch.logp, a, mask, 3.0).backward()
    other = x.clone().requires_grad_()
    log_ratio = importance_ratio(other, batch.logp, mask, "seq_geo").log().detach() + other - other.detach()
    u = log_ratio.exp()
    rows = torch.where(mask, torch.minimum(u * a, u.clamp(0.8, 1.2) * a), 0.0).sum(1) / mask.sum(1)
    (-rows.sum() / 3).backward()
    torch.testing.assert_close(mine.grad, other.grad)


def test_clip_fraction_counts_turns():
    batch = fake([[2], [2], [2], [2]], [0.0] * 4)
    logp = batch.logp.double() + torch.tensor([0.0, 0.3, -0.3, 0.1])[:, None]
    assert make("seeupo").clip_fraction(logp, batch.logp, batch.loss_mask) == 0.5


# --- training ---------------------------------------------------------------------------------------------------------


def test_steps_are_counted_and_idle_turns_take_none(played, monkeypatch):
    """One step for each turn that somebody reached, whatever the preset; epochs and minibatches multiply."""
    longest = max(len(e.turns) for e in played)
    trainer, _ = updated(played, {"epochs": 2})
    assert trainer.optimizer_steps == 2 * longest
    matched = make("grpo-step-matched")
    assert matched.steps_per_pass(longest) == longest
    policy = tiny_mid()
    trainer = Trainer(policy, matched, SOKOBAN, None, TrainConfig(9, 3, 6, seed=0))
    trainer._update(collate(played), 0)
    assert trainer.optimizer_steps == longest


@pytest.mark.parametrize(
    "name", ["seeupo", "seeupo-official-code", "seeupo-theory", "seeupo-without-m", "grpo-step-matched"]
)
def test_two_iterations_on_the_embedded_model(name):
    trainer = Trainer(tiny_mid(), make(name), SOKOBAN, None, TrainConfig(2, 2, 3, seed=1))
    for row in trainer.run():
        assert all(math.isfinite(v) for v in row.values() if isinstance(v, float))
        assert row["logp_gap"] < 1e-3
        assert row["skipped_steps"] == 0
        assert row["kept_groups"] == 2
    assert moved(trainer).any()


def test_a_nan_never_reaches_the_weights(played, monkeypatch):
    """H14 turn by turn: one bad turn is skipped and counted, five in a row end the run."""
    surrogate, calls = SeeUPO.surrogate, []

    def broken(self, *args):
        calls.append(1)
        return surrogate(self, *args) * (math.nan if len(calls) == 2 or len(calls) > 100 else 1.0)

    monkeypatch.setattr(SeeUPO, "surrogate", broken)
    trainer, row = updated(played, {}, micro=64)
    assert row["skipped_steps"] == 1
    assert trainer.optimizer_steps == max(len(e.turns) for e in played) - 1
    assert torch.isfinite(flat(trainer.policy.model)).all()
    calls += [1] * 200
    before = flat(trainer.policy.model)
    trainer.bad_steps = 4
    with pytest.raises(TrainingError, match="5 non-finite updates in a row"):
        trainer._update(collate(played), 1)
    assert torch.equal(before, flat(trainer.policy.model))


def test_orders():
    generator = torch.Generator().manual_seed(0)
    assert make("seeupo").schedule(3, generator) == [2, 1, 0]
    assert make("seeupo", order="forward").schedule(3, generator) == [0, 1, 2]
    assert make("seeupo", order=[1, 2, 0]).schedule(2, generator) == [1, 0]
    drawn = {tuple(make("seeupo", order="random").schedule(3, generator)) for _ in range(60)}
    assert len(drawn) == 6
    with pytest.raises(ValueError, match="4 turns, but order names 3"):
        make("seeupo", order=[1, 2, 0]).schedule(4, generator)
    assert make("grpo").schedule(3, generator) == [None]


def test_a_resumed_run_in_random_order_is_the_run_that_was_never_interrupted(tmp_path, monkeypatch):
    """The order belongs to the iteration; a killed run draws the same one again."""
    orders: list[tuple[int, ...]] = []
    schedule = SeeUPO.schedule
    monkeypatch.setattr(
        SeeUPO, "schedule", lambda self, *args: orders.append(tuple(out := schedule(self, *args))) or out
    )

    def paying(*args, **more):
        episodes = rollout(*args, **more)
        for episode in episodes:
            for k, turn in enumerate(episode.turns):
                turn.reward += float(episode.ids[episode.turn_id == k][0] % 2 == 0)
        return episodes

    monkeypatch.setattr(module, "rollout", paying)

    def run(iterations, folder):
        policy = policy_of("tiny")
        policy.max_new_tokens = 2
        config = TrainConfig(iterations, 2, 3, seed=0, checkpoint_every=1)
        trainer = Trainer(policy, make("seeupo", order="random", lr=1e-3), SOKOBAN, None, config, folder=folder)
        trainer.run()
        return trainer

    straight = run(4, tmp_path / "a")
    whole, orders[:] = list(orders), []
    with monkeypatch.context() as patch:
        step = Trainer._step
        patch.setattr(Trainer, "_step", lambda self, *a: killed() if len(orders) == 3 else step(self, *a))

        def killed():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(4, tmp_path / "b")
    orders[:] = orders[:2]
    resumed = run(4, tmp_path / "b")
    assert orders == whole
    assert len(set(whole)) > 1
    assert torch.equal(flat(straight.policy.model), flat(resumed.policy.model))
    quiet = [{k: v for k, v in row.items() if not k.endswith("_seconds")} for row in straight.metrics]
    assert quiet == [{k: v for k, v in row.items() if not k.endswith("_seconds")} for row in resumed.metrics]
    states = (straight.optimizer.state_dict()["state"], resumed.optimizer.state_dict()["state"])
    assert all(torch.equal(states[0][k][n], states[1][k][n]) for k in states[0] for n in states[0][k])


# --- options ----------------------------------------------------------------------------------------------------------


def test_presets_are_those_of_the_reference():
    common = {"order": "reverse", "clip_low": 0.2, "clip_high": 0.2, "kl_coef": 0.002, "kl_kind": "k3", "epochs": 1}
    expected = {
        "seeupo": ("paper", "iteration", "seq_geo", "batch", None, None),
        "seeupo-paper": ("paper", "iteration", "seq_geo", "batch", None, None),
        "seeupo-official-code": ("code", "turn", "seq_geo", "batch", 3.0, (0.8, 1.2)),
        "seeupo-theory": ("exact", "iteration", "seq_prod", "none", None, None),
        "seeupo-without-m": ("none", "iteration", "seq_geo", "batch", None, None),
    }
    for name, values in expected.items():
        algorithm = make(name)
        keys = ("m_mode", "anchor", "ratio", "scale", "adv_clamp", "m_clip")
        assert tuple(getattr(algorithm, k) for k in keys) == values
        assert all(getattr(algorithm, k) == v for k, v in common.items())
        stored = json.loads(json.dumps(algorithm.to_dict()))
        assert stored["name"] == "seeupo"
        assert make(**stored) == algorithm
    assert make("seeupo-theory", scale="batch").scale == "batch"
    assert make("seeupo", order=[1, 0]) == make(**json.loads(json.dumps(make("seeupo", order=(1, 0)).to_dict())))
    assert make("grpo-step-matched") == make("grpo", minibatches="turns")


def test_advantages_are_centred_scaled_and_bounded():
    batch = fake([[1, 2], [1], [2], [1, 1]], [9.0, 0.0, 0.0, 0.0], [0, 0, 0, 0])
    plain = make("seeupo", scale="none").credit(batch)[0].amax(1)
    assert plain[0] == 6.75
    assert make("seeupo", scale="batch").credit(batch)[0].amax() == pytest.approx(6.75 / 4.5)
    assert make("seeupo", scale="none", adv_clamp=3).credit(batch)[0].amax() == 3
    twice = fake([[1, 2], [1, 1, 1], [2, 3], [1, 1]], [9.0, 0.0, 0.0, 0.0])
    torch.testing.assert_close(make("seeupo", scale="none").credit(twice)[0].amax(1), plain)  # turns do not count


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"order": "backward"}, "order must be one of reverse"),
        ({"order": [0, 2]}, "order must name the turns"),
        ({"order": [1, 1]}, "order must name the turns"),
        ({"m_mode": "clip"}, "m_mode must be one of"),
        ({"anchor": "step"}, "anchor must be one of"),
        ({"ratio": "geo"}, "ratio must be one of"),
        ({"scale": "sd"}, "scale must be one of"),
        ({"adv_clamp": 0}, "adv_clamp must be above 0"),
        ({"m_clip": [1.1, 1.2]}, "m_clip must be at least 0.0 and at most 1.0"),
        ({"m_clip": [0.8]}, "m_clip must be a range"),
        ({"m_clip": [0.8, 1.2], "m_mode": "exact"}, "does not read m_clip"),
        ({"minibatches": "turns"}, "all turns together"),
        ({"dual_clip": 3.0}, "does not read dual_clip"),
        ({"aggregation": "token-mean"}, "does not read aggregation"),
        ({"gamma": 0.9}, "does not read gamma"),
    ],
)
def test_impossible_options_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        make("seeupo", **options)
