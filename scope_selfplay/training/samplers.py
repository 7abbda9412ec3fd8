"""One step of a training, sampled and rewarded.

The Challenger learns to write tasks at the Solver's frontier (SCOPE section 3.1, equation 4); the Solver to answer the
tasks that were kept, rewarded by a design (`solver.reward`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from scope_selfplay.base.values import Candidate, Key, Rollout, RolloutStatus, Rubric, Task, rng_from
from scope_selfplay.corpus.screen import TaskSource
from scope_selfplay.designs.answers import (
    answer_metrics,
    behaviour_metrics,
    reward_of_candidate,
    shares_alike,
    task_format_score,
    task_metrics,
    without_subject,
)
from scope_selfplay.designs.design import Arrivals, RolloutGroup, RubricSource, Unjudgeable
from scope_selfplay.designs.step import Rewarder, records_of, reward_metrics
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.policy.episodes import Player
from scope_selfplay.ranking.matches import is_flat
from scope_selfplay.rewards.measures import Mean, RolloutClock, Total, in_turn
from scope_selfplay.run.candidate import CandidateRecords, RunContext, TaskWriter
from scope_selfplay.store.columns import append_records
from scope_selfplay.store.files import read_records
from scope_selfplay.training.engines import Rows, StepResult, StepSampler, in_groups
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.passes import rewarded_rollout, rows_from


def challenger_sampler(writer: TaskWriter, job: GrpoJob, sources: Mapping[str, TaskSource]) -> StepSampler:
    """Samples and rewards the rollouts of one Challenger step; a task is tried while others are still written."""
    context, settings = writer.context, writer.context.config.challenger

    async def sample_step(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        sampling = _StepSampling(writer)
        of_rows = [(sources[record], member) for record in records for member in range(settings.group_size)]
        writing = [asyncio.ensure_future(sampling.write(*each)) for each in of_rows]
        trying = [sampling.try_task(*each, rollout) for each, rollout in zip(of_rows, writing, strict=True)]

        async def announce() -> None:
            # Their tasks are tried elsewhere.
            sampled(list(map(rows_from, await asyncio.gather(*writing))))

        results, _ = await asyncio.gather(asyncio.gather(*trying), announce())
        written, tried = [each for each, _ in results], [each for _, each in results]
        candidates = [each.candidate for each in tried]
        format_scores = [*map(task_format_score, written, (source.search_turns for source, _ in of_rows))]
        own = [
            without_subject(each.task.text, source.document.title) if each.task else ""
            for each, (source, _) in zip(candidates, of_rows, strict=True)
        ]
        of_ranks = await job.ranks.gather("tasks", own)
        alike = shares_alike(own, [text for texts in of_ranks for text in texts if text])
        measured = zip(written, candidates, format_scores, alike, strict=True)
        rewards = [reward_of_candidate(*each, settings) for each in measured]
        append_records(job.records_folder, [*written, *candidates])
        once = {each.candidate.rollout_ids: each for each in tried}.values()
        append_records(job.records_folder, [one for each in once for one in (*each.rollouts, *each.grades)])
        metrics = {
            **task_metrics(candidates, format_scores, alike, settings, context.config.tasks),
            **behaviour_metrics(written),
            "masked": Mean.of([reward is None for reward in rewards]),
            **(context.canaries.measures() if context.canaries else {}),
            **sampling.clock.seconds(),
        }
        rewarded = [rewarded_rollout(*each) for each in zip(written, rewards, strict=True)]
        return StepResult(in_groups(rewarded, settings.group_size), metrics)

    return sample_step


@dataclass(frozen=True)
class _StepSampling:
    """What the rollouts of a step share; `tried` holds the tasks of the step, each tried once."""

    writer: TaskWriter
    tried: dict[str, asyncio.Future[CandidateRecords]] = field(default_factory=dict)
    clock: RolloutClock = field(default_factory=RolloutClock)

    async def write(self, source: TaskSource, member: int) -> Rollout:
        rollout = await self.writer.write(source, member)
        self.clock.finished()
        failed = rollout.status is RolloutStatus.FAILED
        if not failed and task_format_score(rollout, source.search_turns) == 0:
            rollout = rollout.model_copy(update={"task": None})
        return rollout

    async def try_task(
        self, source: TaskSource, member: int, writing: "asyncio.Future[Rollout]"
    ) -> tuple[Rollout, CandidateRecords]:
        """A rollout and the candidate that its task makes."""
        rollout = await writing
        # A group often writes the same task twice; its difficulty is the same draw, so it is tried once.
        twin = f"{source.document.id}\n{rollout.task}"
        if rollout.task is None or twin not in self.tried:
            self.tried[twin] = asyncio.ensure_future(self.writer.judge(source, rollout))
        tried = await self.tried[twin]
        own = {"challenger_rollout_id": rollout.id, "id": f"{tried.candidate.id}-{member}"}
        return rollout, replace(tried, candidate=tried.candidate.model_copy(update=own))


def solver_sampler(
    solver: Player, job: GrpoJob, context: RunContext, tasks: Mapping[str, Candidate], *, key: Key
) -> StepSampler:
    """Samples and rewards the rollouts of one Solver step; judging begins while others are still generated.

    A given task may lack a rubric; the judge then writes one from the question, if the reward needs it.
    """
    settings, count = context.config.solver, job.codec.count
    rewarder = Rewarder(settings, context.judge, count, job.ranks)
    written = RubricSource("query" if settings.needs_rubrics else "none", job.ranks)
    # A training that goes on keeps the rubrics that it was begun with, whichever rank wrote them.
    files = [job.folder.rubrics, *sorted(job.folder.work.glob(f"rank-*/{job.folder.rubrics.name}"))]
    kept = [rubric for file in files for rubric in read_records(file, Rubric)]
    for source in (written, rewarder.design.rubric_source):
        source.keep(kept)

    async def sample_step(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        written.step = rewarder.design.rubric_source.step = step
        writer, anchor = context.judge.for_group(), rewarder.design.has_anchor
        sampling = _SolverSampling(context, solver, RolloutClock(), written, writer, anchor)
        begun = [sampling.begin_group(tasks[record], (*key, step, record)) for record in records]
        groups = await asyncio.gather(*begun)

        async def announce() -> None:
            sampled([rows_from(rollout) for group in groups for rollout in await group.all_rollouts()])

        judged, _ = await asyncio.gather(rewarder.judge_step(groups, (*key, step)), announce())
        rollouts = [rollout for group in judged for rollout in group.rollouts]
        judgements = [writer.records, *records_of(judged)]
        append_records(job.records_folder, [*rollouts, *(one for each in judgements for one in each.values)])
        metrics = {
            **answer_metrics(settings, rollouts, records_of(judged), count),
            **reward_metrics(judged),
            **behaviour_metrics(rollouts),
            **(context.canaries.measures() if context.canaries else {}),
            **sampling.clock.seconds(),
        }
        rewarded = [
            [rewarded_rollout(*each) for each in zip(group.rollouts, group.rewards, strict=True)]
            for group in judged
        ]
        return StepResult(rewarded, metrics)

    return sample_step


def resampled(sample_step: StepSampler, job: GrpoJob, tasks: Sequence[str], rounds: int) -> StepSampler:
    """`sample_step` with flat groups replaced by groups of other `tasks` (dynamic sampling, DAPO, section 3.2).

    A group whose rewards are all equal teaches nothing. Up to `rounds` times a step, all groups that are still flat
    give way to groups of tasks that the step does not have yet; what is flat after the last round is trained on as it
    is. Which task comes next depends on a group's place in the whole step, however many ranks share it.
    """
    if not rounds:
        return sample_step

    async def sample(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        # Nobody is told when all are sampled: the engine is needed until the last of them is judged.
        found = await sample_step(records, step, lambda rows: None)
        groups, measures = list(found.groups), [found.metrics]
        # The tasks that the step does not have, in an order of its own.
        batch, first = job.settings.batch, job.ranks.number * len(records)
        had = set(job.records[step * batch : (step + 1) * batch])
        fresh = [task for task in tasks if task not in had]
        rng_from(job.seed, "resample", step).shuffle(fresh)
        for number in range(rounds):
            flat = [place for place, group in enumerate(groups) if is_flat([each.reward for each in group])]
            turns = {place: number * batch + first + place for place in flat}
            again = {place: fresh[turn] for place, turn in turns.items() if turn < len(fresh)}
            # All ranks take part in a round, because a step has things to agree on; one without flat groups has none.
            if not any(await job.ranks.gather("resampled", bool(again))):
                break
            found = await sample_step(list(again.values()), step, lambda rows: None)
            for place, group in zip(again, found.groups, strict=True):
                groups[place] = group
            measures.append({**found.metrics, "resampled": Total(len(again))})
        return StepResult(groups, {"resampled": Total(0), **in_turn(measures)})

    return sample


@dataclass(frozen=True)
class _SolverSampling:
    """What the groups of a step share. The first rollout of each is greedy where the design has an anchor."""

    context: RunContext
    solver: Player
    clock: RolloutClock
    written: RubricSource
    writer: MeteredJudge
    """The judge that writes the rubrics of `written`; its records are those of the step."""
    greedy_first: bool

    async def begin_group(self, candidate: Candidate, key: Key) -> RolloutGroup:
        """Starts the rollouts of one group; a rubric that is missing is written while they are generated."""
        task, rubric, size = candidate.task, candidate.rubric, self.context.config.solver.group_size
        assert task is not None
        in_order = self.context.config.model.deterministic is not False
        arrivals = Arrivals(size, deterministic=in_order)
        rollouts = [
            asyncio.ensure_future(self._sample_member(task, member, key, arrivals)) for member in range(size)
        ]
        if rubric is None:
            # Without criteria where the reward needs none, or the judge cannot write any.
            rubric = Rubric(task_id=task.id, criteria=())
            with suppress(Unjudgeable):
                rubric = await self.written.find(task, rubric, self.writer) or rubric
        return RolloutGroup(task, rubric, rollouts, arrivals, key, in_order)

    async def _sample_member(self, task: Task, member: int, key: Key, arrivals: Arrivals) -> Rollout:
        policy_format = replace(self.solver.policy_format, greedy=self.greedy_first and member == 0)
        solver = Player(arrivals.counting(self.solver.engine, member), policy_format)
        try:
            return await self.context.answer(solver, (*key, member), task)
        finally:
            arrivals.finish(member)
            self.clock.finished()
