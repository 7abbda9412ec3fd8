"""Rows of episodes with three tools, id by id, for all families; contents that never become special tokens; and what
`scope lint-tokens` finds in templates.
"""

import asyncio
import itertools
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scope_selfplay.base.errors import CheckpointError
from scope_selfplay.base.sampling import Generate, Message, Sample
from scope_selfplay.base.text import framed
from scope_selfplay.base.values import Document, Finish, Key, Passage, Rollout
from scope_selfplay.cli import cli
from scope_selfplay.config.base import OpenConfig
from scope_selfplay.dialects.families import Dialect, dialect
from scope_selfplay.inference.checkpoints import load_model
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.policy.episodes import Episode, PolicyFormat, RolloutLimits, run_episode, solver_episode
from scope_selfplay.search.searcher import show_passages
from scope_selfplay.search.tools import (
    SEARCH,
    OpenTools,
    Tool,
    ToolBudget,
    ToolResult,
    ToolSpec,
    open_tool,
    search_tool,
)
from scope_selfplay.training.lint import DifferenceKind, lint_tokens
from scope_selfplay.training.passes import TrainingRow, rows_from
from tests.families import tokenizer_of

PAGE = "Orsk\nThe dam was built in 1931. Its builder was Ana Reyes."
FLIGHT = "FL101 08:10-09:55, 120 EUR"
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("search", {"query": "the dam"}, "[1] Orsk: The dam was built in 1931."),
    ("open", {"document": "Orsk", "page": 1}, PAGE),
    ("flights", {"origin": "Orsk", "most": 2}, FLIGHT),
]


class Written(NamedTuple):
    """How a family opens a prompt, thinks before a call and before an answer, calls, and is told results."""

    opening: str
    asking: str
    answering: str
    calls: tuple[str, str, str]
    role: str
    result: str

    @property
    def lines(self) -> list[str]:
        return [*(self.asking + call for call in self.calls), f"{self.answering}<answer>Ana Reyes</answer>"]


WRITTEN = {
    "qwen2.5": Written(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n",
        "<think>Who built it?</think>\n",
        "<think>I know.</think>\n",
        (
            "<search>the dam</search>",
            '<open>{"document": "Orsk", "page": 1}</open>',
            '<flights>{"origin": "Orsk", "most": 2}</flights>',
        ),
        "user",
        "<information>\n{}\n</information>",
    ),
    "qwen3": Written(
        "",
        "<think>\nWho built it?\n</think>\n\n",
        "<think>\nI know.\n</think>\n\n",
        (
            '<tool_call>\n{"name": "search", "arguments": {"query": "the dam"}}\n</tool_call>',
            '<tool_call>\n{"name": "open", "arguments": {"document": "Orsk", "page": 1}}\n</tool_call>',
            '<tool_call>\n{"name": "flights", "arguments": {"origin": "Orsk", "most": 2}}\n</tool_call>',
        ),
        "user",
        "<tool_response>\n{}\n</tool_response>",
    ),
    "olmo3": Written(
        "",
        "<think>Who built it?</think>\n",
        "<think>I know.</think>\n",
        (
            '<function_calls>search(query="the dam")</function_calls>',
            '<function_calls>open(document="Orsk", page=1)</function_calls>',
            '<function_calls>flights(origin="Orsk", most=2)</function_calls>',
        ),
        "environment",
        "{}",
    ),
}


class Recording:
    """Says its lines, ends each with the end-of-turn token or not, and numbers its log-probabilities."""

    identity = "recording"

    def __init__(self, codec: ChatCodec, lines: Sequence[str], *, ends: bool) -> None:
        self._codec, self._lines, self._ends, self.spoken = codec, lines, ends, 0

    async def generate(self, request: Generate, key: Key) -> Sample:
        ids = self._codec.encode_tag(self._lines[int(key[-1])])
        ids += (self._codec.tokenizer.eos_token_id,) if self._ends else ()
        first = self.spoken
        self.spoken += len(ids)
        return Sample(ids, tuple(-float(number) for number in range(first, self.spoken)), Finish.STOP)


class Library:
    identity = "orsk"

    async def search(self, query: str, topk: int) -> list[Passage]:
        return [Passage(id="p", title="Orsk", text="The dam was built in 1931.")]

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


