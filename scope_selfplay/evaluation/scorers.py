"""What an answer is worth, by name: rules, and questions to a judge. Each scores the items that have what it needs.

score = await score_answer(SCORERS["f1"], item, rollout, judge=None, key=key, checkpoint="S_3", sample=0)
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from scope_selfplay.base.values import Key, Rollout, RolloutStatus, Value, Verdict, content_id
from scope_selfplay.evaluation.rows import Item, ItemCriterion
from scope_selfplay.judge.protocol import (
    GradeQuestion,
    Judge,
    PairQuestion,
    Question,
    Scale,
    ScoreQuestion,
    Style,
)
from scope_selfplay.rewards.verify import (
    boxed_reward,
    cover_exact_match,
    exact_match,
    f1,
    hotpot_f1,
    last_box,
    squad_normal,
    trivia_normal,
)


class Answer(Value):
    """One answer of one contestant to one item; a line of `answers.jsonl`."""

    id: str
    """That of the rollout."""
    item_id: str
    checkpoint: str
    """The contestant's name."""
    sample: int
    tokens: int
    """Tokens that the policy sampled, in all turns."""
    context: int
    """Tokens of its last turn with all before it."""
    rollout: Rollout

    @property
    def place(self) -> tuple[str, str, int]:
        return (self.checkpoint, self.item_id, self.sample)

    @classmethod
    def of(cls, rollout: Rollout, checkpoint: str, item_id: str, sample: int) -> "Answer":
        last = rollout.turns[-1] if rollout.turns else None
        return cls(
            id=rollout.id,
            item_id=item_id,
            checkpoint=checkpoint,
            sample=sample,
            tokens=sum(len(turn.ids) for turn in rollout.turns),
            context=0 if last is None else len(last.prompt_ids) + len(last.ids),
            rollout=rollout.without_ids(),
        )


class AnswerScore(Value):
    """What one scorer said of one answer; a line of `scores.jsonl`."""

    item_id: str
    answer_id: str
    """Id of the rollout."""
    checkpoint: str
    sample: int = Field(default=0, ge=0)
    """Which of the item's answers, from 0."""
    scorer: str
    judge: str = ""
    """Identity of the judge that was asked; empty for a rule."""
    value: float | None
    """0 to 1 as a rule, a rubric with negative points may go below; None where a fault left it open."""
    label: str = ""
    """`correct`, `incorrect` or `not_attempted` by a judge with a reference; what a vote counts by a rule."""
    marks: tuple[float | None, ...] = ()
    """Per criterion of the item, 0 to 1, in its order."""
    verdicts: tuple[Verdict, ...] = ()

    @property
    def place(self) -> tuple[str, str, str]:
        return (self.answer_id, self.scorer, self.judge)


class Judged(Value):
    """What a scorer says of one answer; `value` None is a fault that the verdicts tell of."""

    value: float | None
    label: str = ""
    marks: tuple[float | None, ...] = ()
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True)
class Asked:
    """An answer that a judge is asked about: `rollout.answer` is a text."""

    item: Item
    rollout: Rollout
    judge: Judge
    key: Key


@dataclass(frozen=True)
class Scorer:
    """Either a rule over the answer and the right ones, or what asks a judge.

    `vote` is what equal answers have in common, for a majority. A rule is None where it cannot say; a slow one runs in
    a thread, since a hostile answer may keep a verifier busy for seconds.
    """

    name: str
    title: str
    needs: Literal["answers", "criteria", "given", ""] = "answers"
    """Field of an item that it goes by; an item without it is not scored by it."""
    ask: Callable[[Asked], Awaitable[Judged]] | None = None
    rule: Callable[[str, tuple[str, ...]], float | None] = exact_match
    vote: Callable[[str], str | None] = squad_normal
    is_slow: bool = False

    @property
    def asks_judge(self) -> bool:
        """Whether it costs calls."""
        return self.ask is not None


