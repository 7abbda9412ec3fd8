"""Dialects: reading a turn takes work that grows no faster than the text."""

import pytest

from scope_selfplay.dialects.families import DIALECTS, Dialect
from tests.text_work import assert_linear

TAGS = [f"<{slash}{name}>" for name in ("think", "task", "answer", "question") for slash in ("", "/")]
TAGS += [tag for family in DIALECTS for tag in family.search_tags]
HOSTILE_UNITS = [
    "<", " ", "\0", "\udc80", "{", "[", '"', "\\u", "</thin", "1", *TAGS,
    "<think></think>", "<answer></answer>", "<task><answer></task></answer>", "<question></question>",
    "<search></search>", "<tool_call>{</tool_call>", "<tool_call><search></tool_call></search>",
    "<function_calls>search(query=</function_calls>", "search(query=\n",
    "<tool_call>[" + "1," * 8000 + "1]</tool_call>",
]  # fmt: skip
WRAPPERS = [
    "{}",
    "<think>{}</think>",
    "<answer>{}</answer>",
    "<task><question>{}</question></task>",
    "<search>{}</search><tool_call>{}</tool_call><function_calls>search(query={})</function_calls>",
]


@pytest.mark.parametrize("family", DIALECTS, ids=lambda family: family.name)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_work_grows_no_faster_than_the_text(family: Dialect, wrapper: str) -> None:
    for unit in HOSTILE_UNITS:
        assert_linear(family.parse, unit, wrapper=wrapper)
