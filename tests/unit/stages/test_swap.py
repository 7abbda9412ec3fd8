"""A Solver answers from another's searches: the same turns, the same passages, and nothing more to find."""

import pytest

from scope_selfplay.base.sampling import ScriptedModel
from scope_selfplay.base.values import Passage, Rollout
from scope_selfplay.dialects.families import dialect
from scope_selfplay.policy.episodes import Player, PolicyFormat, RolloutLimits, run_episode, solver_episode
from scope_selfplay.search.tools import searching
from scope_selfplay.stages.compare import answered_from, searches_of
from tests.word_codec import WordCodec

CODEC = WordCodec()
FORMAT = PolicyFormat(CODEC, dialect("qwen2.5"), "S_3", RolloutLimits(500), greedy=True)
KEY = ("key",)
SEARCHES = [
    "<think>first</think> <search>the mill</search>",
    "<think>then</think> <search>its owner</search>",
]


class Library:
    identity = "library"

    async def search(self, query: str, topk: int) -> list[Passage]:
        return [Passage(id="p", title="T", text=query)]


def episode():  # type: ignore[no-untyped-def]
    return solver_episode(FORMAT, KEY, task_id="t", prompt="Who owned it?", max_search_turns=3)


async def rollout_of(*turns: str) -> Rollout:
    model = ScriptedModel(CODEC, lambda _, key: turns[int(key[-1])], identity="S_1")
    return await run_episode(episode(), model, searching(Library(), 1), key=KEY)


async def answered(searched: Rollout, *turns: str) -> Rollout:
    """`turns` are what the answering Solver says, from its first own turn on."""
    first = len(searches_of(searched))
    model = ScriptedModel(CODEC, lambda _, key: turns[int(key[-1]) - first], identity="S_3")
    return await answered_from(searched, episode(), Player(model, FORMAT), key=KEY)


async def test_the_answer_is_written_from_the_searches_of_another() -> None:
    searched = await rollout_of(*SEARCHES, "<think>so</think> <answer> the old answer </answer>")
    found = await answered(searched, "<think>hm</think> <answer> the new answer </answer>")
    assert found.answer == "the new answer" and searched.answer == "the old answer"
    assert [turn.text for turn in found.turns[:2]] == [turn.text for turn in searched.turns[:2]]
    assert [turn.passages for turn in found.turns[:2]] == [turn.passages for turn in searched.turns[:2]]
    # The prompt that the answer is written to is token for token the one that its own Solver saw.
    assert found.turns[2].prompt_ids == searched.turns[2].prompt_ids
    assert (found.checkpoint, found.index) == ("S_3", "library")


async def test_further_searches_find_nothing() -> None:
    searched = await rollout_of(SEARCHES[0], "<answer> old </answer>")
    found = await answered(searched, "<search>more</search>", "<answer> new </answer>")
    assert [len(turn.passages) for turn in found.turns] == [1, 0, 0] and found.answer == "new"


@pytest.mark.parametrize(
    ("turns", "count"),
    [
        (["<answer> at once </answer>"], 0),
        ([*SEARCHES, "neither an answer nor a search"], 2),
        # The fourth search is not run: nothing came back to go on from.
        ([SEARCHES[0]] * 4, 3),
    ],
)
async def test_only_searches_that_brought_something_are_replayed(turns: list[str], count: int) -> None:
    searched = await rollout_of(*turns)
    assert len(searches_of(searched)) == count
    assert (await answered(searched, "<answer> new </answer>")).answer == "new"
