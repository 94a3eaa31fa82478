"""Template collapse: thoughts that read well and do not depend on the prompt.

With prompts X and thoughts Z, ``H(Z) = H(Z|X) + I(X;Z)``. Entropy sees only the sum: fluent thoughts that would follow
any prompt as well have a high H(Z|X) and an I(X;Z) near 0. To tell, every thought is scored under every prompt:
``S[i, j] = log p(z_i | x_j)``, the matrix of *cross scores*.

The cost is one forward pass per cell: ``n`` thoughts times ``N`` prompts, by default at most 16 x 8 = 128 sequences of
one prompt and one thought each, without gradient and in batches.

Simplifications: prompts are weighted equally; the prompt's part of the pass is repeated for every thought. A thought is
what stands between the first ``<think>`` and the first ``</think>`` after it, in tokens as they were sampled; where a
token spans the border of a tag it counts to the tag.

Source: arXiv 2604.06268 (RAGEN-2) and its public code. Mutual information is at most ``log N``, so compare runs at
equal ``N`` and ``n`` only; its sign against success is not stable in their results: a diagnostic, not a score.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ragen_algos.policy import LanguagePolicy
from ragen_algos.trajectory import Trajectory, collate

TIE = 1e-5
"""Scores that differ by no more than this (nats) are equal; batched float32 passes differ by about 1e-6."""
SD_FLOOR = 1e-3
"""Added to the standard deviation of the z-score, as in RAGEN-2's code."""
LOWEST = -1e4
"""Log-probability of a token that the policy rules out."""

