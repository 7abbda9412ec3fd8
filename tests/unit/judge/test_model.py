"""The model judge: every role over the wire, both ways to read a verdict, nothing made up."""

import asyncio
import hashlib
import json
import math
import re
from pathlib import Path

import pytest

from scope_selfplay.base.values import Criterion, Fault, Finish, Gate, Outcome, Priority, Rubric
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.judge.fences import Fenced, fence_key, read_fences
from scope_selfplay.judge.model import JudgementCache, ModelJudge
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    PairQuestion,
    RubricQuestion,
    Scale,
    ScoreQuestion,
    Style,
    grounded,
)
from scope_selfplay.judge.questions import JudgePrompts
from scope_selfplay.net.chat import ChatReply
from scope_selfplay.net.serve import ServedReply, ServedRequest
from scope_selfplay.prompts.folder import load_pack, shipped_prompts
from scope_selfplay.prompts.pack import Pack
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.ranking.matches import soft_share
from scope_selfplay.testing.chat_server import FakeServer, FaultKind
from tests.judges import CRITERION, DOCUMENT, TASK, Ask, JudgeOver, always, questions, rollout

PAIR = (TASK, rollout(1, "One."), rollout(2, "Two."))
FLOODS = rollout(0, "Floods.")
KNOWN = TASK.model_copy(update={"reference": "Floods\nThe flood"})
GATE, GRADE = GateQuestion(TASK, Gate.ENTITY, None), GradeQuestion(TASK, CRITERION, "Floods.")
RUBRIC_TEXT = (
    '<rubric>[{"text": "Identifies 1936.", "priority": "critical"}, {"text": "Explains floods.", '
    '"priority": "important"}, {"text": "Names the river.", "priority": "bonus"}]</rubric>'
)
TRACE = ["thought", "search", "results", "thought", "answer"]


def prompts_of(pack: str) -> JudgePrompts:
    return JudgePrompts(load_pack(shipped_prompts() / pack), JudgeConfig(), key=fence_key(0))


def shown_in(prompt: str) -> dict[str, Fenced]:
    return {fenced.name: fenced for fenced in read_fences(prompt)}


def names_in(prompt: str) -> list[str]:
    return [fenced.name for fenced in read_fences(prompt)]


async def test_a_grade_is_one_call_with_the_papers_sampling(ask: Ask) -> None:
    fake = FakeServer(always("<think>clear</think><score>1</score>"))
    verdict = (await ask(fake, GRADE)).verdict
    assert (verdict.value, verdict.reasoning, verdict.fault, verdict.attempts) == (True, "clear", None, 1)
    assert verdict.tokens_in > 100 and verdict.tokens_out > 0
    (request,) = fake.requests
    assert (request.body["temperature"], request.body["max_tokens"]) == (0.6, 16_384)
    assert names_in(request.prompt) == ["task", "answer", "criterion"]


async def test_a_rubric_is_written_greedily_from_the_documents_and_keeps_what_none_answers(ask: Ask) -> None:
    fake = FakeServer(always(f'{RUBRIC_TEXT}\n<unmet>["its river"]</unmet>'))
    rubric = (await ask(fake, RubricQuestion(TASK, [DOCUMENT, DOCUMENT]))).value
    assert (rubric.task_id, rubric.unmet) == (TASK.id, ("its river",))
    assert [each.priority for each in rubric.criteria] == list(Priority)
    body = fake.requests[0].body
    assert (body["temperature"], body["max_tokens"]) == (0.0, 8192)
    assert names_in(fake.requests[0].prompt) == ["document", "document", "task"]


async def test_a_rubric_from_the_query_alone_has_five_to_seven_weighted_items(ask: Ask) -> None:
    items = ", ".join(
        f'{{"text": "Item {n}.", "priority": "{p}", "title": "T", "dimension": "Depth"}}'
        for n, p in enumerate(["critical", "important", "nice_to_have", "critical", "important"])
    )
    rubric = (await ask(always(f"<rubric>[{items}]</rubric>"), RubricQuestion(TASK, []))).value
    assert [each.weight for each in rubric.criteria] == [3, 2, 1, 3, 2]


async def test_a_preference_is_read_from_its_box_and_shows_the_tasks_reference(ask: Ask) -> None:
    fake = FakeServer(always(r"Both fine. \boxed{B}"))
    comparison = await ask(fake, PairQuestion(KNOWN, *PAIR[1:], style=Style.PREFERENCE))
    assert comparison.value == Outcome(0, 1) and comparison.verdict.value is False
    assert shown_in(fake.requests[0].prompt)["reference"].text == KNOWN.reference


