"""Wilson's score interval of a share (1927): what a share of so many says about the one behind it. Pure."""

from math import sqrt


def wilson(share: float, count: float, z: float) -> tuple[float, float]:
    """`z` is the normal quantile of the interval's confidence: 1.96 for 95 %."""
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)
