"""One rollout as a generator: it asks for samples and calls of tools, is sent the results, and returns the rollout.

The same generators run under an engine in this process, over HTTP, under the trainer, and under a person at a
terminal; `run_episode` is the async driver. A fault of an engine or of a tool's server is thrown in at the `yield` and
ends the rollout as `failed`: data to be counted, never an empty answer.

Every turn keeps the exact ids it was given and sampled. The next prompt is those ids plus what came between;
only a family that hides earlier thinking (Qwen3) has the thinking span cut out, out of ids.
"""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, TypeVar

from scope_selfplay.base.errors import InferenceError, SearchError, ToolError
from scope_selfplay.base.sampling import Generate, Message, PolicyModel, Sample, TextCodec, ids_of_turn
from scope_selfplay.base.text import framed
from scope_selfplay.base.values import (
    Finish,
    Key,
    Role,
    Rollout,
    RolloutFault,
    RolloutStatus,
    Truncation,
    Turn,
    content_id,
)
from scope_selfplay.dialects.families import Call, Dialect, TurnParts
from scope_selfplay.search.searcher import show_passages
from scope_selfplay.search.tools import (
    SEARCH,
    ToolResult,
    Tools,
    ToolSpec,
    UseTool,
    document_named,
    recorded,
    recorded_search,
    refusal,
    replayed,
    shown_result,
)


@dataclass(frozen=True)
class RolloutLimits:
    """Budgets of one rollout, in policy tokens; `max_response` counts all turns and tool results."""

    max_response: int
    max_tool_response: int = 500
    max_prompt: int | None = None
    max_turn: int | None = None
    truncation: Truncation = Truncation.END
    """What a tool result that is too long loses."""


@dataclass(frozen=True)
class PolicyFormat:
    """How a policy is prompted: its tokenizer, its family's syntax, its name, whether it samples, and whether
    an engine keeps its turns in form, as it may where nothing is trained on them.
    """

    codec: TextCodec
    dialect: Dialect
    checkpoint: str
    limits: RolloutLimits
    greedy: bool = False
    keeps_form: bool = False


Returned = TypeVar("Returned")
Asking = Generator[Generate | UseTool, Sample | ToolResult, Returned]
"""A generator that asks for samples and calls of tools, and returns something in the end."""


