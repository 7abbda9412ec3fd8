"""`scope tasks ls`: one line per candidate."""

from collections.abc import Iterator

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from scope_selfplay.inspection.text import one_line, printable, tab_lines
from scope_selfplay.schemas import CandidateStatus
from scope_selfplay.store.query import TaskLine, TaskPage

COLUMNS = ("id", "iteration", "stage", "status", "reason", "mean", "type", "searches", "document", "text")
_COLOURS = {
    CandidateStatus.ACCEPTED: "green",
    CandidateStatus.REJECTED: "yellow",
    CandidateStatus.UNRESOLVED: "red",
}


def plain_list(page: TaskPage) -> Iterator[str]:
    """Lines for a pipe: every cell whole."""
    yield from tab_lines(COLUMNS, (_cells(line) for line in page.lines))


def show_list(page: TaskPage, console: Console) -> None:
    """For a terminal of any width: a line about each candidate, and under it its whole task."""
    for line in page.lines:
        parts = [f"iteration {line.iteration}", printable(line.type or "no type")]
        parts += [] if line.mean is None else [f"mean score {line.mean:.2f}"]
        about = Text.assemble(
            (line.id, "bold"), "  ", (line.reason.value, _COLOURS[line.status]), "  ", ", ".join(parts)
        )
        console.print(about)
        console.print(Padding(Text(one_line(line.text or "(no task was written)")), (0, 0, 0, 4)))
    last = page.offset + len(page.lines)
    if last < page.total:
        console.print(
            f"{page.offset + 1:,} to {last:,} of {page.total:,}; --offset {last} shows the next", style="dim"
        )
    else:
        console.print(f"{page.total:,} in all", style="dim")


def _cells(line: TaskLine) -> tuple[object, ...]:
    return (
        line.id,
        line.iteration,
        line.stage.value,
        line.status.value,
        line.reason.value,
        line.mean,
        line.type,
        line.search_turns,
        line.document_id,
        line.text,
    )
