"""The turn protocol: what a model's text is read as. Case ids (K, D, C) are those of the design cases."""

from __future__ import annotations

import re
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_envs import ParsedTurn, TextEnv, parse_turn, protocol
from ragen_envs.protocol import FAILURES, REPEAT_FORMAT, STATUSES, example_turn, find_blocks, format_rules
from ragen_envs.sokoban import Sokoban

NAMES = ("Up", "Down", "Left", "Right")
MAX = 5
T = "<think>x</think>"


def read(text: object, *, max_actions: int = MAX, **kwargs: Any) -> ParsedTurn:
    return parse_turn(text, NAMES, max_actions=max_actions, **kwargs)


# --- battery ---------------------------------------------------------------------------------------------------------

BATTERY: list[tuple[str, object, dict[str, Any], str, str, bool, int]] = [
    # id, text, keyword arguments, executes, status, format_ok, n_dropped
    ("D1", f"{T}<answer>Up</answer>", {}, "Up", "ok", True, 0),
    ("D2", f"{T}<answer>Up", {}, "", "unclosed_answer", False, 0),
    ("D3", f"{T}<answer>Up", {"finish_reason": "length"}, "", "length", False, 0),
    ("D4 required", "<answer>Up</answer>", {}, "Up", "no_think", False, 0),
    ("D4 off", "<answer>Up</answer>", {"reasoning": "off"}, "Up", "ok", True, 0),
    ("D5", "<THINK>x</THINK><ANSWER>up</ANSWER>", {}, "Up", "ok", True, 0),
    ("D6", f"{T}<answer>Up</answer> wait <answer>Down</answer>", {}, "Down", "multiple_answers", False, 0),
    ("D7", f"Sure! {T}<answer>Up</answer> Good luck", {}, "Up", "ok", False, 0),
    ("D8", f"{T} so: <answer>Up</answer>", {}, "Up", "ok", False, 0),
    ("D9", f"{T}<answer></answer>", {}, "", "empty_answer", False, 0),
    ("D9 spaces", f"{T}<answer> \n </answer>", {}, "", "empty_answer", False, 0),
    ("D9 separators", f"{T}<answer>|| ||</answer>", {}, "", "empty_answer", False, 0),
    ("D10", "", {}, "", "no_answer", False, 0),
    ("D11", f"{T}<answer>Up||Down</answer>", {}, "Up Down", "ok", True, 0),
    ("D12", f"{T}<answer>|| Up || || Down ||</answer>", {}, "Up Down", "ok", True, 0),
    ("D13", f"{T}<answer>Up | Down</answer>", {}, "", "unknown_action", False, 0),
    ("D14", f"{T}<answer>Up ||| Down</answer>", {}, "Up", "unknown_action", False, 0),
    ("D15", f"{T}<answer>Up, Down</answer>", {}, "", "unknown_action", False, 0),
    ("D16", f"{T}<answer>Up\nDown</answer>", {}, "", "unknown_action", False, 0),
    ("D17", f"{T}<answer>uP  </answer>", {}, "Up", "ok", True, 0),
    ("D18 point", f"{T}<answer>Up.</answer>", {}, "", "unknown_action", False, 0),
    ("D18 quotes", f'{T}<answer>"Up"</answer>', {}, "", "unknown_action", False, 0),
    *[
        (f"D19 {word}", f"{T}<answer>{word}</answer>", {}, "", "unknown_action", False, 0)
        for word in ("↑", "1", "0", "move up", "north")
    ],
    ("D20 longer", f"{T}<answer>Upward</answer>", {}, "", "unknown_action", False, 0),
    ("D20 two words", f"{T}<answer>Up Down</answer>", {}, "", "unknown_action", False, 0),
    (
        "D21",
        f"{T}<answer>{'||'.join(['Left'] * (MAX + 3))}</answer>",
        {},
        " ".join(["Left"] * MAX),
        "too_many",
        False,
        3,
    ),
    # The defaults of section 5 of the cases.
    ("open 1", f"{T}<answer>Up</answer><answer>Down", {}, "", "unclosed_answer", False, 0),
    ("open 2 off", f"{T}<answer>Up</answer>", {"reasoning": "off"}, "Up", "ok", True, 0),
    ("open 2 twice", f"{T}{T}<answer>Up</answer>", {}, "Up", "ok", False, 0),
    ("open 3", f"{T}<answer>Up||Jump||Down</answer>", {}, "Up", "unknown_action", False, 0),
    ("open 4 whole", f"{T}<answer>Up</answer>", {"finish_reason": "length"}, "Up", "ok", True, 0),
    ("open 4 none", "<think>and then", {"finish_reason": "length"}, "", "length", False, 0),
    ("open 4 unknown", f"{T}<answer>Jump</answer>", {"finish_reason": "length"}, "", "length", False, 0),
    ("open 4 part", f"{T}<answer>Up||Jump</answer>", {"finish_reason": "length"}, "Up", "unknown_action", False, 0),
    ("open 5 think first", f"{T}<answer>Up<think>", {}, "", "unclosed_think", False, 0),
    ("open 5 answer first", "<answer>Up</answer><answer>", {}, "", "unclosed_answer", False, 0),
    ("open 5 unknown first", f"<answer>Jump{'||Up' * MAX}</answer>", {}, "", "unknown_action", False, 1),
    (
        "open 5 many first",
        f"<answer>Up</answer><answer>{'Up||' * (MAX + 1)}</answer>",
        {},
        " ".join(["Up"] * MAX),
        "too_many",
        False,
        1,
    ),
    ("open 5 several first", "<answer>Up</answer><answer>Down</answer>", {}, "Down", "multiple_answers", False, 0),
    # Broken tags (C2) and stops inside the thinking (C3).
    ("C2 unclosed", "<think>a <answer>Up</answer>", {}, "", "unclosed_think", False, 0),
    ("C2 wrong tag", "<think>a</answer><answer>Up</answer>", {}, "", "unclosed_think", False, 0),
    ("C2 newlines", "<think>a</think>\n\n<answer>Up</answer>\n", {}, "Up", "ok", True, 0),
    ("C3", "<think>plan A\n\nplan B</think><answer>Up</answer>", {}, "Up", "ok", True, 0),
    (
        "C3 uncut",
        "<think>plan A\n\nplan B</think><answer>Up</answer> trailing <answer>Down</answer>",
        {},
        "Down",
        "multiple_answers",
        False,
        0,
    ),
    # What is inside the thinking is not looked at (K2).
    ("K2 tags", "<think>not <answer>Up</answer> but</think><answer>Down</answer>", {}, "Down", "ok", True, 0),
    ("K2 after", f"<answer>Up</answer>{T}", {}, "", "no_answer", False, 0),
    ("K2 stray close", "</think><answer>Up</answer>", {}, "Up", "no_think", False, 0),
    ("K2 nested", "<think>a<think>b</think><answer>Up</answer>", {}, "Up", "ok", False, 0),
    ("stray close", f"{T}<answer>Up</answer></answer>", {}, "Up", "ok", False, 0),
    ("stray open", f"{T}<answer>Up<answer>Down</answer>", {}, "Down", "ok", False, 0),
    ("stray open, empty", f"{T}<answer><answer>Up</answer>", {}, "Up", "ok", False, 0),
    ("no tag: spaces", f"{T}< answer >Up</answer>", {}, "", "no_answer", False, 0),
    ("no tag: attribute", f"{T}<answer x=1>Up</answer>", {}, "", "no_answer", False, 0),
    ("no tag: not ASCII", f"{T}<anſwer>Up</anſwer>", {}, "", "no_answer", False, 0),
    ("K5 full width", f"{T}<answer>\u3000ＵＰ || Ｄown</answer>", {}, "Up Down", "ok", True, 0),
    ("K5 invisible", f"{T}<answer>Up || \ufeffDown</answer>", {}, "Up", "unknown_action", False, 0),
]


