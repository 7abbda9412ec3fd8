"""A person writes a task as the Challenger: the run's prompt over a fresh document; then gates, rubric and Solver."""

from dataclasses import dataclass, replace

from scope_selfplay.corpus import TaskSource, documents_for, shuffled
from scope_selfplay.errors import UserError
from scope_selfplay.keys import rng_from
from scope_selfplay.pipeline import CandidateRecords, make_candidate
from scope_selfplay.play.session import Session
from scope_selfplay.run_directory import task_types_of
from scope_selfplay.schemas import Document, Role
from scope_selfplay.store.files import read_value
from scope_selfplay.store.ratings import has_ratings

_ITERATION = 1
"""Where tasks that people wrote are kept; held-out tasks are in 0."""


@dataclass(frozen=True)
class Wish:
    """What the person asked for; None is drawn as for a policy."""

    document: str | None = None
    task_type: str | None = None
    search_turns: int | None = None
    tries: int = 0
    """Answers of the Solver that was kept last, by which the task's difficulty is judged."""


async def write_task(session: Session, wish: Wish) -> CandidateRecords:
    """Play, judge and keep one task. Raises PersonLeftError, and UserError for a wish that the run cannot meet."""
    run, role, console = session.run, Role.CHALLENGER, session.console
    source = _source(session, wish)
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
    solver = None if not wish.tries else run.promoted_solver(_last_rated(session))
    trial = None if solver is None else run.solver_trial(solver, wish.tries, window=True)
    provenance = session.provenance(_ITERATION, solver).model_copy(update={"document_id": source.document.id})
    made = await make_candidate(run.context, source, rollout, trial=trial, provenance=provenance, key=key)
    made = replace(made, rollouts=(rollout, *made.rollouts))
    run.check_outages()
    _show_result(session, made)
    session.human.add(_ITERATION, made.candidate, made.rollouts, made.grades)
    console.show(f"kept in {session.human.tasks(_ITERATION).path}", "dim")
    return made


def _source(session: Session, wish: Wish) -> TaskSource:
    run = session.run
    document = _document(session, wish.document)
    rng = rng_from(*session.key("source", document.id))
    types = {kind.name: kind.weight for kind in task_types_of(run.config, run.pack)}
    if wish.task_type is not None and wish.task_type not in types:
        raise UserError(f"--type {wish.task_type}: the {run.pack.domain.name} pack has {', '.join(types)}")
    turns = run.config.tasks.search_turns or run.pack.domain.search_turns
    return TaskSource(
        document,
        wish.task_type or rng.choices(list(types), list(types.values()))[0],
        wish.search_turns or rng.choices(list(turns), list(turns.values()))[0],
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
