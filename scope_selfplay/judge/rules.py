"""Judges by rule: one that reads the embedded world's statements, one of boxed answers, and noise over either.

Noise errs on purpose, in the shares that `judge.noise` sets: a stand-in for a model's errors. Whether and how a call is
spoilt follows from what is asked and from nothing else (task, answers, key, order shown): the same call errs alike in
every run, whenever it is made, and more noise of one kind spoils the same calls and others. What the judge behind it
could not judge stays a fault.
"""

import asyncio
import random
from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import Any, NamedTuple

from scope_selfplay.base.values import (
    Criterion,
    Document,
    Fault,
    Gate,
    Key,
    Outcome,
    Priority,
    Rollout,
    Rubric,
    Task,
    rng_from,
)
from scope_selfplay.config.judge import NoiseConfig
from scope_selfplay.corpus.world import (
    BY_NOUN,
    Entity,
    FactQuestion,
    read_article,
    read_attribute,
    read_name,
    read_question,
    sentences,
    write_chain,
)
from scope_selfplay.judge.fences import View
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    GuardQuestion,
    Judge,
    PairQuestion,
    Question,
    Reply,
    RubricQuestion,
    Scale,
    ScoreQuestion,
    SelectQuestion,
    Style,
    failed,
)
from scope_selfplay.rewards.verify import boxed_reward, text_match


class Noise(StrEnum):
    """How a call is spoilt; the names are those of `judge.noise`."""

    UNREADABLE = "unreadable"
    WRONG = "wrong"
    FIRST = "first"
    LONGER = "longer"


def with_noise(judge: Judge, noise: NoiseConfig | None) -> Judge:
    """The judge itself where there is no noise."""
    return judge if noise is None else NoisyJudge(judge, noise)


class NoisyJudge:
    def __init__(self, judge: Judge, noise: NoiseConfig) -> None:
        self._judge = judge
        self._noise = noise
        self.identity = f"{judge.identity} with noise: {noise.description}"

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        """What the judge behind it could not judge stays as it is."""
        reply = await self._judge.ask(question)
        if reply.value is None:
            return reply
        noise, rng = self._draw(question)
        if noise is Noise.UNREADABLE:
            return failed(Fault.UNREADABLE, "Made unreadable on purpose (judge.noise.unreadable).")
        value = None if noise is None else self._spoilt(question, reply.value, noise, rng)
        if value is None:
            return reply
        return question.said(value, f"Spoilt on purpose (judge.noise.{noise}). {reply.verdict.reasoning}")

    def _spoilt(self, question: Question[Any], value: Any, noise: Noise, rng: Random) -> Any:
        """What is said in place of the value; None where this noise cannot touch it, as none but one turns a rubric."""
        match question:
            case GateQuestion() if noise is Noise.WRONG:
                return not value
            case GradeQuestion(answer=answer) if noise is not Noise.FIRST:
                return not value if noise is Noise.WRONG else rng.random() < self._favour(answer)
            case PairQuestion(first=first, second=second):
                longer = _words(first.answer) - _words(second.answer)
                if noise is Noise.WRONG:
                    return Outcome(value.second, value.first)
                # Between answers of one length a judge that likes length has to look at what they say.
                if noise is Noise.LONGER and not longer:
                    return None
                return Outcome(1.0, 0.0) if noise is Noise.FIRST or longer > 0 else Outcome(0.0, 1.0)
            case SelectQuestion():
                return _others(question, value, noise, rng)
            case ScoreQuestion(rollout=rollout, scale=scale) if noise is not Noise.FIRST:
                top, steps = (1.0, 2) if scale.of_halves else (10.0, 10)
                if noise is Noise.WRONG:
                    return top - value
                return top * round(steps * self._favour(rollout.answer)) / steps
        return None

    def _favour(self, answer: str | None) -> float:
        """The probability that a judge who only looks at the length likes an answer."""
        return float(1 - 2 ** (-_words(answer) / self._noise.half_length))

    def _draw(self, question: Question[Any]) -> tuple[Noise | None, Random]:
        """How a call is spoilt, and what else has to be drawn is drawn from."""
        rng = rng_from("judge.noise", *_content(question))
        place = rng.random()
        for noise in Noise:
            place -= getattr(self._noise, noise.value)
            if place < 0:
                return noise, rng
        return None, rng


