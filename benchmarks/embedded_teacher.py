"""What a teacher says on the way to a task or an answer: the traces that the tiny policy is warmed up on.

The teacher knows the world, so its turns are a list of texts; the episodes themselves turn them into token rows, just
as at run time. Each thought says the chain again as far as it is known, and one link more: what comes next can then be
read off the task, whatever the depth, so that one step looks like the next.

A teacher who gives up ends the chain on the way and answers about the place where it is. Its pupil can do everything
and does it unreliably, the more so the longer the chain, which is what reinforcement learning is there to mend. An
error is never the right answer to another task: a teacher who took the wrong link would teach one.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scope_selfplay.corpus.world import (
    ATTRIBUTES,
    KINDS,
    PLACES,
    RELATIONS,
    VERBS,
    Entity,
    FactQuestion,
    any_nouns,
    make_entity,
    question_about,
    write_answer,
    write_article,
    write_chain,
    write_question,
)

MAX_HOPS = 5
SOLVER_HOPS = (1, 3, 3, 3, 2, 2)
CHALLENGER_HOPS = (8, 46, 26, 12, 6, 2)
NOUNS = [attribute.noun for attribute in ATTRIBUTES]


@dataclass(frozen=True)
class Habits:
    """How a teacher errs: `gives_up` are log-odds by the kind of place, `tiring` what every further link adds to them.

    `facts`: the share of asked facts that are forgotten; `unasked`: of the others, those that are said all the same.
    """

    gives_up: Mapping[str, float] = field(default_factory=dict)
    tiring: float = 0.0
    facts: float = 0.0
    unasked: float = 0.0

    def stops(self, rng: random.Random, kind: str, hop: int) -> bool:
        if not self.gives_up:
            return False
        odds = self.gives_up[kind] + self.tiring * hop
        return rng.random() < 1 / (1 + math.exp(-odds))


CAREFUL = Habits()


def unreliable(first: float, last: float, tiring: float, facts: float = 0.0) -> Habits:
    """Log-odds of giving up from `first` to `last` over the kinds of places."""
    steps = len(KINDS) - 1
    return Habits(
        {kind: first + (last - first) * row / steps for row, kind in enumerate(KINDS)}, tiring, facts
    )


class OpenWorld:
    """A world without end: an entity exists from the moment that somebody asks about it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._entities: dict[str, Entity] = {}
        self._articles: dict[str, str] = {}

    def any_name(self) -> str:
        return self._rng.choice(PLACES)

    def entity(self, name: str) -> Entity:
        if name not in self._entities:
            self._entities[name] = make_entity(self._rng, name, PLACES)
            self._articles[name] = write_article(self._rng, self._entities[name])
        return self._entities[name]

    def article(self, name: str) -> str:
        self.entity(name)
        return self._articles[name]

    def follow(self, name: str, links: Sequence[str]) -> Entity:
        """The entity at the end of `links`, in the order in which they are followed."""
        for link in links:
            name = self.entity(name).links[link]
        return self.entity(name)


class SolverLesson(NamedTuple):
    """`unlearnt`: the first turns are there to be read alone."""

    question: str
    turns: list[str]
    unlearnt: int = 0


class ChallengerLesson(NamedTuple):
    name: str
    searches: int
    verb: str
    turns: list[str]


def solver_lesson(
    rng: random.Random, world: OpenWorld, habits: Habits, hops: Sequence[float] = SOLVER_HOPS
) -> SolverLesson:
    """A task with 0 to 5 links and its answer, turn by turn.

    A teacher who gives up goes on to a random place first, without a word to learn from: else hardly any lesson would
    get to where the chain is long, and its pupil would give up everywhere alike.
    """
    anchor, depth = world.any_name(), rng.choices(range(len(hops)), hops)[0]
    question = replace(question_about(rng, anchor, depth), verb=rng.choice(list(VERBS.values())))
    links, nouns = question.links, question.nouns
    turns = [f"<think> First {anchor}.</think>\n<search> {anchor}</search>"]
    name, known, careful = anchor, 0, rng.randrange(depth) if depth and habits.gives_up else 0
    while known < depth and (known < careful or not habits.stops(rng, world.entity(name).kind, known)):
        name, known = world.entity(name).links[links[known]], known + 1
        turns.append(search_turn(anchor, links[:known], name))
    facts = world.entity(name).facts
    told = {noun: facts[noun] for noun in nouns if rng.random() >= habits.facts}
    if habits.unasked:
        told |= {noun: facts[noun] for noun in NOUNS if noun not in nouns and rng.random() < habits.unasked}
    thought = write_chain(anchor, links[:known])
    turns.append(f"<think> {thought}.</think>\n<answer> {write_answer(name, told)}</answer>")
    return SolverLesson(write_question(question), turns, careful + 1 if careful else 0)


def challenger_lesson(
    rng: random.Random, world: OpenWorld, hops: Sequence[float] = CHALLENGER_HOPS
) -> ChallengerLesson:
    """One or two searches along links, and a task whose chain begins with what was walked, or ends on the way."""
    source, searches = world.any_name(), rng.choices([1, 2], [4, 3])[0]
    walked = tuple(rng.sample(RELATIONS, MAX_HOPS))
    steps = [walked[: row + 1] for row in range(searches)]
    turns = [search_turn(source, links, world.follow(source, links).name) for links in steps]
    depth = rng.choices(range(len(hops)), hops)[0]
    links = walked[:depth]
    verb = rng.choice(list(VERBS.values()))
    task = write_question(FactQuestion(any_nouns(rng, depth), links, source, verb))
    turns.append(f"<think> Ask of {source}.</think>\n<task> {task}</task>")
    return ChallengerLesson(source, searches, verb, turns)


def echo(rng: random.Random, world: OpenWorld) -> tuple[str, str]:
    """A list of words and the same list again: looking up what came after a word, in the easiest order."""
    words = " ".join(any_word(rng, world) for _ in range(rng.randint(4, 16)))
    return f" {words}", words


def pairs(rng: random.Random, world: OpenWorld) -> tuple[str, str]:
    """Phrases with a word each, and the same pairs in another order: nothing but the phrase tells the word."""
    phrases = [attribute.before.strip() for attribute in ATTRIBUTES]
    phrases += [f"Its {relation} is" for relation in RELATIONS]
    chosen = rng.sample(phrases, rng.randint(3, len(phrases)))
    lines = [f"{phrase} {any_word(rng, world)}." for phrase in chosen]
    shown = " ".join(lines)
    rng.shuffle(lines)
    return f" {shown}", " ".join(lines)


def any_word(rng: random.Random, world: OpenWorld) -> str:
    """A name, or a value of any attribute."""
    return world.any_name() if rng.random() < 0.3 else rng.choice(rng.choice(ATTRIBUTES).values)


def choice(rng: random.Random, world: OpenWorld) -> tuple[str, str]:
    """A task without links and the article, and its answer: reading what is asked."""
    name, nouns = world.any_name(), tuple(rng.sample(NOUNS, rng.randint(1, 4)))
    question = write_question(FactQuestion(nouns, (), name, rng.choice(list(VERBS.values()))))
    facts = world.entity(name).facts
    return f" {question} [1] {name}: {world.article(name)}", write_answer(
        name, {noun: facts[noun] for noun in nouns}
    )


def search_turn(anchor: str, links: Sequence[str], name: str) -> str:
    """What was found at the end of `links`, and the search for it."""
    return f"<think> {write_chain(anchor, links)} is {name}.</think>\n<search> {name}</search>"
