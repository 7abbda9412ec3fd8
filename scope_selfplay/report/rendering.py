"""What pages are made with: query parameters, links, templates; and the two reports that are saved: a page of the site
in one file, without script or anything outside. Every URL can be shared, so every part of it is checked.

Every value is shown as text, whoever wrote it: characters that would act on a reader unseen (controls, those that
reverse the direction) are shown as codes, then the engine escapes the value. Only `sections` makes markup outside the
templates. A policy in the page forbids whatever might slip through.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from typing import Any, Literal, Self
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic import Field, ValidationError

from scope_selfplay import __version__
from scope_selfplay.base.errors import did_you_mean
from scope_selfplay.base.intervals import shown
from scope_selfplay.base.text import printable
from scope_selfplay.base.values import CandidateStatus, Gate, Reason, Value
from scope_selfplay.evaluation.folder import EvaluationReader
from scope_selfplay.report import SAMPLES
from scope_selfplay.report.health import examine
from scope_selfplay.report.overview import run_sections
from scope_selfplay.report.record import (
    describe_item,
    describe_task,
    in_order,
    place_of,
    searches_of,
    verdict_word,
    whole_task,
)
from scope_selfplay.report.sections import Folded, Section, bar, evaluation_sections, lines
from scope_selfplay.store.folder import Stage
from scope_selfplay.store.query import Flaw, Sort, Suspect, TaskFilter, TaskQuery
from scope_selfplay.store.reader import RunReader

_LONGEST_VALUE = 500


class BadParameterError(Exception):
    """A query string with an unknown or invalid parameter; its text is one line for a person."""


class PageParameters(Value):
    """The query parameters of a page."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Self:
        """Raises BadParameterError for an unknown parameter and for an invalid value."""
        known = list(cls.model_fields)
        for name, value in given.items():
            if len(value) > _LONGEST_VALUE:
                raise BadParameterError(f"{name}={value[:20]!r}...: longer than {_LONGEST_VALUE} characters")
            if name not in known:
                raise BadParameterError(
                    f"{name!r} is not a parameter of this page{did_you_mean(name, known)}; it knows {', '.join(known)}"
                )
        try:
            return cls.model_validate({name: value for name, value in given.items() if value.strip()})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise BadParameterError(f"{first['loc'][0]}={first['input']!r}: {first['msg']}") from None

    def query_string(self, **changes: object) -> str:
        """These parameters with some changed; None drops one."""
        given = self._given() | changes
        return urlencode({name: value for name, value in given.items() if value is not None})

    def _given(self) -> dict[str, str]:
        given = self.model_dump(mode="json", exclude_defaults=True)
        return {name: str(value) for name, value in given.items()}


class TaskListParameters(PageParameters, TaskFilter):
    """A list of candidates: its filters, its order and its page. An empty field of a form counts as not given."""

    stage: Literal["tasks", "challenger", "all"] = "tasks"
    desc: int = Field(default=0, ge=0, le=1)
    page: int = Field(default=1, ge=1, le=10**9)
    size: int = Field(default=50, ge=1, le=200)

    @property
    def query(self) -> TaskQuery:
        return TaskQuery(
            **self.model_dump(exclude={"stage", "desc", "page", "size"}),
            stage=None if self.stage == "all" else Stage(self.stage),
            descending=bool(self.desc),
            limit=self.size,
            offset=(self.page - 1) * self.size,
        )

    @property
    def filters(self) -> dict[str, str]:
        """What narrows the list, as it is typed."""
        shown = ("sort", "desc", "page", "size")
        return {name: value for name, value in self._given().items() if name not in shown}


class ListParameters(PageParameters):
    """The page of a list."""

    page: int = Field(default=1, ge=1, le=10**9)


class ComparisonParameters(ListParameters):
    """Two checkpoints, the order of their tasks or items, and the page of that list."""

    a: str = ""
    b: str = ""
    sort: Literal["change", "gain", "loss"] = "change"

    def chosen(self, names: Sequence[str]) -> tuple[str, str]:
        """The two; without a choice the first and the last of `names`."""
        return self.a or names[0], self.b or names[-1]


