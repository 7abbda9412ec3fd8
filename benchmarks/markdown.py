"""Pages that benchmarks write: tables and intervals as Markdown, and the part between two marks of a page."""

from collections.abc import Sequence
from pathlib import Path

from scope_selfplay.base.intervals import Estimate


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


def split_at(page: Path, mark: str) -> tuple[str, str, str]:
    """What stands before <!-- mark -->, up to <!-- /mark -->, and behind it."""
    before, _, rest = page.read_text(encoding="utf-8").partition(f"<!-- {mark} -->")
    between, _, after = rest.partition(f"<!-- /{mark} -->")
    return before, between, after


def write_between(page: Path, mark: str, text: str) -> None:
    """What people wrote around the marks stays."""
    before, _, after = split_at(page, mark)
    page.write_text(f"{before}<!-- {mark} -->\n{text}\n<!-- /{mark} -->{after}", encoding="utf-8")
