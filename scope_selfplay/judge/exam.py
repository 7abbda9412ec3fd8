"""The exam of a judge: every question that a run will ask, in cases whose verdict is known, before it decides anything.

    exam = await examine(judge, questions, pick, sample=40, seed=0)
    exam.failed, exam.thresholds

Cases are those of the canaries, made from the run's own documents. Each gives two questions, one to be answered with
yes and one with no: right and wrong to a grade or gate, the better answer first and second to a comparison. What a
judge says is put on one scale (the log-odds of a token, else the number or verdict), and two things are told from it:
how many of these pairs are in order, which no threshold can mend, and the threshold at which yes and no part best.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from scope_selfplay.base.errors import JudgeError
from scope_selfplay.base.intervals import Estimate, estimate_mean, estimate_order
from scope_selfplay.base.values import Document, Fault, Outcome, rng_from
from scope_selfplay.judge.cases import EMPTY, Canary, CanaryCase, PickCase, canary_of, is_same, task_of
from scope_selfplay.judge.checks import CLAIMS, NEAR, WITH_ODDS, Anchor, CanaryKind, Exam, QuestionExam
from scope_selfplay.judge.model import ModelJudge, likelihood
from scope_selfplay.judge.protocol import (
    GradeQuestion,
    GuardQuestion,
    PairQuestion,
    Question,
    Reply,
    RubricQuestion,
    SelectQuestion,
)
from scope_selfplay.judge.questions import ROLE_OF_PROMPT
from scope_selfplay.judge.replies import count_criteria
from scope_selfplay.net.chat import ChatFault, ChatRequest

_SURE = 20.0
"""The log-odds of a token that was certain."""
_AT_ONCE = 64
_ANCHORS = 2
"""Items that should be answered with yes, and with no, of each question, which later starts ask again."""
_NOISE, _RELATIVE_NOISE = 1.0, 0.1
"""How far log-odds of the same weights may lie apart: engines keep logits of some tens to 8 bits, so a step is an
eighth to a quarter, and batches and kernels move either of two by one or two. Of large log-odds a tenth more."""
_HONEST = 4.0
"""What flagging an honest answer costs, which then loses all, where one that praises itself and is graded costs 1."""
_COMPARED = PairQuestion, SelectQuestion
_RUBRICS = 4
"""A rubric is written for so many judgements: three texts are graded by one of its criteria."""


class Answered(NamedTuple):
    """A case's question, the one it belongs with (`case`), and the reply; `margin` is None where it was unreadable."""

    case: int
    canary: Canary
    margin: float | None
    is_odds: bool = False


@dataclass
class _Asking:
    """Asks one question after another of a role, so many at once, and counts what it takes."""

    judge: ModelJudge
    at_once: asyncio.Semaphore
    again: int
    asked: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    unread: str = ""
    """What the first unreadable reply said."""

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        async with self.at_once:
            reply = await self.judge.ask(replace(question, repeat=question.repeat + self.again))
        if reply.verdict.fault in (Fault.TIMED_OUT, Fault.UNAVAILABLE):
            # A server that fails says nothing about the judge.
            raise JudgeError(
                f"the exam's question {question.name} was not answered: {reply.verdict.reasoning}; what was answered "
                "is kept, and the same command goes on"
            )
        self.asked += 1
        self.tokens_in += reply.verdict.tokens_in
        self.tokens_out += reply.verdict.tokens_out
        if reply.value is None:
            self.unread = self.unread or reply.verdict.reasoning[:400]
        return reply


