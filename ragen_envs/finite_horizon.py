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
    """Backward induction: ``[horizon + 1, S]``, the value of optimal play by the number of actions left."""
    n_states, n_actions, n_results = successor.shape
    value = np.zeros((horizon + 1, n_states))
    for h in range(1, horizon + 1):
        for s in range(n_states):
            best = -np.inf
            for a in range(n_actions):
                total = 0.0
                for j in range(n_results):
                    gain = reward[s, a, j]
                    nxt = successor[s, a, j]
                    if nxt >= 0:
                        gain += value[h - 1, nxt]
                    total += probability[j] * gain
                best = max(best, total)
            value[h, s] = best
    return value


@njit
def action_values(successor, probability, reward, value, states, left):  # type: ignore[no-untyped-def]
    """``q [N, A]`` of ``states [N]`` with ``left [N]`` actions, from the values of :func:`optimal_values`.

    The sums are those of :func:`optimal_values`, so the largest entry is the state's value to the last bit. States
    below 0 (the game is over) and states without an action left get zeros.
    """
    _, n_actions, n_results = successor.shape
    q = np.zeros((states.shape[0], n_actions))
    for i in range(states.shape[0]):
        s = states[i]
        if s < 0 or left[i] == 0:
            continue
        for a in range(n_actions):
            for j in range(n_results):
                gain = reward[s, a, j]
                nxt = successor[s, a, j]
                if nxt >= 0:
                    gain += value[left[i] - 1, nxt]
                q[i, a] += probability[j] * gain
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
