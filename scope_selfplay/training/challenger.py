"""The stage `challenger`: it learns to write tasks at the Solver's frontier (SCOPE section 3.1, equation 4)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scope_selfplay.base.values import Rollout, RolloutStatus
from scope_selfplay.corpus.sample import TaskSource
from scope_selfplay.designs.answers import (
    behaviour_metrics,
    reward_of_candidate,
    task_format_score,
    task_metrics,
)
from scope_selfplay.rewards.measures import Mean, RolloutClock
from scope_selfplay.run.candidate import CandidateRecords, TaskWriter
from scope_selfplay.store.columns import append_records
from scope_selfplay.training.engines import Rows, StepResult, StepSampler, in_groups
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.rows import rewarded_rollout, rows_from


def challenger_sampler(writer: TaskWriter, job: GrpoJob, sources: Mapping[str, TaskSource]) -> StepSampler:
    """Samples and rewards the rollouts of one Challenger step; a task is tried while others are still written."""
    assert writer.challenger is not None
    context, family = writer.context, writer.challenger.policy_format.dialect
    settings, per_turn = context.config.challenger, family.drops_earlier_thinking

    async def sample_step(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        sampling = _StepSampling(writer)
        of_rows = [(sources[record], member) for record in records for member in range(settings.group_size)]
        writing = [asyncio.ensure_future(sampling.write(*each)) for each in of_rows]
        trying = [sampling.try_task(*each, rollout) for each, rollout in zip(of_rows, writing, strict=True)]

        async def announce() -> None:
            # Their tasks are tried elsewhere.
            sampled(
                [rows_from(rollout, per_turn=per_turn).rows for rollout in await asyncio.gather(*writing)]
            )

        results, _ = await asyncio.gather(asyncio.gather(*trying), announce())
        written, tried = [each for each, _ in results], [each for _, each in results]
        candidates = [each.candidate for each in tried]
        format_scores = [
            task_format_score(rollout, source.search_turns)
            for (source, _), rollout in zip(of_rows, written, strict=True)
        ]
        rewards = [
            reward_of_candidate(*each, settings)
            for each in zip(written, candidates, format_scores, strict=True)
        ]
        append_records(job.records_folder, [*written, *candidates])
        once = {each.candidate.rollout_ids: each for each in tried}.values()
        append_records(job.records_folder, [one for each in once for one in (*each.rollouts, *each.grades)])
        metrics = {
            **task_metrics(candidates, format_scores, settings, context.config.tasks),
            **behaviour_metrics(written),
            "masked": Mean.of([reward is None for reward in rewards]),
            **(context.canaries.measures() if context.canaries else {}),
            **sampling.clock.seconds(),
        }
        rewarded = [rewarded_rollout(*each, per_turn=per_turn) for each in zip(written, rewards, strict=True)]
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
