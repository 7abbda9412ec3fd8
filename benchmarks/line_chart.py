"""Lines with intervals as an SVG that stands alone: one panel beside the other, one scale for all."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _LEGEND = 320, 220, 52, 48, 44, 16
_COLOURS = ("#0b6e4f", "#b5402a", "#2b4c9b", "#8a6d1d", "#6f3c8f", "#3d7f8f")


class Point(NamedTuple):
    across: float
    value: float
    low: float
    high: float


Lines = Mapping[str, Sequence[Point]]


def draw_lines(title: str, panels: Mapping[str, Lines], across: str) -> str:
    """`panels` by title; lines of one name have one colour. `across` says what lies on the horizontal axis."""
    scale = _Scale([point for lines in panels.values() for line in lines.values() for point in line])
    names = dict.fromkeys(name for lines in panels.values() for name in lines)
    colours = {name: _COLOURS[row % len(_COLOURS)] for row, name in enumerate(names)}
    width = len(panels) * (_LEFT + _WIDTH) + 16
    height = _TOP + _HEIGHT + _BOTTOM + _LEGEND * len(names)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(12, 20, title, 'font-size="14" font-weight="bold"'),
    ]
    for row, (name, lines) in enumerate(panels.items()):
        panel = _panel(name, lines, scale, colours, across)
        drawn.append(f'<g transform="translate({_LEFT + row * (_LEFT + _WIDTH)},{_TOP})">{panel}</g>')
    for row, name in enumerate(names):
        down = _TOP + _HEIGHT + _BOTTOM + _LEGEND * row
        drawn.append(f'<path d="M{_LEFT},{down - 4}h20" stroke="{colours[name]}" stroke-width="2"/>')
        drawn.append(_text(_LEFT + 26, down, name))
    return "\n".join([*drawn, "</svg>\n"])


class _Scale:
    """From values to places in a panel, with all points inside."""

    def __init__(self, points: Sequence[Point]) -> None:
        acrosses = [point.across for point in points]
        low, high = min(point.low for point in points), max(point.high for point in points)
        margin = 0.05 * (high - low) or 0.5
        self.first, self.last = min(acrosses), max(acrosses)
        self.low, self.high = low - margin, high + margin

    def right(self, across: float) -> float:
        return 8 + (across - self.first) / ((self.last - self.first) or 1) * (_WIDTH - 16)

    def down(self, value: float) -> float:
        return (self.high - value) / (self.high - self.low) * _HEIGHT


def _panel(title: str, lines: Lines, scale: _Scale, colours: Mapping[str, str], across: str) -> str:
    ticks = sorted({point.across for line in lines.values() for point in line})
    ticks = ticks if len(ticks) < 8 else [ticks[0], ticks[len(ticks) // 2], ticks[-1]]
    values = [scale.low + part * (scale.high - scale.low) for part in (0.05, 0.5, 0.95)]
    parts = [
        _text(0, -8, title, 'font-weight="bold"'),
        f'<path d="M0,0V{_HEIGHT}H{_WIDTH}" fill="none" stroke="black"/>',
        *(_text(scale.right(tick), _HEIGHT + 14, f"{tick:g}", 'text-anchor="middle"') for tick in ticks),
        *(_text(-4, scale.down(value) + 4, f"{value:.2f}", 'text-anchor="end"') for value in values),
        _text(_WIDTH / 2, _HEIGHT + 28, across, 'text-anchor="middle"'),
    ]
    for name, line in lines.items():
        rights = [f"{scale.right(point.across):.1f}" for point in line]
        downs = [[f"{scale.down(value):.1f}" for value in point[1:]] for point in line]
        corners = " ".join(f"{right},{down[0]}" for right, down in zip(rights, downs, strict=True))
        bars = "".join(f"M{right},{low}V{high}" for right, (_, low, high) in zip(rights, downs, strict=True))
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
        parts.append(f'<path d="{bars}" stroke="{colours[name]}" opacity="0.5"/>')
    return "".join(parts)


def _text(right: float, down: float, words: str, attributes: str = "") -> str:
    return f'<text x="{right:.1f}" y="{down:.1f}" {attributes}>{escape(words)}</text>'
