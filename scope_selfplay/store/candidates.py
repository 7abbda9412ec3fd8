"""The columns that lists are made of, in a table of their own: a page of a million candidates is a slice of it.

Parquet keeps a record's texts and verdicts together; to filter and sort by a few small columns of it would read
row groups from everywhere. The table is a file in the reader's scratch folder. What a query matches is kept as
row numbers (4 bytes each), so that the next page, and the neighbours of a candidate, need no search. What a user typed
goes into SQL as values only.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from scope_selfplay.base.gates import Gate
from scope_selfplay.store.query import Sort, Suspect, TaskQuery

_COLUMNS = (
    "iteration, stage, id, task_id, status, reason, type, search_turns, criteria, rollouts, mean, document_id, "
    "text"
)

# The further a mean is from the middle, the less the task tells.
_SORTED_BY = {
    Sort.ORDER: "rowid",
    Sort.MEAN: "mean",
    Sort.SPREAD: "abs(mean - 0.5)",
    Sort.TYPE: "type",
    Sort.REASON: "reason",
    Sort.SEARCHES: "search_turns",
    Sort.LENGTH: "length(text)",
}
_REMEMBERED = 16
_GATES = ", ".join(f"gates.{gate.value}.value AS gate_{gate.value}" for gate in Gate)
_LACKS_CRITERION = "coalesce(len(rubric.unmet), 0) > 0"
_LACKS_EVIDENCE = "coalesce(len(list_filter(rubric.criteria, lambda c: len(c.evidence) = 0)), 0) > 0"
_TABLE = (
    "CREATE OR REPLACE TABLE narrow.lines AS SELECT iteration, stage, id, task.id AS task_id, status, reason, "
    "task.type AS type, task.search_turns AS search_turns, len(rubric.criteria)::INTEGER AS criteria, "
    "len(rollout_ids)::INTEGER AS rollouts, mean, provenance.document_id AS document_id, task.text AS text, "
    # Lowered once: what is typed is looked for in it.
    f"lower(concat_ws('\n', task.text, provenance.document_id, id, task.id)) AS sought, {_GATES}, "
    f"{_LACKS_CRITERION} AS flaw_demand, {_LACKS_EVIDENCE} AS flaw_evidence, "
    "len(injection_suspect) > 0 AS suspect_task, len(document_suspect) > 0 AS suspect_document FROM candidates"
)

# An episode that only searches records its searches without calls.
_CALLED = (
    "task_id IN (WITH asked AS (SELECT ?::VARCHAR AS tool) SELECT subject_id FROM rollouts, asked "
    "WHERE len(list_filter(turns, lambda t: "
    "t.call.tool = asked.tool OR (asked.tool = 'search' AND t.query IS NOT NULL))) > 0)"
)

_SUSPECT = {
    Suspect.TASK: "suspect_task",
    Suspect.DOCUMENT: "suspect_document",
    Suspect.ANSWER: "task_id IN (SELECT subject_id FROM rollouts WHERE role = 'solver' AND len(injection_suspect) > 0)",
}
_SUSPECT[Suspect.ANY] = f"({' OR '.join(f'coalesce({part}, false)' for part in _SUSPECT.values())})"

Rows = NDArray[np.uint32]


class CandidateTable:
    """Made from the view `candidates` of a database when it is first used, and again after `forget`."""

    def __init__(self, database: duckdb.DuckDBPyConnection, file: Path) -> None:
        self._database = database
        self._database.execute(f"ATTACH '{file}' AS narrow")
        self._lock = threading.RLock()
        self._is_made = False
        self._matches: OrderedDict[tuple[Any, ...], Rows] = OrderedDict()

    def forget(self) -> None:
        """The candidates have changed."""
        with self._lock:
            self._is_made = False
            self._matches.clear()

    def matching(self, query: TaskQuery) -> Rows:
        """Row numbers of all that a query asks for, in its order, whatever its page."""
        where, values = _where(query)
        # Equal ones stay as they were made, candidates without the value come last.
        direction = "DESC" if query.descending else "ASC"
        rest = "" if query.sort is Sort.ORDER else " NULLS LAST, rowid"
        order = f"{_SORTED_BY[query.sort]} {direction}{rest}"
        key = (where, order, *values)
        with self._lock:
            if key not in self._matches:
                text = f"SELECT rowid FROM narrow.lines WHERE {where} ORDER BY {order}"
                found = self._cursor().execute(text, values).fetchnumpy()
                self._matches[key] = found["rowid"].astype(np.uint32)
                if len(self._matches) > _REMEMBERED:
                    self._matches.popitem(last=False)
            self._matches.move_to_end(key)
            return self._matches[key]

    def around(self, query: TaskQuery, candidate_id: str) -> tuple[int | None, int | None]:
        """Row numbers before and after a candidate in the list of a query; None at its ends."""
        rows = self.matching(query)
        own = self._cursor().execute("SELECT rowid FROM narrow.lines WHERE id = ?", [candidate_id]).fetchall()
        places = np.flatnonzero(np.isin(rows, [row for (row,) in own]))
        if not len(places):
            return None, None
        place = int(places[0])
        before = int(rows[place - 1]) if place else None
        return before, int(rows[place + 1]) if place + 1 < len(rows) else None

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Rows by number, in the order given."""
        if not len(rows):
            return []
        marks = ", ".join(str(int(row)) for row in rows)
        found = self._rows(f"SELECT rowid AS row, {_COLUMNS} FROM narrow.lines WHERE rowid IN ({marks})")
        by_row = {line.pop("row"): line for line in found}
        return [by_row[int(row)] for row in rows]

    def find(self, condition: str, values: Sequence[Any], *, order: str, limit: int) -> list[dict[str, Any]]:
        """Rows by a condition over their columns."""
        text = f"SELECT {_COLUMNS} FROM narrow.lines WHERE {condition} ORDER BY {order} LIMIT {limit}"
        return self._rows(text, values)

    def types(self) -> list[str]:
        """Every type that a task has, in alphabetical order."""
        text = "SELECT DISTINCT type FROM narrow.lines WHERE type <> '' ORDER BY type"
        return [name for (name,) in self._cursor().execute(text).fetchall()]

    def _rows(self, text: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        cursor = self._cursor().execute(text, list(values))
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor of the database, with the table in it."""
        with self._lock:
            if not self._is_made:
                self._database.cursor().execute(_TABLE)
                self._is_made = True
        return self._database.cursor()


def _where(query: TaskQuery) -> tuple[str, list[Any]]:
    """The condition on the narrow table and the values of its marks."""
    parts: list[str] = []
    values: list[Any] = []
    for part, value in (
        ("iteration = ?", query.iteration),
        ("stage = ?", query.stage.value if query.stage else None),
        ("status = ?", query.status.value if query.status else None),
        ("reason = ?", query.reason.value if query.reason else None),
        ("type = ?", query.type),
        ("search_turns = ?", query.searches),
        (_CALLED, query.tool),
        ("mean >= ? - 1e-9", query.low),
        ("mean <= ? + 1e-9", query.high),
        ("mean < ? - 1e-9", query.below),
    ):
        if value is not None:
            parts.append(part)
            values.append(value)
    if query.suspect:
        parts.append(_SUSPECT[query.suspect])
    if query.gate:
        # Not a value: the name of a column, one of a closed set.
        parts.append(f"NOT gate_{query.gate.value}")
    if query.flaw:
        parts.append(f"flaw_{query.flaw.value}")
    if query.text:
        parts.append("contains(sought, lower(?))")
        values.append(query.text)
    return " AND ".join(parts) or "true", values
