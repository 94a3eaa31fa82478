"""Exact values of the frozen lake: one decision per action, one decision per turn, and blind luck.

The lake is tabulated once per map and slip (cells x 4 actions x 3 results) and solved by backward induction over the
actions left. A turn of several actions is a different problem, because the player does not see where it slipped until
the turn is over: the best sequence is found by a search over the tree of sequences that carries the distribution over
cells along, cut off by the closed-loop value, which no blind continuation can exceed. All results are cached.

Cells are numbered row by row. Since the reward is 1 at the goal and 0 elsewhere, value and success probability are the
same number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from ragen_envs.finite_horizon import optimal_values, uniform_values
from ragen_envs.frozen_lake.maps import FROZEN, LakeLevel, distances
from ragen_envs.game import OracleValues, budgets, by_level
from ragen_envs.jit import njit

LEFT, DOWN, RIGHT, UP = 0, 1, 2, 3


class Position(Protocol):
    """What :func:`evaluate_many` reads of a state (:class:`rules.LakeState` has it)."""

    @property
    def level(self) -> LakeLevel: ...
    @property
    def cell(self) -> int: ...


def result_probabilities(slip: float) -> np.ndarray:
    """``float64 [3]``: of sliding in the direction before the intended one, in the one after it, of moving as meant.

    Directions are numbered around the compass (left, down, right, up), so the two neighbours are perpendicular.
    """
    return np.array([slip / 2, slip / 2, 1.0 - slip])


@njit
def tabulate(cells):  # type: ignore[no-untyped-def]
    """``successor int64 [S, 4, 3]`` (-1 where the game ends) and ``reached float64 [S, 4, 3]`` (1 at the goal).

    Results are in the order of ``result_probabilities``. Rows of holes and goal are filled like any other and unused.
    """
    height, width = cells.shape
    successor = np.empty((height * width, 4, 3), dtype=np.int64)
    reached = np.zeros((height * width, 4, 3))
    for s in range(height * width):
        for action in range(4):
            for j in range(3):
                direction = (action + (3 if j == 0 else 1 if j == 1 else 0)) % 4
                r, c = s // width, s % width
                if direction == 0:
                    c = max(c - 1, 0)
                elif direction == 1:
                    r = min(r + 1, height - 1)
                elif direction == 2:
                    c = min(c + 1, width - 1)
                else:
                    r = max(r - 1, 0)
                if cells[r, c] == 0:
                    successor[s, action, j] = r * width + c
                else:
                    successor[s, action, j] = -1
                    reached[s, action, j] = 1.0 if cells[r, c] == 2 else 0.0
    return successor, reached


@njit
def best_turns(successor, probability, reached, closed, later, alive, longest, left):  # type: ignore[no-untyped-def]
    """The best blind sequence from every cell, with ``left`` actions left in all.

    Args:
        closed: ``[left + 1, S]``, optimal values with one decision per action: the bound.
        later: ``[left + 1, S]``, values of turn-wise play from the next turn on, by actions left.
        alive: ``bool [S]``, the ice cells.
        longest: the most actions in this turn, at least 1 and at most ``left``.

    Returns:
        ``value [S]``, ``length int64 [S]`` and ``sequence int64 [S, longest]``, of which the first ``length`` count.
        Among equally good sequences the one found first stands: a prefix is tried before what extends it.
    """
    n_states = successor.shape[0]
    value = np.zeros(n_states)
    length = np.zeros(n_states, dtype=np.int64)
    sequence = np.zeros((n_states, longest), dtype=np.int64)
    # One row per depth: the distributions after each of the four actions, their goal mass so far and their bounds.
    spread = np.zeros((longest, 4, n_states))
    gain = np.zeros((longest, 4))
    bound = np.zeros((longest, 4))
    opened = np.zeros((longest, 4), dtype=np.bool_)
    chosen = np.zeros(longest, dtype=np.int64)
    here = np.zeros(n_states)
    for start in range(n_states):
        if not alive[start]:
            continue
        best = -1.0
        depth = 0
        here[:] = 0.0
        here[start] = 1.0
        so_far = 0.0
        entering = True
        while depth >= 0:
            if entering:
                after = left - depth - 1
                for action in range(4):
                    for s in range(n_states):
                        spread[depth, action, s] = 0.0
                    total = so_far
                    for s in range(n_states):
                        mass = here[s]
                        if mass > 0.0:
                            for j in range(3):
                                p = mass * probability[j]
                                nxt = successor[s, action, j]
                                if nxt >= 0:
                                    spread[depth, action, nxt] += p
                                else:
                                    total += p * reached[s, action, j]
                    stop, go_on = total, total
                    for s in range(n_states):
                        mass = spread[depth, action, s]
                        if mass > 0.0:
                            stop += mass * later[after, s]
                            go_on += mass * closed[after, s]
                    gain[depth, action] = total
                    bound[depth, action] = go_on
                    opened[depth, action] = False
                    if stop > best + 1e-12:
                        best = stop
                        value[start] = stop
                        length[start] = depth + 1
                        for d in range(depth):
                            sequence[start, d] = chosen[d]
                        sequence[start, depth] = action
                entering = False
            # The most promising action not yet followed; none left, or none that can still win: back up.
            pick = -1
            if depth + 1 < longest:
                for action in range(4):
                    promising = not opened[depth, action] and bound[depth, action] > best + 1e-12
                    if promising and (pick < 0 or bound[depth, action] > bound[depth, pick]):
                        pick = action
            if pick < 0:
                depth -= 1
                continue
            opened[depth, pick] = True
            chosen[depth] = pick
            here[:] = spread[depth, pick]
            so_far = gain[depth, pick]
            depth += 1
            entering = True
    return value, length, sequence


@lru_cache(maxsize=4096)
def table(level: LakeLevel, slip: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``successor [S, 4, 3]``, ``probability [3]`` and ``reached [S, 4, 3]``; read only."""
    successor, reached = tabulate(level.cells())
    return successor, result_probabilities(slip), reached