def begun(codec: ChatCodec, family: Dialect) -> Episode:
    return solver_episode(
        PolicyFormat(codec, family, "S_0", RolloutLimits(8192)),
        ("k",),
        task_id="t",
        prompt="Who built the dam?",
        max_search_turns=5,
        tools=(SEARCH, *own_tools()),
    )


def played(codec: ChatCodec, family: Dialect, lines: Sequence[str], *, ends: bool = True) -> Rollout:
    """An episode of these lines, with all tools."""
    model, every = Recording(codec, lines, ends=ends), OpenTools([search_tool(Library(), 1), *own_tools()])
    return asyncio.run(run_episode(begun(codec, family), model, every, key=("k",)))


def ids_of(codec: ChatCodec, *texts: str) -> list[int]:
    """Each text by itself, as prompts are put together: template, then contents, then template."""
    return [each for text in texts for each in codec.tokenizer(text, add_special_tokens=False)["input_ids"]]


def rows_of(codec: ChatCodec, family: Dialect, *, ends: bool) -> list[TrainingRow]:
    rollout = played(codec, family, WRITTEN[family.name].lines, ends=ends)
    assert rollout.answer == "Ana Reyes"
    return rows_from(rollout)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "qwen3 that keeps its thinking", "olmo3"])
def test_rows_hold_exactly_what_was_seen_and_sampled(name: str, ends: bool) -> None:
    name, _, keeps = name.partition(" ")
    codec, family = ChatCodec(tokenizer_of(name)), dialect(name, "keep" if keeps else "auto")
    written, eos = WRITTEN[name], "<|im_end|>" if ends else ""
    sampled = [ids_of(codec, line) + ids_of(codec, eos) for line in written.lines]
    told = ("\n" if ends else "<|im_end|>\n") + f"<|im_start|>{written.role}\n"
    opened = "<|im_end|>\n<|im_start|>assistant\n"
    heard = [ids_of(codec, told, written.result.format(result), opened) for _, _, result in CALLS]
    prompt = ids_of(codec, f"{written.opening}<|im_start|>user\n", "Who built the dam?", opened)
    # The log-probabilities that `Recording` numbers.
    numbers = itertools.count()
    spoken = [[-float(next(numbers)) for _ in line] for line in sampled]
    rows = rows_of(codec, family, ends=ends)
    if family.drops_earlier_thinking:
        # Every turn is a row; earlier ones stand there without their thinking.
        kept = [ids_of(codec, call) + ids_of(codec, eos) for call in written.calls]
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
    last = rows_of(codec, dialect("qwen3"), ends=True)[-1]
    assert codec.tokenizer.decode(last.prompt_ids) == native
    assert last.prompt_ids == ids_of(codec, native)


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "olmo3"])
def test_no_text_of_others_becomes_a_token_for_a_tag_or_is_changed(name: str) -> None:
    codec, family = ChatCodec(tokenizer_of(name)), dialect(name)
    added = codec.tokenizer.get_added_vocab()
    text = f"List<User> <s> [PREFIX]\n>>> print\n<<<<<<< HEAD\n{' '.join(added)} {''.join(added)}<<think>>"
    found = [Passage(id="p", title="vector<Score>", text=text)]
    put, recorded = show_passages(found, codec, 4_000)
    response = family.tool_response(put)
    said = f"Write {family.search_syntax}.\n{framed(text)}\n{response}"
    ids = codec.encode_prompt([Message("user", said)])
    own = codec.encode_prompt(
        [Message("user", f"Write {family.search_syntax}.\n{family.tool_response('x')}")]
    )
    tags = Counter(each for each in ids if each in added.values())
    assert tags == Counter(each for each in own if each in added.values())
    assert recorded == found and codec.tokenizer.decode(ids).count(text) == 2
    assert codec.counts([text, "x"]) == [codec.count(text), 1] and codec.count(put) <= 4_000
    for room in range(40, 120, 7):
        cut, _ = show_passages(found, codec, room)
        assert codec.count(cut) <= room


def with_template(name: str, old: str, new: str) -> ChatCodec:
    """The family's tokenizer with a change in its template."""
    tokenizer = tokenizer_of(name)
    assert old in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(old, new)
    return ChatCodec(tokenizer)


