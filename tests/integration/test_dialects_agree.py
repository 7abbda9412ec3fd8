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

QWEN25, QWEN3 = dialect("qwen2.5"), dialect("qwen3")
THINKING = "<think>\nIt is unknown.\n</think>\n\n"
QUERIES = [
    "who built it?",
    'the "Great" dam',
    "braces {x} and \\ slash",
    "two\nlines",
    "naïve 東京 😀",
    "a & b's",
]


def render(template: str, *messages: dict[str, Any], **options: Any) -> str:
    rendered = render_jinja_template(
        conversations=[list(messages)], chat_template=shipped_template(template), **options
    )
    # Annotated upstream as a string; it is a pair of the rendered chats and their generation spans.
    return str(rendered[0][0])


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def assistant_call(query: str, content: str = "") -> dict[str, Any]:
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": query}}}
    return {**said("assistant", content), "tool_calls": [call]}


def last_assistant_turn(rendered: str) -> str:
    return rendered.rpartition("<|im_start|>assistant\n")[2].partition("<|im_end|>")[0]


@pytest.mark.parametrize("template", ["qwen3.jinja", "qwen3_training.jinja", "qwen3_instruct_2507.jinja"])
def test_qwen3_templates_write_calls_results_and_thinking_as_we_do(template: str) -> None:
    for query in QUERIES:
        turn = last_assistant_turn(render(template, said("user", "go"), assistant_call(query)))
        assert turn.endswith(QWEN3.search_call(query))
        assert QWEN3.parse(turn).query == query
    asked = (said("user", "go"), assistant_call("who?", content=THINKING))
    if "instruct" not in template:
        parts = QWEN3.parse(last_assistant_turn(render(template, *asked)))
        assert (parts.thinking, parts.query) == ("It is unknown.", "who?")
    theirs = render(template, *asked, said("tool", "Doc 1\nfacts"))
    assert render(template, *asked, said(QWEN3.tool_role, QWEN3.tool_response("Doc 1\nfacts"))) == theirs


def test_qwen3_drops_thinking_before_the_last_question_of_the_user() -> None:
    turns = (said("user", "one"), said("assistant", f"{THINKING}x"), said("user", "two"))
    assert QWEN3.drops_earlier_thinking
    assert "It is unknown." not in render("qwen3.jinja", *turns)


def test_a_template_that_opens_thinking_leaves_a_turn_that_we_can_read() -> None:
    prompt = render("qwen3_5_think.jinja", said("user", "go"), add_generation_prompt=True)
    assert prompt.endswith("<think>\n")
    parts = QWEN3.parse(f"It is unknown.\n</think>\n\n{QWEN3.search_call('who?')}")
    assert (parts.thinking, parts.query) == ("It is unknown.", "who?")


def test_the_response_parser_of_trl_reads_our_qwen3_turn() -> None:
    utils = pytest.importorskip("trl.chat_template_utils")
    from transformers.utils.chat_parsing import parse_response

    for query in (*QUERIES, "</tool_call> <|im_end|>"):
        turn = f"{THINKING}{QWEN3.search_call(query)}"
        message = parse_response(turn, utils.qwen3_template, prefix="<|im_start|>assistant\n")
        assert message["reasoning_content"] == "It is unknown."
        calls = [call["function"] for call in message["tool_calls"]]
        assert calls == [{"name": "search", "arguments": {"query": query}}]


@pytest.mark.parametrize("template", ["qwen2_5.jinja", "qwen2_5_training.jinja"])
def test_qwen25_templates_keep_our_turns_as_they_are(template: str) -> None:
    turn = f"<think>It is unknown.</think>\n{QWEN25.search_call('who?')}"
    results = said(QWEN25.tool_role, QWEN25.tool_response("facts"))
    answer = said("assistant", "<answer>x</answer>")
    rendered = render(template, said("user", "go"), said("assistant", turn), results, answer)
    assert f"<|im_start|>assistant\n{turn}<|im_end|>\n" in rendered
    assert "<|im_start|>user\n<information>\nfacts\n</information><|im_end|>\n" in rendered
    assert not QWEN25.drops_earlier_thinking
    assert QWEN25.parse(last_assistant_turn(rendered)).answer == "x"
