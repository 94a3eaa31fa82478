"""What a batch of episodes looks like before any filtering: scores, form, and how much its thoughts vary.

Thoughts are what :attr:`ragen_algos.trajectory.Turn.thought` holds, text that a model wrote and that may be anything.
Words are what white space separates, lengths are counted in characters: both mean something in every vocabulary, and
the signals built on them compare a run with its own beginning.

Source of the signals: arXiv 2504.20073 (RAGEN), section on the echo trap; repetition across prompts is our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ragen_algos.trajectory import Trajectory

GRAM = 8
"""Words of a phrase in :func:`repetition`."""


def unique_thoughts(episodes: Sequence[Trajectory]) -> float:
    """Distinct thoughts over all thoughts that are not empty; 0 if there is none."""
    thoughts = [turn.thought for e in episodes for turn in e.turns if turn.thought]
    return len(set(thoughts)) / len(thoughts) if thoughts else 0.0


def thought_length(episodes: Sequence[Trajectory]) -> float:
    """Mean characters of thought per turn; a turn without a thought counts 0."""
    lengths = [len(turn.thought) for e in episodes for turn in e.turns]
    return float(np.mean(lengths)) if lengths else 0.0


def repetition(episodes: Sequence[Trajectory]) -> float:
    """Share of the phrases in thoughts that come up under at least half of the prompts: 0 nothing, 1 all is template.

    A phrase is any ``GRAM`` words in a row; a thought of fewer words is one phrase. A prompt is what an episode showed
    first, so episodes of one level are one prompt. A phrase must come up under two prompts at least, and with fewer
    than two prompts nothing can be told (0).

    Source: our own, after the description of the echo trap in arXiv 2504.20073.
    """
    count: Counter[tuple[str, ...]] = Counter()
    under: dict[str, set[tuple[str, ...]]] = {}
    for e in episodes:
        if not e.turns:
            continue
        here = under.setdefault(e.turns[0].observation_key or f"group {e.group_id}", set())
        for turn in e.turns:
            phrases = list(_phrases(turn.thought))
            count.update(phrases)
            here.update(phrases)
    if len(under) < 2 or not count:
        return 0.0
    prompts = Counter(phrase for phrases in under.values() for phrase in phrases)
    enough = max(2, len(under) / 2)
    return sum(n for phrase, n in count.items() if prompts[phrase] >= enough) / count.total()


def _phrases(thought: str) -> Iterable[tuple[str, ...]]:
    words = thought.split()
    if not words:
        return ()
    return (tuple(words[i : i + GRAM]) for i in range(max(1, len(words) - GRAM + 1)))


def describe(episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """The metrics of one iteration's episodes, which :class:`~ragen_algos.diagnostics.EchoTrapMonitor` reads.

    ``in_group_std`` is the mean over groups of the Bessel-corrected standard deviation of raw returns (0 for a group of
    one); ``zero_groups`` counts groups whose returns differ by less than 1e-6.
    """
    turns = [turn for e in episodes for turn in e.turns]
    groups: dict[int, list[float]] = {}
    for e in episodes:
        groups.setdefault(e.group_id, []).append(e.total_return)
    spreads = [float(np.std(r, ddof=1)) if len(r) > 1 else 0.0 for r in groups.values()]
    flat = sum(max(r) - min(r) < 1e-6 for r in groups.values())
    return {
        "success": float(np.mean([e.success for e in episodes])),
        "mean_return": float(np.mean([e.total_return for e in episodes])),
        "in_group_std": float(np.mean(spreads)),
        "zero_groups": int(flat),
        "truncated": float(np.mean([e.truncated and not e.terminated for e in episodes])),
        "turns": len(turns) / len(episodes),
        "actions": sum(turn.n_actions for turn in turns) / len(episodes),
        "response_tokens": float(np.mean([turn.n_tokens for turn in turns])),
        "format_ok": float(np.mean([turn.format_ok for turn in turns])),
        "unique_thoughts": unique_thoughts(episodes),
        "thought_length": thought_length(episodes),
        "repetition": repetition(episodes),
    }
