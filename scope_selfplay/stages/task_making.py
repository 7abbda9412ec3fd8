"""Held-out tasks and stage B: a Challenger writes tasks over fresh documents until enough are accepted.

The quota of tasks fills in document order, not in finishing order: which tasks are kept does not depend on timing, and
a resumed run keeps the same ones. What comes after the document that filled the quota is not kept.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from scope_selfplay.corpus import TaskSource, documents_for, embedded_tasks
from scope_selfplay.errors import CorpusError, JudgeError, RecordError
from scope_selfplay.given_tasks import EMBEDDED, given_candidate, read_given_tasks
from scope_selfplay.pipeline import CandidateRecords, make_candidate
from scope_selfplay.run import Run
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import Candidate, CandidateStatus, Grade, Role, Rollout
from scope_selfplay.stages.stage_runner import (
    check_budget,
    inputs_of,
    run_stage,
    stage_sources,
    write_documents,
)
from scope_selfplay.store import (
    Appender,
    Stage,
    StageFolder,
    StageManifest,
    read_records,
    write_atomic,
    write_records,
)
from scope_selfplay.store.task_target import TaskTarget

Make = Callable[[TaskSource], Awaitable[CandidateRecords]]


def make_held_out(run: Run) -> StageManifest:
    """The tasks that every checkpoint is compared on: given ones, or C_0's, judged but not filtered by difficulty."""

    def work(folder: StageFolder) -> None:
        if run.config.held_out is None:
            _fill_stage(run, folder, 0)
            return
        candidates = _given_tasks(run)
        run.progress.say(f"held-out tasks: {len(candidates)} of {run.config.held_out}")
        write_candidates(folder, asyncio.run(_with_rubrics(run, candidates)), [])

    return run_stage(run, 0, Stage.TASKS, {}, work)


def _given_tasks(run: Run) -> list[Candidate]:
    count = run.config.compare.tasks
    if run.config.held_out == EMBEDDED:
        documents = documents_for(run.documents, held_out=True)
        return [given_candidate(task) for task in embedded_tasks(run.config.seed, documents, count)]
    return read_given_tasks(str(run.config.held_out), "compare.given")[:count]


