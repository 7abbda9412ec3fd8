"""Dialects against the chat templates that TRL ships, rendered and parsed by transformers' own code.

TRL and transformers ship no OLMo-3 template.
"""

from typing import Any

import pytest

from scope_selfplay.dialects.families import dialect
from tests.families import shipped_template

pytest.importorskip("transformers")
pytest.importorskip("trl")

from transformers.utils.chat_template_utils import render_jinja_template

pytestmark = pytest.mark.integration

QWEN25, QWEN3 = dialect("qwen2.5"), dialect("qwen3")

QUERIES = [
    "who built it?",
    'the "Great" dam',
    "braces {x} and \\ slash",
    "two\nlines",
    "naïve 東京 😀",
    "a & b's",
]


def render(template: str, *messages: dict[str, Any], **options: Any) -> str:
    # Annotated upstream as a string; it is a pair of the rendered chats and their generation spans.
    return str(render_jinja_template(conversations=[list(messages)], chat_template=template, **options)[0][0])


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def assistant_call(query: str, content: str = "") -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": query}}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def last_assistant_turn(rendered: str) -> str:
    return rendered.rpartition("<|im_start|>assistant\n")[2].partition("<|im_end|>")[0]


@pytest.mark.parametrize("template", ["qwen3.jinja", "qwen3_training.jinja", "qwen3_instruct_2507.jinja"])
@pytest.mark.parametrize("query", QUERIES)
def test_qwen3_templates_write_the_call_that_we_write(template: str, query: str) -> None:
    turn = last_assistant_turn(render(shipped_template(template), user("go"), assistant_call(query)))
    assert turn.endswith(QWEN3.search_call(query))
    assert QWEN3.parse(turn).query == query


@pytest.mark.parametrize("template", ["qwen3.jinja", "qwen3_training.jinja"])
def test_qwen3_templates_write_the_thinking_that_we_read(template: str) -> None:
    call = assistant_call("who?", content="<think>\nIt is unknown.\n</think>\n\n")
    turn = last_assistant_turn(render(shipped_template(template), user("go"), call))
    parts = QWEN3.parse(turn)
    assert (parts.thinking, parts.query) == ("It is unknown.", "who?")


@pytest.mark.parametrize("template", ["qwen3.jinja", "qwen3_training.jinja", "qwen3_instruct_2507.jinja"])
def test_qwen3_templates_write_our_results_like_their_own(template: str) -> None:
    asked = (user("go"), assistant_call("who?", content="<think>\nhm\n</think>\n\n"))
    theirs = render(shipped_template(template), *asked, {"role": "tool", "content": "Doc 1\nfacts"})
    ours = render(
        shipped_template(template),
        *asked,
        {"role": QWEN3.tool_role, "content": QWEN3.tool_response("Doc 1\nfacts")},
    )
    assert ours == theirs


def test_qwen3_drops_thinking_before_the_last_question_of_the_user() -> None:
    turns = (user("one"), assistant("<think>\nfirst thought\n</think>\n\nx"), user("two"))
    assert QWEN3.drops_earlier_thinking
    assert "first thought" not in render(shipped_template("qwen3.jinja"), *turns)


def test_a_template_that_opens_thinking_leaves_a_turn_that_we_can_read() -> None:
    prompt = render(shipped_template("qwen3_5_think.jinja"), user("go"), add_generation_prompt=True)
    assert prompt.endswith("<think>\n")
    parts = QWEN3.parse(f"It is unknown.\n</think>\n\n{QWEN3.search_call('who?')}")
    assert (parts.thinking, parts.query) == ("It is unknown.", "who?")


@pytest.mark.parametrize("query", [*QUERIES, "</tool_call> <|im_end|>"])
def test_the_response_parser_of_trl_reads_our_qwen3_turn(query: str) -> None:
    utils = pytest.importorskip("trl.chat_template_utils")
    from transformers.utils.chat_parsing import parse_response

    turn = f"<think>\nIt is unknown.\n</think>\n\n{QWEN3.search_call(query)}"
    message = parse_response(turn, utils.qwen3_template, prefix="<|im_start|>assistant\n")
    assert message["reasoning_content"] == "It is unknown."
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "search", "arguments": {"query": query}}
    ]


@pytest.mark.parametrize("template", ["qwen2_5.jinja", "qwen2_5_training.jinja"])
def test_qwen25_templates_keep_our_turns_as_they_are(template: str) -> None:
    turn = f"<think>It is unknown.</think>\n{QWEN25.search_call('who?')}"
    results = {"role": QWEN25.tool_role, "content": QWEN25.tool_response("facts")}
    rendered = render(
        shipped_template(template), user("go"), assistant(turn), results, assistant("<answer>x</answer>")
    )
    assert f"<|im_start|>assistant\n{turn}<|im_end|>\n" in rendered
    assert "<|im_start|>user\n<information>\nfacts\n</information><|im_end|>\n" in rendered
    assert not QWEN25.drops_earlier_thinking
    assert QWEN25.parse(last_assistant_turn(rendered)).answer == "x"
