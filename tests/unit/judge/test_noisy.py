"""A judge that errs on purpose: how often, in which way, the same for the same call, and never a number for a fault;
and one whose calls are counted, recorded, bounded and held against the failure budget.
"""

import asyncio
import math
from typing import Any

import pytest

from scope_selfplay.base.errors import JudgeError
from scope_selfplay.base.values import (
    Comparison,
    Fault,
    Grade,
    Outcome,
    Rollout,
    Rubric,
    Score,
    Selection,
    Verdict,
)
from scope_selfplay.config.judge import NoiseConfig
from scope_selfplay.judge.account import MeteredJudge, check_failure_budget
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    PairQuestion,
    Question,
    Reply,
    RubricQuestion,
    Scale,
    ScoreQuestion,
    SelectQuestion,
    Style,
    failed,
)
from scope_selfplay.judge.rules import NoisyJudge
from tests.judges import CRITERION, TASK, answer_of, questions
from tests.unit.reward_designs import scripted

MANY = 2000


class Honest:
    """Likes answers with `good` in them, and has nothing to say about ones with `fog` in them."""

    identity = "honest"

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        if "fog" in repr(question):
            return failed(Fault.REFUSED, "fog")
        match question:
            case GateQuestion():
                return question.said(True)
            case RubricQuestion(task):
                return question.said(Rubric(task_id=task.id, criteria=(CRITERION,)))
            case GradeQuestion(answer=answer):
                return question.said("good" in answer)
            case PairQuestion(first=first, second=second):
                return question.said(Outcome(0.8 * _good(first), 0.8 * _good(second)))
            case SelectQuestion(candidates=candidates, winners=winners):
                order = sorted(range(len(candidates)), key=lambda number: -_good(candidates[number]))
                return question.said(order[:winners])
            case ScoreQuestion(rollout=rollout, scale=scale):
                return question.said((1.0 if scale.of_trace else 10.0) * _good(rollout))
        raise AssertionError(question)


def _good(rollout: Rollout) -> float:
    return float("good" in (rollout.answer or ""))


def noisy(**shares: float) -> NoisyJudge:
    return NoisyJudge(Honest(), NoiseConfig.model_validate(shares))


async def grades(judge: NoisyJudge, answer: str, count: int = MANY) -> list[Verdict]:
    asked = [judge.ask(GradeQuestion(TASK, CRITERION, answer, key=(number,))) for number in range(count)]
    return [reply.verdict for reply in (await asyncio.gather(*asked))]


async def matches(judge: NoisyJudge, first: str, second: str, count: int = MANY) -> list[Outcome | None]:
    pairs = ((answer_of(first, f"a{n}"), answer_of(second, f"b{n}")) for n in range(count))
    asked = [judge.ask(PairQuestion(TASK, *pair, style=Style.SCORES)) for pair in pairs]
    return [reply.value for reply in await asyncio.gather(*asked)]


async def test_every_kind_of_noise_has_its_share_of_the_comparisons() -> None:
    judge = noisy(unreadable=0.1, wrong=0.1, first=0.2, longer=0.3)
    found = await matches(judge, "good", "a longer one that is bad")
    shares = {outcome: found.count(outcome) / MANY for outcome in set(found)}
    expected = {None: 0.1, (0.0, 0.8): 0.1, (1.0, 0.0): 0.2, (0.0, 1.0): 0.3, (0.8, 0.0): 0.3}
    assert shares == pytest.approx(expected, abs=0.02)
    # Between answers of one length it has to look at what they say.
    assert set(await matches(noisy(longer=1), "good", "bad", 9)) == {Outcome(0.8, 0.0)}


async def test_a_criterion_is_met_and_a_score_is_higher_the_longer_the_answer_is() -> None:
    judge = noisy(longer=1, half_length=20)
    met = [[each.value for each in await grades(judge, "bad " * words)] for words in (5, 20, 60)]
    expected = [1 - 2**-0.25, 0.5, 1 - 2**-3]
    assert [each.count(True) / MANY for each in met] == pytest.approx(expected, abs=0.025)
    for scale, marks in ((Scale.IMPLICIT, [3.0, 5.0, 9.0]), (Scale.CORRECTNESS, [0.5, 0.5, 1.0])):
        answers = (answer_of("bad " * words) for words in (10, 20, 60))
        asked = [ScoreQuestion(TASK, answer, None, scale=scale) for answer in answers]
        assert [(await judge.ask(question)).value for question in asked] == marks


