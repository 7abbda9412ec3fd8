"""Rows of episodes with two tools, id by id, for the three families; and calls as a chat template writes them."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from scope_selfplay.base.values import Document
from scope_selfplay.config.base import OpenConfig
from scope_selfplay.dialects.families import Dialect, dialect
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.search.tools import Tool, ToolBudget, ToolResult, ToolSpec, open_tool
from scope_selfplay.training.rows import TrainingRow, TrainingRows, rows_from
from tests.families import tokenizer_of
from tests.integration.loop.test_token_rows import FOUND, OPENINGS, TURNS, Orsk, ids_of, played

PAGE = "Orsk\nThe dam was built in 1931. Its builder was Ana Reyes."
FLIGHT = "FL101 08:10-09:55, 120 EUR"
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("search", {"query": "the dam"}, FOUND),
    ("open", {"document": "Orsk", "page": 1}, PAGE),
    ("flights", {"origin": "Orsk", "most": 2}, FLIGHT),
]
WRITTEN = {
    "qwen2.5": (
        "<search>the dam</search>",
        '<open>{"document": "Orsk", "page": 1}</open>',
        '<flights>{"origin": "Orsk", "most": 2}</flights>',
    ),
    "qwen3": (
        '<tool_call>\n{"name": "search", "arguments": {"query": "the dam"}}\n</tool_call>',
        '<tool_call>\n{"name": "open", "arguments": {"document": "Orsk", "page": 1}}\n</tool_call>',
        '<tool_call>\n{"name": "flights", "arguments": {"origin": "Orsk", "most": 2}}\n</tool_call>',
    ),
    "olmo3": (
        '<function_calls>search(query="the dam")</function_calls>',
        '<function_calls>open(document="Orsk", page=1)</function_calls>',
        '<function_calls>flights(origin="Orsk", most=2)</function_calls>',
    ),
}
RESULT_ROLES = {"qwen2.5": "user", "qwen3": "user", "olmo3": "environment"}
RESULT_TAGS = {
    "qwen2.5": "<information>\n{}\n</information>",
    "qwen3": "<tool_response>\n{}\n</tool_response>",
    "olmo3": "{}",
}


class Library(Orsk):
    async def document(self, passage_id: str) -> Document | None:
        assert passage_id == "p", "the title that search showed stands for its id"
        title, text = PAGE.split("\n", 1)
        return Document(id=passage_id, title=title, text=text)


async def flights(arguments: Mapping[str, Any]) -> ToolResult:
    assert arguments == {"origin": "Orsk", "most": 2}
    return ToolResult(FLIGHT)


def own_tools() -> list[Tool]:
    schema = {"type": "object", "properties": {"origin": {"type": "string"}, "most": {"type": "integer"}}}
    spec = ToolSpec(name="flights", description="F.", schema=schema, budget=ToolBudget(3, 50, 5.0))
    return [open_tool(Library(), OpenConfig()), spec.called_by(flights)]


def thoughts(name: str) -> tuple[str, str]:
    """How the family opens a turn that calls, and one that answers."""
    return TURNS[name][0][0], TURNS[name][1][0]


def lines_of(name: str) -> list[str]:
    asking, answering = thoughts(name)
    return [*(asking + call for call in WRITTEN[name]), answering + "<answer>Ana Reyes</answer>"]


def rows_of(codec: ChatCodec, family: Dialect, *, ends: bool) -> TrainingRows:
    rollout = played(codec, family, lines_of(family.name), ends=ends, tools=own_tools())
    assert rollout.answer == "Ana Reyes"
    return rows_from(rollout, per_turn=family.drops_earlier_thinking)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "olmo3"])
def test_rows_hold_exactly_what_was_seen_and_sampled(name: str, ends: bool) -> None:
    codec, family = ChatCodec(tokenizer_of(name)), dialect(name)
    eos = "<|im_end|>" if ends else ""
    sampled = [ids_of(codec, line) + ids_of(codec, eos) for line in lines_of(name)]
    heard = [
        ids_of(
            codec,
            ("\n" if ends else "<|im_end|>\n") + f"<|im_start|>{RESULT_ROLES[name]}\n",
            RESULT_TAGS[name].format(result),
            "<|im_end|>\n<|im_start|>assistant\n",
        )
        for _, _, result in CALLS
    ]
    prompt = ids_of(
        codec,
        f"{OPENINGS[name]}<|im_start|>user\n",
        "Who built the dam?",
        "<|im_end|>\n<|im_start|>assistant\n",
    )
    # The log-probabilities that `Recording` numbers.
    numbers = itertools.count()
    spoken = [[-float(next(numbers)) for _ in line] for line in sampled]
    rows, split = rows_of(codec, family, ends=ends)
    assert not split
    if name == "qwen3":
        # Every turn is a row; earlier ones stand there without their thinking.
        kept = [ids_of(codec, call) + ids_of(codec, eos) for call in WRITTEN[name]]
        before = list(prompt)
        for number, own in enumerate(sampled):
            assert rows[number] == TrainingRow(before, own, [1] * len(own), spoken[number])
            if number < len(heard):
                before += kept[number] + heard[number]
        assert len(rows) == len(sampled)
        return
    completion, mask, logprobs = list(sampled[0]), [1] * len(sampled[0]), spoken[0]
    for result, own, said in zip(heard, sampled[1:], spoken[1:], strict=True):
        completion += result + own
        mask += [0] * len(result) + [1] * len(own)
        logprobs = logprobs + [0.0] * len(result) + said
    assert rows == [TrainingRow(prompt, completion, mask, logprobs)]


def test_native_calls_and_results_are_the_chat_templates_own() -> None:
    """Qwen3's template, given tool calls and tool messages, renders the history that the last row begins with."""
    codec = ChatCodec(tokenizer_of("qwen3"))
    conversation: list[dict[str, Any]] = [{"role": "user", "content": "Who built the dam?"}]
    for tool, arguments, result in CALLS:
        call = {"type": "function", "function": {"name": tool, "arguments": arguments}}
        conversation.append({"role": "assistant", "content": "", "tool_calls": [call]})
        conversation.append({"role": "tool", "content": result})
    native = codec.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    last = rows_of(codec, dialect("qwen3"), ends=True).rows[-1]
    assert codec.tokenizer.decode(last.prompt_ids) == native
    assert last.prompt_ids == ids_of(codec, native)
