"""Stage D: checkpoints answer the held-out tasks and are compared."""

import asyncio
from collections.abc import Sequence

from scope_selfplay.benchmarking.of_run import answer_benchmarks
from scope_selfplay.corpus import task_family
from scope_selfplay.evaluation.pairings import (
    CheckpointAnswers,
    Presentation,
    judge_presentation,
    presentations,
)
from scope_selfplay.evaluation.rating import rate
from scope_selfplay.keys import Key
from scope_selfplay.run import Run
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import Candidate, Comparison, Grade, Rollout, Task
from scope_selfplay.stages.held_out import all_done, answer_tasks, answers_in, greedy_solver
from scope_selfplay.stages.stage_runner import accepted_in, check_budget, inputs_of, run_stage
from scope_selfplay.stages.swap import swap_answers
from scope_selfplay.store import (
    Appender,
    Stage,
    StageFolder,
    StageManifest,
    read_records,
    write_atomic,
    write_records,
)
from scope_selfplay.store.files import point_at
from scope_selfplay.store.ratings import kept_solver


def compare(run: Run, iteration: int) -> StageManifest:
    """Stage D: S_t answers the held-out tasks and is compared with every checkpoint before it."""

    def work(folder: StageFolder) -> None:
        context, policy = run.stage_context(Stage.COMPARE), run.solver(iteration)
        candidates = accepted_in(run.folder.stage(0, Stage.TASKS))
        run.progress.begin(f"iteration {iteration}: compare {policy.name} on held-out tasks", len(candidates))
        asyncio.run(_answer(run, iteration, context, candidates, folder))
        *earlier, newest = [_answers_of(run, number) for number in range(iteration + 1)]
        scores = [grade.score for grade in newest.grades.values() if grade.score is not None]
        run.progress.end(f"mean score {sum(scores) / len(scores):.3f}" if scores else "no answer has a score")
        key, both_orders = run.key(iteration, Stage.COMPARE), run.config.compare.both_orders
        shown = presentations(newest, earlier, key=key, both_orders=both_orders)
        if shown:
            run.progress.begin(f"iteration {iteration}: judge {policy.name} against those before", len(shown))
            asyncio.run(_judge(run, context, candidates, shown, folder))
            run.progress.end(f"{len(shown)} pairs of answers")
        paths = [run.folder.stage(number, Stage.COMPARE).comparisons for number in range(iteration + 1)]
        ratings = rate(
            candidates,
            [*earlier, newest],
            [comparison for path in paths for comparison in read_records(path, Comparison)],
            starts=[run.promoted_solver(number).name for number in range(iteration)],
            settings=run.config.compare,
            seed=run.config.seed,
            family=task_family,
        )
        write_atomic(folder.ratings, ratings.model_dump_json(indent=1) + "\n")
        run.progress.say(f"{ratings.decision.value}: {ratings.reason}")
        answer_benchmarks(run, policy)
        other = run.config.compare.swap_with
        if other is not None and other < iteration:
            swap_answers(run, iteration, context, candidates, (earlier[other], newest))

    done = run_stage(run, iteration, Stage.COMPARE, inputs_of(run, iteration, Stage.COMPARE), work)
    _point_at_kept(run)
    return done


def _point_at_kept(run: Run) -> None:
    """Let `best` be the Solver that was kept, which need not be the newest one."""
    kept = kept_solver(run.folder)
    if kept is not None:
        target = run.folder.path / kept.checkpoint if kept.checkpoint else run.base
        if not point_at(run.folder.best, target):
            run.progress.say(f"{run.folder.best} cannot be made a link; the Solver that was kept is {target}")


async def _answer(
    run: Run, iteration: int, context: RunContext, candidates: Sequence[Candidate], folder: StageFolder
) -> None:
    """Every held-out task is answered once and graded, in the order of the tasks."""
    policy = run.solver(iteration)
    engine, policy_format = greedy_solver(run, policy)

    async def sample(task: Task, key: Key) -> Rollout:
        return await context.sample_rollout(context.solver_episode(policy_format, key, task), engine, key)

    await answer_tasks(run, context, candidates, folder, sample, key=run.key(iteration, Stage.COMPARE))
    by_task = {rollout.subject_id: rollout for rollout in read_records(folder.rollouts, Rollout)}
    by_rollout = {grade.rollout_id: grade for grade in read_records(folder.grades, Grade)}
    # A task that is given twice has one answer.
    tasks = dict.fromkeys(candidate.task.id for candidate in candidates if candidate.task)
    ordered = [by_task[task_id] for task_id in tasks]
    write_records(folder.rollouts, ordered)
    write_records(folder.grades, [by_rollout[rollout.id] for rollout in ordered])


async def _judge(
    run: Run,
    context: RunContext,
    candidates: Sequence[Candidate],
    shown: Sequence[Presentation],
    folder: StageFolder,
) -> None:
    """Judge every presentation once; one that failed in an earlier try is tried again."""
    by_task = {candidate.task.id: candidate for candidate in candidates if candidate.task}
    paid = {ids for ids, comparison in _by_pair(folder).items() if comparison.outcome is not None}
    with Appender(folder.comparisons) as comparisons:

        async def judge(presentation: Presentation) -> None:
            candidate = by_task[presentation.task_id]
            comparisons.append(await judge_presentation(context.judge, candidate, presentation))
            check_budget(run, context.judge)

        missing = [pair for pair in shown if (pair.first.id, pair.second.id) not in paid]
        await all_done(run, [judge(pair) for pair in missing], total=len(shown))
    found = _by_pair(folder)
    write_records(folder.comparisons, [found[pair.first.id, pair.second.id] for pair in shown])


def _by_pair(folder: StageFolder) -> dict[tuple[str, str], Comparison]:
    return {(each.first_id, each.second_id): each for each in read_records(folder.comparisons, Comparison)}


def _answers_of(run: Run, iteration: int) -> CheckpointAnswers:
    return answers_in(run.folder.stage(iteration, Stage.COMPARE), run.solver(iteration).name)
