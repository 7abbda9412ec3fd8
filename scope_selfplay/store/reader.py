"""One reader for a run's records, finished (parquet) or still being written (JSON lines).

    with RunReader(Path("runs/demo")) as reader:
        page = reader.tasks(TaskQuery(status="accepted", low=0.4, text="treaty", sort="mean", limit=20))
        for line in page.lines:
            print(line.id, line.mean, line.text)                      # page.total counts all that match
        record = reader.task(page.lines[0].id)                        # document, gates, rubric, rollouts, grades
        before, after = reader.neighbours(TaskQuery(status="accepted"), record.candidate.id)
        for attempt in reader.attempts_on(record.candidate.task.id):  # also those of training and comparison
            print(attempt.stage, attempt.rollout.checkpoint, attempt.grade)
        reader.refresh()                                              # what was appended since

Nothing is loaded as a whole: DuckDB reads the columns and row groups that a query needs. A reader may be used from
several threads. It changes nothing in the run; what it converts is written to a temporary folder.
"""

import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import yaml
from numpy.typing import NDArray

from scope_selfplay.base.errors import RecordError
from scope_selfplay.base.values import Comparison, Document, Gate, Score, Selection
from scope_selfplay.store.columns import RecordKind, record_of
from scope_selfplay.store.files import find_records, read_rows
from scope_selfplay.store.folder import RunFolder, Stage, StageManifest
from scope_selfplay.store.query import (
    AnswerComparison,
    AnswerSelection,
    Count,
    GradedRollout,
    HeldOutScore,
    JudgedScore,
    Sort,
    Suspect,
    TaskLine,
    TaskPage,
    TaskQuery,
    TaskRecord,
    UnknownTaskError,
)
from scope_selfplay.store.sources import Place, RecordViews


def find_run(name: str) -> Path:
    """A run folder by its path, or by its name under `runs/`. Raises RecordError where there is none."""
    for path in (Path(name), Path("runs") / name):
        if path.is_dir():
            return path
    raise RecordError(f"{name}: there is no such folder, and no runs/{name}; give a run folder")


