"""A person answers a task as the Solver: the run's prompt, its searches, its budget; then the judge's grade."""

from dataclasses import replace

from scope_selfplay.base.errors import RecordError, UserError
from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Document,
    Grade,
    Role,
    Rollout,
    RolloutStatus,
    rng_from,
)
from scope_selfplay.corpus.read import documents_for
from scope_selfplay.corpus.sample import TaskSource, shuffled
from scope_selfplay.judge.protocol import grade_answer
from scope_selfplay.play.person import Session
from scope_selfplay.run.begin import task_types_of
from scope_selfplay.run.candidate import CandidateRecords, SolverTrial, TaskWriter
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.files import read_value
from scope_selfplay.store.human import HUMAN
from scope_selfplay.store.ratings import has_ratings
from scope_selfplay.store.reader import RunReader

_ITERATION = 1
"""Where tasks that people wrote are kept; held-out tasks are in 0."""


async def write_task(
    session: Session, document_id: str | None, task_type: str | None, search_turns: int | None, tries: int
) -> CandidateRecords:
    """Play, judge and keep one task; what is None is drawn as for a policy. `tries` are answers of the Solver that was
    kept last, by which the task's difficulty is judged.

    Raises PersonLeftError, and UserError for a wish that the run cannot meet.
    """
    run, role, console = session.run, Role.CHALLENGER, session.console
    source = _source(session, document_id, task_type, search_turns)
    key = session.key("task", source.document.id, len(session.human.rollouts()))
    console.title(
        f"document {source.document.id}: you are the Challenger, {source.search_turns} searches, {source.task_type}"
    )
    rollout = await session.play(
        run.context.challenger_episode(session.policy_format(role), key, source),
        session.policy_format(role),
        role,
        key,
    )
    solver = None if not tries else run.promoted_solver(_last_rated(session))
    trial = None if solver is None else SolverTrial(run.player(solver, Role.SOLVER), tries, window=True)
    writer = TaskWriter(run.context, trial, session.provenance(_ITERATION, solver), key)
    made = await writer.judge(source, rollout)
    made = replace(made, rollouts=(rollout, *made.rollouts))
    run.check_outages()
    _show_result(session, made)
    session.human.add(_ITERATION, made.candidate, made.rollouts, made.grades)
    console.show(f"kept in {session.human.tasks(_ITERATION).path}", "dim")
    return made


def _source(
    session: Session, document_id: str | None, task_type: str | None, search_turns: int | None
) -> TaskSource:
    run = session.run
    document = _document(session, document_id)
    rng = rng_from(*session.key("source", document.id))
    types = {kind.name: kind.weight for kind in task_types_of(run.config, run.pack)}
    if task_type is not None and task_type not in types:
        raise UserError(f"--type {task_type}: the {run.pack.domain.name} pack has {', '.join(types)}")
    turns = run.config.tasks.search_turns or run.pack.domain.search_turns
    return TaskSource(
        document,
        task_type or rng.choices(list(types), list(types.values()))[0],
        search_turns or rng.choices(list(turns), list(turns.values()))[0],
    )


def _document(session: Session, wanted: str | None) -> Document:
    """The one that is wanted; else one that no stage has used and no person either, the last in the loop's order."""
    run = session.run
    if wanted is not None:
        found = next((document for document in run.documents if document.id == wanted), None)
        if found is None:
            raise UserError(
                f"--document {wanted}: not in {run.folder.corpus}, which has {len(run.documents)} documents (the first "
                f"is {run.documents[0].id})"
                if run.documents
                else f"{run.folder.corpus}: has no documents"
            )
        return found
    taken = {made.provenance.document_id for made in session.human.candidates()}
    for file in run.folder.path.glob("iteration-*/*/documents.json"):
        taken |= set(read_value(file, list[str], "restore it, or remove the stage folder") or ())
    order = shuffled(documents_for(run.documents, held_out=False), seed=run.config.seed)
    left = [document for document in order if document.id not in taken]
    if not left:
        raise UserError(
            f"{run.folder.path}: all {len(order)} documents have been used; name one with --document"
        )
    return left[-1]


def _last_rated(session: Session) -> int:
    folder, last = session.run.folder, session.run.config.iterations
    return next((number for number in range(last, 0, -1) if has_ratings(folder, number)), 0)


def _show_result(session: Session, made: CandidateRecords) -> None:
    candidate, console = made.candidate, session.console
    console.title(f"judged by {session.run.context.judge.identity}")
    for gate, verdict in candidate.gates.items():
        console.show(
            f"  gate {gate}: {({True: 'passed', False: 'refused', None: 'no verdict'})[verdict.value]}"
        )
        if verdict.reasoning:
            console.show(f"    {verdict.reasoning}", "dim")
    if candidate.rubric is not None:
        console.show("\n".join(["  rubric", *(f"    - {each.text}" for each in candidate.rubric.criteria)]))
    if made.grades:
        scores = ", ".join("none" if grade.score is None else f"{grade.score:.2f}" for grade in made.grades)
        console.show(f"  {made.rollouts[1].checkpoint} scored {scores}")
    console.show(f"{candidate.status.value}: {candidate.reason.value}", "bold")