@dataclass
class Conversation:
    """One conversation of a policy that has `tools`, search among them."""

    policy_format: PolicyFormat
    tools: Sequence[ToolSpec] = (SEARCH,)
    language: str = "en"
    """Of the task that it may end with."""
    ids: tuple[int, ...] = ()
    opening: str = ""
    """Names the first prompt."""
    turns: list[Turn] = field(default_factory=list)
    status: RolloutStatus = RolloutStatus.FINISHED
    fault: RolloutFault | None = None
    error: str = ""
    spent: int = 0
    searches: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    """Calls by tool; those that no tool could take have names too, as the policy wrote them."""

    @cached_property
    def dialect(self) -> Dialect:
        return self.policy_format.dialect.with_tools([tool.form for tool in self.others])

    @cached_property
    def others(self) -> list[ToolSpec]:
        return [tool for tool in self.tools if tool.name != SEARCH.name]

    def open(self, prompt: str) -> None:
        self.ids = self.policy_format.codec.encode_prompt([Message("user", prompt)])
        self.opening = content_id("opening", prompt)
        limit = self.policy_format.limits.max_prompt
        if limit is not None and len(self.ids) > limit:
            self._fail(RolloutFault.PROMPT, f"prompt of {len(self.ids)} tokens, limit {limit}")

    def sample_turn(self, *wanted: str) -> Asking[TurnParts | None]:
        """One assistant turn; None when the budget or the engine ended the rollout.

        Where the engine keeps its form, it is one of those `wanted`, as of `Dialect.turn_pattern`.
        """
        if self.status is RolloutStatus.FAILED:
            return None
        room = self.policy_format.limits.max_response - self.spent
        if room <= 0:
            self.status = RolloutStatus.TRUNCATED
            return None
        dialect, codec, greedy = self.dialect, self.policy_format.codec, self.policy_format.greedy
        room = min(room, self.policy_format.limits.max_turn or room)
        # Some templates open the thinking in the prompt: the turn is read as if it had opened it itself.
        opened = dialect.template_opens_thinking and codec.decode(self.ids[-4:]).rstrip().endswith("<think>")
        keeps_form = self.policy_format.keeps_form
        pattern = ""
        if keeps_form:
            pattern = dialect.turn_pattern(*wanted, is_thinking=opened, language=self.language)
        try:
            sample = yield Generate(
                self.ids, room, dialect.stop, greedy, len(self.turns), self.opening, pattern
            )
        except InferenceError as fault:
            self._fail(RolloutFault.ENGINE, str(fault))
            return None
        assert isinstance(sample, Sample)
        text = ("<think>" if opened else "") + codec.decode(sample.ids)
        parts = dialect.parse(text)
        self.turns.append(
            Turn(
                prompt_ids=self.ids,
                ids=sample.ids,
                # A token that was not drawn has no probability by which its weight could be corrected.
                logprobs=None if greedy or keeps_form else sample.logprobs,
                text=text,
                thinking=parts.thinking,
                query=parts.query,
            )
        )
        self.spent += len(sample.ids)
        self.searches += parts.query is not None
        if sample.finish is Finish.LENGTH:
            self.status = RolloutStatus.TRUNCATED
            return None
        return parts

    def act(self, parts: TurnParts) -> Asking[str | None]:
        """What the search or call of a turn gave, as `search` and `use`."""
        if parts.query is not None:
            return (yield from self.search(parts.query))
        assert parts.call is not None
        return (yield from self.use(parts.call))

    def search(self, query: str) -> Asking[str | None]:
        """The text of the tool response; None when the retriever failed."""
        result = yield from self._ask(UseTool(SEARCH.name, {"query": query}))
        if result is None:
            return None
        limits = self.policy_format.limits
        text, shown = show_passages(
            result.passages or (), self.policy_format.codec, limits.max_tool_response, limits.truncation
        )
        self._record(passages=tuple(shown))
        if self.others:
            self._record(call=recorded_search(query, shown, result.seconds))
        return text

    def use(self, call: Call) -> Asking[str | None]:
        """What the policy is told of a call of another tool; None when that tool's server failed."""
        self.calls[call.tool] += 1
        tool = next((tool for tool in self.tools if tool.name == call.tool), None)
        result = refusal(call, tool, self.tools, self.calls[call.tool])
        if result is None:
            assert tool is not None
            result = yield from self._ask(UseTool(tool.name, document_named(tool, call, self.turns)))
            if result is None:
                return None
        codec, most = self.policy_format.codec, self.policy_format.limits.max_tool_response
        text = shown_result(result, tool, call, codec, most)
        self._record(call=recorded(call, result, text))
        return framed(text)

    def answer_call(self, text: str, *following: Message) -> None:
        """What the next prompt has of a tool's result, and behind it."""
        self.append([Message(self.dialect.tool_role, self.dialect.tool_response(text)), *following])

    def append(self, messages: Sequence[Message]) -> None:
        last = self.turns[-1]
        added = self.policy_format.codec.encode_next(_merged(messages), sampled=last.ids)
        self.ids = self._history(last) + added
        self.spent += len(added)

    def finish(
        self, role: Role, key: Key, subject_id: str, *, answer: str | None = None, task: str | None = None
    ) -> Rollout:
        return Rollout(
            id=content_id(role.value, *key),
            role=role,
            checkpoint=self.policy_format.checkpoint,
            subject_id=subject_id,
            turns=tuple(self.turns),
            answer=answer,
            task=task,
            status=self.status,
            fault=self.fault,
            error=self.error,
            form_kept=self.policy_format.keeps_form,
        )

    def _ask(self, request: UseTool) -> Asking[ToolResult | None]:
        try:
            result = yield request
        except SearchError as fault:
            self._fail(RolloutFault.SEARCH, str(fault))
        except ToolError as fault:
            self._fail(RolloutFault.TOOL, str(fault))
        else:
            assert isinstance(result, ToolResult)
            return result
        return None

    def _record(self, **found: object) -> None:
        self.turns[-1] = self.turns[-1].model_copy(update=found)

    def _history(self, turn: Turn) -> tuple[int, ...]:
        """What a turn leaves for the next prompt: all of it, or all but its thinking, cut out of the ids."""
        if not self.dialect.drops_earlier_thinking:
            return turn.prompt_ids + turn.ids
        codec, prompt = self.policy_format.codec, turn.prompt_ids
        opening, closing = codec.encode_tag("<think>"), codec.encode_tag("</think>")
        kept = without_span(turn.ids, opening, closing)
        if kept == turn.ids:
            return prompt + kept
        tail = prompt[-4:]
        opened = None if _find(tail, closing) is not None else _find(tail, opening)
        if opened is not None:
            # The template had opened the thinking at the end of the prompt: it goes with what was thought.
            prompt = prompt[: len(prompt) - len(tail) + opened]
        # Templates drop the line ends between the thinking and the text after it.
        start = 0
        while start < len(kept) and set(codec.decode(kept[start : start + 1])) == {"\n"}:
            start += 1
        return prompt + kept[start:]

    def _fail(self, fault: RolloutFault, error: str) -> None:
        self.status, self.fault, self.error = RolloutStatus.FAILED, fault, error


def without_span(ids: tuple[int, ...], opening: tuple[int, ...], closing: tuple[int, ...]) -> tuple[int, ...]:
    """`ids` without the first span from `opening` through `closing`; a template may have written the opening."""
    end = _find(ids, closing)
    if end is None:
        return ids
    start = _find(ids[:end], opening)
    return ids[: start if start is not None else 0] + ids[end + len(closing) :]