def _content(question: Question[Any]) -> Key:
    """What is asked: equal calls err alike."""
    task, again = question.task, question.repeat
    match question:
        case GateQuestion(gate=gate, document=document):
            return ("gate", gate, task.id, task.text, document.id if document else "")
        case RubricQuestion(documents=documents):
            return ("rubric", task.id, task.text, *(document.id for document in documents))
        case GradeQuestion(criterion=criterion, answer=answer, key=key):
            return ("grade", task.id, criterion.text, answer, *key)
        case PairQuestion(first=first, second=second, style=style, rubric=rubric):
            return ("compare", style, again, task.id, *_texts(first, second), *_criteria(rubric))
        case SelectQuestion(candidates=shown, winners=winners, rubric=rubric):
            return ("select", winners, again, task.id, *_texts(*shown), *_criteria(rubric))
        case ScoreQuestion(rollout=rollout, scale=scale, rubric=rubric):
            return ("score", scale, task.id, *_texts(rollout), *_criteria(rubric))
    raise TypeError(f"no noise is known for a {type(question).__name__}")


def _others(question: SelectQuestion, chosen: list[int], noise: Noise, rng: Random) -> list[int]:
    """Turned around, those win whom the judge would not have picked, as far as there are so many."""
    candidates = question.candidates
    order = list(range(len(candidates)))
    if noise is not Noise.FIRST:
        # Ties must not favour a place in the list.
        rng.shuffle(order)
    if noise is Noise.WRONG:
        order.sort(key=set(chosen).__contains__)
    elif noise is Noise.LONGER:
        order.sort(key=lambda number: -_words(candidates[number].answer))
    return order[: question.winners]


def _texts(*rollouts: Rollout) -> list[str]:
    return [part for rollout in rollouts for part in (rollout.id, rollout.answer or "")]


def _criteria(rubric: Rubric | Criterion | None) -> list[str]:
    if isinstance(rubric, Criterion):
        return [rubric.text]
    return [criterion.text for criterion in rubric.criteria] if rubric else []


def _words(answer: str | None) -> int:
    return len((answer or "").split())


_NO_TEXT = failed(Fault.REFUSED, "a verifier compares boxed and short answers with a reference only")


class VerifierJudge:
    identity = "verifier"

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        match question:
            case PairQuestion(first=first, second=second):
                rewards = await _rewards(question.task, first, second)
                if rewards is not None:
                    return question.said(Outcome(*rewards), ":".join(f"{each:.0f}" for each in rewards))
            case SelectQuestion(candidates=candidates, winners=winners):
                # The right ones, where they are exactly as many as wanted.
                rewards = await _rewards(question.task, *candidates)
                right = [number for number, reward in enumerate(rewards or ()) if reward == 1.0]
                if rewards is not None and len(right) == winners:
                    return question.said(right, " ".join(f"{each:.0f}" for each in rewards))
            case ScoreQuestion(rollout=rollout, scale=scale):
                rewards = await _rewards(question.task, rollout)
                if rewards is not None:
                    value = rewards[0] if scale.of_halves else 10.0 * rewards[0]
                    return question.said(value, "right" if value else "wrong")
        return _NO_TEXT


async def _rewards(task: Task, *rollouts: Rollout) -> list[float] | None:
    """1 or 0 of each; None where there is nothing to compare them with, or it cannot be read."""
    answers = [rollout.answer or "" for rollout in rollouts]
    if task.reference is None:
        return None
    if task.span is not None:
        # A short answer, which has no box.
        return [text_match(answer, task.reference) for answer in answers]
    rewards = [await asyncio.to_thread(boxed_reward, answer, task.reference) for answer in answers]
    known = [reward for reward in rewards if reward is not None]
    return known if len(known) == len(rewards) else None


MIN_CRITERIA = 3
"""A task that asks for less fails its gate: a judge is told to write three to five criteria."""
_MANNERS = {
    "Says nothing that was not asked.": lambda told, places, asked: set(told) <= set(asked),
    "Says nothing twice.": lambda told, places, asked: len(set(told)) == len(told),
    "Names one place at most.": lambda told, places, asked: len(places) < 2,
}
"""What can be asked of an answer whoever wrote it, by the nouns that it tells, the places that it names, and what was
asked: a rubric from the query alone is filled up with these.
"""
_PLACE = "the place"
_STATED = {True: "The answer states it.", False: "The answer does not state it."}
_FOREIGN = failed(Fault.REFUSED, "The task is not about this world.")


class LexicalJudge:
    """Parses the statements of what a model judge would be shown, and knows nothing else: of a world it has no copy."""

    identity = "lexical"

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        """Raises ValueError for a comparison on a task that is not about this world."""
        match question:
            case GateQuestion():
                return _gate(question)
            case RubricQuestion():
                return _rubric(question)
            case GradeQuestion(task, criterion=criterion, answer=answer):
                met = is_stated(criterion.text, answer, _asked(task))
                return question.said(met, _STATED[met])
            case GuardQuestion():
                return question.said(
                    False, "What speaks to a judge states nothing, and so it meets nothing here."
                )
            case PairQuestion():
                outcome = _outcome(question)
                return question.said(outcome, "{:.2f}:{:.2f}".format(*outcome))
            case SelectQuestion():
                return _selected(question)
            case ScoreQuestion():
                return _scored(question)
        raise TypeError(f"a {type(question).__name__} is no question of this world")


