"""A person in the places of a run: writes a task as the Challenger, answers one as the Solver, judges as the Judge.

With the prompts, searches and budgets of the run. Questions that were put to the judge are shown as it was shown them,
without what it said; pairs of answers are shuffled, sides as well, and nameless. Every reply is kept at once, and the
same command goes on with what is left.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from scope_selfplay.base.errors import RecordError, UserError
from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Document,
    Grade,
    Outcome,
    Role,
    Rollout,
    RolloutStatus,
    Verdict,
    rng_from,
)
from scope_selfplay.corpus.read import documents_for
from scope_selfplay.corpus.sample import TaskSource, shuffled
from scope_selfplay.judge.fences import View, shown, shown_answer
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    PairQuestion,
    Question,
    Reply,
    Style,
    grade_answer,
)
from scope_selfplay.judge.questions import JudgePrompts
from scope_selfplay.play.person import Console, PersonLeftError, Session, new_part
from scope_selfplay.prompts.roles import PromptRole
from scope_selfplay.report.record import short_name
from scope_selfplay.run.begin import task_types_of
from scope_selfplay.run.candidate import CandidateRecords, SolverTrial, TaskWriter
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.files import read_value
from scope_selfplay.store.human import HUMAN, HumanComparison, HumanFolder, HumanVerdict
from scope_selfplay.store.ratings import kept_solver
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
    kept = kept_solver(run.folder)
    solver = None if not tries else run.promoted_solver(kept.ruled_in if kept else 0)
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


_JUDGED = "stage = 'tasks' AND task IS NOT NULL"
_HELD_OUT = f"iteration = 0 AND {_JUDGED}"
_PER_TASK = 3
"""Questions about one task where several are sampled: more of them say little more about the judge."""
_YES_OR_NO: Mapping[str, Any] = {
    **dict.fromkeys(("y", "yes", "1"), True),
    **dict.fromkeys(("n", "no", "0"), False),
    **dict.fromkeys(("?", "skip")),
}
_OUTCOMES: Mapping[str, Any] = {
    "1": Outcome(1.0, 0.0),
    "2": Outcome(0.0, 1.0),
    "=": Outcome(0.5, 0.5),
    "?": None,
}
_YES_OR_NO_HELP = (
    "y or 1: yes   n or 0: no   ?: cannot say   each with a reason if you like   /prompt: all of it   /quit"
)
_PAIR_HELP = (
    "1 or 2: the better answer   =: equally good   ?: cannot say   each with a reason if you like   /quit"
)


class PersonJudge:
    """A `Judge` at a console; of a prompt, only what is new since the last one of its role is shown.

    Without `prompts` it is asked about pairs alone, which are shown as they are.
    """

    identity = HUMAN

    def __init__(self, console: Console, prompts: JudgePrompts | None = None) -> None:
        self._console, self._prompts = console, prompts
        self._seen: dict[PromptRole, str] = {}

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        """Without a value or a fault where the person cannot say. Raises PersonLeftError."""
        console, is_pair = self._console, isinstance(question, PairQuestion)
        words, said, line = (
            (_OUTCOMES, _PAIR_HELP, "1/2/=/?>") if is_pair else (_YES_OR_NO, _YES_OR_NO_HELP, "y/n/?>")
        )
        prompt = self._show(question)
        while True:
            word, _, reasoning = (await console.ask(line)).strip().partition(" ")
            match word.lower():
                case "/quit":
                    raise PersonLeftError
                case "/prompt":
                    console.show(prompt, "dim")
                case "" | "/help":
                    console.show(said, "dim")
                case known if known in words:
                    value = words[known]
                    holds = None if value is None else question.holds(value)
                    return Reply(value, Verdict(value=holds, reasoning=reasoning.strip(), attempts=0))
                case _:
                    console.complain(f"{word!r} is no reply; {said}")

    def _show(self, question: Question[Any]) -> str:
        if isinstance(question, PairQuestion):
            self._console.show(question.task.text)
            for place, rollout in enumerate((question.first, question.second), start=1):
                self._console.title(f"answer {place}")
                self._console.show(shown_answer(rollout.answer))
            return question.task.text
        assert self._prompts is not None
        prompt = self._prompts.render(question).prompt
        self._console.show(new_part(prompt, self._seen.get(question.role, "")))
        self._seen[question.role] = prompt
        return prompt


@dataclass(frozen=True)
class ForPerson:
    """A question, its title, and what is kept of a person's reply."""

    question: Question[Any]
    title: str
    keep: Callable[[HumanFolder, Reply[Any]], None]
    name: tuple[str, ...] = ()


async def put_to_person(
    asked: Sequence[ForPerson], human: HumanFolder, console: Console, prompts: JudgePrompts | None = None
) -> int:
    """How many replies were given."""
    judge = PersonJudge(console, prompts)
    console.show(_PAIR_HELP if prompts is None else _YES_OR_NO_HELP, "dim")
    for number, each in enumerate(asked, start=1):
        what = "pair" if prompts is None else "question"
        console.title(f"{what} {number} of {len(asked)}: {each.title}")
        try:
            reply = await judge.ask(each.question)
        except PersonLeftError:
            return number - 1
        each.keep(human, reply)
    return len(asked)


