"""The figures: what we measure, in which module, what it should reach, and which peers' figures it is compared with.

``figures()`` of a module may give more than is listed here; that is shown too, but has no target and no peer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """What a figure should reach."""

    relation: str
    """``>=``, ``<=`` or ``=``."""
    value: float
    times_best_peer: float | None = None
    """Ratio to the best peer that it should reach as well."""


@dataclass(frozen=True)
class Figure:
    """One figure of ours."""

    name: str
    """What ``--only`` takes, and the figure of the peers' lines it is compared with."""
    title: str
    module: str
    source: str = ""
    """What the module calls it; by default the same."""
    target: Target | None = None
    also: tuple[str, ...] = ()
    """Further figures of peers that do the same or less work, so that they may be compared too."""
    needs: str = ""
    """What it needs that is not part of the project; the likely reason if it was not measured."""

    @property
    def source_name(self) -> str:
        """Its name among the module's figures."""
        return self.source or self.name

    @property
    def compared_with(self) -> tuple[str, ...]:
        """Figures of the peers' lines it is compared with."""
        return (self.name, *self.also)


def _at_least(value: float, times_best_peer: float | None = None) -> Target:
    return Target(">=", value, times_best_peer)


SINGLE, VECTOR, SOLVER = "benchmarks.single", "benchmarks.vector", "benchmarks.solver"
GENERATION, ORACLE, STARTUP = "benchmarks.generation", "benchmarks.oracle", "benchmarks.startup"
_LEVELS = "Boxoban files: --levels DIR or RAGEN_LEVELS"
_MICROBAN = "Microban: Debian's cavepacker-data"

FIGURES = (
    Figure(
        "sokoban_discrete",
        "Sokoban-v0, discrete actions, text observations, default make, full info",
        SINGLE,
        "ragen/Sokoban-v0, discrete",
        _at_least(300_000, 5),
        also=("sokoban_turns",),
    ),
    Figure(
        "sokoban_turns",
        "Sokoban-v0, text turns: parse, think block, one action each",
        SINGLE,
        "ragen/Sokoban-v0, text turns",
        _at_least(100_000),
    ),
    Figure(
        "frozenlake_discrete",
        "FrozenLake-v0, discrete actions, text observations, default make, full info",
        SINGLE,
        "ragen/FrozenLake-v0, discrete",
        _at_least(300_000),
        also=("frozenlake_turns",),
    ),
    Figure("frozenlake_turns", "FrozenLake-v0, text turns", SINGLE, "ragen/FrozenLake-v0, text turns"),
    Figure(
        "vector_sokoban_grid_1024",
        "make_vec Sokoban-v0, 1024 environments, grid observations, discrete actions",
        VECTOR,
        "make_vec ragen/Sokoban-v0, grid, 1024 envs",
        _at_least(20e6, 5),
    ),
    Figure(
        "vector_sokoban_text_1024",
        "the same with text observations as Python strings",
        VECTOR,
        "make_vec ragen/Sokoban-v0, text, 1024 envs",
        _at_least(2e6),
    ),
    Figure(
        "vector_frozenlake_1024",
        "make_vec FrozenLake-v0, 1024 environments, grid observations, discrete actions",
        VECTOR,
        "make_vec ragen/FrozenLake-v0, grid, 1024 envs",
    ),
    Figure("rooms_6x6_1", "new rooms 6x6, 1 box, optimum included", GENERATION, target=_at_least(20_000)),
    Figure("rooms_8x8_2", "new rooms 8x8, 2 boxes, optimum included", GENERATION, target=_at_least(5_000)),
    Figure("rooms_10x10_4", "new rooms 10x10, 4 boxes, optimum included", GENERATION, target=_at_least(500)),
    Figure("rooms_6x6_1_min_4_pushes", "the same 6x6, at least 4 pushes", GENERATION),
    Figure("rooms_8x8_2_min_8_pushes", "the same 8x8, at least 8 pushes", GENERATION),
    Figure("rooms_10x10_4_min_15_pushes", "the same 10x10, at least 15 pushes", GENERATION),
    Figure("resets_bandit", "reset of Bandit-v0", GENERATION),
    Figure("resets_frozenlake", "reset of FrozenLake-v0", GENERATION),
    Figure("resets_sokoban", "reset of Sokoban-v0", GENERATION),
    Figure("resets_sokoban_larger", "reset of Sokoban-RAGEN-Larger-v0", GENERATION),
    Figure(
        "boxoban_hard_all",
        "all 3,332 Boxoban-hard levels, push-optimal",
        SOLVER,
        target=Target("<=", 1.0),
        needs=_LEVELS,
    ),
    Figure("boxoban_hard_all_pushes", "their pushes in all", SOLVER, target=Target("=", 59_404), needs=_LEVELS),
    Figure(
        "boxoban_unfiltered_test_100_pushes",
        "100 unfiltered test levels: pushes in all",
        SOLVER,
        target=Target("=", 1164),
        needs=_LEVELS,
    ),
    Figure(
        "boxoban_medium_100_pushes",
        "100 medium levels: pushes in all",
        SOLVER,
        target=Target("=", 1592),
        needs=_LEVELS,
    ),
    Figure(
        "boxoban_hard_100_pushes",
        "100 hard levels: pushes in all",
        SOLVER,
        target=Target("=", 1743),
        needs=_LEVELS,
    ),
    Figure(
        "microban_any",
        "Microban, 155 levels, any solution within 10 s each: solved",
        SOLVER,
        target=Target("=", 155),
        needs=_MICROBAN,
    ),
    Figure(
        "microban_optimal",
        "Microban, push-optimal within 10 s each: solved",
        SOLVER,
        target=_at_least(152),
        needs=_MICROBAN,
    ),
    *(
        Figure(f"oracle_{form}{key}", f"exact values of every action, {title}, {words}", ORACLE)
        for key, title in (
            ("bandit", "Bandit-v0"),
            ("frozenlake", "FrozenLake-v0"),
            ("sokoban", "Sokoban-v0"),
            ("sokoban_larger", "Sokoban-RAGEN-Larger-v0"),
        )
        for form, words in (("", "state by state"), ("many_", "2,048 states per call"))
    ),
    Figure(
        "startup",
        "a fresh process: import, make Sokoban-v0, reset, first step (wall, warm)",
        STARTUP,
        target=Target("<=", 1.0),
    ),
    Figure("startup_cpu", "the same in CPU time", STARTUP),
    Figure("startup_harness_help", "python -m harness.run --help (wall, warm)", STARTUP),
)
BY_NAME = {figure.name: figure for figure in FIGURES}
