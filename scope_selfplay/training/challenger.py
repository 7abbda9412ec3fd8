"""Stage A: the Challenger learns to write tasks at the Solver's frontier (SCOPE section 3.1, equation 4)."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scope_selfplay.config import ChallengerConfig
from scope_selfplay.corpus import TaskSource
from scope_selfplay.keys import Key
from scope_selfplay.measures import Mean, Measure
from scope_selfplay.pipeline import CandidateRecords, SolverTrial, make_candidate
from scope_selfplay.rewards import challenger_format, challenger_reward, difficulty_reward, in_window
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import (
    Candidate,
    CandidateStatus,
    Provenance,
    Reason,
    Role,
    Rollout,
    RolloutStatus,
)
from scope_selfplay.store import Appender
from scope_selfplay.training.generation import PolicyInTraining, policy_in_training
from scope_selfplay.training.job import GrpoJob, StepResult, StepSampler
from scope_selfplay.training.step_metrics import RolloutClock, behaviour_metrics


def format_score_of(rollout: Rollout, expected_searches: int) -> float:
    """Appendix F.1."""
    if not rollout.turns:
        return 0.0
    return challenger_format(
        rollout.thinking_turns,
        len(rollout.turns),
        rollout.searches,
        expected_searches,
        rollout.task is not None,
    )


def reward_of_candidate(
    rollout: Rollout, candidate: Candidate, format_score: float, settings: ChallengerConfig
) -> float | None:
    """Equation 4. A candidate that a fault left unresolved has no reward."""
    if rollout.status is RolloutStatus.FAILED or candidate.status is CandidateStatus.UNRESOLVED:
        return None
    return challenger_reward(
        format_score,
        # Only a task that passed the gates and has a rubric is tried, and so has a mean.
        candidate.mean is not None,
        candidate.mean,
        format_weight=settings.format_weight,
        difficulty_weight=settings.difficulty_weight,
        target=settings.target,
    )


def challenger_sampler(
    model: Any,
    job: GrpoJob,
    context: RunContext,
    sources: Mapping[str, TaskSource],
    trial: SolverTrial,
    *,
    provenance: Provenance,
    key: Key,
) -> StepSampler:
    """Samples and rewards the rollouts of one Challenger step; a task is tried while others are still written."""
    learner = policy_in_training(model, job, context, Role.CHALLENGER, provenance.challenger)
    settings = context.config.challenger

    async def sample_step(records: Sequence[str], step: int) -> StepResult:
        learner.refresh_weights(step)
        sampling = _ChallengerSampling(context, learner, trial, provenance, key)
        of_rows = [(sources[record], row % settings.group_size) for row, record in enumerate(records)]
        writing = [asyncio.ensure_future(sampling.write(*each)) for each in of_rows]
        trying = [sampling.try_task(*each, rollout) for each, rollout in zip(of_rows, writing, strict=True)]
        results, _ = await asyncio.gather(asyncio.gather(*trying), _announce(writing, learner))
        format_scores = [
            format_score_of(rollout, sources[record].search_turns)
            for record, (rollout, _) in zip(records, results, strict=True)
        ]
        rewards = [
            reward_of_candidate(rollout, tried.candidate, score, settings)
            for (rollout, tried), score in zip(results, format_scores, strict=True)
        ]
        _store_records(job, results)
        metrics = _metrics(context, results, format_scores) | {
            "masked": Mean.of([reward is None for reward in rewards]),
            **sampling.clock.seconds(),
        }
        rewarded = zip(results, rewards, strict=True)
        return StepResult([learner.rewarded(rollout, reward) for (rollout, _), reward in rewarded], metrics)

    return sample_step


async def _announce(writing: Sequence["asyncio.Future[Rollout]"], learner: PolicyInTraining) -> None:
    """Tells the engine when the last rollout of the step has ended: their tasks are tried elsewhere."""
    learner.all_sampled(await asyncio.gather(*writing))


@dataclass(frozen=True)
class _ChallengerSampling:
    """What the rollouts of a step share; `tried` holds the tasks of the step, each tried once."""

    context: RunContext
    learner: PolicyInTraining
    trial: SolverTrial
    provenance: Provenance
    key: Key
    tried: dict[str, asyncio.Future[CandidateRecords]] = field(default_factory=dict)
    clock: RolloutClock = field(default_factory=RolloutClock)

    async def write(self, source: TaskSource, member: int) -> Rollout:
        context, own_key = self.context, (*self.key, source.document.id, member)
        episode = context.challenger_episode(self.learner.policy_format, own_key, source)
        rollout = await context.sample_rollout(episode, self.learner.engine, own_key)
        self.clock.finished()
        if format_score_of(rollout, source.search_turns) == 0 and rollout.status is not RolloutStatus.FAILED:
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


def _metrics(
    context: RunContext, results: Sequence[tuple[Rollout, CandidateRecords]], format_scores: Sequence[float]
) -> dict[str, Measure]:
    candidates = [tried.candidate for _, tried in results]
    means = [candidate.mean for candidate in candidates]
    known = [value for value in means if value is not None]
    target, tasks = context.config.challenger.target, context.config.tasks
    return {
        # Failed gates count as 0: this is the term that equation 4 adds, not the mean over passing tasks.
        "difficulty": Mean.of(
            [
                None
                if candidate.status is CandidateStatus.UNRESOLVED
                else 0.0
                if candidate.mean is None
                else difficulty_reward(candidate.mean, target)
                for candidate in candidates
            ]
        ),
        "format": Mean.of(format_scores),
        "gates": Mean.of([candidate.mean is not None for candidate in candidates]),
        "mean_score": Mean.of(known),
        "in_window": Mean.of([in_window(value, tasks.low, tasks.high) for value in known]),
        "unresolved": Mean.of([candidate.status is CandidateStatus.UNRESOLVED for candidate in candidates]),
        "no_task": Mean.of([candidate.reason is Reason.NO_TASK for candidate in candidates]),
        **behaviour_metrics([rollout for rollout, _ in results]),
    }


def _store_records(job: GrpoJob, results: Sequence[tuple[Rollout, CandidateRecords]]) -> None:
    by_rollouts = {tried.candidate.rollout_ids: tried for _, tried in results}
    with (
        Appender(job.records_folder.candidates) as candidates,
        Appender(job.records_folder.rollouts) as rollouts,
        Appender(job.records_folder.grades) as grades,
    ):
        rollouts.append(*(rollout.without_ids() for rollout, _ in results))
        for tried in by_rollouts.values():
            rollouts.append(*(rollout.without_ids() for rollout in tried.rollouts))
            grades.append(*tried.grades)
        candidates.append(*(tried.candidate for _, tried in results))
