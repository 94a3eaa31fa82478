"""The two-armed bandit: one choice between two names.

Nothing can be learned within an episode; what counts is what a name makes one expect, and what training does with that
expectation. Everything about it is known in closed form, so the oracle is three lines at the end of the class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ragen_envs.bandit.batch import BanditBatch
from ragen_envs.bandit.pairs import high_first_in_train, resolve
from ragen_envs.game import Expectation, Game, OracleValue, OracleValues, Outcome, Plan, best_actions, budgets, digest
from ragen_envs.splits import SPLITS


@dataclass(frozen=True, slots=True)
class BanditLevel:
    """Which name carries which arm, and whether the high arm is shown first."""

    low: str
    high: str
    high_first: bool

    @property
    def names(self) -> tuple[str, str]:
        """The arm names in the order shown; an action is an index into it."""
        return (self.high, self.low) if self.high_first else (self.low, self.high)


class BanditState(NamedTuple):
    """Before the pull ``pulled`` is -1; after it, the index of the arm pulled, with the points it paid."""

    level: BanditLevel
    pulled: int = -1
    points: float = 0.0


class Bandit(Game[BanditLevel, BanditState]):
    """Two arms, two names, one pull.

    **Description.** Two arms are shown by name. The low arm always pays ``low_reward``; the high arm pays 1 with
    probability ``high_probability`` and else 0, and has the higher mean. Which is which can only be guessed from the
    names: in the set ``head`` the risky trade carries the high arm. The better arm looks worse most of the time
    (``1 - high_probability``), which is what makes the game a test of credit under noisy rewards.

    **Actions.** Two, named by the arms, in the order shown.

    **Observations.** One view, ``grid``: the line ``arms FIRST SECOND``, and after the pull ``pulled NAME points X``.
    ``grid`` is an ``int8`` array of shape ``(2,)`` with the codes of the two names in the order shown; a name's code is
    its place in the sorted list of all names of the set. It does not change with the pull.

    **Rewards.** The points of the arm pulled.

    **End of episode.** The pull ends the game. Success means that the high arm was pulled, whatever it paid.

    **Arguments.**

    * ``pairs``: ``"head"`` (12 train and 8 test pairs), ``"v0423"``, ``"engineer-teacher"``, ``"teacher-engineer"``
      (one train and one test pair each, the set's name tells its train pair as low-high), or a set of one's own,
      ``{"train": [[low, high], ...], "test": [[low, high], ...]}``. A name is one word; it is data and nothing else.
    * ``low_reward``: what the low arm pays, default 0.1.
    * ``high_probability``: how often the high arm pays 1, default 0.25; must exceed ``low_reward``.

    **Splits.** ``test`` holds the test pairs in both orders. Each train pair is shown in one order in ``train`` and in
    the other in ``val``, so validation asks whether the name was learned and not the position. Half of the train pairs
    (one more or less) show the high arm first.

    **Oracle.** Closed form: ``q`` is the means of the arms; after the pull all values are 0. ``plan`` and
    ``random_play`` are exact expectations. For a finished game their ``reward`` is 0 (nothing more is paid) and their
    ``success`` tells how it ended.

    **Differences from RAGEN.** The level (pair and order) and the luck come from separate generators, so the members of
    a group share the question and not the coin. Splits are by content. The instructions leave the names to the state
    text. RAGEN's paper states 0.15 for the low arm and its code has 0.1: both are a parameter here.

    **Versions.** v0: first.

    Raises:
        ValueError: for unusable pairs, or means in the wrong order.
    """

    name: ClassVar[str] = "bandit"
    views: ClassVar[tuple[str, ...]] = ("grid",)

    def __init__(
        self,
        *,
        pairs: str | Mapping[str, Any] = "head",
        low_reward: float = 0.1,
        high_probability: float = 0.25,
    ) -> None:
        self.low_reward = float(low_reward)
        self.high_probability = float(high_probability)
        if not 0.0 < self.high_probability <= 1.0:
            raise ValueError(f"high_probability is a probability above 0, got {high_probability}")
        if not math.isfinite(self.low_reward) or self.low_reward >= self.high_probability:
            raise ValueError(
                f"the high arm needs the higher mean: low_reward {low_reward} must be below "
                f"high_probability {high_probability}"
            )
        self._odds = repr(self.low_reward), repr(self.high_probability)
        self.pairs = resolve(pairs)
        all_pairs = self.pairs.train + self.pairs.test
        names = sorted({name for pair in all_pairs for name in pair})
        if len(names) > 127:
            raise ValueError(f"at most 127 different arm names, got {len(names)}")
        self._code = {name: i for i, name in enumerate(names)}
        self._train_order = high_first_in_train(self.pairs)
        self._levels = tuple(BanditLevel(*pair, first) for pair in all_pairs for first in (False, True))
        self._by_split = {s: tuple(v for v in self._levels if self.split_of(v) == s) for s in SPLITS}

    # --- levels ---------------------------------------------------------------------------------------------------

    def sample_level(self, rng: np.random.Generator) -> BanditLevel:
        """Uniform over all pairs of the set, train and test, in both orders."""
        return self._levels[int(rng.integers(len(self._levels)))]

    def levels(self, split: str) -> tuple[BanditLevel, ...]:
        """All levels of the split."""
        return self._by_split[split]

    def level_key(self, level: BanditLevel) -> str:
        """Digest of names, order and both arms' parameters."""
        return _level_key(level.low, level.high, level.high_first, self._odds)

    def dump_level(self, level: BanditLevel) -> dict[str, Any]:
        """``{"low": name, "high": name, "high_first": bool}``."""
        return {"low": level.low, "high": level.high, "high_first": level.high_first}

    def load_level(self, data: Any) -> BanditLevel:
        """The level of ``dump_level``'s value. Only pairs of the game's own set can be loaded.

        Raises:
            ValueError: for anything else; says what is missing.
        """
        if not isinstance(data, Mapping) or set(data) != {"low", "high", "high_first"}:
            raise ValueError(f'a bandit level is {{"low": name, "high": name, "high_first": bool}}, got {data!r}')
        if not isinstance(data["high_first"], bool):
            raise ValueError(f"high_first is true or false, got {data['high_first']!r}")
        pair = (data["low"], data["high"])
        if pair not in self.pairs.train + self.pairs.test:
            raise ValueError(f"the pair (low, high) = {pair!r} is not in this game's set of pairs")
        return BanditLevel(data["low"], data["high"], data["high_first"])

    def split_of(self, level: BanditLevel) -> str:
        """``test`` for test pairs; a train pair is ``train`` in one order and ``val`` in the other."""
        in_train = self._train_order.get((level.low, level.high))
        if in_train is None:
            return "test"
        return "train" if level.high_first == in_train else "val"

    # --- play -----------------------------------------------------------------------------------------------------

    def action_names(self, level: BanditLevel) -> tuple[str, ...]:
        """The two arm names in the order shown."""
        return level.names

    @property
    def n_actions(self) -> int:
        """Two."""
        return 2

    def initial(self, level: BanditLevel) -> BanditState:
        """Nothing pulled yet."""
        return BanditState(level)

    def step(self, state: BanditState, action: int, rng: np.random.Generator) -> Outcome[BanditState]:
        """Pull an arm. One number is drawn from ``rng``, whichever arm it is.

        Raises:
            ValueError: if an arm was pulled already or ``action`` is not 0 or 1.
        """
        if state.pulled >= 0:
            raise ValueError("the game is over: an arm was pulled already")
        if action not in (0, 1):
            raise ValueError(f"an action is 0 or 1, got {action}")
        luck = rng.random()
        won = self._is_high(state.level, action)
        points = float(luck < self.high_probability) if won else self.low_reward
        return Outcome(BanditState(state.level, int(action), points), points, True, won, True)

    def legal_actions(self, state: BanditState) -> tuple[int, ...]:
        """Both arms before the pull, none after it."""
        return (0, 1) if state.pulled < 0 else ()

    def level_of(self, state: BanditState) -> BanditLevel:
        """The level."""
        return state.level

    def state_key(self, state: BanditState) -> str:
        """Digest of level, pull and points."""
        return _state_key(self.level_key(state.level), state.pulled, repr(state.points))

    def dump_state(self, state: BanditState) -> dict[str, Any]:
        """``{"pulled": -1, 0 or 1, "points": float}``."""
        return {"pulled": state.pulled, "points": state.points}

    def load_state(self, level: BanditLevel, data: Any) -> BanditState:
        """The state of ``dump_state``'s value.

        Raises:
            ValueError: if it is not one.
        """
        if not isinstance(data, Mapping) or set(data) != {"pulled", "points"} or data["pulled"] not in (-1, 0, 1):
            raise ValueError(f'a bandit state is {{"pulled": -1, 0 or 1, "points": number}}, got {data!r}')
        return BanditState(level, int(data["pulled"]), float(data["points"]))

    def batch(self, levels: Sequence[BanditLevel], num_envs: int) -> BanditBatch:
        """Compiled plays."""
        return BanditBatch(self, levels, num_envs)

    # --- words and pictures ---------------------------------------------------------------------------------------

    def instructions(self, level: BanditLevel, view: str) -> str:
        """The rules; the arm names are left to the state text."""
        self._check_view(view)
        return (
            "Two arms stand before you, each known only by its name. Each arm has its own hidden distribution of "
            "points, and its name hints at what that distribution is like. Pull the arm that you expect to pay more on "
            "average.\n"
            "The points that the pulled arm pays are your reward. You have one pull: it ends the game.\n"
            "The state shows the line 'arms' with the names of both arms, and after the pull the line 'pulled' with "
            "the arm and its points. An action is the name of an arm, spelled as shown."
        )

    def describe(self, state: BanditState, view: str) -> str:
        """``arms FIRST SECOND``; after the pull also ``pulled NAME points X``."""
        self._check_view(view)
        names = state.level.names
        text = f"arms {names[0]} {names[1]}"
        if state.pulled >= 0:
            text += f"\npulled {names[state.pulled]} points {state.points:g}"
        return text

    def grid(self, state: BanditState) -> np.ndarray:
        """``int8 [2]``: codes of the two names in the order shown."""
        return np.array([self._code[name] for name in state.level.names], dtype=np.int8)

    def grid_spec(self) -> tuple[tuple[int, ...], int]:
        """Shape ``(2,)``; as many codes as the set has names."""
        return (2,), len(self._code)

    def draw(self, state: BanditState) -> np.ndarray:
        """Two slot machines, coloured by their names; ``uint8 [96, 160, 3]``.

        A golden frame marks the arm that was pulled; its window then shows a coin as bright as the points paid.
        """
        picture = np.full((96, 160, 3), (244, 241, 234), dtype=np.uint8)
        rows, columns = np.mgrid[0:96, 0:160]
        for i, name in enumerate(state.level.names):
            left = 12 + 76 * i
            shade = int(digest("bandit-colour", name), 16)
            colour = np.array([70 + (shade >> shift) % 120 for shift in (0, 8, 16)], dtype=np.uint8)
            if state.pulled == i:
                picture[6:90, left - 6 : left + 58] = (236, 190, 60)
            picture[10:86, left : left + 52] = colour
            picture[10:18, left : left + 52] = colour // 2
            picture[26:56, left + 6 : left + 38] = (250, 250, 250)
            picture[66:78, left + 6 : left + 38] = colour // 2
            # The lever is up before the pull and down after it.
            knob = 62 if state.pulled == i else 26
            picture[min(knob, 44) : max(knob, 44), left + 44 : left + 47] = (90, 90, 90)
            picture[(rows - knob) ** 2 + (columns - (left + 45)) ** 2 <= 16] = (200, 50, 50)
            if state.pulled == i:
                glow = min(max(state.points, 0.0), 1.0)
                coin = (rows - 41) ** 2 + (columns - (left + 22)) ** 2 <= 121
                picture[coin] = (215 + int(30 * glow), 215 - int(15 * glow), 215 - int(165 * glow))
        return picture

    # --- exact values ---------------------------------------------------------------------------------------------

    @property
    def longest_optimum(self) -> int:
        """One pull."""
        return 1

    def oracle(self, state: BanditState, actions_left: int) -> OracleValue:
        """Closed form: the means of the arms before the pull, 0 after it or without an action left."""
        if state.pulled >= 0:
            won = self._is_high(state.level, state.pulled)
            return OracleValue(0.0, (0.0, 0.0), (0, 1), not won, 0 if won else -1)
        q = self._means(state.level) if actions_left >= 1 else (0.0, 0.0)
        return OracleValue(max(q), q, best_actions(q), False, 1)

    def oracle_many(
        self, states: Sequence[BanditState], actions_left: int | Sequence[int] | np.ndarray
    ) -> OracleValues:
        """As :meth:`oracle`, to the last bit."""
        left = budgets(actions_left, len(states))
        pulled = np.array([state.pulled for state in states], np.int64)
        high = np.array([not state.level.high_first for state in states], np.int64)  # the high arm's index
        means = np.array([(self.high_probability, self.low_reward), (self.low_reward, self.high_probability)])
        q = means[high] * ((pulled < 0) & (left > 0))[:, None]
        steps = np.where(pulled < 0, 1, np.where(pulled == high, 0, -1))
        return OracleValues(q.max(axis=1), q, steps < 0, steps)

    def plan(self, state: BanditState, *, turns_left: int, actions_left: int, max_actions: int) -> Plan:
        """Pull the high arm; no action if the game is over or nothing is left to spend."""
        if state.pulled >= 0 or min(turns_left, actions_left, max_actions) < 1:
            return Plan((), Expectation(0.0, self._success(state)))
        return Plan((0 if state.level.high_first else 1,), Expectation(self.high_probability, 1.0))

    def random_play(self, state: BanditState, actions_left: int) -> Expectation:
        """One pull of either arm: the mean of the two means, success one half."""
        if state.pulled >= 0 or actions_left < 1:
            return Expectation(0.0, self._success(state))
        return Expectation(sum(self._means(state.level)) / 2, 0.5)

    # --- small helpers --------------------------------------------------------------------------------------------

    def _is_high(self, level: BanditLevel, action: int) -> bool:
        return (action == 0) == level.high_first

    def _success(self, state: BanditState) -> float:
        return float(state.pulled >= 0 and self._is_high(state.level, state.pulled))

    def _means(self, level: BanditLevel) -> tuple[float, float]:
        means = (self.high_probability, self.low_reward)
        return means if level.high_first else (means[1], means[0])

    def _check_view(self, view: str) -> None:
        if view not in self.views:
            raise ValueError(f"the bandit has the view grid, got {view!r}")


@lru_cache(maxsize=4096)
def _level_key(low: str, high: str, high_first: bool, odds: tuple[str, str]) -> str:
    return digest("bandit", low, high, high_first, *odds)


@lru_cache(maxsize=4096)
def _state_key(level_key: str, pulled: int, points: str) -> str:
    return digest(level_key, pulled, points)