async def score_answer(
    scorer: Scorer, item: Item, answer: Answer, *, judge: Judge | None, key: Key
) -> AnswerScore:
    """The record of one scorer's word on one answer.

    A failed rollout has no value: that is nobody's fault but the engine's. A finished one without an answer is worth 0,
    and no judge is asked.
    """
    text = answer.rollout.answer or ""
    if answer.rollout.status is RolloutStatus.FAILED:
        judged = Judged(value=None)
    elif not text.strip():
        judged = Judged(value=0.0, marks=(0.0,) * (len(item.criteria) if scorer.needs == "criteria" else 0))
    elif scorer.ask is not None:
        assert judge is not None
        judged = await scorer.ask(Asked(item, answer.rollout, judge, key))
    else:
        rule = partial(scorer.rule, text, item.answers)
        value = await asyncio.to_thread(rule) if scorer.is_slow else rule()
        judged = Judged(value=value, label=scorer.vote(text) or "")
    return AnswerScore(
        item_id=item.id,
        answer_id=answer.id,
        checkpoint=answer.checkpoint,
        sample=answer.sample,
        scorer=scorer.name,
        judge=judge.identity if judge is not None and scorer.asks_judge else "",
        **judged.model_dump(),
    )


def _boxed(answer: str, right: tuple[str, ...]) -> float | None:
    """1 where the last box equals one of the right answers; None where no right one can be read."""
    rewards = [boxed_reward(answer, each) for each in right]
    return max((reward for reward in rewards if reward is not None), default=None)


def _boxed_vote(answer: str) -> str | None:
    box = last_box(answer)
    return None if box is None else "".join(box.split())


_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Z](?![A-Za-z])")


def _letter(answer: str) -> str | None:
    """The one capital letter that stands alone in the last box, as in `(C)` or `\\text{C}`."""
    letters = set(_LETTER.findall(last_box(answer) or ""))
    return letters.pop() if len(letters) == 1 else None


LABELS = {1.0: "correct", 0.5: "not_attempted", 0.0: "incorrect"}
"""What a judge with the right answers says, by its mark."""
_TEN = 10.0


async def _by_reference(asked: Asked) -> Judged:
    """Whether a judge that is given all right answers finds this one correct, and neither incorrect nor not attempted.

    SCOPE scores its short answers so (section 4.1).
    """
    shown = asked.item.task.model_copy(update={"reference": "\n".join(asked.item.answers)})
    reply = await asked.judge.ask(ScoreQuestion(shown, asked.rollout, None, scale=Scale.REFERENCE))
    if reply.value is None:
        return Judged(value=None, verdicts=(reply.verdict,))
    return Judged(value=float(reply.value == 1.0), label=LABELS[reply.value], verdicts=(reply.verdict,))


async def _by_rubric(asked: Asked) -> Judged:
    """One call per criterion, met or not: the points of what is met over all points that can be won (equation 1).

    What must not be has negative points and lowers the sum, below 0 if need be (HealthBench).
    """
    answer = asked.rollout.answer or ""
    questions = [
        GradeQuestion(asked.item.task, criterion.asked, answer, key=(*asked.key, row))
        for row, criterion in enumerate(asked.item.criteria)
    ]
    return await _by_criteria(asked, questions, most=1.0)


async def _by_marks(asked: Asked) -> Judged:
    """A mark from 0 to 10 for every criterion, and their mean by points (WritingBench)."""
    questions = [
        ScoreQuestion(asked.item.task, asked.rollout, criterion.asked, scale=Scale.EXPLICIT)
        for criterion in asked.item.criteria
    ]
    return await _by_criteria(asked, questions, most=_TEN)


async def _by_criteria(asked: Asked, questions: Sequence[Question[Any]], *, most: float) -> Judged:
    replies = await asyncio.gather(*(asked.judge.ask(question) for question in questions))
    marks = tuple(None if reply.value is None else reply.value / most for reply in replies)
    verdicts = tuple(reply.verdict for reply in replies)
    return Judged(value=points_share(asked.item.criteria, marks), marks=marks, verdicts=verdicts)


def points_share(criteria: Sequence[ItemCriterion], marks: Sequence[float | None]) -> float | None:
    """Sum of mark times points over the sum of positive points; criteria without a mark are left out of both.

    None where nothing is left that can be won.
    """
    known = [(each.points, mark) for each, mark in zip(criteria, marks, strict=True) if mark is not None]
    winnable = sum(points for points, _ in known if points > 0)
    return sum(points * mark for points, mark in known) / winnable if winnable else None


