"""Calls of tools in the three families: written, read back, and what is read in text that is no call."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.dialects.families import DIALECTS, Dialect, ToolForm, TurnParts, dialect

FORMS = (ToolForm("open"), ToolForm("weather", "city"))
FAMILIES = [family.with_tools(FORMS) for family in DIALECTS]
QWEN25, QWEN3, OLMO3 = FAMILIES
ARGUMENTS = {"document": "Orsk", "page": 2}

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
    assert family.tool_call("open", ARGUMENTS) == written and written.endswith(family.stop)
    assert QWEN25.tool_call("weather", {"city": "Orsk"}) == "<weather>Orsk</weather>", "one text stands bare"


@given(
    st.sampled_from(FAMILIES), st.dictionaries(st.from_regex("[a-z][a-z_0-9]{0,8}", fullmatch=True), values)
)
def test_any_arguments_read_back(family: Dialect, arguments: dict[str, Any]) -> None:
    written = family.tool_call("open", arguments)
    assert family.parse(written) == TurnParts(None, None, None, None, family.parse(written).call)
    assert family.parse(written).call[:2] == ("open", arguments)  # type: ignore[index]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_first_call_counts_whichever_tool_it_is_of_outside_of_thinking(family: Dialect) -> None:
    opened, searched = family.tool_call("open", ARGUMENTS), family.search_call("q")
    first = family.parse(opened + searched)
    assert first.query is None and first.call is not None and first.call.tool == "open"
    assert family.parse(searched + opened) == TurnParts(None, "q", None, None)
    assert family.parse(f"<think>{opened}</think><answer>x</answer>").call is None
    both = family.parse(f"<answer>{opened}</answer>")
    assert both.answer is None and both.call is not None
    # Without other tools what is no search is no call.
    for written in (opened, family.tool_call("weather", {"city": "x"})):
        plain = dialect(family.name).parse(written)
        assert plain.call is None and plain.query is None


@pytest.mark.parametrize(
    ("family", "text", "tool"),
    [
        (QWEN25, "<open>Orsk</open>", "open"),
        (QWEN3, "<tool_call>open Orsk</tool_call>", ""),
        (QWEN3, '<tool_call>{"name": "open", "arguments": {}, "id": 1}</tool_call>', "open"),
        (QWEN3, '<tool_call>{"name": 3, "arguments": {}}</tool_call>', ""),
        (OLMO3, "<function_calls>open Orsk</function_calls>", ""),
        (OLMO3, "<function_calls>open(document=Orsk)</function_calls>", "open"),
        (OLMO3, "<function_calls>open(page=1, page=2)</function_calls>", "open"),
        (OLMO3, "<function_calls>__import__('os').system(x=1)</function_calls>", ""),
    ],
)
def test_a_call_that_cannot_be_read_is_a_call_without_arguments(
    family: Dialect, text: str, tool: str
) -> None:
    call = family.parse(text).call
    assert call is not None and (call.tool, call.arguments) == (tool, None)
