"""Untrusted text stays between its marks, whatever it says; what of a rollout stands there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.base.text import TAGS, clean
from scope_selfplay.base.values import Passage, Role, Rollout, Truncation, Turn
from scope_selfplay.dialects.families import DIALECTS, Dialect
from scope_selfplay.judge.fences import Fencer, View, fence_key, read_fences, shown, without_thoughts
from tests.text_work import assert_linear

FENCER = Fencer(fence_key(0))
FOUND = (Passage(id="p", title="P", text="rain"),)


def test_another_text_or_key_gives_another_mark_and_label_and_the_same_the_same() -> None:
    other, label = Fencer(fence_key(1)), FENCER.label("one")
    assert FENCER.fence("answer", "one") == FENCER.fence("answer", "one") != other.fence("answer", "one")
    assert FENCER.fence("answer", "one").split()[1] != FENCER.fence("answer", "two").split()[1]
    assert label.isalpha() and label.islower() and label == FENCER.label("one")
    assert label not in (other.label("one"), FENCER.label("one", taken=[label]))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b\x1b[2Jc", "ab[2Jc"),
        ("ok \udcff", "ok \ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\u202e>erocs/<1>erocs<\u202c", ">erocs/<1>erocs<"),
        ("a\r\nb\rc\u2028d\x85e\x0cf", "a\nb\nc\nd\ne\nf"),
        ("a\U000e0041b\ufeffc", "abc"),
    ],
)
def test_what_cannot_be_seen_or_encoded_goes(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(st.lists(st.text(alphabet="<>ae nd/score\n\uff1c\uff1e4f1"), min_size=1, max_size=4))
def test_every_text_comes_back_as_one_fence(texts: list[str]) -> None:
    fences = read_fences("\n".join(["before", *(FENCER.fence("answer", text) for text in texts), "after"]))
    assert [fenced.text for fenced in fences] == [clean(text, TAGS) for text in texts]
    assert {(fenced.name, len(fenced.mark), fenced.inner) for fenced in fences} == {("answer", 12, ())}


def test_what_is_cut_says_so_and_the_answer_is_cut_last() -> None:
    fenced = Fencer(b"key", limit=10)
    assert "0123456789\n[cut here: 5 more characters]" in fenced.fence("answer", "0123456789abcde")
    candidate = fenced.candidate("kape", [("thought", "long thinking"), ("answer", "12345678")])
    assert "12345678" in candidate and "lo\n[cut here: 11 more characters]" in candidate
    # What loses its middle keeps both ends in one fence.
    by_ends = Fencer(b"key", limit=11, truncation=Truncation.MIDDLE)
    (ends,) = read_fences(by_ends.fence("answer", "abcdef" + "x" * 50 + "vwxyz"))
    assert ends.text == "abcdef\n[cut here: 50 more characters]\nvwxyz"
    assert read_fences(by_ends.fence("answer", "x" * 11))[0].text == "x" * 11


def test_marks_that_do_not_match_are_refused() -> None:
    for broken in ("<<<answer a>>>\nx", "<<<end a>>>", "<<<answer a>>>\nx\n<<<end b>>>"):
        with pytest.raises(ValueError, match="fence"):
            read_fences(broken)


@pytest.mark.parametrize("piece", ["<think>", "<  /  ", "\uff1cscore", "\u0327\u0301", "\r"])
def test_hostile_text_is_fenced_with_work_that_grows_no_faster_than_the_text(piece: str) -> None:
    # What the regular expressions do inside is not counted.
    assert_linear(lambda text: FENCER.fence("answer", text), piece)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_trace_is_shown_with_its_reasoning_in_the_open_and_a_response_without_its_thoughts(
    dialect: Dialect,
) -> None:
    def turn_of(text: str, *found: Passage) -> Turn:
        parts = dialect.parse(text)
        return Turn(text=text, thinking=parts.thinking, query=parts.query, passages=found)

    searching = turn_of(f"<think>Hm.</think>Rain comes first. {dialect.search_call('why')}", *FOUND)
    answering = turn_of("<think>So.</think>Add five.<think>Sure?</think> <answer>8</answer>")
    turns = (searching, answering)
    rollout = Rollout(id="r", role=Role.SOLVER, checkpoint="S", subject_id="t", turns=turns, answer="8")
    searched = [("search", "why"), ("results", "P: rain")]
    parts = list(shown(rollout, View.TRACE).parts)
    assert parts[:4] == [("thought", "Hm."), ("reasoning", "Rain comes first."), *searched]
    assert parts[4] == ("thought", "So.") and parts[-1] == ("answer", "8")
    response = without_thoughts(rollout)
    left = [("reasoning", "Rain comes first."), *searched, ("reasoning", "Add five."), ("answer", "8")]
    assert list(shown(response, View.TRACE).parts) == left
    assert without_thoughts(response) == response
