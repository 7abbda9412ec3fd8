"""A judge by rule that errs on purpose, in the shares that `judge.noise` sets: a stand-in for a model's errors.

Whether and how a call is spoilt follows from what is asked and from nothing else (task, answers, key, order shown):
the same call errs alike in every run, whenever it is made, and more noise of one kind spoils the same calls and
others. What the judge behind it could not judge stays a fault.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, NamedTuple

from scope_selfplay.base.gates import Gate
from scope_selfplay.base.values import (
    Criterion,
    Document,
    Fault,
    Key,
    Outcome,
    Priority,
    Rollout,
    Rubric,
    Task,
    content_id,
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
    read_place,
    read_question,
    sentences,
    write_chain,
    write_link,
)
from scope_selfplay.judge.protocol import (
    GateQuestion,
    GradeQuestion,
    Judge,
    PairQuestion,
    Question,
    Reply,
    RubricQuestion,
    ScoreQuestion,
    SelectQuestion,
    failed,
)
from scope_selfplay.rewards.verify import boxed_reward


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


_NO_TEXT = failed(Fault.REFUSED, "a verifier compares boxed answers with a reference only")


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
    rewards = [await _reward(rollout.answer, task.reference) for rollout in rollouts]
    known = [reward for reward in rewards if reward is not None]
    return known if len(known) == len(rewards) else None


async def _reward(answer: str | None, reference: str | None) -> float | None:
    if reference is None:
        return None
    return 0.0 if answer is None else await asyncio.to_thread(boxed_reward, answer, reference)


MAX_CRITERIA = 5
MIN_CRITERIA = 3
"""A task that asks for less fails its gate: a judge is told to write three to five criteria."""
QUERY_CRITERIA = 5
"""Fewest criteria of a rubric that is written from the query alone (Tournament-GRPO)."""
_UNASKED = {"priority": Priority.BONUS, "dimension": "hidden"}
_STATED = {True: "The answer states it.", False: "The answer does not state it."}
_FOREIGN = failed(Fault.REFUSED, "The task is not about this world.")


@dataclass(frozen=True)
class _Resolved:
    """`path` leads from the named entity to the one that is asked about; `known` are those asked facts that it has."""

    question: FactQuestion
    path: list[Entity]
    known: tuple[str, ...]

    @property
    def asked(self) -> int:
        """The things that an answer can be right about: the facts, and the place where there is one to find."""
        return len(self.known) + bool(self.question.links)


class LexicalJudge:
    def __init__(self, documents: Sequence[Document]) -> None:
        self._entities: dict[str, Entity] = {}
        self._ambiguous: set[str] = set()
        for document in documents:
            entity = read_article(document.text)
            if entity is None:
                continue
            if entity.name in self._entities:
                self._ambiguous.add(entity.name)
            self._entities[entity.name] = entity
        self.identity = content_id("lexical", *sorted(document.text for document in documents))

    async def ask(self, question: Question[Any]) -> Reply[Any]:
        """Raises ValueError for a comparison on a task that is not about this world."""
        match question:
            case GateQuestion():
                return self._gate(question)
            case RubricQuestion(task, documents=documents):
                rubric = self._rubric(task, documents, least=0 if documents else QUERY_CRITERIA)
                if rubric is None or len(rubric.criteria) < MIN_CRITERIA:
                    return _FOREIGN
                return question.said(rubric)
            case GradeQuestion(criterion=criterion, answer=answer):
                met = is_stated(criterion.text, answer)
                return question.said(met, _STATED[met])
            case PairQuestion():
                outcome = self._outcome(question)
                return question.said(outcome, "{:.2f}:{:.2f}".format(*outcome))
            case SelectQuestion():
                return self._selected(question)
            case ScoreQuestion():
                return self._scored(question)
        raise TypeError(f"a {type(question).__name__} is no question of this world")

    def _gate(self, question: GateQuestion) -> Reply[bool]:
        found = self._resolve(question.task.text)
        if isinstance(found, str):
            return question.said(False, found)
        if question.gate is Gate.SOURCE:
            return _from_source(question, found)
        names = " -> ".join(entity.name for entity in found.path)
        return question.said(True, f"Every entity can be found: {names}.")

    def _rubric(self, task: Task, documents: Sequence[Document] = (), *, least: int = 0) -> Rubric | None:
        found = self._resolve(task.text)
        if isinstance(found, str) or not found.known:
            return None
        question, target = found.question, found.path[-1]
        asked = found.known[: MAX_CRITERIA - bool(question.links)]
        links = [_link_criterion(found, steps, documents) for steps in range(1, len(found.path))]
        criteria = [*links[-1:], *(_fact_criterion(target, noun, documents) for noun in asked)]
        # What nobody asked for fills up a rubric that must be longer: the way there, then the rest of the article.
        facts = (_fact_criterion(target, noun, documents) for noun in target.facts if noun not in found.known)
        rest = [*links[:-1], *facts]
        missing = max(0, least - len(criteria))
        criteria += [criterion.model_copy(update=_UNASKED) for criterion in rest[:missing]]
        unmet = tuple(f"the {noun} of {target.name}" for noun in question.nouns if noun not in asked)
        return Rubric(task_id=task.id, criteria=tuple(criteria), unmet=unmet)

    def _outcome(self, question: PairQuestion) -> Outcome:
        task, rubric = question.task, question.rubric
        answers = [question.first.answer, question.second.answer]
        if isinstance(rubric, Criterion):
            rubric = Rubric(task_id=task.id, criteria=(rubric,))
            return Outcome(*(_share_stated(rubric, answer) for answer in answers))
        rubric = rubric or self._rubric(task)
        if rubric is None:
            raise ValueError(f"task {task.id} is not about this world: it cannot be compared on")
        return _outcome(*(_Worth.of(task, rubric, answer) for answer in answers))

    def _selected(self, question: SelectQuestion) -> Reply[list[int]]:
        candidates, rubric = question.candidates, question.rubric or self._rubric(question.task)
        if rubric is None:
            return _FOREIGN
        worths = [_Worth.of(question.task, rubric, candidate.answer) for candidate in candidates]
        # Ties are broken by a shuffle that follows from the candidates, so that no place in the list is favoured.
        order = list(range(len(candidates)))
        random.Random("".join(candidate.id for candidate in candidates)).shuffle(order)
        order.sort(key=lambda row: (-worths[row].share, worths[row].unasked))
        return question.said(order[: question.winners], " ".join(f"{worth.share:.2f}" for worth in worths))

    def _scored(self, question: ScoreQuestion) -> Reply[float]:
        rubric, answer = question.rubric, question.rollout.answer
        if isinstance(rubric, Criterion):
            stated = is_stated(rubric.text, answer or "")
            return question.said(10.0 * stated, _STATED[stated])
        rubric = rubric or self._rubric(question.task)
        if rubric is None:
            return _FOREIGN
        share = _share_stated(rubric, answer)
        value = round(2 * share) / 2 if question.scale.of_halves else round(10 * share)
        return question.said(value, f"states {share:.0%} of the rubric")

    def _resolve(self, text: str) -> _Resolved | str:
        """Follow the task's chain through the world; a text says what is wrong with it."""
        question = read_question(text)
        if question is None:
            return "This is not one clear question about named entities."
        path: list[Entity] = []
        name = question.anchor
        for relation in (*question.links, None):
            if name not in self._entities:
                return f"There is no article about {name}."
            if name in self._ambiguous:
                return f"Several articles are called {name}."
            path.append(self._entities[name])
            if relation is not None:
                if relation not in path[-1].links:
                    return f"The article about {name} names no {relation}."
                name = path[-1].links[relation]
        return _Resolved(question, path, tuple(noun for noun in question.nouns if noun in path[-1].facts))


