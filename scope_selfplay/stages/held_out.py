"""The held-out tasks answered and graded, each once: what comparing checkpoints and swapping their searches share."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from scope_selfplay.episodes import PolicyFormat
from scope_selfplay.evaluation.pairings import CheckpointAnswers
from scope_selfplay.inference import PolicyModel
from scope_selfplay.judge import grade_answer
from scope_selfplay.keys import Key
from scope_selfplay.run import Run
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import Candidate, Grade, Role, Rollout, Task
from scope_selfplay.stages.stage_runner import check_budget
from scope_selfplay.store import Appender, StageFolder, read_records
from scope_selfplay.store.weights import Policy


def greedy_solver(run: Run, policy: Policy) -> tuple[PolicyModel, PolicyFormat]:
    """A Solver that takes the likeliest token, and how it is spoken to."""
    return run.engine(policy, Role.SOLVER), run.policy_format(policy, Role.SOLVER, greedy=True)


async def answer_tasks(
    run: Run,
    context: RunContext,
    candidates: Sequence[Candidate],
    folder: StageFolder,
    sample: Callable[[Task, Key], Awaitable[Rollout]],
    *,
    key: Key,
) -> None:
    """A graded answer per task, unless an earlier try has made it without a fault; records come as they end."""
    whole = {grade.rollout_id for grade in read_records(folder.grades, Grade) if grade.is_whole}
    answered = {each.subject_id for each in read_records(folder.rollouts, Rollout) if each.id in whole}
    with Appender(folder.rollouts) as rollouts, Appender(folder.grades) as grades:

        async def answer(candidate: Candidate) -> None:
            task, rubric = candidate.task, candidate.rubric
            assert task is not None and rubric is not None
            own = (*key, task.id)
            rollout = await sample(task, own)
            grade = await grade_answer(context.judge, task, rubric, rollout, key=own)
            run.check_outages()
            rollouts.append(rollout.without_ids())
            grades.append(grade)
            check_budget(run, context.judge)

        missing = [each for each in candidates if each.task and each.task.id not in answered]
        await all_done(run, [answer(candidate) for candidate in missing], total=len(candidates))


async def all_done(run: Run, calls: Sequence[Awaitable[None]], *, total: int) -> None:
    """Wait for the calls and report progress; the rest of `total` was done before. The first error ends the wait."""
    for count, future in enumerate(asyncio.as_completed(calls), start=1):
        await future
        run.progress.advance(total - len(calls) + count)


def answers_in(folder: StageFolder, name: str) -> CheckpointAnswers:
    """What a checkpoint, or a mixture of two, answered."""
    rollouts = read_records(folder.rollouts, Rollout)
    grades = {grade.rollout_id: grade for grade in read_records(folder.grades, Grade)}
    return CheckpointAnswers(
        name,
        {rollout.subject_id: rollout for rollout in rollouts},
        {rollout.subject_id: grades[rollout.id] for rollout in rollouts},
    )
