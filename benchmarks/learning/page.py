"""What was learnt, as Markdown: tables by seed and by Challenger, curves, and tasks with their searches."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from scipy import stats

from benchmarks.ablations.arms import CO_EVOLVING, FROZEN_AFTER_1, FROZEN_FROM_START, Arm
from benchmarks.ablations.measures import point
from benchmarks.learning.results import DEEP, LINKS, MEANS, Learnt
from benchmarks.line_chart import Point, draw_lines
from benchmarks.markdown import difference, markdown
from scope_selfplay.base.intervals import Estimate
from scope_selfplay.base.values import Candidate, Rollout

Results = Mapping[Arm, Sequence[Learnt]]
TITLES = {
    CO_EVOLVING: "co-evolving",
    FROZEN_AFTER_1: "Challenger frozen at C_1",
    FROZEN_FROM_START: "Challenger frozen at C_0",
}
"""A Challenger that goes on learning, and two that do not: where their tasks run out, a Solver trains fewer steps."""
_BESIDE = {
    FROZEN_AFTER_1: "a Challenger that stops learning after iteration 1",
    FROZEN_FROM_START: "one that is never trained",
}
PARTS = {"all": False, f"{DEEP} to 5 links": True}


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


def seed_table(runs: Sequence[Learnt]) -> str:
    """By seed: what is asked, held-out, by iteration; and in words, how often a Solver is better."""
    last = len(runs[0].asked) - 1
    head = ["seed", *(f"S_{number}" for number in range(last + 1)), f"S_{last} over S_0, 95 % interval"]
    rows, gains = [[*head, "links of the accepted tasks", "minutes"]], []
    for run in runs:
        scores = [run.mean(number) for number in range(last + 1)]
        gains += [after - before for before, after in pairwise(scores)]
        links = " -> ".join(f"{written[LINKS]:.1f}" for written in run.written)
        gain = difference(run.above(run.asked[0]))
        rows.append([str(run.seed), *(f"{score:.2f}" for score in scores), gain, links, f"{run.minutes:.1f}"])
    above = sum(run.above(run.asked[0]).ends[0] > 0 for run in runs)
    return markdown(rows) + (
        f"\n\nS_{last} beats S_0 with an interval above zero in {above} of {len(runs)} seeds; a Solver scores higher "
        f"than the one before it in {sum(gain > 0 for gain in gains)} of {len(gains)} steps. {len(runs[0].depths)} "
        "held-out tasks a seed, equally many of 1 to 5 links, about a world that nobody was trained on; greedy answers."
    )


def arms_table(results: Results, parts: Mapping[str, bool] = PARTS) -> str:
    """All arms over all seeds: all tasks and deep ones, or one of these."""
    count = len(results[CO_EVOLVING][0].asked)
    rows = [["Challenger", "held-out tasks", *(f"S_{number}" for number in range(count))]]
    for arm, runs in results.items():
        for title, deep in parts.items():
            means = [statistics.fmean(run.mean(number, deep=deep) for run in runs) for number in range(count)]
            rows.append([TITLES[arm], title, *(f"{mean:.3f}" for mean in means)])
    return markdown(rows)


def tasks_table(results: Results) -> str:
    """What the Challengers wrote, by iteration, and how much of it could be used."""
    count = len(results[CO_EVOLVING][0].written)
    rows = [["Challenger", "", *(f"iteration {number + 1}" for number in range(count))]]
    for arm, runs in results.items():
        for title in runs[0].written[0]:
            means = [statistics.fmean(run.written[number][title] for run in runs) for number in range(count)]
            rows.append([TITLES[arm], title, *(f"{mean:.2f}" for mean in means)])
    return markdown(rows)


def differences_table(results: Results) -> str:
    """The last Solver of co-evolution over those of the frozen Challengers, seed by seed."""
    own = results[CO_EVOLVING]
    columns = [(arm, part) for arm in results if arm != CO_EVOLVING for part in PARTS]
    found = [
        [run.above(other.asked[-1], deep=PARTS[part]) for run, other in zip(own, results[arm], strict=True)]
        for arm, part in columns
    ]
    rows = [["seed", *(f"over {TITLES[arm]}, {part}" for arm, part in columns)]]
    for run, of_seed in zip(own, zip(*found, strict=True), strict=True):
        rows.append([str(run.seed), *map(difference, of_seed)])
    over_seeds = [difference(_over_seeds([each.value for each in column])) for column in found]
    return markdown([*rows, ["all, interval over seeds", *over_seeds]])


def _over_seeds(values: Sequence[float]) -> Estimate:
    """A mean with Student's interval: what another seed may be expected to bring."""
    mean = statistics.fmean(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=stats.sem(values))
    return Estimate(value=mean, low=low, high=high, items=len(values))


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
        "all held-out tasks": lines(scores(False), 0),
        f"{DEEP} to 5 links": lines(scores(True), 0),
        MEANS: lines(lambda run: [written[MEANS] for written in run.written], 1),
    }
    return draw_lines("Self-play on the embedded world", panels, across="iteration")


def written(candidate: Candidate, rollout: Rollout, title: str) -> str:
    """An accepted task with the searches behind it, for a person to read."""
    assert candidate.task is not None and candidate.rubric is not None and candidate.mean is not None
    said = "\n".join(
        f"    - {(turn.thinking or '').strip()} Found {', '.join(each.title for each in turn.passages) or 'nothing'}."
        for turn in rollout.turns
        if turn.query is not None
    )
    criteria = " ".join(criterion.text for criterion in candidate.rubric.criteria)
    return f"- **{candidate.task.text}** ({title}; mean score {candidate.mean:.2f})\n{said}\n    - rubric: {criteria}"
