"""What is missing stays missing: failed calls, failed rollouts, absent answers; and who has nobody to meet."""

from typing import Any

import pytest

from scope_selfplay.base.values import Criterion, Rubric
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.designs.step import open_design
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.protocol import Question, Reply, ScoreQuestion
from tests.reference_files import read_reference, reference_cases
from tests.unit.reward_designs.scripted import (
    RUBRIC,
    TASK,
    UNREADABLE,
    ScriptedJudge,
    finished_group,
    reward,
    rollout,
    rollouts,
)

TOURNAMENT_GRPO = ("pairwise", "tournament_grpo_2_1_1", "tournament_grpo_4_2_2")
RELATIVE = (*TOURNAMENT_GRPO, "win_rate", "arenarl", "live", "balanced")
WITH_FORMAT = ("implicit", "explicit", *TOURNAMENT_GRPO)


@pytest.mark.parametrize("preset", ["implicit", "explicit", "pointwise", *RELATIVE])
@pytest.mark.parametrize("answer", [None, "", "Final answer:"])
def test_without_a_valid_answer_the_reward_is_zero_and_its_format_part(
    preset: str, answer: str | None
) -> None:
    """A rollout that failed has none at all; neither enters anything."""
    judge = ScriptedJudge()
    group = [*rollouts("9 9 9", answer, "1 1 1", "5 5 5"), rollout(4, "0 0 0", failed=True)]
    rewards = reward({"reward": preset}, judge, group).rewards[0]
    whole = 0.0 if answer is None or preset not in WITH_FORMAT else 0.5 if preset == "explicit" else 1.0
    assert rewards[1] == whole and rewards[4] is None and None not in rewards[:4]
    assert not any({str(answer), "0 0 0"} & set(asked[1:]) for asked in judge.asked)


def test_up_to_a_quarter_missing_leaves_the_others_their_rewards() -> None:
    for settings, expected, missing in (
        ({"design": "pointwise"}, [None, 0.8, 0.7, 0.1], 0.25),
        ({"design": "pointwise", "max_missing": 0.24}, [None] * 4, 0.25),
        # No call told anything about the first.
        ({"design": "win_rate", "max_missing": 1}, [None, 0.9, 0.5, 0.1], 0.5),
    ):
        found = reward({"reward": settings}, ScriptedJudge(fails=["9"]), rollouts("9", "8", "7", "1"))
        assert found.rewards == [pytest.approx(expected)]
        assert (found.metrics["judge_missing"], found.metrics["masked"]) == (
            missing,
            expected.count(None) / 4,
        )


class Half(ScriptedJudge):
    """Says nothing of the third criterion."""

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        match question:
            case ScoreQuestion(rubric=Criterion(text="third")):
                return Reply(None, UNREADABLE)
        return await super().ask(question)


@pytest.mark.parametrize(
    ("judge", "weights", "expected"),
    [
        (ScriptedJudge, (1, 1, 1), (3 * 0.8 + 2 * 0.5 + 1.0) / 6),
        (ScriptedJudge, (1, 5, 2), (0.8 + 5 * 0.5 + 2 * 1.0) / 8),
        (Half, (1, 1, 1), (3 * 0.8 + 2 * 0.5) / 5),
    ],
)
async def test_an_explicit_reward_uses_the_weights_of_a_rubric_or_its_priorities_where_all_weigh_the_same(
    judge: type[ScriptedJudge], weights: tuple[float, ...], expected: float
) -> None:
    criteria = tuple(
        criterion.model_copy(update={"weight": float(weight)})
        for criterion, weight in zip(RUBRIC.criteria, weights, strict=True)
    )
    config = SolverConfig.model_validate({"reward": {"design": "explicit", "rubrics": "task"}})
    group = finished_group(TASK, Rubric(task_id=TASK.id, criteria=criteria), rollouts("8 5 10"))
    found = await open_design(config.reward, config, len).rewards(group, MeteredJudge(judge()))
    assert found == [pytest.approx(0.5 * (expected + 1))]


@pytest.mark.parametrize("preset", ["implicit", "explicit", "pairwise", "tournament_grpo_4_2_2"])
def test_without_a_rubric_to_judge_by_the_group_is_masked(preset: str) -> None:
    judge = ScriptedJudge(writes=False)
    found = reward({"reward": preset}, judge, rollouts("9 9 9", "8 8 8", "1 1 1"))
    assert found.rewards == [[None] * 3]
    assert judge.asked == [("rubric",)]


@pytest.mark.parametrize("preset", RELATIVE)
def test_equal_answers_and_those_of_nobody_tie_without_a_call(preset: str) -> None:
    """Who has nobody to meet gets what all get when all are equal."""
    judge = ScriptedJudge()
    found = reward({"reward": preset}, judge, rollouts("5 5", "5  5", " 5 5 ", "5\n5"))
    (equal,) = set(found.rewards[0])
    assert equal is not None and not any(found.teaching)
    gone = [rollout(number, "1", failed=True) for number in (1, 2)]
    assert reward({"reward": preset}, judge, [rollout(0, "9"), *gone]).rewards == [[equal, None, None]]
    assert reward({"reward": preset}, judge, rollouts(None, None, None)).rewards == [[0.0, 0.0, 0.0]]
    assert [asked for asked in judge.asked if asked != ("rubric",)] == []
    (rewards,) = reward({"reward": preset}, judge, rollouts("9", "5", "5", "1", "5")).rewards
    assert rewards[1] == rewards[2] == rewards[4]
    assert rewards[0] is not None and rewards[3] is not None and rewards[0] > rewards[3]


FILE = "unanswered_cases.json"
TOPOLOGIES = ("round_robin", "anchor", "single_elimination", "double_elimination", "swiss")


@pytest.mark.parametrize("case", reference_cases(FILE, "id"))
def test_a_group_with_few_answers_is_rewarded_as_worked_out_by_hand(case: dict[str, Any]) -> None:
    for preset, expected in case["expected"].items():
        judge = ScriptedJudge()
        (found,) = reward({"reward": preset}, judge, rollouts(*case["answers"])).rewards
        assert found == pytest.approx(expected, abs=read_reference(FILE)["tolerance"]), preset
        assert len(judge.asked) == case["calls"].get(preset, len(judge.asked)), preset


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_topology_ranks_the_weakest_answer_above_none(topology: str) -> None:
    settings = {"reward": {"design": "arena", "topology": topology}}
    (found,) = reward(settings, ScriptedJudge(), rollouts("1", None, "9", None)).rewards
    assert found == pytest.approx([2 / 3, 0.0, 1.0, 0.0])
