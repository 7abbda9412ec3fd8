"""Held-out tasks and stage B: a Challenger writes tasks over fresh documents until enough are kept."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from scope_selfplay.corpus import TaskSource
from scope_selfplay.corpus.run_corpus import HELD_OUT
from scope_selfplay.errors import CorpusError
from scope_selfplay.given_tasks import read_given_tasks
from scope_selfplay.pipeline import CandidateRecords, Difficulty, RunContext, make_candidate
from scope_selfplay.run import Run
from scope_selfplay.schemas import Candidate, CandidateStatus, Grade, Role, Rollout
from scope_selfplay.stages.stage_runner import (
    check_budget,
    inputs_of,
    run_stage,
    taken_before,
    write_documents,
)
from scope_selfplay.stages.task_making import Make, fill_quota
from scope_selfplay.store import (
    Appender,
    Stage,
    StageFolder,
    StageManifest,
    read_records,
    write_records,
)


def make_held_out(run: Run) -> StageManifest:
    """The tasks that every checkpoint is compared on: given ones, or C_0's, judged but not filtered by difficulty."""

    def work(folder: StageFolder) -> None:
        given = run.config.compare.given
        if given is None:
            _make_tasks(run, folder, 0)
            return
        candidates = read_given_tasks(given, "compare.given")[: run.config.compare.tasks]
        run.progress.say(f"held-out tasks: {len(candidates)} of {given}")
        settle(folder, candidates, [])

    return run_stage(run, 0, Stage.TASKS, {}, work)


def make_tasks(run: Run, iteration: int) -> StageManifest:
    """Stage B: C_t writes tasks over fresh documents until enough lie inside the difficulty window of S_{t-1}."""

    def work(folder: StageFolder) -> None:
        _make_tasks(run, folder, iteration)

    return run_stage(run, iteration, Stage.TASKS, inputs_of(run, iteration, Stage.TASKS), work)


class TaskMaker(NamedTuple):
    """Makes the candidate of one document; `context` keeps the stage's account of the judge."""

    context: RunContext
    make: Make


def task_maker(run: Run, iteration: int) -> TaskMaker:
    """C_t and, but for the held-out tasks, the Solver S_{t-1} whose difficulty decides."""
    context, settings = run.stage_context(), run.config.tasks
    policy = run.challenger(iteration)
    engine, policy_format = run.engine(policy, Role.CHALLENGER), run.policy_format(policy, Role.CHALLENGER)
    solver, difficulty = None, None
    if iteration > 0:
        solver = run.promoted(iteration - 1)
        difficulty = Difficulty(
            run.engine(solver, Role.SOLVER),
            run.policy_format(solver, Role.SOLVER),
            settings.rollouts,
            window=True,
        )
    provenance = run.provenance(iteration, Stage.TASKS, policy, solver)
    key = run.key(iteration, Stage.TASKS)

    async def make(source: TaskSource) -> CandidateRecords:
        each = (*key, source.document.id)
        rollout = await context.sample_rollout(
            context.challenger_episode(policy_format, each, source), engine, each
        )
        made_from = provenance.model_copy(update={"document_id": source.document.id})
        made = await make_candidate(
            context, source, rollout, difficulty=difficulty, provenance=made_from, key=key
        )
        return made._replace(rollouts=(rollout, *made.rollouts))

    return TaskMaker(context, make)


@contextmanager
def keeping(folder: StageFolder) -> Iterator[Callable[[CandidateRecords], None]]:
    """What appends a candidate and everything that was generated for it to the folder's records."""
    with (
        Appender(folder.rollouts) as rollouts,
        Appender(folder.grades) as grades,
        Appender(folder.candidates) as candidates,
    ):

        def keep(made: CandidateRecords) -> None:
            # The candidate's line comes last: it says that everything of it is on disk.
            rollouts.append(*(rollout.without_ids() for rollout in made.rollouts))
            grades.append(*made.grades)
            candidates.append(made.candidate)

        yield keep


def quota(run: Run, iteration: int) -> int:
    """How many accepted tasks the stage is after."""
    return run.config.tasks.target if iteration else run.config.compare.tasks


