"""What remains of a text without its names, numbers and rare words."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.report.health_tasks import (
    MadeTask,
    common_pattern,
    patterns_of,
    repeated_sentence,
    word_count,
)

NAMES = [
    f"{first}{last}" for first in ("Cor", "Nor", "Fen", "Hal", "Ist") for last in ("gate", "vale", "wick")
]


def pattern_in(texts: list[str]) -> set[str]:
    return set(patterns_of(texts))


@pytest.mark.parametrize(
    ("template", "pattern"),
    [
        ("Provides the region of {name}, {other}.", "provides the region of …"),
        ("Provides the region of {name} Mill, {other}.", "provides the region of … mill …"),
        ("{name} was founded in {number} by {other}.", "… was founded in … by …"),
        ("Identifies the motto of {name} as {rare}.", "identifies the motto of … as …"),
        ("Nennt die Region von {name}, {other}.", "nennt die region von …"),
        ("提供{number}地区。", "提 供 … 地 区"),
        ("It says: {name} stood here before {number}.", "it says … stood here before …"),
    ],
)
def test_texts_of_one_template_have_one_pattern(template: str, pattern: str) -> None:
    texts = [
        template.format(
            name=name, other=NAMES[-row - 1], number=1200 + row, rare=f"{'abcdefghijklmno'[row]}ness"
        )
        for row, name in enumerate(NAMES)
    ]
    assert pattern_in(texts) == {pattern}


def test_small_words_alone_are_no_pattern() -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijk", k=7)) for _ in range(900)]
    texts = [
        f"States that the {words[3 * row]} of the {words[3 * row + 1]} was {words[3 * row + 2]}ed in {name} by "
        f"{words[-row - 1]} and {words[-row - 301]}."
        for row, name in enumerate(NAMES)
    ]
    assert pattern_in(texts) == {""}
    assert pattern_in([f"Mentions {name}." for name in NAMES * 2]) == {""}


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        ("It lies in Wend. It lies in Wend.", "it lies in wend"),
        ("It lies in Wend.  IT LIES, in Wend!", "it lies in wend"),
        ("It lies in Wend. It lies in Farrow.", ""),
        ("Yes. Yes. It is. It is.", ""),
        ("| --- | --- |\n| --- | --- |\n1.\n1.", ""),
        ("它位于北方。它位于北方。", "它 位 于 北 方"),
        ("At 3.5 km it ends. At 3.6 km it ends.", ""),
        ("", ""),
    ],
)
def test_a_sentence_is_said_twice_whatever_its_case_and_marks(text: str, repeated: str) -> None:
    assert repeated_sentence(text) == repeated
    # Words are counted without marks, too.
    assert word_count("The dog's 3 hind-legs, really!") == 5


@given(st.lists(st.text(), max_size=30))
def test_every_text_has_a_pattern_or_none(texts: list[str]) -> None:
    found = patterns_of(texts)
    assert len(found) == len(texts) and not any("… …" in pattern for pattern in found)


def test_tasks_that_ask_one_thing_of_different_names_have_one_pattern() -> None:
    def asked(facts: str, number: int) -> list[MadeTask]:
        names = (facts.split() * number)[:number]
        return [MadeTask(1, f"task-{row}", f"Report the {each} of P{row}.") for row, each in enumerate(names)]

    found = common_pattern([*asked("river", 50), *asked("emblem", 10)])
    assert found is not None and found.value == pytest.approx(50 / 60)
    assert found.about == "report the river of …" and len(found.behind) == 50
    spread = common_pattern(asked("river emblem year founder product", 60))
    assert spread is not None and spread.value == pytest.approx(0.2)
