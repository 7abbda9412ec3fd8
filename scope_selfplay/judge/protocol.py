"""What a judge is asked, as values, and what it says: a value, or None and the fault why not; never a made-up number.

A question knows the role of its prompt, what of its value is kept on record, and when nobody needs to be asked.
"""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from scope_selfplay.base.text import named_in, spaced, words_of
from scope_selfplay.base.values import (
    Check,
    Comparison,
    Criterion,
    Document,
    Fault,
    Gate,
    Grade,
    Key,
    Outcome,
    Rollout,
    RolloutStatus,
    Rubric,
    Score,
    Selection,
    Task,
    Value,
    Verdict,
)
from scope_selfplay.judge.fences import View, is_opener, shown
from scope_selfplay.prompts.roles import GATE_ROLES, PromptRole
from scope_selfplay.rewards.equations import rubric_score
from scope_selfplay.rewards.verify import boxed_reward, last_box, text_match

T = TypeVar("T")

CRITERIA = (3, 5)
"""Fewest and most criteria of a rubric that is written from documents (SCOPE)."""
DIMENSIONS = (5, 7)
"""Fewest and most items of a rubric that is written from the query alone (Tournament-GRPO)."""
PREFERENCES = {"A": Outcome(1.0, 0.0), "B": Outcome(0.0, 1.0), "T": Outcome(0.5, 0.5)}
"""What a preference may be as one token; T is a tie."""
_OPENER, _ECHO = "the answer holds nothing but an opener", "the answer only repeats the task"


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
        return {Style.CORE_SCORES: View.CORE, Style.ANSWERS: View.ANSWER}.get(self, View.TRACE)

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


@dataclass(frozen=True)
class Reply(Generic[T]):
    """`value` is None exactly when the verdict's fault says why. `completion` and `odds` are those of a model."""

    value: T | None
    verdict: Verdict
    completion: str = ""
    degree: float | None = None
    """How far a criterion is met, where that counts and not only whether it is."""
    odds: Mapping[str, float] = field(default_factory=dict)


def failed(fault: Fault, reasoning: str, *, attempts: int = 1) -> Reply[Any]:
    """Without a value, because of a fault."""
    return Reply(None, Verdict(value=None, fault=fault, reasoning=reasoning, attempts=attempts))


