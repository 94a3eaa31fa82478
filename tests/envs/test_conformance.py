"""Every id of the project keeps every rule of the conformance kit."""

from __future__ import annotations

import pytest

from ragen_envs import TABLE
from ragen_envs.testing import check_text_env, rule_names

DEFAULTS = ("ragen/Bandit-v0", "ragen/FrozenLake-v0", "ragen/Sokoban-v0")


@pytest.mark.parametrize("id", TABLE)
def test_every_id_keeps_every_rule(id: str) -> None:
    """The two rules that start processes: for one id of each game, since the ids of a game share all code."""
    costly = () if id in DEFAULTS else ("processes", "async_vector")
    check_text_env(id, rules=[rule for rule in rule_names() if rule not in costly])