@pytest.mark.parametrize(("text", "kwargs", "executes", "status", "format_ok", "dropped"), [r[1:] for r in BATTERY],
                         ids=[row[0] for row in BATTERY])  # fmt: skip
def test_the_battery_is_read_as_agreed(
    text: object, kwargs: dict[str, Any], executes: str, status: str, format_ok: bool, dropped: int
) -> None:
    """D1-D21, the defaults of section 5, C2, C3; K4 in D9-D16 (only ``||`` separates), K6 in D21 (more than MAX)."""
    turn = read(text, **kwargs)
    assert (turn.actions, turn.status) == (tuple(executes.split()), status)
    assert (turn.format_ok, turn.n_dropped) == (format_ok, dropped)
    assert turn.status in STATUSES


def test_actions_after_the_end_of_the_episode_are_reported_as_not_executed() -> None:
    """D22: five known actions, the third ends the episode."""
    env = TextEnv(Sokoban())
    env.reset(seed=0, options={"level": "#######\n#@ $ .#\n#######"})
    _, _, terminated, truncated, info = env.step(f"{T}<answer>Right||Right||Right||Up||Down</answer>")
    assert (terminated, truncated, info["success"]) == (True, False, True)
    assert info["action_parsed"] == "Right || Right || Right || Up || Down"
    assert info["action_executed"] == "Right || Right || Right"
    assert (info["action_status"], info["format_ok"], info["n_dropped"]) == ("ok", True, 0)


