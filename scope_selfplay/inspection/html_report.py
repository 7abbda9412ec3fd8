"""The report: one HTML file without script and without anything outside it.

Everything that a model wrote is escaped by the template engine; a policy in the file itself forbids whatever
might slip through. `templates/report.html` shows `overview.Overview` and nothing that is not in it, but for the
sample tasks.
"""

from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from scope_selfplay.inspection.charts import Line, bar, histogram, lines
from scope_selfplay.inspection.overview import IterationOverview, overview
from scope_selfplay.schemas import CandidateStatus, Reason
from scope_selfplay.store.folders import Stage
from scope_selfplay.store.query import Sort, TaskQuery, TaskRecord
from scope_selfplay.store.reader import RunReader
from scope_selfplay.untrusted_text import printable

SAMPLES = 3
FIRST_CURVES = tuple(
    "reward difficulty rubric non_zero_advantage mean_score format search kl entropy".split()
)
"""What a reader of a training wants to see first; the rest follows as it was logged."""


def escaping_environment(package: str) -> Environment:
    """The templates of a package; every value in them is shown as printable text and escaped."""
    loader, undefined = PackageLoader(package), StrictUndefined
    environment = Environment(
        loader=loader, autoescape=True, undefined=undefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.finalize = _printable
    return environment


def _printable(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def render_report(reader: RunReader) -> str:
    """The whole file. Raises RecordError for a damaged run."""
    environment = escaping_environment("scope_selfplay.inspection")
    environment.globals.update(
        lines=lines,
        histogram=histogram,
        bar=bar,
    )
    page = overview(reader)
    return environment.get_template("report.html").render(
        page=page,
        curves={stage: curves_of(page.iterations, stage) for stage in (Stage.CHALLENGER, Stage.SOLVER)},
        first=FIRST_CURVES,
        samples=_samples(reader),
        stages=reader.stages(),
    )


def curves_of(iterations: Sequence[IterationOverview], stage: Stage) -> dict[str, list[Line]]:
    """A stage's curves by metric, one line per iteration: those of `FIRST_CURVES` first."""
    found: dict[str, list[Line]] = {}
    for iteration in iterations:
        for curve in iteration.curves:
            if curve.stage is stage and len(curve.values) > 1:
                line = Line(f"iteration {iteration.iteration}", curve.steps, curve.values)
                found.setdefault(curve.name, []).append(line)
    first = [name for name in FIRST_CURVES if name in found]
    return {name: found[name] for name in [*first, *(name for name in found if name not in first)]}


def _samples(reader: RunReader) -> list[TaskRecord]:
    """From every iteration: accepted tasks nearest the middle, and one for each other reason."""
    rejections = [reason for reason in Reason if reason not in (Reason.ACCEPTED, Reason.NO_TASK)]
    found: list[TaskRecord] = []
    for iteration in (number for number in reader.iterations() if number > 0):
        best = TaskQuery(
            iteration=iteration, status=CandidateStatus.ACCEPTED, sort=Sort.SPREAD, limit=SAMPLES
        )
        queries = [best, *(TaskQuery(iteration=iteration, reason=reason, limit=1) for reason in rejections)]
        rows = [row for query in queries for row in reader.tasks(query).lines]
        found += [reader.task(row.id, iteration=row.iteration, stage=row.stage) for row in rows]
    return found
