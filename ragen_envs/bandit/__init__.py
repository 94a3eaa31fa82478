"""Two-armed bandit whose arms are known only by their names."""

from ragen_envs.bandit.rules import Bandit, BanditLevel, BanditState

__all__ = ["Bandit", "BanditLevel", "BanditState"]
