"""What an audit of the judge asked again and found, in the folder `audit/` beside a run's iterations.

    audit/asked.jsonl     every judgement that was asked again, as soon as it is there
    audit/audit.json      what follows from them

The loop reads none of it.
"""

from enum import StrEnum

from scope_selfplay.errors import RecordError
from scope_selfplay.schemas import Fault, Value
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folders import RunFolder, Stage


class AuditWay(StrEnum):
    """How a judgement is asked again; in every way but the last two by the same judge, with draws of its own."""

    AGAIN = "again"
    SWAPPED = "swapped"
    """The two answers in the other order."""
    LONGER = "longer"
    """The answer, or one of two, with sentences behind it that say nothing."""
    REWORDED = "reworded"
    """By the prompts of a second pack."""
    ELSEWHERE = "elsewhere"
    """By the judge of another endpoint."""


class JudgementKind(StrEnum):
    GATE = "gate"
    GRADE = "grade"
    COMPARISON = "comparison"


class AskedAgain(Value):
    """One judgement, then and now: 1 for yes, or for the first of two answers in the order of then; 0.5 is a tie.

    `by` is the judge that was asked now. `about` is the gate, the kind of the criterion, or the style of a comparison.
    `padded_first` says which of two answers was made longer. `now` is None where the fault says why.
    """

    id: str
    way: AuditWay
    kind: JudgementKind
    by: str
    iteration: int
    stage: Stage
    task_id: str
    about: str
    shown: str
    then: float
    now: float | None
    padded_first: bool = False
    then_reasoning: str = ""
    now_reasoning: str = ""
    fault: Fault | None = None
    attempts: int = 1
    cached: bool = False


class Share(Value):
    """A mean over tasks with its 99 % interval, None over fewer than two; `asked` judgements are behind it."""

    value: float
    low: float | None
    high: float | None
    asked: int
    tasks: int


class AgainAgreement(Value):
    """Of the judgements of one kind that were asked again in one way: those that were read, and those that agree."""

    way: AuditWay
    kind: JudgementKind
    asked: int
    read: int
    agreed: Share | None
    kappa: float | None


class Drift(Value):
    """The share met of the same answers, then and now: of an iteration, or of a kind of criterion."""

    name: str
    then: float
    now: float
    change: Share


class AuditReport(Value):
    """`iteration` is the newest one that was looked at; what could not be measured is None."""

    iteration: int
    judge: str
    calls: int
    agreement: tuple[AgainAgreement, ...]
    agreed: Share | None
    """Over all kinds, asked again as they were."""
    reworded: Share | None
    position: Share | None
    """How much more often the answer that is shown first wins: 1 where the place decides every pair."""
    length: Share | None
    """What words that say nothing add to a verdict: 1 where they turn every no into a yes."""
    unread: Share | None
    drift: tuple[Drift, ...]


def read_audit(folder: RunFolder) -> AuditReport | None:
    """None where the judge has not been audited. Raises RecordError for a damaged file."""
    path = folder.audit / "audit.json"
    if not path.exists():
        return None
    try:
        return AuditReport.model_validate_json(path.read_bytes())
    except ValueError:
        raise RecordError(f"{path}: damaged; run `scope judge audit {folder.path}` again") from None


def read_asked(folder: RunFolder) -> list[AskedAgain]:
    """Raises RecordError for a damaged line."""
    return read_records(folder.audit / "asked.jsonl", AskedAgain)
