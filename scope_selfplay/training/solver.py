"""Stage C: the Solver learns to answer the tasks that were kept, rewarded by one of the designs (`solver.reward`)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scope_selfplay.config import SolverConfig
from scope_selfplay.inference import Generate, PolicyModel, Sample
from scope_selfplay.judge.metered import JudgeRecords, MeteredJudge
from scope_selfplay.keys import Key
from scope_selfplay.measures import Mean, Measure
from scope_selfplay.reward_designs.answers import format_score
from scope_selfplay.reward_designs.design import RubricSource, Unjudgeable
from scope_selfplay.reward_designs.groups import Arrivals, RolloutGroup
from scope_selfplay.reward_designs.step_rewards import open_rewarder, records_of, reward_metrics
from scope_selfplay.rewards import length_factor, search_reward
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import Role, Rollout, Rubric, Task
from scope_selfplay.store import Appender, read_records
from scope_selfplay.training.generation import PolicyInTraining, policy_in_training
from scope_selfplay.training.job import GrpoJob, StepResult, StepSampler
from scope_selfplay.training.step_metrics import RolloutClock, behaviour_metrics


@dataclass(frozen=True)
class TaskWithRubric:
    """A given task may lack a rubric; the judge then writes one from the question, if the reward needs it."""

    task: Task
    rubric: Rubric | None


def solver_sampler(
    model: Any,
    job: GrpoJob,
    context: RunContext,
    tasks: Mapping[str, TaskWithRubric],
    *,
    checkpoint: str,
    key: Key,
) -> StepSampler:
    """Samples and rewards the rollouts of one Solver step; judging begins while others are still generated."""
    learner = policy_in_training(model, job, context, Role.SOLVER, checkpoint)
    settings, count = context.config.solver, job.codec.count
    rewarder = open_rewarder(settings, context.judge, count, job.ranks)
    written = RubricSource("query" if settings.needs_rubrics else "none")
    # A training that goes on keeps the rubrics that it was begun with; the first process may be merging them now.
    kept = [*read_records(job.records_folder.rubrics, Rubric), *read_records(job.folder.rubrics, Rubric)]
    for source in (written, rewarder.design.rubric_source):
        source.keep(kept)

    async def sample_step(records: Sequence[str], step: int) -> StepResult:
        learner.refresh_weights(step)
        anchor = rewarder.design.has_anchor
        writer = context.judge.for_group()
        sampling = _SolverSampling(context, learner, RolloutClock(), written, writer, greedy_first=anchor)
        firsts = records[:: settings.group_size]
        begun = [sampling.begin_group(tasks[record], (*key, step, record)) for record in firsts]
        groups = await asyncio.gather(*begun)
        judging = rewarder.judge_step(groups, (*key, step))
        # Groups that are sampled again need the engine until the last of them is judged.
        judged, _ = await asyncio.gather(judging, _announce(groups, learner, again=settings.resample > 0))
        rewarded = [pair for group in judged for pair in zip(group.rollouts, group.rewards, strict=True)]
        rollouts = [rollout for rollout, _ in rewarded]
        _store_records(job, rollouts, [writer.records, *records_of(judged)])
        metrics = {
            **_answer_metrics(settings, rollouts, records_of(judged), count),
            **reward_metrics(judged),
            **behaviour_metrics(rollouts),
            **context.canary_measures(),
            **sampling.clock.seconds(),
        }
        return StepResult([learner.rewarded(*pair) for pair in rewarded], metrics)

    return sample_step


async def _announce(groups: Sequence[RolloutGroup], learner: PolicyInTraining, *, again: bool) -> None:
    """Tells the engine when the last rollout of the step has ended."""
    rollouts = [rollout for group in groups for rollout in await group.all_rollouts()]
    if not again:
        learner.all_sampled(rollouts)


@dataclass(frozen=True)
class _SolverSampling:
    """What the groups of a step share. The first rollout of each is greedy where the design has an anchor."""

    context: RunContext
    learner: PolicyInTraining
    clock: RolloutClock
    written: RubricSource
    writer: MeteredJudge
    """The judge that writes the rubrics of `written`; its records are those of the step."""
    greedy_first: bool

    async def begin_group(self, graded: TaskWithRubric, key: Key) -> RolloutGroup:
        """Starts the rollouts of one group; a rubric that is missing is written while they are generated."""
        size = self.context.config.solver.group_size
        arrivals = Arrivals(size, deterministic=self.context.config.model.deterministic is not False)
        rollouts = [
            asyncio.ensure_future(self._sample_member(graded.task, member, key, arrivals))
            for member in range(size)
        ]
        rubric = graded.rubric or await self._written_rubric(graded.task)
        return RolloutGroup(graded.task, rubric, rollouts, arrivals, key)

    async def _written_rubric(self, task: Task) -> Rubric:
        """Without criteria where the reward needs none, or the judge could not write any."""
        none = Rubric(task_id=task.id, criteria=())
        try:
            return await self.written.find(task, none, self.writer) or none
        except Unjudgeable:
            return none

    async def _sample_member(self, task: Task, member: int, key: Key, arrivals: Arrivals) -> Rollout:
        policy_format = replace(self.learner.policy_format, greedy=self.greedy_first and member == 0)
        engine = _CountedEngine(self.learner.engine, lambda tokens: arrivals.generated(member, tokens))
        own_key = (*key, member)
        try:
            episode = self.context.solver_episode(policy_format, own_key, task)
            return await self.context.sample_rollout(episode, engine, own_key)
        finally:
            arrivals.finish(member)
            self.clock.finished()


class _CountedEngine:
    """Reports how many tokens the policy has generated, turn by turn."""

    def __init__(self, model: PolicyModel, generated: Callable[[int], None]) -> None:
        self._model = model
        self._generated = generated

    @property
    def identity(self) -> str:
        return self._model.identity

    async def generate(self, request: Generate, key: Key) -> Sample:
        sample = await self._model.generate(request, key)
        self._generated(len(sample.ids))
        return sample


def _answer_metrics(
    settings: SolverConfig,
    rollouts: Sequence[Rollout],
    records: Sequence[JudgeRecords],
    count: Callable[[str], int],
) -> dict[str, Measure]:
    """The parts of SCOPE's reward (equation 6) without their weights, whatever the design rewards."""
    grades = [grade.score for group in records for grade in group.grades]
    lengths = [count(rollout.answer) for rollout in rollouts if rollout.answer]
    limits = (settings.length_soft, settings.length_hard, settings.length_floor)
    return {
        **({"rubric": Mean.of(grades)} if grades else {}),
        "format": Mean.of([format_score(rollout) for rollout in rollouts]),
        "search": Mean.of(
            [search_reward(rollout.searches, settings.search_saturation) for rollout in rollouts]
        ),
        "answer_tokens": Mean.of(lengths),
        "length_factor": Mean.of([length_factor(tokens, *limits) for tokens in lengths]),
    }


def _store_records(job: GrpoJob, rollouts: Sequence[Rollout], judged: Sequence[JudgeRecords]) -> None:
    """Everything that was generated and judged; a file per kind of record, only for kinds that there are."""
    folder = job.records_folder
    for path, records in (
        (folder.rollouts, [rollout.without_ids() for rollout in rollouts]),
        (folder.grades, [grade for group in judged for grade in group.grades]),
        (folder.comparisons, [comparison for group in judged for comparison in group.comparisons]),
        (folder.selections, [selection for group in judged for selection in group.selections]),
        (folder.scores, [score for group in judged for score in group.scores]),
        (folder.rubrics, [rubric for group in judged for rubric in group.rubrics]),
    ):
        if records:
            with Appender(path) as file:
                file.append(*records)
