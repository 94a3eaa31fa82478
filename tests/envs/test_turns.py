"""Turns as agents: PettingZoo's own tests, the text environment step for step, and the bandit of one turn."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import hypothesis.strategies as st
import numpy as np
import pettingzoo
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics, TransformObservation
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper

from ragen_envs import TABLE, TextEnv, turns
from ragen_envs.spaces import FreeText
from ragen_envs.turns import (
    ParallelTurnsEnv,
    TurnsEnv,
    turn_as_bandit,
    turns_as_agents,
    turns_as_parallel_agents,
)

BANDIT, LAKE, SOKOBAN = "ragen/Bandit-v0", "ragen/FrozenLake-v0", "ragen/Sokoban-v0"
CORRIDOR = "#######\n#@-$-.#\n#######"  # solved by Right three times
ROOM = "#####\n#@--#\n#-$-#\n#-.-#\n#####"
KINDS: list[tuple[str, dict[str, Any]]] = [
    *((id, {"action": action}) for id in (BANDIT, LAKE, SOKOBAN) for action in ("text", "discrete")),
    (LAKE, {"observation": "messages", "max_turns": 3}),
    (SOKOBAN, {"observation": "grid", "action": "discrete", "max_actions": 12}),
    (SOKOBAN, {"observation": "messages", "action": "discrete", "prompt": "compact"}),
]


def said(*actions: str) -> str:
    return f"<think>x</think><answer>{' || '.join(actions)}</answer>"


TEXTS = st.one_of(
    st.lists(st.sampled_from(["Left", "Down", "Right", "Up", "Jump"]), max_size=6).map(lambda names: said(*names)),
    st.text(max_size=30),
    st.sampled_from(["", "<answer>Up</answer>", "<think>a <answer>Up</answer>", "é\n\U0001f600 <answer>", "\ud800"]),
)
SEEDS = st.integers(0, 50)


def actions_of(env: TextEnv) -> Any:
    """A strategy for the actions of an environment."""
    return st.integers(0, env.game.n_actions - 1) if env.action_mode == "discrete" else TEXTS


def make(id: str, **kwargs: Any) -> TextEnv:
    env = gymnasium.make(id, **kwargs).unwrapped
    assert isinstance(env, TextEnv)
    return env


def same(one: Any, other: Any) -> bool:
    """Equal in types and content."""
    if isinstance(one, dict):
        return isinstance(other, dict) and set(one) == set(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and bool((one == other).all())
    return type(one) is type(other) and bool(one == other)


def finish(game: TurnsEnv) -> dict[str, float]:
    """Let everybody leave a game that is over; what ``last`` still had to pay to each."""
    paid = {}
    for agent in game.agent_iter():
        _, paid[agent], terminated, truncated, _ = game.last()
        assert terminated or truncated
        game.step(None)
    return paid


# --- PettingZoo's own tests -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # they warn of every space that is neither Box nor Discrete
@pytest.mark.parametrize("observe", ["history", "blind"])
@pytest.mark.parametrize(("id", "kwargs"), KINDS)
def test_pettingzoo_accepts_it(id: str, kwargs: dict[str, Any], observe: str) -> None:
    """C8: its four tests, as they are."""
    api_test(turns_as_agents(id, observe=observe, **kwargs), num_cycles=200)
    seed_test(lambda: turns_as_agents(id, observe=observe, **kwargs), num_cycles=200)
    parallel_api_test(turns_as_parallel_agents(id, observe=observe, **kwargs), num_cycles=200)
    parallel_seed_test(lambda: turns_as_parallel_agents(id, observe=observe, **kwargs), num_cycles=200)


@pytest.mark.filterwarnings("ignore")
def test_pettingzoo_accepts_it_in_its_own_wrappers() -> None:
    game = turns_as_agents(SOKOBAN, action="discrete")
    api_test(OrderEnforcingWrapper(AssertOutOfBoundsWrapper(game)), num_cycles=50)


@pytest.mark.parametrize(("kind", "make_it"), [("aec", turns_as_agents), ("parallel", turns_as_parallel_agents)])
def test_pettingzoos_registry_has_every_id(kind: Any, make_it: Any) -> None:
    registry = pettingzoo.aec_registry if kind == "aec" else pettingzoo.parallel_registry
    assert set(TABLE) <= set(registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        turns._register_all()  # again, silently
        made = pettingzoo.make(kind, LAKE, observe="blind", max_turns=4)
    assert type(made) is type(make_it(LAKE))
    assert made.possible_agents == ["turn_1", "turn_2", "turn_3", "turn_4"]
    assert str(made.metadata["name"]) == f"{LAKE}-turns"


def test_pettingzoo_is_imported_with_this_module_only() -> None:
    code = (
        "import sys, warnings; warnings.simplefilter('error'); import ragen_envs, gymnasium\n"
        "gymnasium.make('ragen/Bandit-v0').reset(seed=0)\n"
        "assert 'pettingzoo' not in sys.modules\n"
        "import ragen_envs.turns, pettingzoo\n"
        "pettingzoo.make('aec', 'ragen/Bandit-v0').reset(seed=0)\n"
        "assert not {'torch', 'pygame', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


# --- the same game as the text environment's --------------------------------------------------------------------------


class AgentByAgent(RuleBasedStateMachine):
    """The game beside the text environment, and beside one that returns the conversation."""

    id: str
    kwargs: dict[str, Any]
    observe: str

    def __init__(self) -> None:
        super().__init__()
        self.game = turns_as_agents(self.id, observe=self.observe, **self.kwargs)
        self.env = make(self.id, **self.kwargs)
        self.talk = self.env.sibling(observation="messages")

    def seen(self, observation: Any, conversation: Any) -> dict[str, Any]:
        if self.env.observation_mode == "text":
            return {"text": observation, "messages": conversation}
        return {"messages" if self.env.observation_mode == "messages" else "observation": observation}

    @initialize(seed=SEEDS, dynamics_seed=st.none() | SEEDS)
    def start(self, seed: int | None, dynamics_seed: int | None) -> None:
        options = {"dynamics_seed": dynamics_seed}
        self.game.reset(seed=seed, options=options)
        observation, info = self.env.reset(seed=seed, options=options)
        conversation, _ = self.talk.reset(seed=seed, options=options)
        self.first = self.seen(observation, conversation), info
        self.now, self.over = self.first, (False, False)
        self.rewards: list[float] = []
        self.paid = {agent: 0.0 for agent in self.game.possible_agents}
        self.turn = 0
        assert self.game.agents == self.game.possible_agents
        self.compare()

    @rule(seed=st.none() | SEEDS, dynamics_seed=st.none() | SEEDS)
    def start_again(self, seed: int | None, dynamics_seed: int | None) -> None:
        self.start(seed, dynamics_seed)

    @precondition(lambda self: not any(self.over))
    @rule(data=st.data())
    def play(self, data: Any) -> None:
        action = data.draw(actions_of(self.env))
        assert self.game.agent_selection == self.game.possible_agents[self.turn]
        observation, reward, terminated, truncated, info = self.env.step(action)
        conversation, *_ = self.talk.step(action)
        self.paid[self.game.agent_selection] += self.game.last()[1]
        self.game.step(action)
        self.turn += 1
        self.rewards.append(reward)
        self.now, self.over = (self.seen(observation, conversation), info), (terminated, truncated)
        assert self.game.rewards == dict.fromkeys(self.game.possible_agents, reward)
        self.compare()

    @precondition(lambda self: any(self.over) and self.game.agents)
    @rule()
    def leave(self) -> None:
        agent = self.game.agent_selection
        self.paid[agent] += self.game.last()[1]
        self.game.step(None)
        assert agent not in self.game.agents
        assert self.paid[agent] == pytest.approx(sum(self.rewards), abs=1e-12)
        self.compare()

    def compare(self) -> None:
        blind = self.observe == "blind"
        seen = self.first[0] if blind else self.now[0]
        info = self.first[1] if blind and not any(self.over) else self.now[1]
        for agent in self.game.agents:
            assert same(self.game.observe(agent), seen)
            assert self.game.observation_space(agent).contains(self.game.observe(agent))
            assert same(self.game.infos[agent], info)
            assert (self.game.terminations[agent], self.game.truncations[agent]) == self.over
        if self.game.agents:
            last = self.game.last()
            assert same(last[0], seen)
            assert last[2:] == (*self.over, info)


@pytest.mark.parametrize(
    ("id", "kwargs", "observe"),
    [(*kind, "history") for kind in KINDS] + [(*KINDS[i], "blind") for i in (0, 2, 5, 7)],
)
def test_it_is_the_text_environments_game(id: str, kwargs: dict[str, Any], observe: str) -> None:
    machine = type("Machine", (AgentByAgent,), {"id": id, "kwargs": kwargs, "observe": observe})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=8, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.parametrize("observe", ["history", "blind"])
@pytest.mark.parametrize("kwargs", [{}, {"action": "discrete"}])
@settings(max_examples=10, deadline=None)
@given(data=st.data(), seed=SEEDS)
def test_in_parallel_it_is_the_same_game(kwargs: dict[str, Any], observe: str, data: Any, seed: int) -> None:
    """C9: one step is one turn; what the other agents send is not looked at."""
    game, parallel = (
        turns_as_agents(LAKE, observe=observe, **kwargs),
        turns_as_parallel_agents(LAKE, observe=observe, **kwargs),
    )
    env = make(LAKE, **kwargs)
    game.reset(seed=seed)
    observations, infos = parallel.reset(seed=seed)
    env.reset(seed=seed)
    total, earned = 0.0, dict.fromkeys(parallel.possible_agents, 0.0)
    while parallel.agents:
        for agent in parallel.agents:
            assert same(observations[agent], game.observe(agent))
            assert same(infos[agent], game.infos[agent])
        agent, action = parallel.agent_selection, data.draw(actions_of(env))
        assert agent == game.agent_selection
        noise = data.draw(st.sets(st.sampled_from(parallel.agents)))
        game.step(action)
        _, reward, *ends, _ = env.step(action)
        total += reward
        observations, rewards, terminations, truncations, infos = parallel.step({**dict.fromkeys(noise), agent: action})
        assert rewards == game.rewards
        assert (terminations, truncations) == (game.terminations, game.truncations)
        assert [terminations[agent], truncations[agent]] == ends
        for agent, reward in rewards.items():
            earned[agent] += reward
    for agent in game.agents:
        assert same(observations[agent], game.observe(agent))
        assert same(infos[agent], game.infos[agent])
    assert set(earned.values()) == {total}
    with pytest.raises(RuntimeError, match="over"):
        parallel.step({"turn_1": "x"})


# --- the cases of the design ------------------------------------------------------------------------------------------


def test_spaces_are_kept_and_hold_every_text() -> None:
    """C8: one space object per agent, each its own; text at the documented key."""
    game = turns_as_agents(SOKOBAN)
    for agent in game.possible_agents:
        assert game.observation_space(agent) is game.observation_space(agent)
        assert game.action_space(agent) is game.action_space(agent)
    assert game.action_space("turn_1") is not game.action_space("turn_2")
    assert isinstance(game.observation_space("turn_1")["text"], FreeText)  # type: ignore[index]
    game.reset(seed=0)
    game.step("é □ \U0001f600\nline " * 100)
    seen, *_ = game.last()
    assert set(seen) == {"text", "messages"}
    assert seen["messages"][-2] == {"role": "assistant", "content": "é □ \U0001f600\nline " * 100}
    assert seen["messages"][-1]["content"] == seen["text"]
    assert game.observation_space("turn_2").contains(seen)


def test_agents_of_a_sampled_environment_sample_independently() -> None:
    env = gymnasium.make(SOKOBAN)
    env.action_space.seed(1)
    game = turns_as_agents(env)
    assert len({game.action_space(agent).sample() for agent in game.possible_agents}) > 1


def test_an_early_end_ends_all_and_pays_all() -> None:
    """C9: ``turn_2`` of three solves the level."""
    game = turns_as_agents(SOKOBAN, max_turns=3)
    env = make(SOKOBAN, max_turns=3)
    game.reset(options={"level": CORRIDOR})
    env.reset(options={"level": CORRIDOR})
    first, second = (env.step(text)[1] for text in (said("Right"), said("Right", "Right")))
    assert game.last()[1] == 0.0
    game.step(said("Right"))
    assert (game.agent_selection, game.last()[1]) == ("turn_2", first)
    game.step(said("Right", "Right"))
    assert game.agents == ["turn_1", "turn_2", "turn_3"]
    assert game.rewards == dict.fromkeys(game.agents, second)
    with pytest.raises(ValueError, match=r"turn_1 is over.*step\(None\)"):
        game.step(said("Up"))
    assert game.agents == ["turn_1", "turn_2", "turn_3"]  # nothing has changed
    assert all(game.infos[agent]["success"] for agent in game.agents)
    # turn_1 has not been paid for its own turn yet, turn_2 has been paid for turn 1, turn_3 for nothing.
    paid = finish(game)
    assert paid == {"turn_1": first + second, "turn_2": second, "turn_3": first + second}
    assert (game.agents, game.rewards, game.infos) == ([], {}, {})
    with pytest.raises(RuntimeError, match="call reset"):
        game.step(None)


def test_the_next_agent_sees_what_was_done_and_what_was_wrong() -> None:
    """C10: current board and legal moves for everybody; a turn that cannot be read changes nothing and passes on."""
    game = turns_as_agents(SOKOBAN)
    game.reset(options={"level": ROOM})
    before = game.last()[4]
    game.step(said("Right"))
    seen, _, _, _, after = game.last()
    assert game.agent_selection == "turn_2"
    assert after["state_hash"] != before["state_hash"]
    assert "Last turn: Right." in seen["text"]
    assert game.env.unwrapped.game.describe(game.env.unwrapped.state, "grid") in seen["text"]  # type: ignore[attr-defined]
    game.step("I will not play")
    seen, *_, info = game.last()
    assert game.agent_selection == "turn_3"
    assert (info["state_hash"], info["action_status"]) == (after["state_hash"], "no_answer")
    assert "Problem:" in seen["text"]


def test_blind_agents_see_the_first_moment_and_nothing_else() -> None:
    """C10, and the blind game of SeeUPO: nothing in observation or info tells what the others did."""
    games = [turns_as_agents(SOKOBAN, observe="blind") for _ in range(2)]
    for game, action in zip(games, ("Right", "Down"), strict=True):
        game.reset(seed=3)
        game.step(said(action))
    one, other = (game.last() for game in games)
    assert one == other
    assert one[0]["messages"][-1]["content"] in one[0]["text"]
    assert one[4]["turn"] == 0
    for game in games:
        while not game.truncations[game.agent_selection]:
            game.step("")
    assert [game.last()[0] for game in games] == [one[0], one[0]]
    assert all(game.last()[4]["turn"] == 5 for game in games)


def test_what_an_agent_is_given_is_its_own() -> None:
    game = turns_as_agents(SOKOBAN)
    game.reset(seed=0)
    first = json.dumps(game.observe("turn_2"))
    game.observe("turn_1")["messages"][0]["content"] = "forged"
    game.infos["turn_1"]["valid_actions"].clear()
    assert json.dumps(game.observe("turn_2")) == first
    assert game.infos["turn_2"]["valid_actions"]
    grid = turns_as_agents(SOKOBAN, observation="grid", action="discrete")
    grid.reset(seed=0)
    grid.observe("turn_1")["observation"][:] = 0
    assert grid.observe("turn_2")["observation"].any()


@pytest.mark.parametrize(
    ("kwargs", "turns_played", "ends"),
    [
        ({"max_turns": 2}, [said("Up")] * 2, (False, True)),
        ({"max_turns": 4, "max_actions": 3}, [said("Up"), said("Up", "Up")], (False, True)),
        ({"max_turns": 2}, [said("Right"), said("Right", "Right")], (True, True)),
        ({"max_turns": 1}, [said("Up")], (True, False)),
        ({"max_actions": 3, "action": "discrete"}, [0, 0, 0], (False, True)),
    ],
)
def test_all_end_as_the_text_environment_ends(kwargs: dict[str, Any], turns_played: list[Any], ends: Any) -> None:
    env = TextEnv("ragen_envs.sokoban:Sokoban", max_steps=3, **kwargs)
    game = turns_as_agents(env)
    game.reset(options={"level": CORRIDOR})
    for action in turns_played:
        assert not game.terminations[game.agent_selection]
        game.step(action)
    assert game.agent_selection == "turn_1"
    assert set(zip(game.terminations.values(), game.truncations.values(), strict=True)) == {ends}
    assert list(finish(game)) == game.possible_agents


# --- around it --------------------------------------------------------------------------------------------------------


def test_a_wrapped_environment_is_played_through_its_wrappers() -> None:
    space = gymnasium.spaces.Box(0, 1 << 20, (1,), np.int64)
    env: Any = TransformObservation(gymnasium.make(LAKE), lambda text: np.array([len(text)]), space)
    game = turns_as_agents(RecordEpisodeStatistics(env))
    game.reset(seed=0)
    assert set(game.last()[0]) == {"observation"}
    assert game.last()[0]["observation"] == len(make(LAKE).reset(seed=0)[0])
    louder: Any = TransformObservation(gymnasium.make(LAKE), str.upper, gymnasium.make(LAKE).observation_space)
    game = turns_as_agents(louder)
    game.reset(seed=0)
    assert game.last()[0]["text"].isupper()
    assert not game.last()[0]["messages"][0]["content"].isupper()


def test_rendering_and_closing() -> None:
    for game in (turns_as_agents(LAKE, render_mode="ansi"), turns_as_parallel_agents(LAKE, render_mode="ansi")):
        game.reset(seed=0)
        assert game.render() == make(LAKE, render_mode="ansi").unwrapped.game.describe(
            (game.turns if isinstance(game, ParallelTurnsEnv) else game).env.unwrapped.state, "grid"
        )
        game.close()


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("observe", ["history", "blind"])
@pytest.mark.parametrize("kwargs", [{}, {"observation": "messages"}, {"observation": "grid", "action": "discrete"}])
def test_a_snapshot_brings_the_game_back(kwargs: dict[str, Any], observe: str, wrapped: bool) -> None:
    """At every moment, the leaving of the agents included, into another object, through JSON."""

    def new() -> TurnsEnv:
        return turns_as_agents(gymnasium.make(LAKE, **kwargs) if wrapped else make(LAKE, **kwargs), observe=observe)

    def play(game: TurnsEnv, steps: int) -> list[Any]:
        told: list[Any] = []
        for _ in range(steps):
            if not game.agents:
                break
            told += [game.agent_selection, game.last(), dict(game.rewards)]
            over = game.terminations[game.agent_selection] or game.truncations[game.agent_selection]
            game.step(None if over else 1 if "grid" in kwargs.values() else said("Up"))
        return told

    for steps in range(0, 22, 3 if kwargs.get("action") else 2):
        game, other = new(), new()
        game.reset(seed=1)
        play(game, steps)
        other.restore(json.loads(json.dumps(game.snapshot())))
        assert other.agents == game.agents
        assert same(play(game, 99), play(other, 99))


def test_snapshots_of_other_games_are_refused() -> None:
    game = turns_as_agents(LAKE)
    with pytest.raises(RuntimeError, match="reset"):
        game.snapshot()
    game.reset(seed=0)
    with pytest.raises(ValueError, match="4 turns, the snapshot 5"):
        turns_as_agents(LAKE, max_turns=4).restore(game.snapshot())
    with pytest.raises(ValueError, match="not of 'sokoban'"):
        turns_as_agents(SOKOBAN).restore(game.snapshot())
    with pytest.raises(ValueError, match="turns"):
        game.restore(make(LAKE).sibling().reset(seed=0)[1])


def test_bad_input_gets_a_clear_error() -> None:
    with pytest.raises(ValueError, match="observe must be 'history' or 'blind', got 'all'"):
        turns_as_agents(SOKOBAN, observe="all")
    with pytest.raises(TypeError, match="TextEnv"):
        turns_as_agents("CartPole-v1")
    with pytest.raises(TypeError, match="TextEnv"):
        turns_as_agents(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"max_turns.*with an id only"):
        turns_as_agents(make(SOKOBAN), max_turns=3)
    with pytest.raises(gymnasium.error.NameNotFound):
        turns_as_agents("ragen/Chess-v0")
    game = turns_as_agents(SOKOBAN, action="discrete")
    with pytest.raises(RuntimeError, match="reset"):
        game.step(0)
    with pytest.raises(RuntimeError, match="reset"):
        game.last()
    with pytest.raises(ValueError, match="turn_1 to turn_10, got 'turn_11'"):
        game.observe("turn_11")
    game.reset(seed=0)
    game.step(0)
    with pytest.raises(ValueError, match="turn of turn_2: None"):
        game.step(None)
    with pytest.raises(ValueError, match="0 to 3"):
        game.step(9)
    with pytest.raises(ValueError, match="level"):
        game.reset(options={"level": "#"})
    assert (game.agent_selection, game.last()[4]["turn"]) == ("turn_2", 1)  # nothing has changed
    with pytest.warns(UserWarning, match="levle"):
        game.reset(seed=0, options={"levle": CORRIDOR})
    parallel = turns_as_parallel_agents(SOKOBAN, action="discrete")
    with pytest.raises(RuntimeError, match="reset"):
        parallel.step({"turn_1": 0})
    parallel.reset(seed=0)
    with pytest.raises(ValueError, match=r"turn of turn_1.*missing.*turn_2"):
        parallel.step({"turn_2": 0})
    with pytest.raises(ValueError, match="turn_77"):
        parallel.step({"turn_1": 0, "turn_77": 0})
    with pytest.raises(ValueError, match="0 to 3"):
        parallel.step({"turn_1": 4})
    assert parallel.agent_selection == "turn_1"


# --- one turn as a bandit ---------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*alternative render modes")  # there is no spec, because policies are no JSON
@pytest.mark.parametrize(("id", "kwargs"), KINDS)
def test_gymnasium_accepts_the_bandit(id: str, kwargs: dict[str, Any]) -> None:
    env = make(id, **kwargs)
    turn = 1 if id == BANDIT else 3
    bandit = turn_as_bandit(env, turn, lambda agent, seen: 0 if env.action_mode == "discrete" else said("Left"))
    check_env(bandit)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, played=st.lists(TEXTS, min_size=5, max_size=5), turn=st.integers(1, 5))
def test_the_bandit_pays_what_the_rest_of_the_episode_pays(seed: int, played: list[str], turn: int) -> None:
    env = make(LAKE)
    observation, info = env.reset(seed=seed)
    rewards, over = [], False
    context = (observation, info)
    for i, text in enumerate(played, 1):
        if over:
            break
        if i == turn:
            context = (observation, info)
        observation, reward, terminated, truncated, info = env.step(text)
        rewards.append(reward)
        over = terminated or truncated
    bandit = turn_as_bandit(LAKE, turn, lambda agent, seen: played[int(agent.removeprefix("turn_")) - 1])
    if len(rewards) < turn:
        with pytest.raises(RuntimeError, match=f"before turn_{turn}"):
            bandit.reset(options={"level": env.level, "dynamics_seed": seed})
        return
    seen, told = bandit.reset(seed=seed)
    assert seen["text"] == context[0]
    assert told == {**context[1], "turn_reward": 0.0, "n_missed": 0}
    seen, gain, terminated, truncated, told = bandit.step(played[turn - 1])
    assert (seen["text"], terminated, truncated) == (observation, True, False)
    assert gain == pytest.approx(sum(rewards[turn - 1 :]), abs=1e-12)
    assert told == {**info, "turn_reward": rewards[turn - 1], "n_missed": 0}
    with pytest.raises(RuntimeError, match="over"):
        bandit.step("")


def test_with_optimal_others_the_bandit_pays_the_oracles_q() -> None:
    """In Sokoban nothing is left to luck, so every action's reward is its exact value."""
    env = make(SOKOBAN, action="discrete")
    bandit = turn_as_bandit(env, 3, lambda agent, seen: env.best_turn().actions[0])  # type: ignore[union-attr]
    for seed in range(6):
        bandit.reset(seed=seed)
        values = env.game.oracle(env.state, env.actions_left)
        assert values is not None
        for action in env.game.legal_actions(env.state):
            bandit.reset(seed=seed)
            assert bandit.step(action)[1] == pytest.approx(values.q[action], abs=1e-9)


