"""Which groups go to the tournament, when, and what that may cost."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scope_selfplay.base.values import Rollout
from scope_selfplay.config.training import ROUTED, SolverConfig
from scope_selfplay.designs.design import RolloutGroup
from scope_selfplay.judge.protocol import PairQuestion, Question, Reply, RubricQuestion
from tests.unit.reward_designs.scripted import (
    RUBRIC,
    TASK,
    ScriptedJudge,
    StepRewards,
    open_group,
    reward,
    rewards_of_step,
    rollouts,
)

# With the verifier: "eight" is right. The scripted judge reads the number that an answer begins with.
RIGHT = TASK.model_copy(update={"reference": "9"})


@pytest.mark.parametrize("budget", [None, 1000])
def test_only_flat_groups_go_to_the_design(budget: int | None) -> None:
    """Reasoning Arena equation 5: verifier rewards where they differ."""
    diverse, wrong = rollouts("9", "1", "9", "2"), rollouts("4", "3", "2", "1", first=4)
    for design in ("live", "win_rate", "pointwise", "balanced", "arenarl", "tournament_grpo_2_1_1"):
        judge, settings = ScriptedJudge(), {"reward": design, "routing": {"by": "verifier", "budget": budget}}
        found = reward(settings, judge, diverse, wrong, task=RIGHT)
        assert found.rewards[0] == [1.0, 0.0, 1.0, 0.0]
        everywhere = reward({"reward": design}, ScriptedJudge(), diverse, wrong, task=RIGHT)
        assert found.rewards[1] == pytest.approx(everywhere.rewards[1], abs=5e-3)
        assert found.metrics["routed"] == 0.5 and any(found.teaching[:4]) and any(found.teaching[4:])
        assert design == "live" or not any("9" in asked for asked in judge.asked)


def test_rubric_rewards_route_as_verifier_rewards_do() -> None:
    judge = ScriptedJudge()
    settings = {"reward": "live", "routing": "rubric"}
    flat, diverse = rollouts("9 9 9", "8 8 8", "7 7 7"), rollouts("9 9 1", "9 1 1", "9 9 1", first=3)
    found = reward(settings, judge, flat, diverse)
    assert found.rewards[0] == pytest.approx([1.0, 0.5, 0.0], abs=1e-5)
    assert found.rewards[1] == reward({"reward": "rubric"}, ScriptedJudge(), diverse).rewards[0]
    assert found.metrics["judge_calls"] == 18 + 3
    # A group whose own rewards are masked is not routed.
    judge = ScriptedJudge(fails=["9 9 9", "8 8 8"])
    found = reward(settings, judge, rollouts("9 9 9", "8 8 8", "7 7 7", "6 6 6"))
    assert found.rewards == [[None] * 4] and found.metrics["routed"] == 0.0


@pytest.mark.parametrize("preset", sorted(ROUTED))
def test_a_preset_of_reasoning_arena_routes_by_what_is_verified(preset: str) -> None:
    """Verified rewards where a task has a reference (equation 5), the rubric's where it has none."""
    settings = SolverConfig.model_validate({"reward": preset})
    assert settings.routing is not None and settings.routing.by == "auto"
    # All right, with rubric rewards that differ; all wrong, likewise.
    group = rollouts("9 9 9", "9 9 1", "9 1 1")
    wrong, bare = (TASK.model_copy(update={"reference": reference}) for reference in ("8", None))
    verified = reward({"reward": preset}, ScriptedJudge(), group, task=wrong)
    assert verified.metrics["routed"] == 1.0
    graded = reward({"reward": preset}, ScriptedJudge(), group, task=bare)
    assert graded.metrics["routed"] == 0.0
    assert graded.rewards == reward({"reward": "rubric"}, ScriptedJudge(), group, task=bare).rewards


# The most calls for eight different answers, a rubric's writing included, and what the scripted judge, whose rubrics
# have three criteria, makes of them.
PRICES: dict[str, tuple[int, int | None]] = {
    "rubric": (24, 24),
    "implicit": (9, 9),
    "explicit": (57, 25),
    "pairwise": (29, 29),
    "win_rate": (28, 28),
    "tournament_grpo_2_1_1": (29, None),
    "tournament_grpo_4_2_2": (25, None),
    "arenarl": (28, None),
    "arenarl_pointwise": (8, 8),
    "live": (18, 18),
    "balanced": (18, 18),
}