async def examine(
    judge: ModelJudge,
    questions: Sequence[Question[Any]],
    pick: PickCase,
    *,
    sample: int,
    seed: int,
    documents: Sequence[Document] = (),
    own: Sequence[CanaryCase] = (),
    marks: Sequence[Canary] = (),
    again: int = 0,
) -> Exam:
    """At most about `sample` judgements of each question; `questions` are examples of what will be asked.

    Cases of one's own come before others; marks, what people said of a run, are half of what is asked at most. `judge`
    has neither thresholds nor guard. Rubrics are examined where there are documents to write them from. Another `again`
    asks past what is cached.
    """
    found: dict[str, QuestionExam] = {}
    answered: dict[str, list[Answered]] = {}
    limit = asyncio.Semaphore(_AT_ONCE)
    is_guarded = any(isinstance(like, GuardQuestion) for like in questions)
    for like in questions:
        asking, begun = _Asking(judge, limit, again), time.monotonic()
        if isinstance(like, RubricQuestion):
            drawn = _cases(pick, sample // _RUBRICS, seed, own)
            result = await _rubrics(asking, like, [each for each in drawn if each.document], documents, seed)
        else:
            said = [each for each in marks if each.question.name == like.name]
            said = rng_from("exam", seed).sample(said, min(len(said), sample // 2))
            cases = _cases(pick, (sample - len(said)) // 2, seed, own)
            answers = await _answered(asking, like, cases, said)
            # A tie is a token of its own: it needs no threshold.
            is_token = bool(answers) and len(judge.prompts.render(answers[0].canary.question).choices) == 2
            answered[like.name] = answers
            if is_guarded and isinstance(like, GradeQuestion | PairQuestion):
                # What a guard looks for needs no grade, and loses.
                answers = [each for each in answers if each.canary.kind not in CLAIMS]
            result = _result(like, answers, is_token=is_token)
            known = sum(each.canary in said or each.canary.case in own for each in answered[like.name])
            result = result.model_copy(update={"anchors": tuple(_anchors(judge, answers)), "own": known})
        found[like.name] = result.model_copy(
            update={
                "asked": asking.asked,
                "tokens_in": asking.tokens_in,
                "tokens_out": asking.tokens_out,
                "seconds": (time.monotonic() - begun) / max(1, asking.asked),
                "unread": asking.unread,
            }
        )
    _add_claims(found, answered)
    return Exam(judge=judge.uncalibrated, questions=found)


def _anchors(judge: ModelJudge, answers: Sequence[Answered]) -> Iterator[Anchor]:
    """The shortest prompts whose log-odds are known."""
    for side in (True, False):
        own = [each for each in answers if each.is_odds and each.canary.expected is side]
        asked = [(judge.prompts.render(each.canary.question), each) for each in own]
        for prompt, each in sorted(asked, key=lambda one: len(one[0].prompt))[:_ANCHORS]:
            assert each.margin is not None
            role = ROLE_OF_PROMPT[each.canary.question.role]
            yield Anchor(role=role, prompt=prompt.prompt, choices=prompt.choices, log_odds=each.margin)


async def changes_since(exam: Exam, judge: ModelJudge, *, retries: int) -> dict[str, str]:
    """What the anchors of a question had and get now, where that is the answer of another judge.

    Asked past all caches, to the letter as in the exam. Raises JudgeError for an endpoint that does not answer.
    """

    async def again(anchor: Anchor, attempt: int = 0) -> float | None:
        endpoint = await judge.endpoints[anchor.role].here()
        try:
            reply = await endpoint.complete(ChatRequest(anchor.prompt, max_tokens=1, choices=anchor.choices))
        except ChatFault as fault:
            if fault.fault is Fault.REFUSED:
                return None
            if attempt < retries:
                return await again(anchor, attempt + 1)
            raise JudgeError(f"the judge does not answer what its exam has asked: {fault}") from None
        probability = likelihood(reply.odds, anchor.choices)
        return None if probability is None else _log_odds(probability)

    changes = {}
    for name, each in exam.questions.items():
        found = await asyncio.gather(*map(again, each.anchors))
        kept = [anchor.log_odds for anchor in each.anchors]
        far = [
            now is None or abs(now - then) > _NOISE + _RELATIVE_NOISE * abs(then)
            for then, now in zip(kept, found, strict=True)
        ]
        # A judge that has come to say yes to all has changed in half of them.
        if far and 2 * sum(far) >= len(far):
            then, now = (
                ", ".join("none" if one is None else f"{one:+.1f}" for one in some) for some in (kept, found)
            )
            changes[name] = f"log-odds {then}, found {now}"
    return changes


def _cases(pick: PickCase, number: int, seed: int, own: Sequence[CanaryCase]) -> list[CanaryCase]:
    drawn = (pick(rng_from("exam", seed, each)) for each in range(max(1, number)))
    return [*rng_from("exam", seed).sample(own, len(own)), *drawn][: max(1, number)]


async def _answered(
    asking: _Asking, like: Question[Any], cases: Sequence[CanaryCase], marks: Sequence[Canary]
) -> list[Answered]:
    planned = _planned(asking.judge, like, cases, marks)
    replies = await asyncio.gather(*(asking.ask(canary.question) for _, canary in planned))
    return [
        Answered(place, canary, margin_of(reply, canary.read), reply.verdict.probability is not None)
        for (place, canary), reply in zip(planned, replies, strict=True)
    ]


def _planned(
    judge: ModelJudge, like: Question[Any], cases: Sequence[CanaryCase], marks: Sequence[Canary]
) -> list[tuple[int, Canary]]:
    """Every prompt once: what it gets a second time says nothing new."""
    planned = [(place, canary) for place, case in enumerate(cases) for canary in _pair(like, case, place)]
    for side in (True, False):
        planned += enumerate(each for each in marks if each.expected is side)
    prompts = {judge.prompts.render(each[1].question).prompt: each for each in reversed(planned)}
    return list(reversed(prompts.values()))


def _pair(like: Question[Any], case: CanaryCase, place: int) -> Iterator[Canary]:
    """What is to be answered with yes and what with no, of this case; three of four are near."""
    numbers = range(2 * len(CanaryKind))
    # Of two kinds in turn, either is given every text.
    every = [canary_of(like, case, number, ("exam", place), turn=place // 2) for number in numbers]
    sides = [
        {each.kind: each for each in every if each is not None and each.expected is side}
        for side in (True, False)
    ]
    if all(sides):
        yield from (side[_turn(list(side), place)] for side in sides)


def _turn(kinds: Sequence[CanaryKind], place: int) -> CanaryKind:
    near, far = ([kind for kind in kinds if (kind in NEAR) is is_near] for is_near in (True, False))
    round_, turn = divmod(place, 4)
    # So that the claims that are graded are shown to the guard, too.
    return (
        near[turn % len(near)]
        if near and turn < 3
        else far[(round_ if near else place + round_ + 1) % len(far)]
    )


def margin_of(reply: Reply[Any], read: Callable[[Any], bool] = bool) -> float | None:
    """How much the judge says yes, or that the first is better; None where it could not be read."""
    value, probability = reply.value, reply.verdict.probability
    if value is None:
        return None
    if probability is not None:
        return _log_odds(probability)
    if isinstance(value, Outcome):
        return value.first - value.second
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 1.0 if read(value) else -1.0
    return float(value)


def _log_odds(probability: float) -> float:
    least = math.exp(-_SURE)
    likely = min(max(probability, least), 1 - least)
    return math.log(likely / (1 - likely))


def in_order(answers: Sequence[Answered], *, within: bool) -> Estimate | None:
    """The share of pairs of a yes and a no that are in order, ties counting half: of every case by itself, as
    comparisons are shown in both orders, else of all.
    """
    known = [(each.canary.expected, each.case, each.margin) for each in answers if each.margin is not None]
    yes, no = ([(case, margin) for side, case, margin in known if side is of] for of in (True, False))
    if within:
        return _share([_above(one, other) for a, one in yes for b, other in no if a == b])
    above = [[_above(one, other) for _, other in no] for _, one in yes]
    return estimate_order(above) if yes and no else None


def _above(one: float, other: float) -> float:
    return 0.5 if one == other else float(one > other)


def threshold_of(answers: Sequence[Answered], like: Question[Any]) -> float:
    """Where yes and no part best: of comparisons in the middle between the two presentations of a pair; of others where
    the sum of both rates is highest, that of no by its weight, in the middle of the widest gap.
    """
    known = [(each, each.margin) for each in answers if each.margin is not None]
    if isinstance(like, _COMPARED):
        by_case = defaultdict[int, list[float]](list)
        for each, margin in known:
            by_case[each.case].append(margin)
        return median([sum(both) / 2 for both in by_case.values() if len(both) == 2] or [0.0])
    yes, no = ([margin for each, margin in known if each.canary.expected is side] for side in (True, False))
    weight = _HONEST if isinstance(like, GuardQuestion) else 1.0
    best, threshold = (-1.0, 0.0), 0.0
    for low, high in pairwise(sorted({*yes, *no})):
        middle = (low + high) / 2
        right = sum(margin >= middle for margin in yes) / max(1, len(yes))
        right += weight * sum(margin < middle for margin in no) / max(1, len(no))
        if (right, high - low) > best:
            best, threshold = (right, high - low), middle
    return threshold


def _result(like: Question[Any], answers: Sequence[Answered], *, is_token: bool) -> QuestionExam:
    is_compared, known = isinstance(like, _COMPARED), [each for each in answers if each.margin is not None]
    shares = {"readable": _share([each.margin is not None for each in answers])}
    if is_token and not all(each.is_odds for each in known):
        shares[WITH_ODDS] = _share([each.is_odds for each in known])
    kinds = dict.fromkeys(each.canary.kind for each in answers if each.canary.kind is not CanaryKind.RIGHT)
    for kind in kinds:
        cases = {each.case for each in answers if each.canary.kind is kind}
        own = [each for each in answers if each.canary.kind is kind or each.canary.kind is CanaryKind.RIGHT]
        of_kind = [each for each in own if each.case in cases or not is_compared]
        if not isinstance(like, GuardQuestion):
            shares[f"in order against {kind}"] = in_order(of_kind, within=is_compared)
    if is_compared:
        shares["the first wins"] = _share([each.margin > 0 for each in answers if each.margin])
    right, threshold = None, None
    if is_token and any(each.is_odds for each in known):
        # Four cases at a time, since kinds come in turn: either half has all of them.
        halves = [[each for each in known if each.case // 4 % 2 == half] for half in (0, 1)]
        fitted = [threshold_of(half, like) for half in halves]
        # Each half by the threshold of the other one.
        said = [
            (each.canary.expected, each.margin >= fitted[1 - each.case // 4 % 2])
            for each in known
            if each.margin is not None
            and all(len({one.canary.expected for one in half}) == 2 for half in halves)
        ]
        for side, name in ((True, "yes where it should be"), (False, "no where it should be")):
            shares[name] = _share([yes is side for expected, yes in said if expected is side])
        right = _share([yes is expected for expected, yes in said])
        threshold = threshold_of(answers, like)
    order = in_order(answers, within=is_compared)
    return QuestionExam(order=order, right=right, threshold=threshold, shares=_known(shares))


def _known(shares: Mapping[str, Estimate | None]) -> dict[str, Estimate]:
    return {name: share for name, share in shares.items() if share is not None}


def _share(hits: Sequence[float | None]) -> Estimate | None:
    """The mean of those that are known."""
    return estimate_mean([float(hit) for hit in hits if hit is not None], seed=0)


class _Written(NamedTuple):
    """A rubric: the share of its criteria that was kept, and of other texts above which its document was graded."""

    readable: bool
    kept: float | None = None
    order: float | None = None


async def _rubrics(
    asking: _Asking,
    like: RubricQuestion,
    cases: Sequence[CanaryCase],
    documents: Sequence[Document],
    seed: int,
) -> QuestionExam:
    """Are they readable and from the document; and does it meet them itself, unlike another one and empty words?"""

    async def written(place: int, case: CanaryCase) -> _Written:
        task, document = task_of(case), case.document
        assert document is not None
        reply = await asking.ask(RubricQuestion(task, [document] if like.documents else []))
        if (rubric := reply.value) is None:
            return _Written(False)
        rng = rng_from("exam", seed, place)
        another = rng.choice([each for each in documents if not is_same(each, document)] or [document])
        # Whatever is well written meets much of a rubric that knows no document.
        texts = [document.text, *([another.text] if like.documents else []), EMPTY]
        asked_for = count_criteria(reply.completion)
        kept = len(rubric.criteria) / asked_for if asked_for else None
        if not rubric.criteria:
            return _Written(True, kept)
        chosen = rng.choice(rubric.criteria)

        async def graded(text: str) -> float | None:
            return margin_of(await asking.ask(GradeQuestion(task, chosen, text, key=("exam", place))))

        own, *others = await asyncio.gather(*map(graded, texts))
        above = [_above(own, other) for other in others if own is not None and other is not None]
        return _Written(True, kept, sum(above) / len(above) if above else None)

    found = await asyncio.gather(*(written(place, case) for place, case in enumerate(cases)))
    shares = {
        "readable": _share([each.readable for each in found]),
        "criteria from the document": _share([each.kept for each in found]),
    }
    return QuestionExam(order=_share([each.order for each in found]), shares=_known(shares))


def _add_claims(found: dict[str, QuestionExam], answered: Mapping[str, Sequence[Answered]]) -> None:
    """What answers that speak to the grader or praise themselves still meet, by the grade alone and with the guard."""
    grade, guard = found.get("grade"), found.get("guard")
    if grade is None or grade.threshold is None:
        return
    refused = {}
    if guard is not None and guard.threshold is not None:
        refused = {
            each.canary.shown: each.margin >= guard.threshold
            for each in answered["guard"]
            if each.margin is not None
        }
    claims = {
        each.canary.shown: each.margin >= grade.threshold
        for each in answered["grade"]
        if each.canary.kind in CLAIMS and each.margin is not None
    }
    met = list(claims.values())
    left = [hit and not refused[claim] for claim, hit in claims.items() if claim in refused]
    shares = {"claims met": _share(met), "claims met, with the guard": _share(left)}
    found["grade"] = grade.model_copy(update={"shares": grade.shares | _known(shares)})
