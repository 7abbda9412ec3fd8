r"""The judge of tasks with one right answer: compares `\boxed{...}` with the reference, and judges nothing else.

It knows right from wrong and no more: of two right answers, or two wrong ones, none is better. What it cannot
decide it refuses, with a typed fault or None.
"""

import asyncio
from collections.abc import Sequence

from scope_selfplay.gates import Gate
from scope_selfplay.judge.protocol import PointwiseScore, Scale, Selected, Style
from scope_selfplay.keys import Key
from scope_selfplay.maths.boxed_answers import boxed_reward
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

_REFUSED = Verdict(
    value=None, fault=Fault.REFUSED, reasoning="a verifier compares boxed answers with a reference only"
)


class VerifierJudge:
    identity = "verifier"

    async def gate(self, gate: Gate, task: Task, document: Document | None) -> Verdict:
        return _REFUSED

    async def write_rubric(self, task: Task, documents: Sequence[Document]) -> Rubric | None:
        return None

    async def grade(self, task: Task, criterion: Criterion, answer: str, *, key: Key) -> Verdict:
        return _REFUSED

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
        one, other = [await _reward(rollout.answer, task.reference) for rollout in (first, second)]
        if one is None or other is None:
            return Comparison(first_id=first.id, second_id=second.id, outcome=None, verdict=_REFUSED)
        verdict = Verdict(value=one >= other, reasoning=f"{one:.0f}:{other:.0f}")
        return Comparison(
            first_id=first.id, second_id=second.id, outcome=Outcome(one, other), verdict=verdict
        )

    async def select(
        self,
        task: Task,
        rubric: Rubric | None,
        candidates: Sequence[Rollout],
        winners: int,
        *,
        repeat: int = 0,
    ) -> Selected:
        """The right ones, where they are exactly as many as wanted."""
        rewards = [await _reward(candidate.answer, task.reference) for candidate in candidates]
        right = [number for number, reward in enumerate(rewards) if reward == 1.0]
        if len(right) != winners or None in rewards:
            return Selected(None, _REFUSED)
        reasoning = " ".join(f"{reward:.0f}" for reward in rewards if reward is not None)
        return Selected(right, Verdict(value=True, reasoning=reasoning))

    async def score(
        self, task: Task, rollout: Rollout, rubric: Rubric | Criterion | None, *, scale: Scale
    ) -> PointwiseScore:
        reward = await _reward(rollout.answer, task.reference)
        if reward is None:
            return PointwiseScore(None, _REFUSED)
        verdict = Verdict(value=True, reasoning="right" if reward else "wrong")
        return PointwiseScore(reward if scale.of_halves else 10.0 * reward, verdict)


async def _reward(answer: str | None, reference: str | None) -> float | None:
    if reference is None:
        return None
    return 0.0 if answer is None else await asyncio.to_thread(boxed_reward, answer, reference)
