"""Charts as SVG text: no script, no style sheet, no fonts of their own."""

from collections.abc import Sequence

WIDTH, HEIGHT, PAD = 320, 90, 4


def line_chart(values: Sequence[float]) -> str:
    """A line over equal steps, scaled to its own range; "" for fewer than two values."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = (WIDTH - 2 * PAD) / (len(values) - 1)
    points = " ".join(
        f"{PAD + row * step:.1f},{HEIGHT - PAD - (value - low) / span * (HEIGHT - 2 * PAD):.1f}"
        for row, value in enumerate(values)
    )
    drawn = f'<polyline fill="none" stroke="currentColor" stroke-width="1.5" points="{points}"/>'
    return _svg(f"from {values[0]:.3g} to {values[-1]:.3g}, between {low:.3g} and {high:.3g}", drawn)


def histogram(counts: Sequence[int]) -> str:
    """Bars for equal bins; "" without any."""
    if not counts or not max(counts):
        return ""
    width = (WIDTH - 2 * PAD) / len(counts)
    bars = "".join(
        f'<rect x="{PAD + row * width:.1f}" y="{HEIGHT - PAD - height:.1f}" width="{width - 2:.1f}" '
        f'height="{height:.1f}" fill="currentColor"/>'
        for row, count in enumerate(counts)
        for height in [count / max(counts) * (HEIGHT - 2 * PAD)]
    )
    return _svg(", ".join(map(str, counts)), bars)


def bar(share: float) -> str:
    """One horizontal bar, filled to a share of 0 to 1."""
    filled = max(0.0, min(1.0, share)) * 200
    return (
        '<svg width="200" height="12" role="img" aria-hidden="true">'
        '<rect width="200" height="12" fill="currentColor" opacity=".12"/>'
        f'<rect width="{filled:.1f}" height="12" fill="currentColor"/></svg>'
    )


def _svg(said: str, content: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{said}">'
        f"<title>{said}</title>{content}</svg>"
    )