@dataclass(frozen=True)
class Question(Generic[T]):
    """Asks for a T about a task; a `repeat` of the same question is judged anew, with draws of its own."""

    task: Task
    _: KW_ONLY
    repeat: int = 0

    @property
    def role(self) -> PromptRole:
        """The prompt that asks it."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return self.role.value

    def holds(self, value: T) -> bool:
        """What the verdict says where this value came."""
        return True

    def likely(self, probability: float) -> T | None:
        """The value by how likely the first choice of a token was; None where the token itself decides."""
        return None

    def said(self, value: T, reasoning: str = "", *, attempts: int = 1) -> Reply[T]:
        """What a judge replies that is no model."""
        return Reply(value, Verdict(value=self.holds(value), reasoning=reasoning, attempts=attempts))

    def settled(self) -> Reply[T] | None:
        """The reply where no model needs to be asked."""
        return None

    def record(self, reply: Reply[T]) -> Value | None:
        """What a stage keeps of it, where nothing else holds the verdict."""
        return None


class YesOrNo(Question[bool]):
    def holds(self, value: bool) -> bool:
        return value

    def likely(self, probability: float) -> bool | None:
        return probability >= 0.5


@dataclass(frozen=True)
class GateQuestion(YesOrNo):
    gate: Gate
    document: Document | None

    @property
    def role(self) -> PromptRole:
        return PromptRole.of_gate(self.gate)


@dataclass(frozen=True)
class RubricQuestion(Question[Rubric]):
    """For three to five criteria from the documents; without any, from the query alone by its own writer."""

    documents: Sequence[Document]

    @property
    def role(self) -> PromptRole:
        return PromptRole.RUBRIC if self.documents else PromptRole.RUBRIC_DIMENSIONS

    def record(self, reply: Reply[Rubric]) -> Value | None:
        # A candidate holds the one that is from its documents.
        return None if self.documents else reply.value


@dataclass(frozen=True)
class GradeQuestion(YesOrNo):
    """Whether an answer meets a criterion. `key` names the draws of a judge that errs on purpose."""

    criterion: Criterion
    answer: str
    _: KW_ONLY
    key: Key = ()

    role = PromptRole.GRADE

    def settled(self) -> Reply[bool] | None:
        lacks_names = _repeats(self.answer, self.task) and _new_names(self.criterion, self.task)
        reason = _why_empty(self.answer, self.task) or (_ECHO if lacks_names else "")
        if not reason or (reason == _ECHO and self.criterion.check is not None):
            return None
        return self.said(False, reason, attempts=0)


@dataclass(frozen=True)
class GuardQuestion(YesOrNo):
    """Whether an answer speaks to whoever grades it, or about its own worth: such a one meets no criterion."""

    answer: str

    role = PromptRole.GUARD


@dataclass(frozen=True)
class PairQuestion(Question[Outcome]):
    """One presentation of two rollouts, `first` first.

    By a criterion alone, where the style is that of answers: all else about them is left out of account.
    """

    first: Rollout
    second: Rollout
    _: KW_ONLY
    style: Style
    rubric: Rubric | Criterion | None = None

    @property
    def role(self) -> PromptRole:
        return PromptRole.COMPARE_SCORES if self.style.is_scored else PromptRole(self.name)

    @property
    def name(self) -> str:
        return f"compare_{self.style}"

    def holds(self, value: Outcome) -> bool:
        return value.first >= value.second

    @property
    def most(self) -> float:
        """What an answer gets that wins all."""
        return 10.0 if self.style.is_scored else 1.0

    def likely(self, probability: float) -> Outcome | None:
        return Outcome(self.most * probability, self.most * (1 - probability))

    def settled(self) -> Reply[Outcome] | None:
        """What would look the same ties, and an answer wins over none."""
        one, other = (shown(rollout, self.style.view).identity for rollout in (self.first, self.second))
        if one == other:
            return self.said(Outcome(self.most / 2, self.most / 2), "both are the same", attempts=0)
        first, second = (_why_empty(rollout.answer, self.task) for rollout in (self.first, self.second))
        if bool(first) == bool(second):
            return None
        won = Outcome(self.most, 0.0) if second else Outcome(0.0, self.most)
        return self.said(won, f"the other one is no answer: {first or second}", attempts=0)

    def record(self, reply: Reply[Outcome]) -> Comparison:
        return Comparison(
            first_id=self.first.id,
            second_id=self.second.id,
            outcome=reply.value,
            verdict=reply.verdict,
            repeat=self.repeat,
        )


@dataclass(frozen=True)
class SelectQuestion(Question[list[int]]):
    """For the 0-based numbers of exactly `winners` of the candidates, shown in this order."""

    rubric: Rubric | None
    candidates: Sequence[Rollout]
    winners: int

    role = PromptRole.SELECT

    def record(self, reply: Reply[list[int]]) -> Selection:
        ids = tuple(candidate.id for candidate in self.candidates)
        won = None if reply.value is None else tuple(ids[number] for number in reply.value)
        return Selection(candidate_ids=ids, winner_ids=won, repeat=self.repeat, verdict=reply.verdict)


@dataclass(frozen=True)
class ScoreQuestion(Question[float]):
    """For a number on the scale's own range; `row` is the criterion's place in its rubric, for the record."""

    rollout: Rollout
    rubric: Rubric | Criterion | None
    _: KW_ONLY
    scale: Scale
    row: int | None = None

    @property
    def role(self) -> PromptRole:
        return PromptRole(f"score_{self.scale.value}")

    def settled(self) -> Reply[float] | None:
        reason = _why_empty(self.rollout.answer, self.task)
        return self.said(0.0, reason, attempts=0) if reason else None

    def record(self, reply: Reply[float]) -> Score:
        return Score(
            rollout_id=self.rollout.id,
            scale=self.scale.value,
            value=reply.value,
            criterion=self.row,
            verdict=reply.verdict,
        )


def question_of(
    role: PromptRole,
    task: Task,
    *,
    documents: Sequence[Document] = (),
    answers: Sequence[Rollout] = (),
    by: Rubric | Criterion | None = None,
    winners: int = 1,
) -> Question[Any]:
    """What the prompt of a role asks about these. Raises ValueError for another number of answers, or no criterion."""
    if role is PromptRole.SELECT:
        if len(answers) < 2:
            raise ValueError(f"found {len(answers)} answers, expected two or more to select from")
        return SelectQuestion(task, by if isinstance(by, Rubric) else None, answers, winners)
    if role in GATE_ROLES:
        return GateQuestion(task, GATE_ROLES[role], documents[0] if documents else None)
    if role in (PromptRole.RUBRIC, PromptRole.RUBRIC_DIMENSIONS):
        return RubricQuestion(task, documents)
    kind, _, name = role.partition("_")
    expected = 2 if kind == "compare" else 1
    if len(answers) != expected:
        raise ValueError(f"found {len(answers)} answers, expected {expected}")
    if kind == "compare":
        return PairQuestion(task, *answers, style=Style(name), rubric=by)
    if role is PromptRole.GUARD:
        return GuardQuestion(task, answers[0].answer or "")
    if role is PromptRole.GRADE and isinstance(by, Criterion):
        return GradeQuestion(task, by, answers[0].answer or "")
    if role in (PromptRole.GRADE, PromptRole.SCORE_EXPLICIT) and not isinstance(by, Criterion):
        raise ValueError(f"{role} needs a criterion")
    return ScoreQuestion(task, answers[0], by, scale=Scale(name))


class Judge(Protocol):
    @property
    def identity(self) -> str:
        """Names model and prompts: equal identities judge alike."""
        ...

    async def ask(self, question: Question[T]) -> Reply[T]: ...


def grounded(rubric: Rubric, task: Task, documents: Sequence[Document]) -> Rubric:
    """Criteria that add nothing to the task's own words, or names and numbers of which none stands in a document, are
    struck: unmet.
    """
    known = words_of(text for document in documents for text in (document.title, document.text))

    def is_empty(criterion: Criterion) -> bool:
        names, behind_the_verb = _new_names(criterion, task), " ".join(spaced(criterion.text).split()[1:])
        return _repeats(behind_the_verb, task) or bool(names and not names & known)

    struck = [each for each in rubric.criteria if not each.evidence and is_empty(each)]
    kept = tuple(each for each in rubric.criteria if each not in struck)
    unmet = (*(rubric.unmet or ()), *(each.text for each in struck))
    return rubric.model_copy(update={"criteria": kept, "unmet": unmet}) if struck else rubric


def _new_names(criterion: Criterion, task: Task) -> set[str]:
    """The names and numbers of a criterion that the task does not have."""
    return named_in(criterion.text) - words_of([task.text])


def _repeats(text: str, task: Task) -> bool:
    return bool(words := words_of([text])) and words <= words_of([task.text]) | _LINKS


def _why_empty(answer: str | None, task: Task) -> str:
    """Why there is nothing to judge; "" where there is. A small model often calls the task again a good answer."""
    if not answer or is_opener(answer):
        return _OPENER if answer else "no answer"
    is_echo = _repeats(answer, task) and answer.lower().split()[:1] == task.text.lower().split()[:1]
    return _ECHO if is_echo else ""


# In Chinese the letters of verbs too, with which a criterion begins.
_LINKS = frozenset(
    "a an and are as at be by for from had has in is it its of on or that the to was were with "
    "描 述 介 绍 解 释 说 明 指 出 列 给 详 细 的 了 和 与 及 其 是 为 什 么 如 何".split()
)


async def grade_answer(judge: Judge, task: Task, rubric: Rubric, rollout: Rollout, *, key: Key) -> Grade:
    """Equation 1; a criterion with a `check` is decided by its rule.

    No judge is asked about an answer that is absent, an opener or its task again; a failed rollout has no score, and
    without criteria there is none.
    """
    if rollout.status is RolloutStatus.FAILED or not rubric.criteria:
        return Grade(rollout_id=rollout.id, verdicts=(), score=None)

    async def asked(row: int, criterion: Criterion) -> Reply[bool]:
        question = GradeQuestion(task, criterion, rollout.answer or "", key=(*key, row))
        if (settled := question.settled()) is not None:
            return settled
        if criterion.check is not None:
            return await _verified(question, criterion.check)
        return await judge.ask(question)

    replies = await asyncio.gather(*map(asked, itertools.count(), rubric.criteria))
    met = [reply.value if reply.degree is None else reply.degree for reply in replies]
    score = rubric_score(met, [criterion.weight for criterion in rubric.criteria])
    return Grade(rollout_id=rollout.id, verdicts=tuple(reply.verdict for reply in replies), score=score)


async def _verified(question: GradeQuestion, check: Check) -> Reply[bool]:
    """What a rule says of an answer, given the reference; no judge is asked."""
    answer, reference = question.answer, question.task.reference
    if check is Check.TEXT:
        found = last_box(answer) or answer
        met, what = text_match(found, reference or "") == 1.0, f"text {found!r}"
    else:
        # In a thread: a hostile answer may keep the verifier busy for seconds.
        reward = await asyncio.to_thread(boxed_reward, answer, reference or "")
        if reward is None:
            return failed(Fault.UNREADABLE, f"cannot verify {reference!r}", attempts=0)
        met, what = reward == 1.0, f"boxed {last_box(answer)!r}"
    return question.said(met, f"{what}, reference {reference!r}", attempts=0)