@pytest.mark.parametrize("scale", [Scale.CORRECTNESS, Scale.PROOF])
def test_a_pointwise_judge_is_shown_the_whole_trace_and_the_reference(scale: Scale) -> None:
    asked = ScoreQuestion(KNOWN, rollout(0, "Floods.", thinking="It rained."), None, scale=scale)
    prompt = prompts_of("wikipedia").render(asked).prompt
    shown = shown_in(prompt)
    parts = [(part.name, part.text) for part in shown["candidate"].inner]
    assert parts[0] == ("thought", "It rained.") and parts[-1] == ("answer", "Floods.")
    assert [name for name, _ in parts] == TRACE and shown["reference"].text == KNOWN.reference
    assert ("derivation" in prompt) is (scale is Scale.PROOF)


@pytest.mark.parametrize(
    ("pack", "criterion"),
    [("open-travel", "Feasibility"), ("open-deepresearch", "Framework"), ("open-writing", "Originality")],
)
def test_an_answer_alone_is_scored_by_the_criteria_of_its_pack(pack: str, criterion: str) -> None:
    """ArenaRL, section 6.1: the pointwise baselines have the judge and the rubric of the tournament."""
    prompts = prompts_of(pack)
    one, other = rollout(0, "Floods.", thinking="It rained."), rollout(1, "Drought.")
    found = prompts.render(ScoreQuestion(TASK, one, None, scale=Scale.ANSWER))
    assert names_in(found.prompt) == ["task", "answer"]
    assert "It rained." not in found.prompt and found.read('{"score": 7.5}') == 7.5
    compared = prompts.render(PairQuestion(TASK, one, other, style=Style.SCORES)).prompt
    assert f"**{criterion}.**" in found.prompt and f"**{criterion}.**" in compared


@pytest.mark.parametrize("pack", ["wikipedia", "open-travel", "open-deepresearch"])
def test_a_judge_is_asked_about_results_only_where_it_is_shown_them(pack: str) -> None:
    """ArenaRL, section 3.3: the core of a trajectory is its thoughts, its calls and its answer."""
    prompts, pair = prompts_of(pack), (FLOODS, rollout(1, "Drought."))
    about = ("results", "what came back", "was found", "call returned")
    core = prompts.render(PairQuestion(TASK, *pair, style=Style.CORE_SCORES)).prompt
    assert [words for words in about if words in core] == []
    assert "What the tools returned is not shown" in core
    whole = prompts.render(PairQuestion(TASK, *pair, style=Style.SCORES)).prompt
    assert "results" in whole and "what came back" in whole and "is not shown" not in whole


def test_answers_are_compared_by_one_criterion_alone() -> None:
    prompts, pair = prompts_of("wikipedia"), (FLOODS, rollout(1, "Drought."))
    asked = prompts.render(PairQuestion(TASK, *pair, style=Style.ANSWERS, rubric=CRITERION)).prompt
    assert names_in(asked) == ["task", "criterion", "candidate", "candidate"]
    with pytest.raises(ValueError, match="not by one criterion"):
        prompts.render(PairQuestion(TASK, *pair, style=Style.PREFERENCE, rubric=CRITERION))
    with pytest.raises(ValueError, match="scale"):
        prompts.render(ScoreQuestion(TASK, FLOODS, CRITERION, scale=Scale.IMPLICIT))


async def test_one_token_gives_a_verdict_and_its_probability(judge_over: JudgeOver) -> None:
    def one_token(request: ServedRequest) -> ServedReply:
        odds = {"1": 0.6, "0": 0.2} if "1" in request.choices else {"A": 0.5, "B": 0.25, "T": 0.25}
        odds = {"No": 0.9, "Yes": 0.1} if "No" in request.choices else odds
        return ServedReply(max(odds, key=lambda each: odds[each]), odds, finish="length")

    fake = FakeServer(one_token)
    async with judge_over(fake, verdict="token") as judge:
        grade = (await judge.ask(GRADE)).verdict
        pair = await judge.ask(PairQuestion(*PAIR, style=Style.PREFERENCE))
    assert grade.value is True and grade.probability is not None and math.isclose(grade.probability, 0.75)
    assert pair.value == Outcome(1, 0)
    assert pair.verdict.probability is not None and math.isclose(pair.verdict.probability, 0.625)
    body = fake.requests[0].body
    assert body["structured_outputs"] == {"choice": ["1", "0"]} and body["max_tokens"] == 1
    assert fake.requests[0].prompt.endswith("1 or 0.")
    zero = ServedReply("0", {"0": 0.4})
    async with judge_over(lambda request: zero, verdict="token", guard=False) as judge:
        verdict = (await judge.ask(GRADE)).verdict
    assert (verdict.value, verdict.probability) == (False, None), "1 may be as likely"


