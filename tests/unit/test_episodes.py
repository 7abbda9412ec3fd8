"""Episodes driven by hand: exact ids, budgets, faults, and what each role may do."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from scope_selfplay.base.errors import InferenceError, SearchError
from scope_selfplay.base.sampling import Generate, Sample, ScriptedModel
from scope_selfplay.base.values import Finish, Key, Passage, Rollout, RolloutStatus, Truncation
from scope_selfplay.dialects.families import dialect
from scope_selfplay.policy.conversation import PolicyFormat, RolloutLimits, without_span
from scope_selfplay.policy.episodes import (
    ChallengerPrompts,
    Episode,
    challenger_episode,
    run_episode,
    solver_episode,
)
from scope_selfplay.search.searcher import show_passages
from scope_selfplay.search.tools import ToolResult, UseTool, searching
from scope_selfplay.training.rows import rows_from
from tests.word_codec import WordCodec

KEY: Key = (0, 1, "tasks", "d1")
SEARCH = "<think>Who?</think> <search>the heron</search>"
ANSWER = "<think>Done.</think> <answer>It is the heron.</answer>"
TASK = "<think>Done.</think> <task>Name the heron.</task>"


def passage(number: int, text: str = "about one two three") -> Passage:
    return Passage(id=f"p{number}", title=f"Title{number}", text=text)


class Conversation:
    """Plays the engine and the retriever for one episode, turn by turn."""

    def __init__(self, episode: Episode, codec: WordCodec) -> None:
        self.codec = codec
        self._episode = episode
        self.request: Generate | UseTool | None = next(episode)
        self._rollout: Rollout | None = None

    @property
    def rollout(self) -> Rollout:
        assert self._rollout is not None
        return self._rollout

    def say(self, text: str, *, finish: Finish = Finish.STOP, end: bool = False) -> "Conversation":
        assert isinstance(self.request, Generate)
        ids = self.codec.encode_tag(text) + ((self.codec.end_of_turn,) if end else ())
        return self._send(Sample(ids, tuple(-0.5 for _ in ids), finish))

    def find(self, *passages: Passage) -> "Conversation":
        assert isinstance(self.request, UseTool)
        return self._send(ToolResult(passages=passages))

    def fail(self, fault: Exception) -> "Conversation":
        return self._advance(lambda: self._episode.throw(fault))

    def prompt(self) -> str:
        assert isinstance(self.request, Generate)
        return self.codec.decode(self.request.prompt_ids)

    def _send(self, result: Any) -> "Conversation":
        return self._advance(lambda: self._episode.send(result))

    def _advance(self, step: Callable[[], Generate | UseTool]) -> "Conversation":
        try:
            self.request = step()
        except StopIteration as stop:
            self.request, self._rollout = None, stop.value
        return self


def policy_format_of(
    codec: WordCodec, name: str = "qwen2.5", *, greedy: bool = False, **limits: Any
) -> PolicyFormat:
    return PolicyFormat(
        codec, dialect(name), "S_0", RolloutLimits(**{"max_response": 1000, **limits}), greedy
    )


def solver(name: str = "qwen2.5", *, turns: int = 5, greedy: bool = False, **limits: Any) -> Conversation:
    codec = WordCodec()
    policy_format = policy_format_of(codec, name, greedy=greedy, **limits)
    return Conversation(
        solver_episode(policy_format, KEY, task_id="t1", prompt="Task: name it.", max_search_turns=turns),
        codec,
    )


PROMPTS = ChallengerPrompts(
    "Source: x.", lambda left: f"{left} left.", lambda left: f"No search. {left} left.", "Write the task."
)


def challenger(*, turns: int = 2, max_invalid: int = 1) -> Conversation:
    codec = WordCodec()
    episode = challenger_episode(
        policy_format_of(codec),
        KEY,
        document_id="d1",
        prompts=PROMPTS,
        search_turns=turns,
        max_invalid=max_invalid,
    )
    return Conversation(episode, codec)


def test_a_solver_searches_and_answers() -> None:
    conversation = solver()
    assert isinstance(conversation.request, Generate) and conversation.request.turn == 0
    conversation.say(SEARCH)
    assert conversation.request == UseTool("search", {"query": "the heron"})
    conversation.find(passage(1))
    assert isinstance(conversation.request, Generate) and conversation.request.turn == 1
    assert "<information>\n[1] Title1: about one two three\n</information>" in conversation.prompt()
    rollout = conversation.say(ANSWER).rollout
    assert (rollout.answer, rollout.status, rollout.searches) == (
        "It is the heron.",
        RolloutStatus.FINISHED,
        1,
    )
    assert [turn.thinking for turn in rollout.turns] == ["Who?", "Done."]
    assert rollout.turns[0].passages == (passage(1),) and rollout.subject_id == "t1"


@pytest.mark.parametrize("end", [False, True])
def test_every_prompt_is_the_ids_before_it_exactly(end: bool) -> None:
    conversation = solver().say(SEARCH, end=end).find(passage(1)).say(SEARCH, end=end).find(passage(2))
    rollout = conversation.say(ANSWER, end=end).rollout
    for before, after in zip(rollout.turns, rollout.turns[1:], strict=False):
        seen = before.prompt_ids + before.ids
        assert after.prompt_ids[: len(seen)] == seen
        # The end of a turn stands there once, whether it was sampled or not.
        assert seen.count(conversation.codec.end_of_turn) + (not end) == after.prompt_ids[
            : len(seen) + 1
        ].count(conversation.codec.end_of_turn)
    (row,) = rows_from(rollout).rows
    assert sum(row.mask) == sum(len(turn.ids) for turn in rollout.turns)


def test_a_budget_counts_samples_and_tool_results() -> None:
    conversation = solver(max_response=60)
    assert isinstance(conversation.request, Generate) and conversation.request.max_tokens == 60
    first = conversation.request.prompt_ids
    conversation.say(SEARCH).find(passage(1))
    assert isinstance(conversation.request, Generate)
    assert conversation.request.max_tokens == 60 - (len(conversation.request.prompt_ids) - len(first))


def test_a_rollout_that_spent_its_budget_is_truncated() -> None:
    conversation = solver(max_response=12).say(SEARCH).find(passage(1, "many words " * 20))
    assert (conversation.rollout.status, conversation.rollout.answer) == (RolloutStatus.TRUNCATED, None)


def test_a_turn_that_was_cut_off_gives_no_answer() -> None:
    rollout = solver().say("<think>Done.</think> <answer>It is", finish=Finish.LENGTH).rollout
    assert (rollout.status, rollout.answer) == (RolloutStatus.TRUNCATED, None)


def test_the_search_after_the_last_is_not_run() -> None:
    conversation = solver(turns=2).say(SEARCH).find().say(SEARCH).find()
    assert "Nothing was found." in conversation.prompt()
    rollout = conversation.say(SEARCH).rollout
    assert (rollout.status, len(rollout.turns)) == (RolloutStatus.TRUNCATED, 3)


@pytest.mark.parametrize(
    "text", ["", "no tags", "<answer>a</answer><answer>b</answer>", "<search> </search>"]
)
def test_a_turn_without_one_answer_or_search_ends_a_solver(text: str) -> None:
    rollout = solver().say(text).rollout
    assert (rollout.answer, rollout.status) == (None, RolloutStatus.FINISHED)


def test_an_engine_fault_fails_the_rollout() -> None:
    rollout = solver().fail(InferenceError("engine down")).rollout
    assert (rollout.status, rollout.error, rollout.turns) == (RolloutStatus.FAILED, "engine down", ())


def test_a_retriever_fault_fails_the_rollout_and_is_not_an_empty_result() -> None:
    rollout = solver().say(SEARCH).fail(SearchError("retriever down")).rollout
    assert (rollout.status, rollout.error, len(rollout.turns)) == (RolloutStatus.FAILED, "retriever down", 1)


def test_a_foreign_error_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        solver().fail(ZeroDivisionError())


def test_a_prompt_over_its_limit_fails_before_anything_is_sampled() -> None:
    codec = WordCodec()
    episode = solver_episode(
        policy_format_of(codec, max_prompt=3),
        KEY,
        task_id="t1",
        prompt="too many words here",
        max_search_turns=1,
    )
    with pytest.raises(StopIteration) as stop:
        next(episode)
    assert stop.value.value.status is RolloutStatus.FAILED
    assert "limit 3" in stop.value.value.error


@pytest.mark.parametrize("greedy", [False, True])
def test_a_greedy_turn_has_no_probabilities_of_a_draw(greedy: bool) -> None:
    rollout = solver(greedy=greedy).say(ANSWER).rollout
    assert rollout.turns[0].ids
    assert (rollout.turns[0].logprobs is None) is greedy


def test_a_challenger_is_told_how_many_searches_remain() -> None:
    conversation = challenger(turns=2).say(SEARCH).find(passage(1))
    assert "1 left." in conversation.prompt() and "Write the task." not in conversation.prompt()
    conversation.say(SEARCH).find(passage(2))
    assert conversation.prompt().count("Write the task.") == 1
    rollout = conversation.say(TASK).rollout
    assert (rollout.task, rollout.searches, rollout.status) == ("Name the heron.", 2, RolloutStatus.FINISHED)


def test_a_tool_result_and_its_guide_are_one_message_where_both_come_from_the_user() -> None:
    conversation = challenger(turns=1).say(SEARCH).find(passage(1))
    assert conversation.prompt().count("user\n") == 2
    assert "</information>\nWrite the task." in conversation.prompt()


def test_an_invalid_turn_is_answered_with_the_format_at_most_max_invalid_times() -> None:
    conversation = challenger(max_invalid=2).say("hm").say("hm")
    assert conversation.prompt().count("No search. 2 left.") == 2
    rollout = conversation.say("hm").rollout
    assert (rollout.task, rollout.searches, len(rollout.turns)) == (None, 0, 3)


def test_a_search_beyond_the_agreed_ones_is_not_run() -> None:
    conversation = challenger(turns=1, max_invalid=1).say(SEARCH).find(passage(1)).say(SEARCH)
    assert "No search. 0 left." in conversation.prompt()
    rollout = conversation.say(TASK).rollout
    assert rollout.task == "Name the heron."


def test_a_challenger_may_write_its_task_early() -> None:
    rollout = challenger(turns=3).say(TASK).rollout
    assert (rollout.task, rollout.searches) == ("Name the heron.", 0)


CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "the heron"}}\n</tool_call>'


def test_qwen3_has_earlier_thinking_cut_out_of_its_ids() -> None:
    conversation = solver("qwen3").say(f"<think>\nWho? </think> {CALL}")
    assert conversation.request == UseTool("search", {"query": "the heron"})
    conversation.find(passage(1))
    assert isinstance(conversation.request, Generate)
    assert "Who?" not in conversation.prompt() and CALL in conversation.prompt()
    rollout = conversation.say("<think>\nNow. </think> <answer>It.</answer>").rollout
    first, second = rollout.turns
    start = len(first.prompt_ids)
    assert second.prompt_ids[:start] == first.prompt_ids
    kept = conversation.codec.encode_tag(f" {CALL}")
    assert second.prompt_ids[start : start + len(kept)] == kept
    # What was sampled stays whole in the turn, so each turn is a row of its own.
    assert [row.completion_ids for row in rows_from(rollout).rows] == [
        list(turn.ids) for turn in rollout.turns
    ]


@pytest.mark.parametrize(
    ("ids", "left"),
    [
        ((5, 1, 7, 8, 2, 6), (5, 6)),
        ((7, 8, 2, 6), (6,)),
        ((5, 1, 7), (5, 1, 7)),
        ((1, 2), ()),
        ((6, 1, 2, 1, 2), (6, 1, 2)),
        ((), ()),
    ],
)
def test_the_first_span_is_cut_and_may_have_been_opened_by_the_prompt(
    ids: tuple[int, ...], left: tuple[int, ...]
) -> None:
    assert without_span(ids, (1,), (2,)) == left


class Library:
    """A searcher that finds the query, or fails, or waits until it is let go."""

    identity = "library"

    def __init__(self, gate: asyncio.Event | None = None, *, slow: str = "", broken: bool = False) -> None:
        self._gate, self._slow, self._broken = gate, slow, broken

    async def search(self, query: str, topk: int) -> list[Passage]:
        if self._broken:
            raise SearchError("retriever down")
        if self._gate is not None and query == self._slow:
            await self._gate.wait()
        return [passage(number, query) for number in range(topk)]


def scripted(codec: WordCodec, lines: dict[str, Sequence[str]]) -> ScriptedModel:
    """Says the turns that belong to the task of a key."""
    return ScriptedModel(codec, lambda _, key: lines[str(key[0])][int(key[-1])])


def episode_about(codec: WordCodec, name: str) -> Episode:
    return solver_episode(policy_format_of(codec), (name,), task_id=name, prompt=name, max_search_turns=3)


async def test_a_driver_connects_episode_engine_and_retriever() -> None:
    codec = WordCodec()
    model = scripted(codec, {"a": [SEARCH, ANSWER]})
    rollout = await run_episode(episode_about(codec, "a"), model, searching(Library(), 2), key=("a",))
    assert rollout.answer == "It is the heron."
    assert [each.text for each in rollout.turns[0].passages] == ["the heron"] * 2
    assert rollout.index == "library"


async def test_a_slow_rollout_holds_no_other_back() -> None:
    codec, gate = WordCodec(), asyncio.Event()
    slow = "<search>slow</search>"
    model = scripted(codec, {"a": [slow, ANSWER], "b": [SEARCH, SEARCH, ANSWER]})
    library = Library(gate, slow="slow")
    waiting = asyncio.ensure_future(
        run_episode(episode_about(codec, "a"), model, searching(library, 1), key=("a",))
    )
    quick = await run_episode(episode_about(codec, "b"), model, searching(library, 1), key=("b",))
    assert quick.searches == 2 and not waiting.done()
    gate.set()
    assert (await waiting).searches == 1


@pytest.mark.parametrize("budget", range(40))
def test_passages_are_shown_within_the_budget_and_the_last_is_cut_first(budget: int) -> None:
    codec = WordCodec()
    found = [passage(1, "a b c d e"), passage(2, "f g h"), passage(3, "i j")]
    text, shown = show_passages(found, codec, budget)
    if not shown:
        assert text == "Nothing was found."
        return
    assert codec.count(text) <= budget
    assert [each.id for each in shown] == [each.id for each in found][: len(shown)]
    for before, after in zip(shown[:-1], found, strict=False):
        assert before == after
    assert found[len(shown) - 1].text.startswith(shown[-1].text) and shown[-1].text
    assert all(each.text in text for each in shown)


def test_a_result_that_fits_is_shown_whole() -> None:
    text, shown = show_passages([passage(1), passage(2)], WordCodec(), 500)
    assert text == "[1] Title1: about one two three\n[2] Title2: about one two three"
    assert shown == [passage(1), passage(2)]


@pytest.mark.parametrize("budget", range(6, 60))
def test_a_response_without_middles_keeps_both_ends_of_every_document_within_the_budget(budget: int) -> None:
    codec = WordCodec()
    words = " ".join(f"w{number}" for number in range(30))
    found = [Passage(id=f"p{number}", title="T", text=words) for number in range(2)]
    text, shown = show_passages(found, codec, budget, Truncation.MIDDLE)
    assert codec.count(text) <= budget
    for each in shown:
        head, gap, tail = each.text.partition(" [...] ")
        assert gap and words.startswith(head) and words.endswith(tail)
    if budget > 20:
        assert len(shown) == 2 and all(each.text.startswith("w0") for each in shown)
        assert all(each.text.endswith("w29") for each in shown)
    again, same = show_passages(shown, codec, budget, Truncation.MIDDLE)
    assert (again, same) == (text, shown)


def test_short_documents_leave_their_share_to_long_ones() -> None:
    words = " ".join(f"w{number}" for number in range(30))
    found = [passage(1), Passage(id="p", title="T", text=words)]
    _, shown = show_passages(found, WordCodec(), 30, Truncation.MIDDLE)
    assert shown[0] == passage(1)
    assert len(shown[1].text.split()) > 15
