"""Evaluation: a policy plays a fixed set of episodes, and every episode becomes a row.

Level, luck and the stream that samples tokens depend on the evaluation seed, the split and the episode number alone.
Policies, algorithms and training seeds are therefore compared on the very same levels and luck, episode by episode.

Beside each result stand two exact expectations on that level: of optimal play, and of uniformly random actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness import policies
from harness.suite import EnvironmentSpec, EvaluationSettings
from ragen_algos.rollout import EpisodeSeed, episode_seeds, make_env, rollout
from ragen_algos.trajectory import Trajectory
from ragen_envs.splits import SPLITS

if TYPE_CHECKING:
    from ragen_algos.policy import LanguagePolicy

_DOMAIN = 0xE7A1
"""Keeps the seeds of evaluation apart from those of training, which come from (training seed, iteration)."""
BATCH = 128
"""Episodes played at once. Part of the protocol: batched float sums depend on the batch in the last digits."""


def evaluation_seeds(settings: EvaluationSettings, split: str) -> list[EpisodeSeed]:
    """The episodes of a split."""
    return episode_seeds((settings.seed, SPLITS.index(split), _DOMAIN), groups=settings.episodes)


def exact_baselines(env_id: str, env_kwargs: dict[str, Any], seeds: list[EpisodeSeed]) -> list[dict[str, float | None]]:
    """For each episode the exact expected return and success of optimal and of random play; None if unknown.

    Both count game rewards only: a format penalty is no part of them.
    """
    env = make_env(env_id, env_kwargs)
    budget = min(env.max_actions, env.max_turns * env.max_actions_per_turn)
    out = []
    for s in seeds:
        env.reset(seed=s.level, options={"dynamics_seed": s.dynamics})
        plan = env.best_turn()
        best, chance = plan and plan.expected, env.game.random_play(env.state, budget)
        out.append(
            {
                "optimal_return": best.reward if best else None,
                "optimal_success": best.success if best else None,
                "random_return": chance.reward if chance else None,
                "random_success": chance.success if chance else None,
            }
        )
    return out


def evaluate(
    source: str,
    model: LanguagePolicy | None,
    environment: EnvironmentSpec,
    settings: EvaluationSettings,
    *,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[dict[str, Any]]:
    """Play all splits and modes.

    Args:
        source: Name of the policy; read only if ``model`` is None.
        model: The language policy; None for a scripted policy, which has only one mode, ``sampled``.
        environment: Where, and on which splits.
        settings: How many, which modes, which seed.
        on_progress: Called with the number of episodes played and to play.

    Returns:
        Rows of the table ``episodes``, without the columns that say which run they belong to.
    """
    modes = settings.modes if model is not None else ("sampled",)
    total = len(environment.splits) * len(modes) * settings.episodes
    rows: list[dict[str, Any]] = []
    for split in environment.splits:
        kwargs = {**environment.kwargs, "split": split}
        seeds = evaluation_seeds(settings, split)
        baselines = exact_baselines(environment.id, kwargs, seeds)
        for mode in modes:
            player = policies.player(
                source, model, mode=mode, temperature=settings.temperature, max_new_tokens=settings.max_new_tokens
            )
            for start in range(0, len(seeds), BATCH):
                batch = seeds[start : start + BATCH]
                for i, episode in enumerate(rollout(player, environment.id, kwargs, batch), start):
                    row = episode_row(episode, seeds[i])
                    rows.append({"split": split, "mode": mode, "episode": i, **row, **baselines[i]})
                on_progress(len(rows), total)
    return rows


def episode_row(episode: Trajectory, seeds: EpisodeSeed) -> dict[str, Any]:
    """What a trajectory says about itself. An episode that could not be played has no score: null, not 0."""
    turns, failed = episode.turns, bool(episode.error)
    return {
        "level_seed": seeds.level,
        "dynamics_seed": seeds.dynamics,
        "sampling_seed": seeds.sampling,
        "level_key": episode.level_key,
        "status": "error" if failed else "done",
        "error": _short(episode.error) if failed else None,
        "texts": [_storable(t.text) for t in turns],
        "actions": [t.executed for t in turns],
        "rewards": [t.reward for t in turns],
        "statuses": [t.status for t in turns],
        "format_ok": [t.format_ok for t in turns],
        "state_keys": [t.state_key for t in turns],
        "turn_tokens": [t.n_tokens for t in turns],
        "terminated": None if failed else episode.terminated,
        "truncated": None if failed else episode.truncated,
        "success": None if failed else episode.success,
        "total_return": None if failed else episode.total_return,
        "tokens": sum(t.n_tokens for t in turns),
        "env_steps": sum(t.n_actions for t in turns),
    }


def _storable(text: str) -> str:
    """Text that UTF-8 can hold: a lone surrogate, which a hostile policy may send, is written as its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _short(text: str) -> str:
    from harness.store import without_paths

    return without_paths(_storable(text))
