"""Pages that benchmarks write: tables and intervals as Markdown, and the part between two marks of a page.

What people wrote around the marks stays.
"""

from collections.abc import Sequence
from pathlib import Path

from scope_selfplay.base.intervals import Estimate

TABLES = ("<!-- tables -->", "<!-- /tables -->")


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head."""
    head, *body = [[text.replace("|", "\\|").replace("\n", " ") for text in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def share(found: Estimate | None, form: str = ".2f") -> str:
    """A mean with its interval, where it has one."""
    if found is None:
        return "-"
    ends = "" if found.low is None or found.high is None else f" [{found.low:{form}}, {found.high:{form}}]"
    return f"{found.value:{form}}{ends}"


def difference(found: Estimate | None) -> str:
    return share(found, "+.2f")


def replace_between(path: Path, marks: tuple[str, str], text: str) -> None:
    before, _, rest = path.read_text(encoding="utf-8").partition(marks[0])
    after = rest.partition(marks[1])[2]
    path.write_text(f"{before}{marks[0]}\n{text}\n{marks[1]}{after}", encoding="utf-8")
