"""Reference algorithms for training language-model agents in text environments::

    from ragen_algos import LanguagePolicy, TrainConfig, Trainer, make

    policy = LanguagePolicy.load("tiny-mid")
    config = TrainConfig(iterations=30, groups=16, group_size=8, seed=0)
    Trainer(policy, make("reinforce"), "ragen/Bandit-v0", None, config, progress=True).run()

torch and transformers load when one of the names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragen_algos.algorithms import list_algorithms, make
    from ragen_algos.policy import LanguagePolicy
    from ragen_algos.rollout import EpisodeSeed, FunctionPlayer, episode_seeds
    from ragen_algos.sampler import Sampler
    from ragen_algos.trainer import TrainConfig, Trainer
    from ragen_algos.trajectory import Batch, Trajectory, collate

_HOME = {
    "list_algorithms": "algorithms",
    "make": "algorithms",
    "LanguagePolicy": "policy",
    "EpisodeSeed": "rollout",
    "FunctionPlayer": "rollout",
    "episode_seeds": "rollout",
    "Sampler": "sampler",
    "TrainConfig": "trainer",
    "Trainer": "trainer",
    "Batch": "trajectory",
    "Trajectory": "trajectory",
    "collate": "trajectory",
}

__all__ = [
    "Batch",
    "EpisodeSeed",
    "FunctionPlayer",
    "LanguagePolicy",
    "Sampler",
    "TrainConfig",
    "Trainer",
    "Trajectory",
    "collate",
    "episode_seeds",
    "list_algorithms",
    "make",
]


def __getattr__(name: str) -> Any:
    """Load torch only when something that needs it is asked for."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "transformers", "tokenizers", "safetensors", "tqdm"):
            raise ModuleNotFoundError(
                f"ragen_algos needs {error.name}: pip install 'ragen-bench[train]'", name=error.name
            ) from None
        raise
