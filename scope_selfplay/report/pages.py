"""The pages of a run and of an evaluation: one function each, from query parameters to a template and its values.

All of them only read. The run behind them is kept fresh while it goes on, its health measured in another process.
"""

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar, cast

import duckdb

from scope_selfplay.base.errors import OutsideError, RecordError, ScopeError
from scope_selfplay.base.terminal import Table
from scope_selfplay.config.load import flat
from scope_selfplay.evaluation.folder import EvaluationReader, TaskChange
from scope_selfplay.report.glance import Glance, beside, glance
from scope_selfplay.report.health import examine
from scope_selfplay.report.judge import judged_sections
from scope_selfplay.report.overview import health_section, recorded_sections, training_sections
from scope_selfplay.report.record import (
    checkpoint_names,
    diff_checkpoints,
    in_order,
    short_name,
    sources_in,
    task_changes,
    whole_task,
)
from scope_selfplay.report.rendering import (
    BadParameterError,
    ComparisonParameters,
    ListParameters,
    TaskListParameters,
)
from scope_selfplay.report.sections import Section, evaluation_sections
from scope_selfplay.report.signals import Checkup
from scope_selfplay.store.columns import RecordKind
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.query import UnknownTaskError
from scope_selfplay.store.reader import RunReader

_FRESH_FOR = 1.0
"""Seconds until the folder is looked at again."""
Made = TypeVar("Made")


class ShownRun:
    """One reader for all requests. Raises RecordError when the folder is not a run."""

    def __init__(self, path: Path) -> None:
        self.reader, self.place = RunReader(path), RunFolder(path).config
        self._looked = time.monotonic()
        self._lock = threading.Lock()
        self._made: dict[Callable[[RunReader], Any], Any] = {}
        # Apart from `_lock`: other pages do not wait while the numbers are made.
        self._counting = threading.Lock()
        self._examination: Examination | None = None
        self._examined: list[Checkup] | None = None
        self._is_outdated = True

    @property
    def name(self) -> str:
        return str(self.reader.settings.get("name", self.reader.folder.path.resolve().name))

    def fresh(self) -> RunReader:
        """The reader, with what was appended up to a moment ago. Raises RecordError for a damaged file."""
        with self._lock:
            if time.monotonic() - self._looked >= _FRESH_FOR:
                if self.reader.refresh():
                    self._made = {}
                    self._is_outdated = True
                self._looked = time.monotonic()
        return self.reader

    def lost(self) -> Path | None:
        """A file of a finished stage that is there no more."""
        stages, folder = self.reader.stages().items(), self.reader.folder
        files = (folder.stage(*place).path / name for place, done in stages if done for name in done.outputs)
        return next((file for file in files if not file.exists()), None) if self.place.exists() else None

    def made(self, make: Callable[[RunReader], Made]) -> Made:
        """What is made of the records, made anew only after something was recorded."""
        with self._counting:
            self.fresh()
            # What is taken in meanwhile is not in them: it begins another mapping.
            known = self._made
            if make not in known:
                known[make] = make(self.reader)
            return cast(Made, known[make])

    def checkups(self, *, wait: float = 0.0) -> list[Checkup] | None:
        """The newest finished checkups; None until the first are. Texts are compared, which takes seconds.

        Waits for new ones at most `wait` seconds. Raises RecordError for a damaged file.
        """
        with self._lock:
            if self._is_outdated and self._examination is None:
                self._is_outdated = False
                self._examination = Examination(self.reader.folder.path)
            if self._examination is not None and self._examination.is_over(wait):
                ended, self._examination = self._examination, None
                self._examined = ended.result()
            return self._examined

    def close(self) -> None:
        if self._examination is not None:
            self._examination.stop()
        self.reader.close()


