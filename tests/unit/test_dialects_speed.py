"""Dialects: a mebibyte of anything is read in 50 ms, and time grows no faster than the text."""

import time

import pytest

from scope_selfplay.dialects import DIALECTS, Dialect

MEBIBYTE = 1 << 20
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
    "<search>{0}</search><tool_call>{0}</tool_call><function_calls>search(query={0})</function_calls>",
]


def hostile_text(unit: str, wrapper: str, size: int) -> str:
    size //= wrapper.count("{")
    return wrapper.format((unit * (size // len(unit) + 1))[:size])


def parse_seconds(family: Dialect, text: str) -> float:
    """Time of this process on the processor, so that a busy machine does not fail the test."""
    start = time.process_time()
    family.parse(text)
    return time.process_time() - start


@pytest.mark.integration
@pytest.mark.parametrize("family", DIALECTS, ids=lambda family: family.name)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_mebibyte_of_hostile_text_is_parsed_in_50_ms(family: Dialect, wrapper: str) -> None:
    for unit in HOSTILE_UNITS:
        text = hostile_text(unit, wrapper, MEBIBYTE)
        assert any(parse_seconds(family, text) < 0.05 for _ in range(5)), f"{unit[:40]!r} takes 50 ms or more"


@pytest.mark.parametrize("family", DIALECTS, ids=lambda family: family.name)
@pytest.mark.parametrize(
    "unit", ["<think></think>", "<answer>", "<search></search>", "<tool_call>{</tool_call>", "<"]
)
def test_time_grows_no_faster_than_the_text(family: Dialect, unit: str) -> None:
    small, large = (
        min(parse_seconds(family, hostile_text(unit, "{}", size)) for _ in range(5))
        for size in (MEBIBYTE // 4, 2 * MEBIBYTE)
    )
    # Eight times the text; a scanner that starts again at every tag would take sixty-four times as long.
    assert large < 24 * small + 0.002
