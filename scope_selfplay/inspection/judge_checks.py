"""How far the judge can be trusted, as rows that the terminal, the report and the web page show alike."""

from collections.abc import Iterable, Iterator

from scope_selfplay.inspection.people import JudgeAgreement, People
from scope_selfplay.schemas import Value
from scope_selfplay.store.folders import RunFolder
from scope_selfplay.store.judge_checks import (
    AgainAgreement,
    AuditReport,
    AuditWay,
    CanaryCount,
    Share,
    count_canaries,
    read_audit,
    read_canaries,
    share_interval,
)
from scope_selfplay.untrusted_text import one_line


class JudgeCheck(Value):
    """One number about the judge with its interval, of so many judgements."""

    name: str
    value: float
    low: float | None
    high: float | None
    asked: int
    note: str = ""


_WAYS = {
    AuditWay.AGAIN: "asked again",
    AuditWay.SWAPPED: "in the other order",
    AuditWay.LONGER: "with a longer answer",
    AuditWay.REWORDED: "in other words",
    AuditWay.ELSEWHERE: "another judge",
}


def judge_checks(folder: RunFolder, played: People | None) -> list[JudgeCheck]:
    """Of a run: its canaries, its audit, and the people who judged; [] where there is none of them."""
    report = read_audit(folder)
    return [
        *_of_canaries(count_canaries(read_canaries(folder))),
        *(_of_audit(report) if report else ()),
        *map(_of_people, played.agreement if played else ()),
    ]


def check_lines(checks: Iterable[JudgeCheck]) -> Iterator[str]:
    """A heading and a line for each; nothing without any."""
    rows = list(checks)
    if rows:
        yield "\n== The judge (share or difference, its interval, judgements)"
    for row in rows:
        interval = "" if row.low is None or row.high is None else f"[{row.low:.3f}, {row.high:.3f}]"
        numbers = f"{row.value:>6.3f}  {interval:16} {row.asked:>6,}"
        yield f"  {one_line(row.name):46} {numbers}  {one_line(row.note)}".rstrip()


def _of_canaries(counts: Iterable[CanaryCount]) -> Iterator[JudgeCheck]:
    for each in counts:
        low, high = share_interval(each.right, each.read) if each.read else (None, None)
        yield JudgeCheck(
            name=f"canaries judged right: {each.role}, {each.kind}",
            value=each.right / each.read if each.read else 0.0,
            low=low,
            high=high,
            asked=each.asked,
            note=f"{each.asked - each.read} unread" if each.read < each.asked else "",
        )


def _of_audit(report: AuditReport) -> Iterator[JudgeCheck]:
    for row in report.agreement:
        yield from _agreement(row)
    yield from _check("what being shown first adds to a win", report.position)
    yield from _check("what words that say nothing add", report.length)
    yield from _check("cannot be read when asked again", report.unread)
    for each in report.drift:
        yield from _check(
            f"change in share met: {each.name}", each.change, f"{each.then:.3f} -> {each.now:.3f}"
        )


def _agreement(row: AgainAgreement) -> Iterator[JudgeCheck]:
    kappa = f"kappa {row.kappa:.3f}" if row.kappa is not None else ""
    unread = f"{row.asked - row.read} unread" if row.read < row.asked else ""
    note = ", ".join(filter(None, (kappa, unread)))
    yield from _check(f"agree, {_WAYS[row.way]}: {row.kind}", row.agreed, note)


def _check(name: str, share: Share | None, note: str = "") -> Iterator[JudgeCheck]:
    if share is not None:
        yield JudgeCheck(
            name=name, value=share.value, low=share.low, high=share.high, asked=share.asked, note=note
        )


def _of_people(row: JudgeAgreement) -> JudgeCheck:
    """The interval is kappa's; the judge is more lenient by the questions to which it alone says yes."""
    lenient = (row.judge_alone - row.person_alone) / row.questions
    kappa = "" if row.kappa is None else f"kappa {row.kappa:.3f}, "
    return JudgeCheck(
        name=f"agree with people: {row.name}",
        value=row.agreed / row.questions,
        low=None,
        high=None,
        asked=row.questions,
        note=f"{kappa}the judge says yes more often by {lenient:+.3f}",
    )
