"""Policies by name: scripted ones, the embedded models, a checkpoint folder, any Hugging Face causal LM.

Naming a policy (``identify``) reads files but loads no model; ``load`` does.

Simplification: the scripted policies write the same few words as their thinking, because only their actions matter.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ragen_algos.policy import LanguagePolicy
    from ragen_algos.rollout import Messages, Player
    from ragen_envs.text_env import TextEnv

EMBEDDED = ("tiny-mid", "tiny-full")
"""Models that come with the package."""

_WEIGHTS = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.gguf", "*.bin")


def random_turn(env: TextEnv, messages: Messages, rng: np.random.Generator) -> str:
    """Uniformly random actions, as many as the turn and the episode still allow."""
    legal = env.game.legal_actions(env.state)
    count = min(env.max_actions_per_turn, env.actions_left)
    return _write(env, [legal[i] for i in rng.integers(len(legal), size=count)])


def oracle_turn(env: TextEnv, messages: Messages, rng: np.random.Generator) -> str:
    """The exact best turn.

    Raises:
        ValueError: the game has no oracle.
    """
    plan = env.best_turn()
    if plan is None:
        raise ValueError(f"the game {env.game.name} has no oracle")
    return _write(env, plan.actions)


def _write(env: TextEnv, actions: Any) -> str:
    names = env.game.action_names(env.level)
    thought = "<think>scripted</think>" if env.reasoning == "required" else ""
    return f"{thought}<answer>{' || '.join(names[a] for a in actions)}</answer>"


SCRIPTED: dict[str, Callable[[TextEnv, Messages, np.random.Generator], str]] = {
    "random": random_turn,
    "oracle": oracle_turn,
}
"""Players that are functions. They are evaluated once; greedy play means nothing to them."""


def identify(name: str) -> tuple[str, str | None]:
    """Name and content digest of a policy.

    Args:
        name: A key of ``SCRIPTED`` or ``EMBEDDED``, a checkpoint folder, or ``hf:NAME_OR_PATH``.

    Returns:
        The name (of an absolute path only the last part: results hold no paths of machines) and the digest, which is
        None for scripted policies and for names that only a hub knows.

    Raises:
        UsageError: there is no such policy.
    """
    from harness.suite import UsageError, unknown

    if name in SCRIPTED:
        return name, None
    prefix, path = ("hf:", name[3:]) if name.startswith("hf:") else ("", name)
    folder = Path(path)
    if name in EMBEDDED:
        spec = importlib.util.find_spec("ragen_algos")
        assert spec is not None
        assert spec.submodule_search_locations
        folder = Path(next(iter(spec.submodule_search_locations))) / "tiny" / name
        if not folder.is_dir():
            raise UsageError(f"policy {name!r} is not built yet: python -m ragen_algos.tiny.build makes it")
    elif (folder / "config.json").is_file():
        name = f"{prefix}{folder.name}" if folder.is_absolute() else name
    elif prefix and path and not path.startswith(("/", ".", "~")) and not folder.exists():
        return name, None
    elif folder.is_dir():
        raise UsageError(f"policy {name!r} is a folder without config.json, so it holds no checkpoint")
    else:
        known = [*SCRIPTED, *EMBEDDED]
        raise UsageError(f"{unknown('policy', name, known)}, a checkpoint folder, hf:NAME_OR_PATH")
    return name, _digest(folder)


def is_tiny(source: str) -> bool:
    """Whether it is an embedded model, or a checkpoint that was trained from one."""
    card = Path(source.removeprefix("hf:")) / "ragen_policy.json"
    if source in EMBEDDED or not card.is_file():
        return source in EMBEDDED
    try:
        return bool(json.loads(card.read_text(encoding="utf-8")).get("tiny"))
    except (OSError, ValueError, AttributeError):
        return False


def _digest(folder: Path) -> str:
    total = hashlib.blake2b(digest_size=8)
    for path in sorted({p for pattern in _WEIGHTS for p in folder.glob(pattern)}):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
        total.update(path.name.encode() + b"\0" + content)
    return total.hexdigest()


def player(
    name: str, model: LanguagePolicy | None, *, mode: str, temperature: float, max_new_tokens: int | None
) -> Player:
    """Someone who plays in ``mode`` (``sampled`` or ``greedy``): the script of that name, or a sampler of ``model``."""
    if model is None:
        from ragen_algos.rollout import FunctionPlayer

        return FunctionPlayer(SCRIPTED[name])
    from ragen_algos.sampler import Sampler

    return Sampler(model, temperature=temperature, greedy=mode == "greedy", max_new_tokens=max_new_tokens)


def load(source: str, *, device: str) -> LanguagePolicy | None:
    """The model of that name, or None for a scripted policy."""
    if source in SCRIPTED:
        return None
    from ragen_algos.policy import LanguagePolicy

    return LanguagePolicy.load(source, device=device)
