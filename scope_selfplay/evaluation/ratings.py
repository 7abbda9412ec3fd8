"""`ratings.json` of an iteration: held-out scores of every checkpoint, ratings from their comparisons, the comparison
graph, and whether the newest Solver is promoted. Pure.

Ratings have intervals over items, and say how far the scores lie apart, or who was better. Margins: that of one judged
pair = strength of the first - strength of the second + offset + noise, with one offset for the place in the prompt
(`ranking.fit_margins` fits the same). Elo: Bradley and Terry's strengths, a tie half a win, by the fit of the rewards
(`ranking.matches`), with a weak prior that keeps an undefeated checkpoint finite. All comparisons on one item are
resampled together: they share the item, so they are not independent observations.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import log
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from scope_selfplay.base.intervals import (
    DIFFERENCES,
    RESAMPLES,
    Estimate,
    Estimator,
    Floats,
    estimate_mean,
    fit_over_items,
    shown,
)
from scope_selfplay.base.values import Candidate, Comparison, Grade
from scope_selfplay.config.run import CompareConfig
from scope_selfplay.corpus.world import task_family
from scope_selfplay.evaluation.pairs import Answers, Pairing, PairVerdict
from scope_selfplay.ranking.matches import bradley_terry_batch
from scope_selfplay.store.ratings import CheckpointPair, Decision, Ratings, Ruling

Grades = Mapping[str, Grade]


class GradedAnswers(NamedTuple):
    """One checkpoint's answers to the held-out tasks, by task id."""

    rollouts: Answers
    grades: Grades


Gain = Callable[..., Estimate | None]
"""`gain(new, old, looks=1)`: how far one checkpoint lies above another; None where nothing compares them.

With `looks` the interval is so wide that as many of them hold all at once.
"""


def rate(
    candidates: Sequence[Candidate],
    contestants: Mapping[str, GradedAnswers],
    comparisons: Iterable[Comparison],
    *,
    starts: Sequence[str],
    settings: CompareConfig,
    seed: int,
) -> Ratings:
    """`contestants` are S_0 to S_t; `starts` names the checkpoints that iterations 1 to t were trained from."""
    names, estimate = list(contestants), partial(estimate_mean, seed=seed)
    met = _named(comparisons, contestants)
    strengths = Strengths(met, seed=seed)
    elo = elo_ratings(met, names, seed=seed)
    scores = score_gains({name: each.grades for name, each in contestants.items()}, estimate)
    decided = decide_promotion(
        settings, starts, scores if settings.evidence == "scores" else strengths.difference
    )
    above = {name: strengths.difference(name, names[0]) for name in names}
    rated = {name: difference for name, difference in above.items() if difference is not None}
    return Ratings(
        **decided.model_dump(),
        starts=tuple(starts),
        gain=scores(names[-1], starts[-1]) if starts else None,
        rating_gain=strengths.difference(names[-1], starts[-1]) if starts else None,
        ratings={name: difference.value for name, difference in rated.items()},
        intervals=_intervals(rated),
        elo={name: each.value for name, each in elo.items()},
        elo_intervals=_intervals(elo),
        position_offset=strengths.offset,
        edges=tuple(_edges(names, met)),
        held_out={name: breakdown(candidates, each.grades, estimate) for name, each in contestants.items()},
    )


def _named(comparisons: Iterable[Comparison], contestants: Mapping[str, GradedAnswers]) -> list[PairVerdict]:
    """Comparisons with whose answers to which task they are about."""
    known = {each.id: (name, each) for name, own in contestants.items() for each in own.rollouts.values()}
    found = []
    for each in comparisons:
        one, other = known[each.first_id], known[each.second_id]
        found.append(PairVerdict.of(Pairing(one[1].subject_id, *one, *other), each))
    return found


def _intervals(found: Mapping[str, Estimate]) -> dict[str, tuple[float, float]]:
    """By checkpoint, where there is one."""
    return {name: each.ends for name, each in found.items() if each.low is not None}


def breakdown(candidates: Sequence[Candidate], grades: Grades, estimate: Estimator) -> dict[str, Estimate]:
    """One checkpoint's scores on all tasks, by asked and by hidden criteria alone, and by family of tasks; in this
    order. A missing score or verdict is left out.
    """
    groups: dict[str, list[float]] = {"all": [], "asked criteria": [], "hidden criteria": []}
    by_family: dict[str, list[float]] = {}
    for candidate in candidates:
        if candidate.task is None:
            continue
        assert candidate.rubric is not None
        grade, met = grades[candidate.task.id], dict[str, list[bool]]()
        if grade.score is not None:
            groups["all"].append(grade.score)
            by_family.setdefault(task_family(candidate.task), []).append(grade.score)
        for criterion, verdict in zip(candidate.rubric.criteria, grade.verdicts, strict=False):
            if verdict.value is not None:
                met.setdefault(f"{criterion.dimension} criteria", []).append(verdict.value)
        for name, values in met.items():
            if name in groups:
                groups[name].append(sum(values) / len(values))
    found = {name: estimate(values) for name, values in (groups | dict(sorted(by_family.items()))).items()}
    return {name: each for name, each in found.items() if each is not None}


