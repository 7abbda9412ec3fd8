"""How far a run's judge can be trusted: its exam, canaries (both questions with known verdicts) and audits (judgements
asked again).

    canaries/01-solver-000.jsonl     what was said to those of one start of a stage, or of one process of it
    exam/exam.json                   what a judge was found to be able to before the run asked it anything
    audit/asked.jsonl                every judgement that was asked again, as soon as it is there
    audit/audit.json                 what follows from them

All lie beside a run's iterations. They are no records of the corpus: nothing is made from them, no reader of records
finds them; of the loop, the judge alone reads its exam, for the thresholds of its verdicts.
"""

from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import count, product
from pathlib import Path

from scope_selfplay.base.intervals import Estimate, shown, wilson
from scope_selfplay.base.values import Fault, Value, Verdict
from scope_selfplay.config.judge import JudgeRole
from scope_selfplay.store.files import disk_faults, read_records, read_value
from scope_selfplay.store.folder import RunFolder, Stage

_Z = 2.5758


class CanaryKind(StrEnum):
    """What is judged: something right, something about another matter, about the same but without what is asked, right
    but for a number or name, what says nothing, a text that speaks to the judge, something wrong with many words behind
    it that say nothing, or a text that says of itself that it is right.
    """

    RIGHT = "right"
    WRONG = "wrong"
    PARTIAL = "partial"
    ALTERED = "altered"
    EMPTY = "empty"
    HOSTILE = "hostile"
    PADDED = "padded"
    CLAIM = "claim"


NEAR = (CanaryKind.PADDED, CanaryKind.PARTIAL, CanaryKind.ALTERED)
"""What is wrong and looks right, as answers of a run mostly do."""
CLAIMS = (CanaryKind.HOSTILE, CanaryKind.CLAIM)
"""What speaks to whoever grades, or of itself."""


class CanaryVerdict(Value):
    """`question` names what was asked (`gate_source`, `grade`, `compare_scores`), `shown` is the text it was about.

    `expected` is the known verdict; of a comparison, that the first one wins. `found` is None without a verdict.
    """

    iteration: int
    stage: Stage
    role: JudgeRole
    question: str
    kind: CanaryKind
    task: str
    criterion: str = ""
    shown: str
    expected: bool
    found: bool | None
    verdict: Verdict

    @property
    def is_right(self) -> bool:
        return self.found is self.expected


def new_log(folder: RunFolder, iteration: int, stage: Stage) -> Path:
    """An empty file that nobody writes to but the caller."""
    with disk_faults(folder.canaries):
        folder.canaries.mkdir(parents=True, exist_ok=True)
        for number in count():
            path = folder.canaries / f"{iteration:02d}-{stage}-{number:03d}.jsonl"
            with suppress(FileExistsError):
                path.touch(exist_ok=False)
                return path
    raise AssertionError("unreachable")


def read_canaries(
    folder: RunFolder, iteration: int | None = None, stage: Stage | None = None
) -> list[CanaryVerdict]:
    """All of a run, or those of an iteration and a stage. Raises RecordError for a damaged file."""
    begins = "*" if iteration is None else f"{iteration:02d}-{stage or '*'}"
    paths = sorted(folder.canaries.glob(f"{begins}-[0-9]*.jsonl"))
    return [verdict for path in paths for verdict in read_records(path, CanaryVerdict)]


def canary_shares(verdicts: Sequence[CanaryVerdict]) -> dict[str, Estimate]:
    """The share judged right of those that were read, by role and kind, in the order of both; `items` were asked."""
    found = {}
    for role, kind in product(JudgeRole, CanaryKind):
        own = [each for each in verdicts if each.role is role and each.kind is kind]
        read = [each.is_right for each in own if each.found is not None]
        if own:
            low, high = share_interval(sum(read), len(read)) if read else (None, None)
            value, unread = sum(read) / max(1, len(read)), len(own) - len(read)
            note = f"{unread} unread" if unread else ""
            found[f"canaries judged right: {role}, {kind}"] = Estimate(
                value=value, low=low, high=high, items=len(own), note=note
            )
    return found


def share_interval(right: int, asked: int) -> tuple[float, float]:
    """The 99 % interval of a share."""
    return wilson(right / asked, asked, _Z)


def canary_words(verdicts: Sequence[CanaryVerdict]) -> str:
    """`118 of 120 right (gates 40/40, grade 78/80)`; "" without any."""
    by_role = {role: [each.is_right for each in verdicts if each.role is role] for role in JudgeRole}
    shares = ", ".join(f"{role.value} {sum(own)}/{len(own)}" for role, own in by_role.items() if own)
    right = sum(each.is_right for each in verdicts)
    return f"{right} of {len(verdicts)} right ({shares})" if verdicts else ""


class Anchor(Value):
    """An item of the exam that every later start asks again, and what it got: the log-odds of its first choice."""

    role: JudgeRole
    prompt: str
    choices: tuple[str, ...]
    log_odds: float


