"""Queries for a run's tasks and their results: the values that the terminal, the report and the web page share; and
what people said in a run, in `human/` beside its iterations: the loop reads none of it, a person may work meanwhile.
"""

from enum import StrEnum

from pydantic import Field

from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.machine import folder_lock
from scope_selfplay.base.values import (
    Candidate,
    CandidateStatus,
    Comparison,
    Document,
    Gate,
    Grade,
    Reason,
    Rollout,
    Score,
    Selection,
    Value,
)
from scope_selfplay.store.files import Appender, disk_faults, read_records
from scope_selfplay.store.folder import RunFolder, Stage

# Seconds. A person's session holds the lock for as long as it takes to write a few records.
_LOCK_TIMEOUT = 60.0


class HumanVerdict(Value):
    """A person's verdict where a judge has given one: of a gate on a task, or of a criterion on an answer to it."""

    person: str
    task_id: str
    gate: Gate | None = None
    rollout_id: str = ""
    criterion: int | None = None
    """Its row in the rubric."""
    value: bool | None
    """None where the person could not say."""
    reasoning: str = ""

    @property
    def question(self) -> tuple[str, ...]:
        """Names what was asked, whoever answered."""
        return (self.task_id, str(self.gate or ""), self.rollout_id, str(self.criterion))


class HumanComparison(Value):
    """Two answers to one task in the order in which a person saw them, without knowing whose they are."""

    person: str
    task_id: str
    first: str
    """The checkpoint that gave the first answer."""
    second: str
    comparison: Comparison


class HumanFolder:
    """The people's part of a run folder."""

    def __init__(self, run: RunFolder) -> None:
        self.path = run.path / "human"
        self._verdicts = self.path / "verdicts.jsonl"
        self._comparisons = self.path / "comparisons.jsonl"

    def verdicts(self) -> list[HumanVerdict]:
        return read_records(self._verdicts, HumanVerdict)

    def comparisons(self) -> list[HumanComparison]:
        return read_records(self._comparisons, HumanComparison)

    def keep(self, said: HumanVerdict | HumanComparison) -> None:
        """One process writes at a time."""
        file = self._verdicts if isinstance(said, HumanVerdict) else self._comparisons
        with disk_faults(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self.path / ".lock"
            with (
                folder_lock(self.path, lock, work="writing", say=lambda text: None, timeout=_LOCK_TIMEOUT),
                Appender(file) as kept,
            ):
                kept.append(said)


class UnknownTaskError(RecordError):
    """An id that names no candidate of the run, or several."""


class Sort(StrEnum):
    ORDER = "order"
    MEAN = "mean"
    SPREAD = "spread"
    TYPE = "type"
    REASON = "reason"
    SEARCHES = "searches"
    LENGTH = "length"


class Flaw(StrEnum):
    """What keeps a rubric from measuring its task: a demand without criterion, a criterion without evidence."""

    DEMAND = "demand"
    EVIDENCE = "evidence"


class Suspect(StrEnum):
    """Where a text is suspect of injection: in the task, in its document, in an answer to it, or in any of them."""

    TASK = "task"
    DOCUMENT = "document"
    ANSWER = "answer"
    ANY = "any"


class TaskFilter(Value):
    """Which candidates, and in which order."""

    iteration: int | None = Field(default=None, ge=0)
    status: CandidateStatus | None = None
    reason: Reason | None = None
    gate: Gate | None = None
    """A gate that refused them, whatever they ended as."""
    type: str | None = None
    searches: int | None = Field(default=None, ge=0)
    """How many searches the Challenger made for it."""
    flaw: Flaw | None = None
    """What its rubric lacks, as far as the judge says."""
    suspect: Suspect | None = None
    """What of them is suspect of injection."""
    low: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    high: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """The least and the greatest mean score, both included; candidates without one are left out."""
    below: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """As `high`, itself left out: bins that touch share no candidate."""
    text: str = ""
    """Part of the task's text, of its document's id or of its own ids; case does not matter."""
    sort: Sort = Sort.ORDER


class TaskQuery(TaskFilter):
    """Which page of which candidates. The default: all of task making, as written."""

    stage: Stage | None = Stage.TASKS
    """The stage that wrote them: `tasks`, `challenger` (tried in training), or None for both."""
    descending: bool = False
    limit: int = Field(default=50, ge=1)
    offset: int = Field(default=0, ge=0)


class TaskLine(Value):
    """One row of a list of candidates."""

    iteration: int
    stage: Stage
    id: str
    task_id: str | None
    status: CandidateStatus
    reason: Reason
    type: str | None
    search_turns: int | None
    criteria: int | None
    rollouts: int
    mean: float | None
    document_id: str
    text: str | None
    reference: str | None
    span: tuple[int, ...] | None


class TaskPage(Value):
    """One page of a list; `total` counts all that match."""

    lines: tuple[TaskLine, ...]
    total: int
    offset: int


class GradedRollout(Value):
    """One Solver rollout on a task, with its grade where it has one."""

    iteration: int
    stage: Stage
    rollout: Rollout
    grade: Grade | None


class AnswerComparison(Value):
    """A comparison of two answers to one task, and whose they are."""

    iteration: int
    first: str
    second: str
    comparison: Comparison


class AnswerSelection(Value):
    """A judge's selection among answers to one task that were shown together."""

    iteration: int
    stage: Stage
    selection: Selection


class JudgedScore(Value):
    """A judge's number for one answer to a task."""

    iteration: int
    stage: Stage
    score: Score


class TaskRecord(Value):
    """One candidate with all that was kept of it, and what policies, judges and people made of its task later."""

    iteration: int
    stage: Stage
    candidate: Candidate
    document: Document | None
    written_by: Rollout | None
    """The Challenger's rollout that proposed it."""
    attempts: tuple[GradedRollout, ...]
    """The Solver rollouts that its difficulty was measured with, in their order."""
    other_attempts: tuple[GradedRollout, ...] = ()
    """Of training and of comparisons."""
    comparisons: tuple[AnswerComparison, ...] = ()
    selections: tuple[AnswerSelection, ...] = ()
    scores: tuple[JudgedScore, ...] = ()
    by_people: tuple[HumanVerdict, ...] = ()
    """What people said to the judge's questions."""


class Count(Value):
    """How many candidates of one iteration and stage ended in one way."""

    iteration: int
    stage: Stage
    status: CandidateStatus
    reason: Reason
    count: int


class HeldOutScore(Value):
    """What one checkpoint reached on one held-out task."""

    task_id: str
    iteration: int
    checkpoint: str
    rollout_id: str
    score: float | None
