"""Random tasks for a person: read whole, or marked on a sheet whose marks are held against the judge's verdicts.

A sheet is a text file. What models wrote stands behind `| `, so that nothing of it can be taken for a mark.
"""

import re
from collections.abc import Iterator, Sequence

from scope_selfplay.errors import UserError
from scope_selfplay.gates import Gate
from scope_selfplay.keys import rng_from
from scope_selfplay.schemas import CandidateStatus
from scope_selfplay.store.human import HumanVerdict
from scope_selfplay.store.query import GradedRollout, TaskRecord
from scope_selfplay.store.reader import RunReader
from scope_selfplay.untrusted_text import one_line, printable

_MARKS = {"y": True, "n": False, "?": None}
_TASK = re.compile(r"=== \d+ of \d+: (\S+)")
_ANSWER = re.compile(r"Answer (\S+):")
_MARK = re.compile(r"\[(.*?)\] (?:gate (\w+)|criterion (\d+))")


def sampled_tasks(
    reader: RunReader, count: int, *, seed: int, iteration: int | None, status: CandidateStatus | None
) -> list[TaskRecord]:
    """Up to `count` of the tasks that were written, the same for the same seed; held-out ones where iteration is 0.

    Without a `status`, nothing of the judge's verdicts decides which: agreement on a selection says nothing about the
    rest.
    """
    asked = "iteration > 0" if iteration is None else f"iteration = {iteration}"
    rows = reader.sql(
        f"SELECT iteration, id FROM candidates WHERE stage = 'tasks' AND task IS NOT NULL AND {asked} "
        "AND status = coalesce(?, status) ORDER BY ordinal",
        [status],
    )
    drawn = rng_from("sample", seed).sample(rows, min(count, len(rows)))
    return [reader.task(row["id"], iteration=row["iteration"]) for row in drawn]


def write_sheet(records: Sequence[TaskRecord], *, seed: int, run: str) -> str:
    """Task, document, gates and one answer to each, with a place for every mark; nothing of what the judge said."""
    lines = [
        f"Sample of {len(records)} tasks of {one_line(run)} (seed {seed}), to be marked by hand.",
        "Write between the brackets: y for yes, n for no, ? where nobody can say. [ ] is left out.",
        "A gate: does the task pass it? (`scope prompts show DOMAIN gate_entity` has the question.)",
        "A criterion: does the answer above it meet it?",
        f"Then: scope tasks mark {one_line(run)} THIS_FILE",
    ]
    for number, record in enumerate(records, start=1):
        lines += ["", *_task_lines(record, f"=== {number} of {len(records)}")]
        answer = _one_answer(record, seed)
        lines += _answer_lines(record, answer) if answer else []
    return "\n".join(lines) + "\n"


def read_marks(text: str, name: str, reader: RunReader, person: str) -> list[HumanVerdict]:
    """The marks of a sheet. Raises UserError that names the line of `name` for what is no mark of this run."""
    found: list[HumanVerdict] = []
    known: frozenset[tuple[str, ...]] = frozenset()
    task = answer = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if begun := _TASK.match(line):
            record, answer = reader.task(begun[1]), ""
            task = record.candidate.task.id if record.candidate.task else ""
            known = _questions(record)
        elif begun := _ANSWER.match(line):
            answer = begun[1]
        elif line.startswith("["):
            verdict = _verdict(
                line, f"{name}:{number}", HumanVerdict(person=person, task_id=task, value=None), answer
            )
            if verdict is not None and verdict.question not in known:
                raise UserError(
                    f"{name}:{number}: the judge of this run was not asked that; is it another run's?"
                )
            found += [verdict] if verdict else []
    return found


def _verdict(line: str, place: str, about: HumanVerdict, answer: str) -> HumanVerdict | None:
    """A mark's verdict; None where none was made."""
    marked = _MARK.match(line)
    if marked is None or (marked[2] and marked[2] not in list(Gate)):
        raise UserError(f"{place}: found {line[:40]!r}, expected `[y] gate NAME` or `[n] criterion NUMBER`")
    mark = marked[1].strip().lower()
    if not mark:
        return None
    if mark not in _MARKS:
        raise UserError(f"{place}: found the mark [{marked[1]}], expected y, n, ? or a space")
    if marked[2]:
        return about.model_copy(update={"gate": Gate(marked[2]), "value": _MARKS[mark]})
    row = int(marked[3]) - 1
    return about.model_copy(update={"rollout_id": answer, "criterion": row, "value": _MARKS[mark]})


def _questions(record: TaskRecord) -> frozenset[tuple[str, ...]]:
    candidate = record.candidate
    about = HumanVerdict(person="", task_id=candidate.task.id if candidate.task else "", value=None)
    asked = [about.model_copy(update={"gate": gate}) for gate in candidate.gates]
    asked += [
        about.model_copy(update={"rollout_id": attempt.rollout.id, "criterion": row})
        for attempt in record.attempts
        if attempt.grade is not None
        for row in range(len(attempt.grade.verdicts))
    ]
    return frozenset(each.question for each in asked)


def _task_lines(record: TaskRecord, title: str) -> Iterator[str]:
    candidate = record.candidate
    assert candidate.task is not None
    # A task that was written twice has one id and two candidates.
    yield f"{title}: {candidate.id}"
    yield f"Task {candidate.task.id} ({one_line(candidate.task.type)}):"
    yield from _quoted(candidate.task.text)
    if record.document is not None:
        yield f"Source document {one_line(record.document.id)}:"
        yield from _quoted(f"{record.document.title}\n{record.document.text}")
    yield from (f"[ ] gate {gate}" for gate in candidate.gates)


def _answer_lines(record: TaskRecord, answer: GradedRollout) -> Iterator[str]:
    rubric = record.candidate.rubric
    yield f"Answer {answer.rollout.id}:"
    yield from _quoted(answer.rollout.answer or "")
    for number, criterion in enumerate(rubric.criteria if rubric else (), start=1):
        yield f"[ ] criterion {number}: {one_line(criterion.text)}"


def _one_answer(record: TaskRecord, seed: int) -> GradedRollout | None:
    """One that was graded, whichever: several answers to one task say little more about the judge."""
    graded = [each for each in record.attempts if each.grade is not None and each.rollout.answer is not None]
    return rng_from("sample", seed, record.candidate.id).choice(graded) if graded else None


def _quoted(text: str) -> Iterator[str]:
    return (f"| {line}" for line in printable(text).splitlines() or [""])
