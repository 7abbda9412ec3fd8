"""Exact match, F1 and cover as the official scripts compute them, and boxed answers without the library."""

from pathlib import Path

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.rewards.verify import (
    BoxedVerifier,
    boxed_reward,
    cover_exact_match,
    exact_match,
    f1,
    hotpot_f1,
    last_box,
    squad_normal,
    trivia_normal,
)
from tests.reference_files import read_reference
from tests.text_work import characters_visited

CASES = read_reference("text_match_cases.json")


def test_text_is_normalised_as_in_squad_and_as_in_triviaqa() -> None:
    for name, normal in (("squad_normal", squad_normal), ("trivia_normal", trivia_normal)):
        assert {text: normal(text) for text in CASES[name]} == CASES[name]


@pytest.mark.parametrize(("answer", "right", "exact", "overlap"), CASES["exact_and_f1"])
def test_exact_match_and_f1_are_those_of_squad(
    answer: str, right: list[str], exact: float, overlap: float
) -> None:
    assert exact_match(answer, right) == exact
    assert f1(answer, right) == pytest.approx(overlap)


@pytest.mark.parametrize(("answer", "right", "overlap"), CASES["hotpot_f1"])
def test_yes_and_no_are_right_or_wrong_in_hotpotqa(answer: str, right: str, overlap: float) -> None:
    assert hotpot_f1(answer, [right, "none"]) == pytest.approx(overlap)


def test_cover_asks_whether_a_right_answer_occurs() -> None:
    """By characters, as `subem_check` does it: `comparis-on` holds `paris`."""
    for answer in ("It was in Paris, the capital.", "Comparison"):
        assert cover_exact_match(answer, ["Paris"]) == 1.0
    assert cover_exact_match("He was born on March 14.", ["14 March", "march 14"]) == 1.0
    assert cover_exact_match("Paris", ["Paris, France"]) == 0.0


@pytest.mark.parametrize(("text", "box"), CASES["last_box"])
def test_the_last_closed_box_counts(text: str, box: str | None) -> None:
    assert last_box(text) == box


@pytest.mark.parametrize("piece", [r"\boxed{", r"\boxed", "{", "}", r"\boxed{1", r"\boxed {}"])
def test_however_long_an_answer_is_only_its_end_is_read(piece: str) -> None:
    short, long = (characters_visited(last_box, piece * (size // len(piece))) for size in (20_000, 1_000_000))
    assert long == short


TOO_MUCH = ("9" * 201, "(" * 11 + "1" + ")" * 11, "{" * 11 + "1" + "}" * 11)


def test_no_box_and_what_is_no_final_answer_is_wrong_without_being_read() -> None:
    for answer in ("", "12", r"\boxed{ }", *(f"\\boxed{{{box}}}" for box in TOO_MUCH)):
        assert boxed_reward(answer, "12") == 0.0
    for box in ("9" * 200, "(" * 10 + "1" + ")" * 10):
        assert boxed_reward(f"\\boxed{{{box}}}", box) == 1.0


def test_a_reference_that_is_none_decides_nothing() -> None:
    for reference in ("", " ", r"\boxed{}", r"\boxed{1", *TOO_MUCH):
        assert boxed_reward(f"\\boxed{{{reference}}}", reference) is None


def test_a_library_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    verifier = BoxedVerifier()
    for _ in range(2):
        with pytest.raises(ConfigError, match="needs Math-Verify"):
            verifier.reward(r"\boxed{1}", "2")
    assert verifier.process is None


def test_a_formula_is_the_same_with_low_numbers_and_without() -> None:
    assert boxed_reward(r"\boxed{C6H12}", r"\mathrm{C}_6\mathrm{H}_{12}") == 1.0
    assert boxed_reward(r"\boxed{\text{Ca(OH)}_2}", "Ca(OH)2") == 1.0
    assert boxed_reward(r"\boxed{\ce{H2O}}", "H_2O") == 1.0