def link(base: str, /, *path: object, query: str = "", anchor: str = "", **parameters: object) -> str:
    """An address within the site at `base`: `path` are segments; `parameters` go before a finished `query`, None is
    left out.
    """
    where = base + "/" + "/".join(quote(str(part), safe="") for part in path)
    asks = urlencode({name: value for name, value in parameters.items() if value is not None})
    whole = "&".join(part for part in (asks, query) if part)
    return where + (f"?{whole}" if whole else "") + (f"#{quote(anchor)}" if anchor else "")


ITEMS = 50


def page_environment(base: str, navigation: dict[str, str]) -> Environment:
    """`navigation` are the addresses of the site's pages, by title."""
    loader, undefined = PackageLoader("scope_selfplay.report"), StrictUndefined
    environment = Environment(
        loader=loader, autoescape=True, undefined=undefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.finalize = _printable
    environment.filters.update(
        number=_number,
        count="{:,}".format,
        verdict_word=partial(verdict_word, unknown="unknown"),
        searches_of=searches_of,
        place_of=place_of,
        shown=shown,
    )
    environment.globals.update(
        link=partial(link, base),
        style="",
        version=__version__,
        navigation=navigation,
        bar=bar,
        lines=lines,
        STATUSES=list(CandidateStatus),
        REASONS=list(Reason),
        GATES=list(Gate),
        SORTS=list(Sort),
        FLAWS=list(Flaw),
        SUSPECTS=list(Suspect),
    )
    return environment


def render_report(reader: RunReader, samples: int = SAMPLES) -> str:
    """A run: its overview, its training, and sample tasks. Raises RecordError for a damaged run."""
    name = reader.settings.get("name", reader.folder.path.name)
    tasks: list[Folded | str] = [*_samples(reader, samples)] or ["None yet."]
    shown = [*run_sections(reader, examine(reader)), Section("Sample tasks", tasks)]
    return saved_page(f"{name}: self-play report", shown)


def render_evaluation(reader: EvaluationReader) -> str:
    """An evaluation: its tables, and the items on which the first and the last checkpoint differ most, whole.

    Raises RecordError where it has not ended.
    """
    one, other = reader.checkpoints[0], reader.checkpoints[-1]
    items = []
    for change in in_order(reader.changes(one, other))[:ITEMS]:
        scores = f"{one} {_number(change.before) or '-'}, {other} {_number(change.after) or '-'}"
        told = tuple(describe_item(reader.item(change.task_id)))
        items.append(Folded(f"{change.task_id}: {scores}: {change.text}", told))
    return saved_page(reader.name, [*evaluation_sections(reader), Section("Items", items)])


def saved_page(title: str, sections: Sequence[Section]) -> str:
    environment = page_environment("", {})
    style = (resources.files("scope_selfplay.report") / "static" / "viewer.css").read_text("utf-8")
    environment.globals["style"] = Markup(style)
    return environment.get_template("page.html").render(
        title=title, sections=sections, run_name=title, refresh=0
    )


def _samples(reader: RunReader, samples: int) -> Iterator[Folded]:
    """From every iteration, the held-out tasks too: accepted ones nearest the middle, and one for each other reason."""
    rejections = [reason for reason in Reason if reason not in (Reason.ACCEPTED, Reason.NO_TASK)]
    for iteration in reader.iterations():
        best = TaskQuery(
            iteration=iteration, status=CandidateStatus.ACCEPTED, sort=Sort.SPREAD, limit=samples
        )
        queries = [best, *(TaskQuery(iteration=iteration, reason=reason, limit=1) for reason in rejections)]
        for row in (row for query in queries for row in reader.tasks(query).lines):
            record = whole_task(reader, row.id, iteration=row.iteration, stage=row.stage)
            score = "" if row.mean is None else f", mean score {row.mean:.2f}"
            title = f"Iteration {row.iteration}, {row.reason}{score}: {row.text or 'no task'}"
            yield Folded(title, tuple(describe_task(record)))


def _printable(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"