class Examination:
    """A run's health, measured in a process of its own: comparing all texts takes seconds of a core and much memory.

    The server keeps neither: its pages are not held up, and the memory is returned when the result is taken.
    """

    def __init__(self, path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_examine, args=(path, sender), daemon=True, name="health")
        self._process.start()
        sender.close()

    def is_over(self, wait: float) -> bool:
        return self._receiver.poll(wait)

    def result(self) -> list[Checkup]:
        """Once, when it is over. Raises the ScopeError that ended it."""
        try:
            found: list[Checkup] | ScopeError = self._receiver.recv()
        except EOFError:
            found = OutsideError(
                "the examination of the run's health was ended from outside; is memory short?"
            )
        self._process.join()
        if isinstance(found, ScopeError):
            raise found
        return found

    def stop(self) -> None:
        self._process.terminate()


def _examine(path: Path, sender: Connection) -> None:
    # Ctrl-C is for the server, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with RunReader(path) as reader:
            sender.send(examine(reader))
    except ScopeError as error:
        sender.send(error)
    except (OSError, duckdb.Error) as error:
        sender.send(OutsideError(f"{path}: {error}"))


class ShownRuns:
    """The runs of a folder, each opened when it is first asked for."""

    def __init__(self, path: Path) -> None:
        self.place, self.name = path, path.resolve().name
        self._opened: dict[tuple[str, int], ShownRun] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        return sorted(config.parent.name for config in self.place.glob("*/run.yaml"))

    def run(self, name: str) -> ShownRun:
        """Raises PageNotFoundError where there is none, RecordError for one that is damaged."""
        if name not in self.names():
            raise PageNotFoundError(f"{self.place} has no run {name}")
        with self._lock:
            # Another run may take the place of one that is deleted.
            key = (name, (self.place / name).stat().st_ino)
            return self._opened.get(key) or self._opened.setdefault(key, ShownRun(self.place / name))

    def close(self) -> None:
        for run in self._opened.values():
            run.close()


ROWS_A_PAGE = 50
"""Tasks or items on which two checkpoints are compared; twice as many documents, and candidates of one."""
ChangesOf = Callable[[str, str], list[TaskChange]]
Given = Mapping[str, str]
"""The parameters of a query."""


class Page:
    """The name of a template and the values that it shows."""

    def __init__(self, template: str, **values: Any) -> None:
        self.template, self.values = template, values


class PageNotFoundError(Exception):
    """A page about something that the run does not have; its text is one line for a person."""


def _glances(runs: ShownRuns) -> dict[str, Glance | str]:
    """By name; a text says why a run cannot be read."""
    found: dict[str, Glance | str] = {}
    for name in runs.names():
        try:
            found[name] = runs.run(name).made(glance)
        except (ScopeError, OSError, duckdb.Error) as error:
            found[name] = str(error)
    return found


def runs_page(runs: ShownRuns, given: Given) -> Page:
    """All runs of a folder beside each other."""
    return Page("runs.html", found=_glances(runs), now=time.time())


def two_runs_page(runs: ShownRuns, given: Given) -> Page:
    """Two runs beside each other."""
    parameters, found = ComparisonParameters.read(given), _glances(runs)
    names = [name for name, each in found.items() if isinstance(each, Glance)] or [""]
    chosen = parameters.chosen(names)
    shown = {name: runs.run(name) for name in chosen}
    checkups = {name: run.checkups() for name, run in shown.items()}
    made = {
        name: [*run.made(recorded_sections), health_section(checkups[name]), *run.made(training_sections)]
        for name, run in shown.items()
    }
    one, other = (dict(flat(shown[name].reader.settings)) for name in chosen)
    rows = [(key, str(one.get(key, "")), str(other.get(key, ""))) for key in {**one, **other}]
    differ = Table("", ("setting", *chosen), tuple(row for row in rows if row[1] != row[2]))
    page = sections_page("Compare two runs", [*beside(made), Section("Settings that differ", [differ])])
    found = {name: found[name] for name in shown}
    return Page("two_runs.html", **page.values, names=names, chosen=chosen, found=found, now=time.time())


def overview_page(run: ShownRun, given: Given) -> Page:
    """What one asks first, then held-out tasks, funnels, scores, the judge, health; checkups may be on their way."""
    # They are measured in a process of their own: the sooner they begin, the better.
    checkups = run.checkups()
    shown = [*run.made(recorded_sections), *judged_sections(run.reader), health_section(checkups)]
    refresh = 3 if checkups is None else 0 if all(run.reader.stages().values()) else 30
    page = sections_page("Overview", shown, refresh)
    return Page("overview.html", **page.values, glance=run.made(glance), checkups=checkups)


