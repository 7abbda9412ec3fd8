"""Exact match, F1 and cover as the official scripts compute them: every value here is what those scripts return."""

import pytest

from scope_selfplay.rewards.verify import (
    cover_exact_match,
    exact_match,
    f1,
    hotpot_f1,
    squad_normal,
    trivia_normal,
)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Beatles!", "beatles"),
        ("  a  quick\tbrown\nfox ", "quick brown fox"),
        ("U.S.A.", "usa"),
        ("the-man", "theman"),
        ("Theatre of an artist", "theatre of artist"),
        ("24–10", "24–10"),
        ("’80s", "’80s"),
        ("AC/DC", "acdc"),
        ("the", ""),
        ("", ""),
        ("A.A. Milne", "aa milne"),
        ("café_bar", "cafébar"),
    ],
)
def test_text_is_normalised_as_in_squad(text: str, normal: str) -> None:
    assert squad_normal(text) == normal


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("AC/DC", "ac dc"),
        ("Wild_Bunch", "wild bunch"),
        ("’80s", "80s"),
        ("the-man", "man"),
        ("U.S.A.", "u s"),
        ("`a`", ""),
    ],
)
def test_text_is_normalised_as_in_triviaqa(text: str, normal: str) -> None:
    assert trivia_normal(text) == normal


@pytest.mark.parametrize(
    ("answer", "right", "exact", "overlap"),
    [
        ("Denver Broncos", ["Denver Broncos", "The Denver Broncos"], 1.0, 1.0),
        ("the Denver Broncos!", ["Denver Broncos"], 1.0, 1.0),
        ("Broncos", ["Denver Broncos"], 0.0, 2 / 3),
        ("the the the", ["a"], 1.0, 0.0),
        ("Paris, France", ["Paris"], 0.0, 2 / 3),
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


@pytest.mark.parametrize(
    ("answer", "right", "covered"),
    [
        ("It was in Paris, the capital.", ["Paris"], 1.0),
        ("Comparison", ["Paris"], 1.0),
        ("Paris", ["Paris, France"], 0.0),
        ("He was born on March 14.", ["14 March", "march 14"], 1.0),
    ],
)
def test_cover_asks_whether_a_right_answer_occurs(answer: str, right: list[str], covered: float) -> None:
    """By characters, as `subem_check` does it: `comparis-on` holds `paris`."""
    assert cover_exact_match(answer, right) == covered
