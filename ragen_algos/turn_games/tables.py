"""Who improves, who reaches the optimum, in how many sweeps: the tables of docs/turn_games.md and of the command."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ragen_algos.turn_games import games
from ragen_algos.turn_games.games import Array, Policies, TurnGame
from ragen_algos.turn_games.updates import (
    SCALES,
    Expected,
    Rule,
    best_response,
    clipped_argmax,
    gradient_step,
    improve,
)

GAMES = 200
SEED = 0
SWEEPS = 30
"""Enough for the clipped runs that end at the optimum."""
TOLERANCE = 1e-9
"""A value has fallen, or reached the optimum, if it differs by more, or at most, this."""

RULES: tuple[tuple[str, Rule], ...] = (("best response", best_response), ("clipped, eps .2", clipped_argmax))
SCHEDULES = (
    ("reverse, M", "reverse", "paper"),
    ("reverse, M clipped", "reverse", "code"),
    ("forward, M", "forward", "paper"),
    ("random, M", "random", "paper"),
    ("no M", "simultaneous", "none"),
)

EXPLANATION = """\
An agent that acts in T turns can be seen as T agents, one per turn, that share one return at the end. SeeUPO
(arXiv 2602.06554) plays one batch and then lets the turns learn from it one after the other, the last turn first.

M. A turn that learns from the batch learns as if the others still played as they did. When two turns move at once, each
   may be right and both together wrong (xor). So SeeUPO multiplies the weight M of every trajectory, at first its
   advantage, by the ratio new / old of each turn that has moved: the next turn sees the others as they are now. Then no
   update lowers the expected return, in any order, whether by best response or by clipped steps.
Reverse. An early turn is worth what later turns make of it. If later turns answer first, and completely, one sweep is
   backward induction and finds the best play (doors). Forward order, judging by the old guesses, can lock it out.
Clip. With small clipped steps nobody is sure to arrive: all orders climb, some stop early, and reverse is not better
   in general. Where agents see all that was done before, nothing falls without M either; M matters where they do not.
Not shown: turns that share their parameters, as those of a language model do. No such guarantee is known for them."""


@dataclass(frozen=True)
class Table:
    """Title, a sentence on how to read it, and cells."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def single(game: TurnGame, start: Policies, rule: Rule, order: str, correction: str) -> str:
    """Cell: how the value of one game moves in ``SWEEPS`` sweeps."""
    values = improve(game, start, rule, order, SWEEPS, correction)[0].mean(1)
    falls = int((np.diff(values) < -TOLERANCE).sum())
    how = f"falls in {falls} of {SWEEPS}" if falls else "rises"
    reached = values >= game.best().mean() - TOLERANCE
    return f"{how}, best after {reached.argmax()}" if reached[-1] else f"{how}, ends at {values[-1]:.4f}"


def many(game: TurnGame, start: Policies, rule: Rule, order: str, correction: str, seed: int) -> str:
    """Cell: in how many games the value ever falls, how many end at the best return, and the median of their sweeps."""
    rng = np.random.default_rng(seed)
    values, _ = improve(game, start, rule, order, SWEEPS, correction, rng=rng)
    falls = int((np.diff(values, axis=0) < -TOLERANCE).any(0).sum())
    reached = values >= game.best() - TOLERANCE
    sweeps = f"{np.median(reached.argmax(0)[reached[-1]]):.0f}" if reached[-1].any() else "-"
    return f"{falls} / {reached[-1].sum()} / {sweeps}"


def single_games() -> Table:
    """The games with a story."""
    played = (
        (games.doors(), games.doors_start()),
        (games.doors(), games.doors_start(0.1)),
        (games.xor(), games.xor_start()),
    )
    rows = tuple(
        (f"{name}: {schedule}", *(single(game, start, rule, order, correction) for game, start in played))
        for name, rule in RULES
        for schedule, order, correction in SCHEDULES
        if order != "random"
    )
    return Table(
        "Three games",
        f"Expected return over {SWEEPS} sweeps (a sweep updates every turn once, from one batch). doors: left pays .6, "
        "right 1 or 0, as the second turn decides; it starts at one half, or finds the good action with probability "
        ".1. xor: two blind turns, 1 if they differ; both start at .48. M clipped: factors and product kept in "
        "[.8, 1.2], as in the published code. Without M the order does not matter: all turns move at once.",
        ("update", "doors, from .5", "doors, from .1", "xor, blind"),
        rows,
    )


