"""What was learnt, as Markdown: tables by seed and by Challenger, curves, and answers in their own words."""

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from scipy import stats

from benchmarks.ablations.arms import CO_EVOLVING, FROZEN_AFTER_1, FROZEN_FROM_START, Arm
from benchmarks.ablations.measures import point
from benchmarks.learning.results import DEEP, Learnt
from benchmarks.line_chart import Point, draw_lines
from benchmarks.markdown import difference, markdown
from scope_selfplay.base.intervals import Estimate

Results = Mapping[Arm, Sequence[Learnt]]
TITLES = {
    CO_EVOLVING: "co-evolving",
    FROZEN_AFTER_1: "Challenger frozen at C_1",
    FROZEN_FROM_START: "Challenger frozen at C_0",
}


class Spoken(NamedTuple):
    """A held-out task, and what the Solvers answered."""

    task: str
    rubric: Sequence[str]
    answers: Sequence[str]


def seed_table(runs: Sequence[Learnt]) -> str:
    """The README's table: what is asked, held-out, by iteration."""
    count = len(runs[0].asked)
    solvers = [f"S_{number}" for number in range(count)]
    rows = [
        ["seed", *solvers, f"S_{count - 1} over S_0, 95 % interval", "links of the accepted tasks", "minutes"]
    ]
    for each in runs:
        scores = [f"{each.mean(number):.2f}" for number in range(count)]
        links = " -> ".join(f"{value:.1f}" for value in each.links)
        rows.append(
            [str(each.seed), *scores, difference(each.gain(count - 1, 0)), links, f"{each.minutes:.1f}"]
        )
    return markdown(rows)


def verdict(runs: Sequence[Learnt]) -> str:
    """The table in words: how often a Solver is better than the one before it."""
    last = len(runs[0].asked) - 1
    gains = [each.mean(number + 1) - each.mean(number) for each in runs for number in range(last)]
    above = sum(each.gain(last, 0).ends[0] > 0 for each in runs)
    return (
        f"S_{last} beats S_0 with an interval above zero in {above} of {len(runs)} seeds; a Solver scores higher than "
        f"the one before it in {sum(gain > 0 for gain in gains)} of {len(gains)} steps. {len(runs[0].depths)} held-out "
        "tasks a seed, equally many of 1 to 5 links, about a world that nobody was trained on; greedy answers."
    )


def arms_table(results: Results) -> str:
    """All arms over all seeds: greedy and sampled, all tasks and deep ones, and what the Challenger did."""
    count = len(next(iter(results.values()))[0].asked)
    solvers = [f"S_{number}" for number in range(count)]
    rows = [["Challenger", "held-out tasks", *solvers]]
    for arm, runs in results.items():
        for title, deep, sampled in (
            ("all, greedy", False, False),
            (f"{DEEP} to 5 links, greedy", True, False),
            ("all, sampled", False, True),
            (f"{DEEP} to 5 links, sampled", True, True),
        ):
            means = [
                f"{statistics.fmean(run.mean(number, deep=deep, sampled=sampled) for run in runs):.3f}"
                for number in range(count)
            ]
            rows.append([TITLES[arm], title, *means])
    return markdown(rows)


_WRITTEN: Mapping[str, Callable[[Learnt], Sequence[float]]] = {
    "mean score of the accepted tasks": lambda run: run.means,
    "links of the accepted tasks": lambda run: run.links,
    "accepted tasks with the commonest chain, share": lambda run: run.commonest,
    "candidates accepted, share": lambda run: run.accepted,
}


def tasks_table(results: Results) -> str:
    """What the Challengers wrote, by iteration, and how much of it could be used."""
    count = len(next(iter(results.values()))[0].means)
    rows = [["Challenger", "", *(f"iteration {number + 1}" for number in range(count))]]
    for arm, runs in results.items():
        for title, read in _WRITTEN.items():
            values = [f"{statistics.fmean(read(run)[number] for run in runs):.2f}" for number in range(count)]
            rows.append([TITLES[arm], title, *values])
    return markdown(rows)


def differences_table(results: Results) -> str:
    """The last Solver of co-evolution over those of the frozen Challengers, seed by seed."""
    rows = [
        ["seed", *(f"over {TITLES[arm]}, {part}" for arm in results if arm != CO_EVOLVING for part in _PARTS)]
    ]
    for place, run in enumerate(results[CO_EVOLVING]):
        cells = [
            difference(run.above(results[arm][place], deep=deep))
            for arm in results
            if arm != CO_EVOLVING
            for deep in _PARTS.values()
        ]
        rows.append([str(run.seed), *cells])
    return markdown([*rows, ["all, interval over seeds", *_over_seeds(results)]])


def _over_seeds(results: Results) -> Iterator[str]:
    """Mean differences with Student's interval: what another seed may be expected to bring."""
    for arm in results:
        for deep in () if arm == CO_EVOLVING else _PARTS.values():
            pairs = zip(results[CO_EVOLVING], results[arm], strict=True)
            values = [own.above(other, deep=deep).value for own, other in pairs]
            mean = statistics.fmean(values)
            low, high = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=stats.sem(values))
            yield difference(Estimate(value=mean, low=low, high=high, items=len(values)))


_PARTS = {"all": False, "deep": True}


def curves(results: Results) -> str:
    """The SVG: held-out scores of all and of deep tasks, and the mean score of the accepted tasks, by iteration."""

    def lines(read: Callable[[Learnt], Sequence[float]], first: int) -> dict[str, list[Point]]:
        columns = {arm: zip(*(read(run) for run in runs), strict=True) for arm, runs in results.items()}
        return {
            TITLES[arm]: [point(row + first, values) for row, values in enumerate(found)]
            for arm, found in columns.items()
        }

    def scores(deep: bool) -> Callable[[Learnt], Sequence[float]]:
        return lambda run: [run.mean(number, deep=deep) for number in range(len(run.asked))]

    panels = {
        "asked, all held-out tasks": lines(scores(False), 0),
        f"asked, {DEEP} to 5 links": lines(scores(True), 0),
        "mean score of the accepted tasks": lines(lambda run: run.means, 1),
    }
    return draw_lines("Self-play on the embedded world", panels, across="iteration")


def spoken(tasks: Sequence[Spoken], seed: int, count: int) -> str:
    """`count` random tasks with what every Solver said, for a person to read."""
    chosen = random.Random(seed).sample(list(tasks), min(count, len(tasks)))
    return "\n".join(_one_spoken(each) for each in chosen)


def _one_spoken(each: Spoken) -> str:
    said = "\n".join(
        f"  - S_{number}: {answer or '(no answer)'}" for number, answer in enumerate(each.answers)
    )
    return f"- **{each.task}**\n  - wanted: {' '.join(each.rubric)}\n{said}"


def in_one_sentence(results: Results) -> str:
    """What a newcomer is told."""
    last = len(results[CO_EVOLVING][0].asked) - 1

    def deep(arm: Arm, number: int) -> str:
        return f"{statistics.fmean(run.mean(number, deep=True) for run in results[arm]):.2f}"

    beside = [f"; with {name}, {deep(arm, last)}" for arm, name in _BESIDE.items() if arm in results]
    return (
        f"The Solver learns to follow a chain of {DEEP} to 5 links to its end: its answers to such tasks score "
        f"{deep(CO_EVOLVING, 0)} at first and {deep(CO_EVOLVING, last)} after {last} iterations{''.join(beside)}."
    )


_BESIDE = {
    FROZEN_AFTER_1: "a Challenger that stops learning after iteration 1",
    FROZEN_FROM_START: "one that is never trained",
}
