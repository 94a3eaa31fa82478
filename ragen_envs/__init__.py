"""Text environments with exact oracles.

``import ragen_envs`` registers them with Gymnasium; then ``gymnasium.make("ragen/Sokoban-v0")`` plays one.
"""

from ragen_envs.game import Expectation, Game, OracleValue, Outcome, Plan
from ragen_envs.protocol import ParsedTurn, parse_turn
from ragen_envs.registration import TABLE, register, register_all
from ragen_envs.spaces import FreeText
from ragen_envs.splits import split_of
from ragen_envs.text_env import TextEnv

__version__ = "0.1.0"

__all__ = [
    "TABLE",
    "Expectation",
    "FreeText",
    "Game",
    "OracleValue",
    "Outcome",
    "ParsedTurn",
    "Plan",
    "TextEnv",
    "parse_turn",
    "register",
    "split_of",
]

register_all()
