"""What a checkup consists of: measured values, the bounds that they are held against, the tasks behind warnings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from scope_selfplay.base.gates import GATES
from scope_selfplay.base.intervals import Estimate
from scope_selfplay.base.values import Value

LOOKS = 5
"""Intervals hold 99 %, as five of 95 % at once: a run asks dozens of questions, and chance must not answer them."""
LEAST_TASKS = 20
"""Signals that compare tasks or answers by their words, and those with intervals, say nothing about fewer."""


class Bounds(NamedTuple):
    """What a signal is called, where it is healthy, what an unhealthy value often means, and its unit."""

    title: str
    low: float | None
    high: float | None
    meaning: str
    unit: str = "share"


_NO_GRADIENT = "steps without gradient"

BOUNDS: Mapping[str, Bounds] = {
    "acceptance": Bounds("candidates kept", 0.1, None, "most of the generation is thrown away"),
    "target_share": Bounds(
        "tasks of tasks.target",
        1.0,
        None,
        "documents or candidates ran out, so the Solver trains fewer steps",
    ),
    "mean_score": Bounds(
        "mean score of tried tasks", 0.3, 0.7, "tasks have left the Solver's frontier (0.5)", "0-1"
    ),
    **{
        gate.label: Bounds(f"pass the {gate} gate", terms.healthy_share, None, terms.low_share_means)
        for gate, terms in GATES.items()
    },
    "grounded": Bounds(
        "rubrics that the documents hold", 0.2, None, "tasks ask for what their searches did not find"
    ),
    "unresolved": Bounds("unresolved by a fault", None, 0.05, "the judge or the search fails"),
    "judge_failures": Bounds("verdicts that failed", None, 0.02, "see the judge's log"),
    "suspect_tasks": Bounds(
        "tasks suspect of injection", None, 0.01, "the Challenger has begun to write to judges or policies"
    ),
    "duplicates": Bounds("near duplicates", None, 0.1, "the Challenger repeats itself"),
    "common_pattern": Bounds("tasks of the commonest pattern", None, 0.5, "the Challenger asks one thing"),
    "searches_needed": Bounds(
        "searches that a rubric needs", 0.3, None, "tasks can be answered without them"
    ),
    "solver_gain": Bounds(
        "held-out score against the Solver that it was trained from", 0.0, None, "the Solver is worse", "0-1"
    ),
    "kind_gain": Bounds(
        "gain over S_0 from one kind of unasked criterion",
        None,
        0.6,
        "what is asked hardly improves (0: its share of the criteria, 1: all of the gain)",
        "0-1",
    ),
    "repeated_sentences": Bounds(
        "held-out answers that say a sentence twice", None, 0.2, "repetition is not punished"
    ),
    "suspect_answers": Bounds(
        "answers suspect of injection", None, 0.01, "the Solver has begun to write to its judge"
    ),
    "answer_growth": Bounds(
        "held-out answers against S_0's", 0.5, 2.0, "length is being learnt, not content", "times"
    ),
    "length_correlation": Bounds(
        "correlation of length and score among answers to one task",
        None,
        0.8,
        "the length decides the score",
        "-1-1",
    ),
    "same_score": Bounds("tried tasks whose rollouts all score alike", None, 0.5, "they teach nothing"),
    "zero_variance": Bounds("Solver's training groups without variance", None, 0.5, _NO_GRADIENT),
    "zero_variance_challenger": Bounds(
        "Challenger's training groups without variance", None, 0.5, _NO_GRADIENT
    ),
    "canary_accuracy": Bounds(
        "canaries judged right", 0.9, None, "the judge errs where the right verdict is known"
    ),
    "judge_agreement": Bounds(
        "judgements that agree when asked again", 0.85, None, "much of what is rewarded is chance"
    ),
    "reworded_agreement": Bounds(
        "judgements that agree when asked in other words", 0.8, None, "the prompt's wording decides"
    ),
    "position_bias": Bounds(
        "what being shown first adds to a win",
        -0.05,
        0.05,
        "the place decides comparisons; ask in both orders",
        "-1-1",
    ),
    "length_bias": Bounds(
        "what words that say nothing add to a verdict", -0.05, 0.05, "the judge goes by length", "-1-1"
    ),
    "judge_drift": Bounds(
        "change in the share met by the same answers", -0.1, 0.1, "the judge is not the one it was", "-1-1"
    ),
    "judge_unread": Bounds(
        "judgements asked again that cannot be read", None, 0.02, "what it refuses to judge is masked"
    ),
}
"""Every one has a bound; the last four are an audit's alone."""


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
class Signal:
    """What was measured of one iteration; without a value where nothing could be.

    `interval` holds 99 % over tasks, where chance matters; `about` says what it was found in, such as a criterion that
    repeats; `behind` are tasks in which it is seen.
    """

    value: float | None = None
    interval: tuple[float, float] | None = None
    about: str = ""
    behind: tuple[Evidence, ...] = ()
    name: str = ""
    """That of the bounds it is held against, once it is."""

    @property
    def bounds(self) -> Bounds:
        return BOUNDS[self.name]

    @property
    def verdict(self) -> str:
        """`fine`, `low` or `high`, `by chance` where its interval is not wholly out of bounds; "" without a value."""
        if self.value is None:
            return ""
        least, greatest = self.interval or (self.value, self.value)
        low, high = self.bounds.low, self.bounds.high
        if low is not None and self.value < low:
            return "low" if greatest < low else "by chance"
        if high is not None and self.value > high:
            return "high" if least > high else "by chance"
        return "fine"

    @property
    def warning(self) -> str:
        """In one line for a person; "" when nothing is wrong."""
        if self.verdict not in ("low", "high"):
            return ""
        limit = f"under {self.bounds.low:g}" if self.verdict == "low" else f"over {self.bounds.high:g}"
        interval = " [{:.3g}, {:.3g}]".format(*self.interval) if self.interval else ""
        about = f' ("{self.about}")' if self.about else ""
        return f"{self.bounds.title}{about}: {self.value:.3g}{interval} is {limit}: {self.bounds.meaning}"


class Checkup(NamedTuple):
    """All signals of one iteration, in the order of `BOUNDS`, and what it took."""

    iteration: int
    signals: tuple[Signal, ...]
    costs: Mapping[str, float]
    """Of an accepted task, and GPU-hours, by name; only what is known."""

    @property
    def warnings(self) -> list[Signal]:
        return [signal for signal in self.signals if signal.warning]


def evidence(iteration: int, task_id: str, task: str, shown: str = "") -> Evidence:
    """With texts cut to what a line or two can show."""
    return Evidence(iteration=iteration, task_id=task_id, task=_cut(task), shown=_cut(shown))


def measured(found: Estimate, about: str = "", behind: tuple[Evidence, ...] = ()) -> Signal:
    interval = None if found.low is None or found.high is None else (found.low, found.high)
    return Signal(found.value, interval, about, behind)


def signal_of(name: str, found: Signal | float | None) -> Signal:
    known = found if isinstance(found, Signal) else Signal(found)
    return replace(known, name=name, behind=known.behind[:SHOWN])


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT].rstrip()} …"