def score_gains(grades: Mapping[str, Grades], estimate: Estimator) -> Gain:
    """Differences of held-out scores, paired by task; a missing score leaves its task out."""

    def gain(new: str, old: str, *, looks: int = 1) -> Estimate | None:
        pairs = [(grade.score, grades[old][task].score) for task, grade in grades[new].items()]
        differences = [one - other for one, other in pairs if one is not None and other is not None]
        return estimate(differences, bounds=DIFFERENCES, looks=looks)

    return gain


def decide_promotion(settings: CompareConfig, starts: Sequence[str], gain: Gain) -> Ruling:
    """Decide on S_t from t `starts`, the checkpoints that iterations 1 to t were trained from."""
    if not starts:
        return Ruling(decision=Decision.PROMOTE, promoted=True, reason="S_0 is where training starts")
    newest, start = f"S_{len(starts)}", starts[-1]
    found = gain(newest, start)
    evidence = _described(newest, start, found)
    if settings.stop == "worse" and _is_worse(found):
        return Ruling(decision=Decision.STOP, promoted=False, reason=f"{evidence}; compare.stop is worse")
    # Not worse is non-inferiority.
    least = {"always": None, "not_worse": -settings.tolerance, "better": 0.0}[settings.promotion]
    promoted = least is None or _is_above(found, least)
    if isinstance(settings.stop, int) and _is_stuck(settings.stop, starts, gain):
        number, first = settings.stop, starts[-settings.stop]
        reason = f"{evidence}; none of the last {number} is better than {first} (compare.stop)"
        return Ruling(decision=Decision.STOP, promoted=promoted, reason=reason)
    tolerated = f", by less than {settings.tolerance:g} (compare.tolerance)"
    rule = settings.promotion + (tolerated if settings.promotion == "not_worse" else "")
    reason = f"{evidence}; compare.promotion is {rule}"
    return Ruling(decision=Decision.PROMOTE if promoted else Decision.KEEP, promoted=promoted, reason=reason)


def _is_stuck(patience: int, starts: Sequence[str], gain: Gain) -> bool:
    """None of the last k = `patience` Solvers is better than what the first of them was trained from.

    Measured from there, so that many gains too small to show one by one still count together. What could not be
    compared does not count as a standstill. Each of the k Solvers has one look at being better by chance, so the
    intervals are those of k looks together (Bonferroni).
    """
    if len(starts) < patience:
        return False
    before = starts[-patience]
    numbers = range(len(starts) - patience + 1, len(starts) + 1)
    found = [gain(f"S_{number}", before, looks=patience) for number in numbers]
    return not any(each is None or _is_above(each, 0.0) for each in found)


def _is_above(found: Estimate | None, least: float) -> bool:
    """Whether the whole interval lies above it. What is not shown is not so."""
    return found is not None and found.low is not None and found.low > least


def _is_worse(found: Estimate | None) -> bool:
    return found is not None and found.high is not None and found.high < 0


def _described(newest: str, start: str, found: Estimate | None) -> str:
    if found is None:
        return f"nothing compares {newest} with {start}"
    if _is_above(found, 0.0):
        kind = "better than"
    elif _is_worse(found):
        kind = "worse than"
    else:
        kind = "not told apart from"
    return f"{newest} is {kind} {start}: {shown(found, sign=True)} over {found.items} tasks"


def _edges(names: Sequence[str], met: Iterable[PairVerdict]) -> Iterator[CheckpointPair]:
    """Who met whom, in the order of `names` (oldest first)."""
    meetings: dict[tuple[int, ...], list[PairVerdict]] = defaultdict(list)
    for each in met:
        meetings[tuple(sorted(map(names.index, (each.first, each.second))))].append(each)
    for older, newer in sorted(meetings):
        found = meetings[older, newer]
        known = [each for each in found if each.outcome is not None]
        asked = [each for each in known if each.verdict.attempts]
        margins = [each.margin if each.first == names[newer] else -each.margin for each in known]
        yield CheckpointPair(
            older=names[older],
            newer=names[newer],
            wins=sum(margin > 0 for margin in margins),
            ties=sum(margin == 0 for margin in margins),
            losses=sum(margin < 0 for margin in margins),
            equal=len(known) - len(asked),
            failed=len(found) - len(known),
            newer_first=sum(each.first == names[newer] for each in asked),
            mean_margin=sum(margins) / len(margins) if margins else None,
        )


