"""Microban (155 levels of D. W. Skinner, many beyond 64 cells), where Debian's package of it is installed."""

import re
from pathlib import Path

import pytest

from ragen_envs.sokoban import Level, Sokoban, State, load_levels, solve
from ragen_envs.sokoban.levels import BOX, BOX_ON_TARGET

MAPS = Path("/usr/share/games/cavepacker/maps")


@pytest.fixture(scope="module")
def levels() -> list[Level]:
    paths = sorted(MAPS.glob("microban01_*.sok"))
    if not paths:
        pytest.skip("Microban is not installed (apt-get install cavepacker-data)")
    found = [load_levels(path) for path in paths]
    assert [len(listed) for listed in found] == [1] * 155
    return [listed[0] for listed in found]


def test_every_level_is_solved_in_ten_seconds(levels: list[Level]) -> None:
    game = Sokoban()
    for number, level in enumerate(levels, start=1):
        solution = solve(level, objective="any", node_limit=20_000_000, time_limit=10.0)
        assert solution.status == "solved", f"level {number}: {solution.status}"
        state, solved = game.initial(level), False
        for action in solution.actions:
            assert not solved, f"level {number} is solved before its plan ends"
            state, _, solved, _, _ = game.step(state, action, None)
        assert solved, f"level {number}: the plan does not solve it"


def test_the_plans_of_the_package_take_no_fewer_pushes(levels: list[Level]) -> None:
    """Level 1, and level 153, where the package's plan is two pushes longer than the optimum."""
    game = Sokoban()
    for number, optimum in ((1, 8), (153, 336)):
        plan = (MAPS / f"microban01_{number:04}.sol").read_text().strip()
        while "(" in plan:  # 3(ul) is ululul
            plan = re.sub(r"(\d+)\(([^()]*)\)", lambda group: int(group[1]) * group[2], plan)
        state, pushes, solved = game.initial(levels[number - 1]), 0, False
        for times, letter in re.findall(r"(\d*)([udlr])", plan):
            for _ in range(int(times or 1)):
                before = boxes(state)
                state, _, solved, _, _ = game.step(state, "udlr".index(letter), None)
                pushes += boxes(state) != before
        assert solved
        assert solve(levels[number - 1], node_limit=20_000_000).pushes == optimum <= pushes


def boxes(state: State) -> list[int]:
    return [i for i, code in enumerate(state.cells) if code in (BOX, BOX_ON_TARGET)]
