"""Charts as SVG, inline in a page: coloured by the page's own style sheet, readable without it.

Names are escaped here; everything else that goes in is a number or an address that the page makes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

_LEFT, _TOP, _BOTTOM = 38, 10, 20


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
    width, height = 360, 130
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
        _text(4 + at * (width - 8), height - 5, f"{at:g}", "middle") for at in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
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
    """Several lines over the same steps, scaled to the range of all; "" where none has two points."""
    drawn = [line for line in drawn if len(line.values) > 1]
    if not drawn:
        return Markup("")
    width, height = 300, 120
    low, high = min(min(line.values) for line in drawn), max(max(line.values) for line in drawn)
    first, last = min(min(line.steps) for line in drawn), max(max(line.steps) for line in drawn)
    span, reach = (high - low) or 1.0, (last - first) or 1

    def place(step: int, value: float) -> str:
        across = _LEFT + (step - first) / reach * (width - _LEFT - 6)
        down = height - _BOTTOM - (value - low) / span * (height - _BOTTOM - _TOP)
        return f"{across:.1f},{down:.1f}"

    curves = Markup("").join(
        Markup('<polyline class="line s{}" fill="none" points="{}"><title>{}</title></polyline>').format(
            row % 6, " ".join(map(place, line.steps, line.values)), line.name
        )
        for row, line in enumerate(drawn)
    )
    label = "; ".join(f"{line.name} from {line.values[0]:.3g} to {line.values[-1]:.3g}" for line in drawn)
    axes = (
        Markup('<path class="axis" d="M{0} {1}V{2}H{3}"/>').format(_LEFT, _TOP, height - _BOTTOM, width - 6)
        + _text(_LEFT - 4, _TOP + 8, f"{high:.3g}", "end")
        + _text(_LEFT - 4, height - _BOTTOM, f"{low:.3g}", "end")
        + _text(_LEFT, height - 5, f"step {first}")
        + _text(width - 6, height - 5, f"{last}", "end")
    )
    return _svg(width, height, label, axes + curves)


def intervals(estimates: Sequence[NamedInterval]) -> Markup:
    """One row per estimate: a dot on its interval, over a common scale; "" without any."""
    if not estimates:
        return Markup("")
    known = [(estimate.value, estimate.low, estimate.high) for estimate in estimates]
    ends = [end for found in known for end in found if end is not None]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0
    width, left, row_height = 460, 90, 24
    height = row_height * len(estimates) + 24

    def across(value: float) -> float:
        return left + (value - low) / span * (width - left - 50)

    rows = Markup("").join(
        _interval(estimate, (row + 0.5) * row_height, across) for row, estimate in enumerate(estimates)
    )
    scale = (
        Markup('<path class="axis" d="M{0} {1}H{2}"/>').format(left, height - 18, width - 50)
        + _text(left, height - 4, f"{low:.3g}")
        + _text(width - 50, height - 4, f"{high:.3g}", "end")
    )
    label = "; ".join(f"{estimate.name}: {estimate.value:.3g}" for estimate in estimates)
    return _svg(width, height, label, rows + scale)


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