def sections_page(title: str, sections: Sequence[Section], refresh: int = 0) -> Page:
    """`refresh`: after so many seconds it loads again; 0 for never."""
    return Page("page.html", title=title, sections=sections, refresh=refresh)


def list_page(run: ShownRun, given: Given) -> Page:
    """One page of candidates."""
    parameters = TaskListParameters.read(given)
    reader = run.fresh()
    found = reader.tasks(parameters.query)
    # Verdicts lie in whole records, which take too long to find among a million.
    ids = [line.id for line in found.lines] if found.total < 100_000 else []
    whole = reader.with_ids(RecordKind.CANDIDATES, "id", ids)
    return Page(
        "tasks.html",
        parameters=parameters,
        found=found,
        whole={candidate.id: candidate for candidate in whole},
        iterations=reader.iterations(),
        types=reader.task_types(),
    )


def documents_page(run: ShownRun, given: Given) -> Page:
    """The documents that tasks were asked about, those with most accepted ones first."""
    parameters, reader = ListParameters.read(given), run.fresh()
    rows = reader.sql(
        "SELECT provenance.document_id AS document, count(*) FILTER (status = 'accepted') AS accepted, "
        "count(*) - accepted AS rejected, count(*) OVER () AS total FROM candidates "
        "WHERE stage = 'tasks' AND document <> '' "
        "GROUP BY document ORDER BY accepted DESC, rejected DESC, document LIMIT ? OFFSET ?",
        [2 * ROWS_A_PAGE, 2 * ROWS_A_PAGE * (parameters.page - 1)],
    )
    titles = {name: each.title for name, each in reader.documents([row["document"] for row in rows]).items()}
    return Page("documents.html", rows=rows, titles=titles, parameters=parameters, size=2 * ROWS_A_PAGE)


def document_page(run: ShownRun, given: Given, name: str) -> Page:
    """A document, and what was made of it. Raises PageNotFoundError."""
    reader = run.fresh()
    document = reader.document(name)
    if document is None:
        raise PageNotFoundError(f"{name}: not in the run's corpus.jsonl")
    asked = reader.records(RecordKind.CANDIDATES, "stage = 'tasks' AND provenance.document_id = ?", [name])
    made = list(islice(asked, 2 * ROWS_A_PAGE))
    written = reader.with_ids(RecordKind.ROLLOUTS, "id", [each.challenger_rollout_id for each in made])
    rollouts = {rollout.id: rollout for rollout in written}
    pieces = sources_in(document, [(each, rollouts.get(each.challenger_rollout_id)) for each in made])
    return Page("document.html", document=document, made=made, pieces=pieces)


def training_page(run: ShownRun, given: Given) -> Page:
    """Curves of every iteration over each other, and how the checkpoints met."""
    return sections_page("Training", run.made(training_sections))


def leaderboard_page(reader: EvaluationReader, given: Given) -> Page:
    """Raises RecordError where the evaluation has not ended."""
    return sections_page("Leaderboard", evaluation_sections(reader))


def items_page(reader: EvaluationReader, given: Given) -> Page:
    """Two checkpoints on the same items."""
    return _comparison("items", reader.checkpoints, reader.changes, ComparisonParameters.read(given))


def _comparison(
    where: str, names: Sequence[str], changes_of: ChangesOf, parameters: ComparisonParameters
) -> Page:
    """A page of what changed from one checkpoint to another, and its sum. `where` is its address."""
    page = Page("compare.html", where=where, names=names, parameters=parameters)
    if len(names) < 2:
        return page
    before, after = parameters.chosen(names)
    try:
        changes = changes_of(before, after)
        page.values["diff"] = diff_checkpoints(before, after, changes)
    except RecordError as error:
        raise BadParameterError(str(error)) from None
    start = (parameters.page - 1) * ROWS_A_PAGE
    rows = in_order(changes, parameters.sort)[start : start + ROWS_A_PAGE]
    page.values |= {"changes": rows, "total": len(changes), "start": start}
    return page