def is_stated(criterion: str, answer: str) -> bool:
    """Whether an answer states a criterion's fact; the first mention counts, so listing guesses does not pay."""
    value = criterion.removesuffix(".").rpartition(" as ")[2]
    noun = _noun(criterion)
    if noun in BY_NOUN:
        facts = (found for line in sentences(answer) if (found := read_attribute(line)))
        return next((said for about, said in facts if about == noun), None) == value
    return next((name for line in sentences(answer) if (name := read_name(line))), None) == value


def _noun(criterion: str) -> str:
    """What a criterion about a fact asks for; something that is no noun where it is about a place."""
    return criterion.removeprefix("Identifies ").removeprefix("the ").partition(" of ")[0]


def _fact_criterion(target: Entity, noun: str, documents: Sequence[Document]) -> Criterion:
    text = f"Identifies the {noun} of {target.name} as {target.facts[noun]}."
    stated = [(target.name, BY_NOUN[noun].sentence(target.facts[noun]))]
    evidence = _sources(stated, documents)
    return Criterion(text=text, priority=Priority.CRITICAL, dimension="asked", evidence=evidence)


def _link_criterion(found: _Resolved, steps: int, documents: Sequence[Document]) -> Criterion:
    """The place that so many links lead to; whoever is to find it there has to read every one of them."""
    links, path = found.question.links[:steps], found.path
    text = f"Identifies {write_chain(found.question.anchor, links)} as {path[steps].name}."
    ways = zip(path, links, path[1:], strict=False)
    evidence = _sources([(one.name, write_link(link, other.name)) for one, link, other in ways], documents)
    return Criterion(text=text, priority=Priority.IMPORTANT, dimension="asked", evidence=evidence)


