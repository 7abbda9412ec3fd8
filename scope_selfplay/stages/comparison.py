"""Stage D: checkpoints answer the held-out tasks and are compared."""

import asyncio
from collections.abc import Sequence

from scope_selfplay.corpus import task_family
from scope_selfplay.evaluation.pairings import (
    CheckpointAnswers,
    Presentation,
    judge_presentation,
    presentations,
)
from scope_selfplay.evaluation.rating import rate
from scope_selfplay.judge import grade_rollout
from scope_selfplay.run import Policy, Run
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import Candidate, Comparison, Grade, Key, Role, Rollout
from scope_selfplay.stages.stage_runner import accepted_in, check_budget, inputs_of, run_stage
from scope_selfplay.store import (
    Appender,
    Stage,
    StageFolder,
    StageManifest,
    read_records,
    write_atomic,
    write_records,
)


def compare(run: Run, iteration: int) -> StageManifest:
    """Stage D: S_t answers the held-out tasks and is compared with every checkpoint before it."""

    def work(folder: StageFolder) -> None:
        context = run.stage_context()
        policy = run.solver(iteration)
        key = run.key(iteration, Stage.COMPARE)
        candidates = accepted_in(run.folder.stage(0, Stage.TASKS))
        run.progress.begin(f"iteration {iteration}: compare {policy.name} on held-out tasks", len(candidates))
        asyncio.run(_answer(run, context, policy, candidates, folder, key))
        *earlier, newest = [_contestant(run, number) for number in range(iteration + 1)]
        run.progress.end(_mean_score(newest))
        shown = presentations(newest, earlier, key=key, both_orders=run.config.compare.both_orders)
        if shown:
            run.progress.begin(f"iteration {iteration}: judge {policy.name} against those before", len(shown))
            asyncio.run(_judge(run, context, candidates, shown, folder))
            run.progress.end(f"{len(shown)} pairs of answers")
        ratings = rate(
            candidates,
            [*earlier, newest],
            [each for number in range(iteration + 1) for each in _comparisons(run, number)],
            starts=[run.promoted(number).name for number in range(iteration)],
            settings=run.config.compare,
            seed=run.config.seed,
            family=task_family,
        )
        write_atomic(folder.ratings, ratings.model_dump_json(indent=1) + "\n")
        run.progress.say(f"{ratings.decision.value}: {ratings.reason}")

    return run_stage(run, iteration, Stage.COMPARE, inputs_of(run, iteration, Stage.COMPARE), work)


async def _answer(
    run: Run,
    context: RunContext,
    policy: Policy,
    candidates: Sequence[Candidate],
    folder: StageFolder,
    key: Key,
) -> None:
    """One greedy answer per held-out task, graded; only what an earlier try left out or failed at is made."""
    whole = {each.rollout_id for each in read_records(folder.grades, Grade) if each.is_whole}
    have = {each.subject_id for each in read_records(folder.rollouts, Rollout) if each.id in whole}
    engine, policy_format = (
        run.engine(policy, Role.SOLVER),
        run.policy_format(policy, Role.SOLVER, greedy=True),
    )

    with Appender(folder.rollouts) as rollouts, Appender(folder.grades) as grades:

        async def one(candidate: Candidate) -> None:
            task, rubric = candidate.task, candidate.rubric
            assert task is not None and rubric is not None
            each = (*key, task.id)
            rollout = await context.sample_rollout(
                context.solver_episode(policy_format, each, task), engine, each
            )
            grade = await grade_rollout(context.judge, task, rubric, rollout, key=each)
            run.check_outages()
            rollouts.append(rollout.without_ids())
            grades.append(grade)
            check_budget(run, context.judge)

        missing = [each for each in candidates if each.task and each.task.id not in have]
        for count, future in enumerate(asyncio.as_completed([one(each) for each in missing]), start=1):
            await future
            run.progress.advance(len(candidates) - len(missing) + count)
    order = {candidate.task.id: row for row, candidate in enumerate(candidates) if candidate.task}
    answers = {each.subject_id: each for each in read_records(folder.rollouts, Rollout)}
    by_rollout = {each.rollout_id: each for each in read_records(folder.grades, Grade)}
    ordered = [answers[task_id] for task_id in order]
    write_records(folder.rollouts, ordered)
    write_records(folder.grades, [by_rollout[each.id] for each in ordered])


async def _judge(
    run: Run,
    context: RunContext,
    candidates: Sequence[Candidate],
    shown: Sequence[Presentation],
    folder: StageFolder,
) -> None:
    """Every presentation judged once; one that failed in an earlier try is tried again."""
    by_task = {each.task.id: each for each in candidates if each.task}
    order = [(each.first.id, each.second.id) for each in shown]
    paid = {pair: each for pair, each in _by_pair(folder).items() if each.outcome is not None}
    missing = [each for each, pair in zip(shown, order, strict=True) if pair not in paid]
    with Appender(folder.comparisons) as comparisons:

        async def one(each: Presentation) -> None:
            comparison = await judge_presentation(context.judge, by_task[each.task_id], each)
            comparisons.append(comparison)
            check_budget(run, context.judge)

        for count, future in enumerate(asyncio.as_completed([one(each) for each in missing]), start=1):
            await future
            run.progress.advance(len(shown) - len(missing) + count)
    found = _by_pair(folder)
    write_records(folder.comparisons, [found[pair] for pair in order])


def _by_pair(folder: StageFolder) -> dict[tuple[str, str], Comparison]:
    return {(each.first_id, each.second_id): each for each in read_records(folder.comparisons, Comparison)}


def _comparisons(run: Run, iteration: int) -> list[Comparison]:
    return read_records(run.folder.stage(iteration, Stage.COMPARE).comparisons, Comparison)


def _mean_score(contestant: CheckpointAnswers) -> str:
    scores = [grade.score for grade in contestant.grades.values() if grade.score is not None]
    return f"mean score {sum(scores) / len(scores):.3f}" if scores else "no answer has a score"


def _contestant(run: Run, iteration: int) -> CheckpointAnswers:
    folder = run.folder.stage(iteration, Stage.COMPARE)
    rollouts = read_records(folder.rollouts, Rollout)
    grades = {each.rollout_id: each for each in read_records(folder.grades, Grade)}
    return CheckpointAnswers(
        run.solver(iteration).name,
        {each.subject_id: each for each in rollouts},
        {each.subject_id: grades[each.id] for each in rollouts},
    )
