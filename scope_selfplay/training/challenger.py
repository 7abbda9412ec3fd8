"""Stage A: the Challenger learns to write tasks at the Solver's frontier (SCOPE section 3.1, equation 4)."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from scope_selfplay.config import ChallengerConfig
from scope_selfplay.corpus import TaskSource
from scope_selfplay.pipeline import CandidateRecords, Difficulty, make_candidate
from scope_selfplay.rewards import challenger_format, challenger_reward, difficulty_reward, in_window
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import (
    Candidate,
    CandidateStatus,
    Key,
    Provenance,
    Reason,
    Role,
    Rollout,
    RolloutStatus,
)
from scope_selfplay.store import Appender
from scope_selfplay.training.grpo import GrpoJob, RollStep, StepResult
from scope_selfplay.training.steps import RolloutClock, conduct, make_learner, mean, scored


def format_of(rollout: Rollout, expected_searches: int) -> float:
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


def reward_challenger(
    rollout: Rollout, candidate: Candidate, structure: float, settings: ChallengerConfig
) -> float | None:
    """Equation 4. A candidate that a fault left unresolved has no reward."""
    if rollout.status is RolloutStatus.FAILED or candidate.status is CandidateStatus.UNRESOLVED:
        return None
    return challenger_reward(
        structure,
        candidate.mean is not None,
        candidate.mean,
        format_weight=settings.format_weight,
        difficulty_weight=settings.difficulty_weight,
        target=settings.target,
    )


def make_challenger_roll(
    model: Any,
    job: GrpoJob,
    context: RunContext,
    sources: Mapping[str, TaskSource],
    difficulty: Difficulty,
    *,
    provenance: Provenance,
    key: Key,
) -> RollStep:
    """What makes and rewards the rollouts of one Challenger step; a task is tried while others are written."""
    learner = make_learner(model, job, context, Role.CHALLENGER, provenance.challenger)
    settings = context.config.challenger

    async def one(
        source: TaskSource,
        member: int,
        tried: dict[str, asyncio.Future[CandidateRecords]],
        clock: RolloutClock,
    ) -> tuple[Rollout, CandidateRecords]:
        each = (*key, source.document.id, member)
        rollout = await context.sample_rollout(
            context.challenger_episode(learner.policy_format, each, source), learner.engine, each
        )
        clock.finished()
        made_from = provenance.model_copy(update={"document_id": source.document.id})
        if format_of(rollout, source.search_turns) == 0 and rollout.status is not RolloutStatus.FAILED:
            rollout = rollout.model_copy(update={"task": None})
        # A group often writes the same task twice; its difficulty is the same draw, so it is tried once.
        twin = f"{source.document.id}\n{rollout.task}"
        if rollout.task is None or twin not in tried:
            tried[twin] = asyncio.ensure_future(
                make_candidate(context, source, rollout, difficulty=difficulty, provenance=made_from, key=key)
            )
        assessed = await tried[twin]
        own = {"challenger_rollout_id": rollout.id, "id": f"{assessed.candidate.id}-{member}"}
        return rollout, assessed._replace(candidate=assessed.candidate.model_copy(update=own))

    async def roll(records: Sequence[str], step: int) -> StepResult:
        learner.renew(step)
        clock = RolloutClock()
        tried: dict[str, asyncio.Future[CandidateRecords]] = {}
        calls = [
            one(sources[record], row % settings.group_size, tried, clock)
            for row, record in enumerate(records)
        ]
        results = await asyncio.gather(*calls)
        structures = [
            format_of(rollout, sources[record].search_turns)
            for record, (rollout, _) in zip(records, results, strict=True)
        ]
        rewards = [
            reward_challenger(rollout, assessed.candidate, structure, settings)
            for (rollout, assessed), structure in zip(results, structures, strict=True)
        ]
        _keep(job, results)
        metrics = _metrics(context, results, structures) | {
            "masked": mean([reward is None for reward in rewards]),
            **clock.seconds(),
        }
        lined_up = zip(results, rewards, strict=True)
        return StepResult(
            [scored(rollout, reward, learner.policy_format) for (rollout, _), reward in lined_up], metrics
        )

    return roll


def _metrics(
    context: RunContext, results: Sequence[tuple[Rollout, CandidateRecords]], structures: Sequence[float]
) -> dict[str, float | None]:
    candidates = [assessed.candidate for _, assessed in results]
    means = [candidate.mean for candidate in candidates]
    known = [value for value in means if value is not None]
    target, tasks = context.config.challenger.target, context.config.tasks
    return {
        # Failed gates count as 0: this is the term that equation 4 adds, not the mean over passing tasks.
        "difficulty": mean(
            [
                None
                if candidate.status is CandidateStatus.UNRESOLVED
                else 0.0
                if candidate.mean is None
                else difficulty_reward(candidate.mean, target)
                for candidate in candidates
            ]
        ),
        "format": mean(structures),
        "gates": mean([candidate.mean is not None for candidate in candidates]),
        "mean_score": mean(known),
        "in_window": mean([in_window(value, tasks.low, tasks.high) for value in known]),
        "unresolved": mean([candidate.status is CandidateStatus.UNRESOLVED for candidate in candidates]),
        "no_task": mean([candidate.reason is Reason.NO_TASK for candidate in candidates]),
        **conduct([rollout for rollout, _ in results]),
    }


def _keep(job: GrpoJob, results: Sequence[tuple[Rollout, CandidateRecords]]) -> None:
    tried = {assessed.candidate.rollout_ids: assessed for _, assessed in results}
    with (
        Appender(job.books.candidates) as candidates,
        Appender(job.books.rollouts) as rollouts,
        Appender(job.books.grades) as grades,
    ):
        rollouts.append(*(rollout.without_ids() for rollout, _ in results))
        for assessed in tried.values():
            rollouts.append(*(rollout.without_ids() for rollout in assessed.rollouts))
            grades.append(*assessed.grades)
        candidates.append(*(assessed.candidate for _, assessed in results))