def random_games(n: int, seed: int) -> Table:
    """Families of random games, three turns of three actions."""
    families = (games.gaussian, games.sparse, games.blind_gaussian)
    streams = np.random.default_rng(seed).spawn(len(families))
    made = [(make(n, 3, 3, rng), rng) for make, rng in zip(families, streams, strict=True)]
    played = [(game, game.random(rng)) for game, rng in made]
    rows = tuple(
        (f"{name}: {schedule}", *(many(game, start, rule, order, correction, seed) for game, start in played))
        for name, rule in RULES
        for schedule, order, correction in SCHEDULES
    )
    return Table(
        f"{n} random games of three turns with three actions",
        f"Each cell: games in which the expected return ever falls / games that end at the best return after "
        f"{SWEEPS} sweeps / sweeps that half of those need. Policies start at random. Gaussian: every joint "
        "action pays a normal number. sparse: three in ten pay a number between 0 and 1, the rest 0. blind: no turn "
        "sees what was done before. The optimum of a blind game can lie behind a joint move that no turn makes alone.",
        ("update", "Gaussian", "sparse", "Gaussian, blind"),
        rows,
    )


def scales() -> Table:
    """Dividing the advantage by a standard deviation, under exact gradient ascent."""
    game, steps, lr = games.loud_context(), 400, 0.25
    names = dict(zip(SCALES, ("R - mean", "one sd for the batch", "sd of each group"), strict=True))
    rows = []
    for scale in SCALES:
        values = improve(game, game.uniform(), lambda p, e: gradient_step(p, e, lr), "reverse", steps, scale=scale)[
            0
        ].mean(1)
        rises, falls = (np.diff(values) > 0).all(), (np.diff(values) < 0).all()
        trend = "rises throughout" if rises else "falls throughout" if falls else "mixed"
        rows.append((names[scale], f"{values[0]:.4f}", f"{values[-1]:.4f}", trend))
    return Table(
        "Scaling the advantage",
        "One turn, one policy, two equally likely contexts: a quiet one that pays (0, 1), a loud one that pays (2, 0) "
        f"under noise of variance 16. {steps} steps of exact gradient ascent. The sd of each group silences the loud "
        "context, although it matters more.",
        ("advantage", "start", "end", "expected return"),
        tuple(rows),
    )


def clipped_shift(shift: float) -> tuple[Array, float]:
    """Ratios [3] after one clipped argmax from the uniform policy when (.1, 0, -.1) is known up to ``shift``.

    Returns:
        The ratios, and the mean of the unshifted advantages under the new policy.
    """
    a, uniform = np.array([0.1, 0.0, -0.1]), np.full(3, 1 / 3)
    m = a + shift
    q = clipped_argmax(uniform, Expected(m, np.maximum(m, 0), np.minimum(m, 0), np.ones(3)))
    return q / uniform, float(q @ a)


def gating() -> Table:
    """What the clip makes of a baseline that is off."""
    rows = []
    for shift in (0, 1, -1):
        ratios, gain = clipped_shift(shift)
        rows.append((f"{shift:+d}" if shift else "0", ", ".join(f"{r:.1f}" for r in ratios), f"{gain:.4f}"))
    return Table(
        "A baseline that is off",
        "Three actions of advantage .1, 0, -.1, uniform policy, exact clipped argmax, eps .2. The mean of a group is "
        "not the value of the moment inside an episode, so all advantages of a turn can be shifted. The step still "
        "improves, but the ratios leave [.8, 1.2].",
        ("shift", "ratios after the step", "gain"),
        tuple(rows),
    )


def tables(n: int = GAMES, seed: int = SEED) -> list[Table]:
    """All tables; ``n`` games of each random family, drawn from ``seed``."""
    return [single_games(), random_games(n, seed), scales(), gating()]
