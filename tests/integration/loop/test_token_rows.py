"""Recorded episodes of the three families, and what `scope lint-tokens` finds in templates."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from scope_selfplay.base.sampling import Generate, Sample
from scope_selfplay.base.values import Finish, Key, Passage, Rollout
from scope_selfplay.cli import cli
from scope_selfplay.dialects.families import Dialect, dialect
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.policy.conversation import PolicyFormat, RolloutLimits
from scope_selfplay.policy.episodes import Episode, run_episode, solver_episode
from scope_selfplay.search.tools import SEARCH, OpenTools, Tool, search_tool
from scope_selfplay.training.lint import DifferenceKind, lint_tokens
from scope_selfplay.training.rows import rows_from
from tests.families import tokenizer_of

FOUND = "[1] Orsk: The dam was built in 1931."
OPENINGS = {
    "qwen2.5": "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n",
    "qwen3": "",
    "olmo3": "",
}
TURNS = {
    "qwen2.5": (
        ("<think>Who built it?</think>\n", "<search>the dam</search>"),
        ("<think>I know.</think>\n", "<answer>Ana Reyes</answer>"),
    ),
    "qwen3": (
        (
            "<think>\nWho built it?\n</think>\n\n",
            '<tool_call>\n{"name": "search", "arguments": {"query": "the dam"}}\n</tool_call>',
        ),
        ("<think>\nI know.\n</think>\n\n", "<answer>Ana Reyes</answer>"),
    ),
    "olmo3": (
        ("<think>Who built it?</think>\n", '<function_calls>search(query="the dam")</function_calls>'),
        ("<think>I know.</think>\n", "<answer>Ana Reyes</answer>"),
    ),
}


class Recording:
    """Says its lines, ends each with the end-of-turn token or not, and numbers its log-probabilities."""

    identity = "recording"

    def __init__(self, codec: ChatCodec, lines: list[str], *, ends: bool) -> None:
        self._codec, self._lines, self._ends, self.spoken = codec, lines, ends, 0

    async def generate(self, request: Generate, key: Key) -> Sample:
        ids = self._codec.encode_tag(self._lines[int(key[-1])])
        ids += (self._codec.tokenizer.eos_token_id,) if self._ends else ()
        first = self.spoken
        self.spoken += len(ids)
        return Sample(ids, tuple(-float(number) for number in range(first, self.spoken)), Finish.STOP)


class Orsk:
    identity = "orsk"

    async def search(self, query: str, topk: int) -> list[Passage]:
        return [Passage(id="p", title="Orsk", text="The dam was built in 1931.")]


def format_of(codec: ChatCodec, family: Dialect) -> PolicyFormat:
    return PolicyFormat(codec, family, "S_0", RolloutLimits(8192))


def begun(policy_format: PolicyFormat, tools: Sequence[Tool] = ()) -> Episode:
    return solver_episode(
        policy_format,
        ("k",),
        task_id="t",
        prompt="Who built the dam?",
        max_search_turns=5,
        tools=(SEARCH, *tools),
    )


def played(
    codec: ChatCodec, family: Dialect, lines: list[str], *, ends: bool = True, tools: Sequence[Tool] = ()
) -> Rollout:
    """An episode of these lines, with the search of `Orsk` and other tools."""
    model, every = Recording(codec, lines, ends=ends), OpenTools([search_tool(Orsk(), 1), *tools])
    return asyncio.run(run_episode(begun(format_of(codec, family), tools), model, every, key=("k",)))


def ids_of(codec: ChatCodec, *texts: str) -> list[int]:
    """Each text by itself, as prompts are put together: template, then contents, then template."""
    return [each for text in texts for each in codec.tokenizer(text, add_special_tokens=False)["input_ids"]]


def test_qwen3_that_keeps_its_thinking_is_one_row() -> None:
    codec = ChatCodec(tokenizer_of("qwen3"))
    lines = ["".join(parts) for parts in TURNS["qwen3"]]
    (row,), split = rows_from(played(codec, dialect("qwen3", "keep"), lines), per_turn=False)
    assert not split and row.mask.count(0) and "Who built it?" in codec.decode(row.completion_ids)


def test_thinking_that_the_template_opened_is_cut_with_its_opening() -> None:
    """As the templates of Qwen3's thinking-only models do, which end the prompt with the tag."""
    tokenizer = tokenizer_of("qwen3")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "'<|im_start|>assistant\\n' }}\n    {%- if enable",
        "'<|im_start|>assistant\\n<think>\\n' }}\n    {%- if enable",
    )
    codec, family = ChatCodec(tokenizer), dialect("qwen3")
    lines = [thought.removeprefix("<think>\n") + rest for thought, rest in TURNS["qwen3"]]
    first, second = played(codec, family, lines).turns
    opened = codec.tokenizer.decode(first.prompt_ids)
    assert opened.endswith("assistant\n<think>\n") and first.thinking is not None
    seen = codec.tokenizer.decode(second.prompt_ids)
    assert seen.count("<think>") == 1 and seen.endswith("<think>\n") and "Who built it?" not in seen
    assert f"assistant\n{TURNS['qwen3'][0][1]}" in seen


@pytest.mark.parametrize("name", ["qwen2.5", "olmo3"])
def test_the_families_templates_give_the_tokens_that_we_train_on(name: str) -> None:
    assert lint_tokens(ChatCodec(tokenizer_of(name)), dialect(name)) == []


def test_the_qwen3_template_thinks_an_empty_thought_where_there_was_none() -> None:
    found = lint_tokens(ChatCodec(tokenizer_of("qwen3")), dialect("qwen3"))
    assert {each.episode for each in found} == {"no thinking"}
    assert all(
        each.kind is DifferenceKind.TEXT and each.position == 0 and each.in_completion for each in found
    )
    assert {each.template_text for each in found} == {"<think>\n\n</think>\n\n"}


def test_a_template_that_joins_tokens_across_a_border_is_found() -> None:
    """A space before a message is a token of its own for us, and part of the first word when all is encoded at once."""
    tokenizer = tokenizer_of("olmo3")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "}}\n{{ message.content", "}} {{ message.content"
    )
    found = lint_tokens(ChatCodec(tokenizer), dialect("olmo3"))
    joined = [each for each in found if each.kind is DifferenceKind.TOKENS]
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
