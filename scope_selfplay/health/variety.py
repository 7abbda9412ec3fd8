"""Whether an iteration's tasks and rubrics stay different: patterns, openings, criteria that all rubrics have."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from scope_selfplay.health.bounds import LEAST_TASKS
from scope_selfplay.health.signals import Evidence, Measured, evidence
from scope_selfplay.health.wording import effective_number, opening, patterns_of, phrases
from scope_selfplay.store.reader import RunReader

SAMPLE = 5_000
"""Accepted tasks of an iteration whose texts are looked at."""
PATTERNS_SAMPLE = 1_000
"""Those of them whose patterns are taken."""


@dataclass(frozen=True)
class MadeTask:
    """An accepted task, with those criteria of its rubric that it does not ask for itself and that a judge decides."""

    iteration: int
    id: str
    text: str
    unasked: tuple[str, ...] = ()

    def evidence(self, shown: str = "") -> Evidence:
        return evidence(self.iteration, self.id, self.text, shown)


def made_tasks(reader: RunReader, iteration: int) -> list[MadeTask]:
    """The first `SAMPLE` accepted tasks of an iteration, in the order in which they were made."""
    rows = reader.sql(
        "SELECT task.id AS id, task.text AS text, list_transform(list_filter(rubric.criteria, "
        "lambda c: c.dimension != 'asked' AND c.check IS NULL), lambda c: c.text) AS unasked FROM candidates "
        "WHERE iteration = ? AND stage = 'tasks' AND status = 'accepted' AND task IS NOT NULL ORDER BY ordinal LIMIT ?",
        [iteration, SAMPLE],
    )
    return [MadeTask(iteration, row["id"], row["text"], tuple(row["unasked"] or ())) for row in rows]


def number_of_patterns(tasks: Sequence[MadeTask]) -> float | None:
    """How many equally frequent patterns would be as diverse; None without tasks."""
    return effective_number(_patterns(tasks[:PATTERNS_SAMPLE])) if tasks else None


def common_pattern(tasks: Sequence[MadeTask]) -> Measured | None:
    """The share of tasks that follow the commonest pattern."""
    tasks = tasks[:PATTERNS_SAMPLE]
    return _commonest([{pattern} for pattern in _patterns(tasks)], tasks)


def repeated_criterion(tasks: Sequence[MadeTask]) -> Measured | None:
    """The share of rubrics that have the commonest unasked criterion, compared by pattern."""
    tasks = tasks[:PATTERNS_SAMPLE]
    patterns = patterns_of([task.unasked for task in tasks])
    found = _commonest([set(own) for own in patterns], tasks)
    if found is None:
        return None
    pairs = [
        (task, own.index(found.about))
        for task, own in zip(tasks, patterns, strict=True)
        if found.about in own
    ]
    shown = tuple(task.evidence(task.unasked[row]) for task, row in pairs)
    return Measured(found.value, about=found.about, behind=shown)


def pattern_growth(before: Sequence[MadeTask], after: Sequence[MadeTask]) -> Measured | None:
    """How many times as many patterns the later tasks have; behind it those of the commonest."""
    size = min(len(before), len(after), PATTERNS_SAMPLE)
    # Taken from both together, so that the same words count as rare.
    patterns = _patterns([*before[:size], *after[:size]])
    return _growth(patterns[:size], patterns[size:], after[:size])


def opening_growth(before: Sequence[MadeTask], after: Sequence[MadeTask]) -> Measured | None:
    """How many times as many first words the later tasks have; behind it those that begin with the commonest."""
    size = min(len(before), len(after), PATTERNS_SAMPLE)
    first, later = ([opening(task.text) for task in tasks[:size]] for tasks in (before, after))
    return _growth(first, later, after[:size])


def phrase_rise(before: Sequence[MadeTask], after: Sequence[MadeTask]) -> Measured | None:
    """The largest rise in the share of tasks with one phrase; behind it the tasks that have it.

    A text's pattern is the whole text, so it changes with every word; a phrase finds what tasks repeat within others.
    """
    earlier, later = ([phrases(task.text) for task in tasks[:PATTERNS_SAMPLE]] for tasks in (before, after))
    if min(len(earlier), len(later)) < LEAST_TASKS:
        return None
    shares = [
        {phrase: count / len(own) for phrase, count in Counter(chain.from_iterable(own)).items()}
        for own in (earlier, later)
    ]
    rises = {phrase: share - shares[0].get(phrase, 0.0) for phrase, share in shares[1].items()}
    found = max(rises, key=rises.__getitem__, default="")
    behind = tuple(task.evidence() for task, own in zip(after, later, strict=False) if found in own)
    return Measured(rises.get(found, 0.0), about=found, behind=behind)


def _patterns(tasks: Sequence[MadeTask]) -> list[str]:
    return [pattern for (pattern,) in patterns_of([[task.text] for task in tasks])]


def _growth(before: Sequence[str], after: Sequence[str], tasks: Sequence[MadeTask]) -> Measured | None:
    """The ratio of two effective numbers, which only groups of equal size allow."""
    found = _commonest([{name} for name in after], tasks)
    if found is None:
        return None
    ratio = effective_number(after) / effective_number(before)
    return Measured(ratio, about=found.about, behind=found.behind)


def _commonest(names: Sequence[set[str]], tasks: Sequence[MadeTask]) -> Measured | None:
    """The share of tasks that have the commonest name; None for too few tasks."""
    if len(names) < LEAST_TASKS:
        return None
    counts = Counter(name for own in names for name in own if name)
    if not counts:
        return Measured(0.0)
    name, count = counts.most_common(1)[0]
    behind = tuple(task.evidence() for task, own in zip(tasks, names, strict=True) if name in own)
    return Measured(count / len(names), about=name, behind=behind)
