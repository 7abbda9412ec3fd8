"""A person writes a rubric for a task without having seen the judge's, and scores answers to the task by it."""

import re
from dataclasses import dataclass
from itertools import islice

from scope_selfplay.errors import UserError
from scope_selfplay.keys import rng_from
from scope_selfplay.play.console import Console, PersonLeftError
from scope_selfplay.play.judging import HELP as REPLIES
from scope_selfplay.play.judging import reply_of
from scope_selfplay.rewards import priority_weight, rubric_score
from scope_selfplay.schemas import (
    Candidate,
    CandidateStatus,
    Criterion,
    Fault,
    Grade,
    Priority,
    Rollout,
    Rubric,
    Verdict,
)
from scope_selfplay.store.human import PersonsRubrics
from scope_selfplay.store.query import TaskRecord
from scope_selfplay.store.reader import RunReader

HELP = """One criterion a reply: what a good answer to this task holds. `critical: ...` weighs 3, `important: ...` 2,
`bonus: ...` 1, and so does one without a word before it.   /done: it is whole   /quit"""
_PRIORITY = re.compile(r"\s*(critical|important|bonus)\s*:\s*", re.IGNORECASE)
_ACCEPTED = "stage = 'tasks' AND status = 'accepted' AND task IS NOT NULL"


@dataclass(frozen=True)
class RubricWork:
    """A task with the answers that are left to score, and the person's rubric where there is one."""

    record: TaskRecord
    answers: tuple[Rollout, ...]
    rubric: Rubric | None

    @property
    def candidate(self) -> Candidate:
        return self.record.candidate


def next_work(
    reader: RunReader, own: PersonsRubrics, wanted: str | None, *, person: str, most: int
) -> RubricWork:
    """Without `wanted`, a task whose answers this person has not scored, in an order of the person's own.

    Raises UserError where nothing is left.
    """
    if wanted is not None:
        if (work := _work(reader.task(wanted), reader, own, person, most)) is not None:
            return work
        raise UserError(f"--task {wanted}: has no answers that {person} has not scored; give another one")
    found = reader.sql(f"SELECT DISTINCT task.id AS id FROM candidates WHERE {_ACCEPTED} ORDER BY id")
    ids = [row["id"] for row in found]
    rng_from("play rubric", person).shuffle(ids)
    # A rubric that was begun comes first.
    ids.sort(key=lambda task_id: own.of_task(task_id) is None)
    for task_id in ids:
        if (work := _work(reader.task(task_id), reader, own, person, most)) is not None:
            return work
    raise UserError(
        f"{reader.folder.path}: no task has answers that {person} has not scored; there are {len(ids)}"
    )


def _work(
    record: TaskRecord, reader: RunReader, own: PersonsRubrics, person: str, most: int
) -> RubricWork | None:
    candidate = record.candidate
    if candidate.task is None or candidate.status is not CandidateStatus.ACCEPTED:
        return None
    # Equal answers are one to whoever reads them.
    graded = {
        attempt.rollout.answer: attempt.rollout
        for attempt in reader.attempts_on(candidate.task.id)
        if attempt.grade is not None and attempt.rollout.answer
    }
    answers = list(graded.values())
    rng_from("play rubric", person, candidate.task.id).shuffle(answers)
    scored = own.grades()
    left = [rollout for rollout in islice(answers, most) if rollout.id not in scored]
    return RubricWork(record, tuple(left), own.of_task(candidate.task.id)) if left else None


async def score_by_own_rubric(work: RubricWork, own: PersonsRubrics, console: Console) -> int:
    """Ask for the rubric and a verdict on each criterion of each answer; how many answers were scored.

    The rubric is kept when it is whole, every answer when it is scored.
    """
    task = work.candidate.task
    assert task is not None
    console.title(f"task {task.id}")
    console.show(task.text)
    if work.record.document is not None:
        console.show(f"\n{work.record.document.title}\n{work.record.document.text}", "dim")
    try:
        rubric = work.rubric
        if rubric is None:
            rubric = Rubric(task_id=task.id, criteria=await _criteria(console))
            own.add_rubric(work.candidate, rubric)
        console.show(REPLIES, "dim")
        for number, rollout in enumerate(work.answers, start=1):
            console.title(f"answer {number} of {len(work.answers)}")
            console.show(rollout.answer or "")
            grade = await _graded(rollout, rubric, console)
            own.add_grade(task.id, grade)
            console.show("score: none" if grade.score is None else f"score: {grade.score:.3f}", "bold")
    except PersonLeftError:
        return len(work.answers) - sum(rollout.id not in own.grades() for rollout in work.answers)
    return len(work.answers)


async def _criteria(console: Console) -> tuple[Criterion, ...]:
    console.show(HELP, "dim")
    criteria: list[Criterion] = []
    while True:
        typed = (await console.ask(f"criterion {len(criteria) + 1}>")).strip()
        if typed == "/quit":
            raise PersonLeftError
        if typed == "/done" and criteria:
            return tuple(criteria)
        if typed.startswith("/") or not typed:
            console.complain(f"a rubric needs a criterion\n{HELP}" if typed == "/done" else HELP)
        else:
            criteria.append(_criterion(typed))


def _criterion(typed: str) -> Criterion:
    named = _PRIORITY.match(typed)
    if named is None or not typed[named.end() :]:
        return Criterion(text=typed)
    priority = Priority(named.group(1).lower())
    return Criterion(text=typed[named.end() :], priority=priority, weight=priority_weight(priority))


async def _graded(rollout: Rollout, rubric: Rubric, console: Console) -> Grade:
    verdicts = []
    for criterion in rubric.criteria:
        reply = await reply_of(console, f"{rollout.answer}\n\n{criterion.text}", f"{criterion.text}\n")
        # No fault of a judge's fits a person who cannot say.
        fault = Fault.REFUSED if reply.value is None else None
        verdicts.append(Verdict(value=reply.value, reasoning=reply.reasoning, fault=fault))
    score = rubric_score([verdict.value for verdict in verdicts], [each.weight for each in rubric.criteria])
    return Grade(rollout_id=rollout.id, verdicts=tuple(verdicts), score=score)
