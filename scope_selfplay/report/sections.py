"""What is shown of a run and of an evaluation: sections of text, tables, curves and folded texts, made once.

`text_of` prints them in a terminal, `json_of` to a program; templates/page.html shows them on a page of the site and in
the saved report, with charts as SVG inside: coloured by the page's own style sheet, readable without it. Names are
escaped there; everything else that goes in is a number or an address that the page makes.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from markupsafe import Markup

from scope_selfplay.base.terminal import Table, bars
from scope_selfplay.base.text import one_line, printable
from scope_selfplay.evaluation.folder import EvaluationReader, tables_of

_LEFT, _TOP, _BOTTOM, _RIGHT = 50, 10, 32, 76
_FEW = 4
"""Lines of one chart that can be told apart and named at their ends."""
_LETTERS = 12
"""Pixels between two names."""
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
class Line:
    name: str
    steps: Sequence[int]
    values: Sequence[float]


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


def bar(share: float) -> Markup:
    """One horizontal bar, filled to a share of 0 to 1."""
    return Markup(
        '<svg class="chart meter" viewBox="0 0 200 10" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="200" height="10" rx="2"/>'
        '<rect class="bar" width="{:.1f}" height="10" rx="2"/></svg>'
    ).format(200 * share)


def lines(drawn: Sequence[Line]) -> Markup:
    """A few lines of two points or more over the same steps, named at their ends, between axes.

    Of more than four lines the first, the last and two between them are drawn.
    """
    drawn = few(drawn)
    width, height = 380, 170
    first, last = min(min(line.steps) for line in drawn), max(max(line.steps) for line in drawn)
    up = ticks(min(min(line.values) for line in drawn), max(max(line.values) for line in drawn))
    bottom, reach = height - _BOTTOM, (last - first) or 1

    def across(step: float) -> float:
        return _LEFT + (step - first) / reach * (width - _LEFT - _RIGHT)

    def down(value: float) -> float:
        return bottom - (value - up[0]) / (up[-1] - up[0]) * (bottom - _TOP)

    curves = Markup("").join(
        Markup('<polyline class="line s{}" fill="none" points="{}"><title>{}</title></polyline>').format(
            row,
            " ".join(
                f"{across(step):.1f},{down(value):.1f}"
                for step, value in zip(line.steps, line.values, strict=True)
            ),
            line.name,
        )
        for row, line in enumerate(drawn)
    )
    label = "; ".join(f"{line.name} from {line.values[0]:.3g} to {line.values[-1]:.3g}" for line in drawn)
    steps = [step for step in ticks(first, last) if first <= step <= last and step == int(step)]
    axes = _grid([(down(value), value) for value in up], width - _RIGHT) + _step_axis(
        [(across(step), step) for step in steps], bottom, width - _RIGHT
    )
    ends = apart([down(line.values[-1]) for line in drawn], least=_TOP, most=bottom)
    names = Markup("").join(
        Markup('<text class="name t{}" x="{:.1f}" y="{:.1f}">{}</text>').format(
            row, across(line.steps[-1]) + 5, end + 4, line.name
        )
        for row, (line, end) in enumerate(zip(drawn, ends, strict=True))
    )
    return Markup(
        '<svg class="chart" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">'
        "{3}</svg>"
    ).format(width, height, label, axes + curves + names)


def few(drawn: Sequence[Line]) -> list[Line]:
    """As many lines as can be told apart, spread evenly over all of them, the first and the last among them."""
    if len(drawn) <= _FEW:
        return list(drawn)
    return [drawn[round(row * (len(drawn) - 1) / (_FEW - 1))] for row in range(_FEW)]


def ticks(low: float, high: float) -> list[float]:
    """A few round numbers, the first not above `low` and the last not below `high`; equal ones are in the middle."""
    size = max(abs(low), abs(high))
    is_flat = high - low <= 1e-9 * size or size < 1e-12
    span = high - low if not is_flat else size if size >= 1e-12 else 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= span / 4 * (1 - 1e-9))
    first = math.floor(low / step + 1e-9) - is_flat
    last = max(first + 2, math.ceil(high / step - 1e-9))
    return [round(number * step, 12) for number in range(first, last + 1)]


def apart(places: Sequence[float], *, least: float, most: float) -> list[float]:
    """Places for names beside `places`, in their order and not over each other, as near to them as can be."""
    found = list(places)
    order = sorted(range(len(places)), key=lambda row: places[row])
    free = least
    for row in order:
        found[row] = free = max(found[row], free)
        free += _LETTERS
    free = most
    for row in reversed(order):
        found[row] = free = min(found[row], free)
        free -= _LETTERS
    return found


def _grid(rows: Sequence[tuple[float, float]], right: float) -> Markup:
    """Horizontal lines with their values at the left."""
    drawn = Markup("").join(
        Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(_LEFT, place, right)
        + _text(_LEFT - 5, place + 4, f"{value:.6g}", "end")
        for place, value in rows
    )
    edge = Markup('<path class="axis" d="M{} {}V{:.1f}"/>').format(_LEFT, _TOP, rows[0][0])
    return edge + drawn


def _step_axis(marks: Sequence[tuple[float, float]], bottom: float, right: float) -> Markup:
    drawn = Markup("").join(
        Markup('<path class="axis" d="M{:.1f} {}v4"/>').format(place, bottom)
        + _text(place, bottom + 15, f"{step:g}", "middle")
        for place, step in marks
    )
    edge = Markup('<path class="axis" d="M{} {}H{}"/>').format(_LEFT, bottom, right)
    return edge + drawn + _text((_LEFT + right) / 2, bottom + 29, "step", "middle")


def _text(left: float, down: float, content: str, anchor: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        left, down, anchor, content
    )