@pytest.mark.parametrize("kind", ["unreadable", "wrong", "first", "longer"])
async def test_no_fault_becomes_a_number(kind: str) -> None:
    judge = MeteredJudge(noisy(**{kind: 1}))
    foggy, clear = answer_of("fog over a long answer", 1), answer_of("good", 2)
    for question in (
        GradeQuestion(TASK, CRITERION, "fog"),
        PairQuestion(TASK, foggy, clear, style=Style.SCORES),
        ScoreQuestion(TASK, foggy, None, scale=Scale.IMPLICIT),
    ):
        assert (await judge.ask(question)).value is None
    assert judge.tally.failed == 3
    if kind == "unreadable":
        for each in questions():
            assert (await judge.ask(each)).value is None
        # All but a rubric from documents, which is no judgement.
        assert judge.tally.calls == judge.tally.failed == 3 + len(questions()) - 1


async def test_equal_calls_err_alike_in_any_order_and_more_noise_spoils_the_same_calls_and_others() -> None:
    judge = noisy(wrong=0.5)
    forth = [verdict.value for verdict in await grades(judge, "good", 200)]
    asked = (GradeQuestion(TASK, CRITERION, "good", key=(number,)) for number in reversed(range(200)))
    back = [reply.value for reply in (await asyncio.gather(*list(map(judge.ask, asked))))]
    assert forth == back[::-1] and len(set(forth)) == 2
    little, much = [[each.value for each in await grades(noisy(wrong=part), "good")] for part in (0.1, 0.3)]
    assert little.count(False) < much.count(False)
    assert not any(less is False and more for less, more in zip(little, much, strict=True))


async def test_groups_share_the_tally_and_keep_records_of_their_own() -> None:
    stage = MeteredJudge(scripted.ScriptedJudge(fails=["1 1 1"]))
    one, other = stage.for_group(), stage.for_group()
    good, bad = scripted.rollouts("9 9 9", "1 1 1")
    await one.grade_rollout(scripted.TASK, scripted.RUBRIC, good, key=())
    await one.ask(PairQuestion(scripted.TASK, good, bad, style=Style.SCORES))
    await other.ask(SelectQuestion(scripted.TASK, scripted.RUBRIC, [good, bad], 1))
    await other.ask(ScoreQuestion(scripted.TASK, good, scripted.RUBRIC, scale=Scale.IMPLICIT))
    assert (stage.tally.calls, stage.tally.failed) == (6, 2)
    assert (one.records.calls, one.records.missing) == (4, 1)
    assert (other.records.calls, other.records.missing) == (2, 1)
    assert [type(each) for each in one.records.values] == [Grade, Comparison]
    assert [type(each) for each in other.records.values] == [Selection, Score]
    assert stage.records.calls == 0


@pytest.mark.parametrize("score", [math.nan, math.inf])
async def test_a_score_that_is_no_finite_number_is_no_outcome(score: float) -> None:
    judge = MeteredJudge(scripted.ScriptedJudge(bias=score))
    pair = scripted.rollouts("9", "1")
    found = await judge.ask(PairQuestion(scripted.TASK, *pair, style=Style.SCORES))
    assert found.value is None and judge.records.missing == 1
    (comparison,) = judge.records.of(Comparison)
    assert comparison.outcome is None


async def test_what_goes_beyond_the_allowance_is_not_asked() -> None:
    behind = scripted.ScriptedJudge()
    judge = MeteredJudge(behind).for_group(allowance=4)
    task, rubric, (first, second) = scripted.TASK, scripted.RUBRIC, scripted.rollouts("9 9 9", "1 1 1")
    assert (await judge.grade_rollout(task, rubric, first, key=())).score == 1.0
    assert (await judge.grade_rollout(task, rubric, second, key=())).score is None and judge.overdrawn
    assert (await judge.ask(PairQuestion(task, first, second, style=Style.SCORES))).value is not None
    assert (await judge.ask(PairQuestion(task, second, first, style=Style.SCORES))).value is None
    assert len(behind.asked) == judge.tally.calls == 4 and len(judge.records.of(Comparison)) == 1


def test_the_failure_budget_needs_enough_calls_to_stop_a_stage() -> None:
    check_failure_budget(49, 49, 0.2)
    check_failure_budget(50, 10, 0.2)
    with pytest.raises(JudgeError, match="11 of 50 judgements failed"):
        check_failure_budget(50, 11, 0.2)