@lru_cache(maxsize=1024)
def goal_distances(level: LakeLevel) -> np.ndarray:
    """Moves to the goal from every cell, ``int64 [S]``; -1 for holes and ice that no way leads from. Read only.

    It holds whatever the slip: every direction is a possible result of some action.
    """
    return distances(level.cells()).ravel()


@lru_cache(maxsize=512)
def _by_actions_left(level: LakeLevel, slip: float, horizon: int) -> np.ndarray:
    q = np.asarray(optimal_values(*table(level, slip), horizon))
    q[:, level.cells().ravel() != FROZEN] = 0.0
    return q


def closed_loop(level: LakeLevel, slip: float, actions_left: int) -> np.ndarray:
    """``q [H + 1, S, 4]``: optimal play with a decision per action, by actions left; ``H >= actions_left``.

    Zero where the game is over. Read only.
    """
    return _by_actions_left(level, slip, -(-actions_left // 16) * 16)  # in sixteens: one table serves a whole episode


def evaluate_many(
    states: Sequence[Position], slip: float, actions_left: int | Sequence[int] | np.ndarray
) -> OracleValues:
    """Optimal play with one decision per action, of states of any maps.

    Raises:
        ValueError: a number of actions is negative.
    """
    n = len(states)
    left = budgets(actions_left, n)
    levels = [state.level for state in states]
    every = np.array([state.cell for state in states], np.int64)
    q, steps = np.zeros((n, 4)), np.zeros(n, np.int64)
    for at in by_level(levels):
        level = levels[at[0]]
        cells = every[at]
        q[at] = closed_loop(level, slip, int(left[at].max()))[left[at], cells]
        steps[at] = goal_distances(level)[cells]
    return OracleValues(q.max(axis=1), q, steps < 0, steps)


@lru_cache(maxsize=4096)
def blind_luck(level: LakeLevel, slip: float, actions_left: int) -> np.ndarray:
    """Success probability ``[S]`` of uniformly random actions; only ice cells count. Read only."""
    successor, probability, reached = table(level, slip)
    nothing = np.zeros(len(successor))
    return np.asarray(uniform_values(successor, probability, reached, reached, actions_left, nothing, nothing)[0])


@lru_cache(maxsize=4096)
def turn_wise(
    level: LakeLevel, slip: float, max_actions: int, turns_left: int, actions_left: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Optimal play in turns of 1 to ``max_actions`` actions that are given without seeing what they do.

    Returns:
        ``value [S]``, ``length [S]`` and ``sequence [S, longest]`` of the next turn (see ``best_turns``); only ice
        cells count. Read only. All arguments at least 1, ``actions_left`` at most ``turns_left * max_actions``.
    """
    if turns_left >= actions_left:
        # A turn for every action: seeing after each is never worse.
        q = closed_loop(level, slip, actions_left)[actions_left]
        value = q.max(axis=1)
        first = (q >= value[:, None] - 1e-9).argmax(axis=1)
        return value, np.ones(len(value), dtype=np.int64), first[:, None]
    successor, probability, reached = table(level, slip)
    longest = min(max_actions, actions_left)
    closed = closed_loop(level, slip, actions_left)[: actions_left + 1].max(axis=2)
    later = np.zeros_like(closed)
    if turns_left > 1:
        # Only what this turn can leave over is needed: from actions_left - longest to actions_left - 1.
        for n in range(max(1, actions_left - longest), actions_left):
            usable = min(n, (turns_left - 1) * max_actions)
            later[n] = turn_wise(level, slip, max_actions, turns_left - 1, usable)[0]
    alive = level.cells().ravel() == 0
    return best_turns(successor, probability, reached, closed, later, alive, longest, actions_left)
