"""Scorers that ask a judge: with the right answers, by the item's rubric, by a mark, against a given answer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from scope_selfplay.evaluation.items import Item, ItemCriterion
from scope_selfplay.evaluation.scoring import Judged, Needs, Scorer
from scope_selfplay.judge import Judge, Scale, Style
from scope_selfplay.keys import Key, content_id
from scope_selfplay.schemas import Comparison, Role, Rollout

_TEN = 10.0


LABELS = {1.0: "correct", 0.5: "not_attempted", 0.0: "incorrect"}
"""What a judge with the right answers says, by its mark."""


@dataclass(frozen=True)
class ReferenceScorer:
    """Whether a judge that is given all right answers finds this one correct, and neither incorrect nor not attempted.

    SCOPE scores its short answers so (section 4.1).
    """

    name: str = "reference"
    title: str = "correct by a judge that knows the right answers"
    needs: Needs = Needs.ANSWERS
    asks_judge: bool = True

    async def judged(self, item: Item, rollout: Rollout, judge: Judge | None, *, key: Key) -> Judged:
        assert judge is not None
        shown = item.task.model_copy(update={"reference": "\n".join(item.answers)})
        value, verdict = await judge.score(shown, rollout, None, scale=Scale.REFERENCE)
        if value is None:
            return Judged(value=None, verdicts=(verdict,))
        return Judged(value=float(value == 1.0), label=LABELS[value], verdicts=(verdict,))


@dataclass(frozen=True)
class RubricScorer:
    """One call per criterion, met or not: the points of what is met over all points that can be won (equation 1).

    What must not be has negative points and lowers the sum, below 0 if need be (HealthBench).
    """

    name: str = "rubric"
    title: str = "share of the rubric's points, one verdict per criterion"
    needs: Needs = Needs.RUBRIC
    asks_judge: bool = True

    async def judged(self, item: Item, rollout: Rollout, judge: Judge | None, *, key: Key) -> Judged:
        assert judge is not None
        answer = rollout.answer or ""
        calls = [
            judge.grade(item.task, criterion.asked, answer, key=(*key, row))
            for row, criterion in enumerate(item.criteria)
        ]
        verdicts = await asyncio.gather(*calls)
        marks = tuple(None if verdict.value is None else float(verdict.value) for verdict in verdicts)
        return Judged(value=points_share(item.criteria, marks), marks=marks, verdicts=tuple(verdicts))


@dataclass(frozen=True)
class RatingScorer:
    """One mark from 0 to 10 for the whole answer, by the item's rubric where it has one (WildBench)."""

    name: str = "rating"
    title: str = "a mark from 0 to 10 for the whole answer, over 10"
    needs: Needs = Needs.NOTHING
    asks_judge: bool = True

    async def judged(self, item: Item, rollout: Rollout, judge: Judge | None, *, key: Key) -> Judged:
        assert judge is not None
        scale = Scale.ANSWER if item.rubric is None else Scale.IMPLICIT
        value, verdict = await judge.score(item.task, rollout, item.rubric, scale=scale)
        return Judged(value=None if value is None else value / _TEN, verdicts=(verdict,))


@dataclass(frozen=True)
class GivenScorer:
    """The answer against the one that the benchmark brings, shown in both orders: won 1, tied 1/2, lost 0 (Arena-Hard).

    `marks` are the two orders apart, the answer shown first and second.
    """

    name: str = "win_rate"
    title: str = "better than the given answer, in both orders"
    needs: Needs = Needs.GIVEN
    asks_judge: bool = True

    async def judged(self, item: Item, rollout: Rollout, judge: Judge | None, *, key: Key) -> Judged:
        assert judge is not None
        given = given_rollout(item)
        met = await compare_in_both_orders(judge, item, rollout, given)
        marks = tuple(share_won(comparison, rollout.id) for comparison in met)
        known = [mark for mark in marks if mark is not None]
        value = sum(known) / len(known) if known else None
        return Judged(value=value, marks=marks, verdicts=tuple(comparison.verdict for comparison in met))


