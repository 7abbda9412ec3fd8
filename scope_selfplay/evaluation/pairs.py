"""Checkpoints beside each other: who meets whom on which item or held-out task, and what came of it, ties apart; and
how far several judges agree. Pure but the judge.

By the whole answers and, where that is asked for, by every criterion of an item's rubric alone.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from scope_selfplay.base.intervals import Estimate, Estimator, Floats, fit_over_items, mean_by_item
from scope_selfplay.base.values import (
    Comparison,
    Key,
    Outcome,
    Rollout,
    RolloutStatus,
    Value,
    Verdict,
    rng_from,
)
from scope_selfplay.evaluation.rows import Item
from scope_selfplay.judge.fences import View, shown
from scope_selfplay.judge.protocol import Judge, PairQuestion, Reply, Style

ALL_JUDGES = "all judges"
"""The mean of several judges on each answer, or pair of answers, where there are several."""


class Pairing(NamedTuple):
    """Two answers to one task or item in the order in which the judge is shown them, with who gave them.

    `criterion` is the place of the one that decides in the item's rubric; None where all of the answers counts.
    """

    item_id: str
    first_name: str
    first: Rollout
    second_name: str
    second: Rollout
    criterion: int | None = None

    @property
    def is_tie(self) -> bool:
        return are_alike(self.first, self.second)

    @property
    def place(self) -> tuple[str, str, int]:
        return (self.first.id, self.second.id, -1 if self.criterion is None else self.criterion)

    def turned(self) -> "Pairing":
        return self._replace(
            first_name=self.second_name, first=self.second, second_name=self.first_name, second=self.first
        )


class PairVerdict(Value):
    """What a judge said of a pairing; a line of an evaluation's `comparisons.jsonl`."""

    item_id: str
    first: str
    second: str
    """Names of the checkpoints, in the order shown."""
    first_id: str
    second_id: str
    """Ids of their answers."""
    criterion: int | None = None
    """Which of the item's criteria alone was judged by, from 0; None for the whole answers."""
    dimension: str = ""
    """What that criterion has in common with those of other items: its dimension, or else its title."""
    both_answered: bool = True
    judge: str = ""
    outcome: Outcome | None
    verdict: Verdict

    @property
    def place(self) -> tuple[str, str, int, str]:
        criterion = -1 if self.criterion is None else self.criterion
        return (self.first_id, self.second_id, criterion, self.judge)

    @property
    def margin(self) -> float:
        """By how much the first lies above the second, where there is an outcome."""
        assert self.outcome is not None
        return self.outcome.margin

    @property
    def share(self) -> float | None:
        """What the first took: 1, 1/2 or 0; None without an outcome."""
        return None if self.outcome is None else self.outcome.share

    @classmethod
    def of(
        cls, pairing: Pairing, found: Comparison, *, judge: str = "", dimension: str = ""
    ) -> "PairVerdict":
        return cls(
            item_id=pairing.item_id,
            first=pairing.first_name,
            second=pairing.second_name,
            first_id=found.first_id,
            second_id=found.second_id,
            criterion=pairing.criterion,
            dimension=dimension,
            both_answered=pairing.first.answer is not None and pairing.second.answer is not None,
            judge=judge,
            outcome=found.outcome,
            verdict=found.verdict,
        )


class WinRate(Value):
    """How one checkpoint fares against another by one judge, or by the mean of several (`all judges`)."""

    one: str
    other: str
    judge: str
    part: str = ""
    """Empty for whole answers, `each criterion` for all comparisons by one criterion, `criterion: NAME` for those of a
    dimension."""
    rate: Estimate
    """The share of comparisons that `one` wins, a tie half; both orders of an item together."""
    rate_of_valid: Estimate | None
    """The same over items that both answered (ArenaRL's)."""
    wins: int
    ties: int
    losses: int
    """Comparisons, not items."""
    failed: int
    """Comparisons that brought no verdict."""
    shown_first: float | None
    """The share of wins of whatever was shown first, ties aside: one half for a judge without a preference."""


Answers = Mapping[str, Rollout]
"""Of one checkpoint, by item or task."""


def pairs(
    items: Iterable[Item], answers: Mapping[str, Answers], *, by_criterion: bool = False
) -> list[Pairing]:
    """Every two checkpoints on every item that both finished, in both orders; `by_criterion` also by each criterion
    that ought to be met alone. `answers` are in the order of the report.
    """
    listed, found = list(items), []
    for one, other in combinations(answers, 2):
        met = {each.item_id: each for each in _pairs_of(one, answers[one], other, answers[other])}
        for item in (item for item in listed if item.id in met):
            wanted = (place for place, each in enumerate(item.criteria) if each.points > 0)
            for criterion in (None, *(wanted if by_criterion else ())):
                pairing = met[item.id]._replace(criterion=criterion)
                found += [pairing, pairing.turned()]
    return found


