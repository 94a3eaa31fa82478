"""Diagnostics: the echo-trap monitor, template collapse, gradient buckets, text statistics, calibration."""

from __future__ import annotations

import copy
import json
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import Scripted, byte_tokenizer, play, policy_of, talk_of, tiny_mid
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.calibration import calibrate, halved_at
from ragen_algos.algorithms import make
from ragen_algos.diagnostics import (
    EchoTrapMonitor,
    Thresholds,
    cross_scores,
    describe,
    gradient_buckets,
    repetition,
    template_collapse,
    template_metrics,
    thought_length,
    unique_thoughts,
)
from ragen_algos.diagnostics.gradients import term_gradients
from ragen_algos.diagnostics.template import thought_span
from ragen_algos.policy import LanguagePolicy
from ragen_algos.rollout import episode_seeds
from ragen_algos.trainer import TrainConfig, Trainer
from ragen_algos.trajectory import Trajectory, Turn, collate
from ragen_envs.protocol import find_blocks

# --- text statistics --------------------------------------------------------------------------------------------------


def episode(group: int, *thoughts: str, prompt: str | None = None, rewards: float = 0.0) -> Trajectory:
    """An episode that thought these thoughts."""
    key = f"prompt {group}" if prompt is None else prompt
    turns = [Turn("", t, "stop", "ok", True, "", 1, rewards, 0.0, "", key, 3) for t in thoughts]
    return Trajectory(group_id=group, trajectory_id=0, seed=0, dynamics_seed=0, turns=turns)


def test_lengths_and_distinct_thoughts():
    episodes = [episode(0, "go up", ""), episode(1, "go up", "left")]
    assert thought_length(episodes) == pytest.approx((5 + 0 + 5 + 4) / 4)
    assert unique_thoughts(episodes) == pytest.approx(2 / 3)
    assert unique_thoughts([episode(0, "")]) == thought_length([]) == 0


def test_repetition_counts_phrases_that_come_under_half_of_the_prompts():
    template = "the box is here so I will push it"  # nine words, two phrases of eight
    assert repetition([episode(g, template) for g in range(4)]) == 1
    assert repetition([episode(g, f"prompt {g} alone") for g in range(4)]) == 0
    # Two of four prompts are half; one of four, said often, is not.
    half = [episode(0, template), episode(1, template), episode(2, "a"), episode(3, "b", "b")]
    assert repetition(half) == pytest.approx(4 / 7)
    assert repetition([episode(0, "a", "a", "a"), episode(1, "b"), episode(2, "c"), episode(3, "d")]) == 0
    # Of three prompts one is not half, and with two the phrase must come under both.
    assert repetition([episode(0, "a"), episode(1, "b"), episode(2, "c")]) == 0
    assert repetition([episode(0, "a"), episode(1, "b")]) == 0
    assert repetition([episode(0, "a"), episode(1, "a")]) == 1


def test_one_prompt_in_two_groups_is_one_prompt():
    assert repetition([episode(0, "a", prompt="p"), episode(1, "a", prompt="p")]) == 0
    assert repetition([episode(0, "a", prompt=""), episode(1, "a", prompt="")]) == 1


def test_a_phrase_in_longer_thoughts_is_found():
    words = "one two three four five six seven eight"
    assert repetition([episode(0, f"x {words}"), episode(1, f"{words} y")]) == pytest.approx(2 / 4)


HOSTILE = [
    "",
    " ",
    "\x00",
    "\ud800",
    "﷽" * 50,
    "<think>" * 40,
    "</think><think>",
    "a" * 5000,
    "İ" * 9,
    "\u2028x",
    "🙂" * 20,
]


def test_hostile_thoughts_break_nothing():
    episodes = [episode(g, *HOSTILE) for g in range(3)]
    numbers = describe(episodes)
    assert all(math.isfinite(v) for v in numbers.values())
    assert numbers["repetition"] == 1
    assert describe([episode(0, "a", rewards=1.0), episode(0, "b")])["in_group_std"] == pytest.approx(0.5**0.5)


# --- echo trap: golden rules ------------------------------------------------------------------------------------------

STEADY = {
    "in_group_std": 1.0,
    "grad_norm": 2.0,
    "skipped_steps": 0,
    "entropy": 0.8,
    "thought_length": 40.0,
    "unique_thoughts": 0.8,
    "repetition": 0.6,
    "format_ok": 0.95,
    "success": 0.3,
    "kept_groups": 4,
}
"""A run in which nothing changes. Repetition is high and does not rise: that is how this model talks."""


def run(*changes: dict, monitor: EchoTrapMonitor | None = None):
    """Verdicts on a run that is steady but for these changes, one per iteration."""
    monitor = monitor or EchoTrapMonitor()
    return [monitor.update({"iteration": i, **STEADY, **change}) for i, change in enumerate(changes)]


