"""One turn of talk: what a model is asked to write, and how what it wrote is read.

A turn is one optional ``<think>...</think>`` block and one ``<answer>...</answer>`` block; the answer lists action
names separated by ``||``. Reading is total (any object in, a result out), takes time linear in the text, and never
evaluates anything. What executes and whether the form was right are two separate results: a sloppy turn may act and
still be marked as badly formed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

SEPARATOR = "||"

STATUSES = (
    "ok",
    "no_answer",
    "empty_answer",
    "unclosed_answer",
    "unclosed_think",
    "length",
    "unknown_action",
    "illegal_action",
    "too_many",
    "multiple_answers",
    "no_think",
)
"""Every value of ``info["action_status"]`` after a turn. Several reasons at once: the first of ``length``,
``unclosed_think``, ``unclosed_answer``, ``no_answer``, ``empty_answer``, ``unknown_action``, ``illegal_action``,
``too_many``, ``multiple_answers``, ``no_think`` is reported."""

_TAG = re.compile(r"</?(?:think|answer)>", re.IGNORECASE | re.ASCII)
_PLAIN_TURN = re.compile(r"\s*+(?:<think>([^<]*+)</think>\s*+)?<answer>([^<]*+)</answer>\s*+")
"""A turn of the asked-for form without any other ``<``: what most turns are, and read without looking for faults."""
MAX_CACHED_ANSWER = 128
"""Longest answer, in characters, whose reading is remembered."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What was read from a model's text."""

    actions: tuple[str, ...]
    """Action names to execute, spelled as the game spells them."""
    status: str
    """One of ``STATUSES``."""
    format_ok: bool
    """Strictly the asked-for form. Rewards and penalties for form depend on this alone."""
    n_dropped: int
    """Segments beyond the most actions allowed in a turn."""
    thought: str
    """Text of the last think block, stripped; of an unclosed one, what there is."""


class Blocks(NamedTuple):
    """The structure of a model's text, before the answer is read."""

    answer: str | None
    status: str
    """``ok`` or why there is no answer to read (``unclosed_think``, ``unclosed_answer``, ``no_answer``)."""
    exact: bool
    """Nothing but the asked-for blocks and white space."""
    has_thought: bool
    several: bool
    """More than one complete answer block after the thinking."""
    thought: str


def find_blocks(text: str) -> Blocks:
    """Find the answer block that counts: the last complete one after the last ``</think>``."""
    plain = _PLAIN_TURN.fullmatch(text)
    if plain is not None:
        thought, answer = plain.groups()
        return Blocks(answer, "ok", True, thought is not None, False, (thought or "").strip())
    return _scan_blocks(text)


def _scan_blocks(text: str) -> Blocks:
    """:func:`find_blocks` for any text, tag by tag."""
    tags = [(m.group().lower(), m.start(), m.end()) for m in _TAG.finditer(text)]
    last_think_end = max((i for i, tag in enumerate(tags) if tag[0] == "</think>"), default=-1)

    thought, has_thought, think_start = "", False, 0
    if last_think_end >= 0:
        opening = next((i for i in range(last_think_end - 1, -1, -1) if tags[i][0] in ("<think>", "</think>")), -1)
        if opening >= 0 and tags[opening][0] == "<think>":
            has_thought, think_start = True, tags[opening][1]
            thought = text[tags[opening][2] : tags[last_think_end][1]].strip()
    tail_start = tags[last_think_end][2] if last_think_end >= 0 else 0
    head = text[:think_start] if has_thought else text[:tail_start]
    outside = head.strip() != ""

    answer, n_answers, open_at, cursor = None, 0, -1, tail_start
    for name, start, end in tags[last_think_end + 1 :]:
        if name == "<think>":
            return Blocks(None, "unclosed_think", False, has_thought, False, text[end:].strip())
        if name == "<answer>":
            # A second opening before the first was closed: the first one is stray text.
            outside |= open_at >= 0 or text[cursor:start].strip() != ""
            open_at, cursor = end, end
        elif open_at >= 0:
            answer, n_answers, open_at, cursor = text[open_at:start], n_answers + 1, -1, end
        else:
            outside, cursor = True, end
    unclosed = open_at >= 0
    outside |= text[cursor:].strip() != ""
    if unclosed:
        return Blocks(None, "unclosed_answer", False, has_thought, False, thought)
    if answer is None:
        return Blocks(None, "no_answer", False, has_thought, False, thought)
    return Blocks(answer, "ok", not outside and n_answers == 1, has_thought, n_answers > 1, thought)


@lru_cache(maxsize=4096)
def _name_table(names: tuple[str, ...]) -> tuple[dict[str, int], int]:
    table = {_fold(name): i for i, name in enumerate(names)}
    if len(table) < len(names):
        raise ValueError(f"action names must differ after NFKC and case folding, got {names}")
    for name in names:
        if not _fold(name) or SEPARATOR in name:
            raise ValueError(f"an action name has visible text and no {SEPARATOR} in it, got {name!r}")
    return table, 8 * max(map(len, table), default=0) + 16


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().strip()


def parse_action_list(answer: str, names: Sequence[str], *, max_actions: int) -> tuple[tuple[int, ...], str, int]:
    """Read ``Up || Left`` against action names.

    Returns:
        Indices read before the first segment that matches no name, the status (``ok``, ``empty_answer``,
        ``unknown_action`` or ``too_many``), and the number of segments beyond ``max_actions``.
    """
    if len(answer) <= MAX_CACHED_ANSWER:
        return _remembered_list(answer, tuple(names), max_actions)
    return _read_list(answer, tuple(names), max_actions)


