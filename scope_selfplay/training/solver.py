"""Stage C: the Solver learns to answer the tasks that were kept, rewarded by one of the designs (`solver.reward`)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from scope_selfplay.config import SolverConfig
from scope_selfplay.inference import Generate, PolicyModel, Sample
from scope_selfplay.pipeline import RunContext
from scope_selfplay.reward_designs import Arrivals, RolloutGroup, StepRewards, open_rewarding
from scope_selfplay.reward_designs.answers import format_score
from scope_selfplay.rewards import length_factor, search_reward
from scope_selfplay.schemas import Key, Role, Rollout, Rubric, Task
from scope_selfplay.store import Appender
from scope_selfplay.training.grpo import GrpoJob, RollStep, StepResult
from scope_selfplay.training.steps import Learner, RolloutClock, conduct, make_learner, mean, scored


class GradedTask(NamedTuple):
    task: Task
    rubric: Rubric


def make_solver_roll(
    model: Any,
    job: GrpoJob,
    context: RunContext,
    tasks: Mapping[str, GradedTask],
    *,
    checkpoint: str,
    key: Key,
) -> RollStep:
    """What makes and rewards the rollouts of one Solver step; judging goes on while others are still generated."""
    learner = make_learner(model, job, context, Role.SOLVER, checkpoint)
    settings = context.config.solver
    rewarding = open_rewarding(settings, context.judge, context.tally, job.codec.count)

    async def roll(records: Sequence[str], step: int) -> StepResult:
        learner.renew(step)
        clock = RolloutClock()
        begun = _Begun(context, learner, clock, greedy_first=rewarding.design.has_anchor)
        firsts = records[:: settings.group_size]
        groups = [_begin(begun, tasks[record], (*key, step, record)) for record in firsts]
        found = await rewarding.step(groups, (*key, step))
        rollouts = [rollout for group in groups for rollout in await group.all_rollouts()]
        _keep(job, rollouts, found)
        rewards = chain.from_iterable(found.rewards)
        metrics = _metrics(settings, rollouts, found, job.codec.count)
        lined_up = zip(rollouts, rewards, strict=True)
        return StepResult(
            [scored(*each, learner.policy_format) for each in lined_up], metrics | clock.seconds()
        )

    return roll


class _Begun(NamedTuple):
    """What the groups of a step share. The first rollout of each is greedy where the design has an anchor."""

    context: RunContext
    learner: Learner
    clock: RolloutClock
    greedy_first: bool


def _begin(step: _Begun, graded: GradedTask, key: Key) -> RolloutGroup:
    """Starts the rollouts of one group."""
    context, learner = step.context, step.learner
    size = context.config.solver.group_size
    arrivals = Arrivals(size, deterministic=context.config.model.deterministic)

    async def one(member: int) -> Rollout:
        policy_format = replace(learner.policy_format, greedy=step.greedy_first and member == 0)
        engine = _Metered(learner.engine, lambda tokens: arrivals.spoke(member, tokens))
        each = (*key, member)
        try:
            return await context.sample_rollout(
                context.solver_episode(policy_format, each, graded.task), engine, each
            )
        finally:
            arrivals.finish(member)
            step.clock.finished()

    rollouts = [asyncio.ensure_future(one(member)) for member in range(size)]
    return RolloutGroup(graded.task, graded.rubric, rollouts, arrivals, key)


class _Metered:
    """A policy that tells how many tokens it has generated, turn by turn."""

    def __init__(self, model: PolicyModel, spoke: Callable[[int], None]) -> None:
        self._model = model
        self._spoke = spoke

    @property
    def identity(self) -> str:
        return self._model.identity

    async def generate(self, request: Generate, key: Key) -> Sample:
        sample = await self._model.generate(request, key)
        self._spoke(len(sample.ids))
        return sample


def _metrics(
    settings: SolverConfig, rollouts: Sequence[Rollout], found: StepRewards, count: Callable[[str], int]
) -> dict[str, float | None]:
    """The parts of SCOPE's reward (equation 6) without their weights, whatever the design rewards, and conduct."""
    grades = [grade.score for books in found.books for grade in books.grades]
    lengths = [count(rollout.answer) for rollout in rollouts if rollout.answer]
    limits = (settings.length_soft, settings.length_hard, settings.length_floor)
    return {
        **({"rubric": mean(grades)} if grades else {}),
        "format": mean([format_score(rollout) for rollout in rollouts]),
        "search": mean([search_reward(each.searches, settings.search_saturation) for each in rollouts]),
        "answer_tokens": mean(lengths),
        "length_factor": mean([length_factor(tokens, *limits) for tokens in lengths]),
        **found.metrics,
        **conduct(rollouts),
    }


def _keep(job: GrpoJob, rollouts: Sequence[Rollout], found: StepRewards) -> None:
    """Everything that was generated and judged; a file per kind of record, only for kinds that there are."""
    folder, books = job.books, found.books
    for path, records in (
        (folder.rollouts, [rollout.without_ids() for rollout in rollouts]),
        (folder.grades, [grade for each in books for grade in each.grades]),
        (folder.comparisons, [comparison for each in books for comparison in each.comparisons]),
        (folder.selections, [selection for each in books for selection in each.selections]),
        (folder.scores, [score for each in books for score in each.scores]),
    ):
        if records:
            with Appender(path) as file:
                file.append(*records)