def fired(verdicts) -> dict[str, list[tuple[int, str]]]:
    """Steps, counted from 1, and levels at which each rule fired."""
    out: dict[str, list[tuple[int, str]]] = {}
    for i, verdict in enumerate(verdicts, 1):
        for signal in verdict.signals:
            out.setdefault(signal.rule, []).append((i, signal.level))
    return out


def test_constant_signals_raise_nothing():
    verdicts = run(*[{}] * 200)
    assert fired(verdicts) == {}
    assert {v.level for v in verdicts} == {"healthy"}
    assert verdicts[-1].message == "no sign of collapse"


def test_the_cliff_of_the_reward_spread():
    """Golden: std 1.0 ten times, then .09 ten times, stops at step 20 and not at 19; a warning comes at 13."""
    verdicts = run(*[{}] * 10, *[{"in_group_std": 0.09}] * 12)
    assert [v.level for v in verdicts].index("warning") + 1 == 13
    assert [v.level for v in verdicts].index("collapsed") + 1 == 20
    assert set(fired(verdicts)) == {"reward_std"}
    signal = verdicts[19].signals[0]
    assert (signal.value, signal.baseline) == (0.09, 1.0)
    assert "in-group reward spread 0.09, at first 1" in verdicts[19].message
    assert verdicts[19].message.startswith("collapsed at iteration 19")


def test_a_short_dip_is_no_cliff():
    assert fired(run(*[{}] * 10, *([{"in_group_std": 0.05}] * 2 + [{}]) * 9)) == {}


def test_a_solved_task_is_no_collapse():
    """Whoever always wins agrees with himself, in returns and in thoughts."""
    narrow = {"in_group_std": 0.0, "entropy": 0.01, "thought_length": 2.0, "unique_thoughts": 0.01}
    assert fired(run(*[{}] * 10, *[{**narrow, "success": 0.97}] * 30)) == {}
    assert set(fired(run(*[{}] * 10, *[narrow] * 30))) == {
        "reward_std",
        "entropy_fall",
        "thought_length",
        "unique_thoughts",
    }


def test_gradient_spikes():
    verdicts = run(*[{}] * 12, {"grad_norm": 21.0}, {}, {"grad_norm": 201.0}, {}, {"grad_norm": 19.9})
    assert fired(verdicts) == {"grad_norm": [(13, "warning"), (15, "collapsed")]}
    assert verdicts[12].level == "warning"
    assert verdicts[13].level == "healthy"
    assert verdicts[15].level == "collapsed"  # for good
    assert verdicts[15].signals == ()


def test_iterations_without_a_step_do_not_lower_the_usual_norm():
    assert fired(run(*[{}] * 10, *[{"grad_norm": 0.0}] * 60, {"grad_norm": 3.0})) == {}
    assert fired(run({"grad_norm": 1e-3}, *[{}] * 9)) == {}  # too early to say what is usual


@pytest.mark.parametrize("change", [{"grad_norm": math.nan}, {"grad_norm": math.inf}, {"skipped_steps": 1}])
def test_updates_that_are_not_finite_are_a_warning(change):
    verdicts = run(change, {})
    assert fired(verdicts) == {"grad_finite": [(1, "warning")]}
    assert verdicts[1].level == "healthy"


@pytest.mark.parametrize(
    ("entropy", "rule", "level"),
    [(1.3, "entropy_rise", "warning"), (1.7, "entropy_rise", "collapsed"), (0.07, "entropy_fall", "warning")],
)
def test_entropy_rises_and_falls(entropy, rule, level):
    assert fired(run(*[{}] * 10, *[{"entropy": entropy}] * 5)) == {rule: [(15, level)]}
    assert fired(run(*[{}] * 10, *([{"entropy": entropy}] * 4 + [{}]) * 3)) == {}


def test_multiples_of_no_entropy_say_nothing():
    assert fired(run(*[{"entropy": 1e-6}] * 10, *[{"entropy": 1e-3}] * 10)) == {}


def test_thoughts_shrink_and_repeat():
    """Shrinking to .3 happens in healthy runs."""
    assert fired(run(*[{}] * 10, *[{"thought_length": 12.0}] * 9)) == {}
    assert fired(run(*[{}] * 10, {"thought_length": 5.0})) == {"thought_length": [(11, "warning")]}
    assert fired(run(*[{}] * 10, *[{"unique_thoughts": 0.2}] * 5)) == {"unique_thoughts": [(15, "warning")]}


