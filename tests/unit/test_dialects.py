"""Dialects: search calls read back, ambiguous text is None, and no text raises."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_selfplay.base.text import is_blank
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.dialects.families import DIALECTS, Dialect, dialect
from scope_selfplay.dialects.turns import TurnParts
from tests.reference_files import reference_cases
from tests.text_work import assert_linear

QWEN25, QWEN3, OLMO3 = (dialect(name) for name in ("qwen2.5", "qwen3", "olmo3"))
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


@given(families, any_text)
def test_a_search_call_reads_back_or_is_refused(family: Dialect, query: str) -> None:
    try:
        call = family.search_call(query)
    except ValueError:
        return
    assert family.parse(call) == replace(NOTHING, query=query)


@given(
    families,
    st.text(min_size=1)
    .map(lambda text: text.replace("<", "{").strip())
    .filter(lambda query: not is_blank(query)),
)
def test_a_search_call_carries_any_query_without_tags(family: Dialect, query: str) -> None:
    assert family.parse(family.search_call(query)).query == query


@given(
    st.sampled_from([QWEN3, OLMO3]),
    st.lists(st.sampled_from([*TAGS, '"', "\\", "{", "}", "\n", "a"]), min_size=1),
)
def test_json_families_carry_tags_quotes_and_line_breaks(family: Dialect, pieces: list[str]) -> None:
    query = "".join(["q", *pieces, "q"])
    assert family.parse(family.search_call(query)).query == query


@each_dialect
@pytest.mark.parametrize("query", ["", " ", " padded", "padded\n", "half a pair \ud800", "x" * 20_000])
def test_a_query_that_no_call_can_carry_is_refused(family: Dialect, query: str) -> None:
    with pytest.raises(ValueError, match="cannot write a call of search"):
        family.search_call(query)


@pytest.mark.parametrize(
    "query", ["a</search>b", "<search>", "<think>x", "x</think>", "<answer>x</answer>", "</task>"]
)
def test_a_tag_that_cannot_be_escaped_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match=r"qwen2\.5 dialect cannot write"):
        QWEN25.search_call(query)


@given(families, any_text.filter(lambda text: "think>" not in text), st.text("abc", min_size=1))
def test_a_turn_that_thinks_and_then_searches_gives_both(family: Dialect, thinking: str, query: str) -> None:
    parts = family.parse(f"\n<think>{thinking}</think>\n\n{family.search_call(query)}")
    assert parts.query == query
    assert parts.thinking == thinking.encode("utf-8", "replace").decode().strip()


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
        ("<think>a</think>", "a"),
        ("  \n<think>\na\n</think>\n", "a"),
        ("<think></think>", ""),
        ("<think>a</think><think>b</think>", "a"),
        ("<think>a <think> b</think> c", "a <think> b"),
        ("Sure. <think>a</think>", None),
        ("<think>a", None),
        ("<THINK>a</THINK>", None),
        ("a", None),
        ("", None),
    ],
)
def test_thinking_is_the_closed_block_that_opens_the_turn(
    family: Dialect, text: str, thinking: str | None
) -> None:
    assert family.parse(text).thinking == thinking


@pytest.mark.parametrize("family", [QWEN3, OLMO3], ids=lambda family: family.name)
def test_a_turn_may_begin_inside_the_thinking_that_its_template_opened(family: Dialect) -> None:
    parts = family.parse("I could <answer>guess</answer>.\n</think>\n\n<answer>known</answer>")
    assert parts == replace(NOTHING, thinking="I could <answer>guess</answer>.", answer="known")


def test_a_closing_think_tag_alone_is_no_thinking_where_no_template_opens_one() -> None:
    parts = QWEN25.parse("so</think><answer>known</answer>")
    assert parts == replace(NOTHING, answer="known")


@each_dialect
def test_unclosed_thinking_hides_the_rest_of_the_turn(family: Dialect) -> None:
    call = family.search_call("q")
    assert family.parse(f"<think>a {call}<answer>x</answer>") == NOTHING
    assert family.parse(f"{call}<think>b <answer>x</answer>") == replace(NOTHING, query="q")


@each_dialect
def test_no_tag_forms_where_thinking_was_cut_out(family: Dialect) -> None:
    assert family.parse("<ans<think></think>wer>x</answer>").answer is None


@each_dialect
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>x</answer>", "x"),
        ("so: <answer>\n x y \n</answer> done", "x y"),
        ("<answer>x</answer><answer>x</answer>", None),
        ("first</answer> middle <answer>second", None),
        ("<answer>x", None),
        ("<answer> \n\t </answer>", None),
        ("<answer><answer>x</answer></answer>", None),
        ("<answer><task>x</task></answer>", None),
        ("<answer><task>x</answer></task>", None),
        ("<answer>x<think>y</answer></think>", None),
        ("<answer>x</ answer>", None),
        ("<Answer>x</Answer>", None),
        ("＜answer＞x＜/answer＞", None),
        ("<аnswer>x</аnswer>", None),
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
        ("<task></task>", None),
        ("<task><question></question></task>", None),
        ("<task><question>t</task>", None),
        ("<task><question>t</question><question>u</question></task>", None),
        ("<task>t<answer>x</task></answer>", None),
        ("<question>t</question>", None),
    ],
)
def test_a_task_is_the_only_closed_task_block(family: Dialect, text: str, task: str | None) -> None:
    assert family.parse(text).task == task


@each_dialect
def test_the_first_valid_search_call_counts(family: Dialect) -> None:
    opener, closer = family.search_tags
    calls = f"{opener}{closer}{opener} {closer}{family.search_call('one')}{family.search_call('two')}"
    assert family.parse(calls).query == "one"


@each_dialect
def test_a_search_call_that_is_unclosed_or_nested_does_not_count(family: Dialect) -> None:
    (opener, closer), call = family.search_tags, family.search_call("q")
    assert family.parse(call.removesuffix(closer)).query is None
    assert family.parse(call.removeprefix(opener)).query is None
    assert family.parse(f"{opener}{call}{closer}").query is None
    assert family.parse(f"{opener}<answer>{call}").query is None


@each_dialect
def test_a_search_inside_an_answer_is_a_search_and_no_answer(family: Dialect) -> None:
    started = f"<answer>I do not know yet {family.search_call('q')}"
    assert family.parse(started) == replace(NOTHING, query="q")
    assert family.parse(f"{started} but now</answer>") == replace(NOTHING, query="q")


@pytest.mark.parametrize(
    "call",
    [
        "{",
        "[]",
        '{"name": "search"}',
        '{"name": "lookup", "arguments": {"query": "q"}}',
        '{"name": "search", "arguments": "q"}',
        '{"name": "search", "arguments": {}}',
        '{"name": "search", "arguments": {"query": "  "}}',
        '{"name": "search", "arguments": {"query": 1}}',
        '{"name": "search", "arguments": {"query": NaN}}',
        '{"name": "search", "arguments": {"query": 1e999}}',
        '{"name": "search", "arguments": {"query": "q", "k": 3}}',
        '{"name": "search", "arguments": {"query": "q", "query": "q"}}',
        '{"name": "search", "name": "search", "arguments": {"query": "q"}}',
        '{"name": "search", "arguments": {"query": "q"}, "id": 1}',
        '{"name": "search", "arguments": {"query": "q"}} {}',
        '{"name": "search", "arguments": {"query": "a\nb"}}',
        '{"name": "search", "arguments": {"query": "\\ud800"}}',
        '{"name": "search", "arguments": ' + "[" * 5000,
        "9" * 5000,
    ],
)
def test_a_qwen3_call_that_is_not_exactly_a_search_is_none(call: str) -> None:
    assert QWEN3.parse(f"<tool_call>\n{call}\n</tool_call>") == NOTHING


@pytest.mark.parametrize(
    "call",
    [
        "search()",
        "search(query=)",
        'search(query="")',
        "search(query=1)",
        'search(query="q", query="q")',
        'search(query="q", k=3)',
        'search("q")',
        'lookup(query="q")',
        'search(query="q"',
        'search(query="a" "b")',
        'search(query="\\ud800")',
        'search(query="a\nb")',
        '{"name": "search", "arguments": {"query": "q"}}',
    ],
)
def test_an_olmo_call_that_is_not_exactly_a_search_is_none(call: str) -> None:
    assert OLMO3.parse(f"<function_calls>{call}</function_calls>") == NOTHING


def test_an_olmo_block_may_hold_several_calls_on_lines_of_their_own() -> None:
    block = '<function_calls>\nlookup(id=1)\nsearch(query="one")\nsearch(query="two")\n</function_calls>'
    assert OLMO3.parse(block).query == "one"


@each_dialect
def test_what_a_prompt_shows_is_a_call_that_reads_back(family: Dialect) -> None:
    assert family.parse(family.search_syntax).query == "your search query"


def test_a_prompt_says_where_each_family_finds_its_results() -> None:
    """Table 11 has the calls only; the results come back as each family's chat template has them."""
    places = {family.name: family.result_syntax for family in DIALECTS}
    assert places == {
        "qwen2.5": "between <information> and </information>",
        "qwen3": "between <tool_response> and </tool_response>",
        "olmo3": "in the next message, from the environment",
    }


