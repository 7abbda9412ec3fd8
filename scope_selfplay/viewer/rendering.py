"""Templates: every value is shown as text, whoever wrote it.

Characters that would act on a reader unseen (controls, those that reverse the direction) are shown as codes, then the
engine escapes the value. Only `charts` makes markup outside the templates.
"""

from functools import partial

from jinja2 import Environment

from scope_selfplay.gates import Gate
from scope_selfplay.inspection import charts
from scope_selfplay.inspection.html_report import escaping_environment
from scope_selfplay.inspection.overview import searches_of
from scope_selfplay.inspection.text import verdict_word
from scope_selfplay.schemas import CandidateStatus, Reason
from scope_selfplay.store.query import Flaw, Sort, Suspect
from scope_selfplay.viewer.parameters import Links

LONGEST_CELL = 1500
"""Characters of a task that a list shows; its own page shows all of it."""


def page_environment(links: Links, static: dict[str, str]) -> Environment:
    """`static` are the addresses of the site's own files, by name."""
    environment = escaping_environment("scope_selfplay.viewer")
    environment.filters.update(
        number=_number,
        count="{:,}".format,
        verdict_word=partial(verdict_word, unknown="unknown"),
        cell=_cell,
        searches_of=searches_of,
    )
    environment.globals.update(
        link=links,
        static=static,
        histogram=charts.histogram,
        bar=charts.bar,
        lines=charts.lines,
        intervals=charts.intervals,
        STATUSES=list(CandidateStatus),
        REASONS=list(Reason),
        GATES=list(Gate),
        SORTS=list(Sort),
        FLAWS=list(Flaw),
        SUSPECTS=list(Suspect),
    )
    return environment


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _cell(text: str | None) -> str:
    if text is None:
        return ""
    rest = len(text) - LONGEST_CELL
    return text if rest <= 0 else f"{text[:LONGEST_CELL]} … {rest:,} more characters on its page"