_OPEN = re.compile("<think>", re.IGNORECASE | re.ASCII)
_CLOSE = re.compile("</think>", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class TemplateCollapse:
    """How much thoughts depend on prompts, from one matrix of cross scores. In nats, per token or per thought as the
    scores are."""

    thoughts: int
    """n."""
    prompts: int
    """N, all different."""
    mutual_information: float
    """I(X;Z), estimated; at most log N."""
    conditional_entropy: float
    """H(Z|X)."""
    reasoning_entropy: float
    """H(Z), the sum of the two."""
    retrieval: float
    """Share of thoughts whose own prompt scores best; ``chance`` if thoughts ignore their prompts."""
    retrieval_at: dict[int, float]
    """Share of thoughts whose own prompt is among the k best, for each k; chance is min(1, k/N)."""
    zscore: float
    """Mutual information in standard deviations of the marginal score; grows without meaning as that tends to 0."""
    marginal_sd: float
    """That standard deviation."""

    @property
    def chance(self) -> float:
        """1/N."""
        return 1 / self.prompts


def template_collapse(
    scores: torch.Tensor, own: torch.Tensor, *, ks: Sequence[int] = (2, 4, 8), sd: float | None = None
) -> TemplateCollapse:
    """The measures of template collapse from a matrix of cross scores.

    With ``own(i)`` the column of the prompt under which thought ``i`` was written::

        matched_i  = S[i, own(i)]
        marginal_i = logsumexp_j S[i, j] - log N
        I(X;Z)     = mean(matched - marginal)
        H(Z|X)     = -mean(matched)
        H(Z)       = -mean(marginal)
        z          = mean(matched - marginal) / (sd(marginal) + 1e-3)     with the population sd

    Retrieval ranks the prompts of each thought by score; ``m`` prompts that tie for the last place that counts share
    it (1/m each), so that equal scores give exactly chance.

    From sums of log-probabilities the marginal is that of the mixture over prompts. From means per token, RAGEN-2's
    default, it is not, and the mutual information is a proxy; report both.

    Args:
        scores: [n, N].
        own: [n] integers in [0, N). Columns are different prompts: merge equal ones first.
        ks: the k of ``retrieval_at``.
        sd: standard deviation for the z-score, such as a moving average over iterations; that of this matrix by
            default.

    Raises:
        ValueError: shapes, an index, or a score that is not finite.

    Source: arXiv 2604.06268 and its code; sharing of ties is ours.
    """
    if scores.ndim != 2 or own.shape != scores.shape[:1] or not scores.numel():
        raise ValueError(f"expected scores [n, N] and own [n], got {tuple(scores.shape)} and {tuple(own.shape)}")
    scores, own = scores.detach().to("cpu", torch.float64), own.to("cpu", torch.long)
    n, width = scores.shape
    if not torch.isfinite(scores).all():
        raise ValueError("cross scores must be finite")
    if int(own.min()) < 0 or int(own.max()) >= width:
        raise ValueError(f"own must hold columns from 0 to {width - 1}")
    matched = scores.gather(1, own[:, None]).squeeze(1)
    marginal = torch.logsumexp(scores, 1) - math.log(width)
    above = (scores > matched[:, None] + TIE).sum(1)
    tied = ((scores - matched[:, None]).abs() <= TIE).sum(1)
    spread = float(marginal.std(correction=0))
    information = float((matched - marginal).mean())

    def retrieved(k: int) -> float:
        return float(((k - above) / tied).clamp(0, 1).mean())

    return TemplateCollapse(
        thoughts=n,
        prompts=width,
        mutual_information=information,
        conditional_entropy=-float(matched.mean()),
        reasoning_entropy=-float(marginal.mean()),
        retrieval=retrieved(1),
        retrieval_at={k: retrieved(k) for k in ks},
        zscore=information / ((spread if sd is None else sd) + SD_FLOOR),
        marginal_sd=spread,
    )


@dataclass(frozen=True)
class CrossScores:
    """Thoughts scored under prompts."""

    total: torch.Tensor
    """[n, N] float64, log-probability of a thought."""
    tokens: torch.Tensor
    """[n] tokens of each thought."""
    own: torch.Tensor
    """[n] column of the prompt each thought was written under."""
    valid: float
    """Share of the turns looked at that hold a thought."""

    @property
    def mean(self) -> torch.Tensor:
        """[n, N] log-probability per token."""
        return self.total / self.tokens[:, None]


def cross_scores(
    policy: LanguagePolicy,
    trajectories: Sequence[Trajectory],
    *,
    prompts: int = 8,
    thoughts: int = 2,
    turn_seed: int | None = None,
    micro_batch: int = 16,
) -> CrossScores | None:
    """Score thoughts of sampled episodes under each other's prompts.

    A prompt is all tokens of an episode up to and including the opening think tag of a turn; equal prompts are one. The
    first ``prompts`` prompts are taken, and the first ``thoughts`` thoughts under each. Nothing is drawn at random but
    by ``turn_seed``, and neither the policy nor any generator changes.

    Args:
        policy: Who scores; the one that sampled the trajectories.
        trajectories: With tokens, all of one temperature, at which the scores are computed.
        prompts: N, at most.
        thoughts: Per prompt, at most; ``n <= prompts * thoughts`` and the cost is ``n * N`` sequences.
        turn_seed: None takes the first turn of every episode, in order. A number takes one turn of every episode, turn
            and order of episodes uniformly at random by this seed ("trajectory-uniform" in RAGEN-2, there with
            replacement).
        micro_batch: Sequences per forward pass.

    Returns:
        None if fewer than two prompts have a thought, or if the policy's scores are no numbers.
    """
    episodes = [t for t in trajectories if t.turns and len(t.ids)]
    if turn_seed is None:
        asked = [(t, 0) for t in episodes]
    else:
        rng = np.random.default_rng(np.random.SeedSequence(turn_seed))
        asked = [(episodes[i], int(rng.integers(len(episodes[i].turns)))) for i in rng.permutation(len(episodes))]
    found = [pair for t, turn in asked if (pair := _pair(policy, t, turn)) is not None]
    longest = max((len(z) for _, z in found), default=0)
    by_prompt: dict[bytes, tuple[np.ndarray, list[np.ndarray]]] = {}
    for x, z in found:
        if len(x) + longest > policy.context:
            continue
        if x.tobytes() not in by_prompt and len(by_prompt) < prompts:
            by_prompt[x.tobytes()] = (x, [])
        kept = by_prompt.get(x.tobytes())
        if kept is not None and len(kept[1]) < thoughts:
            kept[1].append(z)
    if len(by_prompt) < 2:
        return None
    columns = [x for x, _ in by_prompt.values()]
    rows = [(z, own) for own, (_, zs) in enumerate(by_prompt.values()) for z in zs]
    total = _score(policy, columns, [z for z, _ in rows], episodes[0].temperature, micro_batch)
    if not torch.isfinite(total).all():
        return None
    return CrossScores(
        total=total,
        tokens=torch.tensor([len(z) for z, _ in rows]),
        own=torch.tensor([own for _, own in rows]),
        valid=len(found) / len(asked),
    )


def template_metrics(
    policy: LanguagePolicy,
    trajectories: Sequence[Trajectory],
    *,
    turn_seed: int | None = None,
    micro_batch: int = 16,
) -> dict[str, float]:
    """:func:`cross_scores` and both versions of :func:`template_collapse` as metrics of an iteration.

    Returns:
        ``template_prompts`` (N), ``template_thoughts`` (n), ``valid_thinking``; ``template_mi``,
        ``template_conditional_entropy``, ``template_retrieval``, ``template_above_chance``, ``template_zscore`` and
        ``template_marginal_sd`` from scores per token; ``template_mi_seq`` and ``template_retrieval_seq`` from sums.
        Empty if there is nothing to measure.
    """
    found = cross_scores(policy, trajectories, turn_seed=turn_seed, micro_batch=micro_batch)
    if found is None:
        return {}
    token, whole = template_collapse(found.mean, found.own), template_collapse(found.total, found.own)
    return {
        "template_prompts": token.prompts,
        "template_thoughts": token.thoughts,
        "valid_thinking": found.valid,
        "template_mi": token.mutual_information,
        "template_conditional_entropy": token.conditional_entropy,
        "template_retrieval": token.retrieval,
        "template_above_chance": token.retrieval - token.chance,
        "template_zscore": token.zscore,
        "template_marginal_sd": token.marginal_sd,
        "template_mi_seq": whole.mutual_information,
        "template_retrieval_seq": whole.retrieval,
    }


def thought_span(policy: LanguagePolicy, reply: Sequence[int]) -> tuple[int, int] | None:
    """Where the thought lies in the sampled ids of a turn: ``reply[start:end]``, tags left out.

    Returns:
        None without a closed think block that has visible text in it.
    """
    reply = list(reply)
    start = 0
    if policy.primed != "<think>":
        opened = _first_with(policy, reply, _OPEN)
        if opened is None:
            return None
        start = opened
    rest = reply[start:]
    closed = _first_with(policy, rest, _CLOSE)
    if closed is None:
        return None
    tag = _CLOSE.search(policy.decode(rest[:closed]))
    assert tag is not None
    # The last prefix that ends before the closing tag begins.
    size = bisect.bisect_right(range(closed), tag.start(), key=lambda k: len(policy.decode(rest[:k]))) - 1
    if size < 1 or not policy.decode(rest[:size]).strip():
        return None
    return start, start + size


def _first_with(policy: LanguagePolicy, ids: list[int], tag: re.Pattern[str]) -> int | None:
    """Length of the shortest prefix whose text holds the tag."""
    if not tag.search(policy.decode(ids)):
        return None
    return bisect.bisect_left(range(len(ids)), True, key=lambda k: tag.search(policy.decode(ids[:k])) is not None)


def _pair(policy: LanguagePolicy, trajectory: Trajectory, turn: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Prompt and thought of a turn, in token ids."""
    where = np.flatnonzero(trajectory.turn_id == turn)
    if not len(where):
        return None
    first, last = int(where[0]), int(where[-1]) + 1
    span = thought_span(policy, trajectory.ids[first:last].tolist())
    if span is None:
        return None
    return trajectory.ids[: first + span[0]], trajectory.ids[first + span[0] : first + span[1]]


@torch.no_grad()
def _score(
    policy: LanguagePolicy,
    prompts: Sequence[np.ndarray],
    thoughts: Sequence[np.ndarray],
    temperature: float,
    micro_batch: int,
) -> torch.Tensor:
    """[n, N] float64: the log-probability of every thought after every prompt."""
    cells = [(i, j) for i in range(len(thoughts)) for j in range(len(prompts))]
    cells.sort(key=lambda cell: len(thoughts[cell[0]]) + len(prompts[cell[1]]))
    total = torch.zeros(len(thoughts), len(prompts), dtype=torch.float64)
    for at in range(0, len(cells), micro_batch):
        part = cells[at : at + micro_batch]
        batch = collate([_sequence(prompts[j], thoughts[i], temperature) for i, j in part])
        logp, _ = policy.log_probs(batch)
        sums = torch.where(batch.loss_mask, logp.double().cpu().clamp(min=LOWEST), 0.0).sum(1)
        for (i, j), value in zip(part, sums, strict=True):
            total[i, j] = value
    return total


def _sequence(prompt: np.ndarray, thought: np.ndarray, temperature: float) -> Trajectory:
    """A prompt and a thought as an episode in which the thought was sampled."""
    ids = np.concatenate([prompt, thought])
    sampled = np.arange(len(ids)) >= len(prompt)
    return Trajectory(
        group_id=0,
        trajectory_id=0,
        seed=0,
        dynamics_seed=0,
        temperature=temperature,
        ids=ids,
        loss_mask=sampled,
        turn_id=np.where(sampled, 0, -1),
        logp=np.zeros(len(ids), np.float32),
    )