@each_dialect
def test_sampling_stops_at_a_closed_search_call(family: Dialect) -> None:
    assert family.search_tags[1] in family.stop


@pytest.mark.parametrize(
    ("family", "role", "message"),
    [
        (QWEN25, "user", "<information>\nfacts\n</information>"),
        (QWEN3, "user", "<tool_response>\nfacts\n</tool_response>"),
        (OLMO3, "environment", "facts"),
    ],
)
def test_results_come_back_as_the_family_expects(family: Dialect, role: str, message: str) -> None:
    assert (family.tool_role, family.tool_response("facts")) == (role, message)


@given(
    st.sampled_from([QWEN25, QWEN3]),
    st.lists(st.sampled_from(["<", "</", "tool_response>", "information>", "x"])),
)
def test_no_passage_can_end_the_block_of_results(family: Dialect, pieces: list[str]) -> None:
    assert family.result_tags is not None
    message = family.tool_response("".join(pieces))
    assert [message.count(tag) for tag in family.result_tags] == [1, 1]


def hostile_answers() -> list[Any]:
    """The hostile answers; judge completions and answers made from another answer are not for a dialect."""
    cases = reference_cases("hostile_answers.json", "name")
    return [case for case in cases if is_an_answer(case.values[0])]


def is_an_answer(case: dict[str, Any]) -> bool:
    return case["kind"] == "answer" and "same_as" not in case.get("answer_builder", {})


@each_dialect
@pytest.mark.parametrize("case", hostile_answers())
def test_a_hostile_answer_is_read_as_it_stands_or_not_at_all(family: Dialect, case: dict[str, Any]) -> None:
    builder = case.get("answer_builder")
    hostile = builder["repeat"] * builder["times"] if builder else case["answer"]
    parts = family.parse(f"<think>t</think>\n<answer>{hostile}</answer>")
    has_protocol_tag = any(tag in hostile for tag in TAGS)
    expected = None if has_protocol_tag else hostile.encode("utf-8", "replace").decode().strip()
    assert parts == replace(NOTHING, thinking="t", answer=expected)
    assert family.parse(hostile).answer is None


def test_a_config_may_name_every_family_and_no_other() -> None:
    names = get_args(ModelConfig.model_fields["dialect"].annotation)
    assert set(names) == {family.name for family in DIALECTS}


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
