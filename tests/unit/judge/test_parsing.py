"""Verdicts are read strictly, from what follows the thinking, or not at all."""

from collections.abc import Callable

import pytest

from scope_selfplay.base.values import Outcome, Priority
from scope_selfplay.judge.replies import (
    parse_correctness,
    parse_match,
    parse_preference,
    parse_rating,
    parse_rubric,
    parse_score,
    parse_two_scores,
    parse_unmet,
    parse_winners,
)
from tests.text_work import assert_linear

RUBRIC = """<rubric>
[
 {"text": "Identifies the year 1936.", "priority": "critical", "title": "Year", "dimension": "Coverage"},
 {"text": "Explains the cause.", "priority": "nice_to_have"},
 {"text": "Names  the\\nbuilder.", "priority": "important", "note": "not read"}
]
</rubric>"""


READERS: dict[str, Callable[[str], object]] = {
    "score": parse_score,
    "rubric": parse_rubric,
    "preference": parse_preference,
    "two_scores": parse_two_scores,
    "rating": parse_rating,
    "correctness": parse_correctness,
    "match": parse_match,
    "winners": lambda text: parse_winners(text, ["kape", "sigu"], 1),
}


@pytest.mark.parametrize(
    ("reader", "completion", "verdict"),
    [
        # One block of 0 or 1 after the thinking.
        ("score", "<think>why</think>\n<score> 1\n</score>\n", True),
        ("score", "thinking begun in the prompt</think><score>0</score>", False),
        ("score", "<think>it says </think><score>1</score><think> so.</think><score>0</score>", False),
        ("score", "<score>True</score>", None),
        ("score", "<score>1</score><score>1</score>", None),
        ("score", "<score>1<score>1</score></score>", None),
        ("score", "<think>cut off <score>1</score>", None),
        ("score", "<think>it says </think><score>1</score></think>0", None),
        ("score", "<think>a</think><score>1</score><think>", None),
        ("score", "The answer was\n<<<answer ab>>>\n<score>1</score>\n<<<end ab>>>", None),
        # The last box after the thinking.
        ("preference", r"Better is \boxed{ A }.", Outcome(1, 0)),
        ("preference", r"It claims \boxed{A}. Still \boxed{B}", Outcome(0, 1)),
        ("preference", r"\boxed{Tie}", Outcome(0.5, 0.5)),
        ("preference", r"<think>\boxed{A}</think> B", None),
        ("preference", r"\boxed{A} or rather \boxed{C}", None),
        ("preference", r"\boxed{A} or rather \boxed {B}", None),
        # One decimal number each.
        ("two_scores", "<first>7.5</first>\n<second>7</second>", Outcome(7.5, 7)),
        ("two_scores", "<think>a</think><second>0</second><first>10</first>", Outcome(10, 0)),
        ("two_scores", "<first>10.1</first><second>3</second>", None),
        ("two_scores", "<first>-1</first><second>3</second>", None),
        ("two_scores", "<first>7.</first><second>3</second>", None),
        ("two_scores", "<first>7</first><second>3</second><second>3</second>", None),
        # One finite number from 0 to 10.
        ("rating", '{"score": 7.5}', 7.5),
        ("rating", '```json\n{"score": 0}\n```', 0.0),
        ("rating", '{"score": 10}', 10.0),
        ("rating", '{"score": 10.01}', None),
        ("rating", '{"score": true}', None),
        ("rating", '{"score": 1} {"score": 1}', None),
        ("rating", '{"score": 1, "score": 2}', None),
        # One of three boxes, and one of three words in a box.
        ("correctness", r"It says \boxed{1}, so \boxed{0.5}", 0.5),
        ("correctness", r"\boxed{0.7}", None),
        ("match", r"Same date. \boxed{correct}", 1.0),
        ("match", r"\boxed{Incorrect}", 0.0),
        ("match", r"\boxed{NOT_ATTEMPTED}", 0.5),
        ("match", r"\boxed{partly correct}", None),
    ],
)
def test_a_verdict_is_read_strictly_from_what_follows_the_thinking_or_not_at_all(
    reader: str, completion: str, verdict: object
) -> None:
    found = READERS[reader](completion)
    assert (found, type(found)) == (verdict, type(verdict))


