"""Sokoban: push every box onto a target. Rules, levels, generator, solver and exact values.

``rules`` holds the game, ``levels`` boards and XSB files, ``generator`` new rooms, ``solver`` plans,
``oracle`` exact values; ``search`` and ``bitboard`` are the compiled searches under the last three.
"""

from ragen_envs.sokoban.generator import generate
from ragen_envs.sokoban.levels import Level, format_xsb, load_levels, parse_xsb
from ragen_envs.sokoban.rules import Sokoban, State
from ragen_envs.sokoban.solver import Solution, solve, solve_many

__all__ = [
    "Level",
    "Sokoban",
    "Solution",
    "State",
    "format_xsb",
    "generate",
    "load_levels",
    "parse_xsb",
    "solve",
    "solve_many",
]
