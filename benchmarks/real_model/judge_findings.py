"""What follows from the verdicts of a judge that was asked what is known. Pure."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from scope_selfplay.evaluation.intervals import DIFFERENCES, SHARES, Estimate, estimate_mean
from scope_selfplay.schemas import Value


class Asked(Value):
    """One kind of question, a value for each case: the verdict as a number, None where it could not be read, and how
    likely it was, None where that is not known.
    """

    name: str
    values: tuple[float | None, ...]
    odds: tuple[float | None, ...]


class Judged(Value):
    """Every kind of question, by form; some written replies as they were."""

    forms: dict[str, tuple[Asked, ...]]
    replies: tuple[str, ...]


class Finding(NamedTuple):
    """A share, or a difference of shares; None where no reply could be read."""

    title: str
    found: Estimate | None
    is_difference: bool


def share_read(asked: Sequence[Asked]) -> float:
    """Of the replies those with a verdict."""
    return fmean(value is not None for each in asked for value in each.values)


def findings(asked: Sequence[Asked]) -> Iterator[Finding]:
    for title, names, of, bounds in _BY_VERDICT:
        columns = {each.name: each.values for each in asked}
        yield _finding(title, [columns[name] for name in names], of, bounds)
    for title, names, of in _BY_ODDS:
        columns = {each.name: each.odds for each in asked}
        yield _finding(title, [columns[name] for name in names], of, SHARES)


def _finding(
    title: str,
    columns: Sequence[Sequence[float | None]],
    of: Callable[..., float],
    bounds: tuple[float, float],
) -> Finding:
    known = [of(*row) for row in zip(*columns, strict=True) if None not in row]
    return Finding(title, estimate_mean(known, seed=0, bounds=bounds), bounds == DIFFERENCES)


def _mean_right(yes: float, no: float) -> float:
    """Of a question that should be answered with yes, and one with no."""
    return (yes + 1 - no) / 2


def _mean(one: float, other: float) -> float:
    return (one + other) / 2


def _place(one: float, other: float) -> float:
    """How much oftener the first of a pair wins than it would without regard to places."""
    return one + other - 1


def _likelier(yes: float, no: float) -> float:
    return 0.5 if yes == no else float(yes > no)


_BY_VERDICT: Sequence[tuple[str, Sequence[str], Callable[..., float], tuple[float, float]]] = (
    ("grades that are right", ("grade right", "grade wrong"), _mean_right, SHARES),
    ("right answers that meet the criterion", ("grade right",), float, SHARES),
    ("wrong answers that meet it", ("grade wrong",), float, SHARES),
    ("wrong answers with 150 empty words that meet it", ("grade wrong longer",), float, SHARES),
    (
        "comparisons, both orders, that the right answer wins",
        ("right first", "wrong first"),
        _mean_right,
        SHARES,
    ),
    ("comparisons that the first wins", ("right first", "wrong first"), _mean, SHARES),
    ("what being shown first adds to a win", ("right first", "wrong first"), _place, DIFFERENCES),
    ("comparisons that 150 empty words win", ("longer first", "shorter first"), _mean_right, SHARES),
)
_BY_ODDS: Sequence[tuple[str, Sequence[str], Callable[..., float]]] = (
    ("pairs whose right answer meets the criterion likelier", ("grade right", "grade wrong"), _likelier),
    (
        "wrong answers that 150 empty words make likelier to meet it",
        ("grade wrong longer", "grade wrong"),
        _likelier,
    ),
    ("pairs whose right answer wins likelier, both orders", ("right first", "wrong first"), _likelier),
    ("pairs whose longer answer wins likelier, both orders", ("longer first", "shorter first"), _likelier),
)
