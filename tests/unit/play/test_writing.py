"""What a person types is the turn that a policy of each family would have written."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scope_selfplay.base.values import Role
from scope_selfplay.dialects.families import ToolForm, dialect
from scope_selfplay.play.person import UnfinishedTurnError, turn_of

FAMILIES = ["qwen2.5", "qwen3", "olmo3"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize(
    ("role", "typed", "thinking", "read"),
    [
        (Role.SOLVER, "Who is it?\n/search  Orsk   mill", "Who is it?", {"query": "Orsk mill"}),
        (Role.SOLVER, "/answer The heron.\nIn two lines.", "", {"answer": "The heron.\nIn two lines."}),
        (Role.CHALLENGER, "Facts.\n/task Name the heron.", "Facts.", {"task": "Name the heron."}),
    ],
)
def test_a_command_becomes_a_turn_that_reads_back(
    name: str, opened: bool, role: Role, typed: str, thinking: str, read: dict[str, str]
) -> None:
    family = dialect(name)
    parts = family.parse(turn_of(typed, family, role, opened=opened))
    assert parts.thinking == (thinking if thinking or opened else None)
    assert {key: getattr(parts, key) for key in ("query", "answer", "task")} == {
        **dict.fromkeys(("query", "answer", "task")),
        **read,
    }


@pytest.mark.parametrize(
    ("typed", "reason"),
    [("I only think.", "no command"), ("/search", "needs a text"), ("</think> out\n/answer this", "tag")],
)
def test_what_is_no_turn_is_refused_with_a_reason(typed: str, reason: str) -> None:
    with pytest.raises(UnfinishedTurnError, match=reason):
        turn_of(typed, dialect("qwen2.5"), Role.SOLVER, opened=False)


@pytest.mark.parametrize("name", FAMILIES)
def test_another_tool_of_the_run_is_called_in_each_familys_syntax(name: str) -> None:
    family = dialect(name).with_tools([ToolForm("open")])
    parts = family.parse(turn_of('Read it.\n/call open {"page": 2}', family, Role.SOLVER, opened=False))
    assert parts.call is not None and parts.call[:2] == ("open", {"page": 2}) and parts.thinking == "Read it."
    with pytest.raises(UnfinishedTurnError, match="no command"):
        turn_of("/call open {}", dialect(name), Role.SOLVER, opened=False)
    with pytest.raises(UnfinishedTurnError):
        turn_of("/call open [1]", family, Role.SOLVER, opened=False)
    # A raw turn is left as it is.
    assert turn_of("/raw <search>a</search>", family, Role.SOLVER, opened=False) == "<search>a</search>"


@given(st.text(max_size=80), st.sampled_from(FAMILIES))
@example("0 \x1e0", "qwen3")
def test_any_text_is_read_as_it_was_meant_or_refused(text: str, name: str) -> None:
    family = dialect(name)
    try:
        turn = turn_of(f"/answer {text}", family, Role.SOLVER, opened=False)
    except UnfinishedTurnError:
        return
    assert family.parse(turn).answer == "\n".join(text.splitlines()).strip()