def test_rising_repetition():
    up = [{"repetition": 0.4 + 0.02 * i} for i in range(20)]
    found = fired(run(*up))
    assert list(found) == ["repetition"]
    assert found["repetition"][0] == (10, "warning")
    low = [{"repetition": 0.02 * i} for i in range(20)]
    assert fired(run(*low)) == {}


def test_a_model_that_loses_the_form_has_collapsed_and_one_that_never_had_it_has_not():
    bad = {"format_ok": 0.05}
    assert fired(run({}, *[bad] * 5)) == {"invalid": [(6, "collapsed")]}
    assert fired(run(*[bad] * 20)) == {}
    assert fired(run(*[bad] * 20, {}, *[bad] * 5)) == {"invalid": [(26, "collapsed")]}


def test_lost_success():
    lost = {"success": 0.0}
    assert fired(run(*[{}] * 5, *[lost] * 5)) == {"success": [(10, "collapsed")]}
    assert fired(run(*[lost] * 30)) == {}  # an untrained model can start near 0
    assert fired(run({"success": 0.016}, *[lost] * 30)) == {}


def test_empty_filter():
    verdicts = run(*[{"kept_groups": 0}] * 5)
    assert fired(verdicts) == {"empty_filter": [(5, "collapsed")]}
    assert fired(run(*([{"kept_groups": 0}] * 4 + [{}]) * 3)) == {}


def test_missing_and_undefined_values_are_passed_over():
    monitor = EchoTrapMonitor()
    for record in ({}, {"in_group_std": None, "entropy": math.nan, "success": "?"}, {"other": object()}):
        assert monitor.update(record).level == "healthy"
    gaps = [{"in_group_std": x} for i in range(10) for x in (np.float32(1.0), math.nan)]
    gone = [{"in_group_std": x} for i in range(10) for x in (np.float32(0.09), None)]
    assert fired(run(*gaps, *gone))["reward_std"][-1][1] == "collapsed"


def test_thresholds_can_be_others():
    eager = EchoTrapMonitor(Thresholds(std_collapse=0.6, std_collapse_for=1, baseline=2))
    assert fired(run({}, {}, {"in_group_std": 0.5}, monitor=eager)) == {"reward_std": [(3, "collapsed")]}


