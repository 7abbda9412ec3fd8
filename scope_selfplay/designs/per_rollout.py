"""Designs that judge each rollout by itself: `rubric`, `verifier`, `implicit`, `explicit`, `pointwise`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scope_selfplay.base.values import Check, Rollout, RolloutStatus, Rubric, Score, Task
from scope_selfplay.config.training import (
    ExplicitReward,
    ImplicitReward,
    PointwiseReward,
    RubricReward,
    VerifierReward,
)
from scope_selfplay.designs.answers import Entrants, Rewards, format_score, whole_structure
from scope_selfplay.designs.design import JudgedGroup, PerAnswerDesign, PerRolloutDesign, RolloutGroup
from scope_selfplay.judge.account import MeteredJudge, calls_to_grade
from scope_selfplay.judge.fences import View, is_opener
from scope_selfplay.judge.protocol import Scale, ScoreQuestion
from scope_selfplay.rewards.equations import (
    criterion_weights,
    explicit_reward,
    implicit_reward,
    search_reward,
    solver_reward,
    summed_objectives,
)
from scope_selfplay.rewards.verify import boxed_reward, f1, last_box, number_match, number_normal, text_match

Verify = Callable[[str, str], float | None]
"""(answer, reference) -> a reward in [0, 1]; None where the answer or the reference cannot be read."""


class RubricDesign(PerRolloutDesign[RubricReward]):
    """SCOPE equation 6."""

    name = "rubric"

    async def reward(self, group: RolloutGroup, number: int, judge: MeteredJudge) -> float | None:
        rollout = await group.rollouts[number]
        # Also where there is nothing to grade: every rollout has its grade on record.
        grade = await judge.grade_rollout(group.task, group.rubric, rollout, key=(*group.key, number))
        return None if rollout.status is RolloutStatus.FAILED else self.total(grade.score, rollout)

    def total(self, score: float | None, rollout: Rollout) -> float | None:
        """From the share of the rubric that is met; None where that is missing."""
        tokens = self.count_tokens(rollout.answer) if rollout.answer else 0
        search = search_reward(rollout.searches)
        return solver_reward(score, tokens, format_score(rollout), search, self.solver_settings)

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        return sum(calls_to_grade(rubric, rollout) for rollout in entrants.rollouts)


class VerifierDesign(PerAnswerDesign[VerifierReward]):
    """The reference answer decides. A task without one gives no rewards, or those of `otherwise`."""

    name = "verifier"
    otherwise: PerRolloutDesign[Any] | None = None

    async def reward(self, group: RolloutGroup, number: int, judge: MeteredJudge) -> float | None:
        if self.otherwise is None or self.verifies(group.task):
            return await super().reward(group, number, judge)
        return await self.otherwise.reward(group, number, judge)

    async def answer_reward(self, group: RolloutGroup, rollout: Rollout, judge: MeteredJudge) -> float | None:
        if group.task.reference is None or rollout.answer is None:
            return None
        # A checker of formulas may take a while.
        verify = self._verify_of(group.rubric, rollout.answer)
        return await asyncio.to_thread(verify, rollout.answer, group.task.reference)

    def _verify_of(self, rubric: Rubric, answer: str) -> Verify:
        if self.settings.check != "auto":
            return VERIFIERS[self.settings.check]
        checks = {criterion.check for criterion in rubric.criteria}
        if Check.BOXED in checks or last_box(answer) is not None:
            return boxed_reward
        return text_match if Check.TEXT in checks else VERIFIERS["exact"]

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        return 0

    def verifies(self, task: Task) -> bool:
        return task.reference is not None


class ImplicitDesign(PerAnswerDesign[ImplicitReward]):
    """A tenth of one score for the whole answer, plus the format (Tournament-GRPO, equations 11-12)."""

    name = "implicit"

    async def answer_reward(self, group: RolloutGroup, rollout: Rollout, judge: MeteredJudge) -> float | None:
        rubric = await self.rubric_source.find(group.task, group.rubric, judge)
        score = (await judge.ask(ScoreQuestion(group.task, rollout, rubric, scale=Scale.IMPLICIT))).value
        return None if score is None else implicit_reward(score, whole_structure(rollout))

    def without_answer(self, group: RolloutGroup, rollout: Rollout) -> float:
        return implicit_reward(0.0, whole_structure(rollout))

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        answers = len(entrants.members)
        return answers and self.rubric_source.most_calls(task, rubric) + answers


class ExplicitDesign(PerAnswerDesign[ExplicitReward]):
    """Scores per criterion, weighted, and the format, half each (Tournament-GRPO, 13-14).

    Weights are the rubric's own, or by priority where those are all equal. A criterion without verdict is left out and
    the weights renormalised. With `normalize_then_sum` the same scores become the rewards of GDPO once the group is
    complete: criteria and format, each normalised in the group, then weighted.
    """

    name = "explicit"

    async def answer_reward(self, group: RolloutGroup, rollout: Rollout, judge: MeteredJudge) -> float | None:
        rubric = await self.rubric_source.find(group.task, group.rubric, judge)
        assert rubric is not None
        calls = [
            judge.ask(ScoreQuestion(group.task, rollout, criterion, scale=Scale.EXPLICIT, row=row))
            for row, criterion in enumerate(rubric.criteria)
        ]
        scores = [reply.value for reply in await asyncio.gather(*calls)]
        shares = [None if score is None else score / 10 for score in scores]
        return explicit_reward(shares, criterion_weights(rubric.criteria), whole_structure(rollout))

    def without_answer(self, group: RolloutGroup, rollout: Rollout) -> float:
        # Every score is 0, whatever the criteria are, if there are any.
        return 0.5 * whole_structure(rollout)

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        answers, source = len(entrants.members), self.rubric_source
        return answers and source.most_calls(task, rubric) + answers * source.most_criteria(task, rubric)

    def refit(self, judged: Sequence[JudgedGroup], of_step: Sequence[Any]) -> list[Rewards]:
        if self.settings.aggregation == "sum_then_normalize":
            return super().refit(judged, of_step)
        return [self._by_objectives(group) for group in judged]

    def _by_objectives(self, judged: JudgedGroup) -> Rewards:
        rubric = self.rubric_source.known(judged.group.task, judged.group.rubric)
        if rubric is None:
            # No answer to judge in this group, or no rubric for it: formats alone differ.
            return judged.rewards
        scores = {(score.rollout_id, score.criterion): score.value for score in judged.records.of(Score)}
        objectives = [
            [_score_of(rollout, scores, row) for rollout in judged.rollouts]
            for row in range(len(rubric.criteria))
        ]
        weights = criterion_weights(rubric.criteria)
        formats = [
            None if reward is None else whole_structure(rollout)
            for rollout, reward in zip(judged.rollouts, judged.rewards, strict=True)
        ]
        halves = [summed_objectives(objectives, weights), summed_objectives([formats], [1.0])]
        return [
            None if reward is None or rubrics is None or form is None else 0.5 * rubrics + 0.5 * form
            for reward, rubrics, form in zip(judged.rewards, *halves, strict=True)
        ]


def _score_of(
    rollout: Rollout, scores: Mapping[tuple[str, int | None], float | None], row: int
) -> float | None:
    """A criterion's share of ten; 0 where there was nothing to judge, None where judging failed."""
    if rollout.status is RolloutStatus.FAILED:
        return None
    if is_opener(rollout.answer):
        return 0.0
    score = scores.get((rollout.id, row))
    return None if score is None else score / 10


class PointwiseDesign(PerAnswerDesign[PointwiseReward]):
    """The judge marks each trace (Reasoning Arena: RLAIF, Adaptive Pointwise) or answer (ArenaRL: GRPO, GSPO)."""

    name = "pointwise"

    @property
    def view(self) -> View:
        return self._scale.view

    @property
    def _scale(self) -> Scale:
        return Scale(self.settings.prompt)

    async def answer_reward(self, group: RolloutGroup, rollout: Rollout, judge: MeteredJudge) -> float | None:
        shown = self.as_judged(rollout)
        score = (await judge.ask(ScoreQuestion(group.task, shown, group.rubric, scale=self._scale))).value
        return score if score is None or self._scale.of_trace else score / 10

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        return len(entrants.members)


VERIFIERS: Mapping[str, Verify] = {
    "exact": lambda answer, reference: float(answer.casefold().split() == reference.casefold().split()),
    "boxed": boxed_reward,
    "f1": lambda answer, reference: f1(answer, [reference], normal=number_normal),
    "number": number_match,
}
"""By the name in `solver.reward.check`."""
