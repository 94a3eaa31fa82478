"""A walk over slippery ice, from a random start to a random goal."""

from ragen_envs.frozen_lake.maps import LakeLevel
from ragen_envs.frozen_lake.rules import FrozenLake, LakeState

__all__ = ["FrozenLake", "LakeLevel", "LakeState"]