async def _by_rating(asked: Asked) -> Judged:
    """One mark from 0 to 10 for the whole answer, by the item's rubric where it has one (WildBench)."""
    scale = Scale.ANSWER if asked.item.rubric is None else Scale.IMPLICIT
    question = ScoreQuestion(asked.item.task, asked.rollout, asked.item.rubric, scale=scale)
    reply = await asked.judge.ask(question)
    value = None if reply.value is None else reply.value / _TEN
    return Judged(value=value, verdicts=(reply.verdict,))


async def _against_given(asked: Asked) -> Judged:
    """The answer against the one that the benchmark brings, shown in both orders: won 1, tied 1/2, lost 0 (Arena-Hard).

    `marks` are the two orders apart, the answer shown first and second.
    """
    item, given = asked.item, _given_rollout(asked.item)
    forth, back = await asyncio.gather(
        *(
            asked.judge.ask(PairQuestion(item.task, *pair, style=Style.ANSWERS, rubric=item.rubric))
            for pair in ((asked.rollout, given), (given, asked.rollout))
        )
    )
    first = None if forth.value is None else forth.value.share
    second = None if back.value is None else 1 - back.value.share
    known = [mark for mark in (first, second) if mark is not None]
    value = sum(known) / len(known) if known else None
    return Judged(value=value, marks=(first, second), verdicts=(forth.verdict, back.verdict))


async def _race(asked: Asked) -> Judged:
    """Marks of the answer over those of the answer and the given one: one half where both are as good (DRB's RACE).

    Each is marked by itself for each criterion, from 0 to 10, where the authors' prompt marks both at once for all.
    """
    given = replace(asked, rollout=_given_rollout(asked.item))
    mine, theirs = await asyncio.gather(_by_marks(asked), _by_marks(given))
    value = None
    if mine.value is not None and theirs.value is not None:
        both = mine.value + theirs.value
        value = mine.value / both if both else 0.0
    return Judged(value=value, marks=mine.marks, verdicts=mine.verdicts + theirs.verdicts)


def _given_rollout(item: Item) -> Rollout:
    """The benchmark's own answer, as if somebody had given it."""
    name = content_id("given", item.id, item.given or "")
    return Rollout.of_answer(item.given, name, checkpoint="given", subject_id=item.id)


_ALL = (
    Scorer("exact_match", "exact match (SQuAD)"),
    Scorer("f1", "F1 over words (SQuAD)", rule=f1),
    Scorer(
        "cover_exact_match", "the right answer occurs in the one given (Search-R1)", rule=cover_exact_match
    ),
    Scorer("hotpot_f1", "F1, yes and no right or wrong (HotpotQA)", rule=hotpot_f1),
    Scorer(
        "trivia_exact_match",
        "exact match (TriviaQA)",
        rule=partial(exact_match, normal=trivia_normal),
        vote=trivia_normal,
    ),
    Scorer(
        "trivia_f1", "F1 over words (TriviaQA)", rule=partial(f1, normal=trivia_normal), vote=trivia_normal
    ),
    Scorer(
        "boxed",
        "the last box equals the right answer (Math-Verify)",
        rule=_boxed,
        vote=_boxed_vote,
        is_slow=True,
    ),
    Scorer(
        "choice",
        "the letter in the last box is the right choice",
        rule=lambda answer, right: float(_letter(answer) in right),
        vote=_letter,
    ),
    Scorer("reference", "correct by a judge that knows the right answers", "answers", _by_reference),
    Scorer("rubric", "share of the rubric's points, one verdict per criterion", "criteria", _by_rubric),
    Scorer("criteria_rating", "mean mark from 0 to 10 over the criteria, over 10", "criteria", _by_marks),
    Scorer("rating", "a mark from 0 to 10 for the whole answer, over 10", "", _by_rating),
    Scorer("win_rate", "better than the given answer, in both orders", "given", _against_given),
    Scorer("race", "marks by criterion, over those of the answer and the given one together", "given", _race),
)
SCORERS = MappingProxyType({each.name: each for each in _ALL})
"""All scorers by name."""
