"""What follows from judgements that were asked again. Pure."""

from collections.abc import Iterable, Sequence

from scope_selfplay.evaluation.intervals import DIFFERENCES, SHARES, mean_interval
from scope_selfplay.evaluation.kappa import Labels, kappa_over_tasks
from scope_selfplay.store.judge_checks import (
    AgainAgreement,
    AskedAgain,
    AuditReport,
    AuditWay,
    Drift,
    JudgementKind,
    Share,
)

# Five intervals of 95 % that hold all at once are 99 % each, as those of the other signals of health.
_LOOKS = 5
_OWN = (AuditWay.AGAIN, AuditWay.SWAPPED, AuditWay.LONGER)
"""The ways in which the judge of the run itself is asked, by its own prompts."""


def report_of(asked: Sequence[AskedAgain], judge: str) -> AuditReport:
    """Everything that can be said; `judge` names the one of the run."""
    read = [each for each in asked if each.now is not None]
    again = _in_way(read, AuditWay.AGAIN)
    return AuditReport(
        iteration=max((each.iteration for each in asked), default=0),
        judge=judge,
        calls=sum(not each.cached and each.attempts > 0 for each in asked),
        agreement=tuple(_agreements(asked)),
        agreed=_agreed(again),
        reworded=_agreed(_in_way(read, AuditWay.REWORDED)),
        position=_share([(each, _now(each, -1)) for each in _in_way(read, AuditWay.SWAPPED)], DIFFERENCES),
        length=_share(
            [(each, _gain_of_length(each)) for each in _in_way(read, AuditWay.LONGER)], DIFFERENCES
        ),
        unread=_share([(each, float(each.now is None)) for each in asked if each.way in _OWN], SHARES),
        drift=tuple(_drifts([each for each in again if each.kind is JudgementKind.GRADE])),
    )


def _in_way(asked: Iterable[AskedAgain], way: AuditWay) -> list[AskedAgain]:
    return [each for each in asked if each.way is way]


def _agreements(asked: Sequence[AskedAgain]) -> Iterable[AgainAgreement]:
    for way in AuditWay:
        for kind in JudgementKind:
            own = [each for each in asked if (each.way, each.kind) == (way, kind)]
            read = [each for each in own if each.now is not None]
            if own:
                labels = [Labels(each.task_id, each.then, each.now) for each in read]
                yield AgainAgreement(
                    way=way,
                    kind=kind,
                    asked=len(own),
                    read=len(read),
                    agreed=_agreed(read),
                    kappa=kappa_over_tasks(labels).value,
                )


def _agreed(read: Iterable[AskedAgain]) -> Share | None:
    return _share([(each, float(each.then == each.now)) for each in read], SHARES)


def _now(each: AskedAgain, sign: int = 1) -> float:
    """The change from then to now, or back."""
    assert each.now is not None
    return sign * (each.now - each.then)


def _gain_of_length(each: AskedAgain) -> float:
    """What the longer answer gained; of two, in the eyes of whoever sees it first."""
    is_second = each.kind is JudgementKind.COMPARISON and not each.padded_first
    return _now(each, -1 if is_second else 1)


def _drifts(grades: Sequence[AskedAgain]) -> Iterable[Drift]:
    """By iteration, then by kind of criterion, where there are several."""
    by_iteration = {f"iteration {number}" for number in {each.iteration for each in grades}}
    names = [*sorted(by_iteration), *sorted({each.about for each in grades})]
    for name in names:
        own = [each for each in grades if name in (f"iteration {each.iteration}", each.about)]
        change = _share([(each, _now(each)) for each in own], DIFFERENCES)
        if change is not None:
            then, now = (
                sum(values) / len(own) for values in ([e.then for e in own], [e.now or 0.0 for e in own])
            )
            yield Drift(name=name, then=then, now=now, change=change)


def _share(values: Sequence[tuple[AskedAgain, float]], bounds: tuple[float, float]) -> Share | None:
    """A mean of the means of tasks; None without any."""
    by_task: dict[str, list[float]] = {}
    for each, value in values:
        by_task.setdefault(each.task_id, []).append(value)
    means = [sum(own) / len(own) for own in by_task.values()]
    if not means:
        return None
    interval = mean_interval(means, seed=0, bounds=bounds, looks=_LOOKS)
    low, high = interval or (None, None)
    return Share(value=sum(means) / len(means), low=low, high=high, asked=len(values), tasks=len(means))