class RunReader(AbstractContextManager["RunReader"]):
    """Reads one run folder. Raises RecordError where it is not a run folder, or where a record is damaged."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.settings = _settings_of(self.folder)
        self._scratch = tempfile.TemporaryDirectory(prefix="scope-reader-")
        extensions = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        self._database = duckdb.connect(":memory:", config={"threads": 2, **extensions})
        self._database.execute("SET parquet_metadata_cache = true")
        self._lock = threading.Lock()
        self._views = RecordViews(self.folder, self._database, Path(self._scratch.name))
        self._table = CandidateTable(self._database)
        self.refresh()

    def refresh(self) -> bool:
        """Take in what was written since; whether anything was. Cheap when nothing was."""
        with self._lock:
            changed = self._views.refresh()
            if changed and RecordKind.CANDIDATES in self._views.define():
                self._table.forget()
            return changed

    def stages(self) -> dict[Place, StageManifest | None]:
        """Every stage that has begun, in the order of the loop; without a manifest it has not ended."""
        return self._views.stages()

    def iterations(self) -> list[int]:
        return sorted({iteration for iteration, _ in self.stages()})

    def task_types(self) -> list[str]:
        """Every type that a task of the run has, in alphabetical order."""
        return self._table.types()

    def tasks(self, query: TaskQuery | None = None) -> TaskPage:
        """One page of the candidates that a query asks for."""
        query = query or TaskQuery()
        rows = self._table.matching(query)
        page = self._table.read(rows[query.offset : query.offset + query.limit].tolist())
        return TaskPage(
            lines=tuple(record_of(self.folder.path, TaskLine, line) for line in page),
            total=len(rows),
            offset=query.offset,
        )

    def task(
        self, candidate_id: str, *, iteration: int | None = None, stage: Stage | None = None
    ) -> TaskRecord:
        """A candidate with its rollouts and grades, by its id, its task's id, or the beginning of either.

        Raises UnknownTaskError when there is none, or when several ids begin with it.
        """
        row = self._find(candidate_id, iteration, stage)
        place = (row.iteration, row.stage)
        *_, candidate = self.with_ids(RecordKind.CANDIDATES, "id", [row.id], place)
        proposal = candidate.challenger_rollout_id
        graded = self._graded(place, [*candidate.rollout_ids, proposal])
        return TaskRecord(
            iteration=row.iteration,
            stage=row.stage,
            candidate=candidate,
            document=self.document(candidate.provenance.document_id),
            written_by=next((found.rollout for found in graded if found.rollout.id == proposal), None),
            attempts=tuple(found for found in graded if found.rollout.id != proposal),
        )

    def neighbours(self, query: TaskQuery, candidate_id: str) -> list[TaskLine | None]:
        """The candidates before and after one in the whole list of a query, whatever its page; None at its ends."""
        return [
            None if row is None else record_of(self.folder.path, TaskLine, self._table.read([row])[0])
            for row in self._table.around(query, candidate_id)
        ]

    def attempts_on(self, task_id: str) -> list[GradedRollout]:
        """Every Solver rollout on a task: of its difficulty, of training, of the comparison of checkpoints."""
        query = "SELECT iteration, stage, id FROM rollouts WHERE subject_id = ? ORDER BY ordinal"
        rows = self.sql(query, [task_id])
        ids: dict[Place, list[str]] = {}
        for row in rows:
            ids.setdefault((row["iteration"], Stage(row["stage"])), []).append(row["id"])
        return [attempt for place, found in ids.items() for attempt in self._graded(place, found)]

    def comparisons_on(self, task_id: str) -> list[AnswerComparison]:
        """Every comparison of two answers to a task, in the order in which they were made."""
        rows = self.sql(
            "WITH answer AS (SELECT id, checkpoint FROM rollouts WHERE subject_id = ?) "
            "SELECT comparisons.*, one.checkpoint AS first, two.checkpoint AS second FROM comparisons "
            "JOIN answer AS one ON comparisons.first_id = one.id "
            "JOIN answer AS two ON comparisons.second_id = two.id ORDER BY comparisons.ordinal",
            [task_id],
        )
        return [
            AnswerComparison(
                iteration=row["iteration"],
                first=row["first"],
                second=row["second"],
                comparison=record_of(self.folder.path, Comparison, row),
            )
            for row in rows
        ]

    def selections_on(self, task_id: str) -> list[AnswerSelection]:
        """Every selection among answers to a task, in the order in which they were made."""
        rows = self.sql(
            "WITH answers AS (SELECT list(id) AS ids FROM rollouts WHERE subject_id = ?) "
            "SELECT selections.* FROM selections, answers WHERE list_has_any(candidate_ids, ids) ORDER BY ordinal",
            [task_id],
        )
        path = self.folder.path
        return [AnswerSelection(**_place(row), selection=record_of(path, Selection, row)) for row in rows]

    def scores_on(self, task_id: str) -> list[JudgedScore]:
        """Every number that an answer to a task was given, in the order in which they were."""
        rows = self.sql(
            "SELECT * FROM scores WHERE rollout_id IN (SELECT id FROM rollouts WHERE subject_id = ?) ORDER BY ordinal",
            [task_id],
        )
        return [JudgedScore(**_place(row), score=record_of(self.folder.path, Score, row)) for row in rows]

    def scores(self) -> list[HeldOutScore]:
        """What every checkpoint reached on every held-out task, in the order of iterations."""
        rows = self.sql(
            "SELECT r.subject_id AS task_id, r.iteration, r.checkpoint, r.id AS rollout_id, g.score "
            "FROM rollouts r LEFT JOIN grades g ON g.rollout_id = r.id AND g.iteration = r.iteration "
            "AND g.stage = r.stage WHERE r.stage = 'compare' ORDER BY r.ordinal"
        )
        return [record_of(self.folder.path, HeldOutScore, row) for row in rows]

    def funnel(self) -> list[Count]:
        """How many candidates of each iteration and stage ended how; the most frequent first, then the earliest."""
        rows = self.sql(
            "SELECT iteration, stage, status, reason, count(*) AS count FROM candidates "
            "GROUP BY ALL ORDER BY iteration, stage, count DESC, min(ordinal)"
        )
        return [record_of(self.folder.path, Count, row) for row in rows]

    def document(self, document_id: str) -> Document | None:
        """A source document of the run."""
        return self.documents([document_id]).get(document_id)

    def documents(self, document_ids: Collection[str]) -> dict[str, Document]:
        """Several source documents by id, in one pass over the corpus."""
        return find_records(self.folder.corpus, document_ids, Document)

    def metrics(self, iteration: int, stage: Stage) -> list[dict[str, Any]]:
        """One row per training step, as it was written."""
        return read_rows(self.folder.stage(iteration, stage).metrics)

    def records(self, kind: RecordKind, where: str = "true", values: Sequence[Any] = ()) -> Iterator[Any]:
        """Records as values (Candidate, Rollout, Grade, Comparison), in the order of the loop, a few at a time.

        `where` is an SQL condition over the columns, `iteration` and `stage`.
        """
        cursor = self._database.cursor()
        found = cursor.sql(f"SELECT * FROM {kind} WHERE {where}", params=list(values))
        for batch in found.to_arrow_reader(1000):
            for row in batch.to_pylist():
                yield record_of(self.folder.path, kind.model, row)

    def with_ids(
        self, kind: RecordKind, column: str, ids: Iterable[str], place: Place | None = None
    ) -> Iterator[Any]:
        """Records that have one of these ids in a column, perhaps of one stage alone. The query names the ids, so that
        Bloom filters skip row groups.
        """
        wanted = [record_id for record_id in dict.fromkeys(ids) if record_id]
        if wanted:
            where = f"{column} IN ({', '.join('?' * len(wanted))})"
            where += " AND iteration = ? AND stage = ?" if place else ""
            yield from self.records(kind, where, [*wanted, *([place[0], place[1].value] if place else [])])

    def sql(self, query: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Rows of any query over the views that `RecordKind` names: `candidates`, `rollouts`, `grades` and so on.

        Besides its own fields a record has `iteration`, `stage` and `ordinal` (the order in which they were made).
        """
        rows: list[dict[str, Any]] = (
            self._database.cursor().sql(query, params=list(values)).to_arrow_table().to_pylist()
        )
        return rows

    def close(self) -> None:
        self._database.close()
        self._scratch.cleanup()

    def __exit__(self, *ending: object) -> None:
        self.close()

    def _graded(self, place: Place, ids: Sequence[str]) -> list[GradedRollout]:
        """Rollouts of one stage with their grades, in the order of `ids`; unknown ids are left out."""
        rollouts = {made.id: made for made in self.with_ids(RecordKind.ROLLOUTS, "id", ids, place)}
        grades = {
            made.rollout_id: made for made in self.with_ids(RecordKind.GRADES, "rollout_id", ids, place)
        }
        return [
            GradedRollout(iteration=place[0], stage=place[1], rollout=rollouts[name], grade=grades.get(name))
            for name in ids
            if name in rollouts
        ]

    def _find(self, wanted: str, iteration: int | None, stage: Stage | None) -> TaskLine:
        rows = self._table.two_named(wanted, iteration, stage.value if stage else None)
        if not rows:
            raise UnknownTaskError(
                f"{self.folder.path}: has no candidate {wanted}; `scope tasks ls` lists them"
            )
        if len(rows) > 1 and wanted not in (rows[0]["id"], rows[0]["task_id"]):
            raise UnknownTaskError(f"{self.folder.path}: several ids begin with {wanted}; give more of it")
        return record_of(self.folder.path, TaskLine, rows[0])


