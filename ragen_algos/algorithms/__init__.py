"""The algorithms by name. One short file each; reading it is enough to know the algorithm.

Simplification: the table below is written by hand. A new algorithm is a new file and one more entry; a new name for an
old one with other options is an entry of :mod:`ragen_algos.presets`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any

from ragen_algos.algorithms.base import Algorithm
from ragen_algos.algorithms.cispo import CISPO
from ragen_algos.algorithms.dapo import DAPO
from ragen_algos.algorithms.dr_grpo import DrGRPO
from ragen_algos.algorithms.gigpo import GiGPO
from ragen_algos.algorithms.grpo import GRPO
from ragen_algos.algorithms.gspo import GSPO
from ragen_algos.algorithms.mt_grpo import MTGRPO
from ragen_algos.algorithms.ppo import PPO
from ragen_algos.algorithms.ppo_bilevel import BilevelPPO
from ragen_algos.algorithms.ppo_turn import TurnPPO
from ragen_algos.algorithms.reinforce import Reinforce
from ragen_algos.algorithms.reinforce_pp import ReinforcePP
from ragen_algos.algorithms.rloo import RLOO
from ragen_algos.algorithms.seeupo import SeeUPO
from ragen_algos.algorithms.starpo import StarPO
from ragen_algos.algorithms.starpo_s import StarPOS
from ragen_algos.presets import PRESETS

_CLASSES: tuple[type[Algorithm], ...] = (
    BilevelPPO,
    CISPO,
    DAPO,
    DrGRPO,
    GRPO,
    GSPO,
    GiGPO,
    MTGRPO,
    PPO,
    RLOO,
    Reinforce,
    ReinforcePP,
    SeeUPO,
    StarPO,
    StarPOS,
    TurnPPO,
)
_ALGORITHMS: dict[str, type[Algorithm]] = {cls.name: cls for cls in _CLASSES}

__all__ = [
    "CISPO",
    "DAPO",
    "GRPO",
    "GSPO",
    "MTGRPO",
    "PPO",
    "RLOO",
    "Algorithm",
    "BilevelPPO",
    "DrGRPO",
    "GiGPO",
    "Reinforce",
    "ReinforcePP",
    "SeeUPO",
    "StarPO",
    "StarPOS",
    "TurnPPO",
    "list_algorithms",
    "make",
]


def list_algorithms() -> list[str]:
    """The names of the algorithms, sorted; :func:`make` also knows those of :data:`ragen_algos.presets.PRESETS`."""
    return sorted(_ALGORITHMS)


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def make(name: str, **overrides: Any) -> Algorithm:
    """The algorithm called ``name``, with some of its options changed. A preset sets options of its own first.

    Raises:
        ValueError: unknown name (the message lists all), unknown option (the message lists the valid ones), or an
            option value that the algorithm rejects.
    """
    if name in PRESETS:
        name, options_of_preset = PRESETS[name]
        overrides = {**options_of_preset, **overrides}
    if name not in _ALGORITHMS:
        known = sorted([*_ALGORITHMS, *PRESETS])
        raise ValueError(f"unknown algorithm {name!r}; choose from {', '.join(known)}{_suggestion(str(name), known)}")
    options = [field.name for field in dataclasses.fields(_ALGORITHMS[name])]
    for key in overrides:
        if key not in options:
            raise ValueError(
                f"{name} has no option {key!r}; valid options: {', '.join(options)}{_suggestion(key, options)}"
            )
    return _ALGORITHMS[name](**overrides)