def _sources(stated: Sequence[tuple[str, str]], documents: Sequence[Document]) -> tuple[str, ...] | None:
    """The documents that state all of (name, sentence), each in an article of that name; () where one is nowhere.

    None where a rubric is written without documents.
    """
    read = ((document.id, sentences(document.text)) for document in documents)
    articles = [(name, *found) for name, found in read if found]
    sources: list[str] = []
    for name, sentence in stated:
        found = [
            source
            for source, first, *rest in articles
            if (place := read_place(first)) and place[0] == name and sentence in rest
        ]
        if not found:
            return () if documents else None
        sources += [source for source in found if source not in sources]
    return tuple(sources)


def _share_stated(rubric: Rubric, answer: str | None) -> float:
    met = [is_stated(criterion.text, answer or "") for criterion in rubric.criteria]
    return sum(met) / len(met)


class _Worth(NamedTuple):
    """What answers are compared by: the share of the rubric that they state, and the facts that nobody asked for."""

    share: float
    unasked: int

    @classmethod
    def of(cls, task: Task, rubric: Rubric, answer: str | None) -> "_Worth":
        question = read_question(task.text)
        asked = {*(question.nouns if question else ()), *(_noun(each.text) for each in rubric.criteria)}
        told = {found[0] for line in sentences(answer or "") if (found := read_attribute(line))}
        return cls(_share_stated(rubric, answer), len(told - asked))


def _outcome(first: _Worth, second: _Worth) -> Outcome:
    """Of two that state the same, the one that says less beside it is better, by a hundredth a fact."""
    if first.share != second.share:
        return Outcome(first.share, second.share)
    fewest = min(first.unasked, second.unasked)
    lost = [0.01 * (each.unasked - fewest) for each in (first, second)]
    best = first.share or max(lost)
    return Outcome(best - lost[0], best - lost[1])


def _from_source(question: GateQuestion, found: _Resolved) -> Reply[bool]:
    source = read_article(question.document.text) if question.document else None
    if source is None:
        return question.said(False, "The source is no article of this world.")
    near = {source.name, *source.links.values()}
    if not found.known:
        return question.said(False, f"Nothing that it asks about {found.path[-1].name} is known.")
    if found.asked < MIN_CRITERIA:
        return question.said(False, f"It asks for too little: {found.asked} of {MIN_CRITERIA} things.")
    touched = [entity.name for entity in found.path if entity.name in near]
    if touched:
        return question.said(True, f"The task is about {touched[0]}, which the source is about or links to.")
    return question.said(False, f"Nothing in the task is about {source.name} or what it links to.")
