"""Judge calls are counted, recorded, bounded and held against the failure budget in one place."""

import pytest

from scope_selfplay.base.errors import JudgeError
from scope_selfplay.base.values import Comparison, Grade, Score, Selection
from scope_selfplay.judge.account import MeteredJudge, check_failure_budget
from scope_selfplay.judge.protocol import (
    PairQuestion,
    RubricQuestion,
    Scale,
    ScoreQuestion,
    SelectQuestion,
    Style,
)
from tests.unit.reward_designs.scripted import RUBRIC, TASK, ScriptedJudge, rollouts


async def test_groups_share_the_tally_and_keep_records_of_their_own() -> None:
    stage = MeteredJudge(ScriptedJudge(fails=["1 1 1"]))
    one, other = stage.for_group(), stage.for_group()
    good, bad = rollouts("9 9 9", "1 1 1")
    await one.grade_rollout(TASK, RUBRIC, good, key=())
    await one.ask(PairQuestion(TASK, good, bad, style=Style.SCORES))
    await other.ask(SelectQuestion(TASK, RUBRIC, [good, bad], 1))
    await other.ask(ScoreQuestion(TASK, good, RUBRIC, scale=Scale.IMPLICIT))
    assert (stage.tally.calls, stage.tally.failed) == (6, 2)
    assert (one.records.calls, one.records.missing) == (4, 1)
    assert (other.records.calls, other.records.missing) == (2, 1)
    assert [type(each) for each in one.records.values] == [Grade, Comparison]
    assert [type(each) for each in other.records.values] == [Selection, Score]
    assert stage.records.calls == 0


async def test_a_rubric_written_from_the_query_is_a_call_and_one_from_documents_is_none() -> None:
    judge = MeteredJudge(ScriptedJudge(writes=False))
    assert (await judge.ask(RubricQuestion(TASK, ()))).value is None
    assert (judge.tally.calls, judge.tally.failed, judge.records.missing) == (1, 1, 1)


async def test_what_goes_beyond_the_allowance_is_not_asked() -> None:
    scripted = ScriptedJudge()
    judge = MeteredJudge(scripted).for_group(allowance=4)
    first, second = rollouts("9 9 9", "1 1 1")
    assert (await judge.grade_rollout(TASK, RUBRIC, first, key=())).score == 1.0
    assert (await judge.grade_rollout(TASK, RUBRIC, second, key=())).score is None and judge.overdrawn
    assert (await judge.ask(PairQuestion(TASK, first, second, style=Style.SCORES))).value is not None
    assert (await judge.ask(PairQuestion(TASK, second, first, style=Style.SCORES))).value is None
    assert len(scripted.asked) == judge.tally.calls == 4 and len(judge.records.of(Comparison)) == 1


def test_the_failure_budget_needs_enough_calls_to_stop_a_stage() -> None:
    for calls, failed in ((49, 49), (50, 10)):
        check_failure_budget(calls, failed, 0.2)
    with pytest.raises(JudgeError, match="11 of 50 judgements failed"):
        check_failure_budget(50, 11, 0.2)
