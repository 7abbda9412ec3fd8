"""What a checkup consists of: measured values, the bounds that they are held against, the tasks behind warnings."""

from dataclasses import dataclass

from scope_selfplay.health.bounds import BOUNDS, Bounds
from scope_selfplay.schemas import Value

SHOWN = 5
"""Tasks that are named behind a warning."""
LONGEST_TEXT = 400
"""Characters of a task or an answer that are shown; the task's own page shows all."""


class Evidence(Value):
    """A task behind a warning, and the answer or criterion in which it is seen; "" where that is the task itself.

    `iteration` is the one that made the task; 0 for held-out tasks.
    """

    iteration: int
    task_id: str
    task: str
    shown: str = ""


@dataclass(frozen=True)
class Measured:
    """A value, its 99 % interval over tasks where chance matters, and the tasks in which it is seen.

    `about` says what it was found in, such as the criterion that repeats.
    """

    value: float
    interval: tuple[float, float] | None = None
    about: str = ""
    behind: tuple[Evidence, ...] = ()


class Signal(Value):
    """One measured value; None where nothing could be measured. `warning` says what is wrong, "" when nothing is.

    `low` and `high` bound what is healthy. `behind` names tasks where there is a warning that comes from single ones.
    """

    name: str
    title: str
    unit: str
    value: float | None
    interval: tuple[float, float] | None
    low: float | None
    high: float | None
    verdict: str
    """`fine`, `low` or `high`, `by chance` where chance may be why it is out of bounds; "" without bounds or value."""
    warning: str
    behind: tuple[Evidence, ...]


class HealthWarning(Value):
    """A signal outside of its bounds, in one line for a person, with the tasks in which it is seen."""

    iteration: int
    signal: str
    text: str
    behind: tuple[Evidence, ...]


class Checkup(Value):
    """All signals of one iteration, in the order of `BOUNDS`."""

    iteration: int
    signals: tuple[Signal, ...]

    @property
    def warnings(self) -> list[HealthWarning]:
        return [
            HealthWarning(
                iteration=self.iteration, signal=signal.name, text=signal.warning, behind=signal.behind
            )
            for signal in self.signals
            if signal.warning
        ]


def evidence(iteration: int, task_id: str, task: str, shown: str = "") -> Evidence:
    """With texts cut to what a line or two can show."""
    return Evidence(iteration=iteration, task_id=task_id, task=_cut(task), shown=_cut(shown))


def signal_of(name: str, found: Measured | float | None) -> Signal:
    """A value against its bounds. One with an interval warns only where the whole interval is outside of them."""
    measured = Measured(found) if isinstance(found, int | float) else found
    bounds = BOUNDS[name]
    side = _side(bounds, measured) if measured else ""
    warning = _warning(bounds, measured) if measured and side in ("low", "high") else ""
    return Signal(
        name=name,
        title=bounds.title,
        unit=bounds.unit,
        value=measured.value if measured else None,
        interval=measured.interval if measured else None,
        low=bounds.low,
        high=bounds.high,
        verdict=side,
        warning=warning,
        behind=measured.behind[:SHOWN] if measured and warning else (),
    )


def _side(bounds: Bounds, measured: Measured) -> str:
    """On which side of its bounds a value is; the verdict of `Signal`."""
    if bounds.low is None and bounds.high is None:
        return ""
    value, (least, greatest) = measured.value, measured.interval or (measured.value, measured.value)
    if bounds.low is not None and value < bounds.low:
        return "low" if greatest < bounds.low else "by chance"
    if bounds.high is not None and value > bounds.high:
        return "high" if least > bounds.high else "by chance"
    return "fine"


def _warning(bounds: Bounds, measured: Measured) -> str:
    value = measured.value
    is_low = bounds.low is not None and value < bounds.low
    side = f"under {bounds.low:g}" if is_low else f"over {bounds.high:g}"
    interval = " [{:.3g}, {:.3g}]".format(*measured.interval) if measured.interval else ""
    about = f' ("{measured.about}")' if measured.about else ""
    return f"{bounds.title}{about}: {value:.3g}{interval} is {side}: {bounds.meaning}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT].rstrip()} …"
