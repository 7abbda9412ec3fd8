"""A judge by rule that errs on purpose, in the shares that `judge.noise` sets: a stand-in for a model's errors.

Whether and how a call is spoilt follows from what is asked and from nothing else (task, answers, key, order shown):
the same call errs alike in every run, whenever it is made, and more noise of one kind spoils the same calls and
others. What the judge behind it could not judge stays a fault.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from scope_selfplay.config import NoiseConfig
from scope_selfplay.gates import Gate
from scope_selfplay.judge.protocol import Judge, PointwiseScore, Scale, Selected, Style
from scope_selfplay.keys import Key, rng_from
from scope_selfplay.schemas import (
    Comparison,
    Criterion,
    Document,
    Fault,
    Outcome,
    Rollout,
    Rubric,
    Task,
    Verdict,
)


class Noise(StrEnum):
    """How a call is spoilt; the names are those of `judge.noise`."""

    UNREADABLE = "unreadable"
    WRONG = "wrong"
    FIRST = "first"
    LONGER = "longer"


@dataclass(frozen=True)
class _Draw:
    """What becomes of one call; `rng` is for what else has to be drawn."""

    noise: Noise | None
    rng: Random


def with_noise(judge: Judge, noise: NoiseConfig) -> Judge:
    """The judge itself where there is no noise."""
    return NoisyJudge(judge, noise) if noise.total else judge


class NoisyJudge:
    def __init__(self, judge: Judge, noise: NoiseConfig) -> None:
        self._judge = judge
        self._noise = noise
        self.identity = f"{judge.identity} with noise: {noise.description}"

    async def gate(self, gate: Gate, task: Task, document: Document | None) -> Verdict:
        verdict = await self._judge.gate(gate, task, document)
        draw = self._draw("gate", gate, task.id, task.text, document.id if document else "")
        return _spoilt(verdict, draw.noise)

    async def write_rubric(self, task: Task, documents: Sequence[Document]) -> Rubric | None:
        """A rubric has no verdict to turn around: one is either written or cannot be read."""
        rubric = await self._judge.write_rubric(task, documents)
        draw = self._draw("rubric", task.id, task.text, *(document.id for document in documents))
        return None if draw.noise is Noise.UNREADABLE else rubric

    async def grade(self, task: Task, criterion: Criterion, answer: str, *, key: Key) -> Verdict:
        verdict = await self._judge.grade(task, criterion, answer, key=key)
        draw = self._draw("grade", task.id, criterion.text, answer, *key)
        if draw.noise is Noise.LONGER and verdict.fault is None:
            return _changed(verdict, draw.rng.random() < self._favour(answer), Noise.LONGER)
        return _spoilt(verdict, draw.noise)

    async def compare(
        self,
        task: Task,
        first: Rollout,
        second: Rollout,
        *,
        style: Style,
        rubric: Rubric | Criterion | None = None,
        repeat: int = 0,
    ) -> Comparison:
        found = await self._judge.compare(task, first, second, style=style, rubric=rubric, repeat=repeat)
        draw = self._draw("compare", style, repeat, task.id, *_content(first, second), *_criteria(rubric))
        longer = _words(first.answer) - _words(second.answer)
        # Between answers of one length a judge that likes length has to look at what they say.
        noise = None if draw.noise is Noise.LONGER and not longer else draw.noise
        if found.outcome is None or noise is None:
            return found
        if noise is Noise.UNREADABLE:
            return found.model_copy(update={"outcome": None, "verdict": _unreadable(found.verdict)})
        outcome = _spoilt_outcome(found.outcome, noise, first_is_longer=longer > 0)
        verdict = _changed(found.verdict, outcome.first >= outcome.second, noise)
        return found.model_copy(update={"outcome": outcome, "verdict": verdict})

    async def select(
        self,
        task: Task,
        rubric: Rubric | None,
        candidates: Sequence[Rollout],
        winners: int,
        *,
        repeat: int = 0,
    ) -> Selected:
        """Turned around, those win whom the judge would not have picked, as far as there are so many."""
        found = await self._judge.select(task, rubric, candidates, winners, repeat=repeat)
        draw = self._draw("select", winners, repeat, task.id, *_content(*candidates), *_criteria(rubric))
        if found.numbers is None or draw.noise is None:
            return found
        if draw.noise is Noise.UNREADABLE:
            return Selected(None, _unreadable(found.verdict))
        order = list(range(len(candidates)))
        if draw.noise is not Noise.FIRST:
            # Ties must not favour a place in the list.
            draw.rng.shuffle(order)
        if draw.noise is Noise.WRONG:
            order.sort(key=set(found.numbers).__contains__)
        elif draw.noise is Noise.LONGER:
            order.sort(key=lambda number: -_words(candidates[number].answer))
        return Selected(order[:winners], _changed(found.verdict, True, draw.noise))

    async def score(
        self, task: Task, rollout: Rollout, rubric: Rubric | Criterion | None, *, scale: Scale
    ) -> PointwiseScore:
        found = await self._judge.score(task, rollout, rubric, scale=scale)
        draw = self._draw("score", scale, task.id, *_content(rollout), *_criteria(rubric))
        if found.value is None or draw.noise in (None, Noise.FIRST):
            return found
        if draw.noise is Noise.UNREADABLE:
            return PointwiseScore(None, _unreadable(found.verdict))
        top, steps = (1.0, 2) if scale.of_halves else (10.0, 10)
        value = top - found.value
        if draw.noise is Noise.LONGER:
            value = top * round(steps * self._favour(rollout.answer)) / steps
        return PointwiseScore(value, _changed(found.verdict, True, draw.noise))

    def _favour(self, answer: str | None) -> float:
        """The probability that a judge who only looks at the length likes an answer."""
        return float(1 - 2 ** (-_words(answer) / self._noise.half_length))

    def _draw(self, *content: str | int) -> _Draw:
        rng = rng_from("judge.noise", *content)
        place = rng.random()
        for noise in Noise:
            place -= getattr(self._noise, noise.value)
            if place < 0:
                return _Draw(noise, rng)
        return _Draw(None, rng)


def _spoilt(verdict: Verdict, noise: Noise | None) -> Verdict:
    """A yes or no: where neither order nor length plays a part."""
    if verdict.fault is not None:
        return verdict
    match noise:
        case Noise.UNREADABLE:
            return _unreadable(verdict)
        case Noise.WRONG:
            return _changed(verdict, not verdict.value, noise)
        case _:
            return verdict


def _spoilt_outcome(outcome: Outcome, noise: Noise, *, first_is_longer: bool) -> Outcome:
    if noise is Noise.WRONG:
        return Outcome(outcome.second, outcome.first)
    return Outcome(1.0, 0.0) if noise is Noise.FIRST or first_is_longer else Outcome(0.0, 1.0)


def _changed(verdict: Verdict, value: bool, noise: Noise) -> Verdict:
    reasoning = f"Spoilt on purpose (judge.noise.{noise}). {verdict.reasoning}"
    return verdict.model_copy(update={"value": value, "reasoning": reasoning})


def _unreadable(verdict: Verdict) -> Verdict:
    reasoning = "Made unreadable on purpose (judge.noise.unreadable)."
    changes = {"value": None, "probability": None, "fault": Fault.UNREADABLE, "reasoning": reasoning}
    return verdict.model_copy(update=changes)


def _content(*rollouts: Rollout) -> list[str]:
    return [part for rollout in rollouts for part in (rollout.id, rollout.answer or "")]


def _criteria(rubric: Rubric | Criterion | None) -> list[str]:
    if isinstance(rubric, Criterion):
        return [rubric.text]
    return [criterion.text for criterion in rubric.criteria] if rubric else []


def _words(answer: str | None) -> int:
    return len((answer or "").split())