@pytest.mark.parametrize("preset", PRICES)
def test_no_call_goes_beyond_the_budget_of_a_step(preset: str) -> None:
    group = rollouts(*[f"{worth} {worth} {worth}" for worth in (8, 7, 6, 5, 4, 3, 2, 1)])
    price, calls = PRICES[preset]
    for budget in (price - 1, price):
        judge, settings = ScriptedJudge(), {"reward": preset, "routing": {"by": "verifier", "budget": budget}}
        found = reward(settings, judge, group, task=RIGHT)
        assert len(judge.asked) == found.metrics["judge_calls"] <= budget
        left_out = budget < price
        assert (found.metrics["left_out"], found.metrics["routed"]) == (left_out, not left_out)
        if left_out:
            assert judge.asked == [] and found.rewards == [[0.0] * 8]
        else:
            assert calls is None or len(judge.asked) == calls


class Verbose(ScriptedJudge):
    """Writes more criteria than Tournament-GRPO asks for."""

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        found = await super().ask(question)
        if not isinstance(question, RubricQuestion):
            return found
        return replace(found, value=RUBRIC.model_copy(update={"criteria": RUBRIC.criteria * 3}))


def test_a_rubric_longer_than_promised_does_not_overdraw_the_budget() -> None:
    judge = Verbose()
    settings = {"reward": "explicit", "routing": {"by": "verifier", "budget": 60}}
    found = reward(settings, judge, rollouts(*["9 9 9"] * 8), task=RIGHT)
    assert found.metrics["judge_calls"] == len(judge.asked) == 57
    assert found.rewards == [[0.0] * 8] and found.metrics["left_out"] == 1.0


def test_what_a_group_has_left_over_serves_the_next() -> None:
    """At most 22 calls a group of three: 7 criteria each and the rubric, of which the judge writes three criteria."""
    groups = [rollouts("4 4 4", "3 3 3", "2 2 2", first=3 * number) for number in range(3)]
    settings = {"reward": "explicit", "routing": {"by": "verifier", "budget": 32}}
    found = reward(settings, ScriptedJudge(), *groups, task=RIGHT)
    # 1 + 9, then 22 are left, of which a written rubric takes 9 each.
    assert found.metrics["judge_calls"] == 1 + 9 + 9 + 9 and found.metrics["routed"] == 1.0


async def test_comparisons_are_made_while_other_rollouts_are_still_on_their_way() -> None:
    judge = ScriptedJudge()
    group = open_group(3, deterministic=False)
    stepping = asyncio.ensure_future(live(judge, group))
    answers = rollouts("1", "2", "3")
    for number in (2, 0):
        await arrive(group, number, answers[number])
    assert len(judge.asked) == 1
    await arrive(group, 1, answers[1])
    assert (await stepping).rewards == [pytest.approx([0.0, 0.5, 1.0], abs=1e-5)]


async def arrive(group: RolloutGroup, number: int, rollout: Rollout) -> None:
    group.rollouts[number].set_result(rollout)
    group.arrivals.finish(number)
    for _ in range(20):
        await asyncio.sleep(0)


async def live(judge: ScriptedJudge, group: RolloutGroup) -> StepRewards:
    return await rewards_of_step(SolverConfig.model_validate({"reward": "live"}), judge, [group], ())


class Hesitant(ScriptedJudge):
    """Takes its time over some pairs, and not always over the same."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self._slow = slow

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        assert isinstance(question, PairQuestion)
        await asyncio.sleep(0.005 if self._slow in (question.first.answer, question.second.answer) else 0)
        return await super().ask(question)


@pytest.mark.parametrize("slow", ["1", "4"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 3, 0, 1)])
async def test_a_deterministic_run_makes_the_same_comparisons_whatever_the_timing(
    slow: str, order: Sequence[int]
) -> None:
    judge = Hesitant(slow)
    group = open_group(5, deterministic=True)
    stepping = asyncio.ensure_future(live(judge, group))
    answers, tokens = rollouts("3", "5", "1", "4", "2"), [10, 9, 7, 7, 6]
    for number in order:
        group.arrivals.generated(number, tokens[number])
        await arrive(group, number, answers[number])
    found = await stepping
    met = ["".join(sorted(asked[1:])) for asked in judge.asked]
    # They count as arrived from the shortest to the longest, and equals by number: 2, 1, 4, 5, 3.
    assert [sorted(met[:1]), sorted(met[1:3]), sorted(met[3:6])] == [["12"], ["14", "24"], ["15", "25", "45"]]
    assert len(met) == 9
    assert found.rewards[0][1] == pytest.approx(1.0, abs=1e-5) and found.rewards[0][2] == 0.0
