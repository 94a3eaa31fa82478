"""Arm pairs as data, and the check of a user's own.

A pair is ``(low, high)``: the name of the arm that always pays a little, then the name of the arm that pays 1 now and
then and has the higher mean. A set has train pairs and test pairs. The pairs are those of RAGEN's presets (branch v0423
and HEAD); sets are named by content, because "reversed" has meant both directions.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ragen_envs.game import digest

Pair = tuple[str, str]


@dataclass(frozen=True)
class PairSet:
    """``(low, high)`` name pairs to train (and validate) on and, disjoint from them, to test on."""

    train: tuple[Pair, ...]
    test: tuple[Pair, ...]


NAMED: Mapping[str, PairSet] = MappingProxyType(
    {
        # A cautious profession carries the low arm, a risky one the high arm.
        "head": PairSet(
            train=(
                ("Teacher", "Trader"),
                ("Nurse", "StartupFounder"),
                ("Librarian", "Investor"),
                ("Accountant", "StockBroker"),
                ("Engineer", "RealEstateAgent"),
                ("Pharmacist", "Musician"),
                ("Clerk", "Freelancer"),
                ("Technician", "Youtuber"),
                ("Planner", "Artist"),
                ("Postman", "Pilot"),
                ("Banker", "VentureCapitalist"),
                ("Gardener", "Cryptominer"),
            ),
            test=(
                ("Receptionist", "Explorer"),
                ("Archivist", "Filmmaker"),
                ("Bookkeeper", "Consultant"),
                ("SocialWorker", "Photographer"),
                ("Mechanic", "GameDesigner"),
                ("Secretary", "Entrepreneur"),
                ("Cashier", "DataScientist"),
                ("CivilServant", "StartupAccelerator"),
            ),
        ),
        "v0423": PairSet(train=(("Phoenix", "Dragon"),), test=(("Trader", "Librarian"),)),
        # The generalisation sets, named low-high by their train pair.
        "engineer-teacher": PairSet(train=(("Engineer", "Teacher"),), test=(("Trader", "Librarian"),)),
        "teacher-engineer": PairSet(train=(("Teacher", "Engineer"),), test=(("Librarian", "Trader"),)),
    }
)


def _folded(name: str) -> str:
    """The form in which answers are compared with action names."""
    return unicodedata.normalize("NFKC", name).casefold()


def _pair(value: Any, where: str) -> Pair:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"{where}: a pair is [low, high], got {value!r}")
    for name in value:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}: an arm name is a non-empty string, got {name!r}")
        # Any other text is only data, however much it looks like markup. What is refused could not be told apart in
        # the state line or in an answer: blanks, line ends and control characters, and the answer separator.
        if not name.isprintable() or " " in name:
            raise ValueError(f"{where}: an arm name is one word without blanks or control characters, got {name!r}")
        if "||" in name:
            raise ValueError(f"{where}: an arm name cannot contain the action separator ||, got {name!r}")
    low, high = value
    if _folded(low) == _folded(high):
        raise ValueError(f"{where}: the arms need names that differ in more than case or width, got {value!r}")
    return low, high


def resolve(pairs: str | Mapping[str, Any]) -> PairSet:
    """The pair set of a name of ``NAMED`` or of ``{"train": [[low, high], ...], "test": [[low, high], ...]}``.

    Raises:
        ValueError: for an unknown name or an unusable list; says which entry and why.
    """
    if isinstance(pairs, str):
        if pairs not in NAMED:
            raise ValueError(f"unknown pair set {pairs!r}: the sets are {', '.join(NAMED)}")
        return NAMED[pairs]
    if not isinstance(pairs, Mapping) or set(pairs) != {"train", "test"}:
        raise ValueError('pairs is the name of a set or {"train": [[low, high], ...], "test": [[low, high], ...]}')
    lists: dict[str, tuple[Pair, ...]] = {}
    for part in ("train", "test"):
        given = pairs[part]
        if not isinstance(given, list | tuple) or not given:
            raise ValueError(f"pairs[{part!r}] is a list of at least one pair [low, high], got {given!r}")
        lists[part] = tuple(_pair(value, f"pairs[{part!r}][{i}]") for i, value in enumerate(given))
        if len(set(lists[part])) != len(lists[part]):
            raise ValueError(f"pairs[{part!r}] holds the same pair twice")
    both = set(lists["train"]) & set(lists["test"])
    if both:
        raise ValueError(f"a pair cannot be in train and in test: {sorted(both)}")
    return PairSet(lists["train"], lists["test"])


def high_first_in_train(pairs: PairSet) -> dict[Pair, bool]:
    """For each train pair, whether its high arm is shown first in the train split (the other order is val).

    Pairs are ranked by a hash of their names and alternate from there, so half of them (one more or less) show the high
    arm first and the position of an arm says nothing. The order of the list does not matter.
    """
    ranked = sorted(pairs.train, key=lambda pair: digest("bandit-order", *pair))
    start = int(digest("bandit-start", *ranked[0]), 16) % 2
    return {pair: (i + start) % 2 == 0 for i, pair in enumerate(ranked)}
