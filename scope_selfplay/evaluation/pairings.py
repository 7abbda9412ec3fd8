"""Which two answers the judge sees together, on which held-out task and in which order; one judge call per pair.

Over the tasks every checkpoint of a pair is shown first as often as second (within one), so that a judge that
prefers the first answer favours no checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scope_selfplay.judge import Judge, Style, same_text
from scope_selfplay.judge.shown import shown_answer
from scope_selfplay.keys import Key, rng_from
from scope_selfplay.schemas import Candidate, Comparison, Grade, Outcome, Rollout, RolloutStatus, Verdict


@dataclass(frozen=True)
class CheckpointAnswers:
    """One checkpoint's answers to the held-out tasks, by task id."""

    name: str
    rollouts: Mapping[str, Rollout]
    grades: Mapping[str, Grade]


@dataclass(frozen=True)
class Presentation:
    """Two answers to one task, in the order in which the judge sees them."""

    task_id: str
    first: Rollout
    second: Rollout

    @property
    def is_tie(self) -> bool:
        """Whether both answers are the same, so that no judge needs to be asked."""
        return same_text(shown_answer(self.first.answer), shown_answer(self.second.answer))


async def judge_presentation(judge: Judge, candidate: Candidate, shown: Presentation) -> Comparison:
    """One comparison in the order shown; equal answers tie without a call."""
    assert candidate.task is not None
    if shown.is_tie:
        verdict = Verdict(value=True, reasoning="both give the same answer", attempts=0)
        return Comparison(
            first_id=shown.first.id, second_id=shown.second.id, outcome=Outcome(0.5, 0.5), verdict=verdict
        )
    return await judge.compare(
        candidate.task, shown.first, shown.second, style=Style.SCORES, rubric=candidate.rubric
    )


def presentations(
    newest: CheckpointAnswers, earlier: Sequence[CheckpointAnswers], *, key: Key, both_orders: bool = False
) -> list[Presentation]:
    """The newest checkpoint against every earlier one, on every task that both have answered.

    A failed rollout is not an answer; a finished one without an answer is. `key` decides on which tasks the newest is
    shown first.
    """
    return [each for other in earlier for each in _against(newest, other, key, both_orders)]


def _against(
    newest: CheckpointAnswers, other: CheckpointAnswers, key: Key, both_orders: bool
) -> Iterator[Presentation]:
    shared = [
        Presentation(task, one, other.rollouts[task])
        for task, one in newest.rollouts.items()
        if task in other.rollouts and RolloutStatus.FAILED not in (one.status, other.rollouts[task].status)
    ]
    yield from (each for each in shared if each.is_tie)
    judged = [each for each in shared if not each.is_tie]
    rng_from(*key, other.name).shuffle(judged)
    for number, shown in enumerate(judged):
        swapped = Presentation(shown.task_id, shown.second, shown.first)
        if both_orders:
            yield from (shown, swapped)
        else:
            yield swapped if number % 2 else shown
