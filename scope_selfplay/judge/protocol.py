"""What a judge is asked. A fault is a typed verdict or None, never a number."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from scope_selfplay.gates import Gate
from scope_selfplay.keys import Key
from scope_selfplay.schemas import Comparison, Criterion, Document, Rollout, Rubric, Task, Verdict

DIMENSIONS = (5, 7)
"""Fewest and most items of a rubric that is written from the query alone (Tournament-GRPO)."""


class View(StrEnum):
    """What of a rollout a judge is shown: its answer, its whole trace, which ends with the answer, or its core: the
    trace without what the tools returned.
    """

    ANSWER = "answer"
    CORE = "core"
    TRACE = "trace"


class Style(StrEnum):
    """How a pair is judged: a score for each, by whole traces or their core (ArenaRL), or one preference, by whole
    traces (Reasoning Arena) or by the answers alone.
    """

    SCORES = "scores"
    CORE_SCORES = "core_scores"
    PREFERENCE = "preference"
    ANSWERS = "answers"

    @property
    def view(self) -> View:
        match self:
            case Style.CORE_SCORES:
                return View.CORE
            case Style.ANSWERS:
                return View.ANSWER
            case Style.SCORES | Style.PREFERENCE:
                return View.TRACE

    @property
    def is_scored(self) -> bool:
        return self in (Style.SCORES, Style.CORE_SCORES)


class Scale(StrEnum):
    """What a score means: 0-10 for an answer, by a rubric, a criterion or the pack; 0 / 0.5 / 1 for a trace, or for an
    answer that is wrong, not attempted, or right by the reference.
    """

    IMPLICIT = "implicit"
    EXPLICIT = "explicit"
    ANSWER = "answer"
    CORRECTNESS = "correctness"
    PROOF = "proof"
    REFERENCE = "reference"

    @property
    def view(self) -> View:
        return View.TRACE if self.of_trace else View.ANSWER

    @property
    def of_halves(self) -> bool:
        """Whether the range is 0, 0.5 and 1, and not 0 to 10."""
        return self.of_trace or self is Scale.REFERENCE

    @property
    def of_trace(self) -> bool:
        """Whether a whole trace is marked with 0, 0.5 or 1 (Reasoning Arena), and not an answer with 0 to 10."""
        return self in (Scale.CORRECTNESS, Scale.PROOF)


class Selected(NamedTuple):
    """The 0-based numbers of the winners, or None where the verdict's fault says why."""

    numbers: list[int] | None
    verdict: Verdict


class PointwiseScore(NamedTuple):
    """A number on the scale's own range, or None where the verdict's fault says why."""

    value: float | None
    verdict: Verdict


class Judge(Protocol):
    @property
    def identity(self) -> str:
        """Names model and prompts: equal identities judge alike."""
        ...

    async def gate(self, gate: Gate, task: Task, document: Document | None) -> Verdict: ...

    async def write_rubric(self, task: Task, documents: Sequence[Document]) -> Rubric | None:
        """Three to five criteria from the documents, or None where none could be written or read."""
        ...

    async def grade(self, task: Task, criterion: Criterion, answer: str, *, key: Key) -> Verdict: ...

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
        """One presentation, `first` first; a `repeat` is judged anew, as in `select`.

        By a criterion alone, where the style is that of answers: all else about them is left out of account.
        """
        ...

    async def select(
        self,
        task: Task,
        rubric: Rubric | None,
        candidates: Sequence[Rollout],
        winners: int,
        *,
        repeat: int = 0,
    ) -> Selected:
        """Exactly `winners` of the candidates, shown in this order.

        A question of another `repeat` is judged anew, with draws of its own, though nothing else of it differs.
        """
        ...

    async def score(
        self, task: Task, rollout: Rollout, rubric: Rubric | Criterion | None, *, scale: Scale
    ) -> PointwiseScore: ...