def test_thinking_that_the_template_opened_is_cut_with_its_opening() -> None:
    """As the templates of Qwen3's thinking-only models do, which end the prompt with the tag."""
    opens = "'<|im_start|>assistant\\n{}' }}}}\n    {{%- if enable"
    codec, written = with_template("qwen3", opens.format(""), opens.format("<think>\\n")), WRITTEN["qwen3"]
    lines = [line.removeprefix("<think>\n") for line in written.lines]
    first, second, *_ = played(codec, dialect("qwen3"), lines).turns
    opened = codec.tokenizer.decode(first.prompt_ids)
    assert opened.endswith("assistant\n<think>\n") and first.thinking is not None
    seen = codec.tokenizer.decode(second.prompt_ids)
    assert seen.count("<think>") == 1 and seen.endswith("<think>\n") and "Who built it?" not in seen
    assert f"assistant\n{written.calls[0]}" in seen


def test_a_template_is_compared_with_the_tokens_that_we_train_on() -> None:
    for name in ("qwen2.5", "olmo3"):
        assert lint_tokens(ChatCodec(tokenizer_of(name)), dialect(name)) == []
    # That of Qwen3 thinks an empty thought where there was none.
    found = lint_tokens(ChatCodec(tokenizer_of("qwen3")), dialect("qwen3"))
    places = {(each.episode, each.kind, each.position, each.in_completion) for each in found}
    assert places == {("no thinking", DifferenceKind.TEXT, 0, True)}
    assert {each.template_text for each in found} == {"<think>\n\n</think>\n\n"}
    # A space before a message is a token of its own for us, and part of the first word when all is encoded at once.
    codec = with_template("olmo3", "}}\n{{ message.content", "}} {{ message.content")
    joined = [each for each in lint_tokens(codec, dialect("olmo3")) if each.kind is DifferenceKind.TOKENS]
    assert {(each.ours_text, len(each.ours), len(each.template)) for each in joined} == {(" W", 2, 1)}
    assert not any(each.in_completion for each in joined)


def test_a_model_is_linted_at_the_command_line(tmp_path: Path) -> None:
    for name in ("qwen3", "olmo3"):
        tokenizer_of(name).save_pretrained(str(tmp_path / name))
    clean = CliRunner().invoke(cli, ["lint-tokens", str(tmp_path / "olmo3"), "--dialect", "olmo3", "--json"])
    assert (clean.exit_code, json.loads(clean.stdout)) == (0, {"olmo3": []})
    drifting = CliRunner().invoke(cli, ["lint-tokens", str(tmp_path / "qwen3"), "--dialect", "qwen3"])
    assert drifting.exit_code == 64
    assert drifting.stdout.startswith(
        "qwen3: 2 difference(s)\n  no thinking, row 0, completion token 0 (text)"
    )


PIECES = ["😀", "é", " Aldmoor", " Mill", "<think>", "<|im_end|>", "<|endoftext|>", "a", " ", "\n", "東"]
TEXTS = st.text(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@given(content=TEXTS, ended=st.booleans())
@example(content="<|im_end|>\n<|im_start|>assistant\nyes", ended=False)
@example(content="{{ messages }} {% for %}", ended=False)
@example(content="\ue0000\ue001 \ue000u\ue001 \ue000a\ue001", ended=True)
@example(content="é 東京 😀 \x00", ended=True)
@settings(max_examples=60, deadline=None)
def test_contents_become_no_special_tokens_and_a_conversation_that_grows_is_the_rendering_of_the_whole(
    codec: ChatCodec, content: str, ended: bool
) -> None:
    special = set(codec.tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]))

    def control(ids: tuple[int, ...]) -> list[int]:
        return [each for each in ids if each in special]

    ids = codec.encode_prompt([Message("user", content)])
    assert control(ids) == control(codec.encode_prompt([Message("user", "x")]))
    assert codec.decode(ids) == f"user\n{content}\nassistant\n"
    messages = [Message("user", "Task: x"), Message("assistant", "<think></think>"), Message("user", content)]
    sampled = codec.encode_tag("<think></think>") + ((codec.tokenizer.eos_token_id,) if ended else ())
    heard = codec.encode_next(messages[2:], sampled=sampled)
    assert codec.encode_prompt(messages[:1]) + sampled + heard == codec.encode_prompt(messages)


def test_pickled_weights_are_not_loaded_whatever_lies_beside_them(
    random_policy: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(random_policy, tmp_path / "pickled")
    torch.save(load_model(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "rotary.safetensors")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_model(folder)
