"""A result as tables, for the terminal, the report and the card."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scope_selfplay.evaluation.behaviour import BehaviourRow
from scope_selfplay.evaluation.intervals import Estimate
from scope_selfplay.evaluation.results import EvaluationResult
from scope_selfplay.evaluation.score_table import ResultRow

Cells = tuple[str, ...]


@dataclass(frozen=True)
class ResultTable:
    """A head and rows of cells; `title` is empty for the first one."""

    title: str
    head: Cells
    rows: tuple[Cells, ...]


def tables_of(result: EvaluationResult) -> Iterator[ResultTable]:
    """The leaderboard, then what it is made of; only tables that have rows."""
    yield _leaderboard(result)
    for title, head, rows in (
        ("Groups", ("checkpoint", "group", "scorer", "score", "items"), _parts(result)),
        ("Differences", ("checkpoint", "above", "scorer", "by", "items"), _differences(result)),
        (
            "Beside each other",
            ("one", "other", "by", "judge", "rate", "wins", "ties", "losses"),
            _wins(result),
        ),
        ("Ratings", ("checkpoint", "judge", "points"), _ratings(result)),
        (
            "How far judges agree",
            ("scorer", "one", "other", "answers", "same", "kappa", "correlation"),
            _agreement(result),
        ),
        (
            "What it took",
            ("checkpoint", "searches", "tokens", "context", "judge calls", "judge tokens"),
            _costs(result),
        ),
    ):
        found = tuple(rows)
        if found:
            yield ResultTable(title, head, found)


def as_markdown(tables: Iterator[ResultTable]) -> Iterator[str]:
    for table in tables:
        if table.title:
            yield from ("", f"## {table.title}", "")
        yield f"| {' | '.join(table.head)} |"
        yield f"|{'---|' * len(table.head)}"
        yield from (f"| {' | '.join(row)} |" for row in table.rows)


def as_text(tables: Iterator[ResultTable]) -> Iterator[str]:
    """Columns of equal width, for a terminal."""
    for table in tables:
        if table.title:
            yield from ("", table.title)
        lines = [table.head, *table.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(table.head))]
        for line in lines:
            yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def shown(estimate: Estimate | None, *, digits: int = 3, sign: bool = False) -> str:
    """`0.412 [0.371, 0.455]`; what has no interval stands alone, and what is not known is a dash."""
    if estimate is None:
        return "-"
    form = f"{'+' if sign else ''}.{digits}f"
    value = f"{estimate.value:{form}}"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{estimate.low:{form}}, {estimate.high:{form}}]"


def noted(estimate: Estimate | None, *, sign: bool = False, missing: int = 0) -> str:
    """The same with what to beware of: `0.500 [0.095, 0.905] (only 2 items, 1 missing)`."""
    notes = [] if estimate is None or not estimate.note else [estimate.note]
    notes += [f"{missing:,} missing"] if missing else []
    return f"{shown(estimate, sign=sign)} ({', '.join(notes)})" if notes else shown(estimate, sign=sign)


def _leaderboard(result: EvaluationResult) -> ResultTable:
    """The best first, by the number that the benchmark is known by."""
    whole = [row for row in result.rows if not row.part]
    columns = list(dict.fromkeys((row.scorer, row.judge, row.metric) for row in whole))
    cells = {
        (row.checkpoint, row.scorer, row.judge, row.metric): noted(row.estimate, missing=row.missing)
        for row in whole
    }
    behaviour = {row.checkpoint: row for row in result.behaviour}
    best = sorted(behaviour, key=lambda name: -_headline(result, name))
    rows = [
        (
            name,
            *(cells.get((name, *column), "-") for column in columns),
            shown(behaviour[name].valid),
            _answers(behaviour[name]),
        )
        for name in best
    ]
    head = ("checkpoint", *(_column_title(column, columns) for column in columns), "valid", "answers")
    return ResultTable("", head, tuple(rows))


def _answers(row: BehaviourRow) -> str:
    return f"{row.answers:,} ({row.failed:,} failed)" if row.failed else f"{row.answers:,}"


def _headline(result: EvaluationResult, name: str) -> float:
    estimate = result.headline(name)
    return float("-inf") if estimate is None else estimate.value


def _column_title(column: tuple[str, str, str], columns: Sequence[tuple[str, str, str]]) -> str:
    scorer, judge, metric = column
    several = len({other for _, other, _ in columns if other}) > 1
    named = f" by {judge}" if judge and several else ""
    return f"{scorer} {metric}{named}"


def _parts(result: EvaluationResult) -> Iterator[Cells]:
    def order(row: ResultRow) -> tuple[str, str, str]:
        return (row.part, row.scorer, row.metric)

    for row in sorted((row for row in result.rows if row.part), key=order):
        yield (
            row.checkpoint,
            row.part,
            f"{row.scorer} {row.metric}",
            shown(row.estimate),
            f"{row.estimate.items}",
        )


def _differences(result: EvaluationResult) -> Iterator[Cells]:
    for row in result.differences:
        by = noted(row.estimate, sign=True)
        yield (row.checkpoint, row.against, f"{row.scorer} {row.metric}", by, f"{row.estimate.items}")


def _wins(result: EvaluationResult) -> Iterator[Cells]:
    for row in result.wins:
        counts = (f"{row.wins:,}", f"{row.ties:,}", f"{row.losses:,}")
        yield (row.one, row.other, row.part or "whole answers", row.judge, shown(row.rate), *counts)


def _ratings(result: EvaluationResult) -> Iterator[Cells]:
    for judge, ratings in result.elo.items():
        for name, estimate in sorted(ratings.items(), key=lambda pair: -pair[1].value):
            yield (name, judge, shown(estimate, digits=0, sign=True))


def _agreement(result: EvaluationResult) -> Iterator[Cells]:
    for row in result.agreement:
        numbers = ("-" if each is None else f"{each:.2f}" for each in (row.same, row.kappa, row.correlation))
        yield (row.scorer, row.one, row.other, f"{row.answers:,}", *numbers)


def _costs(result: EvaluationResult) -> Iterator[Cells]:
    for row in result.behaviour:
        yield (row.checkpoint, *_taken(row), f"{row.judge_calls:.1f}", f"{row.judge_tokens:,.0f}")


def _taken(row: BehaviourRow) -> Iterator[str]:
    for estimate, digits in ((row.searches, 2), (row.tokens, 0), (row.context, 0)):
        yield "-" if estimate is None else f"{estimate.value:,.{digits}f}"