def test_long_thinking_is_read_in_under_fifty_milliseconds() -> None:
    """D23: the best of five, so that a busy machine does not fail it."""
    text = "<think>" + "I wonder <b>. " * 7200 + "</think><answer>Up</answer>"
    assert len(text) > 100_000
    best = min(_seconds(lambda: read(text)) for _ in range(5))
    assert read(text) == ParsedTurn(("Up",), "ok", True, 0, ("I wonder <b>. " * 7200).strip())
    assert best < 0.05


# --- contract --------------------------------------------------------------------------------------------------------


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


HOSTILE = {
    "plain": "a",
    "answer opens": "<answer>",
    "answer closes": "</answer>",
    "answers": "<answer>Up</answer>",
    "answers and text": "x<answer>Up</answer>",
    "think opens": "<think>",
    "think closes": "</think>",
    "thinks": "<think>a</think>",
    "half tags": "<answer",
    "angles": "<",
    "separators in an answer": "||",
    "actions in an answer": "Up||",
    "blanks": " ",
    "combining marks": "\u0301\u0316",
    "decreasing classes": "\u0345\u0301\u0316\u0327",
    "expanding": "ﷺ",
    "null": "\0",
    "surrogates": "\ud800",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("frame", ["{}", "<think>{}</think><answer>Up</answer>", T + "<answer>Up{}</answer>"])
def test_reading_takes_linear_time(piece: str, frame: str) -> None:
    """K9: four times the text takes at most ten times as long (twice: three times), whatever the text."""

    def cost(n: int) -> float:
        text = frame.replace("{}", piece * (n // len(piece)))
        return min(_seconds(lambda: read(text)) for _ in range(4))

    for _ in range(3):
        short, long = cost(25_000), cost(100_000)
        if long < max(10 * short, 0.005):
            return
    pytest.fail(f"25,000 characters take {short:.4f} s, 100,000 take {long:.4f} s")


fragments = st.lists(
    st.sampled_from(
        [
            "<think>", "</think>", "<answer>", "</answer>", "<THINK>", "</Think>", "<Answer>", "</ANSWER>",
            "||", "|", "Up", "down", " LEFT ", "Right", "Jump", "ＵＰ", " ", "\n", "\u00a0", "\u3000", "x", "<", "/",
            ">", "<answer", "answer>", "<anſwer>", "\u0301", "\u200b", "ß", "\ud800",
        ]
    ),
    max_size=14,
).map("".join)  # fmt: skip
shaped = st.tuples(fragments, fragments, fragments).map(lambda p: f"<think>{p[0]}</think>{p[1]}<answer>{p[2]}</answer>")
lists = st.lists(st.sampled_from(["Up", "down", "LEFT", "right ", "", "Jump"]), max_size=7).map("||".join)
well_shaped = lists.map(lambda answer: f"{T}\n<answer>{answer}</answer>")
pieces = st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "||", " ", "x", T, "<answer>Up</answer>"])
one_fault = st.tuples(well_shaped, pieces, st.sampled_from(["<", ">", "U", "\n"])).map(
    lambda p: p[0].replace(p[2], p[1] + p[2])
)
one_place = st.tuples(well_shaped, pieces, st.sampled_from([0, 7, 8, 16, 17, 25, 99])).map(
    lambda p: p[0][: p[2]] + p[1] + p[0][p[2] :]
)
texts = st.one_of(fragments, shaped, well_shaped, one_fault, one_place, st.text())
modes = st.sampled_from(["required", "off"])
finishes = st.sampled_from(["stop", "length"])

TAGS = re.IGNORECASE | re.ASCII | re.DOTALL
THINK = re.compile(r"<think>(?:(?!</?think>).)*</think>", TAGS)
ANSWER = re.compile(r"<answer>((?:(?!</?(?:answer|think)>).)*)</answer>", TAGS)


def twin(text: str, max_actions: int, reasoning: str, finish_reason: str) -> tuple[tuple[str, ...], str, bool, int]:
    """The contract once more, each clause as its own slow search over the whole text."""

    def fold(word: str) -> str:
        return unicodedata.normalize("NFKC", word).casefold().strip()

    tail = re.split(r"</think>", text, flags=TAGS)[-1]
    answers = ANSWER.findall(tail)
    marks = re.findall(r"<answer>|</answer>", tail, TAGS)
    reasons: set[str] = set()
    words: list[str] = []
    if re.search(r"<think>", tail, TAGS):
        reasons.add("unclosed_think")
    elif marks and marks[-1].lower() == "<answer>":
        reasons.add("unclosed_answer")
    elif not answers:
        reasons.add("no_answer")
    else:
        words = [w.strip() for w in answers[-1].split("||") if w.strip()]
        if not words:
            reasons.add("empty_answer")
    dropped = max(0, len(words) - max_actions)
    actions: list[str] = []
    for word in words[:max_actions]:
        hits = [name for name in NAMES if fold(name) == fold(word)]
        if not hits:
            reasons.add("unknown_action")
            break
        actions += hits
    if finish_reason == "length" and not actions:
        reasons.add("length")
    if dropped:
        reasons.add("too_many")
    if len(answers) > 1:
        reasons.add("multiple_answers")
    head = text[: len(text) - len(tail)]
    if reasoning == "required" and not re.search(THINK.pattern + r"\Z", head, TAGS):
        reasons.add("no_think")
    order = ("length", "unclosed_think", "unclosed_answer", "no_answer", "empty_answer", "unknown_action", "too_many",
             "multiple_answers", "no_think")  # fmt: skip
    status = next((reason for reason in order if reason in reasons), "ok")

    rest = text.strip()
    block = THINK.match(rest)
    if block:
        rest = rest[block.end() :].strip()
    formed = ANSWER.fullmatch(rest) is not None and (block is not None or reasoning == "off")
    return tuple(actions), status, formed and status == "ok", dropped


@settings(max_examples=800, deadline=None)
@given(texts, st.integers(1, 4), modes, finishes)
def test_a_slow_twin_reads_the_same(text: str, max_actions: int, reasoning: str, finish_reason: str) -> None:
    """K1-K8: actions, status, format_ok and n_dropped against a second reading of the contract."""
    turn = read(text, max_actions=max_actions, reasoning=reasoning, finish_reason=finish_reason)
    found = (turn.actions, turn.status, turn.format_ok, turn.n_dropped)
    assert found == twin(text, max_actions, reasoning, finish_reason)


blanks = st.text(st.sampled_from([chr(c) for c in range(0x3001) if chr(c).isspace()] + ["\u200b", "\0"]), max_size=3)
inner = st.one_of(st.text(max_size=6), st.sampled_from(["", "a < b", "</Think>", "Up||down", "<answer", "\ud800"]))
plain_turns = st.tuples(blanks, inner, blanks, inner, blanks, st.booleans()).map(
    lambda p: f"{p[0]}{f'<think>{p[1]}</think>' if p[5] else ''}{p[2]}<answer>{p[3]}</answer>{p[4]}"
)


@settings(max_examples=1500, deadline=None)
@given(st.one_of(plain_turns, texts))
def test_the_short_way_for_plain_turns_changes_nothing(text: str) -> None:
    """Blocks found by one expression are those found tag by tag; also with any blank, look-alikes and surrogates."""
    assert find_blocks(text) == protocol._scan_blocks(text)


@pytest.mark.parametrize(
    "text", ["<think>{}</think><answer>Up</answer>", "{}<answer>Up</answer>", "<answer>{}</answer>"]
)
def test_the_short_way_reads_megabytes_alike(text: str) -> None:
    for piece in ("a", " ", "\n\u3000", "a < b"):
        long = text.format(piece * (2**21 // len(piece)))
        assert find_blocks(long) == protocol._scan_blocks(long)


@settings(max_examples=500, deadline=None)
@given(lists | st.text(max_size=200), st.integers(1, 4))
def test_a_remembered_answer_is_read_as_ever(answer: str, max_actions: int) -> None:
    for names in (NAMES, list(NAMES), ("Up", "ＬＥＦＴ", "Jump")):
        read = protocol._read_list(answer, tuple(names), max_actions)
        assert [protocol.parse_action_list(answer, names, max_actions=max_actions) for _ in range(2)] == [read] * 2


@settings(max_examples=300, deadline=None)
@given(texts, texts, modes)
def test_only_text_after_the_thinking_counts(before: str, after: str, reasoning: str) -> None:
    """K2: what precedes the last closing think tag changes neither actions nor n_dropped."""
    plain, longer = (
        read("</think>" + after, reasoning=reasoning),
        read(before + "</think>" + after, reasoning=reasoning),
    )
    assert (plain.actions, plain.n_dropped) == (longer.actions, longer.n_dropped)


@settings(max_examples=300, deadline=None)
@given(texts, modes, finishes)
def test_a_turn_without_action_is_badly_formed_and_the_status_says_why(text: str, reasoning: str, finish: str) -> None:
    """K7, K8."""
    turn = read(text, reasoning=reasoning, finish_reason=finish)
    assert set(turn.actions) <= set(NAMES)
    assert len(turn.actions) <= MAX
    if not turn.actions:
        assert turn.status != "ok"
    if turn.format_ok:
        assert turn.status == "ok"
        assert turn.actions


class Odd:
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise RuntimeError


@pytest.mark.parametrize(
    "thing", [None, 3, 2.5, b"<answer>Up</answer>", ["<answer>Up</answer>"], {"a": 1}, object(), Odd(), float("nan")],
    ids=lambda thing: type(thing).__name__,
)  # fmt: skip
def test_anything_that_is_no_text_counts_as_empty(thing: object) -> None:
    """K1."""
    assert read(thing) == read("") == ParsedTurn((), "no_answer", False, 0, "")


def test_the_thought_is_kept_in_whole_or_in_part() -> None:
    assert read("<think> a\n\nb </think><answer>Up</answer>").thought == "a\n\nb"
    assert read("<think>a</think><think>b</think><answer>Up</answer>").thought == "b"
    assert read("<think> never closed").thought == "never closed"
    assert read("<answer>Up</answer>").thought == ""
    assert read("<think>a</think><answer>Up").thought == "a"


def test_blocks_report_structure_before_the_answer_is_read() -> None:
    blocks = find_blocks(f"{T}<answer>anything {{at}} all</answer>")
    assert (blocks.answer, blocks.status, blocks.exact) == ("anything {at} all", "ok", True)
    assert (blocks.has_thought, blocks.several, blocks.thought) == (True, False, "x")


def test_names_match_by_their_folded_form_only() -> None:
    """K5: NFKC and case folding, for names in any script; never a substring or a distance."""
    names = ("Straße", "ÉCOLE", "Ａ1", "İz")
    for written, name in [
        ("STRASSE", "Straße"),
        ("straße", "Straße"),
        ("e\u0301cole", "ÉCOLE"),
        ("a1", "Ａ1"),
        ("İz", "İz"),
    ]:
        assert parse_turn(f"<answer>{written}</answer>", names, max_actions=1).actions == (name,), written
    for written in ("strase", "ecole", "A", "Straß", "Straße1"):
        assert parse_turn(f"<answer>{written}</answer>", names, max_actions=1).actions == (), written


@pytest.mark.parametrize(
    ("names", "kwargs", "match"),
    [
        (NAMES, {"max_actions": 0}, "max_actions"),
        (NAMES, {"max_actions": -1}, "max_actions"),
        (NAMES, {"max_actions": 1, "reasoning": "maybe"}, "reasoning"),
        (NAMES, {"max_actions": 1, "finish_reason": "banana"}, "finish_reason"),
        (NAMES, {"max_actions": 1, "finish_reason": None}, "finish_reason"),
        (("Up", "UP"), {"max_actions": 1}, "differ"),
        (("Up", "ＵＰ"), {"max_actions": 1}, "differ"),
        (("Up", " "), {"max_actions": 1}, "visible"),
        (("Up", "a||b"), {"max_actions": 1}, "visible"),
    ],
)
def test_wrong_arguments_are_refused_whatever_the_text(names: Any, kwargs: dict[str, Any], match: str) -> None:
    for text in ("", f"{T}<answer>Up</answer>"):
        with pytest.raises(ValueError, match=match):
            parse_turn(text, names, **kwargs)


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reasoning", ["required", "off"])
@pytest.mark.parametrize("max_actions", [1, 2, 7])
def test_the_example_of_the_rules_is_well_formed(reasoning: str, max_actions: int) -> None:
    """C1, D24: the rules show one example, and it parses."""
    example = example_turn(NAMES, max_actions=max_actions, reasoning=reasoning)
    assert format_rules(NAMES, max_actions=max_actions, reasoning=reasoning).endswith(example)
    turn = read(example, max_actions=max_actions, reasoning=reasoning)
    assert (turn.format_ok, len(turn.actions)) == (True, min(2, max_actions))


def test_every_failure_has_words_of_its_own() -> None:
    """C1: one message per status; the rules of form are repeated for two of them."""
    assert set(FAILURES) == set(STATUSES) - {"ok"}
    assert len(set(FAILURES.values())) == len(FAILURES)
    assert set(REPEAT_FORMAT) == {"no_answer", "length"}
