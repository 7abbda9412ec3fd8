"""What is kept of a finished arm, enough for every table of real-model.md: `kept/seed-N-ARM.json`, some 10 KB."""

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks.factbook import read_lines
from scope_selfplay.base.text import opening
from scope_selfplay.base.values import Candidate, CandidateStatus, Document, Reason, Rollout, Task, Value
from scope_selfplay.rewards.equations import in_window
from scope_selfplay.rewards.verify import exact_match, f1, number_normal
from scope_selfplay.run.run import Run
from scope_selfplay.run.short_answers import names_subject
from scope_selfplay.store.files import read_records, read_rows
from scope_selfplay.store.folder import Stage, read_manifest

KEPT = Path(__file__).parent / "kept"
READ = 20
"""Tasks and answers of the last iteration that are kept for a person to read."""
_FIELDS = {
    "capital": r"capital",
    "height": r"how (high|tall)|(height|elevation) of the highest",
    "highest": r"highest",
    "lowest": r"lowest",
    "holiday": r"(date|when).*holiday",
    "anthem": r"anthem",
    "code": r"country code",
    "name": r"(long|official) name",
}
"""By the field of the human questions, words that ask for it; the first that fits counts."""
_RIGHT = 0.8
"""F1 with the human question's answer from which one is right."""


class Asked(Value):
    """Candidates of one iteration's task making, counted. `tried`: by the Solver, after all gates; `known`: accepted
    ones whose truth the human questions tell; `shapes`: ways in which accepted ones begin. Of its training: `steps`
    of both roles, and the mean seconds of one.
    """

    made: int
    tried: int
    in_window: int
    accepted: int
    known: int
    right: int
    shapes: int
    reasons: dict[Reason, int]
    steps: tuple[int, int]
    seconds: tuple[float, float]


class Read(NamedTuple):
    question: str
    answer: str | None
    right: str
    """What the human question's answer is; "" where it is not known."""


class Kept(Value):
    """`greedy` and `sampled` have a digit for each held-out question, S_0 first: 1 is an exact match. An iteration in
    which there were too few tasks for a step has no Solver of its own.
    """

    arm: str
    seed: int
    minutes: float
    greedy: tuple[str, ...]
    sampled: tuple[str, ...]
    asked: tuple[Asked, ...]
    tasks: tuple[Read, ...]
    answers: tuple[Read, ...]

    def exact(self, way: str, iteration: int) -> list[int]:
        """Of the Solver of an iteration, or of the last one before it."""
        marks = getattr(self, way)
        return [int(each) for each in marks[min(iteration, len(marks) - 1)]]


def read_kept(folder: Path = KEPT) -> list[Kept]:
    return [Kept.model_validate_json(file.read_bytes()) for file in sorted(folder.glob("seed-*.json"))]


def read_arm(run: Run, arm: str, answers: Sequence[Sequence[Rollout]], questions: Mapping[str, Task]) -> Kept:
    """`answers` of each Solver to the held-out questions, by their names: greedy ones, then sampled ones."""

    def mark(each: Rollout) -> str:
        return f"{exact_match(each.answer or '', [questions[each.subject_id].reference or '']):.0f}"

    marks, count = ["".join(map(mark, found)) for found in answers], len(questions)
    documents, draw = {each.id: each for each in run.documents}, random.Random(run.config.seed)
    numbers = range(1, run.config.iterations + 1)
    tasks = [task for each in _candidates(run, numbers[-1]) if (task := _accepted(each))]
    said = draw.sample(answers[-1][:count], min(READ, count))
    manifests = [read_manifest(path.parent) for path in run.folder.path.glob("iteration-*/*/manifest.json")]
    return Kept(
        arm=arm,
        seed=run.config.seed,
        minutes=round(sum(each.seconds for each in manifests if each) / 60, 1),
        greedy=tuple(each[:count] for each in marks),
        sampled=tuple(each[count:] for each in marks),
        asked=tuple(_asked(run, number, documents) for number in numbers),
        tasks=tuple(
            Read(each.text, each.reference, truth_of(each) or "")
            for each in draw.sample(tasks, min(READ, len(tasks)))
        ),
        answers=tuple(
            Read(questions[each.subject_id].text, each.answer, questions[each.subject_id].reference or "")
            for each in said
        ),
    )


def _candidates(run: Run, iteration: int) -> list[Candidate]:
    return read_records(run.folder.stage(iteration, Stage.TASKS).candidates, Candidate)


def _accepted(candidate: Candidate) -> Task | None:
    return candidate.task if candidate.status is CandidateStatus.ACCEPTED else None


def _asked(run: Run, iteration: int, documents: Mapping[str, Document]) -> Asked:
    made, limits = _candidates(run, iteration), run.config.tasks
    accepted = [task for each in made if (task := _accepted(each))]
    tried = [each.mean for each in made if each.mean is not None]
    known = [(task, right) for task in accepted if (right := truth_of(task))]
    right = [
        names_subject(task.text, documents[task.document_id].title)
        and f1(task.reference or "", [wanted], normal=number_normal) >= _RIGHT
        for task, wanted in known
    ]
    stages = (run.folder.stage(iteration, stage) for stage in (Stage.CHALLENGER, Stage.SOLVER))
    seconds = [[row["step_seconds"] for row in read_rows(stage.metrics)] for stage in stages]
    return Asked(
        made=len(made),
        tried=len(tried),
        in_window=sum(in_window(mean, limits.low, limits.high) for mean in tried),
        accepted=len(accepted),
        known=len(known),
        right=sum(right),
        shapes=len({opening(task.text) for task in accepted}),
        reasons=dict(Counter(each.reason for each in made)),
        steps=(len(seconds[0]), len(seconds[1])),
        seconds=tuple(round(fmean(each or [0.0]), 1) for each in seconds),
    )


@cache
def _truths() -> Mapping[str, str]:
    return {row["id"]: row["answers"][0] for row in read_lines("train")}


def truth_of(task: Task) -> str | None:
    """What people answer to what the task asks of its document's country; None where they were not asked."""
    country = task.document_id.partition("-")[0]
    fields = (field for field, words in _FIELDS.items() if re.search(words, task.text, re.IGNORECASE))
    return _truths().get(f"{country}-{next(fields, '')}")
