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
    """Bars over equal bins of 0 to 1; each is a link where `address` gives one."""
    width, height = 360, 130
    step, most = (width - 8) / len(counts), max(counts) or 1
    bars = Markup("")
    for row, count in enumerate(counts):
        tall = count / most * (height - _BOTTOM - _TOP - 12)
        drawn = Markup(
            '<rect class="hit" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>'
            '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>'
            '<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text><title>{}</title>'
        ).format(
            *(4 + row * step, _TOP, step, height - _BOTTOM - _TOP),
            *(5 + row * step, height - _BOTTOM - tall, step - 2, tall),
            *(4 + (row + 0.5) * step, height - _BOTTOM - tall - 3),
            f"{count:,}" if count else "",
            f"{count:,} tasks with a mean score of {row / len(counts):.1f} to {(row + 1) / len(counts):.1f}",
        )
        bars += (
            Markup('<a href="{}">{}</a>').format(address(row), drawn)
            if address
            else Markup("<g>{}</g>").format(drawn)
        )
    ticks = Markup("").join(
        Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            4 + at * (width - 8), height - 5, f"{at:g}"
        )
        for at in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    base = Markup('<path class="axis" d="M4 {0}H{1}"/>').format(height - _BOTTOM, width - 4)
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
    axes = Markup('<path class="axis" d="M{0} {1}V{2}H{3}"/>').format(
        _LEFT, _TOP, height - _BOTTOM, width - 6
    )
    return _svg(width, height, label, axes + _scale(low, high, first, last, width, height) + curves)


def intervals(estimates: Sequence[NamedInterval]) -> Markup:
    """One row per estimate: a dot on its interval, over a common scale; "" without any."""
    if not estimates:
        return Markup("")
    ends = [
        end
        for estimate in estimates
        for end in (estimate.value, estimate.low, estimate.high)
        if end is not None
    ]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0
    width, left, row_height = 460, 90, 24
    height = row_height * len(estimates) + 24

    def across(value: float) -> float:
        return left + (value - low) / span * (width - left - 50)

    rows = Markup("").join(
        _interval(each, (row + 0.5) * row_height, across) for row, each in enumerate(estimates)
    )
    scale = Markup('<path class="axis" d="M{0} {1}H{2}"/>').format(left, height - 18, width - 50) + Markup(
        '<text x="{}" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text>'
    ).format(left, height - 4, f"{low:.3g}", width - 50, height - 4, f"{high:.3g}")
    label = "; ".join(f"{each.name}: {each.value:.3g}" for each in estimates)
    return _svg(width, height, label, rows + scale)


def _interval(estimate: NamedInterval, down: float, across: Callable[[float], float]) -> Markup:
    whisker = Markup("")
    if estimate.low is not None and estimate.high is not None:
        whisker = Markup('<path class="whisker" d="M{:.1f} {}H{:.1f}"/>').format(
            across(estimate.low), down, across(estimate.high)
        )
    end = estimate.value if estimate.high is None else estimate.high
    return (
        Markup('<text x="0" y="{}">{}</text>').format(down + 4, estimate.name)
        + whisker
        + Markup('<circle class="dot" cx="{:.1f}" cy="{}" r="4"/>').format(across(estimate.value), down)
        + Markup('<text x="{:.1f}" y="{}">{}</text>').format(
            across(end) + 8, down + 4, f"{estimate.value:.3f}"
        )
    )


def _scale(low: float, high: float, first: int, last: int, width: int, height: int) -> Markup:
    labels = (
        (_LEFT - 4, _TOP + 8, "end", f"{high:.3g}"),
        (_LEFT - 4, height - _BOTTOM, "end", f"{low:.3g}"),
        (_LEFT, height - 5, "start", f"step {first}"),
        (width - 6, height - 5, "end", f"{last}"),
    )
    return Markup("").join(
        Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(*label) for label in labels
    )


def _svg(width: int, height: int, label: str, content: Markup) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">'
        "{3}</svg>"
    ).format(width, height, label, content)
