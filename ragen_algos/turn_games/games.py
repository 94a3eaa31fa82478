"""The games: ``T`` turns, one agent per turn, one return at the end that all agents share.

At turn ``t`` the agent picks one of ``A_t`` actions. A *context* is what the task was at the start; contexts are
equally likely. A game is nothing but the table of mean returns, ``returns[s, y_1, ..., y_T]``.

What an agent sees decides the shape of its policy. A policy has one axis for the context and one for each turn, of size
1 where it does not look, so that policies multiply by broadcasting::

    sees         policy of turn t          example: turn 2 of 3
    history      [S, A_1 .. A_t, 1 .. 1]   [S, A_1, A_2, 1]
    context      [S, 1 .. A_t .. 1]        [S, 1, A_2, 1]     blind to what the agents before did
    nothing      [1, 1 .. A_t .. 1]        [1, 1, A_2, 1]     one policy for all contexts

Many games of one size are one game with many contexts (as long as the agents see the context): every context has its
own policy, its own baseline and its own value. That is how hundreds of random games are played at once.

A turn with one action is a turn in which nothing happens.

The setting is the sequential multi-agent bandit of SeeUPO (arXiv 2602.06554); the games are our own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Policies = tuple[Array, ...]
"""One policy per turn, each summing to 1 along the axis of its own turn."""

SEES = ("history", "context", "nothing")


@dataclass(frozen=True, eq=False)
class TurnGame:
    """A table of mean returns, and what the agents see.

    Args:
        returns: [S, A_1, ..., A_T] mean return of every context and joint action.
        sees: one of ``SEES``.
        noise: [S] variance of a zero-mean noise on the return of each context; None for none.

    Raises:
        ValueError: no turn, a return that is not finite, a negative variance, or an unknown ``sees``.
    """

    returns: Array
    sees: str = "history"
    noise: Array | None = None

    def __post_init__(self) -> None:
        if self.sees not in SEES:
            raise ValueError(f"unknown sees {self.sees!r}; choose from {', '.join(SEES)}")
        if self.returns.ndim < 2 or not self.returns.size or not np.isfinite(self.returns).all():
            raise ValueError(f"returns must be a finite table [S, A_1, ..., A_T], got shape {self.returns.shape}")
        if self.noise is not None and (self.noise.shape != self.returns.shape[:1] or (self.noise < 0).any()):
            raise ValueError("noise must hold one variance, 0 or more, for each context")

    @property
    def turns(self) -> int:
        """T."""
        return self.returns.ndim - 1

    def policy_shape(self, turn: int) -> tuple[int, ...]:
        """Shape of the policy of ``turn`` (0 is the first)."""
        contexts, *actions = self.returns.shape
        if self.sees != "history":
            contexts = contexts if self.sees == "context" else 1
            return (contexts, *(n if t == turn else 1 for t, n in enumerate(actions)))
        return (contexts, *(n if t <= turn else 1 for t, n in enumerate(actions)))

    def uniform(self) -> Policies:
        """Every action equally likely, everywhere."""
        return tuple(np.full(self.policy_shape(t), 1 / self.returns.shape[t + 1]) for t in range(self.turns))

    def random(self, rng: np.random.Generator) -> Policies:
        """Policies drawn uniformly from the simplex, independently for everything that an agent can see."""
        weights = [rng.exponential(size=self.policy_shape(t)) for t in range(self.turns)]
        return tuple(w / w.sum(t + 1, keepdims=True) for t, w in enumerate(weights))

    def values(self, policies: Policies) -> Array:
        """[S] exact expected return in each context."""
        joint = math.prod(policies, start=np.ones_like(self.returns))
        return (joint * self.returns).reshape(len(self.returns), -1).sum(1)

    def value(self, policies: Policies) -> float:
        """J: exact expected return, contexts equally likely."""
        return float(self.values(policies).mean())

    def best(self) -> Array:
        """[S] the return of the best joint action; of the best common one if the agents see nothing."""
        table = self.returns.reshape(len(self.returns), -1)
        return table.max(1) if self.sees != "nothing" else table[:, table.mean(0).argmax()].copy()


def doors() -> TurnGame:
    """Two turns: the left door pays .6 whatever follows, the right one pays 1 or 0, as the second turn decides.

    While the second agent still guesses behind the right door, the left one looks better.
    """
    return TurnGame(np.array([[[0.6, 0.6], [1.0, 0.0]]]))


def doors_start(p: float = 0.5) -> Policies:
    """Policies for :func:`doors`: uniform, except that the good action behind the right door has probability ``p``."""
    first, second = doors().uniform()
    second[0, 1] = p, 1 - p
    return first, second


def xor() -> TurnGame:
    """Two blind agents, each picks 0 or 1; return 1 if they differ, else 0."""
    return TurnGame(np.array([[[0.0, 1.0], [1.0, 0.0]]]), sees="context")


def xor_start(p: float = 0.48) -> Policies:
    """Both agents pick 1 with probability ``p``: both would now like to move, and to the same side."""
    return np.array([1 - p, p]).reshape(1, 2, 1), np.array([1 - p, p]).reshape(1, 1, 2)


def loud_context() -> TurnGame:
    """One turn, one policy, two contexts: a quiet one that pays (0, 1) and a loud one that pays (2, 0), variance 16."""
    return TurnGame(np.array([[0.0, 1.0], [2.0, 0.0]]), sees="nothing", noise=np.array([0.0, 16.0]))


def gaussian(games: int, turns: int, actions: int, rng: np.random.Generator) -> TurnGame:
    """``games`` games with independent standard normal returns."""
    return TurnGame(rng.standard_normal((games, *[actions] * turns)))


def sparse(games: int, turns: int, actions: int, rng: np.random.Generator, density: float = 0.3) -> TurnGame:
    """``games`` games that pay a number between 0 and 1 at each joint action with probability ``density``, else 0."""
    shape = (games, *[actions] * turns)
    return TurnGame(np.where(rng.random(shape) < density, rng.random(shape), 0.0))


def blind_gaussian(games: int, turns: int, actions: int, rng: np.random.Generator) -> TurnGame:
    """Like :func:`gaussian`, but no agent sees what the agents before it did."""
    return TurnGame(rng.standard_normal((games, *[actions] * turns)), sees="context")
