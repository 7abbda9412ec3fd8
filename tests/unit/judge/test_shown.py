"""What a judge of traces is shown of the turns of a rollout."""

import pytest

from scope_selfplay.base.values import Passage, Role, Rollout, Turn
from scope_selfplay.dialects.families import DIALECTS, Dialect
from scope_selfplay.judge.fences import View, shown, without_thoughts

FOUND = (Passage(id="p", title="P", text="rain"),)


def rollout_of(*turns: Turn) -> Rollout:
    return Rollout(id="r", role=Role.SOLVER, checkpoint="S", subject_id="t", turns=turns, answer="8")


def turn_of(dialect: Dialect, text: str, *found: Passage) -> Turn:
    parts = dialect.parse(text)
    return Turn(text=text, thinking=parts.thinking, query=parts.query, passages=found)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_turn_that_searches_is_shown_with_its_reasoning_in_the_open(dialect: Dialect) -> None:
    call = dialect.search_call("why")
    searching = turn_of(dialect, f"<think>Hm.</think>Rain comes first. {call}", *FOUND)
    answering = turn_of(dialect, "<think>So.</think>Add five. <answer>8</answer>")
    assert shown(rollout_of(searching, answering), View.TRACE).parts == (
        ("thought", "Hm."),
        ("reasoning", "Rain comes first."),
        ("search", "why"),
        ("results", "P: rain"),
        ("thought", "So."),
        ("reasoning", "Add five."),
        ("answer", "8"),
    )


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_without_thoughts_the_response_alone_is_shown(dialect: Dialect) -> None:
    call = dialect.search_call("why")
    searching = turn_of(dialect, f"<think>Hm.</think>{call}", *FOUND)
    answering = turn_of(dialect, "<think>So.</think>Add five.<think>Sure?</think> <answer>8</answer>")
    response = without_thoughts(rollout_of(searching, answering))
    names = [name for name, _ in shown(response, View.TRACE).parts]
    assert names == ["search", "results", "reasoning", "answer"]
    assert "Sure?" not in shown(response, View.TRACE).text
    assert without_thoughts(response) == response