def given_rollout(item: Item) -> Rollout:
    """The benchmark's own answer, as if somebody had given it."""
    identity = content_id("given", item.id, item.given or "")
    return Rollout(
        id=identity, role=Role.SOLVER, checkpoint="given", subject_id=item.id, turns=(), answer=item.given
    )


async def compare_in_both_orders(
    judge: Judge, item: Item, one: Rollout, other: Rollout
) -> tuple[Comparison, Comparison]:
    """Two answers to one item, `one` first and then second: by the answers alone, with the rubric if there is one."""
    forth, back = await asyncio.gather(
        judge.compare(item.task, one, other, style=Style.ANSWERS, rubric=item.rubric),
        judge.compare(item.task, other, one, style=Style.ANSWERS, rubric=item.rubric),
    )
    return forth, back


def share_won(comparison: Comparison, rollout_id: str) -> float | None:
    """1, 1/2 or 0 for the rollout that is named; None where the comparison has no outcome."""
    if comparison.outcome is None:
        return None
    margin = comparison.outcome.first - comparison.outcome.second
    margin = margin if comparison.first_id == rollout_id else -margin
    return 0.5 if margin == 0 else float(margin > 0)


@dataclass(frozen=True)
class CriteriaRatingScorer:
    """A mark from 0 to 10 for every criterion, and their mean by points (WritingBench)."""

    name: str = "criteria_rating"
    title: str = "mean mark from 0 to 10 over the criteria, over 10"
    needs: Needs = Needs.RUBRIC
    asks_judge: bool = True

    async def judged(self, item: Item, rollout: Rollout, judge: Judge | None, *, key: Key) -> Judged:
        assert judge is not None
        calls = [
            judge.score(item.task, rollout, criterion.asked, scale=Scale.EXPLICIT)
            for criterion in item.criteria
        ]
        scores = await asyncio.gather(*calls)
        marks = tuple(None if score.value is None else score.value / _TEN for score in scores)
        verdicts = tuple(score.verdict for score in scores)
        return Judged(value=points_share(item.criteria, marks), marks=marks, verdicts=verdicts)


@dataclass(frozen=True)
class RaceScorer:
    """Marks of the answer over those of the answer and the given one: one half where both are as good (DRB's RACE).

    Each is marked by itself for each criterion, from 0 to 10, where the authors' prompt marks both at once for all.
    """

    name: str = "race"
    title: str = "marks by criterion, over those of the answer and the given one together"
    needs: Needs = Needs.GIVEN
    asks_judge: bool = True

    async def judged(self, item: Item, rollout: Rollout, judge: Judge | None, *, key: Key) -> Judged:
        by_criterion = CriteriaRatingScorer()
        mine, theirs = await asyncio.gather(
            by_criterion.judged(item, rollout, judge, key=(*key, "answer")),
            by_criterion.judged(item, given_rollout(item), judge, key=(*key, "given")),
        )
        value = None
        if mine.value is not None and theirs.value is not None:
            both = mine.value + theirs.value
            value = mine.value / both if both else 0.0
        return Judged(value=value, marks=mine.marks, verdicts=mine.verdicts + theirs.verdicts)


def points_share(criteria: Sequence[ItemCriterion], marks: Sequence[float | None]) -> float | None:
    """Sum of mark times points over the sum of positive points; criteria without a mark are left out of both.

    None where nothing is left that can be won.
    """
    known = [(each.points, mark) for each, mark in zip(criteria, marks, strict=True) if mark is not None]
    winnable = sum(points for points, _ in known if points > 0)
    return sum(points * mark for points, mark in known) / winnable if winnable else None


JUDGES: tuple[Scorer, ...] = (
    ReferenceScorer(),
    RubricScorer(),
    CriteriaRatingScorer(),
    RatingScorer(),
    GivenScorer(),
    RaceScorer(),
)
