"""The table of environment ids, and how to add one's own.

An id stands for one behaviour. Any change to rules, prompts, levels or parsing gives the id a new version number.
"""

from __future__ import annotations

from typing import Any

import gymnasium

_RAGEN_SOKOBAN: dict[str, Any] = {"min_steps": 1, "max_steps": 10, "max_actions_per_turn": 5, "view": "grid"}
_V1_LAKE: dict[str, Any] = {"size": 4, "max_turns": 5, "max_actions": 10, "min_steps": 1}
_BANDIT_BUDGET: dict[str, Any] = {"max_turns": 1, "max_actions_per_turn": 1, "max_actions": 1}

TABLE: dict[str, tuple[str, dict[str, Any], str]] = {
    # id: (game, keyword arguments, what it is)
    "ragen/Bandit-v0": (
        "ragen_envs.bandit:Bandit",
        {**_BANDIT_BUDGET},
        "our default: 12 named pairs to train on, 8 unseen pairs to test on",
    ),
    "ragen/Bandit-RAGEN-v1-v0": (
        "ragen_envs.bandit:Bandit",
        {**_BANDIT_BUDGET, "pairs": "v0423", "low_reward": 0.15},
        "RAGEN v1 paper: Phoenix/Dragon, low arm 0.15; tests on Trader/Librarian "
        "(one order to train on, the other is val; RAGEN draws the order at every reset)",
    ),
    "ragen/Bandit-RAGEN-Engineer-Teacher-v0": (
        "ragen_envs.bandit:Bandit",
        {**_BANDIT_BUDGET, "pairs": "engineer-teacher", "low_reward": 0.15},
        "RAGEN v1 generalisation (the paper's BanditRev): Engineer is low, Teacher high; tests on Trader/Librarian",
    ),
    "ragen/Bandit-RAGEN-Teacher-Engineer-v0": (
        "ragen_envs.bandit:Bandit",
        {**_BANDIT_BUDGET, "pairs": "teacher-engineer", "low_reward": 0.15},
        "RAGEN v1 generalisation, arms swapped: Teacher is low, Engineer high; tests on Librarian/Trader",
    ),
    "ragen/Bandit-RAGEN-HEAD-v0": (
        "ragen_envs.bandit:Bandit",
        {**_BANDIT_BUDGET, "pairs": "head"},
        "RAGEN HEAD: 12 train and 8 test pairs, low arm 0.1",
    ),
    "ragen/FrozenLake-v0": (
        "ragen_envs.frozen_lake:FrozenLake",
        {"size": 4, "frozen": 0.8, "slip": 0.1, "min_steps": 2, "max_steps": 10},
        "our default: 4x4, slip 0.1, start at least 2 steps from the goal",
    ),
    "ragen/FrozenLake-RAGEN-v1-v0": (
        "ragen_envs.frozen_lake:FrozenLake",
        {**_V1_LAKE, "frozen": 0.8, "slip": 2 / 3},
        "RAGEN v1 paper: p(frozen) 0.8, intended direction 1/3",
    ),
    "ragen/FrozenLake-RAGEN-HEAD-v0": (
        "ragen_envs.frozen_lake:FrozenLake",
        {**_V1_LAKE, "frozen": 0.9, "slip": 0.0, "max_actions_per_turn": 2, "view": "both"},
        "RAGEN HEAD CoordFrozenLake: p(frozen) 0.9, no slip, 2 actions per turn, grid and coordinates",
    ),
    "ragen/Sokoban-v0": (
        "ragen_envs.sokoban:Sokoban",
        {"height": 6, "width": 6, "boxes": 1, "min_steps": 3, "max_steps": 10},
        "our default: 6x6, 1 box, shortest solution 3 to 10 actions",
    ),
    "ragen/Sokoban-RAGEN-Simple-v0": (
        "ragen_envs.sokoban:Sokoban",
        {**_RAGEN_SOKOBAN, "height": 6, "width": 6, "boxes": 1},
        "RAGEN SimpleSokoban: 6x6, 1 box (levels beyond 10 actions, 0.7 % there, are left out)",
    ),
    "ragen/Sokoban-RAGEN-Larger-v0": (
        "ragen_envs.sokoban:Sokoban",
        {**_RAGEN_SOKOBAN, "height": 8, "width": 8, "boxes": 2},
        "RAGEN LargerSokoban: 8x8, 2 boxes",
    ),
    "ragen/Sokoban-RAGEN-Coord-v0": (
        "ragen_envs.sokoban:Sokoban",
        {**_RAGEN_SOKOBAN, "height": 6, "width": 6, "boxes": 1, "max_actions_per_turn": 2, "view": "both"},
        "RAGEN HEAD CoordSokoban: 6x6, 1 box, 2 actions per turn, grid and coordinates",
    ),
    "ragen/Sokoban-RAGEN-NewVocab-v0": (
        "ragen_envs.sokoban:Sokoban",
        {**_RAGEN_SOKOBAN, "height": 6, "width": 6, "boxes": 1, "symbols": "alternative"},
        "RAGEN SokobanDifferentGridVocab: 6x6, 1 box, other symbols (with the right legend)",
    ),
}


_ENTRY_POINT = "ragen_envs.text_env:TextEnv"
_VECTOR_ENTRY_POINT = "ragen_envs.vector:TextVectorEnv"


def register(id: str, game: str, **kwargs: Any) -> None:
    """Register a game of your own so that ``gymnasium.make(id)`` plays it as a text environment.

    Args:
        id: For example ``"mylab/Maze-v0"``.
        game: ``"module:Class"`` of a :class:`ragen_envs.Game`.
        kwargs: JSON values for the game and for :class:`ragen_envs.TextEnv`.

    Raises:
        ValueError: the id is taken by something else. Registering the same thing twice is harmless.
    """
    wanted = {"game": game, **kwargs}
    if id not in gymnasium.registry:
        gymnasium.register(id, entry_point=_ENTRY_POINT, vector_entry_point=_VECTOR_ENTRY_POINT, kwargs=wanted)
    elif (gymnasium.registry[id].entry_point, gymnasium.registry[id].kwargs) != (_ENTRY_POINT, wanted):
        raise ValueError(f"{id} is registered already, with other contents: give the new one another version number")


def register_all() -> None:
    """Register every id of the table; doing it twice is harmless."""
    for id, (game, kwargs, _) in TABLE.items():
        register(id, game, **kwargs)