def _place(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"iteration": row["iteration"], "stage": Stage(row["stage"])}


def check_run(folder: RunFolder) -> None:
    """Raises RecordError where it holds no run."""
    if not folder.config.is_file():
        raise RecordError(
            f"{folder.path}: not a run folder (it has no {folder.config.name}); give a folder that `scope run` made"
        )


def _settings_of(folder: RunFolder) -> Mapping[str, Any]:
    check_run(folder)
    try:
        found = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict):
        raise RecordError(f"{folder.config}: not a run config; restore it")
    return found


_COLUMNS = ", ".join(TaskLine.model_fields)
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
    "CREATE OR REPLACE TABLE scratch.lines AS SELECT iteration, stage, id, task.id AS task_id, status, reason, "
    "task.type AS type, task.search_turns AS search_turns, len(rubric.criteria)::INTEGER AS criteria, "
    "len(rollout_ids)::INTEGER AS rollouts, mean, provenance.document_id AS document_id, task.text AS text, "
    "task.reference AS reference, task.span AS span, "
    # Lowered once: what is typed is looked for in it.
    f"lower(concat_ws('\n', task.text, provenance.document_id, id, task.id)) AS sought, {_GATES}, "
    f"{_LACKS_CRITERION} AS flaw_demand, {_LACKS_EVIDENCE} AS flaw_evidence, "
    "len(injection_suspect) > 0 AS suspect_task, len(document_suspect) > 0 AS suspect_document FROM candidates"
)