def balanced_pairs(
    newest: str, answers: Mapping[str, Answers], *, key: Key, both_orders: bool = False
) -> list[Pairing]:
    """The newest checkpoint against every other one, on every task that both finished; equal answers come first.

    Over the tasks every checkpoint of a pair is shown first as often as second (within one), so that a judge that
    prefers the first answer favours none; `key` decides on which tasks the newest is first.
    """
    found = []
    for other in (name for name in answers if name != newest):
        shared = list(_pairs_of(newest, answers[newest], other, answers[other]))
        found += [each for each in shared if each.is_tie]
        judged = [each for each in shared if not each.is_tie]
        rng_from(*key, other).shuffle(judged)
        for number, pairing in enumerate(judged):
            orders = pairing, pairing.turned()
            found += orders if both_orders else orders[number % 2 :][:1]
    return found


def _pairs_of(one: str, mine: Answers, other: str, theirs: Answers) -> Iterator[Pairing]:
    """A failed rollout is no answer; a finished one without an answer is."""
    for item, rollout in mine.items():
        against = theirs.get(item)
        if against is not None and RolloutStatus.FAILED not in (rollout.status, against.status):
            yield Pairing(item, one, rollout, other, against)


def are_alike(one: Rollout, other: Rollout) -> bool:
    """Whether both answers are the same, so that no judge needs to be asked."""
    return shown(one, View.ANSWER).identity == shown(other, View.ANSWER).identity


async def compare_pair(judge: Judge, question: PairQuestion) -> Comparison:
    """One comparison in the order given; equal answers tie without a call."""
    if are_alike(question.first, question.second):
        verdict = Verdict(value=True, reasoning="both give the same answer", attempts=0)
        return question.record(Reply(Outcome(0.5, 0.5), verdict))
    return question.record(await judge.ask(question))


async def judge_pair(judge: Judge, item: Item, pairing: Pairing) -> PairVerdict:
    """By the answers alone and the item's rubric, or one criterion of it."""
    alone = None if pairing.criterion is None else item.criteria[pairing.criterion]
    rubric = item.rubric if alone is None else alone.asked
    question = PairQuestion(item.task, pairing.first, pairing.second, style=Style.ANSWERS, rubric=rubric)
    dimension = "" if alone is None else alone.dimension or alone.title
    found = await compare_pair(judge, question)
    return PairVerdict.of(pairing, found, judge=judge.identity, dimension=dimension)


def win_rates(
    verdicts: Sequence[PairVerdict], names: Sequence[str], estimate: Estimator
) -> Iterator[WinRate]:
    """By pair of checkpoints in the order of `names`; the whole answers, then all criteria, then each dimension; all
    judges together, then each alone. `estimate` makes the rate of one value per item.
    """
    # A comparison, whether `one` was shown first, and what it took.
    tables: dict[tuple[int, int, str, str], list[tuple[PairVerdict, bool, float | None]]] = defaultdict(list)
    alone = ((verdict.judge, verdict, verdict.share) for verdict in verdicts)
    for judge, verdict, share in (*alone, *_by_all_judges(verdicts)):
        one, other = sorted(map(names.index, (verdict.first, verdict.second)))
        is_first = verdict.first == names[one]
        taken = share if share is None or is_first else 1 - share
        parts = [""] if verdict.criterion is None else ["each criterion"]
        parts += [f"criterion: {verdict.dimension}"] if verdict.dimension else []
        for part in parts:
            tables[one, other, part, judge].append((verdict, is_first, taken))
    for one, other, part, judge in sorted(tables, key=lambda key: (*key[:3], key[3] != ALL_JUDGES, key[3])):
        met_there = tables[one, other, part, judge]
        known = [(each, first, share) for each, first, share in met_there if share is not None]
        rate = estimate(mean_by_item((each.item_id, share) for each, _, share in known))
        if rate is None:
            continue
        valid = ((each.item_id, share) for each, _, share in known if each.both_answered)
        decided = [first == (share > 0.5) for _, first, share in known if share != 0.5]
        yield WinRate(
            one=names[one],
            other=names[other],
            judge=judge,
            part=part,
            rate=rate,
            rate_of_valid=estimate(mean_by_item(valid)),
            wins=sum(share > 0.5 for *_, share in known),
            ties=sum(share == 0.5 for *_, share in known),
            losses=sum(share < 0.5 for *_, share in known),
            failed=len(met_there) - len(known),
            shown_first=sum(decided) / len(decided) if decided else None,
        )


