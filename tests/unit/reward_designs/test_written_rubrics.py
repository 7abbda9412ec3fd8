"""Rubrics that the judge writes from the query are records, and are kept."""

import pytest

from scope_selfplay.base.values import Check, Criterion, Rubric
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.designs.step import open_rewarder
from scope_selfplay.judge.account import MeteredJudge
from tests.unit.reward_designs.scripted import RUBRIC, TASK, ScriptedJudge, finished_group, reward, rollouts


def test_a_rubric_from_the_query_is_recorded_once() -> None:
    groups = [rollouts("2", "1"), rollouts("3", "1", first=5)]
    found = reward({"reward": "tournament_grpo_2_1_1"}, ScriptedJudge(), *groups)
    assert [rubric for records in found.records for rubric in records.of(Rubric)] == [RUBRIC]


TOURNAMENT = SolverConfig.model_validate({"reward": "tournament_grpo_2_1_1"})
OWN = Rubric(task_id="t1", criteria=(Criterion(text="first"),))


@pytest.mark.parametrize("preset", ["implicit", "explicit", "pairwise", "tournament_grpo_2_1_1"])
async def test_a_rubric_that_a_question_brought_is_used_and_none_is_written(preset: str) -> None:
    """Tournament-GRPO, section 4.1: rubrics of queries are made before training and stay as they are."""
    judge, question = ScriptedJudge(), TASK.model_copy(update={"document_id": ""})
    rewarder = open_rewarder(SolverConfig.model_validate({"reward": preset}), MeteredJudge(judge), len)
    await rewarder.judge_step([finished_group(question, OWN, rollouts("2", "1"), ("g",))], ("s",))
    most = rewarder.design.most_calls(question, OWN, rewarder.design.entrants(rollouts("2", "1")))
    assert ("rubric",) not in judge.asked and 0 < len(judge.asked) <= most
    if preset in ("pairwise", "tournament_grpo_2_1_1"):
        assert set(judge.rubrics) == {OWN}


@pytest.mark.parametrize("document", ["", "d1"])
async def test_a_reference_answer_or_a_rubric_from_a_document_is_none_of_the_query(document: str) -> None:
    judge, task = ScriptedJudge(), TASK.model_copy(update={"document_id": document})
    own = OWN if document else Rubric(task_id="t1", criteria=(Criterion(text="8", check=Check.BOXED),))
    rewarder = open_rewarder(TOURNAMENT, MeteredJudge(judge), len)
    await rewarder.judge_step([finished_group(task, own, rollouts("2", "1"), ("g",))], ("s",))
    assert judge.asked.count(("rubric",)) == 1 and judge.rubrics == [RUBRIC] * 4


async def test_a_training_that_goes_on_keeps_its_rubrics() -> None:
    judge = ScriptedJudge()
    rewarder = open_rewarder(TOURNAMENT, MeteredJudge(judge), len)
    rewarder.design.rubric_source.keep([RUBRIC])
    await rewarder.judge_step([finished_group(TASK, RUBRIC, rollouts("2", "1"), ("g",))], ("s",))
    assert ("rubric",) not in judge.asked and judge.rubrics == [RUBRIC] * 4
