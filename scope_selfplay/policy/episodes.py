"""One rollout as a generator: it asks for samples and calls of tools, is sent the results, and returns the rollout.

The same generators run under an engine in this process, over HTTP, under the trainer, and under a person at a
terminal; `run_episode` is the async driver. A fault of an engine or of a tool's server is thrown in at the `yield` and
ends the rollout as `failed`: data to be counted, never an empty answer. What ids a turn is given is said in
`conversation`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scope_selfplay.base.errors import InferenceError, SearchError, ToolError
from scope_selfplay.base.sampling import Generate, Message, PolicyModel, Sample, TextCodec, ids_of_turn
from scope_selfplay.base.values import Finish, Key, Role, Rollout, RolloutStatus, Turn
from scope_selfplay.policy.conversation import Asking, Conversation, PolicyFormat, RolloutLimits
from scope_selfplay.search.tools import SEARCH, ToolResult, Tools, ToolSpec, UseTool, replayed

__all__ = [
    "ChallengerPrompts",
    "Episode",
    "PolicyFormat",
    "Replay",
    "RolloutLimits",
    "challenger_episode",
    "run_episode",
    "solver_episode",
]

Episode = Asking[Rollout]


@dataclass(frozen=True)
class ChallengerPrompts:
    """The Challenger's texts for one document: the first prompt, and what follows each of its turns."""

    opening: str
    after_search: Callable[[int], str]
    after_invalid: Callable[[int], str]
    closing: str


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
        if conversation.searches > max_search_turns or (parts.call and conversation.calls_are_spent):
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
    conversation = Conversation(policy_format)
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

    Behind the last turn the `engine` goes on, for which nothing more is found; without one the rollout fails.
    """

    def __init__(
        self, turns: Sequence[Turn], codec: TextCodec, *, index: str = "", engine: PolicyModel | None = None
    ) -> None:
        self.index = index
        self.identity = index if engine is None else engine.identity
        self._turns, self._codec, self._engine = turns, codec, engine
        self._turn = -1

    async def generate(self, request: Generate, key: Key) -> Sample:
        self._turn += 1
        if self._turn >= len(self._turns):
            if self._engine is None:
                raise InferenceError("the recording is over")
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