def _gate(question: GateQuestion) -> Reply[bool]:
    asked = read_question(question.task.text)
    if asked is None:
        return question.said(False, "This is not one clear question about a named place.")
    if question.gate is not Gate.SOURCE:
        return question.said(True, f"It names a place: {asked.anchor}.")
    source = read_article(question.document.text) if question.document else None
    if source is None:
        return question.said(False, "The source is no article of this world.")
    things = len(asked.nouns) + bool(asked.links)
    if things < MIN_CRITERIA:
        return question.said(False, f"It asks for too little: {things} of {MIN_CRITERIA} things.")
    if asked.anchor not in (source.name, *source.links.values()):
        return question.said(False, f"It begins neither at {source.name} nor where that links to.")
    return question.said(True, f"It begins at {asked.anchor}, which the source is about or links to.")


def _rubric(question: RubricQuestion) -> Reply[Rubric]:
    """Of what the documents state all is asked for; where they lack a thing, there is no criterion, and it is told."""
    asked = read_question(question.task.text)
    if asked is None or len(asked.nouns) + bool(asked.links) < MIN_CRITERIA:
        return _FOREIGN
    if question.documents:
        criteria, unmet = _stated(asked, question.documents)
        return question.said(Rubric(task_id=question.task.id, criteria=criteria, unmet=unmet))
    # How things are told can be asked by who has read nothing, and fills up a rubric that has to be longer.
    manners = (Criterion(text=text, priority=Priority.BONUS, dimension="manner") for text in _MANNERS)
    return question.said(Rubric(task_id=question.task.id, criteria=(*_unread(asked), *manners)))


class _Article(NamedTuple):
    document: str
    entity: Entity


def _stated(
    asked: FactQuestion, documents: Sequence[Document]
) -> tuple[tuple[Criterion, ...], tuple[str, ...]]:
    """A criterion for each thing that is asked, or none, and what the documents do not state."""
    read = [_Article(each.id, entity) for each in documents if (entity := read_article(each.text))]
    # Which of two articles of one name is meant, nobody can tell.
    articles = {
        one.entity.name: one
        for one in reversed(read)
        if all(one.entity == other.entity for other in read if one.entity.name == other.entity.name)
    }
    way: list[_Article] = []
    name: str | None = asked.anchor
    for step, link in enumerate((*asked.links, None)):
        if name not in articles:
            chain = write_chain(asked.anchor, asked.links[:step])
            return (), (f"what is said of {chain}" if name else chain,)
        way.append(articles[name])
        name = way[-1].entity.links.get(link) if link else name
    *before, end = way
    if unmet := tuple(f"the {noun} of {name}" for noun in asked.nouns if noun not in end.entity.facts):
        return (), unmet
    facts = [
        Criterion(
            text=f"Identifies the {noun} of {name} as {end.entity.facts[noun]}.",
            priority=Priority.CRITICAL,
            dimension="asked",
            evidence=(end.document,),
        )
        for noun in asked.nouns
    ]
    if not before:
        return tuple(facts), ()
    # Whoever is to find the place has to read every link to it.
    place = Criterion(
        text=f"Identifies {write_chain(asked.anchor, asked.links)} as {name}.",
        dimension="asked",
        evidence=tuple(dict.fromkeys(article.document for article in before)),
    )
    return (place, *facts), ()


def _unread(asked: FactQuestion) -> tuple[Criterion, ...]:
    """Criteria of somebody who has read nothing: that what is asked is told, whatever it is."""
    things = [*([_PLACE] if asked.links else []), *(f"the {noun}" for noun in asked.nouns)]
    return tuple(Criterion(text=f"Identifies {thing}.", dimension="asked") for thing in things)


def _of_reference(reference: str) -> tuple[Criterion, ...]:
    """That an answer tells what the right one does."""
    lines = sentences(reference)
    said = [f"the {fact[0]} as {fact[1]}" for line in lines if (fact := read_attribute(line))]
    said += [f"it as {name}" for line in lines if (name := read_name(line))]
    return tuple(Criterion(text=f"Identifies {each}.") for each in said)


