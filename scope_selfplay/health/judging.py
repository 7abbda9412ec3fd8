"""How far the judge can be trusted: questions with known verdicts, and judgements that were asked again."""

from collections.abc import Mapping

from scope_selfplay.health.signals import Measured
from scope_selfplay.store.judge_checks import AuditReport, Share, read_audit, read_canaries, share_interval
from scope_selfplay.store.reader import RunReader


def canary_accuracy(reader: RunReader, iteration: int) -> Measured | None:
    """The share of an iteration's canaries that was judged right, of those that were read."""
    read = [each for each in read_canaries(reader.folder, iteration) if each.found is not None]
    if not read:
        return None
    right = sum(each.is_right for each in read)
    return Measured(right / len(read), share_interval(right, len(read)))


def audited(reader: RunReader, iteration: int) -> Mapping[str, Measured | None]:
    """What the run's audit found; it belongs to the newest iteration that it looked at."""
    report = read_audit(reader.folder)
    return audit_values(report) if report is not None and report.iteration == iteration else {}


def audit_values(report: AuditReport) -> dict[str, Measured | None]:
    """The signals of an audit."""
    drifts = [(each.name, each.change) for each in report.drift if each.change.low is not None]
    name, worst = max(drifts, key=lambda each: _certain(each[1]), default=("", None))
    return {
        "judge_agreement": _measured(report.agreed),
        "reworded_agreement": _measured(report.reworded),
        "position_bias": _measured(report.position),
        "length_bias": _measured(report.length),
        "judge_unread": _measured(report.unread),
        "judge_drift": _measured(worst, name),
    }


def _measured(share: Share | None, about: str = "") -> Measured | None:
    """Without an interval nothing is said."""
    if share is None or share.low is None or share.high is None:
        return None
    return Measured(share.value, (share.low, share.high), about)


def _certain(change: Share) -> float:
    """How far the whole interval is from no change; below 0 where it holds 0."""
    assert change.low is not None and change.high is not None
    return max(change.low, -change.high)
