"""Fidelity against calls as an SVG: one panel per group size, the Pareto front as a line."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.simulator.fidelity import Estimate, Fidelity
from benchmarks.simulator.goals import pareto_front

Measure = Callable[[Fidelity], Estimate]

_WIDTH, _HEIGHT, _MARGIN, _TOP, _BOTTOM = 430, 520, 64, 56, 48
_OURS, _PAPERS = "#0b6e4f", "#6b6b6b"


def draw_front(title: str, by_size: Mapping[int, Sequence[Fidelity]], measure: Measure) -> str:
    """The whole SVG. Points carry two standard errors; ours are filled."""
    estimates = [measure(result) for results in by_size.values() for result in results]
    low = math.floor(20 * min(estimate.value - 2 * estimate.error for estimate in estimates)) / 20
    high = math.ceil(20 * max(estimate.value + 2 * estimate.error for estimate in estimates)) / 20
    panels = []
    for position, (n, results) in enumerate(sorted(by_size.items())):
        left = _MARGIN + position * (_WIDTH + _MARGIN)
        calls = [result.calls for result in results]
        # Room at the right for the names of the dearest designs.
        frame = _Frame(left, math.log2(min(calls)) - 0.15, math.log2(max(calls)) + 1.6, low, high)
        panels.append(_panel(n, results, measure, frame))
    width, height = _MARGIN + len(panels) * (_WIDTH + _MARGIN), _TOP + _HEIGHT + _BOTTOM
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            ' font-family="sans-serif" font-size="10">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            _text(12, 24, title, 'font-size="16" font-weight="bold"'),
            *panels,
            "</svg>\n",
        ]
    )


@dataclass(frozen=True)
class _Frame:
    """Where a panel lies, and what its edges stand for: log2 of calls across, fidelity up."""

    left: float
    first: float
    last: float
    low: float
    high: float

    def across(self, calls: float) -> float:
        return self.left + (math.log2(calls) - self.first) / (self.last - self.first) * _WIDTH

    def up(self, value: float) -> float:
        return _TOP + _HEIGHT - (value - self.low) / (self.high - self.low) * _HEIGHT


def _panel(n: int, results: Sequence[Fidelity], measure: Measure, frame: _Frame) -> str:
    front = pareto_front(results, lambda result: measure(result).value)
    corners = [f"{frame.across(result.calls):.1f},{frame.up(measure(result).value):.1f}" for result in front]
    heights = _apart([frame.up(measure(result).value) for result in results], 11.0)
    return "\n".join(
        [
            _text(frame.left, _TOP - 8, f"groups of {n}", 'font-size="13" font-weight="bold"'),
            *_axes(frame, sorted({round(result.calls) for result in results})),
            f'<polyline points="{" ".join(corners)}" fill="none" stroke="{_OURS}" opacity="0.5"/>',
            *(
                _point(result, measure(result), height, frame)
                for result, height in zip(results, heights, strict=True)
            ),
        ]
    )


def _axes(frame: _Frame, ticks: Sequence[int]) -> list[str]:
    left, right, bottom = frame.left, frame.left + _WIDTH, _TOP + _HEIGHT
    parts = [
        f'<path d="M{left},{_TOP} V{bottom} H{right}" fill="none" stroke="black"/>',
        _text((left + right) / 2, bottom + 36, "judge calls", 'font-size="12" text-anchor="middle"'),
    ]
    free = left
    for tick in ticks:
        if frame.across(tick) >= free:
            parts.append(_text(frame.across(tick), bottom + 16, str(tick), 'text-anchor="middle"'))
            free = frame.across(tick) + 20
    for step in range(round(frame.low * 20), round(frame.high * 20) + 1):
        y = frame.up(step / 20)
        parts.append(f'<path d="M{left},{y:.1f} H{right}" stroke="#e4e4e4"/>')
        parts.append(_text(left - 6, y + 4, f"{step / 20:.2f}", 'text-anchor="end"'))
    return parts


def _point(result: Fidelity, estimate: Estimate, label: float, frame: _Frame) -> str:
    colour = _OURS if result.ours else _PAPERS
    x, y = frame.across(result.calls), frame.up(estimate.value)
    low, high = (frame.up(estimate.value + side * 2 * estimate.error) for side in (-1, 1))
    fill = colour if result.ours else "white"
    return (
        f'<path d="M{x:.1f},{low:.1f} V{high:.1f} M{x + 4:.1f},{y:.1f} L{x + 12:.1f},{label:.1f}"'
        f' stroke="{colour}" opacity="0.5"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" stroke="{colour}" fill="{fill}"/>'
        + _text(x + 14, label + 3.5, result.name, f'fill="{colour}"')
    )


def _apart(heights: Sequence[float], least: float) -> list[float]:
    """The same heights, pushed down just enough that no two are closer than `least`."""
    moved = list(heights)
    previous = -math.inf
    for index in sorted(range(len(heights)), key=heights.__getitem__):
        moved[index] = previous = max(heights[index], previous + least)
    return moved


def _text(x: float, y: float, content: str, attributes: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(content)}</text>'
