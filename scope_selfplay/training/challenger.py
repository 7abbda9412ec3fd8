"""Stage A: the Challenger learns to write tasks at the Solver's frontier (SCOPE section 3.1, equation 4)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scope_selfplay.corpus import TaskSource
from scope_selfplay.episodes import PolicyFormat
from scope_selfplay.inference import PolicyModel
from scope_selfplay.keys import Key
from scope_selfplay.measures import Mean, RolloutClock
from scope_selfplay.pipeline import CandidateRecords, SolverTrial, make_candidate
from scope_selfplay.reward_designs.answers import (
    behaviour_metrics,
    reward_of_candidate,
    task_format_score,
    task_metrics,
)
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import Provenance, Rollout, RolloutStatus
from scope_selfplay.store.records import append_records
from scope_selfplay.training.engines import Rows, StepResult, StepSampler, in_groups
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.rows import rewarded_rollout, rows_from


def challenger_sampler(
    engine: PolicyModel,
    policy_format: PolicyFormat,
    job: GrpoJob,
    context: RunContext,
    sources: Mapping[str, TaskSource],
    trial: SolverTrial,
    *,
    provenance: Provenance,
    key: Key,
) -> StepSampler:
    """Samples and rewards the rollouts of one Challenger step; a task is tried while others are still written."""
    settings, per_turn = context.config.challenger, policy_format.dialect.drops_earlier_thinking

    async def sample_step(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        sampling = _ChallengerSampling(context, engine, policy_format, trial, provenance, key)
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
            **context.canary_measures(),
            **sampling.clock.seconds(),
        }
        rewarded = [rewarded_rollout(*each, per_turn=per_turn) for each in zip(written, rewards, strict=True)]
        return StepResult(in_groups(rewarded, settings.group_size), metrics)

    return sample_step


@dataclass(frozen=True)
class _ChallengerSampling:
    """What the rollouts of a step share; `tried` holds the tasks of the step, each tried once."""

    context: RunContext
    engine: PolicyModel
    policy_format: PolicyFormat
    trial: SolverTrial
    provenance: Provenance
    key: Key
    tried: dict[str, asyncio.Future[CandidateRecords]] = field(default_factory=dict)
    clock: RolloutClock = field(default_factory=RolloutClock)

    async def write(self, source: TaskSource, member: int) -> Rollout:
        context, own_key = self.context, (*self.key, source.document.id, member)
        episode = context.challenger_episode(self.policy_format, own_key, source)
        rollout = await context.sample_rollout(episode, self.engine, own_key)
        self.clock.finished()
        failed = rollout.status is RolloutStatus.FAILED
        if not failed and task_format_score(rollout, source.search_turns) == 0:
            rollout = rollout.model_copy(update={"task": None})
        return rollout

    async def try_task(
        self, source: TaskSource, member: int, writing: "asyncio.Future[Rollout]"
    ) -> tuple[Rollout, CandidateRecords]:
        """A rollout and the candidate that its task makes."""
        context, rollout = self.context, await writing
        # A group often writes the same task twice; its difficulty is the same draw, so it is tried once.
        twin = f"{source.document.id}\n{rollout.task}"
        if rollout.task is None or twin not in self.tried:
            made_from = self.provenance.model_copy(update={"document_id": source.document.id})
            candidate = make_candidate(
                context, source, rollout, trial=self.trial, provenance=made_from, key=self.key
            )
            self.tried[twin] = asyncio.ensure_future(candidate)
        tried = await self.tried[twin]
        own = {"challenger_rollout_id": rollout.id, "id": f"{tried.candidate.id}-{member}"}
        return rollout, replace(tried, candidate=tried.candidate.model_copy(update=own))