async def _with_rubrics(run: Run, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Every checkpoint is graded by the same rubrics: those that given tasks lack are written once."""
    judge = run.stage_context(0, Stage.TASKS).judge
    documents = {document.id: document for document in run.documents}

    async def complete(candidate: Candidate) -> Candidate:
        if candidate.rubric is not None or candidate.task is None:
            return candidate
        source = documents.get(candidate.task.document_id)
        rubric = await judge.write_rubric(candidate.task, (source,) if source else ())
        run.check_outages()
        if rubric is None:
            raise JudgeError(
                f"compare.given: the judge wrote no rubric for {candidate.task.id}; run again, or add `rubric` to it"
            )
        # Nobody searched for a given task: what its source does not hold is no fault of its rubric.
        criteria = tuple(each.model_copy(update={"evidence": None}) for each in rubric.criteria)
        return candidate.model_copy(update={"rubric": rubric.model_copy(update={"criteria": criteria})})

    return list(await asyncio.gather(*map(complete, candidates)))


def make_tasks(run: Run, iteration: int) -> StageManifest:
    """Stage B: C_t writes tasks over fresh documents until enough lie inside the difficulty window of S_{t-1}."""
    inputs = inputs_of(run, iteration, Stage.TASKS)
    return run_stage(run, iteration, Stage.TASKS, inputs, lambda folder: _fill_stage(run, folder, iteration))


def _fill_stage(run: Run, folder: StageFolder, iteration: int) -> None:
    target, context = task_target(run, iteration), run.stage_context(iteration, Stage.TASKS)
    make = task_maker(run, iteration, context)
    sources = task_sources(run, iteration)
    if not has_records(folder):
        raise RecordError(
            f"{folder.candidates}: its rollouts or grades are gone; remove it, its documents are made again"
        )
    before = by_document([folder])
    run.progress.begin(title_of(iteration), target)
    with open_records(folder) as append:

        def record(made: CandidateRecords) -> None:
            run.check_outages()
            append(made)
            check_budget(run, context.judge)

        recorded = asyncio.run(
            fill_quota(
                sources,
                make,
                target=target,
                in_flight=run.config.tasks.in_flight,
                finished={name: candidate for name, candidate in before.items() if is_settled(candidate)},
                keep=record,
                report=lambda accepted, tried: run.progress.advance(
                    accepted, f"of {tried} candidates{context.canary_note}"
                ),
            )
        )
    write_candidates(folder, recorded, [folder])
    check_enough_accepted(run, iteration, recorded)


async def fill_quota(
    sources: Sequence[TaskSource],
    make: Make,
    *,
    target: int,
    in_flight: int,
    finished: Mapping[str, Candidate],
    keep: Callable[[CandidateRecords], None],
    report: Callable[[int, int], None],
) -> list[Candidate]:
    """Candidates in document order up to the one that made `target` accepted, or all there are.

    `finished` are candidates of an earlier try by document id; they are not made again. `keep` is called with
    each new one as soon as it exists; `report` with (accepted, tried).
    """
    running: deque[asyncio.Future[Candidate]] = deque()
    waiting = iter(sources)
    candidates: list[Candidate] = []
    accepted = 0

    async def candidate_of(source: TaskSource) -> Candidate:
        if source.document.id in finished:
            return finished[source.document.id]
        made = await make(source)
        keep(made)
        return made.candidate

    try:
        while accepted < target:
            # Close to the target fewer are started: most of what runs behind the last accepted is not kept.
            while len(running) < min(in_flight, 2 * (target - accepted) + 8):
                source = next(waiting, None)
                if source is None:
                    break
                running.append(asyncio.ensure_future(candidate_of(source)))
            if not running:
                break
            candidates.append(await running.popleft())
            accepted += candidates[-1].status is CandidateStatus.ACCEPTED
            report(accepted, len(candidates))
    finally:
        for future in running:
            future.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return candidates


def task_maker(run: Run, iteration: int, context: RunContext) -> Make:
    """A function that makes the candidate of one document with C_t; except for the held-out tasks, its difficulty for
    the Solver S_{t-1} decides.
    """
    policy = run.challenger(iteration)
    engine, policy_format = run.engine(policy, Role.CHALLENGER), run.policy_format(policy, Role.CHALLENGER)
    solver, trial = None, None
    if iteration > 0:
        solver = run.promoted_solver(iteration - 1)
        trial = run.solver_trial(solver, run.config.tasks.rollouts, window=True)
    provenance = run.provenance(iteration, Stage.TASKS, policy, solver)
    key = run.key(iteration, Stage.TASKS)

    async def make(source: TaskSource) -> CandidateRecords:
        rollout_key = (*key, source.document.id)
        rollout = await context.sample_rollout(
            context.challenger_episode(policy_format, rollout_key, source), engine, rollout_key
        )
        made_from = provenance.model_copy(update={"document_id": source.document.id})
        made = await make_candidate(context, source, rollout, trial=trial, provenance=made_from, key=key)
        return replace(made, rollouts=(rollout, *made.rollouts))

    return make


def task_target(run: Run, iteration: int) -> int:
    """How many accepted tasks the stage needs."""
    return run.config.tasks.target if iteration else run.config.compare.tasks


def task_sources(run: Run, iteration: int) -> list[TaskSource]:
    """As many fresh documents as may be tried, or as there are, in the order in which the quota fills."""
    wanted = run.config.tasks.max_candidates or 4 * task_target(run, iteration)
    return stage_sources(run, iteration, Stage.TASKS, wanted, or_fewer=True)


def title_of(iteration: int) -> str:
    return "make held-out tasks" if iteration == 0 else f"iteration {iteration}: make tasks"


@contextmanager
def open_records(folder: StageFolder) -> Iterator[Callable[[CandidateRecords], None]]:
    """A function that appends a candidate, and everything generated for it, to the folder's records."""
    with (
        Appender(folder.rollouts) as rollouts,
        Appender(folder.grades) as grades,
        Appender(folder.candidates) as candidates,
    ):

        def append(made: CandidateRecords) -> None:
            # The candidate's line comes last: it says that everything of it is on disk.
            rollouts.append(*(rollout.without_ids() for rollout in made.rollouts))
            grades.append(*made.grades)
            candidates.append(made.candidate)

        yield append


def has_records(folder: StageFolder) -> bool:
    """Whether what was made for the candidates of a folder is there beside them, unless somebody removed it."""
    return not folder.candidates.exists() or (folder.rollouts.exists() and folder.grades.exists())


def is_settled(candidate: Candidate) -> bool:
    """Whether a later try keeps it. One that a fault left unresolved is made again: the judge, an engine or the
    retriever may have been down.
    """
    return candidate.status is not CandidateStatus.UNRESOLVED


def by_document(made_in: Sequence[StageFolder]) -> dict[str, Candidate]:
    """The candidate of every document: the first that was settled, else the last that was tried."""
    return {name: candidate for name, (candidate, _) in _made(made_in).items()}


def _made(made_in: Sequence[StageFolder]) -> dict[str, tuple[Candidate, Path]]:
    made: dict[str, tuple[Candidate, Path]] = {}
    for folder in made_in:
        for candidate in read_records(folder.candidates, Candidate):
            name = candidate.provenance.document_id
            if name not in made or not is_settled(made[name][0]):
                made[name] = (candidate, folder.path)
    return made


def write_candidates(folder: StageFolder, kept: Sequence[Candidate], made_in: Sequence[StageFolder]) -> None:
    """Leave exactly the kept candidates in the stage's records, in document order, with what belongs to them.

    `made_in` are the folders of those who made them (see `by_document`).
    """
    rollouts: dict[str, Rollout] = {}
    grades: dict[str, Grade] = {}
    maker = {candidate.id: path for candidate, path in _made(made_in).values()}
    for made in made_in:
        own = {
            name for candidate in kept if maker[candidate.id] == made.path for name in _rollouts_of(candidate)
        }
        rollouts |= {
            rollout.id: rollout for rollout in read_records(made.rollouts, Rollout) if rollout.id in own
        }
        grades |= {
            grade.rollout_id: grade for grade in read_records(made.grades, Grade) if grade.rollout_id in own
        }
    order = [name for candidate in kept for name in _rollouts_of(candidate)]
    write_records(folder.rollouts, [rollouts[name] for name in order if name in rollouts])
    write_records(folder.grades, [grades[name] for name in order if name in grades])
    write_records(folder.candidates, kept)
    documents = [candidate.provenance.document_id for candidate in kept]
    # A given task has no document.
    write_documents(folder, [document for document in documents if document])


def _rollouts_of(candidate: Candidate) -> tuple[str, ...]:
    return (candidate.challenger_rollout_id, *candidate.rollout_ids)


def check_enough_accepted(run: Run, iteration: int, kept: Sequence[Candidate]) -> None:
    """Say and note how many were accepted. Raises CorpusError when they are too few to go on with."""
    target = task_target(run, iteration)
    accepted = sum(candidate.status is CandidateStatus.ACCEPTED for candidate in kept)
    run.progress.end(f"{accepted} of {len(kept)} candidates accepted")
    if accepted < target:
        reasons = Counter(candidate.reason for candidate in kept)
        counts = ", ".join(f"{reason} {number}" for reason, number in sorted(reasons.items()))
        enough = run.config.solver.batch if iteration else 1
        if accepted < enough:
            # Held-out tasks are accepted whatever their difficulty: no window could be widened for them.
            easier = "add documents, widen tasks.low/tasks.high," if iteration else "add held-out documents"
            raise CorpusError(
                f"iteration {iteration}: only {accepted} of {len(kept)} candidates were accepted, {enough} are needed "
                f"({counts}); {easier} or look at the rejected ones"
            )
        run.progress.say(
            f"WARNING: iteration {iteration} ended below its target, with {accepted} of {target} tasks ({counts}); it "
            "goes on with these"
        )
    reached = TaskTarget(accepted=accepted, target=target)
    write_atomic(run.folder.stage(iteration, Stage.TASKS).target, reached.model_dump_json() + "\n")
