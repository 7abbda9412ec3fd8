"""Episodes with several tools: what the policy is told, what is recorded, and which limits hold."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from scope_selfplay.base.errors import ToolError
from scope_selfplay.base.sampling import Generate, Sample, ScriptedModel
from scope_selfplay.base.values import (
    Finish,
    Passage,
    Rollout,
    RolloutFault,
    RolloutStatus,
    ToolFault,
    Truncation,
)
from scope_selfplay.designs.answers import format_score
from scope_selfplay.dialects.families import dialect
from scope_selfplay.judge.fences import View, shown
from scope_selfplay.policy.conversation import PolicyFormat, RolloutLimits
from scope_selfplay.policy.episodes import Episode, run_episode, solver_episode
from scope_selfplay.search.tools import SEARCH, OpenTools, Tool, ToolBudget, ToolResult, ToolSpec, search_tool
from tests.word_codec import WordCodec

DAM = Passage(id="p7", title="Orsk Dam", text="Built in 1931.")
OPEN = ToolSpec(
    name="open",
    description="Shows a document.",
    schema={
        "type": "object",
        "properties": {"document": {"type": "string"}, "page": {"type": "integer", "minimum": 1}},
        "required": ["document"],
        "additionalProperties": False,
    },
    budget=ToolBudget(calls=2, tokens=12, seconds=5.0),
    pages=True,
    document_argument="document",
)
ANSWER = "<think>Done.</think> <answer>1931</answer>"


class Library:
    identity = "library"

    async def search(self, query: str, topk: int) -> list[Passage]:
        return [DAM]


async def documents(arguments: Mapping[str, Any]) -> ToolResult:
    text = " ".join(f"word{number}" for number in range(30))
    return ToolResult(f"{arguments['document']}: {text}", sources=(arguments["document"],))


def opening(call: Callable[[Mapping[str, Any]], Any] = documents, **changes: Any) -> Tool:
    return replace(OPEN, **changes).called_by(call)


async def rollout_of(lines: list[str], *tools: Tool, name: str = "qwen2.5") -> Rollout:
    codec = WordCodec()
    own = tools or (opening(),)
    policy_format = PolicyFormat(codec, dialect(name), "S_0", RolloutLimits(4000, 40))
    episode: Episode = solver_episode(
        policy_format, ("k",), task_id="t", prompt="When?", max_search_turns=5, tools=(SEARCH, *own)
    )
    model = ScriptedModel(codec, lambda prompt, key: lines[int(key[-1])])
    return await run_episode(
        episode, model, OpenTools([search_tool(Library(), 1), *own], index="library"), key=("k",)
    )


def told(rollout: Rollout, turn: int) -> str:
    call = rollout.turns[turn].call
    assert call is not None
    return call.result


async def test_a_title_that_search_showed_opens_its_document_page_by_page() -> None:
    lines = [
        "<search>dam</search>",
        '<open>{"document": "Orsk Dam"}</open>',
        '<open>{"document": "orsk dam", "page": 2}</open>',
        ANSWER,
    ]
    rollout = await rollout_of(lines)
    assert [turn.call and turn.call.tool for turn in rollout.turns] == ["search", "open", "open", None]
    first, second = rollout.turns[1].call, rollout.turns[2].call
    assert first is not None and first.sources == ("p7",) and first.arguments == '{"document": "Orsk Dam"}'
    assert first.result.startswith("(page 1 of ") and "p7: word0" in first.result
    assert second is not None and second.result.startswith("(page 2 of ")
    pages = [call.result.partition("\n")[2].split() for call in (first, second)]
    assert pages[1][0] == f"word{len(pages[0]) - 1}", "the second page goes on where the first ended"
    assert rollout.index == "library" and rollout.answer == "1931"


@pytest.mark.parametrize(
    ("line", "fault", "said"),
    [
        ('<open>{"page": 1}</open>', ToolFault.ARGUMENTS, "'document' is a required property"),
        ('<open>{"document": "x", "page": 0}</open>', ToolFault.ARGUMENTS, "page: 0 is less than"),
        ("<open>x</open>", ToolFault.ARGUMENTS, "not a JSON object"),
    ],
)
async def test_bad_arguments_are_answered_and_counted_and_earn_nothing(
    line: str, fault: ToolFault, said: str
) -> None:
    rollout = await rollout_of([line, ANSWER])
    call = rollout.turns[0].call
    assert call is not None and call.fault is fault and said in call.result
    assert rollout.status is RolloutStatus.FINISHED and rollout.answer == "1931"
    assert not rollout.turns[0].uses_tool and rollout.searches == 0
    called = await rollout_of(['<open>{"document": "x"}</open>', ANSWER])
    assert called.turns[0].uses_tool and format_score(rollout) < format_score(called)


async def test_an_unknown_tool_is_told_which_tools_there_are() -> None:
    call = '<tool_call>{"name": "shell", "arguments": {"command": "ls"}}</tool_call>'
    rollout = await rollout_of([call, ANSWER], name="qwen3")
    assert told(rollout, 0) == "There is no tool 'shell'. The tools are: search, open."
    assert rollout.turns[0].call and rollout.turns[0].call.fault is ToolFault.UNKNOWN


async def test_a_search_without_a_query_is_answered_beside_other_tools() -> None:
    call = '<tool_call>{"name": "search", "arguments": {"query": " "}}</tool_call>'
    rollout = await rollout_of([call, ANSWER], name="qwen3")
    assert "the query is empty" in told(rollout, 0) and rollout.searches == 0


async def test_calls_beyond_the_budget_are_told_once_and_then_end_the_rollout() -> None:
    line = '<open>{"document": "x"}</open>'
    rollout = await rollout_of([line] * 9)
    assert [turn.call and turn.call.fault for turn in rollout.turns] == [None, None, ToolFault.SPENT, None]
    assert "may be called 2 times" in told(rollout, 2)
    assert rollout.status is RolloutStatus.TRUNCATED


async def test_a_tool_that_takes_too_long_is_stopped_and_the_policy_is_told() -> None:
    async def never(arguments: Mapping[str, Any]) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError

    slow = opening(never, budget=ToolBudget(calls=2, tokens=12, seconds=0.05))
    rollout = await rollout_of(['<open>{"document": "x"}</open>', ANSWER], slow)
    assert rollout.turns[0].call and rollout.turns[0].call.fault is ToolFault.TIMED_OUT
    assert rollout.answer == "1931" and rollout.turns[0].uses_tool


async def test_an_outage_fails_the_rollout_and_is_no_result() -> None:
    async def down(arguments: Mapping[str, Any]) -> ToolResult:
        raise ToolError("flights: does not answer")

    rollout = await rollout_of(['<open>{"document": "x"}</open>', ANSWER], opening(down))
    assert (rollout.status, rollout.fault) == (RolloutStatus.FAILED, RolloutFault.TOOL)
    assert rollout.turns[0].call is None


async def test_a_long_result_may_lose_its_middle() -> None:
    rollout = await rollout_of(
        ['<open>{"document": "x"}</open>', ANSWER], opening(truncation=Truncation.MIDDLE)
    )
    assert told(rollout, 0).startswith("x: word0") and told(rollout, 0).endswith("word29")
    assert "[...]" in told(rollout, 0) and len(told(rollout, 0).split()) <= 12


async def test_a_judge_of_traces_sees_the_call_and_what_it_gave() -> None:
    rollout = await rollout_of(['I look. <open>{"document": "x"}</open>', ANSWER])
    parts = shown(rollout, View.TRACE).parts
    assert parts[:2] == (("reasoning", "I look."), ("call", 'open {"document": "x"}'))
    assert parts[2] == ("results", told(rollout, 0))


def test_records_of_episodes_that_only_search_have_no_call() -> None:
    codec = WordCodec()
    policy_format = PolicyFormat(codec, dialect("qwen2.5"), "S_0", RolloutLimits(400))
    episode = solver_episode(policy_format, ("k",), task_id="t", prompt="When?", max_search_turns=2)
    request = next(episode)
    assert isinstance(request, Generate) and "</open>" not in request.stop
    episode.send(Sample(codec.encode_tag("<search>dam</search>"), None, Finish.STOP))
    episode.send(ToolResult(passages=(DAM,), seconds=1.0))
    with pytest.raises(StopIteration) as stop:
        episode.send(Sample(codec.encode_tag(ANSWER), None, Finish.STOP))
    assert '"call"' not in stop.value.value.model_dump_json()
