"""A stored rollout played again, so that it has token ids: those that a given policy would have seen and said.

The corpus keeps text, and the ids of one tokenizer would say nothing to another. So the episode runs again with
what was said as its samples and what was found as its search results: prompts, masks and turn ends come out as
in sampling, for whatever policy is to learn from it. What does not read back as it was recorded is refused.
"""

import asyncio

from scope_selfplay.episodes import Episode, PolicyFormat, run_episode
from scope_selfplay.errors import InferenceError, SearchError
from scope_selfplay.inference import Generate, Sample
from scope_selfplay.schemas import Finish, Key, Passage, Rollout


def replay(recorded: Rollout, episode: Episode, policy_format: PolicyFormat, *, end: int) -> Rollout | None:
    """The rollout with ids, or None where this policy's family would read it otherwise than it was recorded.

    `end` is the token that ends a turn where no stop text does.
    """
    tape = _Tape(recorded, policy_format, end)
    rollout = asyncio.run(run_episode(episode, tape, tape, key=("replay", recorded.id), topk=1))
    same = (
        rollout.status is recorded.status
        and (rollout.answer, rollout.task) == (recorded.answer, recorded.task)
        and [(turn.text, turn.query) for turn in rollout.turns]
        == [(turn.text, turn.query) for turn in recorded.turns]
    )
    return rollout if same else None


class _Tape:
    """Engine and retriever in one: gives back, turn by turn, what was said and found."""

    def __init__(self, recorded: Rollout, policy_format: PolicyFormat, end: int) -> None:
        self.identity = recorded.index
        self._recorded = recorded
        self._policy_format = policy_format
        self._end = end
        self._turn = -1

    async def generate(self, request: Generate, key: Key) -> Sample:
        self._turn += 1
        if self._turn >= len(self._recorded.turns):
            raise InferenceError("the recording is over")
        codec, text = self._policy_format.codec, self._recorded.turns[self._turn].text
        if codec.decode(request.prompt_ids[-4:]).rstrip().endswith("<think>"):
            # The template has opened the thinking already; records hold it as if the turn had.
            text = text.removeprefix("<think>")
        ids = codec.encode_tag(text)
        if not text.rstrip().endswith(request.stop):
            ids = (*ids, self._end)
        finish = Finish.STOP if len(ids) <= request.max_tokens else Finish.LENGTH
        return Sample(ids[: request.max_tokens], None, finish)

    async def search(self, query: str, topk: int) -> list[Passage]:
        if self._recorded.turns[self._turn].query != query:
            raise SearchError("the recording searched for something else")
        return list(self._recorded.turns[self._turn].passages)
