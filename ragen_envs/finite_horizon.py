"""Exact finite-horizon values of a tabulated game: the dynamic programmes behind the oracles.

A table has ``S`` states, ``A`` actions and ``J`` possible results of an action: ``successor[s, a, j]`` (-1 = the game
ends), ``probability[j]``, ``reward[s, a, j]`` and ``success[s, a, j]`` (1.0 where that transition reaches the goal).
Rows of states that no play can reach within the horizon may hold anything.
"""

from __future__ import annotations

import numpy as np

from ragen_envs.jit import njit


@njit
def optimal_values(successor, probability, reward, horizon):  # type: ignore[no-untyped-def]
    """Backward induction: ``q [horizon + 1, S, A]`` of optimal play, by the number of actions left."""
    n_states, n_actions, n_results = successor.shape
    q = np.zeros((horizon + 1, n_states, n_actions))
    value = np.zeros(n_states)
    for h in range(1, horizon + 1):
        for s in range(n_states):
            for a in range(n_actions):
                for j in range(n_results):
                    gain = reward[s, a, j]
                    nxt = successor[s, a, j]
                    if nxt >= 0:
                        gain += value[nxt]
                    q[h, s, a] += probability[j] * gain
        for s in range(n_states):
            value[s] = q[h, s].max()
    return q


@njit
def uniform_values(successor, probability, reward, success, horizon, value, win):  # type: ignore[no-untyped-def]
    """Expected return and success ``[S]`` of ``horizon`` random actions, with ``value`` and ``win`` after them."""
    n_states, n_actions, n_results = successor.shape
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