def _make_tasks(run: Run, folder: StageFolder, iteration: int) -> None:
    target = quota(run, iteration)
    maker = task_maker(run, iteration)
    sources = task_sources(run, iteration)
    before = by_document([folder])
    run.progress.begin(title_of(iteration), target)
    with keeping(folder) as append:

        def keep(made: CandidateRecords) -> None:
            run.check_outages()
            append(made)
            check_budget(run, maker.context.tally)

        kept = asyncio.run(
            fill_quota(
                sources,
                maker.make,
                target=target,
                in_flight=run.config.tasks.in_flight,
                finished={name: each for name, each in before.items() if is_settled(each)},
                keep=keep,
                report=lambda accepted, tried: run.progress.advance(accepted, f"of {tried} candidates"),
            )
        )
    settle(folder, kept, [folder])
    check_enough_accepted(run, iteration, kept)


def is_settled(candidate: Candidate) -> bool:
    """Whether a next try leaves it alone. What a fault left open is made again: the judge, an engine or the retriever
    may have been down for all of it.
    """
    return candidate.status is not CandidateStatus.UNRESOLVED


def by_document(made_in: Sequence[StageFolder]) -> dict[str, Candidate]:
    """Each document's candidate: the first that was settled, else the last that was tried."""
    return {name: candidate for name, (candidate, _) in _made(made_in).items()}


def _made(made_in: Sequence[StageFolder]) -> dict[str, tuple[Candidate, Path]]:
    made: dict[str, tuple[Candidate, Path]] = {}
    for place in made_in:
        for candidate in read_records(place.candidates, Candidate):
            name = candidate.provenance.document_id
            if name not in made or not is_settled(made[name][0]):
                made[name] = (candidate, place.path)
    return made


def title_of(iteration: int) -> str:
    return "make held-out tasks" if iteration == 0 else f"iteration {iteration}: make tasks"


def task_sources(run: Run, iteration: int) -> list[TaskSource]:
    """As many fresh documents as may be tried, or as there are, in the order in which the quota fills."""
    wanted = run.config.tasks.max_candidates or 4 * quota(run, iteration)
    taken = set(taken_before(run, iteration, Stage.TASKS))
    held_out = iteration == 0
    pool = [each.id for each in run.documents if (each.source == HELD_OUT) == held_out]
    left = len(set(pool or [each.id for each in run.documents]) - taken)
    return run.sources(iteration, Stage.TASKS, min(wanted, left), taken=sorted(taken))


def settle(folder: StageFolder, kept: Sequence[Candidate], made_in: Sequence[StageFolder]) -> None:
    """Leave exactly the candidates up to the filled quota, in document order, with what belongs to them.

    `made_in` are the folders of those who made them (see `by_document`).
    """
    rollouts: dict[str, Rollout] = {}
    grades: dict[str, Grade] = {}
    owner = {candidate.id: path for candidate, path in _made(made_in).values()}
    for place in made_in:
        own = {
            each
            for candidate in kept
            if owner[candidate.id] == place.path
            for each in _rollouts_of(candidate)
        }
        rollouts |= {each.id: each for each in read_records(place.rollouts, Rollout) if each.id in own}
        grades |= {
            each.rollout_id: each for each in read_records(place.grades, Grade) if each.rollout_id in own
        }
    order = [each for candidate in kept for each in _rollouts_of(candidate)]
    write_records(folder.rollouts, [rollouts[each] for each in order if each in rollouts])
    write_records(folder.grades, [grades[each] for each in order if each in grades])
    write_records(folder.candidates, kept)
    documents = [candidate.provenance.document_id for candidate in kept]
    # A task that a user brought comes from no document.
    write_documents(folder, [each for each in documents if each])


def _rollouts_of(candidate: Candidate) -> tuple[str, ...]:
    return (candidate.challenger_rollout_id, *candidate.rollout_ids)


def check_enough_accepted(run: Run, iteration: int, kept: Sequence[Candidate]) -> None:
    """Raises CorpusError when too few were accepted to go on with."""
    target = quota(run, iteration)
    accepted = sum(candidate.status is CandidateStatus.ACCEPTED for candidate in kept)
    run.progress.end(f"{accepted} of {len(kept)} candidates accepted")
    if accepted >= target:
        return
    reasons = sorted({candidate.reason for candidate in kept})
    counts = ", ".join(f"{reason} {sum(each.reason is reason for each in kept)}" for reason in reasons)
    enough = run.config.solver.batch if iteration else 1
    if accepted < enough:
        # Held-out tasks are kept whatever their difficulty: no window could be widened for them.
        easier = "add documents, widen tasks.low/tasks.high," if iteration else "add held-out documents"
        raise CorpusError(
            f"iteration {iteration}: only {accepted} of {len(kept)} candidates were accepted, {enough} are needed "
            f"({counts}); {easier} or look at the rejected ones"
        )
    run.progress.say(f"only {accepted} of {target} tasks were found ({counts}); going on with these")