ELO = 400 / log(10)
"""Points by which ten times the odds are 400."""
# They decide only what no comparison determines; everything else outweighs them by far.
_MARGIN_RIDGE, _ELO_RIDGE = 1e-6, 0.01


class Strengths:
    """The fit of the margins: every name has a column, `offset` the last one."""

    def __init__(self, judged: Sequence[PairVerdict], *, seed: int, resamples: int = RESAMPLES) -> None:
        self._judged = [each for each in judged if each.outcome is not None]
        self.names = sorted({name for each in self._judged for name in (each.first, each.second)})
        width = len(self.names) + 1
        # The normal equations of each item, and their right side in the last column.
        items = _places(self._judged)
        tables = np.zeros((len(items), width, width + 1))
        for pair in self._judged:
            row = np.zeros(width)
            row[self.names.index(pair.first)], row[self.names.index(pair.second)] = 1.0, -1.0
            # A tie of equal answers was never shown: it holds nothing about the order.
            row[-1] = float(pair.verdict.attempts > 0)
            tables[items[pair.item_id], :, :-1] += np.outer(row, row)
            tables[items[pair.item_id], :, -1] += row * pair.margin
        self._fit = fit_over_items(tables, _least_squares, seed=seed, resamples=resamples)

    @property
    def offset(self) -> float:
        """What being shown first is worth, in units of the margin."""
        return float(self._fit.whole[-1])

    def difference(self, new: str, old: str, *, looks: int = 1) -> Estimate | None:
        """Strength of `new` less that of `old`; None where no chain of comparisons leads from one to the other.

        With `looks` the interval is so wide that as many of them hold all at once.
        """
        if old not in self.names or new not in _reached(self._judged, old):
            return None
        row, column = self.names.index(new), self.names.index(old)
        return self._fit.estimate(
            lambda fits: fits[:, row] - fits[:, column], _met(self._judged, new), looks=looks
        )


def elo_ratings(judged: Sequence[PairVerdict], names: Sequence[str], *, seed: int) -> dict[str, Estimate]:
    """Points above the first name, with intervals; a name that no chain of comparisons leads to has none."""
    known = [(each, each.share) for each in judged if each.share is not None]
    met = [each for each, _ in known]
    if not met:
        return {}
    items = _places(met)
    won = np.zeros((len(items), len(names), len(names)))
    for pair, share in known:
        first, second = names.index(pair.first), names.index(pair.second)
        won[items[pair.item_id], first, second] += share
        won[items[pair.item_id], second, first] += 1 - share

    def points(sums: Floats) -> Floats:
        strengths = ELO * bradley_terry_batch(sums, ridge=_ELO_RIDGE)
        return strengths - strengths[:, :1]

    fitted = fit_over_items(won, points, seed=seed)
    reached = _reached(met, names[0])
    found = {
        name: fitted.estimate(itemgetter((slice(None), place)), _met(met, name))
        for place, name in enumerate(names)
        if name in reached
    }
    # The first is the measure of all.
    found[names[0]] = found[names[0]].model_copy(update={"low": None, "high": None})
    return found


def _places(judged: Sequence[PairVerdict]) -> dict[str, int]:
    return {item: row for row, item in enumerate(dict.fromkeys(each.item_id for each in judged))}


def _met(judged: Sequence[PairVerdict], name: str) -> int:
    """On how many items a checkpoint was compared."""
    return len({each.item_id for each in judged if name in (each.first, each.second)})


def _reached(judged: Sequence[PairVerdict], start: str) -> set[str]:
    """Whom a chain of comparisons leads to."""
    reached, fresh = {start}, [start]
    while fresh:
        here = fresh.pop()
        met = {
            name for each in judged for name in (each.first, each.second) if here in (each.first, each.second)
        }
        fresh += met - reached
        reached |= met
    return reached


def _least_squares(tables: Floats) -> Floats:
    """(draws, n+1, n+2) equations -> (draws, n+1) solutions."""
    normal = tables[..., :-1] + _MARGIN_RIDGE * np.eye(tables.shape[1])
    return np.asarray(np.linalg.solve(normal, tables[..., -1:])[..., 0], dtype=np.float64)