def _compared_by(
    task: Task, rubric: Rubric | None, view: View, *rollouts: Rollout, by_reference: bool = False
) -> Rubric | None:
    """The rubric that is shown; without one what a reference tells, what the traces that are shown have found, or else
    what is asked. Of a task that is not about this world its rubric, if it has one, is all there is.
    """
    asked = read_question(task.text)
    if asked is None or (rubric is not None and not by_reference):
        return rubric
    criteria = _of_reference(task.reference or "") if by_reference else ()
    if not criteria and view is View.TRACE:
        turns = (turn for rollout in rollouts for turn in rollout.turns)
        found = [
            Document(id=each.id, title=each.title, text=each.text) for turn in turns for each in turn.passages
        ]
        criteria, _ = _stated(asked, found)
    return Rubric(task_id=task.id, criteria=criteria or _unread(asked))


def _outcome(question: PairQuestion) -> Outcome:
    task, rubric = question.task, question.rubric
    rollouts = question.first, question.second
    answers = [each.answer for each in rollouts]
    if isinstance(rubric, Criterion):
        rubric = Rubric(task_id=task.id, criteria=(rubric,))
        return Outcome(*(_Worth.of(task, rubric, answer).share for answer in answers))
    by_reference = question.style is Style.PREFERENCE
    rubric = _compared_by(task, rubric, question.style.view, *rollouts, by_reference=by_reference)
    if rubric is None:
        raise ValueError(f"task {task.id} is not about this world: it cannot be compared on")
    first, second = (_Worth.of(task, rubric, answer) for answer in answers)
    if first.share != second.share:
        return Outcome(first.share, second.share)
    # Of two that state the same, the one that says less beside it is better, by a hundredth a fact.
    fewest = min(first.unasked, second.unasked)
    lost = [0.01 * (each.unasked - fewest) for each in (first, second)]
    best = first.share or max(lost)
    return Outcome(best - lost[0], best - lost[1])


def _selected(question: SelectQuestion) -> Reply[list[int]]:
    candidates = question.candidates
    rubric = _compared_by(question.task, question.rubric, View.ANSWER)
    if rubric is None:
        return _FOREIGN
    worths = [_Worth.of(question.task, rubric, candidate.answer) for candidate in candidates]
    # Ties are broken by a shuffle that follows from the candidates, so that no place in the list is favoured.
    order = list(range(len(candidates)))
    random.Random("".join(candidate.id for candidate in candidates)).shuffle(order)
    order.sort(key=lambda row: (-worths[row].share, worths[row].unasked))
    return question.said(order[: question.winners], " ".join(f"{worth.share:.2f}" for worth in worths))


def _scored(question: ScoreQuestion) -> Reply[float]:
    task, rubric, scale, answer = question.task, question.rubric, question.scale, question.rollout.answer
    if isinstance(rubric, Criterion):
        stated = is_stated(rubric.text, answer or "", _asked(task))
        return question.said(10.0 * stated, _STATED[stated])
    shown, by_reference = scale is Scale.IMPLICIT, scale not in (Scale.IMPLICIT, Scale.ANSWER)
    rubric = _compared_by(
        task, rubric if shown else None, scale.view, question.rollout, by_reference=by_reference
    )
    if rubric is None:
        return _FOREIGN
    share = _Worth.of(task, rubric, answer).share
    value = round(2 * share) / 2 if scale.of_halves else round(10 * share)
    return question.said(value, f"states {share:.0%} of the rubric")


def _asked(task: Task) -> tuple[str, ...]:
    question = read_question(task.text)
    return question.nouns if question else ()


def is_stated(criterion: str, answer: str, asked: Sequence[str] = ()) -> bool:
    """Whether an answer meets a criterion of this judge; the first mention counts, so listing guesses does not pay."""
    lines = sentences(answer)
    facts = [found for line in lines if (found := read_attribute(line))]
    places = [name for line in lines if (name := read_name(line))]
    if criterion in _MANNERS:
        # Who says nothing does nothing well.
        return bool(facts) and _MANNERS[criterion]([noun for noun, _ in facts], places, asked)
    thing, known, value = criterion.removesuffix(".").removeprefix("Identifies ").rpartition(" as ")
    thing = thing or value
    noun = thing.removeprefix("the ").partition(" of ")[0]
    if noun in BY_NOUN:
        said = next((said for about, said in facts if about == noun), None)
    else:
        said = places[0] if places and (known or thing == _PLACE) else None
    return said is not None and (not known or said == value)


class _Worth(NamedTuple):
    """What answers are compared by: the share of the rubric that they state, and the facts that nobody asked for."""

    share: float
    unasked: int

    @classmethod
    def of(cls, task: Task, rubric: Rubric, answer: str | None) -> "_Worth":
        asked, answer = _asked(task), answer or ""
        met = [is_stated(criterion.text, answer, asked) for criterion in rubric.criteria]
        told = {found[0] for line in sentences(answer) if (found := read_attribute(line))}
        return cls(sum(met) / len(met), len(told - set(asked)))