def _find(ids: tuple[int, ...], part: tuple[int, ...]) -> int | None:
    return next((i for i in range(len(ids) - len(part) + 1) if ids[i : i + len(part)] == part), None)


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Neighbours of one role become one message: templates expect roles to alternate."""
    groups = groupby(messages, key=lambda message: message.role)
    return [Message(role, "\n".join(message.content for message in group)) for role, group in groups]


Episode = Asking[Rollout]


@dataclass(frozen=True)
class ChallengerPrompts:
    """The Challenger's texts for one document: the first prompt, and what follows each of its turns."""

    opening: str
    after_search: Callable[[int], str]
    after_invalid: Callable[[int], str]
    closing: str
    language: str = "en"
    """The code of the language in which the task is to be written."""


def solver_episode(
    policy_format: PolicyFormat,
    key: Key,
    *,
    task_id: str,
    prompt: str,
    max_search_turns: int,
    tools: Sequence[ToolSpec] = (SEARCH,),
) -> Episode:
    """Search up to `max_search_turns` times, then answer (SCOPE section 3; appendix F.2 counts the turns).

    With other `tools` a turn may call one of them instead. What a tool cannot do is told to the policy, which goes on.
    """
    conversation = Conversation(policy_format, tools)
    conversation.open(prompt)
    while True:
        may_search = conversation.searches < max_search_turns
        parts = yield from conversation.sample_turn("answer", *(["search"] if may_search else []))
        if parts is None or parts.answer is not None or (parts.query is None and parts.call is None):
            break
        # Even the answer that a tool's calls are spent has been given.
        are_spent = conversation.calls.total() > sum(tool.budget.calls for tool in conversation.others)
        if conversation.searches > max_search_turns or (parts.call and are_spent):
            conversation.status = RolloutStatus.TRUNCATED
            break
        found = yield from conversation.act(parts)
        if found is None:
            break
        conversation.answer_call(found)
    answer = parts.answer if parts else None
    return conversation.finish(Role.SOLVER, key, task_id, answer=answer)


def challenger_episode(
    policy_format: PolicyFormat,
    key: Key,
    *,
    document_id: str,
    prompts: ChallengerPrompts,
    search_turns: int,
    max_invalid: int,
) -> Episode:
    """Search `search_turns` times from the document outwards, then write a task (SCOPE section 3, figure 9).

    A turn without a valid action is answered with the format, at most `max_invalid` times.
    """
    conversation = Conversation(policy_format, language=prompts.language)
    conversation.open(prompts.opening)
    while True:
        left = search_turns - conversation.searches
        parts = yield from conversation.sample_turn("search" if left > 0 else "task")
        if parts is None or parts.task is not None:
            break
        left = search_turns - conversation.searches
        if parts.query is None or left < 0:
            if max_invalid == 0:
                break
            max_invalid -= 1
            conversation.append([Message("user", prompts.after_invalid(max(left, 0)))])
            continue
        found = yield from conversation.search(parts.query)
        if found is None:
            break
        guide = prompts.after_search(left) if left else prompts.closing
        conversation.answer_call(found, Message("user", guide))
    task = parts.task if parts else None
    return conversation.finish(Role.CHALLENGER, key, document_id, task=task)


async def run_episode(episode: Episode, model: PolicyModel, tools: Tools, *, key: Key) -> Rollout:
    """Run one episode. Nothing waits for another episode; faults are thrown into the episode.

    The rollout names the index that its tools search: what was found, and what not, depends on it.
    """
    turn = 0
    try:
        request = next(episode)
        while True:
            try:
                if isinstance(request, Generate):
                    result: Sample | ToolResult = await model.generate(request, (*key, turn))
                    turn += 1
                else:
                    result = await tools.use(request)
            except (InferenceError, SearchError, ToolError) as fault:
                request = episode.throw(fault)
            else:
                request = episode.send(result)
    except StopIteration as stop:
        rollout: Rollout = stop.value
        return rollout.model_copy(update={"index": tools.index})


class Player(NamedTuple):
    """A policy at work: what samples, and how it is spoken to."""

    engine: PolicyModel
    policy_format: PolicyFormat


class Replay:
    """What was recorded of an episode, said again: engine and tools in one.

    Behind the last turn the `engine` goes on, for which nothing more is found.
    """

    index = ""

    def __init__(self, turns: Sequence[Turn], codec: TextCodec, *, engine: PolicyModel) -> None:
        self.identity = engine.identity
        self._turns, self._codec, self._engine = turns, codec, engine
        self._turn = -1

    async def generate(self, request: Generate, key: Key) -> Sample:
        self._turn += 1
        if self._turn >= len(self._turns):
            return await self._engine.generate(request, key)
        ids = ids_of_turn(self._codec, request, self._turns[self._turn].text)
        finish = Finish.STOP if len(ids) <= request.max_tokens else Finish.LENGTH
        return Sample(ids[: request.max_tokens], None, finish)

    async def use(self, request: UseTool) -> ToolResult:
        if self._turn >= len(self._turns):
            return ToolResult("Nothing more was found.", passages=())
        turn = self._turns[self._turn]
        called = SEARCH.name if turn.query is not None else turn.call and turn.call.tool
        if called != request.tool or (turn.query is not None and turn.query != request.arguments["query"]):
            raise SearchError("the recording called for something else")
        return replayed(turn)