async def test_one_token_that_says_tie_is_a_tie(ask: Ask) -> None:
    """Reasoning Arena, equation 7: A, B or Tie; with P(Tie) = .6 it is a tie, however much likelier A is than B."""
    tie = ServedReply("T", {"A": 0.3, "B": 0.1, "T": 0.6}, finish="length")
    asked = PairQuestion(*PAIR, style=Style.PREFERENCE)
    pair = await ask(lambda request: tie, asked, verdict="token", guard=False)
    assert pair.value is not None and soft_share(pair.value, 0.9) == 0.5
    assert pair.verdict.probability is not None and math.isclose(pair.verdict.probability, 0.6)


async def test_verdicts_of_several_numbers_are_constrained_by_a_pattern(ask: Ask) -> None:
    scores, rating = "<first>7</first>\n<second>4.5</second>", '{"score": 7.5}'
    fakes = [FakeServer(always(scores)), FakeServer(always(rating))]
    pair = await ask(fakes[0], PairQuestion(*PAIR, style=Style.SCORES), verdict="token", guard=False)
    score = await ask(fakes[1], ScoreQuestion(TASK, FLOODS, None, scale=Scale.IMPLICIT), verdict="token")
    assert (pair.value, score.value) == (Outcome(7, 4.5), 7.5)
    for fake, fits, beyond in zip(fakes, (scores, rating), (scores.replace("7", "11"), "7.5"), strict=True):
        body = fake.requests[0].body
        outputs = body["structured_outputs"]
        assert isinstance(outputs, dict) and body["max_tokens"] == 64
        assert re.fullmatch(outputs["regex"], fits) and not re.fullmatch(outputs["regex"], beyond)


@pytest.mark.parametrize(
    ("claims", "share"), [("neither", 1.0), ("first", 0.0), ("second", 1.0), ("both", 1.0)]
)
async def test_an_answer_that_speaks_to_the_judge_loses_against_one_that_does_not(
    judge_over: JudgeOver, claims: str, share: float
) -> None:
    """The first one wins where only answers count."""
    first = PAIR[1].answer or ""

    def said(request: ServedRequest) -> ServedReply:
        if request.body["structured_outputs"] != {"choice": ["Yes", "No"]}:
            return ServedReply("A", {"A": 0.9, "B": 0.1}, finish="length")
        shown = "first" if first in request.prompt else "second"
        speaks = claims in (shown, "both")
        return ServedReply(
            "Yes" if speaks else "No", {"Yes": 0.9 * speaks, "No": 0.9 * (not speaks)}, finish="length"
        )

    async with judge_over(said, verdict="token") as judge:
        reply = await judge.ask(PairQuestion(*PAIR, style=Style.PREFERENCE))
    assert reply.value is not None and reply.value.share == share
    assert ("loses" in reply.verdict.reasoning) is (claims in ("first", "second"))


async def test_what_cannot_be_read_is_asked_again_with_another_seed(ask: Ask) -> None:
    replies = iter(["hm", "<score>1</score><score>0</score>", "<score>1</score>"])
    fake = FakeServer(lambda request: ServedReply(next(replies)))
    verdict = (await ask(fake, GATE)).verdict
    assert (verdict.value, verdict.attempts, verdict.fault) == (True, 3, None)
    assert len({request.body["seed"] for request in fake.requests}) == 3
    # A greedy gate would only repeat itself.
    assert [request.body["temperature"] for request in fake.requests] == [0.0, 0.6, 0.6]


async def test_three_unreadable_replies_are_none_and_counted(judge_over: JudgeOver) -> None:
    async with judge_over(always("I cannot say.")) as judge:
        for reply in [await judge.ask(question) for question in questions()]:
            assert (reply.value, reply.verdict.value, reply.verdict.attempts) == (None, None, 3)
            assert reply.verdict.fault is Fault.UNREADABLE
    accounts = judge.roles.values()
    assert all(each["unreadable"] == each["calls"] > 0 for each in accounts) and len(accounts) > 10


async def test_a_refusal_is_not_asked_again(ask: Ask) -> None:
    fake = FakeServer(always("<score>1</score>"))
    fake.fault = FaultKind.REFUSAL
    verdict = (await ask(fake, GRADE)).verdict
    assert (verdict.value, verdict.fault, len(fake.requests)) == (None, Fault.REFUSED, 1)


async def test_a_completion_that_was_cut_off_holds_no_verdict(ask: Ask) -> None:
    cut = ServedReply(r"The first attempt ends with \boxed{A}", finish="length")
    pair = await ask(lambda request: cut, PairQuestion(*PAIR, style=Style.PREFERENCE))
    assert (pair.value, pair.verdict.fault) == (None, Fault.UNREADABLE)


