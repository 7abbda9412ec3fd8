"""Exact match, F1 and cover as the official scripts compute them, and boxed answers without the library."""

import pytest

from scope_selfplay.rewards.verify import (
    DEEPEST,
    LONGEST,
    boxed_reward,
    cover_exact_match,
    exact_match,
    f1,
    hotpot_f1,
    last_box,
    squad_normal,
    trivia_normal,
)
from tests.text_work import characters_visited

SQUAD = {
    "The Beatles!": "beatles",
    "  a  quick\tbrown\nfox ": "quick brown fox",
    "U.S.A.": "usa",
    "the-man": "theman",
    "Theatre of an artist": "theatre of artist",
    "24–10": "24–10",
    "’80s": "’80s",
    "AC/DC": "acdc",
    "the": "",
    "": "",
    "A.A. Milne": "aa milne",
    "café_bar": "cafébar",
}
TRIVIA = {
    "AC/DC": "ac dc",
    "Wild_Bunch": "wild bunch",
    "’80s": "80s",
    "the-man": "man",
    "U.S.A.": "u s",
    "`a`": "",
}


def test_text_is_normalised_as_in_squad_and_as_in_triviaqa() -> None:
    assert {text: squad_normal(text) for text in SQUAD} == SQUAD
    assert {text: trivia_normal(text) for text in TRIVIA} == TRIVIA


@pytest.mark.parametrize(
    ("answer", "right", "exact", "overlap"),
    [
        ("Denver Broncos", ["Denver Broncos", "The Denver Broncos"], 1.0, 1.0),
        ("the Denver Broncos!", ["Denver Broncos"], 1.0, 1.0),
        ("Broncos", ["Denver Broncos"], 0.0, 2 / 3),
        ("the the the", ["a"], 1.0, 0.0),
        ("new new york", ["new york york"], 0.0, 2 / 3),
        ("gold", ["gold anniversary", "golden anniversary"], 0.0, 2 / 3),
        ("no", ["yes"], 0.0, 0.0),
        ("", ["yes"], 0.0, 0.0),
        ("14 March 1879", ["March 14, 1879"], 0.0, 1.0),
    ],
)
def test_exact_match_and_f1_are_those_of_squad(
    answer: str, right: list[str], exact: float, overlap: float
) -> None:
    assert exact_match(answer, right) == exact
    assert f1(answer, right) == pytest.approx(overlap)


@pytest.mark.parametrize(
    ("answer", "right", "overlap"),
    [
        ("yes indeed", "yes", 0.0),
        ("yes", "yes indeed", 0.0),
        ("Yes.", "yes", 1.0),
        ("noanswer here", "here", 2 / 3),
        ("Animorphs series", "Animorphs", 2 / 3),
    ],
)
def test_yes_and_no_are_right_or_wrong_in_hotpotqa(answer: str, right: str, overlap: float) -> None:
    assert hotpot_f1(answer, [right]) == pytest.approx(overlap)


def test_cover_asks_whether_a_right_answer_occurs() -> None:
    """By characters, as `subem_check` does it: `comparis-on` holds `paris`."""
    for answer in ("It was in Paris, the capital.", "Comparison"):
        assert cover_exact_match(answer, ["Paris"]) == 1.0
    assert cover_exact_match("He was born on March 14.", ["14 March", "march 14"]) == 1.0
    assert cover_exact_match("Paris", ["Paris, France"]) == 0.0


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"So \boxed{12}.", "12"),
        (r"\boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {x}", "x"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\boxed{}", ""),
        (r"\boxed 5", "5"),
        (r"It is \boxed 12.", "12"),
        (r"\boxed\pi", r"\pi"),
        (r"\boxed{1}, no: \fbox{2}", "2"),
        (r"\boxed{\fbox{3}}", "3"),
        (r"\boxed{4} as in \boxedtext{5}", "4"),
        (r"\boxed", None),
        (r"\boxed{1", None),
    ],
)
def test_the_last_closed_box_counts(text: str, box: str | None) -> None:
    assert last_box(text) == box


@pytest.mark.parametrize("piece", [r"\boxed{", r"\boxed", "{", "}", r"\boxed{1", r"\boxed {}"])
def test_however_long_an_answer_is_only_its_end_is_read(piece: str) -> None:
    short, long = (characters_visited(last_box, piece * (size // len(piece))) for size in (20_000, 1_000_000))
    assert long == short


def test_no_box_and_what_is_no_final_answer_is_wrong_without_being_read() -> None:
    boxes = ("9" * (LONGEST + 1), "(" * (DEEPEST + 1) + "1" + ")" * (DEEPEST + 1), "{" * 20 + "1" + "}" * 20)
    for answer in ("", "12", r"\boxed{ }", *(f"\\boxed{{{box}}}" for box in boxes)):
        assert boxed_reward(answer, "12") == 0.0


def test_a_reference_that_is_none_decides_nothing() -> None:
    for reference in ("", " ", r"\boxed{}", r"\boxed{1", "9" * (LONGEST + 1)):
        assert boxed_reward(r"\boxed{1}", reference) is None


def test_a_formula_is_the_same_with_low_numbers_and_without() -> None:
    assert boxed_reward(r"\boxed{C6H12}", r"\mathrm{C}_6\mathrm{H}_{12}") == 1.0
    assert boxed_reward(r"\boxed{\text{Ca(OH)}_2}", "Ca(OH)2") == 1.0
    assert boxed_reward(r"\boxed{\ce{H2O}}", "H_2O") == 1.0