def _by_all_judges(verdicts: Sequence[PairVerdict]) -> Iterator[tuple[str, PairVerdict, float | None]]:
    """The mean of those that gave an outcome, for each comparison; nothing where one judge alone was asked."""
    if len({verdict.judge for verdict in verdicts}) < 2:
        return
    met: dict[tuple[str, str, int | None], list[PairVerdict]] = defaultdict(list)
    for verdict in verdicts:
        met[verdict.first_id, verdict.second_id, verdict.criterion].append(verdict)
    for several in met.values():
        shares = [each.share for each in several if each.share is not None]
        yield ALL_JUDGES, several[0], sum(shares) / len(shares) if shares else None


class Labels(NamedTuple):
    """What two raters said to one question; `task` is what it belongs to."""

    task: str
    judge: Hashable
    person: Hashable


def kappa_over_tasks(labels: Sequence[Labels]) -> Estimate | None:
    """With a 95 % interval over tasks; None where chance alone would agree always."""
    kinds = {label: row for row, label in enumerate({label for each in labels for label in each[1:]})}
    tasks = {task: row for row, task in enumerate(dict.fromkeys(each.task for each in labels))}
    counts = np.zeros((len(tasks), len(kinds), len(kinds)))
    for each in labels:
        counts[tasks[each.task], kinds[each.judge], kinds[each.person]] += 1
    if not labels or np.isnan(_kappas(counts.sum(axis=0, keepdims=True))[0]):
        return None
    found = fit_over_items(counts, _kappas, seed="kappa")
    return found.estimate(lambda kappas: kappas, len(tasks))


def _kappas(tables: Floats) -> Floats:
    """Of each table; not a number where both raters gave one and the same label to everything."""
    total = tables.sum(axis=(1, 2))
    agreed = np.trace(tables, axis1=1, axis2=2) / total
    by_chance = (tables.sum(axis=1) * tables.sum(axis=2)).sum(axis=1) / total**2
    room = 1 - by_chance
    return np.where(room > 1e-12, (agreed - by_chance) / np.where(room > 1e-12, room, 1.0), np.nan)


CLOSE = 0.1
"""Values that lie no further apart count as the same."""
_LABELS = frozenset({0.0, 0.5, 1.0})


class Mark(NamedTuple):
    """What a judge gave to an answer, or to the first of a pair: `shown` names it."""

    scorer: str
    judge: str
    item_id: str
    shown: str
    value: float


class Agreement(Value):
    """Two judges on the answers, or pairs of answers, that both gave a value."""

    scorer: str
    one: str
    other: str
    answers: int
    """How many, or how many pairs."""
    same: float
    """The share of them whose values lie within a tenth."""
    kappa: float | None
    """Cohen's: agreement beyond chance, where values are 0, 1/2 or 1 and chance alone would not agree always."""
    kappa_low: float | None
    kappa_high: float | None
    correlation: float | None
    """Pearson's, where both judges' values vary."""
    mean_gap: float
    """How much higher the first judge's values lie in the mean."""


def agreements(marks: Iterable[Mark]) -> list[Agreement]:
    """Every two judges of every scorer, in the order of their names."""
    values: dict[tuple[str, str], dict[str, Mark]] = defaultdict(dict)
    for mark in marks:
        values[mark.scorer, mark.judge][mark.shown] = mark
    found = []
    for one, other in combinations(sorted(values), 2):
        shared = sorted(values[one].keys() & values[other].keys())
        if one[0] == other[0] and shared:
            found.append(_agreement([(values[one][each], values[other][each]) for each in shared]))
    return found


def _agreement(pairs: Sequence[tuple[Mark, Mark]]) -> Agreement:
    values = np.array([(one.value, other.value) for one, other in pairs])
    first, second = values.T
    kappa = None
    if set(np.unique(values)) <= _LABELS:
        kappa = kappa_over_tasks([Labels(one.item_id, one.value, other.value) for one, other in pairs])
    varies = bool(np.ptp(first) and np.ptp(second))
    return Agreement(
        scorer=pairs[0][0].scorer,
        one=pairs[0][0].judge,
        other=pairs[0][1].judge,
        answers=len(pairs),
        same=float((abs(first - second) <= CLOSE + 1e-9).mean()),
        kappa=None if kappa is None else kappa.value,
        kappa_low=None if kappa is None else kappa.low,
        kappa_high=None if kappa is None else kappa.high,
        correlation=float(np.corrcoef(first, second)[0, 1]) if varies else None,
        mean_gap=float((first - second).mean()),
    )


def pair_marks(verdicts: Iterable[PairVerdict]) -> Iterator[Mark]:
    """What judges agree on or not: who won a comparison, by whole answers and by one criterion apart."""
    for verdict in verdicts:
        if verdict.share is not None:
            scorer = "pairwise" if verdict.criterion is None else "pairwise by criterion"
            shown = f"{verdict.first_id} {verdict.second_id} {verdict.criterion}"
            yield Mark(scorer, verdict.judge, verdict.item_id, shown, verdict.share)
