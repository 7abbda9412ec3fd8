"""Charts as SVG, inline in a page: coloured by the page's own style sheet, readable without it.

Names are escaped here; everything else that goes in is a number or an address that the page makes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

_LEFT, _TOP, _BOTTOM, _RIGHT = 50, 10, 32, 76
_FEW = 4
"""Lines of one chart that can be told apart and named at their ends."""
_LETTERS = 12
"""Pixels between two names."""


@dataclass(frozen=True)
class Line:
    name: str
    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True)
class NamedInterval:
    """A named value with its interval, where it has one."""

    name: str
    value: float
    low: float | None
    high: float | None


def histogram(counts: Sequence[int], address: Callable[[int], str] | None = None) -> Markup:
    """Bars over equal bins of 0 to 1; a bar is a link where `address` gives one."""
    width, height = 360, 142
    bottom, step, most = height - _BOTTOM, (width - 8) / len(counts), max(counts) or 1
    bars = Markup("")
    for row, count in enumerate(counts):
        left, tall = 4 + row * step, count / most * (bottom - _TOP - 12)
        title = (
            f"{count:,} tasks with a mean score of {row / len(counts):.1f} to {(row + 1) / len(counts):.1f}"
        )
        drawn = Markup(
            '<rect class="hit" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>'
            '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>{}<title>{}</title>'
        ).format(
            *(left, _TOP, step, bottom - _TOP, left + 1, bottom - tall, step - 2, tall),
            _text(left + step / 2, bottom - tall - 3, f"{count:,}" if count else "", "middle"),
            title,
        )
        opening = Markup('<a href="{}">').format(address(row)) if address else Markup("<g>")
        bars += opening + drawn + (Markup("</a>") if address else Markup("</g>"))
    ticks = Markup("").join(
        _text(4 + at * (width - 8), bottom + 13, f"{at:g}", anchor)
        for at, anchor in ((0.0, "start"), (0.25, "middle"), (0.5, "middle"), (0.75, "middle"), (1.0, "end"))
    ) + _text(width / 2, height - 4, "mean score", "middle")
    base = Markup('<path class="axis" d="M4 {0}H{1}"/>').format(bottom, width - 4)
    return _svg(width, height, "tasks by mean score", bars + base + ticks)


def bar(share: float, *, kind: str = "bar") -> Markup:
    """One horizontal bar, filled to a share of 0 to 1."""
    filled = max(0.0, min(1.0, share)) * 200
    return Markup(
        '<svg class="chart meter" viewBox="0 0 200 10" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="200" height="10" rx="2"/>'
        '<rect class="{}" width="{:.1f}" height="10" rx="2"/></svg>'
    ).format(kind, filled)


def lines(drawn: Sequence[Line]) -> Markup:
    """A few lines over the same steps, named at their ends, between axes; "" where none has two points.

    Of more than four lines the first, the last and two between them are drawn.
    """
    drawn = few([line for line in drawn if len(line.values) > 1])
    if not drawn:
        return Markup("")
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
    return _svg(width, height, label, axes + curves + names)


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


def intervals(estimates: Sequence[NamedInterval]) -> Markup:
    """One row per estimate: a dot on its interval, over a common axis; "" without any."""
    if not estimates:
        return Markup("")
    known = [(estimate.value, estimate.low, estimate.high) for estimate in estimates]
    ends = [end for found in known for end in found if end is not None]
    scale = ticks(min(ends), max(ends))
    width, left, row_height = 460, 90, 24
    bottom = row_height * len(estimates) + 4

    def across(value: float) -> float:
        return left + (value - scale[0]) / (scale[-1] - scale[0]) * (width - left - 50)

    rows = Markup("").join(
        _interval(estimate, (row + 0.5) * row_height, across) for row, estimate in enumerate(estimates)
    )
    axis = Markup('<path class="axis" d="M{0} {1}H{2}"/>').format(left, bottom, width - 50)
    marks = Markup("").join(
        Markup('<path class="grid" d="M{0:.1f} 0V{1}"/>').format(across(value), bottom)
        + _text(across(value), bottom + 14, f"{value:.6g}", "middle")
        for value in scale
    )
    label = "; ".join(f"{estimate.name}: {estimate.value:.3g}" for estimate in estimates)
    return _svg(width, bottom + 20, label, marks + axis + rows)


def _interval(estimate: NamedInterval, down: float, across: Callable[[float], float]) -> Markup:
    whisker = Markup("")
    if estimate.low is not None and estimate.high is not None:
        whisker = Markup('<path class="whisker" d="M{:.1f} {}H{:.1f}"/>').format(
            across(estimate.low), down, across(estimate.high)
        )
    dot = Markup('<circle class="dot" cx="{:.1f}" cy="{}" r="4"/>').format(across(estimate.value), down)
    end = across(estimate.value if estimate.high is None else estimate.high) + 8
    return _text(0, down + 4, estimate.name) + whisker + dot + _text(end, down + 4, f"{estimate.value:.3f}")


def _text(left: float, down: float, content: str, anchor: str = "start") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        left, down, anchor, content
    )


def _svg(width: int, height: int, label: str, content: Markup) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">'
        "{3}</svg>"
    ).format(width, height, label, content)
