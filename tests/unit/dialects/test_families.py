"""Dialects: search calls read back, ambiguous text is None, and no text raises."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.base.text import is_blank
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.dialects.families import DIALECTS, Dialect, TurnParts, dialect
from tests.text_work import assert_linear

# All that a config may name.
QWEN25, QWEN3, OLMO3 = map(dialect, get_args(ModelConfig.model_fields["dialect"].annotation))
TAGS = [f"<{slash}{name}>" for name in ("think", "task", "answer", "question") for slash in ("", "/")]
TAGS += [tag for family in DIALECTS for tag in family.search_tags]
NOTHING = TurnParts(thinking=None, query=None, task=None, answer=None)
each_dialect = pytest.mark.parametrize("family", DIALECTS, ids=lambda family: family.name)
families = st.sampled_from(DIALECTS)

# Every code point, halves of surrogate pairs and NUL included.
any_text = st.text(st.characters(codec=None, exclude_categories=()))

tagged_text = st.lists(
    st.sampled_from(TAGS) | any_text | st.sampled_from(["{", '"', "search(query=", "\n"])
).map("".join)


@pytest.mark.parametrize(
    ("family", "call"),
    [
        (QWEN25, "<search>who?</search>"),
        (QWEN3, '<tool_call>\n{"name": "search", "arguments": {"query": "who?"}}\n</tool_call>'),
        (OLMO3, '<function_calls>search(query="who?")</function_calls>'),
    ],
)
def test_a_search_call_has_the_form_of_table_11(family: Dialect, call: str) -> None:
    assert family.search_call("who?") == call
    assert family.parse(call) == replace(NOTHING, query="who?")
    assert family.parse(family.search_syntax).query == "your search query"
    assert family.search_tags[1] in family.stop


def test_results_come_back_as_the_familys_chat_template_has_them_and_a_prompt_says_so() -> None:
    for family, tag in ((QWEN25, "information"), (QWEN3, "tool_response")):
        assert (family.tool_role, family.tool_response("facts")) == ("user", f"<{tag}>\nfacts\n</{tag}>")
        assert family.result_syntax == f"between <{tag}> and </{tag}>"
    assert (OLMO3.tool_role, OLMO3.tool_response("facts")) == ("environment", "facts")
    assert OLMO3.result_syntax == "in the next message, from the environment"


@given(
    st.sampled_from([QWEN25, QWEN3]),
    st.lists(st.sampled_from(["<", "</", "tool_response>", "information>", "x"])),
)
def test_no_passage_can_end_the_block_of_results(family: Dialect, pieces: list[str]) -> None:
    assert family.result_tags is not None
    message = family.tool_response("".join(pieces))
    assert [message.count(tag) for tag in family.result_tags] == [1, 1]


@given(families, any_text)
def test_a_search_call_reads_back_or_is_refused(family: Dialect, query: str) -> None:
    try:
        call = family.search_call(query)
    except ValueError:
        return
    assert family.parse(call) == replace(NOTHING, query=query)


@given(families, st.text(min_size=1).map(lambda text: text.replace("<", "{").strip()))
def test_a_search_call_carries_any_query_without_tags(family: Dialect, query: str) -> None:
    if not is_blank(query):
        assert family.parse(family.search_call(query)).query == query


@given(
    st.sampled_from([QWEN3, OLMO3]),
    st.lists(st.sampled_from([*TAGS, '"', "\\", "{", "}", "\n", "a"]), min_size=1),
)
def test_json_families_carry_tags_quotes_and_line_breaks(family: Dialect, pieces: list[str]) -> None:
    query = "".join(["q", *pieces, "q"])
    assert family.parse(family.search_call(query)).query == query


@each_dialect
def test_a_query_that_no_call_can_carry_is_refused(family: Dialect) -> None:
    of_tags = ("a</search>b", "<search>", "<think>x", "x</think>", "<answer>x</answer>", "</task>")
    for query in (
        *("", " ", " padded", "padded\n", "half a pair \ud800", "x" * 20_000),
        *(of_tags if family is QWEN25 else ()),
    ):
        with pytest.raises(ValueError, match="cannot write a call of search"):
            family.search_call(query)


@given(families, tagged_text)
def test_any_text_gives_parts_that_are_clean(family: Dialect, text: str) -> None:
    parts = family.parse(text)
    for part in vars(parts).values():
        assert part is None or part.encode().decode() == part
    for part in (parts.task, parts.answer):
        assert part is None or (part == part.strip() and not any(tag in part for tag in family.search_tags))


@given(families, tagged_text.filter(lambda text: "</think>" not in text))
def test_nothing_inside_thinking_counts(family: Dialect, thinking: str) -> None:
    thought = f"<think>{thinking}</think>"
    assert replace(family.parse(thought), thinking=None) == NOTHING
    assert family.parse(f"{thought}<answer>x</answer>").answer == "x"
    assert family.parse(f"<think>first</think>{thought}<answer>x</answer>").answer == "x"


@each_dialect
@pytest.mark.parametrize(
    ("text", "thinking"),
    [
        ("  \n<think>\na\n</think>\n", "a"),
        ("<think>a</think><think>b</think>", "a"),
        ("<think>a <think> b</think> c", "a <think> b"),
        ("Sure. <think>a</think>", None),
        ("<think>a", None),
    ],
)
def test_thinking_is_the_closed_block_that_opens_the_turn(
    family: Dialect, text: str, thinking: str | None
) -> None:
    assert family.parse(text).thinking == thinking


def test_a_turn_may_begin_inside_the_thinking_that_its_template_opened() -> None:
    for family in (QWEN3, OLMO3):
        parts = family.parse("I could <answer>guess</answer>.\n</think>\n\n<answer>known</answer>")
        assert parts == replace(NOTHING, thinking="I could <answer>guess</answer>.", answer="known")
    # No template of Qwen2.5 opens one.
    assert QWEN25.parse("so</think><answer>known</answer>") == replace(NOTHING, answer="known")


@each_dialect
def test_unclosed_thinking_hides_the_rest_of_the_turn(family: Dialect) -> None:
    call = family.search_call("q")
    assert family.parse(f"<think>a {call}<answer>x</answer>") == NOTHING
    assert family.parse(f"{call}<think>b <answer>x</answer>") == replace(NOTHING, query="q")


@each_dialect
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>x</answer>", "x"),
        ("so: <answer>\n x y \n</answer> done", "x y"),
        ("<answer>x</answer><answer>x</answer>", None),
        ("<answer>x", None),
        ("<answer> \n\t </answer>", None),
        ("<answer><answer>x</answer></answer>", None),
        ("<answer><task>x</task></answer>", None),
        ("<answer>x<think>y</answer></think>", None),
        ("<ans<think></think>wer>x</answer>", None),
        ("＜answer＞x＜/answer＞", None),
    ],
)
def test_an_answer_is_the_only_closed_answer_block(family: Dialect, text: str, answer: str | None) -> None:
    assert family.parse(text).answer == answer


@each_dialect
@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("<task>t</task>", "t"),
        ("<task>\n<question>t</question>\n</task>", "t"),
        ("<task>About x. <question>t</question></task>", "t"),
        ("<task>t</task><task>u</task>", None),
        ("<task><question></question></task>", None),
        ("<task><question>t</question><question>u</question></task>", None),
        ("<task>t<answer>x</task></answer>", None),
    ],
)
def test_a_task_is_the_only_closed_task_block(family: Dialect, text: str, task: str | None) -> None:
    assert family.parse(text).task == task


@each_dialect
def test_the_first_valid_search_call_counts_also_inside_an_answer(family: Dialect) -> None:
    opener, closer = family.search_tags
    calls = f"{opener}{closer}{opener} {closer}{family.search_call('one')}{family.search_call('two')}"
    assert family.parse(calls).query == "one"
    started = f"<answer>I do not know yet {family.search_call('q')}"
    assert family.parse(started) == replace(NOTHING, query="q")
    assert family.parse(f"{started} but now</answer>") == replace(NOTHING, query="q")


@each_dialect
def test_a_search_call_that_is_unclosed_or_nested_does_not_count(family: Dialect) -> None:
    (opener, closer), call = family.search_tags, family.search_call("q")
    assert family.parse(call.removesuffix(closer)).query is None
    assert family.parse(call.removeprefix(opener)).query is None
    assert family.parse(f"{opener}{call}{closer}").query is None
    assert family.parse(f"{opener}<answer>{call}").query is None


NO_SEARCHES = {
    QWEN3: (
        "{",
        '{"name": "search"}',
        '{"name": "lookup", "arguments": {"query": "q"}}',
        '{"name": "search", "arguments": "q"}',
        '{"name": "search", "arguments": {"query": "  "}}',
        '{"name": "search", "arguments": {"query": 1}}',
        '{"name": "search", "arguments": {"query": "q", "k": 3}}',
        '{"name": "search", "arguments": {"query": "q", "query": "q"}}',
        '{"name": "search", "arguments": {"query": "q"}, "id": 1}',
        '{"name": "search", "arguments": {"query": "q"}} {}',
        '{"name": "search", "arguments": ' + "[" * 5000,
    ),
    OLMO3: (
        "search(query=)",
        'search(query="")',
        "search(query=1)",
        'search(query="q", query="q")',
        'search(query="q", k=3)',
        'search("q")',
        'lookup(query="q")',
        'search(query="q"',
    ),
}


@pytest.mark.parametrize(
    ("family", "call"), [(family, call) for family, calls in NO_SEARCHES.items() for call in calls]
)
def test_a_call_that_is_not_exactly_a_search_is_none(family: Dialect, call: str) -> None:
    opener, closer = family.search_tags
    assert family.parse(f"{opener}\n{call}\n{closer}") == NOTHING


def test_an_olmo_block_may_hold_several_calls_on_lines_of_their_own() -> None:
    block = '<function_calls>\nlookup(id=1)\nsearch(query="one")\nsearch(query="two")\n</function_calls>'
    assert OLMO3.parse(block).query == "one"


HOSTILE_UNITS = [
    "<", " ", "\0", "\udc80", "{", "[", '"', "\\u", "</thin", "1", *TAGS,
    "<think></think>", "<answer></answer>", "<task><answer></task></answer>", "<question></question>",
    "<search></search>", "<tool_call>{</tool_call>", "<tool_call><search></tool_call></search>",
    "<function_calls>search(query=</function_calls>", "search(query=\n",
    "<tool_call>[" + "1," * 8000 + "1]</tool_call>",
]  # fmt: skip


@each_dialect
@pytest.mark.parametrize(
    "wrapper",
    [
        "{}",
        "<think>{}</think>",
        "<answer>{}</answer>",
        "<task><question>{}</question></task>",
        "<search>{}</search><tool_call>{}</tool_call><function_calls>search(query={})</function_calls>",
    ],
)
def test_work_grows_no_faster_than_the_text(family: Dialect, wrapper: str) -> None:
    for unit in HOSTILE_UNITS:
        assert_linear(family.parse, unit, wrapper=wrapper)
