"""Episodes driven by hand: exact ids, budgets, faults, and what each role may do."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scope_selfplay.base.errors import InferenceError, SearchError
from scope_selfplay.base.sampling import Generate, Sample
from scope_selfplay.base.values import Finish, Key, Passage, Rollout, RolloutStatus, Truncation
from scope_selfplay.dialects.families import dialect
from scope_selfplay.policy.episodes import (
    ChallengerPrompts,
    Episode,
    PolicyFormat,
    RolloutLimits,
    challenger_episode,
    solver_episode,
)
from scope_selfplay.search.searcher import show_passages
from scope_selfplay.search.tools import ToolResult, UseTool
from scope_selfplay.training.passes import rows_from
from tests.word_codec import WordCodec

KEY: Key = (0, 1, "tasks", "d1")
SEARCH = "<think>Who?</think> <search>the heron</search>"
ANSWER = "<think>Done.</think> <answer>It is the heron.</answer>"
TASK = "<think>Done.</think> <task>Name the heron.</task>"
FINISHED, FAILED, TRUNCATED = RolloutStatus.FINISHED, RolloutStatus.FAILED, RolloutStatus.TRUNCATED


def passage(number: int, text: str = "about one two three") -> Passage:
    return Passage(id=f"p{number}", title=f"Title{number}", text=text)


class Conversation:
    """Plays the engine and the retriever for one episode, turn by turn."""

    def __init__(self, episode: Episode, codec: WordCodec) -> None:
        self.codec = codec
        self._episode = episode
        self.request: Generate | UseTool | None = None
        self._rollout: Rollout | None = None
        self._advance(lambda: next(episode))

    @property
    def rollout(self) -> Rollout:
        assert self._rollout is not None
        return self._rollout

    @property
    def asked(self) -> Generate:
        assert isinstance(self.request, Generate)
        return self.request

    @property
    def prompt(self) -> str:
        return self.codec.decode(self.asked.prompt_ids)

    def say(self, text: str, *, finish: Finish = Finish.STOP) -> "Conversation":
        assert self.asked
        ids = self.codec.encode_tag(text)
        sample = Sample(ids, tuple(-0.5 for _ in ids), finish)
        return self._advance(lambda: self._episode.send(sample))

    def find(self, *passages: Passage) -> "Conversation":
        assert isinstance(self.request, UseTool)
        return self._advance(lambda: self._episode.send(ToolResult(passages=passages)))

    def fail(self, fault: Exception) -> "Conversation":
        return self._advance(lambda: self._episode.throw(fault))

    def _advance(self, step: Callable[[], Generate | UseTool]) -> "Conversation":
        try:
            self.request = step()
        except StopIteration as stop:
            self.request, self._rollout = None, stop.value
        return self


def policy_format_of(codec: WordCodec, name: str = "qwen2.5", **limits: Any) -> PolicyFormat:
    return PolicyFormat(codec, dialect(name), "S_0", RolloutLimits(**{"max_response": 1000, **limits}))


def solver(name: str = "qwen2.5", *, turns: int = 5, **limits: Any) -> Conversation:
    codec = WordCodec()
    own = policy_format_of(codec, name, **limits)
    episode = solver_episode(own, KEY, task_id="t1", prompt="Task: name it.", max_search_turns=turns)
    return Conversation(episode, codec)


PROMPTS = ChallengerPrompts(
    "Source: x.", lambda left: f"{left} left.", lambda left: f"No search. {left} left.", "Write the task."
)


def challenger(*, turns: int = 2, max_invalid: int = 1) -> Conversation:
    codec = WordCodec()
    settings: dict[str, Any] = {"prompts": PROMPTS, "search_turns": turns, "max_invalid": max_invalid}
    return Conversation(challenger_episode(policy_format_of(codec), KEY, document_id="d1", **settings), codec)


def test_a_solver_searches_and_answers() -> None:
    conversation = solver().say(SEARCH)
    assert conversation.request == UseTool("search", {"query": "the heron"})
    conversation.find(passage(1))
    assert "<information>\n[1] Title1: about one two three\n</information>" in conversation.prompt
    rollout = conversation.say(ANSWER).rollout
    assert (rollout.answer, rollout.status, rollout.searches) == ("It is the heron.", FINISHED, 1)
    assert [turn.thinking for turn in rollout.turns] == ["Who?", "Done."]


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "olmo3"])
def test_an_engine_keeps_to_turns_that_are_read_and_the_rollout_says_so_without_log_probabilities(
    name: str,
) -> None:
    codec = WordCodec()
    form = replace(policy_format_of(codec, name), keeps_form=True)
    family, task = form.dialect, f"<task>Explain {'why the heron waits, ' * 3}.</task>"
    search, answer = family.search_call("the heron"), "<answer>It is the heron.</answer>"
    wanted = {"prompts": PROMPTS, "search_turns": 1, "max_invalid": 0}
    made = Conversation(challenger_episode(form, KEY, document_id="d1", **wanted), codec)
    asked = Conversation(
        solver_episode(form, KEY, task_id="t1", prompt="Name it.", max_search_turns=1), codec
    )
    for conversation, turns in ((made, (search, task)), (asked, (search, answer))):
        for turn in turns:
            others = {task, family.search_syntax} if turn is search else {search, task, answer} - {turn}
            assert re.fullmatch(conversation.asked.pattern, turn)
            assert not any(re.fullmatch(conversation.asked.pattern, other) for other in others)
            conversation.say(turn)
            if turn is search:
                conversation.find(passage(1))
        assert conversation.rollout.form_kept and conversation.rollout.status is FINISHED
        assert {turn.logprobs for turn in conversation.rollout.turns} == {None}
    assert made.rollout.task and asked.rollout.answer
    opened = re.fullmatch(family.turn_pattern("search", is_thinking=True), f"Who?</think>\n\n{search}")
    assert opened and "form_kept" not in solver(name).say(ANSWER).rollout.model_dump()
    assert solver(name).asked.pattern == ""


@pytest.mark.parametrize(
    ("language", "task"),
    [
        ("de", "Beschreibe, wie der Reiher jagt und worauf er wartet."),
        ("zh", "描述苍鹭如何捕鱼以及它在等待什么。"),
        ("tr", "Balıkçıl nasıl avlanır ve neyi bekler?"),
    ],
)
def test_a_task_that_is_kept_in_form_is_in_its_own_language(language: str, task: str) -> None:
    pattern = dialect("qwen2.5").turn_pattern("task", is_thinking=False, language=language)
    assert re.fullmatch(pattern, f"<task>{task}</task>")
    assert not re.fullmatch(pattern, "<task>Describe how the heron hunts and what it waits for.</task>")


def test_a_budget_counts_samples_and_tool_results_and_who_spent_it_is_truncated() -> None:
    conversation = solver(max_response=60)
    assert conversation.asked.max_tokens == 60
    first = conversation.asked.prompt_ids
    conversation.say(SEARCH).find(passage(1))
    assert conversation.asked.max_tokens == 60 - (len(conversation.asked.prompt_ids) - len(first))
    spent = solver(max_response=12).say(SEARCH).find(passage(1, "many words " * 20)).rollout
    assert (spent.status, spent.answer) == (TRUNCATED, None)


def test_a_turn_that_was_cut_off_gives_no_answer() -> None:
    rollout = solver().say("<think>Done.</think> <answer>It is", finish=Finish.LENGTH).rollout
    assert (rollout.status, rollout.answer) == (TRUNCATED, None)


def test_the_search_after_the_last_is_not_run() -> None:
    conversation = solver(turns=2).say(SEARCH).find().say(SEARCH).find()
    assert "Nothing was found." in conversation.prompt
    rollout = conversation.say(SEARCH).rollout
    assert (rollout.status, len(rollout.turns)) == (TRUNCATED, 3)


@pytest.mark.parametrize("text", ["", "<answer>a</answer><answer>b</answer>", "<search> </search>"])
def test_a_turn_without_one_answer_or_search_ends_a_solver(text: str) -> None:
    rollout = solver().say(text).rollout
    assert (rollout.answer, rollout.status) == (None, FINISHED)


def test_a_fault_of_engine_or_retriever_fails_the_rollout_and_a_bug_is_not_swallowed() -> None:
    rollout = solver().fail(InferenceError("engine down")).rollout
    assert (rollout.status, rollout.error, rollout.turns) == (FAILED, "engine down", ())
    rollout = solver().say(SEARCH).fail(SearchError("retriever down")).rollout
    assert (rollout.status, rollout.error, len(rollout.turns)) == (FAILED, "retriever down", 1)
    with pytest.raises(ZeroDivisionError):
        solver().fail(ZeroDivisionError())


def test_a_prompt_over_its_limit_fails_before_anything_is_sampled() -> None:
    rollout = solver(max_prompt=3).rollout
    assert rollout.status is FAILED and "limit 3" in (rollout.error or "")


def test_a_challenger_is_told_how_many_searches_remain() -> None:
    conversation = challenger(turns=2).say(SEARCH).find(passage(1))
    assert "1 left." in conversation.prompt and "Write the task." not in conversation.prompt
    conversation.say(SEARCH).find(passage(2))
    # A result and its guide are one message where both come from the user.
    assert conversation.prompt.count("Write the task.") == 1 and conversation.prompt.count("user\n") == 3
    assert "</information>\nWrite the task." in conversation.prompt
    rollout = conversation.say(TASK).rollout
    assert (rollout.task, rollout.searches, rollout.status) == ("Name the heron.", 2, FINISHED)


def test_an_invalid_turn_is_answered_with_the_format_at_most_max_invalid_times() -> None:
    conversation = challenger(max_invalid=2).say("hm").say("hm")
    assert conversation.prompt.count("No search. 2 left.") == 2
    rollout = conversation.say("hm").rollout
    assert (rollout.task, rollout.searches, len(rollout.turns)) == (None, 0, 3)


def test_a_search_beyond_the_agreed_ones_is_not_run_and_a_task_may_come_early() -> None:
    conversation = challenger(turns=1, max_invalid=1).say(SEARCH).find(passage(1)).say(SEARCH)
    assert "No search. 0 left." in conversation.prompt
    assert conversation.say(TASK).rollout.task == "Name the heron."
    early = challenger(turns=3).say(TASK).rollout
    assert (early.task, early.searches) == ("Name the heron.", 0)


CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "the heron"}}\n</tool_call>'


def test_qwen3_has_earlier_thinking_cut_out_of_its_ids() -> None:
    conversation = solver("qwen3").say(f"<think>\nWho? </think> {CALL}")
    assert conversation.request == UseTool("search", {"query": "the heron"})
    conversation.find(passage(1))
    assert "Who?" not in conversation.prompt and CALL in conversation.prompt
    rollout = conversation.say("<think>\nNow. </think> <answer>It.</answer>").rollout
    first, second = rollout.turns
    start = len(first.prompt_ids)
    assert second.prompt_ids[:start] == first.prompt_ids
    kept = conversation.codec.encode_tag(f" {CALL}")
    assert second.prompt_ids[start : start + len(kept)] == kept
    # What was sampled stays whole in the turn, so each turn is a row of its own.
    assert [row.completion_ids for row in rows_from(rollout)] == [list(turn.ids) for turn in rollout.turns]


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
    assert shown[:-1] == found[: len(shown) - 1]
    assert found[len(shown) - 1].text.startswith(shown[-1].text) and shown[-1].text
    assert all(each.text in text for each in shown)


LONG = " ".join(f"w{number}" for number in range(30))


@pytest.mark.parametrize("budget", range(6, 60))
def test_a_response_without_middles_keeps_both_ends_of_every_document_within_the_budget(budget: int) -> None:
    codec = WordCodec()
    found = [Passage(id=f"p{number}", title="T", text=LONG) for number in range(2)]
    text, shown = show_passages(found, codec, budget, Truncation.MIDDLE)
    assert codec.count(text) <= budget
    for each in shown:
        head, gap, tail = each.text.partition(" [...] ")
        assert gap and LONG.startswith(head) and LONG.endswith(tail)
    if budget > 20:
        assert len(shown) == 2 and all(each.text.startswith("w0") for each in shown)
        assert all(each.text.endswith("w29") for each in shown)
    again, same = show_passages(shown, codec, budget, Truncation.MIDDLE)
    assert (again, same) == (text, shown)
