"""Designs that judge each rollout by itself: `rubric`, `verifier`, `implicit`, `explicit`, `pointwise`."""

import asyncio
from collections.abc import Callable

from scope_selfplay.config import SolverConfig
from scope_selfplay.config.rewards import ExplicitReward, ImplicitReward
from scope_selfplay.judge import Scale
from scope_selfplay.judge.metered import MeteredJudge, RubricSource, calls_to_grade
from scope_selfplay.reward_designs.answers import Entrants, format_score, whole_structure
from scope_selfplay.reward_designs.design import PerRolloutDesign
from scope_selfplay.reward_designs.groups import RolloutGroup
from scope_selfplay.rewards import explicit_reward, implicit_reward, search_reward, solver_reward
from scope_selfplay.schemas import Rollout, RolloutStatus, Rubric, Task

Verify = Callable[[str, str], float | None]
"""(answer, reference) -> a reward in [0, 1]; None where the answer or the reference cannot be read."""

_TEN = 10.0


class RubricDesign(PerRolloutDesign):
    """SCOPE equation 6. `count` gives the tokens of a text."""

    def __init__(self, settings: SolverConfig, count: Callable[[str], int]) -> None:
        self._settings = settings
        self._count = count

    async def reward(self, group: RolloutGroup, number: int, desk: MeteredJudge) -> float | None:
        rollout = await group.rollouts[number]
        # Also where there is nothing to grade: every rollout has its grade on record.
        grade = await desk.grade(group.task, group.rubric, rollout, (*group.key, number))
        if rollout.status is RolloutStatus.FAILED:
            return None
        return None if grade.score is None else self.total(grade.score, rollout)

    async def value(self, group: RolloutGroup, rollout: Rollout, desk: MeteredJudge) -> float | None:
        return (await desk.grade(group.task, group.rubric, rollout, group.key)).score

    def total(self, value: float, rollout: Rollout) -> float:
        settings = self._settings
        tokens = self._count(rollout.answer) if rollout.answer and settings.length_factor else 0
        reward = solver_reward(
            value,
            tokens,
            format_score(rollout),
            search_reward(rollout.searches, settings.search_saturation),
            rubric_weight=settings.rubric_weight,
            format_weight=settings.format_weight,
            search_weight=settings.search_weight,
            soft=settings.length_soft,
            hard=settings.length_hard,
            floor=settings.length_floor,
        )
        assert reward is not None
        return reward

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        return sum(calls_to_grade(rubric, rollout) for rollout in entrants.rollouts)


class VerifierDesign(PerRolloutDesign):
    """The reference answer decides. A task without one gives no rewards."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify

    async def value(self, group: RolloutGroup, rollout: Rollout, desk: MeteredJudge) -> float | None:
        if group.task.reference is None or rollout.answer is None:
            return None
        # A checker of formulas may take a while.
        return await asyncio.to_thread(self._verify, rollout.answer, group.task.reference)

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        return 0


class ImplicitDesign(PerRolloutDesign):
    """A tenth of one score for the whole answer, plus the format (Tournament-GRPO, equations 11-12)."""

    def __init__(self, settings: ImplicitReward) -> None:
        self.shelf = RubricSource(settings.rubrics)

    async def value(self, group: RolloutGroup, rollout: Rollout, desk: MeteredJudge) -> float | None:
        rubric = await self.shelf.find(group.task, group.rubric, desk)
        return await desk.score(group.task, rollout, rubric, Scale.IMPLICIT)

    def total(self, value: float, rollout: Rollout) -> float:
        return implicit_reward(value, whole_structure(rollout))

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        answers = len(entrants.members)
        return answers and self.shelf.most_calls(task) + answers


class ExplicitDesign(PerRolloutDesign):
    """Scores per criterion, weighted by priority, and the format, half each (Tournament-GRPO, 13-14).

    A criterion without verdict is left out and the weights renormalised.
    """

    def __init__(self, settings: ExplicitReward) -> None:
        self.shelf = RubricSource(settings.rubrics)

    async def value(self, group: RolloutGroup, rollout: Rollout, desk: MeteredJudge) -> float | None:
        rubric = await self.shelf.find(group.task, group.rubric, desk)
        assert rubric is not None
        calls = [
            desk.score(group.task, rollout, criterion, Scale.EXPLICIT, criterion=row)
            for row, criterion in enumerate(rubric.criteria)
        ]
        scores = await asyncio.gather(*calls)
        known = [
            (score, each.priority)
            for score, each in zip(scores, rubric.criteria, strict=True)
            if score is not None
        ]
        if not known:
            return None
        return 2 * explicit_reward(
            [score / _TEN for score, _ in known], [priority for _, priority in known], 0.0
        )

    def total(self, value: float, rollout: Rollout) -> float:
        return 0.5 * (value + whole_structure(rollout))

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        answers = len(entrants.members)
        return answers and self.shelf.most_calls(task) + answers * self.shelf.most_criteria(task, rubric)


class PointwiseDesign(PerRolloutDesign):
    """The judge calls an answer right, partly right or wrong (Reasoning Arena, the RLAIF baseline)."""

    async def value(self, group: RolloutGroup, rollout: Rollout, desk: MeteredJudge) -> float | None:
        return await desk.score(group.task, rollout, group.rubric, Scale.CORRECTNESS)

    def most_calls(self, task: Task, rubric: Rubric, entrants: Entrants) -> int:
        return len(entrants.members)


def exact_match(answer: str, reference: str) -> float:
    """1 for equal texts, case and white space aside, else 0."""
    return float(answer.casefold().split() == reference.casefold().split())
