"""The model judge: every role over the wire, both ways to read a verdict, nothing made up."""

import asyncio
import math
import re
from pathlib import Path

import pytest

from scope_selfplay.base.gates import Gate
from scope_selfplay.base.values import Criterion, Fault, Outcome, Passage, Priority, Rubric
from scope_selfplay.config.judge import JudgeConfig
from scope_selfplay.judge.fences import View, fence_key, read_fences
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    PairQuestion,
    RubricQuestion,
    Scale,
    ScoreQuestion,
    SelectQuestion,
    Style,
)
from scope_selfplay.judge.questions import JudgePrompts
from scope_selfplay.net.serve import ServedReply, ServedRequest
from scope_selfplay.prompts.folder import load_pack, shipped_prompts
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.ranking.matches import soft_share
from scope_selfplay.testing.chat_server import FakeServer, FaultKind
from tests.judges import CRITERION, DOCUMENT, TASK, Ask, JudgeOver, always, rollout

PAIR = (TASK, rollout(1, "One."), rollout(2, "Two."))
FLOODS = rollout(0, "Floods.")
GRADE = GradeQuestion(TASK, CRITERION, "Floods.")
RUBRIC_TEXT = (
    '<rubric>[{"text": "Identifies 1936.", "priority": "critical"}, {"text": "Explains floods.", '
    '"priority": "important"}, {"text": "Names the river.", "priority": "bonus"}]</rubric>'
)


def prompts_of(pack: str) -> JudgePrompts:
    return JudgePrompts(load_pack(shipped_prompts() / pack), JudgeConfig(), key=fence_key(0))


def fences_of(prompt: str) -> list[str]:
    return [fenced.name for fenced in read_fences(prompt)]


@pytest.mark.parametrize("gate", list(Gate))
async def test_every_gate_is_read(ask: Ask, gate: Gate) -> None:
    completion = "<think>clear</think><score>1</score>"
    verdict = (await ask(always(completion), GateQuestion(TASK, gate, DOCUMENT))).verdict
    assert (verdict.value, verdict.reasoning, verdict.fault, verdict.attempts) == (True, "clear", None, 1)
    assert verdict.tokens_in > 100 and verdict.tokens_out > 0


@pytest.mark.parametrize(("block", "unmet"), [("", None), ('<unmet>["its river"]</unmet>', ("its river",))])
async def test_a_rubric_is_written_greedily_from_the_documents_and_keeps_what_none_answers(
    ask: Ask, block: str, unmet: tuple[str, ...] | None
) -> None:
    fake = FakeServer(always(f"{RUBRIC_TEXT}\n{block}"))
    rubric = (await ask(fake, RubricQuestion(TASK, [DOCUMENT, DOCUMENT]))).value
    assert (rubric.task_id, rubric.unmet) == (TASK.id, unmet)
    assert [each.priority for each in rubric.criteria] == list(Priority)
    body = fake.requests[0].body
    assert (body["temperature"], body["max_tokens"]) == (0.0, 8192)
    assert fences_of(fake.requests[0].prompt) == ["document", "document", "task"]


async def test_a_rubric_from_the_query_alone_has_five_to_seven_weighted_items(ask: Ask) -> None:
    items = ", ".join(
        f'{{"text": "Item {n}.", "priority": "{p}", "title": "T", "dimension": "Depth"}}'
        for n, p in enumerate(["critical", "important", "nice_to_have", "critical", "important"])
    )
    rubric = (await ask(always(f"<rubric>[{items}]</rubric>"), RubricQuestion(TASK, []))).value
    assert [each.weight for each in rubric.criteria] == [3, 2, 1, 3, 2]


async def test_a_grade_is_one_call_with_the_papers_sampling(ask: Ask) -> None:
    fake = FakeServer(always("<think>no</think><score>0</score>"))
    assert (await ask(fake, GRADE)).verdict.value is False
    (request,) = fake.requests
    assert (request.body["temperature"], request.body["max_tokens"]) == (0.6, 16_384)
    assert fences_of(request.prompt) == ["task", "answer", "criterion"]


