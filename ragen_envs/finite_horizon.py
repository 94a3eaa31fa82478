"""Exact finite-horizon values of a tabulated game: the dynamic programmes behind the oracles.

A table has ``S`` states, ``A`` actions and ``J`` possible results of an action: ``successor[s, a, j]`` (-1 = the game
ends), ``probability[j]``, ``reward[s, a, j]`` and ``success[s, a, j]`` (1.0 where that transition reaches the goal).
Rows of states that no play can reach within the horizon may hold anything.
"""

from __future__ import annotations

import numpy as np

from ragen_envs.jit import njit


@njit
def optimal_values(successor, probability, reward, success, horizon):  # type: ignore[no-untyped-def]
    """Backward induction over ``horizon`` actions.

    Returns:
        ``value [S]`` and ``q [S, A]`` of optimal play, and ``win [S]``, the success probability of the play that takes
        the first best action.
    """
    n_states, n_actions, n_results = successor.shape
    value = np.zeros(n_states)
    win = np.zeros(n_states)
    q = np.zeros((n_states, n_actions))
    for _ in range(horizon):
        new_value = np.empty(n_states)
        new_win = np.empty(n_states)
        for s in range(n_states):
            best = -np.inf
            for a in range(n_actions):
                total = 0.0
                total_win = 0.0
                for j in range(n_results):
                    gain = reward[s, a, j]
                    won = success[s, a, j]
                    nxt = successor[s, a, j]
                    if nxt >= 0:
                        gain += value[nxt]
                        won += win[nxt]
                    total += probability[j] * gain
                    total_win += probability[j] * won
                q[s, a] = total
                if total > best + 1e-12:
                    best = total
                    new_win[s] = total_win
            new_value[s] = best
        value = new_value
        win = new_win
    return value, q, win


@njit
def uniform_values(successor, probability, reward, success, horizon):  # type: ignore[no-untyped-def]
    """``(value [S], win [S])``: expected return and success of ``horizon`` uniformly random actions."""
    n_states, n_actions, n_results = successor.shape
    value = np.zeros(n_states)
    win = np.zeros(n_states)
    for _ in range(horizon):
        new_value = np.zeros(n_states)
        new_win = np.zeros(n_states)
        for s in range(n_states):
            for a in range(n_actions):
                for j in range(n_results):
                    weight = probability[j] / n_actions
                    new_value[s] += weight * reward[s, a, j]
                    new_win[s] += weight * success[s, a, j]
                    nxt = successor[s, a, j]
                    if nxt >= 0:
                        new_value[s] += weight * value[nxt]
                        new_win[s] += weight * win[nxt]
        value = new_value
        win = new_win
    return value, win
