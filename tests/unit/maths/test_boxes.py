"""What can be said of a boxed answer without asking the library."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.rewards.verify import DEEPEST, LONGEST, boxed_reward, last_box
from tests.text_work import characters_visited


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"So \boxed{12}.", "12"),
        (r"\boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {x}", "x"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\boxed{}", ""),
        (r"\boxed 5", "5"),
        (r"So $\boxed 12$, as asked.", "12"),
        (r"It is \boxed 12.", "12"),
        (r"\boxed\pi", r"\pi"),
        (r"\boxed7", "7"),
        (r"\fbox{3}", "3"),
        (r"\boxed{1}, no: \fbox{2}", "2"),
        (r"\boxed{\fbox{3}}", "3"),
        (r"\boxed{4} as in \boxedtext{5}", "4"),
        (r"\boxed", None),
        (r"\boxed $x$", None),
        ("12", None),
        (r"\boxed{1", None),
        ("", None),
    ],
)
def test_the_last_closed_box_counts(text: str, box: str | None) -> None:
    assert last_box(text) == box


@given(st.text(alphabet="\\boxed{}1 ", max_size=60))
def test_a_box_is_balanced_and_stands_in_the_text(text: str) -> None:
    box = last_box(text)
    if box is not None:
        assert box.count("{") == box.count("}")
        assert box in text


@pytest.mark.parametrize("piece", [r"\boxed{", r"\boxed", "{", "}", r"\boxed{1", r"\boxed {}"])
def test_however_long_an_answer_is_only_its_end_is_read(piece: str) -> None:
    short, long = (characters_visited(last_box, piece * (size // len(piece))) for size in (20_000, 1_000_000))
    assert long == short


@pytest.mark.parametrize("answer", ["", "12", r"\boxed{}", r"\boxed{ }", "Thought process:"])
def test_no_box_is_wrong(answer: str) -> None:
    assert boxed_reward(answer, "12") == 0.0


@pytest.mark.parametrize(
    "box", ["9" * (LONGEST + 1), "(" * (DEEPEST + 1) + "1" + ")" * (DEEPEST + 1), "{" * 20 + "1" + "}" * 20]
)
def test_what_is_no_final_answer_is_wrong_without_being_read(box: str) -> None:
    assert boxed_reward(f"\\boxed{{{box}}}", "1") == 0.0


@pytest.mark.parametrize("reference", ["", " ", r"\boxed{}", r"\boxed{1", "9" * (LONGEST + 1)])
def test_a_reference_that_is_none_decides_nothing(reference: str) -> None:
    assert boxed_reward(r"\boxed{1}", reference) is None


@given(st.text(alphabet="019ax+ ", min_size=1, max_size=20))
def test_the_same_expression_is_right(text: str) -> None:
    if text.strip():
        assert boxed_reward(f"It is \\boxed{{{text}}}", f" {text} ") == 1.0
        assert boxed_reward(f"It is \\boxed{{{text}}}", f"\\boxed{{{text}}}") == 1.0


@pytest.mark.parametrize(
    ("box", "reference"),
    [
        ("C_6H_{12}", "C6H12"),
        ("C6H12", r"\mathrm{C}_6\mathrm{H}_{12}"),
        (r"\text{Ca(OH)}_2", "Ca(OH)2"),
        (r"\ce{H2O}", "H_2O"),
    ],
)
def test_a_formula_is_the_same_with_low_numbers_and_without(box: str, reference: str) -> None:
    assert boxed_reward(f"\\boxed{{{box}}}", reference) == 1.0
