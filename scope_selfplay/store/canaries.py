"""What a judge said to canaries: questions with known verdicts, in the folder `canaries/` beside a run's iterations.

    canaries/01-solver-000.jsonl     those of one start of a stage, or of one process of it

They are no records of the corpus: nothing is made from them, and no reader of records finds them.
"""

from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from itertools import count, groupby
from math import sqrt
from pathlib import Path

from scope_selfplay.config import JudgeRole
from scope_selfplay.schemas import Value, Verdict
from scope_selfplay.store.files import disk_faults, read_records
from scope_selfplay.store.folders import RunFolder, Stage

_Z = 2.5758


class CanaryKind(StrEnum):
    """What is judged: something right, something wrong, what says nothing, or a text that speaks to the judge."""

    RIGHT = "right"
    WRONG = "wrong"
    EMPTY = "empty"
    HOSTILE = "hostile"


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


class CanaryCount(Value):
    """Of the canaries of a role and kind: those that were asked, those with a verdict, those judged right."""

    role: JudgeRole
    kind: CanaryKind
    asked: int
    read: int
    right: int


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


def count_canaries(verdicts: Iterable[CanaryVerdict]) -> tuple[CanaryCount, ...]:
    """By role and kind, in the order of both."""
    roles, kinds = list(JudgeRole), list(CanaryKind)

    def place(verdict: CanaryVerdict) -> tuple[int, int]:
        return roles.index(verdict.role), kinds.index(verdict.kind)

    groups = (list(group) for _, group in groupby(sorted(verdicts, key=place), key=place))
    return tuple(
        CanaryCount(
            role=group[0].role,
            kind=group[0].kind,
            asked=len(group),
            read=sum(verdict.found is not None for verdict in group),
            right=sum(verdict.is_right for verdict in group),
        )
        for group in groups
    )


def share_interval(right: int, asked: int) -> tuple[float, float]:
    """The 99 % interval of a share (Wilson)."""
    share, z = right / asked, _Z
    middle = share + z * z / (2 * asked)
    half = z * sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked))
    whole = 1 + z * z / asked
    return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)


def canary_words(counts: Iterable[CanaryCount]) -> str:
    """`118 of 120 right (gates 40/40, grade 78/80)`; "" without any."""
    found = list(counts)
    if not found:
        return ""
    by_role = [(role, [each for each in found if each.role is role]) for role in JudgeRole]
    shares = [
        f"{role.value} {sum(each.right for each in own)}/{sum(each.asked for each in own)}"
        for role, own in by_role
        if own
    ]
    right, asked = sum(each.right for each in found), sum(each.asked for each in found)
    return f"{right} of {asked} right ({', '.join(shares)})"
