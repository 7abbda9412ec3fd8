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
    return {name: _value(_added(found), found) for name, found in _by_name(parts).items()}


def in_turn(parts: Sequence[Measures]) -> dict[str, Measure]:
    """The measures of parts of a step that one process made one after the other: what they waited for adds up."""
    return {name: _added(found) for name, found in _by_name(parts).items()}


def _by_name(parts: Sequence[Measures]) -> dict[str, list[Measure]]:
    """What the parts say under each name, a plain number as a mean over one thing."""
    found: dict[str, list[Measure]] = {}
    for part in parts:
        for name, value in part.items():
            measure = value if isinstance(value, Mean | Total | Greatest) else Mean.of([value])
            found.setdefault(name, []).append(measure)
            assert type(measure) is type(found[name][0]), "a name is joined in one way"
    return found


def _added(found: Sequence[Measure]) -> Measure:
    first = found[0]
    if isinstance(first, Mean):
        means = [each for each in found if isinstance(each, Mean)]
        return Mean(sum(each.total for each in means), sum(each.count for each in means), first.over_nothing)
    return type(first)(sum(each.value for each in found if not isinstance(each, Mean)))


def _value(added: Measure, found: Sequence[Measure]) -> float | None:
    if isinstance(added, Mean):
        return added.total / added.count if added.count else added.over_nothing
    if isinstance(added, Total):
        return float(added.value)
    return max(each.value for each in found if isinstance(each, Greatest))


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
