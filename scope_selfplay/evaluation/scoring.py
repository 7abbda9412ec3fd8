"""What every scorer is, and the record of what one says of one answer."""

from enum import StrEnum
from typing import Protocol

from scope_selfplay.evaluation.items import AnswerScore, Item
from scope_selfplay.judge import Judge
from scope_selfplay.keys import Key
from scope_selfplay.schemas import Rollout, RolloutStatus, Value, Verdict


class Needs(StrEnum):
    """What of an item a scorer goes by; an item without it is not scored by it."""

    ANSWERS = "answers"
    RUBRIC = "rubric"
    GIVEN = "given"
    NOTHING = "nothing"

    def has(self, item: Item) -> bool:
        match self:
            case Needs.ANSWERS:
                return bool(item.answers)
            case Needs.RUBRIC:
                return bool(item.criteria)
            case Needs.GIVEN:
                return item.given is not None
            case Needs.NOTHING:
                return True


class Judged(Value):
    """What a scorer says of one answer; `value` None is a fault that the verdicts tell of."""

    value: float | None
    label: str = ""
    marks: tuple[float | None, ...] = ()
    verdicts: tuple[Verdict, ...] = ()


class Scorer(Protocol):
    """`needs` says which items it scores, `asks_judge` whether it costs calls."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def needs(self) -> Needs: ...

    @property
    def asks_judge(self) -> bool: ...

    async def judged(self, item: Item, rollout: Rollout, judge: Judge | None, *, key: Key) -> Judged:
        """The value of an answer that is there: `rollout.answer` is a text."""
        ...


async def score_answer(
    scorer: Scorer,
    item: Item,
    rollout: Rollout,
    *,
    judge: Judge | None,
    key: Key,
    checkpoint: str,
    sample: int = 0,
) -> AnswerScore:
    """The record of one scorer's word on one answer.

    A failed rollout has no value: that is nobody's fault but the engine's. A finished one without an answer is worth 0,
    and no judge is asked.
    """
    if rollout.status is RolloutStatus.FAILED:
        judged = Judged(value=None)
    elif rollout.answer is None or not rollout.answer.strip():
        judged = Judged(value=0.0, marks=(0.0,) * (len(item.criteria) if scorer.needs is Needs.RUBRIC else 0))
    else:
        judged = await scorer.judged(item, rollout, judge, key=key)
    return AnswerScore(
        item_id=item.id,
        answer_id=rollout.id,
        checkpoint=checkpoint,
        sample=sample,
        scorer=scorer.name,
        judge=judge.identity if judge is not None and scorer.asks_judge else "",
        **judged.model_dump(),
    )
