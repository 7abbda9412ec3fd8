"""Calls of tools in the three families: written, read back, and what is read in text that is no call."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.dialects.families import DIALECTS, Dialect, dialect
from scope_selfplay.dialects.turns import ToolForm, TurnParts, is_tool_name

FORMS = (ToolForm("open"), ToolForm("weather", "city"))
FAMILIES = [family.with_tools(FORMS) for family in DIALECTS]
QWEN25, QWEN3, OLMO3 = FAMILIES
ARGUMENTS = {"document": "Orsk", "page": 2}

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("family", "written"),
    [
        (QWEN25, '<open>{"document": "Orsk", "page": 2}</open>'),
        (QWEN3, '<tool_call>\n{"name": "open", "arguments": {"document": "Orsk", "page": 2}}\n</tool_call>'),
        (OLMO3, '<function_calls>open(document="Orsk", page=2)</function_calls>'),
    ],
)
def test_each_family_writes_a_call_in_its_own_syntax(family: Dialect, written: str) -> None:
    assert family.tool_call("open", ARGUMENTS) == written
    assert family.parse(written).call[:2] == ("open", ARGUMENTS)  # type: ignore[index]
    assert written.endswith(family.stop)


def test_a_tool_that_takes_one_text_has_it_bare_between_its_tags() -> None:
    assert QWEN25.tool_call("weather", {"city": "Orsk"}) == "<weather>Orsk</weather>"


@given(
    st.sampled_from(FAMILIES), st.dictionaries(st.from_regex("[a-z][a-z_0-9]{0,8}", fullmatch=True), values)
)
def test_any_arguments_read_back(family: Dialect, arguments: dict[str, Any]) -> None:
    written = family.tool_call("open", arguments)
    assert family.parse(written) == TurnParts(None, None, None, None, family.parse(written).call)
    assert family.parse(written).call[:2] == ("open", arguments)  # type: ignore[index]


@each_family
def test_a_search_stays_a_query_beside_other_tools(family: Dialect) -> None:
    parts = family.parse(family.search_call("the dam"))
    assert (parts.query, parts.call) == ("the dam", None)


@each_family
def test_the_first_call_counts_whichever_tool_it_is_of(family: Dialect) -> None:
    opened, searched = family.tool_call("open", ARGUMENTS), family.search_call("q")
    first = family.parse(opened + searched)
    assert first.query is None and first.call is not None and first.call.tool == "open"
    assert family.parse(searched + opened) == TurnParts(None, "q", None, None)


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "olmo3"])
def test_without_other_tools_what_is_no_search_is_no_call(name: str) -> None:
    plain, family = dialect(name), dialect(name).with_tools(FORMS)
    for written in (family.tool_call("open", ARGUMENTS), family.tool_call("weather", {"city": "x"})):
        assert plain.parse(written).call is None and plain.parse(written).query is None


@pytest.mark.parametrize(
    ("family", "text", "tool"),
    [
        (QWEN25, "<open>Orsk</open>", "open"),
        (QWEN25, "<open>[]</open>", "open"),
        (QWEN3, "<tool_call>open Orsk</tool_call>", ""),
        (QWEN3, '<tool_call>{"name": "open"}</tool_call>', "open"),
        (QWEN3, '<tool_call>{"name": "open", "arguments": {}, "id": 1}</tool_call>', "open"),
        (QWEN3, '<tool_call>{"name": 3, "arguments": {}}</tool_call>', ""),
        (QWEN3, '<tool_call>{"name": "open", "arguments": {"a": 1, "a": 1}}</tool_call>', ""),
        (OLMO3, "<function_calls>open Orsk</function_calls>", ""),
        (OLMO3, "<function_calls>open(Orsk)</function_calls>", "open"),
        (OLMO3, "<function_calls>open(document=Orsk)</function_calls>", "open"),
        (OLMO3, "<function_calls>open(page=1 page=2)</function_calls>", "open"),
        (OLMO3, "<function_calls>open(page=1, page=2)</function_calls>", "open"),
        (OLMO3, "<function_calls>open(page=1,)</function_calls>", "open"),
        (OLMO3, "<function_calls>__import__('os').system(x=1)</function_calls>", ""),
    ],
)
def test_a_call_that_cannot_be_read_is_a_call_without_arguments(
    family: Dialect, text: str, tool: str
) -> None:
    call = family.parse(text).call
    assert call is not None and (call.tool, call.arguments) == (tool, None)


@each_family
def test_a_call_in_thinking_or_around_an_answer_is_none(family: Dialect) -> None:
    written = family.tool_call("open", ARGUMENTS)
    assert family.parse(f"<think>{written}</think><answer>x</answer>").call is None
    both = family.parse(f"<answer>{written}</answer>")
    assert both.answer is None and both.call is not None


@pytest.mark.parametrize("name", ["a", "open", "get_weather", "find-flights", "A1"])
def test_a_name_that_fits_every_syntax_is_a_tool_name(name: str) -> None:
    assert is_tool_name(name)


@pytest.mark.parametrize("name", ["", "1a", "_a", "a b", "a<b", "a(", "naïve", "x" * 65, "a.b", "a/b"])
def test_a_name_that_would_break_a_syntax_is_none(name: str) -> None:
    assert not is_tool_name(name)
