"""The report: one HTML file without script and without anything outside it.

Everything that a model wrote is escaped by the template engine; a policy in the file itself forbids whatever
might slip through. `templates/report.html` shows `overview.Overview` and nothing that is not in it, but for the
sample tasks.
"""

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from scope_selfplay.inspection.charts import bar, histogram, line_chart
from scope_selfplay.inspection.overview import overview
from scope_selfplay.inspection.text import printable
from scope_selfplay.schemas import CandidateStatus, Reason
from scope_selfplay.store.query import Sort, TaskQuery, TaskRecord
from scope_selfplay.store.reader import RunReader

SAMPLES = 3
# What a reader of a training wants to see first; the rest follows as it was logged.
_CURVES = (
    *("reward", "difficulty", "rubric", "non_zero_advantage"),
    *("mean_score", "format", "kl", "entropy", "zero_variance"),
)


def page_environment() -> Environment:
    """Templates with the charts and filters that every page of a run uses; escapes all values."""
    environment = Environment(
        loader=PackageLoader("scope_selfplay.inspection"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    environment.globals.update(
        line_chart=lambda values: Markup(line_chart(values)),
        histogram=lambda counts: Markup(histogram(counts)),
        bar=lambda share: Markup(bar(share)),
    )
    return environment


def render_report(reader: RunReader) -> str:
    """The whole file. Raises RecordError for a damaged run."""
    page = overview(reader)
    return (
        page_environment()
        .get_template("report.html")
        .render(page=page, curves=_CURVES, samples=_samples(reader), stages=reader.stages())
    )


def _samples(reader: RunReader) -> list[TaskRecord]:
    """From every iteration: accepted tasks nearest the middle, and one that each other reason kept out."""
    found: list[TaskRecord] = []
    for iteration in (each for each in reader.iterations() if each > 0):
        best = TaskQuery(
            iteration=iteration, status=CandidateStatus.ACCEPTED, sort=Sort.SPREAD, limit=SAMPLES
        )
        queries = [best, *(TaskQuery(iteration=iteration, reason=each, limit=1) for each in _refusals())]
        lines = [line for query in queries for line in reader.tasks(query).lines]
        found += [reader.task(line.id, iteration=line.iteration, stage=line.stage) for line in lines]
    return found


def _refusals() -> list[Reason]:
    return [each for each in Reason if each not in (Reason.ACCEPTED, Reason.NO_TASK)]
