"""Numbers of a training step that know how they are joined over the processes which share it.

    Mean       the mean over everything that was counted anywhere, so a process with more counts more
    Total      a sum: what the step cost
    Greatest   a maximum: what the step waited for

A plain number counts as a mean over one thing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True)
class Mean:
    """`over_nothing` is its value where nothing was counted."""

    total: float
    count: float
    over_nothing: float | None = None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Mean":
        """Over the values that are known."""
        known = [value for value in values if value is not None]
        return cls(sum(known), len(known))


@dataclass(frozen=True)
class Total:
    value: float


@dataclass(frozen=True)
class Greatest:
    value: float


Measure = Mean | Total | Greatest
Measures = Mapping[str, Measure | float | None]


def joined_values(parts: Sequence[Measures]) -> dict[str, float | None]:
    """The numbers of a whole step from those of its parts, which may lack some."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _value([part[name] for part in parts if name in part]) for name in names}


def in_turn(parts: Sequence[Measures]) -> dict[str, Measure]:
    """The measures of parts of a step that one process made one after the other: what they waited for adds up."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _added([part[name] for part in parts if name in part]) for name in names}


def _added(found: Sequence[Measure | float | None]) -> Measure:
    match found[0]:
        case Total():
            return Total(sum(total.value for total in found if isinstance(total, Total)))
        case Greatest():
            return Greatest(sum(greatest.value for greatest in found if isinstance(greatest, Greatest)))
        case _:
            means = _means(found)
            total, count = sum(mean.total for mean in means), sum(mean.count for mean in means)
            return Mean(total, count, means[0].over_nothing)


def _value(found: Sequence[Measure | float | None]) -> float | None:
    match found[0]:
        case Total():
            return float(sum(total.value for total in found if isinstance(total, Total)))
        case Greatest():
            return max(greatest.value for greatest in found if isinstance(greatest, Greatest))
        case _:
            means = _means(found)
            count = sum(mean.count for mean in means)
            return sum(mean.total for mean in means) / count if count else means[0].over_nothing


def _means(found: Sequence[Measure | float | None]) -> list[Mean]:
    return [mean if isinstance(mean, Mean) else Mean.of([_plain(mean)]) for mean in found]


def _plain(number: Measure | float | None) -> float | None:
    assert not isinstance(number, Mean | Total | Greatest), "a name is joined in one way"
    return number


class RolloutClock:
    """How long the rollouts of a step take, and how long their rewards keep it waiting after the last of them."""

    def __init__(self) -> None:
        self._begun = self._last = perf_counter()

    def finished(self) -> None:
        """A rollout has ended."""
        self._last = perf_counter()

    def seconds(self) -> dict[str, Measure]:
        return {
            "rollout_seconds": Greatest(self._last - self._begun),
            "reward_seconds": Greatest(perf_counter() - self._last),
        }