_ACCEPTED = "stage = 'tasks' AND status = 'accepted' AND task IS NOT NULL ORDER BY iteration, ordinal"


async def answer_task(session: Session, wanted: str | None) -> Rollout:
    """Play, grade and keep one answer. `wanted` is the id of a task, or its beginning; without it the next one that
    nobody has answered, held-out tasks first.

    Raises PersonLeftError, and UserError where there is no such task.
    """
    candidate = _candidate(session, wanted)
    task = candidate.task
    assert task is not None
    run, role = session.run, Role.SOLVER
    key = session.key(task.id, len(session.human.answers_to(task.id, candidate.provenance.iteration)))
    session.console.title(f"task {task.id}, iteration {candidate.provenance.iteration}: you are the Solver")
    policy_format = session.policy_format(role)
    episode = run.context.solver_episode(policy_format, key, task)
    rollout = await session.play(episode, policy_format, role, key)
    grade = None
    if candidate.rubric is not None and rollout.status is not RolloutStatus.FAILED:
        grade = await grade_answer(run.context.judge, task, candidate.rubric, rollout, key=key)
    _show_result_of_solving(session, candidate, rollout, grade)
    as_reference = False
    if rollout.answer is not None and task.reference is None:
        reply = await session.console.ask("keep it as the task's reference answer? [y/N]")
        as_reference = reply.strip().lower() in ("y", "yes")
    _keep(session, candidate, rollout, grade, as_reference=as_reference)
    return rollout


def _candidate(session: Session, wanted: str | None) -> Candidate:
    """Of the run, or of those that people wrote."""
    folder = session.run.folder.path
    written = [
        made for made in session.human.candidates() if made.status is CandidateStatus.ACCEPTED and made.task
    ]
    with RunReader(folder) as reader:
        if wanted is not None:
            own = (made for made in written if made.task and wanted in (made.id, made.task.id))
            candidate: Candidate = next(own, None) or reader.task(wanted).candidate
            if candidate.task is None:
                raise RecordError(
                    f"{candidate.id}: has no task ({candidate.reason.value}); give another --task"
                )
            return candidate
        made = {each.id: each for each in reader.records(RecordKind.CANDIDATES, _ACCEPTED)}
    every = [*made.values(), *(each for each in written if each.id not in made)]
    answered = {rollout.subject_id for rollout in session.human.rollouts() if rollout.checkpoint == HUMAN}
    for candidate in every:
        if candidate.task and candidate.task.id not in answered:
            return candidate
    if every:
        raise UserError(f"{folder}: all {len(every)} tasks have a person's answer; name one with --task")
    raise UserError(
        f"{folder}: has no accepted task; write one with `scope play challenger`, or let the run make some"
    )


def _show_result_of_solving(
    session: Session, candidate: Candidate, rollout: Rollout, grade: Grade | None
) -> None:
    console = session.console
    if rollout.status is RolloutStatus.FAILED:
        console.show(f"The rollout failed: {rollout.error}", "red")
        return
    if rollout.status is RolloutStatus.TRUNCATED:
        console.show("The budget is used up: the rollout is cut off, as a policy's would be.", "red")
    if grade is None or candidate.rubric is None:
        console.show("The task has no rubric, so the answer has no grade.", "yellow")
        return
    console.title(f"graded by {session.run.context.judge.identity}")
    for criterion, verdict in zip(candidate.rubric.criteria, grade.verdicts, strict=True):
        said = {True: "yes", False: "no", None: "?"}[verdict.value]
        console.show(f"  {said:4} {criterion.text}" + (verdict.reasoning and f"\n       {verdict.reasoning}"))
    console.show("score: none" if grade.score is None else f"score: {grade.score:.3f}", "bold")


def _keep(
    session: Session, candidate: Candidate, rollout: Rollout, grade: Grade | None, *, as_reference: bool
) -> None:
    """The task as it was judged, with the answers of people in place of the policies'."""
    assert candidate.task is not None
    human = session.human
    grades = human.grades() | ({} if grade is None else {rollout.id: grade})
    before = next((made for made in human.candidates() if made.id == candidate.id), candidate)
    assert before.task is not None
    task = before.task.model_copy(update={"reference": rollout.answer}) if as_reference else before.task
    own = [name for name in before.rollout_ids if name in grades and name != rollout.id]
    known = [grades[name].score for name in (*own, rollout.id) if name in grades]
    scores = [score for score in known if score is not None]
    kept = candidate.model_copy(
        update={
            "task": task,
            "rollout_ids": (*own, rollout.id),
            "mean": sum(scores) / len(scores) if scores else None,
        }
    )
    human.add(candidate.provenance.iteration, kept, [rollout], [] if grade is None else [grade])
    session.console.show(f"kept in {human.tasks(candidate.provenance.iteration).path}", "dim")
