"""Checkpoints beside each other: who meets whom on which item, and what came of it, ties apart. Pure but the judge.

By the whole answers and, where that is asked for, by every criterion of an item's rubric alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from scope_selfplay.evaluation.agreement import ALL_JUDGES, Mark
from scope_selfplay.evaluation.intervals import Estimate, estimate_mean
from scope_selfplay.evaluation.items import Item
from scope_selfplay.evaluation.strengths import JudgedPair
from scope_selfplay.judge import Judge, Style
from scope_selfplay.schemas import Outcome, Rollout, RolloutStatus, Value, Verdict


class Pairing(NamedTuple):
    """Two answers to one item in the order in which the judge is shown them, with the names of who gave them.

    `criterion` is the place of the one that decides in the item's rubric; None where all of the answers counts.
    """

    item: Item
    first_name: str
    first: Rollout
    second_name: str
    second: Rollout
    criterion: int | None = None


class PairVerdict(Value):
    """What a judge said of a pairing; a line of `comparisons.jsonl`."""

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
    def judged(self) -> JudgedPair | None:
        """For a fit; None without an outcome."""
        if self.outcome is None:
            return None
        asked = self.verdict.attempts > 0
        return JudgedPair(self.item_id, self.first, self.second, self.outcome, asked=asked)


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


def pairs(
    items: Iterable[Item], answers: Mapping[str, Mapping[str, Rollout]], *, by_criterion: bool = False
) -> list[Pairing]:
    """Every two checkpoints on every item that both finished, in both orders; `by_criterion` also by each one alone.

    `answers`: checkpoint -> item id -> rollout, the checkpoints in the order of the report. A failed rollout is no
    answer; a finished one without an answer is.
    """
    listed, found = list(items), []
    for one, other in combinations(answers, 2):
        for item in listed:
            mine, theirs = answers[one].get(item.id), answers[other].get(item.id)
            if mine is None or theirs is None or RolloutStatus.FAILED in (mine.status, theirs.status):
                continue
            for criterion in (None, *(_wanted(item) if by_criterion else ())):
                found.append(Pairing(item, one, mine, other, theirs, criterion))
                found.append(Pairing(item, other, theirs, one, mine, criterion))
    return found


def _wanted(item: Item) -> Iterator[int]:
    """The places of the criteria that ought to be met."""
    return (place for place, criterion in enumerate(item.criteria) if criterion.points > 0)


async def judge_pair(judge: Judge, pairing: Pairing) -> PairVerdict:
    """One comparison in the order given, by the answers alone and the item's rubric, or one criterion of it.

    Equal answers tie unasked.
    """
    item, first, second = pairing.item, pairing.first, pairing.second
    alone = None if pairing.criterion is None else item.criteria[pairing.criterion]
    wanted = item.rubric if alone is None else alone.asked
    found = await judge.compare(item.task, first, second, style=Style.ANSWERS, rubric=wanted)
    return PairVerdict(
        item_id=item.id,
        first=pairing.first_name,
        second=pairing.second_name,
        first_id=first.id,
        second_id=second.id,
        criterion=pairing.criterion,
        dimension="" if alone is None else alone.dimension or alone.title,
        both_answered=first.answer is not None and second.answer is not None,
        judge=judge.identity,
        outcome=found.outcome,
        verdict=found.verdict,
    )


class _Met(NamedTuple):
    """One comparison as `one` sees it: `share` is 1, 1/2 or 0, a mean of several judges, or None without a verdict."""

    item_id: str
    is_first: bool
    share: float | None
    both_answered: bool


class _Beside(NamedTuple):
    """What a row is about."""

    judge: str
    part: str
    one: str
    other: str


def win_rates(
    verdicts: Sequence[PairVerdict], names: Sequence[str], *, seed: int, resamples: int
) -> list[WinRate]:
    """By pair of checkpoints in the order of `names`; several judges together, then each alone; the whole answers, then
    all criteria, then each dimension.
    """
    tables: dict[_Beside, list[_Met]] = defaultdict(list)
    for judge, verdict, share in (*_by_judge(verdicts), *_by_all_judges(verdicts)):
        one, other = sorted((verdict.first, verdict.second), key=names.index)
        is_first = verdict.first == one
        taken = share if share is None or is_first else 1 - share
        for part in _parts(verdict):
            met = _Met(verdict.item_id, is_first, taken, verdict.both_answered)
            tables[_Beside(judge, part, one, other)].append(met)

    def order(table: _Beside) -> tuple[int, int, bool, str, bool, str]:
        places = names.index(table.one), names.index(table.other)
        return (*places, bool(table.part), table.part, table.judge != ALL_JUDGES, table.judge)

    found = [_win_rate(table, tables[table], seed, resamples) for table in sorted(tables, key=order)]
    return [each for each in found if each is not None]


def pair_marks(verdicts: Iterable[PairVerdict]) -> Iterator[Mark]:
    """What judges agree on or not: who won a comparison, by whole answers and by one criterion apart."""
    for verdict in verdicts:
        share = _share(verdict)
        if share is not None:
            scorer = "pairwise" if verdict.criterion is None else "pairwise by criterion"
            shown = f"{verdict.first_id} {verdict.second_id} {verdict.criterion}"
            yield Mark(scorer, verdict.judge, verdict.item_id, shown, share)


def _parts(verdict: PairVerdict) -> tuple[str, ...]:
    if verdict.criterion is None:
        return ("",)
    own = (f"criterion: {verdict.dimension}",) if verdict.dimension else ()
    return ("each criterion", *own)


def _by_judge(verdicts: Iterable[PairVerdict]) -> Iterator[tuple[str, PairVerdict, float | None]]:
    """What the first answer took of each comparison."""
    return ((verdict.judge, verdict, _share(verdict)) for verdict in verdicts)


def _by_all_judges(verdicts: Sequence[PairVerdict]) -> Iterator[tuple[str, PairVerdict, float | None]]:
    """The mean of those that gave an outcome, for each comparison; nothing where one judge alone was asked."""
    if len({verdict.judge for verdict in verdicts}) < 2:
        return
    met: dict[tuple[str, str, int | None], list[PairVerdict]] = defaultdict(list)
    for verdict in verdicts:
        met[verdict.first_id, verdict.second_id, verdict.criterion].append(verdict)
    for several in met.values():
        shares = [share for each in several if (share := _share(each)) is not None]
        yield ALL_JUDGES, several[0], sum(shares) / len(shares) if shares else None


def _win_rate(table: _Beside, met: Sequence[_Met], seed: int, resamples: int) -> WinRate | None:
    known = [(each, each.share) for each in met if each.share is not None]
    rate = _over_items(known, seed, resamples)
    if rate is None:
        return None
    decided = [each.is_first == (share > 0.5) for each, share in known if share != 0.5]
    return WinRate(
        one=table.one,
        other=table.other,
        judge=table.judge,
        part=table.part,
        rate=rate,
        rate_of_valid=_over_items([each for each in known if each[0].both_answered], seed, resamples),
        wins=sum(share > 0.5 for _, share in known),
        ties=sum(share == 0.5 for _, share in known),
        losses=sum(share < 0.5 for _, share in known),
        failed=len(met) - len(known),
        shown_first=sum(decided) / len(decided) if decided else None,
    )


def _share(verdict: PairVerdict) -> float | None:
    """1, 1/2 or 0 for the first answer."""
    if verdict.outcome is None:
        return None
    margin = verdict.outcome.first - verdict.outcome.second
    return 0.5 if margin == 0 else float(margin > 0)


def _over_items(known: Sequence[tuple[_Met, float]], seed: int, resamples: int) -> Estimate | None:
    by_item: dict[str, list[float]] = defaultdict(list)
    for met, share in known:
        by_item[met.item_id].append(share)
    shares = [sum(own) / len(own) for own in by_item.values()]
    return estimate_mean(shares, seed=seed, resamples=resamples)