def _read_list(answer: str, names: tuple[str, ...], max_actions: int) -> tuple[tuple[int, ...], str, int]:
    table, longest = _name_table(names)
    segments = [s for s in (part.strip() for part in answer.split(SEPARATOR)) if s]
    dropped = max(0, len(segments) - max_actions)
    if not segments:
        return (), "empty_answer", 0
    actions: list[int] = []
    for segment in islice(segments, max_actions):
        # Normalising is not linear on hostile runs of combining marks, so text far too long for a name is not tried.
        index = table.get(_fold(segment)) if len(segment) <= longest else None
        if index is None:
            return tuple(actions), "unknown_action", dropped
        actions.append(index)
    return tuple(actions), "too_many" if dropped else "ok", dropped


_remembered_list = lru_cache(maxsize=4096)(_read_list)


AnswerReader = Callable[[str], tuple[tuple[int, ...], str, int]]


def read_turn(
    text: object, read_answer: AnswerReader, *, reasoning: str = "required", finish_reason: str = "stop"
) -> tuple[tuple[int, ...], str, bool, int, str]:
    """The body of :func:`parse_turn` for any way of reading an answer (tool calls, commands, action names).

    Returns:
        Action indices, status, ``format_ok``, ``n_dropped`` and the thought.

    Raises:
        ValueError: ``finish_reason`` is not ``stop`` or ``length``.
    """
    if finish_reason not in ("stop", "length"):
        raise ValueError(f"finish_reason must be 'stop' or 'length', got {finish_reason!r}")
    answer, status, exact, has_thought, several, thought = find_blocks(text if isinstance(text, str) else "")
    actions: tuple[int, ...] = ()
    dropped = 0
    if answer is not None:
        actions, status, dropped = read_answer(answer)
    if not actions and finish_reason == "length":
        status = "length"
    if status == "ok":
        if several:
            status = "multiple_answers"
        elif reasoning == "required" and not has_thought:
            status = "no_think"
    return actions, status, status == "ok" and exact, dropped, thought


def parse_turn(
    text: object,
    action_names: Sequence[str],
    *,
    max_actions: int,
    reasoning: str = "required",
    finish_reason: str = "stop",
) -> ParsedTurn:
    """Read one turn of a model.

    Args:
        text: The model's text, with the opening tag that generation was primed with, if it was. Anything that is not
            a ``str`` counts as empty.
        action_names: Names of the primitive actions. A segment matches a name after trimming, NFKC and case folding;
            never by substring, synonym or distance.
        max_actions: Most actions of a turn; further segments are dropped and counted.
        reasoning: ``required`` (a missing think block is a fault of form) or ``off`` (a think block is ignored).
        finish_reason: ``stop`` or ``length`` (generation was cut).

    Raises:
        ValueError: bad ``reasoning``, ``finish_reason``, ``max_actions`` or ambiguous ``action_names``; never because
            of ``text``.
    """
    check_reasoning(reasoning)
    if max_actions < 1:
        raise ValueError(f"max_actions must be at least 1, got {max_actions}")
    names = tuple(action_names)
    _name_table(names)
    actions, status, format_ok, dropped, thought = read_turn(
        text,
        lambda answer: parse_action_list(answer, names, max_actions=max_actions),
        reasoning=reasoning,
        finish_reason=finish_reason,
    )
    return ParsedTurn(tuple(names[a] for a in actions), status, format_ok, dropped, thought)


def check_reasoning(reasoning: str) -> None:
    """Raises ValueError unless ``reasoning`` is ``required`` or ``off``."""
    if reasoning not in ("required", "off"):
        raise ValueError(f"reasoning must be 'required' or 'off', got {reasoning!r}")


# --- what the model is told -----------------------------------------------------------------------------------------


def example_turn(action_names: Sequence[str], *, max_actions: int, reasoning: str) -> str:
    """A well-formed turn, as shown in the full prompt: it parses and executes."""
    names = list(action_names[: min(2, max_actions)])
    thought = "<think>What do I see, and what follows from it?</think>" if reasoning == "required" else ""
    return f"{thought}<answer>{f' {SEPARATOR} '.join(names)}</answer>"


def format_rules(action_names: Sequence[str], *, max_actions: int, reasoning: str) -> str:
    """How to write a turn, with an example."""
    think = "First reason inside <think> and </think>, then give " if reasoning == "required" else "Give "
    count = (
        "exactly one action"
        if max_actions == 1
        else f"one to {max_actions} actions, separated by {SEPARATOR} and carried out in that order"
    )
    return (
        f"{think}your move inside <answer> and </answer>: {count}. Write nothing outside these tags.\n"
        f"Example of the form: {example_turn(action_names, max_actions=max_actions, reasoning=reasoning)}"
    )


FAILURES = {
    "no_answer": "no answer block was found, so nothing was done.",
    "empty_answer": "the answer block was empty, so nothing was done.",
    "unclosed_answer": "the answer block was not closed, so nothing was done.",
    "unclosed_think": "the think block was not closed, so nothing was done.",
    "length": "the reply was cut off before an action could be read; be shorter.",
    "unknown_action": "an action name was not recognised; it and what followed it were not done.",
    "illegal_action": "an action was not allowed at that moment; it and what followed it were not done.",
    "too_many": "too many actions were given; the surplus was dropped.",
    "multiple_answers": "several answer blocks were given; only the last one counted.",
    "no_think": "the think block was missing; the actions counted all the same.",
}
"""What the next observation says after each status other than ``ok``."""

STRAY_TEXT = "there was text outside the tags, or a block too many; the actions counted all the same."
"""What it says after a turn of status ``ok`` that was badly formed all the same."""

REPEAT_FORMAT = ("no_answer", "length")
"""After these the observation repeats the rules of form; elsewhere that would teach the wrong correction."""