async def test_a_thinking_model_is_asked_without_think_tags(ask: Ask) -> None:
    fake = FakeServer(lambda request: ServedReply("<score>1</score>", reasoning="natively"))
    verdict = (await ask(fake, GRADE, endpoint={"native_thinking": True})).verdict
    assert verdict.reasoning == "natively" and "<think>" not in fake.requests[0].prompt


async def test_the_same_question_is_paid_for_once(judge_over: JudgeOver, tmp_path: Path) -> None:
    fake = FakeServer(lambda request: ServedReply("<score>1</score>", seconds=0.05))
    async with judge_over(fake, cache=tmp_path / "cache.sqlite") as judge:
        together = await asyncio.gather(*(judge.ask(GRADE) for n in range(5)))
        later = (await judge.ask(GRADE)).verdict
        account = judge.roles[PromptRole.GRADE]
    assert [each.value for each in together] == [True] * 5 and len(fake.requests) == 1
    assert later.cached and later.value is True
    assert (account["calls"], account["asked"], account["joined"], account["cached"]) == (6, 1, 4, 1)
    async with judge_over(always("<score>0</score>"), cache=tmp_path / "cache.sqlite") as judge:
        again = (await judge.ask(GRADE)).verdict
    assert (again.value, again.cached) == (True, True)


async def test_unreadable_replies_are_not_kept(ask: Ask, tmp_path: Path) -> None:
    cache = tmp_path / "cache.sqlite"
    assert (await ask(always("hm"), GRADE, cache=cache)).value is None
    assert (await ask(always("<score>1</score>"), GRADE, cache=cache)).value is True


KEYS = {
    "token": "dc6e01fce5e7a648a317b8446c2074b0b592dcda652b202dd8024df6281804a0",
    "written": "51c295f6771752e71d3e50b6e755a8aa635c3aec9027a5ba0811786de42a47d6",
}
"""Prompts and cache keys keep their bytes: with other ones, all judgements that runs have paid for are asked again."""


class Unread(JudgementCache):
    """Has a reply to everything, which nobody can read, and keeps the keys by which it was asked."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def get(self, key: bytes) -> ChatReply | None:
        self.keys.append(key)
        return ChatReply("Hm.", "", Finish.STOP, 1, 1, {})


@pytest.mark.parametrize("verdict", KEYS)
async def test_a_judgement_that_was_paid_for_is_found_again(pack: Pack, verdict: str) -> None:
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    settings = {"kind": "model", "endpoint": endpoint, "verdict": verdict, "failure_budget": 1, "retries": 1}
    judge = ModelJudge(JudgeConfig.model_validate(settings), pack, seed=3, cache=(cache := Unread()))
    for question in questions():
        await judge.ask(question)
    await judge.close()
    assert len(cache.keys) == 2 * len(questions())
    assert hashlib.sha256(b"".join(cache.keys)).hexdigest() == KEYS[verdict]


async def test_a_rubric_that_asks_for_what_no_document_states_is_written_anew_or_says_why(ask: Ask) -> None:
    def rubric(*facts: str) -> str:
        items = [{"text": f"States that {fact}.", "priority": "critical"} for fact in facts]
        return f"<rubric>{json.dumps(items)}</rubric>"

    invented = rubric("it was Zanzibar's first", "it cost 1907 pounds", "floods were feared")
    written = iter(
        [invented, rubric("it was built in 1936", "Zanzibar paid", "floods came", "a dam stood there")]
    )
    found = await ask(lambda request: ServedReply(next(written)), RubricQuestion(TASK, [DOCUMENT]))
    assert found.value is not None and len(found.value.criteria) == 3 and found.verdict.attempts == 2
    assert found.value.unmet == ("States that Zanzibar paid.",)
    asked = TASK.model_copy(update={"text": "介绍网络隧道的含义及其应用。"})
    said = [Criterion(text=text) for text in ("描述网络隧道的含义及其应用。", "隧道可以加密数据。")]
    assert len(grounded(Rubric(task_id="t", criteria=tuple(said)), asked, [DOCUMENT]).criteria) == 1
    for said, why in (
        (invented, "stand in no document"),
        (rubric(TASK.text, "it was", "floods came"), "repeat the task"),
        (rubric("floods came", "a dam"), "2 criteria, 3 to 5 wanted"),
    ):
        reply = await ask(always(said), RubricQuestion(TASK, [DOCUMENT]))
        words = reply.verdict.reasoning
        assert reply.value is None and why in words and "States that" in words
