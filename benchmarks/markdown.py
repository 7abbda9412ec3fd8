"""Tables and intervals as Markdown."""

from collections.abc import Sequence

from scope_selfplay.evaluation.intervals import Estimate


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head."""
    head, *body = [[_cell(text) for text in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def share(found: Estimate | None) -> str:
    return "-" if found is None else f"{found.value:.2f}{_interval(found, '.2f')}"


def difference(found: Estimate | None) -> str:
    return "-" if found is None else f"{found.value:+.2f}{_interval(found, '+.2f')}"


def _interval(found: Estimate, form: str) -> str:
    return "" if found.low is None or found.high is None else f" [{found.low:{form}}, {found.high:{form}}]"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