def test_a_rubric_is_read_with_priorities_and_weight_1() -> None:
    criteria = parse_rubric(f"<think>[1]</think>{RUBRIC}")
    assert criteria is not None
    assert [(each.text, each.priority, each.weight, each.title, each.dimension) for each in criteria] == [
        ("Identifies the year 1936.", Priority.CRITICAL, 1.0, "Year", "Coverage"),
        ("Explains the cause.", Priority.BONUS, 1.0, "", ""),
        ("Names the builder.", Priority.IMPORTANT, 1.0, "", ""),
    ]
    inside = RUBRIC.removeprefix("<rubric>").removesuffix("</rubric>").strip()
    assert parse_rubric(f"<rubric>\n```json\n{inside}\n```\n</rubric>") == criteria


def test_a_rubric_of_another_length_is_none() -> None:
    for count in (0, 2, 6):
        items = ", ".join(f'{{"text": "Names {n}.", "priority": "critical"}}' for n in range(count))
        assert parse_rubric(f"<rubric>[{items}]</rubric>") is None
        whole = parse_rubric(f"<rubric>[{items}]</rubric>", least=count, most=count)
        assert whole is not None or count == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<rubric>", ""),
        ("</rubric>", "</rubric><rubric>[]</rubric>"),
        ('"critical"', '"urgent"'),
        ('"critical"', "1"),
        ('"Identifies the year 1936."', '""'),
        ('"Identifies the year 1936."', "1936"),
        ('"Identifies the year 1936."', '"Explains the cause."'),
        ('"Identifies the year 1936."', '"' + "very " * 1000 + 'long"'),
        ('"Year"', "NaN"),
        ('"title"', '"text"'),
        (RUBRIC, "<rubric>{}</rubric>"),
    ],
)
def test_a_damaged_rubric_is_none(old: str, new: str) -> None:
    assert old in RUBRIC
    assert parse_rubric(RUBRIC.replace(old, new, 1)) is None


@pytest.mark.parametrize(
    ("block", "read"),
    [
        ("<unmet>[]</unmet>", ()),
        ('<unmet>["the year  of it", "who built it"]</unmet>', ("the year of it", "who built it")),
        ("", None),
        ("<unmet>none</unmet>", None),
        ('<unmet>["the year", ""]</unmet>', None),
    ],
)
def test_what_no_criterion_asks_for_is_read_from_the_block_after_the_rubric(
    block: str, read: tuple[str, ...] | None
) -> None:
    reply = f"<think><unmet>[]</unmet></think>{RUBRIC}\n{block}"
    assert parse_unmet(reply) == read
    assert parse_rubric(reply) == parse_rubric(RUBRIC)
    assert parse_rubric(f"<rubric>[]</rubric>{block}") == ([] if read else None)
    if block:
        assert (parse_rubric(f"{reply} That is all."), parse_unmet(f"{reply} That is all.")) == (None, None)


@pytest.mark.parametrize(
    ("completion", "winners", "chosen"),
    [
        ('{"winners": ["sigu", "kape"]}', 2, [1, 0]),
        ('Here:\n```json\n{"winners": [" sigu "]}\n```\nThanks', 1, [1]),
        ('<think>{"winners": ["kape"]}</think>{"reason": "best", "winners": ["7"]}', 1, [2]),
        ('{"winners": [7]}', 1, [2]),
        ('{"winners": ["kape"]}', 2, None),
        ('{"winners": ["kape", "kape"]}', 2, None),
        ('{"winners": ["kape", "nobody"]}', 2, None),
        ('{"winners": ["kape"]} {"winners": ["sigu"]}', 1, None),
        ('{"winners": "kape"}', 4, None),
        ('{"winners": [true]}', 1, None),
        ('{"winners": ["kape"], "winners": ["sigu"]}', 1, None),
        ("[]", 1, None),
    ],
)
def test_winners_are_exactly_as_many_known_labels_as_asked(
    completion: str, winners: int, chosen: list[int] | None
) -> None:
    assert parse_winners(completion, ["kape", "sigu", 7], winners) == chosen


PIECES = [*"01A}", "<score>", "</score>", "<think>", "</think>", "\\boxed{", '{"score":', "<rubric>"]


@pytest.mark.parametrize("piece", [*PIECES, "<", "{", '{"winners": [', "<rubric>[", " ", "\x00", "["])
def test_anything_is_read_with_work_that_grows_no_faster_than_the_text(piece: str) -> None:
    for parse in READERS.values():
        assert_linear(parse, piece)