class QuestionExam(Value):
    """What an exam found of one question.

    `order`: pairs of a yes and a no that are in order. `right`: verdicts that are right, by thresholds that were fitted
    to other cases. `threshold`: in log-odds, of all cases; None where a verdict is no token. `own`: those asked
    that are one's own. `seconds` of one judgement among others; `unread`: the first reply that could not be read.
    """

    order: Estimate | None
    right: Estimate | None = None
    threshold: float | None = None
    shares: dict[str, Estimate]
    asked: int = 0
    own: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    unread: str = ""
    anchors: tuple[Anchor, ...] = ()


PASSES = 0.75
"""Pairs that have to be in order, and replies that have to be readable."""
_BLIND = 0.55
"""Pairs of one kind that have to be in order; where none of five is, the upper end is .52."""
_FEW = 5
"""Below so many, a kind stops no run, and what was always right is told as open."""
WITH_ODDS = "with log-probabilities, without which nothing is calibrated"


class Exam(Value):
    """`judge` names model, template, prompts and settings; `questions` are by their names; `cases` is a hash of what it
    was made of.
    """

    judge: str
    questions: dict[str, QuestionExam]
    cases: str = ""

    @property
    def thresholds(self) -> dict[str, float]:
        known = ((name, each.threshold) for name, each in self.questions.items())
        return {name: threshold for name, threshold in known if threshold is not None}

    @property
    def failed(self) -> dict[str, str]:
        """Questions that this judge cannot answer, with the figure: the upper bound lies below what has to be."""
        found = {name: _fault(each, upper=True) for name, each in self.questions.items()}
        return {name: fault for name, fault in found.items() if fault}

    @property
    def doubtful(self) -> dict[str, str]:
        """Those of which the exam does not tell whether it can."""
        found = {name: _fault(each, upper=False) for name, each in self.questions.items()}
        return {name: fault for name, fault in found.items() if fault and name not in self.failed}


def _fault(found: QuestionExam, *, upper: bool) -> str:
    """What is too low at this end of its interval; "" where nothing is."""
    if found.order is None and not found.asked:
        return "" if upper else "not examined for want of cases"
    bounds = {"readable": (found.shares.get("readable"), PASSES), "in order": (found.order, PASSES)}
    # A judge that goes by length, or by the last word, is right about the other kinds. That it believes claims is told
    # and stops nothing: of answers, a guard looks for them.
    for kind in CanaryKind:
        share = found.shares.get(what := f"in order against {kind}")
        if share is not None and not (upper and (kind in CLAIMS or share.items < _FEW)) and share.value < 1.0:
            bounds[what] = (share, _BLIND)
    if not upper:
        bounds[WITH_ODDS] = (found.shares.get(WITH_ODDS), PASSES)
    for what, (share, bound) in bounds.items():
        if share is not None and share.ends[upper] < bound and (share.value < 1.0 or share.items < _FEW):
            return f"{shown(share, digits=2)} {what}"
    return "" if found.order is not None else "nothing in order"


def read_exam(folder: RunFolder) -> Exam | None:
    """That of a run's judge; None before it was held. Raises RecordError for a damaged file."""
    return read_value(folder.exam / "exam.json", Exam, "remove it, and the judge is examined again")


class AuditWay(StrEnum):
    """How a judgement is asked again, with draws of its own."""

    AGAIN = "again"
    SWAPPED = "swapped"
    """The two answers in the other order."""
    LONGER = "longer"
    """The answer, or one of two, with sentences behind it that say nothing."""


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


AGREE = {
    AuditWay.AGAIN: "agree, asked again",
    AuditWay.SWAPPED: "agree, in the other order",
    AuditWay.LONGER: "agree, with a longer answer",
}
FIRST_PLACE = "what being shown first adds to a win"
"""1 where the place decides every pair."""
LENGTH = "what words that say nothing add"
"""1 where they turn every no into a yes."""
UNREAD = "cannot be read when asked again"
DRIFT = "change in share met"
"""Of the same answers, from then to now: of an iteration, or of a kind of criterion."""


class AuditReport(Value):
    """`iteration` is the newest one that was looked at; `checks` has what could be measured, by what it says.

    Intervals are over tasks and hold 99 %; `items` are judgements.
    """

    iteration: int
    judge: str
    calls: int
    checks: dict[str, Estimate]


def read_audit(folder: RunFolder) -> AuditReport | None:
    """None where the judge has not been audited. Raises RecordError for a damaged file."""
    advice = f"run `scope judge audit {folder.path}` again"
    return read_value(folder.audit / "audit.json", AuditReport, advice)


def read_asked(folder: RunFolder) -> list[AskedAgain]:
    """Raises RecordError for a damaged line."""
    return read_records(folder.audit / "asked.jsonl", AskedAgain)
