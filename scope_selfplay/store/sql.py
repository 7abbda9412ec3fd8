"""A task query as SQL; what the user typed goes in as values only."""

from typing import Any

from scope_selfplay.store.query import Sort, TaskQuery

COLUMNS = (
    "iteration, stage, id, task_id, status, reason, type, search_turns, criteria, rollouts, mean, document_id, "
    "text"
)

# How far a mean lies from the middle is how little the task tells.
_SORTED_BY = {
    Sort.MEAN: "mean",
    Sort.SPREAD: "abs(mean - 0.5)",
    Sort.TYPE: "type",
    Sort.REASON: "reason",
    Sort.SEARCHES: "search_turns",
    Sort.LENGTH: "length(text)",
}


def where_of(query: TaskQuery) -> tuple[str, list[Any]]:
    """The condition on the narrow table (`store.lines`) and the values of its marks."""
    parts: list[str] = []
    values: list[Any] = []
    for part, value in (
        ("iteration = ?", query.iteration),
        ("stage = ?", query.stage.value if query.stage else None),
        ("status = ?", query.status.value if query.status else None),
        ("reason = ?", query.reason.value if query.reason else None),
        ("type = ?", query.type),
        ("search_turns = ?", query.searches),
        ("mean >= ? - 1e-9", query.low),
        ("mean <= ? + 1e-9", query.high),
        ("mean < ? - 1e-9", query.below),
    ):
        if value is not None:
            parts.append(part)
            values.append(value)
    if query.gate:
        # Not a value: the name of a column, one of a closed set.
        parts.append(f"NOT gate_{query.gate.value}")
    if query.text:
        parts.append("contains(sought, lower(?))")
        values.append(query.text)
    return " AND ".join(parts) or "true", values


def order_of(query: TaskQuery) -> str:
    """The list's order; equal ones stay as they were made, candidates without the value come last."""
    direction = "DESC" if query.descending else "ASC"
    if query.sort is Sort.ORDER:
        return f"rowid {direction}"
    return f"{_SORTED_BY[query.sort]} {direction} NULLS LAST, rowid"
