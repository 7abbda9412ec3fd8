"""The embedded world's judge: reads tasks and answers as text and checks them against the world's articles.

It knows nothing but its corpus, and gets nothing but text: what it cannot read, it rejects. It cannot judge
style, relevance in the wild, or any language but the embedded one.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scope_selfplay.embedded.language import (
    BY_NOUN,
    FactQuestion,
    read_attribute,
    read_name,
    read_place,
    read_question,
    sentences,
    write_chain,
    write_link,
)
from scope_selfplay.embedded.world import Entity, read_article
from scope_selfplay.gates import Gate
from scope_selfplay.judge.protocol import PointwiseScore, Scale, Selected, Style
from scope_selfplay.keys import Key, content_id
from scope_selfplay.schemas import (
    Comparison,
    Criterion,
    Document,
    Fault,
    Outcome,
    Priority,
    Rollout,
    Rubric,
    Task,
    Verdict,
)

MAX_CRITERIA = 5
MIN_CRITERIA = 3
"""A task that asks for less fails its gate: a judge is told to write three to five criteria."""
QUERY_CRITERIA = 5
"""Fewest criteria of a rubric that is written from the query alone (Tournament-GRPO)."""
_UNASKED = {"priority": Priority.BONUS, "dimension": "hidden"}
_STATED = {True: "The answer states it.", False: "The answer does not state it."}
_FOREIGN = Verdict(value=None, fault=Fault.REFUSED, reasoning="The task is not about this world.")


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

    async def gate(self, gate: Gate, task: Task, document: Document | None) -> Verdict:
        found = self._resolve(task.text)
        if isinstance(found, str):
            return Verdict(value=False, reasoning=found)
        if gate is Gate.SOURCE:
            return _source_verdict(found, document)
        names = " -> ".join(entity.name for entity in found.path)
        return Verdict(value=True, reasoning=f"Every entity can be found: {names}.")

    async def write_rubric(self, task: Task, documents: Sequence[Document]) -> Rubric | None:
        rubric = self._rubric(task, documents, least=0 if documents else QUERY_CRITERIA)
        return rubric if rubric and len(rubric.criteria) >= MIN_CRITERIA else None

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

    async def grade(self, task: Task, criterion: Criterion, answer: str, *, key: Key) -> Verdict:
        met = is_stated(criterion.text, answer)
        return Verdict(value=met, reasoning=_STATED[met])

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
        if isinstance(rubric, Criterion):
            rubric = Rubric(task_id=task.id, criteria=(rubric,))
            outcome = Outcome(*(_share_stated(rubric, rollout.answer) for rollout in (first, second)))
        else:
            rubric = rubric or self._rubric(task)
            if rubric is None:
                raise ValueError(f"task {task.id} is not about this world: it cannot be compared on")
            outcome = _outcome(*(_Worth.of(task, rubric, rollout.answer) for rollout in (first, second)))
        verdict = Verdict(
            value=outcome.first >= outcome.second, reasoning=f"{outcome.first:.2f}:{outcome.second:.2f}"
        )
        return Comparison(first_id=first.id, second_id=second.id, outcome=outcome, verdict=verdict)

    async def select(
        self,
        task: Task,
        rubric: Rubric | None,
        candidates: Sequence[Rollout],
        winners: int,
        *,
        repeat: int = 0,
    ) -> Selected:
        rubric = rubric or self._rubric(task)
        if rubric is None:
            return Selected(None, _FOREIGN)
        worths = [_Worth.of(task, rubric, candidate.answer) for candidate in candidates]
        # Ties are broken by a shuffle that follows from the candidates, so that no place in the list is favoured.
        order = list(range(len(candidates)))
        random.Random("".join(candidate.id for candidate in candidates)).shuffle(order)
        verdict = Verdict(value=True, reasoning=" ".join(f"{worth.share:.2f}" for worth in worths))
        return Selected(
            sorted(order, key=lambda row: (-worths[row].share, worths[row].unasked))[:winners], verdict
        )

    async def score(
        self, task: Task, rollout: Rollout, rubric: Rubric | Criterion | None, *, scale: Scale
    ) -> PointwiseScore:
        if isinstance(rubric, Criterion):
            stated = is_stated(rubric.text, rollout.answer or "")
            return PointwiseScore(10.0 * stated, Verdict(value=True, reasoning=_STATED[stated]))
        rubric = rubric or self._rubric(task)
        if rubric is None:
            return PointwiseScore(None, _FOREIGN)
        share = _share_stated(rubric, rollout.answer)
        value = round(2 * share) / 2 if scale.of_halves else round(10 * share)
        return PointwiseScore(value, Verdict(value=True, reasoning=f"states {share:.0%} of the rubric"))

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


def _source_verdict(found: _Resolved, document: Document | None) -> Verdict:
    source = read_article(document.text) if document else None
    if source is None:
        return Verdict(value=False, reasoning="The source is no article of this world.")
    near = {source.name, *source.links.values()}
    if not found.known:
        return Verdict(value=False, reasoning=f"Nothing that it asks about {found.path[-1].name} is known.")
    if found.asked < MIN_CRITERIA:
        return Verdict(
            value=False, reasoning=f"It asks for too little: {found.asked} of {MIN_CRITERIA} things."
        )
    touched = [entity.name for entity in found.path if entity.name in near]
    reasoning = f"Nothing in the task is about {source.name} or what it links to."
    if touched:
        reasoning = f"The task is about {touched[0]}, which the source is about or links to."
    return Verdict(value=bool(touched), reasoning=reasoning)