def sampled(reader: RunReader, count: int, person: str, answered: Sequence[HumanVerdict]) -> list[ForPerson]:
    """Up to `count` that this person has not answered, of tasks in an order of the person's own.

    Nothing of the judge's verdicts decides which: agreement on a selection says nothing about the rest.
    """
    done = {verdict.question for verdict in answered if verdict.person == person}
    rows = reader.sql(f"SELECT DISTINCT task.id AS id FROM candidates WHERE {_JUDGED} ORDER BY id")
    ids = [row["id"] for row in rows]
    rng_from("play judge", person).shuffle(ids)

    def of_task(task_id: str) -> Iterator[ForPerson]:
        # Equal answers are one question to whoever reads them.
        found = list({each.question: each for each in asked_on(reader, task_id, person)}.values())
        rng_from("play judge", person, task_id).shuffle(found)
        return (each for each in found[:_PER_TASK] if each.name not in done)

    return list(islice((each for task_id in ids for each in of_task(task_id)), count))


def asked_on(reader: RunReader, task_id: str, person: str) -> Iterator[ForPerson]:
    """All that the judge was asked about one task: its gates, then every criterion of every answer that was graded."""
    record = reader.task(task_id)
    candidate, task = record.candidate, record.candidate.task
    if task is None:
        return
    for gate in candidate.gates:
        said = HumanVerdict(person=person, task_id=task.id, gate=gate, value=None)
        yield _for_verdict(GateQuestion(task, gate, record.document), said)
    criteria = candidate.rubric.criteria if candidate.rubric else ()
    for attempt in reader.attempts_on(task.id) if criteria else ():
        # An answer that is absent meets nothing, and nobody was asked.
        if attempt.grade is None or attempt.rollout.answer is None:
            continue
        for row, criterion in enumerate(criteria[: len(attempt.grade.verdicts)]):
            said = HumanVerdict(
                person=person, task_id=task.id, rollout_id=attempt.rollout.id, criterion=row, value=None
            )
            yield _for_verdict(GradeQuestion(task, criterion, attempt.rollout.answer), said)


def _for_verdict(question: Question[bool], said: HumanVerdict) -> ForPerson:
    def keep(human: HumanFolder, reply: Reply[bool]) -> None:
        changes = {"value": reply.value, "reasoning": reply.verdict.reasoning}
        human.keep(said.model_copy(update=changes))

    return ForPerson(question, question.role.value, keep, said.question)


def pairs_left(reader: RunReader, one: str, other: str, *, person: str) -> list[ForPerson]:
    """What this person has not compared of two checkpoints' answers to held-out tasks; equal answers are left out.

    Raises RecordError for a checkpoint that has no held-out answers.
    """
    mine, theirs = (_answers_of(reader, name) for name in (one, other))
    done = {
        frozenset((made.comparison.first_id, made.comparison.second_id))
        for made in HumanFolder(reader.folder).comparisons()
        if made.person == person
    }
    tasks = {made.task.id: made.task for made in reader.records(RecordKind.CANDIDATES, _HELD_OUT)}
    found: list[ForPerson] = []
    for task_id in sorted(mine.keys() & theirs.keys() & tasks.keys()):
        pair = [mine[task_id], theirs[task_id]]
        alike = len({shown(each, View.ANSWER).identity for each in pair}) == 1
        if frozenset(rollout.id for rollout in pair) in done or alike:
            continue
        rng_from("play compare", person, task_id, *sorted((one, other))).shuffle(pair)
        found.append(_for_comparison(PairQuestion(tasks[task_id], *pair, style=Style.ANSWERS), person))
    rng_from("play compare", person, *sorted((one, other))).shuffle(found)
    return found


def _for_comparison(question: PairQuestion, person: str) -> ForPerson:
    def keep(human: HumanFolder, reply: Reply[Outcome]) -> None:
        first, second = (short_name(each.checkpoint) for each in (question.first, question.second))
        human.keep(
            HumanComparison(
                person=person,
                task_id=question.task.id,
                first=first,
                second=second,
                comparison=question.record(reply),
            )
        )

    return ForPerson(question, question.task.type, keep)


def _answers_of(reader: RunReader, name: str) -> dict[str, Rollout]:
    """By held-out task."""
    condition = "stage = 'compare' AND (checkpoint = ? OR starts_with(checkpoint, ?))"
    found = {
        rollout.subject_id: rollout
        for rollout in reader.records(RecordKind.ROLLOUTS, condition, [name, f"{name}-"])
    }
    if not found:
        known = ", ".join(dict.fromkeys(short_name(score.checkpoint) for score in reader.scores())) or "none"
        raise RecordError(f"{name}: has no held-out answers; checkpoints that have: {known}")
    return found