async def test_the_criteria_of_one_answer_share_all_but_the_end_of_the_prompt(judge_over: JudgeOver) -> None:
    fake = FakeServer(always("<score>1</score>"))
    async with judge_over(fake) as judge:
        for text in ("Identifies floods.", "Names the year."):
            await judge.ask(GradeQuestion(TASK, Criterion(text=text), "long answer " * 300))

    first, second = (request.prompt for request in fake.requests)
    shared = next(place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert shared > 0.97 * len(first)


@pytest.mark.parametrize("answer", ["", "Thought process:", "  Solution: "])
async def test_an_opener_scores_nothing_without_a_call(ask: Ask, answer: str) -> None:
    fake = FakeServer(always("<score>1</score>"))
    grade = await ask(fake, GradeQuestion(TASK, CRITERION, answer))
    score = await ask(fake, ScoreQuestion(TASK, rollout(0, answer), None, scale=Scale.IMPLICIT))
    assert (grade.value, grade.verdict.attempts, score.value, fake.requests) == (False, 0, 0.0, [])
    assert (score.verdict.attempts, score.verdict.fault) == (0, None) and "opener" in score.verdict.reasoning


async def test_a_pair_is_shown_with_trajectories_and_labels(ask: Ask) -> None:
    fake = FakeServer(always("<first>7</first><second>4.5</second>"))
    comparison = await ask(fake, PairQuestion(*PAIR, style=Style.SCORES))
    assert comparison.value == Outcome(7, 4.5) and comparison.verdict.value is True
    candidates = [each for each in read_fences(fake.requests[0].prompt) if each.name == "candidate"]
    assert len(candidates) == 2 and candidates[0].mark != candidates[1].mark
    parts = [part.name for part in candidates[0].inner]
    assert parts == ["thought", "search", "results", "thought", "answer"]
    assert f"labelled {candidates[0].mark}" in fake.requests[0].prompt


async def test_a_preference_is_read_from_its_box_and_shows_the_tasks_reference(ask: Ask) -> None:
    fake = FakeServer(always(r"Both fine. \boxed{B}"))
    task = TASK.model_copy(update={"reference": "Two"})
    comparison = await ask(fake, PairQuestion(task, *PAIR[1:], style=Style.PREFERENCE))
    assert comparison.value == Outcome(0, 1) and comparison.verdict.value is False
    shown = {fenced.name: fenced.text for fenced in read_fences(fake.requests[0].prompt)}
    assert shown["reference"] == "Two"


@pytest.mark.parametrize("style", list(Style))
async def test_equal_traces_tie_without_a_call(judge_over: JudgeOver, style: Style) -> None:
    fake = FakeServer(always("<first>7</first><second>4</second>"))
    async with judge_over(fake) as judge:
        pairs = [("It is  so.", "\uff29t is so."), (None, ""), ("Thought process:", None)]
        outcomes = [
            (await judge.ask(PairQuestion(TASK, rollout(1, a), rollout(2, b), style=style))).value
            for a, b in pairs
        ]

    assert all(each is not None and each.first == each.second for each in outcomes)
    assert fake.requests == []


@pytest.mark.parametrize("style", [style for style in Style if style.view is not View.ANSWER])
async def test_equal_answers_by_different_ways_are_judged(judge_over: JudgeOver, style: Style) -> None:
    """What is shown makes the difference: a thought, a search, what it found, reasoning outside of any tags."""
    plain = rollout(1, "It is so.")
    searching, answering = plain.turns
    found = (Passage(id="p", title="P", text="p"),)
    in_the_open = answering.model_copy(update={"text": "It rained. <answer>It is so.</answer>"})
    others = [
        rollout(2, "It is so.", thinking="It must be."),
        plain.model_copy(update={"turns": (searching.model_copy(update={"query": "rain"}), answering)}),
        plain.model_copy(update={"turns": (searching, in_the_open)}),
    ]
    by_results = plain.model_copy(
        update={"turns": (searching.model_copy(update={"passages": found}), answering)}
    )
    others += [by_results] if style.view is View.TRACE else []
    reply = "<first>7</first><second>4</second>" if style.is_scored else "\\boxed{A}"
    fake = FakeServer(always(reply))
    # So patient that it asks a busy machine for no sign of life.
    async with judge_over(fake, patience=100.0) as judge:
        for other in others:
            compared = await judge.ask(PairQuestion(TASK, plain, other, style=style))
            assert compared.value is not None and compared.value.first > compared.value.second
    assert len(fake.requests) == len(others)
    async with judge_over(fake) as judge:
        same = (await judge.ask(PairQuestion(TASK, plain, by_results, style=style))).value
    assert same is not None and (same.first == same.second) is (style.view is View.CORE)


async def test_winners_come_back_as_the_callers_numbers(judge_over: JudgeOver) -> None:
    def chooses_the_best(request: ServedRequest) -> ServedReply:
        best = next(
            each.mark for each in read_fences(request.prompt) if each.inner and "best" in each.inner[0].text
        )
        return ServedReply(f'{{"winners": ["{best}"]}}')

    async with judge_over(chooses_the_best) as judge:
        for place in range(4):
            answers = ["poor"] * 4
            answers[place] = "best"
            candidates = [rollout(n, answer) for n, answer in enumerate(answers)]
            found = await judge.ask(SelectQuestion(TASK, None, candidates, 1))
            assert found.value == [place] and found.verdict.value is True


async def test_scores_are_read_on_their_scales(judge_over: JudgeOver) -> None:
    rubric = Rubric(task_id=TASK.id, criteria=(CRITERION,))
    async with judge_over(always('{"score": 7.5}')) as judge:
        assert (await judge.ask(ScoreQuestion(TASK, FLOODS, rubric, scale=Scale.IMPLICIT))).value == 7.5
        assert (await judge.ask(ScoreQuestion(TASK, FLOODS, CRITERION, scale=Scale.EXPLICIT))).value == 7.5
        with pytest.raises(ValueError, match="scale"):
            await judge.ask(ScoreQuestion(TASK, FLOODS, CRITERION, scale=Scale.IMPLICIT))
    async with judge_over(always(r"\boxed{0.5}")) as judge:
        task = TASK.model_copy(update={"reference": "Floods"})
        for scale in (Scale.CORRECTNESS, Scale.PROOF):
            assert (await judge.ask(ScoreQuestion(task, FLOODS, None, scale=scale))).value == 0.5


@pytest.mark.parametrize("scale", [Scale.CORRECTNESS, Scale.PROOF])
async def test_a_pointwise_judge_is_shown_the_whole_trace_and_the_reference(ask: Ask, scale: Scale) -> None:
    fake = FakeServer(always(r"\boxed{1}"))
    task = TASK.model_copy(update={"reference": "Floods"})
    await ask(fake, ScoreQuestion(task, rollout(0, "Floods.", thinking="It rained."), None, scale=scale))
    prompt = fake.requests[0].prompt
    shown = {fenced.name: fenced for fenced in read_fences(prompt)}
    parts = [(part.name, part.text) for part in shown["candidate"].inner]
    assert parts[0] == ("thought", "It rained.") and parts[-1] == ("answer", "Floods.")
    assert [name for name, _ in parts] == ["thought", "search", "results", "thought", "answer"]
    assert shown["reference"].text == "Floods"
    assert ("derivation" in prompt) is (scale is Scale.PROOF)


async def test_answers_are_held_against_the_reference_or_each_other_without_their_traces(ask: Ask) -> None:
    fake = FakeServer(always(r"\boxed{not attempted} \boxed{A}"))
    task = TASK.model_copy(update={"reference": "Floods\nThe flood"})
    one, other = rollout(0, "Floods.", thinking="It rained."), rollout(1, "Drought.", thinking="It shone.")
    scored = ScoreQuestion(task, one, None, scale=Scale.REFERENCE)
    assert (await ask(fake, PairQuestion(task, one, other, style=Style.ANSWERS))).value == (1.0, 0.0)
    assert (await ask(always(r"Hm. \boxed{not attempted}"), scored)).value == 0.5
    compared = read_fences(fake.requests[0].prompt)
    assert [[part.name for part in fenced.inner] for fenced in compared[1:]] == [["answer"], ["answer"]]
    asked = prompts_of("wikipedia").render(scored).prompt
    assert {fenced.name: fenced.text for fenced in read_fences(asked)}["reference"] == "Floods\nThe flood"
    assert "It rained." not in asked


@pytest.mark.parametrize(
    ("pack", "criterion"),
    [("open-travel", "Feasibility"), ("open-deepresearch", "Framework"), ("open-writing", "Originality")],
)
def test_an_answer_alone_is_scored_by_the_criteria_of_its_pack(pack: str, criterion: str) -> None:
    """ArenaRL, section 6.1: the pointwise baselines have the judge and the rubric of the tournament."""
    prompts = prompts_of(pack)
    one, other = rollout(0, "Floods.", thinking="It rained."), rollout(1, "Drought.")
    found = prompts.render(ScoreQuestion(TASK, one, None, scale=Scale.ANSWER))
    assert fences_of(found.prompt) == ["task", "answer"]
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


def _one_token(request: ServedRequest) -> ServedReply:
    odds = {"1": 0.6, "0": 0.2} if "1" in request.choices else {"A": 0.5, "B": 0.25, "T": 0.25}
    return ServedReply(max(odds, key=lambda each: odds[each]), odds, finish="length")


async def test_one_token_gives_a_verdict_and_its_probability(judge_over: JudgeOver) -> None:
    fake = FakeServer(_one_token)
    async with judge_over(fake, verdict="token") as judge:
        grade = (await judge.ask(GRADE)).verdict
        gate = (await judge.ask(GateQuestion(TASK, Gate.ENTITY, None))).verdict
        pair = await judge.ask(PairQuestion(*PAIR, style=Style.PREFERENCE))

    assert grade.value is True and grade.probability is not None and math.isclose(grade.probability, 0.75)
    assert gate.value is True
    assert pair.value == Outcome(1, 0)
    assert pair.verdict.probability is not None and math.isclose(pair.verdict.probability, 0.625)
    body = fake.requests[0].body
    assert body["structured_outputs"] == {"choice": ["1", "0"]} and body["max_tokens"] == 1
    assert fake.requests[0].prompt.endswith("1 or 0.")


async def test_one_token_that_says_tie_is_a_tie(ask: Ask) -> None:
    """Reasoning Arena, equation 7: A, B or Tie; with P(Tie) = .6 it is a tie, however much likelier A is than B."""
    tie = ServedReply("T", {"A": 0.3, "B": 0.1, "T": 0.6}, finish="length")
    pair = await ask(lambda request: tie, PairQuestion(*PAIR, style=Style.PREFERENCE), verdict="token")
    assert pair.value is not None and soft_share(pair.value, 0.9) == 0.5
    assert pair.verdict.probability is not None and math.isclose(pair.verdict.probability, 0.6)


async def test_unknown_odds_leave_the_probability_open(ask: Ask) -> None:
    verdict = (await ask(lambda request: ServedReply("0", {"0": 0.9}), GRADE, verdict="token")).verdict
    assert (verdict.value, verdict.probability) == (False, None)


async def test_what_cannot_be_read_is_asked_again_with_another_seed(ask: Ask) -> None:
    replies = iter(["hm", "<score>1</score><score>0</score>", "<score>1</score>"])
    fake = FakeServer(lambda request: ServedReply(next(replies)))
    verdict = (await ask(fake, GateQuestion(TASK, Gate.ENTITY, None))).verdict
    assert (verdict.value, verdict.attempts, verdict.fault) == (True, 3, None)
    assert len({request.body["seed"] for request in fake.requests}) == 3
    # A greedy gate would only repeat itself.
    assert [request.body["temperature"] for request in fake.requests] == [0.0, 0.6, 0.6]


async def test_three_unreadable_replies_are_none_and_counted(judge_over: JudgeOver) -> None:
    async with judge_over(always("I cannot say.")) as judge:
        verdict = (await judge.ask(GRADE)).verdict
        rubric = (await judge.ask(RubricQuestion(TASK, [DOCUMENT]))).value
        pair = await judge.ask(PairQuestion(*PAIR, style=Style.SCORES))
        chosen = await judge.ask(SelectQuestion(TASK, None, PAIR[1:], 1))
        score = await judge.ask(ScoreQuestion(TASK, FLOODS, None, scale=Scale.IMPLICIT))
        account = judge.roles

    assert (verdict.value, verdict.fault) == (None, Fault.UNREADABLE)
    assert (rubric, pair.value, pair.verdict.value) == (None, None, None)
    assert (chosen.value, score.value) == (None, None)
    assert chosen.verdict.fault is score.verdict.fault is Fault.UNREADABLE and chosen.verdict.attempts == 3
    assert all(each["unreadable"] == 1 == each["calls"] for each in account.values()) and len(account) == 5


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


async def test_identity_names_model_and_prompts(judge_over: JudgeOver) -> None:
    async with judge_over(always("1")) as judge, judge_over(always("1")) as same:
        assert judge.identity == same.identity and judge.identity.startswith("fake model-")
    async with judge_over(always("1"), verdict="token") as other:
        assert other.identity != judge.identity


async def test_verdicts_of_several_numbers_are_constrained_by_a_pattern(ask: Ask) -> None:
    fake = FakeServer(always("<first>7</first>\n<second>4.5</second>"))
    pair = await ask(fake, PairQuestion(*PAIR, style=Style.SCORES), verdict="token")
    body = fake.requests[0].body
    outputs = body["structured_outputs"]
    assert isinstance(outputs, dict) and body["max_tokens"] == 64
    assert re.fullmatch(outputs["regex"], "<first>7</first>\n<second>4.5</second>")
    assert re.fullmatch(outputs["regex"], "<first>11</first>\n<second>4</second>") is None
    assert pair.value == Outcome(7, 4.5)

    fake = FakeServer(always('{"score": 7.5}'))
    score = await ask(fake, ScoreQuestion(TASK, FLOODS, None, scale=Scale.IMPLICIT), verdict="token")
    assert score.value == 7.5
    outputs = fake.requests[0].body["structured_outputs"]
    assert isinstance(outputs, dict) and re.fullmatch(outputs["regex"], '{"score": 10}')


def test_answers_are_compared_by_one_criterion_alone() -> None:
    prompts, pair = prompts_of("wikipedia"), (FLOODS, rollout(1, "Drought."))
    asked = prompts.render(PairQuestion(TASK, *pair, style=Style.ANSWERS, rubric=CRITERION)).prompt
    assert fences_of(asked) == ["task", "criterion", "candidate", "candidate"]
    assert CRITERION.text in asked and "one criterion decides" in asked
    whole = prompts.render(PairQuestion(TASK, *pair, style=Style.ANSWERS)).prompt
    assert "one criterion decides" not in whole
    with pytest.raises(ValueError, match="not by one criterion"):
        prompts.render(PairQuestion(TASK, *pair, style=Style.PREFERENCE, rubric=CRITERION))
