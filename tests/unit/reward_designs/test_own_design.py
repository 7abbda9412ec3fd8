"""What a researcher writes: a settings class and a class with one method, as the docstring of `design` shows."""

from typing import Literal

from scope_selfplay.base.values import Rollout
from scope_selfplay.config.rewards import RewardSettings
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.designs.design import PerAnswerDesign, RolloutGroup
from scope_selfplay.judge.account import MeteredJudge
from tests.unit.reward_designs.scripted import RUBRIC, TASK, ScriptedJudge, finished_group, rollouts


class BrevityReward(RewardSettings):
    design: Literal["brevity"] = "brevity"


async def test_a_design_with_one_method_rewards_a_group_at_a_price_that_covers_its_calls() -> None:
    class BrevityDesign(PerAnswerDesign[BrevityReward]):
        name = "brevity"

        async def answer_reward(
            self, group: RolloutGroup, rollout: Rollout, judge: MeteredJudge
        ) -> float | None:
            grade = await judge.grade_rollout(group.task, group.rubric, rollout, key=(*group.key, rollout.id))
            length = self.count_tokens(rollout.answer or "") / 1000
            return None if grade.score is None else grade.score / (1 + length)

    design = BrevityDesign(BrevityReward(), SolverConfig(), lambda text: len(text.split()))
    answers = rollouts("9 9 9", "9 9 9 and so on and on", None)
    judge = MeteredJudge(ScriptedJudge())
    short, long, absent = await design.rewards(finished_group(TASK, RUBRIC, answers), judge)
    assert short is not None and long is not None and short > long > 0
    assert absent == 0.0 and judge.tally.calls == 2 * len(RUBRIC.criteria)
    assert design.most_calls(TASK, RUBRIC, design.entrants(answers)) == judge.tally.calls
