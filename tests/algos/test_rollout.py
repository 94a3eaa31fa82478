"""Rollouts: who plays, what luck they meet, and what is written down."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import COMPACT, play, policy_of

from ragen_algos.rollout import EpisodeSeed, FunctionPlayer, Reply, episode_seeds, make_env, rollout
from ragen_algos.sampler import Sampler
from ragen_algos.trajectory import Trajectory, collate
from ragen_envs.protocol import SEPARATOR

SOKOBAN, LAKE, BANDIT = "ragen/Sokoban-v0", "ragen/FrozenLake-v0", "ragen/Bandit-v0"


def written(env, actions) -> str:
    names = env.game.action_names(env.level)
    return f"<think>so</think><answer>{f' {SEPARATOR} '.join(names[a] for a in actions)}</answer>"


def oracle(env, messages, rng) -> str:
    return written(env, env.best_turn().actions)


def anything(env, messages, rng) -> str:
    """Random actions, now and then badly written."""
    if rng.random() < 0.3:
        return "".join(rng.choice(["<answer>", "Up", "</answer>", "<think>", " || "], size=4))
    return written(env, rng.integers(env.game.n_actions, size=rng.integers(1, 4)))


def content(trajectory: Trajectory) -> tuple:
    turns = [(t.text, t.executed, t.reward, t.state_key, t.observation_key) for t in trajectory.turns]
    return trajectory.level_key, trajectory.success, trajectory.truncated, turns, trajectory.ids.tolist()


# --- seeds ------------------------------------------------------------------------------------------------------------


def test_seeds_of_a_group_share_the_level_and_nothing_else():
    seeds = episode_seeds((3, 1), groups=4, group_size=5)
    assert [s.group_id for s in seeds] == [g for g in range(4) for _ in range(5)]
    assert [s.trajectory_id for s in seeds] == list(range(20))
    for g in range(4):
        assert len({s.level for s in seeds if s.group_id == g}) == 1
    for name, n in (("level", 4), ("dynamics", 20), ("sampling", 20)):
        assert len({getattr(s, name) for s in seeds}) == n


def test_seeds_follow_the_root():
    def drawn(*root):
        return episode_seeds(root, groups=3, group_size=2)

    assert drawn(1, 2) == drawn(1, 2)
    assert len({s.level for root in ((1, 2), (2, 1), (1, 3), (0, 2)) for s in drawn(*root)}) == 12


@pytest.mark.parametrize("env_id", [SOKOBAN, LAKE, BANDIT])
def test_the_same_seeds_give_the_same_episodes(env_id):
    seeds = episode_seeds((8,), groups=4, group_size=3)
    first, again = (rollout(FunctionPlayer(anything), env_id, {}, seeds) for _ in range(2))
    assert [content(t) for t in first] == [content(t) for t in again]
    part = rollout(FunctionPlayer(anything), env_id, {}, seeds[5:9])
    assert [content(t) for t in part] == [content(t) for t in first[5:9]]


def test_the_same_seeds_give_the_same_tokens():
    policy = policy_of("tiny")
    seeds = episode_seeds((2,), groups=2, group_size=3)
    first, again = (play(policy, SOKOBAN, seeds) for _ in range(2))
    assert [content(t) for t in first] == [content(t) for t in again]
    assert len({tuple(t.ids.tolist()) for t in first}) == 6


def test_members_of_a_group_meet_one_level_with_different_luck():
    def straight(env, messages, rng):
        return written(env, [2, 1, 2, 1])

    seeds = episode_seeds((0,), groups=12, group_size=6)
    kwargs = {"slip": 0.6, "max_steps": 5}
    groups: dict[int, list[Trajectory]] = {}
    for t in rollout(FunctionPlayer(straight), LAKE, kwargs, seeds):
        groups.setdefault(t.group_id, []).append(t)
    for members in groups.values():
        assert len({t.level_key for t in members}) == 1
        assert len({t.turns[0].observation_key for t in members}) == 1
        assert len({t.dynamics_seed for t in members}) == 6
    assert sum(len({t.turns[0].state_key for t in members}) > 1 for members in groups.values()) >= 8
    common = rollout(FunctionPlayer(straight), LAKE, {**kwargs, "group_noise": "common"}, seeds)
    for g in range(12):
        assert len({t.turns[0].state_key for t in common if t.group_id == g}) == 1


# --- players ----------------------------------------------------------------------------------------------------------


def test_an_error_of_the_player_ends_that_episode_only():
    """C21: four episodes, the player raises on the second; the others are what they would have been."""
    seeds = episode_seeds((4,), groups=4)

    def breaks(env, messages, rng):
        if env is envs[1] and len(messages) > 2:
            raise KeyError("lost")
        return anything(env, messages, rng)

    envs = []

    class Player(FunctionPlayer):
        def begin(self, given, prompts, seeds):
            envs.extend(given)
            super().begin(given, prompts, seeds)

    broken = rollout(Player(breaks), SOKOBAN, {}, seeds)
    whole = rollout(FunctionPlayer(anything), SOKOBAN, {}, seeds)
    assert [t.error for t in broken] == ["", "KeyError: 'lost'", "", ""]
    assert [content(broken[i]) for i in (0, 2, 3)] == [content(whole[i]) for i in (0, 2, 3)]
    assert len(broken[1].turns) == 1
    assert not broken[1].success
    assert not broken[1].terminated
    assert not broken[1].truncated


@pytest.mark.parametrize("said", [None, 3, ["Up"]])
def test_a_player_that_returns_no_text_is_an_error_of_that_episode(said):
    """C21."""
    (t,) = rollout(FunctionPlayer(lambda *_: said), SOKOBAN, {}, episode_seeds((0,), groups=1))
    assert t.error.startswith("TypeError")
    assert t.turns == []


def test_an_error_of_the_environment_ends_that_episode_only(monkeypatch):
    """C21."""
    from ragen_envs.text_env import TextEnv

    step = TextEnv.step

    def fragile(self, action, **more):
        if "break" in action:
            raise IndexError("inside")
        return step(self, action, **more)

    monkeypatch.setattr(TextEnv, "step", fragile)
    seeds = episode_seeds((0,), groups=6)
    player = FunctionPlayer(lambda env, m, rng: "break" if rng.random() < 0.3 else oracle(env, m, rng))
    out = rollout(player, SOKOBAN, {}, seeds)
    assert {t.error for t in out} == {"", "environment: IndexError: inside"}
    assert all(t.success for t in out if not t.error)


def test_no_text_is_not_an_error():
    """An empty reply is a bad turn with a penalty; the game goes on."""
    (t,) = rollout(FunctionPlayer(lambda *_: ""), SOKOBAN, {}, episode_seeds((0,), groups=1))
    assert t.error == ""
    assert [turn.status for turn in t.turns] == ["no_answer"] * 5
    assert t.truncated
    assert not t.terminated


def test_the_players_wishes_are_overridden_by_the_arguments():
    seen = []

    def look(env, messages, rng):
        seen.append(env)
        return oracle(env, messages, rng)

    player = FunctionPlayer(look, env_kwargs={"prompt": "compact", "max_turns": 4})
    seeds = episode_seeds((0,), groups=3)
    out = rollout(player, SOKOBAN, {"max_turns": 3, "split": "test", "format_penalty": -0.25, "boxes": 1}, seeds)
    assert {(e.prompt, e.max_turns, e.split, e.format_penalty) for e in seen} == {("compact", 3, "test", -0.25)}
    assert {t.split for t in out} == {"test"}


def test_conversations_alternate_and_end_with_what_came_back():
    roles = []

    def note(env, messages, rng):
        roles.append([m["role"] for m in messages])
        return ""

    rollout(FunctionPlayer(note), SOKOBAN, {}, episode_seeds((0,), groups=1))
    for turn, said in enumerate(roles):
        assert said == ["system", "user", *["assistant", "user"] * turn]


def test_an_id_that_is_no_text_environment_is_refused():
    with pytest.raises(ValueError, match="not a text environment"):
        make_env_without_messages()


def make_env_without_messages():
    import gymnasium

    class Other(gymnasium.Env):
        def __init__(self, observation):
            pass

    gymnasium.register("other/Other-v0", entry_point=Other)
    try:
        return make_env("other/Other-v0")
    finally:
        del gymnasium.registry["other/Other-v0"]


# --- what is written down ---------------------------------------------------------------------------------------------


def test_the_oracle_solves_every_sokoban_level_for_its_predicted_return():
    predicted = []

    class Player(FunctionPlayer):
        def begin(self, envs, prompts, seeds):
            predicted.extend(env.best_turn().expected for env in envs)
            super().begin(envs, prompts, seeds)

    out = rollout(Player(oracle), SOKOBAN, {"split": "test"}, episode_seeds((1,), groups=60))
    assert all(t.success and t.terminated for t in out)
    np.testing.assert_allclose([t.total_return for t in out], [p.reward for p in predicted], atol=1e-9)
    assert all(turn.format_ok and turn.penalty == 0 for t in out for turn in t.turns)


def test_the_oracle_picks_the_better_arm_always():
    out = rollout(FunctionPlayer(oracle), BANDIT, {}, episode_seeds((1,), groups=40))
    assert all(t.success for t in out)
    assert all(t.terminated and not t.truncated for t in out)


@pytest.mark.parametrize("env_id", [SOKOBAN, LAKE, BANDIT])
def test_turn_records_agree_with_the_environment(env_id):
    """Rewards, penalties and counts are those that a second play of the same texts gives."""
    seeds = episode_seeds((9,), groups=6, group_size=4)
    out = rollout(FunctionPlayer(anything, env_kwargs={"oracle": True}), env_id, {}, seeds)
    env = make_env(env_id, {"oracle": True})
    for t in out:
        _, info = env.reset(seed=t.seed, options={"dynamics_seed": t.dynamics_seed})
        assert (info["level_hash"], info["split"]) == (t.level_key, t.split)
        total, terminated, truncated = 0.0, False, False
        for turn in t.turns:
            before = env.actions_left
            _, reward, terminated, truncated, info = env.step(turn.text, finish_reason=turn.finish_reason)
            total += reward
            assert turn.reward == reward
            assert turn.n_actions == before - env.actions_left
            assert turn.n_actions == len([a for a in turn.executed.split(" || ") if a])
            assert turn.penalty == (0.0 if turn.format_ok else -0.1)
            assert (turn.status, turn.format_ok, turn.executed) == (
                info["action_status"],
                info["format_ok"],
                info["action_executed"],
            )
            assert (turn.state_key, turn.optimal_steps) == (info["state_hash"], info["optimal_steps"])
            assert turn.deadlock == info["deadlock"]
            assert turn.thought == ("so" if turn.text.startswith("<think>so") else turn.thought)
        assert (t.terminated, t.truncated, t.success) == (terminated, truncated, info["success"])
        assert t.total_return == pytest.approx(total, abs=1e-12)
        assert sum(turn.reward for turn in t.turns) == pytest.approx(total, abs=1e-12)
    assert {turn.format_ok for t in out for turn in t.turns} == {True, False}


def test_the_form_penalty_is_part_of_the_return():
    (good,) = rollout(FunctionPlayer(lambda e, m, r: written(e, [0])), BANDIT, {}, [EpisodeSeed(3, 4, 5, 0, 0)])
    (bad,) = rollout(FunctionPlayer(lambda e, m, r: "Hm. " + written(e, [0])), BANDIT, {}, [EpisodeSeed(3, 4, 5, 0, 0)])
    assert bad.total_return == pytest.approx(good.total_return - 0.1)
    assert bad.turns[0].executed == good.turns[0].executed
    assert bad.turns[0].penalty == -0.1


def test_equal_sights_have_equal_keys():
    """P14: what was seen before a turn, not its index, makes two turns comparable."""
    out = rollout(FunctionPlayer(anything), SOKOBAN, {}, episode_seeds((0,), groups=2, group_size=8))
    first = {t.turns[0].observation_key for t in out if t.group_id == 0}
    assert len(first) == 1
    assert first != {t.turns[0].observation_key for t in out if t.group_id == 1}
    assert len({t.turns[1].observation_key for t in out if t.group_id == 0 and len(t.turns) > 1}) > 1


def test_players_without_tokens_leave_none():
    (t,) = rollout(FunctionPlayer(oracle), BANDIT, {}, episode_seeds((0,), groups=1))
    assert len(t.ids) == len(t.loss_mask) == len(t.logp) == 0


@pytest.mark.parametrize("kind", ["tiny", "llama"])
def test_tokens_and_turns_of_sampled_episodes_fit(kind):
    """H1, H2: one record; masks from lengths; a reward on the last sampled token of its turn."""
    policy = policy_of(kind)
    out = play(policy, SOKOBAN, episode_seeds((0,), groups=3, group_size=2), temperature=0.8)
    batch = collate(out)
    assert {t.temperature for t in out} == {0.8} == {batch.temperature}
    assert batch.attention_mask.sum(1).tolist() == [len(t.ids) for t in out]
    for row, t in enumerate(out):
        assert [turn.n_tokens for turn in t.turns] == [int((t.turn_id == k).sum()) for k in range(len(t.turns))]
        assert t.loss_mask.sum() == sum(turn.n_tokens for turn in t.turns)
        assert int(batch.turn_end[row].sum()) == len(t.turns)
        assert batch.rewards[row][batch.turn_end[row]].tolist() == [turn.reward for turn in t.turns]
        assert not batch.rewards[row][~batch.turn_end[row]].any()
        assert float(batch.returns[row]) == pytest.approx(t.total_return)
        for k, turn in enumerate(t.turns):
            assert policy.decode(t.ids[t.turn_id == k].tolist()) == turn.text


def test_a_reply_that_was_cut_off_is_called_so():
    """C1: not the same as bad form."""
    out = play(policy_of("tiny"), BANDIT, episode_seeds((0,), groups=8), max_new_tokens=2)
    assert {(t.turns[0].finish_reason, t.turns[0].status) for t in out} == {("length", "length")}


def test_the_longest_row_decides_the_width_of_a_part():
    batch = collate(play(policy_of("tiny"), SOKOBAN, episode_seeds((0,), groups=6)))
    lengths = batch.attention_mask.sum(1)
    short = batch.rows([int(lengths.argmin())])
    assert short.ids.shape == (1, int(lengths.min()))
    assert short.attention_mask.all()
    assert float(short.returns[0]) == float(batch.returns[lengths.argmin()])
    assert len(batch.rows([])) == 0


def test_the_last_sight_is_appended_only_where_a_budget_cut():
    """H3, P19: V(s_L) is read where a reply would begin; masks, turns and returns do not change."""
    seeds = episode_seeds((0,), groups=12)
    policy = policy_of("tiny")
    plain = rollout(Sampler(policy), SOKOBAN, {}, seeds)
    seen = rollout(Sampler(policy), SOKOBAN, {}, seeds, last_sight=True)
    opening = policy.observation_ids("", stopped=True)[-1]
    assert any(t.truncated and not t.terminated for t in plain)
    for a, b in zip(plain, seen, strict=True):
        n = len(a.ids)
        assert b.ids[:n].tolist() == a.ids.tolist()
        assert not b.loss_mask[n:].any()
        if a.truncated and not a.terminated:
            assert len(b.ids) > n
            assert b.ids[-1] == opening
        else:
            assert len(b.ids) == n


def test_a_sampler_asks_for_what_its_policy_wants():
    assert Sampler(policy_of("tiny")).env_kwargs == COMPACT
    assert Reply("x").finish_reason == "stop"
