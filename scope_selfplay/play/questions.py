"""What the judge of a run was asked and answered, as questions for a person: gates of tasks, criteria of answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from scope_selfplay.gates import Gate
from scope_selfplay.judge.prompts import JudgePrompts
from scope_selfplay.keys import rng_from
from scope_selfplay.prompts import PromptRole
from scope_selfplay.schemas import Document, Rollout, Rubric, Task, Verdict
from scope_selfplay.store.human import HumanVerdict
from scope_selfplay.store.query import TaskRecord
from scope_selfplay.store.reader import RunReader

_JUDGED = "stage = 'tasks' AND task IS NOT NULL"
_PER_TASK = 3
"""Questions about one task where several are sampled: more of them say little more about the judge."""


@dataclass(frozen=True)
class Question:
    """One question, and what the judge said to it; a person is not shown that before the reply."""

    task: Task
    judge: Verdict
    gate: Gate | None = None
    document: Document | None = None
    rubric: Rubric | None = None
    rollout: Rollout | None = None
    criterion: int | None = None

    @property
    def role(self) -> PromptRole:
        return PromptRole.GRADE if self.gate is None else PromptRole.of_gate(self.gate)

    def verdict(self, person: str, value: bool | None, reasoning: str) -> HumanVerdict:
        return HumanVerdict(
            person=person,
            task_id=self.task.id,
            gate=self.gate,
            rollout_id=self.rollout.id if self.rollout else "",
            criterion=self.criterion,
            value=value,
            reasoning=reasoning,
        )

    def prompt(self, prompts: JudgePrompts) -> str:
        """What a model judge would be shown. Raises PromptError where the pack has no such prompt."""
        if self.gate is not None:
            return prompts.gate(self.gate, self.task, self.document).prompt
        assert self.rollout is not None and self.rubric is not None and self.criterion is not None
        criterion = self.rubric.criteria[self.criterion]
        return prompts.grade(self.task, criterion, self.rollout.answer or "").prompt

    def in_short(self) -> str:
        """The same for a pack without that prompt, whose judge is no model."""
        if self.gate is not None:
            source = (
                "" if self.document is None else f"Document: {self.document.title}\n{self.document.text}\n\n"
            )
            return f"{source}Task: {self.task.text}\n\nDoes it pass the gate {self.gate}?"
        assert self.rollout is not None and self.rubric is not None and self.criterion is not None
        asked = self.rubric.criteria[self.criterion].text
        return f"Task: {self.task.text}\n\nAnswer: {self.rollout.answer}\n\nCriterion: {asked}\n\nIs it met?"


def questions_on(reader: RunReader, task_id: str) -> list[Question]:
    """All of one task: its gates, then every criterion of every answer that was graded."""
    return list(_questions(reader, reader.task(task_id)))


def sampled_questions(
    reader: RunReader, count: int, *, person: str, answered: Sequence[HumanVerdict]
) -> list[Question]:
    """Up to `count` that this person has not answered, of tasks in an order of the person's own.

    Nothing of the judge's verdicts decides which: agreement on a selection says nothing about the rest.
    """
    done = {verdict.question for verdict in answered if verdict.person == person}
    rows = reader.sql(f"SELECT DISTINCT task.id AS id FROM candidates WHERE {_JUDGED} ORDER BY id")
    ids = [row["id"] for row in rows]
    rng_from("play judge", person).shuffle(ids)
    return list(islice(_sampled(reader, ids, person, done), count))


def _sampled(
    reader: RunReader, ids: Sequence[str], person: str, done: set[tuple[str, ...]]
) -> Iterator[Question]:
    for task_id in ids:
        # Equal answers are one question to whoever reads them.
        found = list({question.in_short(): question for question in questions_on(reader, task_id)}.values())
        rng_from("play judge", person, task_id).shuffle(found)
        yield from (
            question
            for question in found[:_PER_TASK]
            if question.verdict(person, None, "").question not in done
        )


def _questions(reader: RunReader, record: TaskRecord) -> Iterator[Question]:
    candidate, task = record.candidate, record.candidate.task
    if task is None:
        return
    for gate, verdict in candidate.gates.items():
        yield Question(task, verdict, gate=gate, document=record.document)
    if candidate.rubric is None:
        return
    for attempt in reader.attempts_on(task.id):
        # An answer that is absent meets nothing, and nobody was asked.
        if attempt.grade is None or attempt.rollout.answer is None:
            continue
        for row, verdict in enumerate(attempt.grade.verdicts[: len(candidate.rubric.criteria)]):
            yield Question(task, verdict, rubric=candidate.rubric, rollout=attempt.rollout, criterion=row)