def test_games_that_end_before_the_turn_are_dealt_anew() -> None:
    """Slipping into a hole on turn 1 is luck; the share of games that reach turn 2 is told."""
    played = said("Down", "Right", "Down")

    def reached(seed: int) -> bool:
        env = make(LAKE, slip=0.5)
        env.reset(seed=seed)
        return not any(env.step(played)[2:4])

    bandit = turn_as_bandit(LAKE, 2, lambda agent, seen: played, slip=0.5)
    missed = []
    for seed in range(40):
        seen, info = bandit.reset(seed=seed)
        assert info["turn"] == 1
        assert (info["n_missed"] == 0) == reached(seed)
        assert bandit.reset(seed=seed) == (seen, info)
        missed.append(info["n_missed"])
    assert 0 < sum(missed) < 200


def test_a_blind_bandit_sees_the_first_moment() -> None:
    bandit = turn_as_bandit(SOKOBAN, 2, lambda agent, seen: said("Up"), observe="blind")
    seen, info = bandit.reset(seed=0)
    assert seen["text"] == make(SOKOBAN).reset(seed=0)[0]
    assert info["turn"] == 0
    assert bandit.step(said("Up"))[0] == seen


def test_bad_input_to_the_bandit(monkeypatch: pytest.MonkeyPatch) -> None:
    for turn in (0, 6, True, 1.0):
        with pytest.raises(ValueError, match="from 1 to 5"):
            turn_as_bandit(SOKOBAN, turn, lambda agent, seen: "")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="others"):
        turn_as_bandit(SOKOBAN, 1, "Up")  # type: ignore[arg-type]
    bandit = turn_as_bandit(SOKOBAN, 2, lambda agent, seen: said("Right", "Right", "Right"))
    with pytest.raises(RuntimeError, match="reset"):
        bandit.step("")
    monkeypatch.setattr(turns, "MOST_GAMES", 20)
    with pytest.raises(RuntimeError, match="none of 20 games reached turn_2"):
        bandit.reset(options={"level": CORRIDOR})
    with pytest.raises(RuntimeError, match="ends before turn_2"):
        bandit.reset(options={"level": CORRIDOR, "dynamics_seed": 0})
    with pytest.raises(RuntimeError, match="reset"):  # a failed reset leaves nothing to play
        bandit.step("")
    with pytest.raises(ValueError, match="levle"):
        bandit.reset(options={"levle": CORRIDOR})
    game = turns_as_agents(SOKOBAN)
    game.reset(seed=0)
    with pytest.raises(ValueError, match="turn of turn_2"):
        bandit.reset(options={"snapshot": game.snapshot()})
    with pytest.raises(ValueError, match="no other option"):
        bandit.reset(options={"snapshot": game.snapshot(), "level": CORRIDOR})
    game.step("")
    seen, info = bandit.reset(options={"snapshot": game.snapshot()})
    assert (seen, info["turn"]) == (game.observe("turn_2"), 1)
