"""What is shown of a run and of an evaluation: sections of text, tables, curves and folded texts, made once.

`text_of` prints them in a terminal, `json_of` to a program; templates/page.html shows them on a page of the site and in
the saved report.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scope_selfplay.base.terminal import Table, bars
from scope_selfplay.base.text import one_line, printable
from scope_selfplay.evaluation.folder import EvaluationReader, tables_of
from scope_selfplay.report.charts import Line, few

_BAR = 30
"""Letters of a whole bar."""


class Link(str):
    """A cell or a line that leads to a page of the site: segments of its path, and its query."""

    path: tuple[object, ...]
    query: dict[str, object]

    def __new__(cls, text: object, *path: object, **query: object) -> "Link":
        made = super().__new__(cls, text)
        made.path, made.query = path, query
        return made


class Bar(str):
    """A cell that draws a share of 0 to 1."""

    share: float

    def __new__(cls, share: float) -> "Bar":
        made = super().__new__(cls, "#" * round(_BAR * share))
        made.share = share
        return made


@dataclass(frozen=True)
class Figure:
    """Curves over the same steps; `is_first` where they are what one wants to see first."""

    title: str
    lines: tuple[Line, ...]
    is_first: bool


@dataclass(frozen=True)
class Folded:
    """A line with more behind it."""

    title: str
    lines: tuple[str, ...]
    is_warning: bool = False


Part = str | Table | Figure | Folded


class Section(NamedTuple):
    title: str
    parts: Sequence[Part]


def text_of(sections: Sequence[Section]) -> Iterator[str]:
    """Lines for a terminal; of a training the first figures."""
    for section in sections:
        yield f"\n== {printable(section.title)}"
        for part in section.parts:
            yield from (f"  {line}".rstrip() for line in _lines(part))


def json_of(sections: Sequence[Section]) -> str:
    """A list of sections, each with its title and parts: texts, and objects with the fields of `Table` and so on."""
    return json.dumps([section._asdict() for section in sections], default=vars, ensure_ascii=False, indent=1)


def _lines(part: Part) -> Iterator[str]:
    match part:
        case str():
            yield from printable(part).splitlines()
        case Table():
            yield from part.text()
        case Figure() if part.is_first:
            for line in few(part.lines):
                low, reach = min(line.values), max(line.values) - min(line.values)
                drawn = (
                    bars([(value - low) / reach for value in line.values], len(line.values)) if reach else ""
                )
                ends = f"{line.values[0]:.2f} -> {line.values[-1]:.2f}"
                yield f"{part.title:20} {line.name:14} {ends:16} {drawn}".rstrip()
        case Folded():
            yield one_line(part.title)
            yield from (f"  {one_line(line)}" for line in part.lines)


def evaluation_sections(reader: EvaluationReader) -> list[Section]:
    """Leaderboard and tables. Raises RecordError where the evaluation has not ended."""
    result, spec = reader.result(), reader.spec
    about = (
        f"{result.items:,} items, {result.samples} answer{'' if result.samples == 1 else 's'} each; prompts "
        f"{spec.prompts}, judges {', '.join(spec.judges) or 'none'}, seed {spec.seed}"
    )
    first, *others = tables_of(result)
    tables = [Section(table.title, [replace(table, title="")]) for table in others]
    return [Section(result.title, [about, first]), *tables]