def item_page(reader: EvaluationReader, given: Given, name: str) -> Page:
    """One item down to its answers and verdicts; with a choice of two checkpoints, these side by side.

    Raises PageNotFoundError for an item or a checkpoint that is not there.
    """
    parameters = ComparisonParameters.read(given)
    try:
        record = reader.item(name)
        changes = reader.changes(*parameters.chosen(reader.checkpoints))
    except RecordError as error:
        raise PageNotFoundError(str(error)) from None
    chosen = [name for name in (parameters.a, parameters.b) if name] or reader.checkpoints
    answers = [each for each in record.answers if each.answer.checkpoint in chosen]
    before, after = _around([change.task_id for change in in_order(changes, parameters.sort)], name)
    return Page(
        "item.html", record=record, answers=answers, before=before, after=after, parameters=parameters
    )


def task_page(run: ShownRun, given: Given, iteration: int, stage: str, name: str) -> Page:
    """One candidate with everything that was kept of it. Raises PageNotFoundError."""
    if stage not in list(Stage):
        raise PageNotFoundError(f"{stage} is not a stage; stages are {', '.join(Stage)}")
    parameters = TaskListParameters.read(given)
    reader = run.fresh()
    try:
        record = whole_task(reader, name, iteration=iteration, stage=Stage(stage))
    except UnknownTaskError as error:
        raise PageNotFoundError(str(error)) from None
    before, after = reader.neighbours(parameters.query, record.candidate.id)
    return Page(
        "task.html",
        record=record,
        candidate=record.candidate,
        before=before,
        after=after,
        parameters=parameters,
    )


def compare_page(run: ShownRun, given: Given) -> Page:
    """Two checkpoints on the same held-out tasks."""
    reader = run.fresh()
    scores = reader.scores()
    changes_of = partial(task_changes, reader, scores)
    return _comparison("compare", checkpoint_names(scores), changes_of, ComparisonParameters.read(given))


def compared_answers_page(run: ShownRun, given: Given, name: str) -> Page:
    """The answers of two checkpoints to one held-out task, side by side. Raises PageNotFoundError."""
    parameters = ComparisonParameters.read(given)
    reader = run.fresh()
    scores = reader.scores()
    before, after = parameters.chosen(checkpoint_names(scores) or [""])
    try:
        changes = task_changes(reader, scores, before, after)
        record = whole_task(reader, name, iteration=0, stage=Stage.TASKS)
    except RecordError as error:
        raise PageNotFoundError(str(error)) from None
    order = [change.task_id for change in in_order(changes, parameters.sort)]
    if name not in order:
        raise PageNotFoundError(f"{name}: not a held-out task that {before} and {after} have answered")
    earlier, later = _around(order, name)
    sides = [
        attempt
        for side in (before, after)
        for attempt in record.other_attempts
        if attempt.stage is Stage.COMPARE and short_name(attempt.rollout.checkpoint) == side
    ]
    return Page(
        "compared_answers.html",
        record=record,
        candidate=record.candidate,
        sides=sides,
        matches=[
            match
            for match in record.comparisons
            if {short_name(match.first), short_name(match.second)} == {before, after}
        ],
        before=earlier,
        after=later,
        parameters=parameters,
    )


def _around(order: Sequence[str], name: str) -> tuple[str | None, str | None]:
    """What stands before and after it in a list."""
    here = order.index(name)
    return order[here - 1] if here else None, order[here + 1] if here + 1 < len(order) else None


OF_RUN: dict[str, Callable[..., Page]] = {
    "/": overview_page,
    "/tasks": list_page,
    "/tasks/{iteration:int}/{stage}/{name:path}": task_page,
    "/documents": documents_page,
    "/documents/{name:path}": document_page,
    "/compare": compare_page,
    "/compare/{name:path}": compared_answers_page,
    "/training": training_page,
}
OF_RUNS: dict[str, Callable[..., Page]] = {"/": runs_page, "/compare": two_runs_page}
OF_EVALUATION: dict[str, Callable[..., Page]] = {
    "/": leaderboard_page,
    "/items": items_page,
    "/items/{name:path}": item_page,
}