_SUSPECT = {
    Suspect.TASK: "suspect_task",
    Suspect.DOCUMENT: "suspect_document",
    Suspect.ANSWER: "task_id IN (SELECT subject_id FROM rollouts WHERE role = 'solver' AND len(injection_suspect) > 0)",
}
_SUSPECT[Suspect.ANY] = f"({' OR '.join(f'coalesce({part}, false)' for part in _SUSPECT.values())})"

Rows = NDArray[np.uint32]


class CandidateTable:
    """The columns that lists are made of, in a table of their own: a page of a million candidates is a slice of it.

    Parquet keeps a record's texts and verdicts together; to filter and sort by a few small columns of it would read
    row groups from everywhere. The table is a file in the reader's scratch folder. What a query matches is kept as
    row numbers (4 bytes each), so that the next page, and the neighbours of a candidate, need no search. What a user
    typed goes into SQL as values only. Made from the view `candidates` of a database when it is first used, and again
    after `forget`.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        self._lock = threading.RLock()
        self._is_made = False
        self._matches = lru_cache(_REMEMBERED)(self._match)

    def forget(self) -> None:
        """The candidates have changed."""
        with self._lock:
            self._is_made = False
            self._matches.cache_clear()

    def matching(self, query: TaskQuery) -> Rows:
        """Row numbers of all that a query asks for, in its order, whatever its page."""
        where, values = _where(query)
        # Equal ones stay as they were made, candidates without the value come last.
        direction = "DESC" if query.descending else "ASC"
        rest = "" if query.sort is Sort.ORDER else " NULLS LAST, rowid"
        order = f"{_SORTED_BY[query.sort]} {direction}{rest}"
        with self._lock:
            return self._matches(where, order, *values)

    def _match(self, where: str, order: str, *values: Any) -> Rows:
        text = f"SELECT rowid FROM scratch.lines WHERE {where} ORDER BY {order}"
        return self._cursor().execute(text, values).fetchnumpy()["rowid"].astype(np.uint32)

    def around(self, query: TaskQuery, candidate_id: str) -> tuple[int | None, int | None]:
        """Row numbers before and after a candidate in the list of a query; None at its ends."""
        rows = self.matching(query)
        own = (
            self._cursor().execute("SELECT rowid FROM scratch.lines WHERE id = ?", [candidate_id]).fetchall()
        )
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
        found = self._rows(f"SELECT rowid AS row, {_COLUMNS} FROM scratch.lines WHERE rowid IN ({marks})")
        by_row = {line.pop("row"): line for line in found}
        return [by_row[int(row)] for row in rows]

    def two_named(self, beginning: str, iteration: int | None, stage: str | None) -> list[dict[str, Any]]:
        """The first two rows whose ids, or those of their tasks, begin so: whole ids first, then made tasks."""
        text = (
            f"SELECT {_COLUMNS} FROM scratch.lines WHERE (starts_with(id, $1) OR starts_with(task_id, $1)) "
            "AND iteration = coalesce($2, iteration) AND stage = coalesce($3, stage) "
            "ORDER BY id = $1 DESC, task_id = $1 DESC, stage = 'tasks' DESC, rowid LIMIT 2"
        )
        return self._rows(text, [beginning, iteration, stage])

    def types(self) -> list[str]:
        """Every type that a task has, in alphabetical order."""
        text = "SELECT DISTINCT type FROM scratch.lines WHERE type <> '' ORDER BY type"
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