def wild_run(seed: int, n: int = 60) -> list[dict]:
    rng = random.Random(seed)
    return [{k: v * rng.choice([0.05, 0.3, 1, 1, 1, 3, 150]) for k, v in STEADY.items()} for _ in range(n)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("at", [1, 7, 25])
def test_a_monitor_goes_on_where_it_stopped(seed, at):
    """Through JSON, as in a checkpoint."""
    records = wild_run(seed)
    straight = [(v.level, v.signals, v.message) for v in run(*records)]
    first = EchoTrapMonitor()
    before = run(*records[:at], monitor=first)
    resumed = EchoTrapMonitor()
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    after = [resumed.update({"iteration": at + i, **STEADY, **r}) for i, r in enumerate(records[at:])]
    assert [(v.level, v.signals, v.message) for v in (*before, *after)] == straight


def test_the_state_stays_small():
    monitor = EchoTrapMonitor()
    run(*wild_run(0, 100), monitor=monitor)
    size = len(json.dumps(monitor.state_dict()))
    run(*wild_run(1, 2000), monitor=monitor)
    assert len(json.dumps(monitor.state_dict())) < 1.2 * size


# --- template collapse: the measures ----------------------------------------------------------------------------------


def close(x: float) -> object:
    return pytest.approx(x, abs=1e-6)


def test_golden_a():
    found = template_collapse(torch.tensor([[-1, -3, -4], [-2.5, -1.5, -3], [-2, -2.2, -2.1]]), torch.arange(3))
    assert found.mutual_information == close(0.519893)
    assert found.conditional_entropy == close(1.533333)
    assert found.reasoning_entropy == close(2.053226)
    assert found.retrieval == close(2 / 3)
    assert found.zscore == pytest.approx(5.755267, abs=1e-5)
    assert found.chance == close(1 / 3)
    assert found.retrieval_at == {2: close(1.0), 4: 1.0, 8: 1.0}


def test_golden_b_equal_scores_give_chance():
    found = template_collapse(torch.tensor([[-1.0] * 3, [-2.0] * 3, [-7.0] * 3]), torch.arange(3))
    assert found.mutual_information == close(0)
    assert found.retrieval == close(1 / 3)
    assert found.retrieval_at[2] == close(2 / 3)
    assert found.zscore == close(0)


def test_golden_c_perfect_dependence():
    scores = torch.full((3, 3), -99.0).fill_diagonal_(-1)
    found = template_collapse(scores, torch.arange(3))
    assert found.mutual_information == close(math.log(3))
    assert found.retrieval == 1
    assert found.zscore == pytest.approx(1098.612, abs=1e-2)
    assert template_collapse(scores, torch.arange(3), sd=0.999).zscore == close(math.log(3))


def test_golden_d_two_thoughts_per_prompt():
    scores = torch.tensor([[-1, -3], [-1.5, -1], [-2, -0.5], [-4, -2]])
    found = template_collapse(scores, torch.tensor([0, 0, 1, 1]))
    assert (found.thoughts, found.prompts) == (4, 2)
    assert found.mutual_information == close(0.335811)
    assert found.conditional_entropy == close(1.25)
    assert found.reasoning_entropy == close(1.585811)
    assert found.retrieval == close(0.75)
    assert found.zscore == close(0.557016)


@given(st.integers(1, 6), st.integers(1, 6), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_properties_of_the_measures(n, width, rng):
    """H(Z) = H(Z|X) + I; I at most log N; the order of prompts and a constant per thought change nothing."""
    scores = torch.tensor([[rng.choice([-1.0, -2.0, rng.uniform(-30, 0)]) for _ in range(width)] for _ in range(n)])
    own = torch.tensor([rng.randrange(width) for _ in range(n)])
    found = template_collapse(scores, own)
    assert found.reasoning_entropy == pytest.approx(found.conditional_entropy + found.mutual_information, abs=1e-9)
    assert found.mutual_information <= math.log(width) + 1e-9
    assert 0 <= found.retrieval <= found.retrieval_at[2] <= found.retrieval_at[4] <= 1
    order = torch.tensor(rng.sample(range(width), width))
    again = template_collapse(scores[:, order], torch.argsort(order)[own])
    assert again.retrieval == pytest.approx(found.retrieval)
    assert again.mutual_information == pytest.approx(found.mutual_information)
    moved = template_collapse(scores + torch.arange(n)[:, None], own)
    assert moved.mutual_information == pytest.approx(found.mutual_information, abs=1e-5)


@pytest.mark.parametrize(
    ("scores", "own"),
    [
        (torch.zeros(2, 0), torch.zeros(2)),
        (torch.zeros(2, 3), torch.zeros(3)),
        (torch.zeros(3), torch.zeros(3)),
        (torch.zeros(2, 3), torch.tensor([0, 3])),
        (torch.zeros(2, 3), torch.tensor([-1, 0])),
        (torch.tensor([[0.0, math.nan]]), torch.tensor([0])),
        (torch.tensor([[0.0, -math.inf]]), torch.tensor([0])),
    ],
)
def test_matrices_that_are_none_are_refused(scores, own):
    with pytest.raises(ValueError, match=r"expected scores|finite|own must"):
        template_collapse(scores, own)


# --- template collapse: the matrix ------------------------------------------------------------------------------------


class ThinksOfFirst(torch.nn.Module):
    """After any token it expects the very first token of its prompt, almost surely."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(60.0))
        self.config = SimpleNamespace(vocab_size=size)
        self.generation_config = SimpleNamespace(eos_token_id=None)

    def forward(self, input_ids, attention_mask, position_ids, use_cache=False):
        first = torch.nn.functional.one_hot(input_ids[:, :1], self.config.vocab_size)
        return SimpleNamespace(logits=(self.weight * first).expand(*input_ids.shape, -1))


def written(
    policy: LanguagePolicy, prompt: list[int], *replies: str | list[int], temperature: float = 1.0
) -> Trajectory:
    """An episode in which these replies were sampled after a prompt."""
    ids, turn_id, turns = list(prompt), [-1] * len(prompt), []
    for k, reply in enumerate(replies):
        new = policy.reply_ids(reply) if isinstance(reply, str) else reply
        ids, turn_id = ids + new + prompt[:1], turn_id + [k] * len(new) + [-1]
        text = policy.decode(new)
        turns.append(Turn(text, find_blocks(text).thought, "stop", "ok", True, "", 1, 0.0, 0.0, "", "", len(new)))
    turn = np.array(turn_id)
    return Trajectory(
        group_id=0,
        trajectory_id=0,
        seed=0,
        dynamics_seed=0,
        turns=turns,
        temperature=temperature,
        ids=np.array(ids),
        loss_mask=turn >= 0,
        turn_id=turn,
        logp=np.zeros(len(ids), np.float32),
    )


def scripted_policy(model: torch.nn.Module) -> LanguagePolicy:
    return LanguagePolicy(model, byte_tokenizer())


LETTERS = "abcdef"


def spelled(policy: LanguagePolicy, letter: str, times: int = 4) -> Trajectory:
    """The prompt is one letter, the thought repeats it."""
    prompt = policy.reply_ids(letter)
    return written(policy, prompt, f"<think>{letter * times}</think><answer>{letter}</answer>")


def test_a_policy_that_ignores_its_prompt_has_no_information():
    logits = torch.linspace(-2, 2, 267).tolist()
    policy = scripted_policy(Scripted(logits))
    episodes = [spelled(policy, letter, 3 + k) for k, letter in enumerate(LETTERS)]
    metrics = template_metrics(policy, episodes)
    assert metrics["template_prompts"] == 6
    for key in ("template_mi", "template_mi_seq", "template_above_chance", "template_zscore"):
        assert metrics[key] == pytest.approx(0, abs=1e-4)
    assert metrics["template_retrieval"] == metrics["template_retrieval_seq"] == pytest.approx(1 / 6)
    assert metrics["template_conditional_entropy"] > 1
    assert metrics["valid_thinking"] == 1


@pytest.mark.parametrize("n", [2, 3, 6])
def test_a_policy_that_follows_its_prompt_has_log_n(n):
    policy = scripted_policy(ThinksOfFirst(267))
    metrics = template_metrics(policy, [spelled(policy, letter) for letter in LETTERS[:n]])
    assert metrics["template_mi"] == metrics["template_mi_seq"] == pytest.approx(math.log(n), abs=1e-5)
    assert metrics["template_retrieval"] == 1
    assert metrics["template_conditional_entropy"] == pytest.approx(0, abs=1e-5)
    assert metrics["template_above_chance"] == pytest.approx(1 - 1 / n)


def test_equal_prompts_are_one_column():
    policy = scripted_policy(ThinksOfFirst(267))
    found = cross_scores(policy, [spelled(policy, letter) for letter in "aaabbc"])
    assert found is not None
    assert found.total.shape == (5, 3)
    assert found.own.tolist() == [0, 0, 1, 1, 2]
    assert template_collapse(found.mean, found.own).mutual_information == pytest.approx(math.log(3), abs=1e-5)


@pytest.mark.parametrize(("kind", "temperature"), [("tiny", 1.0), ("gpt2", 0.7), ("llama", 1.0)])
def test_cross_scores_are_log_probabilities_at_the_temperature_of_sampling(kind, temperature):
    """Each cell against one plain pass over prompt and thought; batches of any size give the same."""
    policy = policy_of(kind)
    words = ["Up Down", "Left", "go (1,2) push Up"]
    episodes = [
        written(
            policy,
            policy.prompt_ids([{"role": "user", "content": p}]),
            f"<think> {w} </think>",
            temperature=temperature,
        )
        for p, w in zip(["bandit", "player (1,1)", "walls"], words, strict=True)
    ]
    found = cross_scores(policy, episodes, micro_batch=2)
    assert found is not None
    prompts = []
    for t in episodes:
        start = int(np.flatnonzero(t.loss_mask)[0])
        span = thought_span(policy, t.ids[t.loss_mask].tolist())
        assert span is not None
        prompts.append((t.ids[: start + span[0]], t.ids[start + span[0] : start + span[1]]))
    for i, (_, z) in enumerate(prompts):
        assert found.tokens[i] == len(z)
        for j, (x, _) in enumerate(prompts):
            ids = torch.from_numpy(np.concatenate([x, z]))
            with torch.no_grad():
                every = torch.log_softmax(policy.model(input_ids=ids[None]).logits[0].double() / temperature, -1)
            expected = every[len(x) - 1 : -1].gather(1, ids[len(x) :, None]).sum()
            assert float(found.total[i, j]) == pytest.approx(float(expected), abs=2e-3)
    all_at_once = cross_scores(policy, episodes, micro_batch=64)
    assert all_at_once is not None
    torch.testing.assert_close(found.total, all_at_once.total, atol=1e-3, rtol=0)


def test_cost_is_bounded_and_nothing_is_disturbed():
    """At most prompts x thoughts x prompts sequences; weights, gradients and generators stay as they were."""
    model = Scripted(size=267)
    policy = scripted_policy(model)
    episodes = [written(policy, policy.reply_ids(chr(97 + i % 20)), f"<think>{i}</think>") for i in range(200)]
    torch.manual_seed(0)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    cross_scores(policy, episodes, turn_seed=3)
    cross_scores(policy, episodes, prompts=4, thoughts=3)
    assert len(model.seen) == 8 * 2 * 8 + 4 * 3 * 4
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])  # noqa: NPY002
    assert model.fixed.grad is None


def test_any_turn_can_be_asked_for():
    policy = scripted_policy(ThinksOfFirst(267))
    replies = ["<think>aa</think>", "<think>aaaa</think>", "no thought"]
    episodes = [written(policy, policy.reply_ids(letter), *replies) for letter in LETTERS]
    first = cross_scores(policy, episodes)
    assert first is not None
    assert (first.valid, set(first.tokens.tolist())) == (1.0, {2})
    some = [cross_scores(policy, episodes, turn_seed=seed) for seed in range(8)]
    assert {int(n) for found in some if found for n in found.tokens} == {2, 4}
    assert 0 < np.mean([found.valid for found in some if found]) < 1
    one, again = some[0], cross_scores(policy, episodes, turn_seed=0)
    assert one is not None
    assert again is not None
    assert torch.equal(one.total, again.total)


def test_nothing_to_measure():
    policy = scripted_policy(Scripted(size=267))
    assert template_metrics(policy, []) == {}
    assert template_metrics(policy, [spelled(policy, "a")] * 5) == {}
    assert template_metrics(policy, [written(policy, [5], "no tags"), written(policy, [6], "<think></think>")]) == {}
    assert template_metrics(policy, [episode(0, "tokens are missing"), episode(1, "here")]) == {}
    broken = scripted_policy(Scripted([math.nan] * 267))
    assert template_metrics(broken, [spelled(broken, letter) for letter in "abc"]) == {}


def test_prompts_too_long_for_the_model_are_left_out():
    policy = scripted_policy(Scripted(size=267))
    policy.model.config.max_position_embeddings = 30
    short = [spelled(policy, letter) for letter in "abc"]
    long = written(policy, policy.reply_ids("d" * 20), "<think>dd</think>")
    found = cross_scores(policy, [long, *short])
    assert found is not None
    assert found.total.shape == (3, 3)


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        ("<think>go up</think><answer>Up</answer>", "go up"),
        ("well <think>go up</think>", "go up"),
        ("<THINK>go</tHink>", "go"),
        ("<think>a</think><think>b</think>", "a"),
        ("<think>a<think>b</think>", "a<think>b"),
        ("<think>né 你好 🙂</think>", "né 你好 🙂"),
        ("<think>never closed", None),
        ("</think>a<think>", None),
        ("<think></think>", None),
        ("<think> \n</think>", None),
        ("", None),
    ],
)
def test_thoughts_are_found_in_tokens(text, thought):
    policy = scripted_policy(Scripted(size=267))
    ids = policy.reply_ids(text)
    span = thought_span(policy, ids)
    assert (None if span is None else policy.decode(ids[span[0] : span[1]])) == thought


def test_a_thought_that_the_template_has_opened():
    policy = scripted_policy(Scripted(size=267))
    policy.primed = "<think>"
    ids = policy.reply_ids("go up</think><answer>Up</answer>")
    assert thought_span(policy, ids) == (0, len(policy.reply_ids("go up")))


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "x", "🙂", "İ", "\n", "", "llo"]), max_size=12))
@settings(max_examples=100, deadline=None)
def test_any_reply_has_a_span_or_none(pieces):
    policy = HOSTILE_POLICY
    ids = policy.reply_ids("".join(pieces))
    span = thought_span(policy, ids)
    if span is not None:
        assert 0 <= span[0] < span[1] <= len(ids)


@given(st.lists(st.integers(0, 266), max_size=30))
@settings(max_examples=100, deadline=None)
def test_any_tokens_have_a_span_or_none(ids):
    """Broken UTF-8 and control tokens among them."""
    tags = HOSTILE_POLICY.reply_ids("<think>"), HOSTILE_POLICY.reply_ids("</think>")
    thought_span(HOSTILE_POLICY, ids)
    span = thought_span(HOSTILE_POLICY, [*ids, *tags[0], *ids, *tags[1], *ids])
    assert span is None or span[0] < span[1]


HOSTILE_POLICY = scripted_policy(Scripted(size=267))


def test_the_embedded_model_reads_its_prompts():
    policy = tiny_mid()
    seeds = episode_seeds((5,), groups=8, group_size=2)
    episodes = play(policy, "ragen/Sokoban-v0", seeds)
    metrics = template_metrics(policy, episodes)
    assert metrics["template_prompts"] == 8
    assert 0.5 * math.log(8) < metrics["template_mi_seq"] <= math.log(8)
    assert metrics["template_retrieval_seq"] > 0.5


# --- gradient buckets -------------------------------------------------------------------------------------------------


def talk_batch(policy: LanguagePolicy, returns: list[float], groups: list[int]):
    """Conversations of different lengths with these returns."""
    episodes = talk_of(policy, rows=len(returns)).trajectories()
    for t, value, group in zip(episodes, returns, groups, strict=True):
        t.turns[-1].reward, t.group_id = value, group
    return collate(episodes)


RETURNS, GROUPS = [0.0, 0.0, 0.0, 1.0, 1.0, 3.0, 0.0, 9.0], [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("grpo", {"aggregation": "token-mean"}),
        ("grpo", {"aggregation": "seq-mean-token-mean", "kl_coef": 0.1}),
        ("grpo", {"aggregation": "sum/const", "aggregation_const": 8.0}),
        ("reinforce", {"aggregation": "seq-mean-token-sum"}),
        ("starpo", {"optimizer": "grpo", "kl_coef": 0.1}),
    ],
)
def test_buckets_add_up_to_the_gradient_of_the_loss(name, options):
    """The last entry, and the sum of the buckets' gradients, are what the loss itself gives by backward()."""
    policy = policy_of("gpt2")
    policy.model.double()
    algorithm = make(name, entropy_coef=0.3, **options)
    batch = talk_batch(policy, RETURNS, GROUPS)
    advantages, _ = algorithm.credit(batch)
    with torch.no_grad():
        ref = policy.log_probs(batch)[0] + 0.1 * torch.randn(batch.ids.shape)
    found = gradient_buckets(policy, algorithm, batch, advantages, ref_logp=ref, buckets=3, micro_batch=3)
    assert [b.groups for b in found] == [2, 1, 1, 4]
    assert [b.rows for b in found] == [4, 2, 2, 8]
    assert [b.std_max for b in found] == pytest.approx([0.5**0.5, 2**0.5, 9 / 2**0.5, 9 / 2**0.5])
    assert found[0].std_min == 0

    vectors = term_gradients(policy, algorithm, batch, advantages, torch.arange(8), ref_logp=ref)
    assert [float(v.norm()) for v in vectors] == pytest.approx([found[-1].policy, found[-1].entropy, found[-1].kl])
    logp, entropy = policy.log_probs(batch, with_entropy=True)
    denominator = algorithm.denominator(batch.loss_mask)
    loss = algorithm.loss(logp, batch.logp, advantages, batch.loss_mask, denominator, ref_logp=ref, entropy=entropy)
    loss.backward()
    whole = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    total = vectors[0] - 0.3 * vectors[1] + algorithm.kl_coef * vectors[2]
    assert (total - whole).norm() < 1e-7 * whole.norm()
    kl = algorithm.kl_coef * found[-1].kl
    assert found[-1].snr == pytest.approx(found[-1].policy / (0.3 * found[-1].entropy + kl))


def test_a_known_gradient():
    """Two tokens, equal logits: the gradient of log p is (1/2, -1/2), entropy is at its top, and equal returns teach
    nothing."""
    policy = scripted_policy(Scripted(size=267))
    a, b = (policy.reply_ids(x)[0] for x in "ab")
    with torch.no_grad():
        policy.model.fixed.fill_(-1e9)
        policy.model.fixed[[a, b]] = 0.0
    episodes = [written(policy, [a], [x]) for x in (a, b, a, b)]
    for t, value, group in zip(episodes, [1.0, 1.0, 2.0, 0.0], [7, 7, 3, 3], strict=True):
        t.turns[0].reward, t.group_id = value, group
    batch = collate(episodes)
    batch.logp = torch.where(batch.loss_mask, math.log(0.5), 0.0).float()
    algorithm = make("grpo", scale="none", aggregation="token-mean", entropy_coef=0.1)
    advantages, _ = algorithm.credit(batch)
    low, high, whole = gradient_buckets(policy, algorithm, batch, advantages, buckets=6)
    assert (low.policy, low.std_mean, low.entropy) == (0, 0, pytest.approx(0, abs=1e-6))
    # Advantages 1 and -1 on the two tokens: mean of -A grad log p is (-1/2, 1/2), of length sqrt(1/2).
    assert high.policy == pytest.approx(0.5**0.5)
    assert high.std_mean == pytest.approx(2**0.5)
    assert whole.policy == pytest.approx(0.5**0.5 / 2)
    assert (whole.tokens, low.tokens, high.tokens) == (4, 2, 2)
    assert low.kl is None


@pytest.mark.parametrize("kind", ["tiny", "gpt2"])
def test_the_probe_leaves_training_as_it_was(kind):
    """Parameters, Adam's state, gradients, generators and the mode of the model are bit-identical."""
    policy = policy_of(kind)
    algorithm = make("grpo", entropy_coef=0.01, kl_coef=0.01)
    batch = talk_batch(policy, RETURNS, GROUPS)
    advantages, _ = algorithm.credit(batch)
    optimizer = torch.optim.AdamW(policy.model.parameters())
    policy.log_probs(batch)[0].sum().backward()
    optimizer.step()
    kept = copy.deepcopy((policy.model.state_dict(), optimizer.state_dict()["state"]))
    gradients = [None if p.grad is None else p.grad.clone() for p in policy.model.parameters()]
    torch.manual_seed(4)
    luck = torch.get_rng_state()
    with torch.no_grad():  # as from a caller that wants no gradients
        found = gradient_buckets(policy, algorithm, batch, advantages, ref_logp=batch.logp)
    assert all(b.policy >= 0 and b.kl is not None for b in found)
    assert found[0].policy < 1e-6 < found[-1].policy
    now = policy.model.state_dict(), optimizer.state_dict()["state"]
    assert all(torch.equal(kept[0][k], now[0][k]) for k in kept[0])
    assert all(torch.equal(kept[1][i][k], now[1][i][k]) for i in kept[1] for k in kept[1][i])
    for p, g in zip(policy.model.parameters(), gradients, strict=True):
        assert (p.grad is None) == (g is None)
        assert g is None or torch.equal(p.grad, g)
    assert torch.equal(luck, torch.get_rng_state())
    assert not policy.model.training


# --- calibration ------------------------------------------------------------------------------------------------------


def history(seed: int, *, falls_at: int | None, warns: int = 0) -> list[dict]:
    """Thirty noisy iterations, in which the reward spread falls at an iteration and success ten later."""
    rng = random.Random(seed)
    out = []
    for i in range(40):
        gone = falls_at is not None and i >= falls_at
        lost = falls_at is not None and i >= falls_at + 10
        change = {
            "in_group_std": rng.gauss(0.04 if gone else 1.0, 0.01),
            "success": 0.02 if lost else rng.uniform(0.28, 0.32),
            "thought_length": 4.0 if i == 20 and warns else 40.0,
        }
        out.append({"iteration": i, **STEADY, **change})
    return out


def test_calibration_counts_alarms_and_lead():
    good = [history(s, falls_at=None, warns=s == 0) for s in range(10)]
    bad = [history(s, falls_at=15) for s in range(9)] + [history(9, falls_at=None)]
    found = calibrate(good + bad, [False] * 10 + [True] * 10)
    warning, collapse = found["warning"], found["collapsed"]
    assert (warning.healthy, warning.false_alarms, warning.collapsed, warning.detected) == (10, 1, 10, 9)
    assert (collapse.false_alarms, collapse.detected) == (0, 9)
    # Spread falls at 15: a warning at 17, a collapse at 24. Success falls at 25, the mean of five is halved at 27.
    assert warning.leads == (27 - 17,) * 9
    assert collapse.leads == (27 - 24,) * 9
    assert collapse.detection_interval == pytest.approx((0.5958, 0.9821), abs=1e-4)
    assert collapse.false_alarm_interval == pytest.approx((0.0, 0.2775), abs=1e-4)
    only = calibrate(good, [False] * 10)["collapsed"]
    assert (only.detection_interval, only.leads) == (None, ())


def test_halved_success():
    assert halved_at([0.4] * 10) is None
    assert halved_at([0.4] * 5 + [0.1] * 5) == 8
    assert halved_at([0.4] * 5 + [0.1] * 3) is None
    assert halved_at([0.0] * 10) is None
    assert halved_at([0.3]) is None


# --- in the trainer ---------------------------------------------------------------------------------------------------


def test_a_training_run_carries_its_verdicts(tmp_path):
    """Every iteration has one, every fifth its measures of template collapse, and a resumed run goes on with both."""

    def train(iterations: int) -> Trainer:
        config = TrainConfig(iterations=iterations, groups=4, group_size=2, seed=0, max_new_tokens=16)
        trainer = Trainer(tiny_mid(), make("reinforce"), "ragen/Bandit-v0", None, config, folder=tmp_path)
        trainer.run()
        return trainer

    train(3)
    trainer = train(7)
    rows = trainer.metrics
    assert [row["verdict"] in ("healthy", "warning", "collapsed") for row in rows] == [True] * 7
    assert ["template_mi" in row for row in rows] == [i % 5 == 0 for i in range(7)]
    replayed = EchoTrapMonitor()
    again = [replayed.update(row).to_row() for row in json.loads(json.dumps(rows))]
    assert again == [{key: row[key] for key in ("verdict", "signals", "alarm")} for row in rows]
    assert replayed.state_dict() == trainer.echo_trap.state_dict()


def test_what_a_row_says():
    healthy, *_, bad = run(*[{}] * 10, *[{"format_ok": 0.0, "thought_length": 0.0}] * 5)
    assert healthy.to_row() == {"verdict": "healthy", "signals": [], "alarm": None}
    assert bad.to_row()["verdict"] == "collapsed"
    assert bad.to_row()["signals"] == ["thought_length", "invalid"]
    assert "100% of the turns are badly formed" in bad.to_row()["alarm"]
