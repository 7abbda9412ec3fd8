"""What a teacher says on the way to a task or an answer: the traces that the tiny policy is warmed up on.

The teacher knows the world, so its turns are a list of texts; the episodes themselves turn them into token rows, just
as at run time. Each thought says the chain again as far as it is known, and one link more: what comes next can then be
read off the task, whatever the depth, so that one step looks like the next.

A Solver's teacher who gives up ends the chain on the way and answers about the place where it is; a Challenger's who
misreads says the name of another link of the article, and asks for a chain that no article states. Their pupil can do
everything and does it unreliably, the more so the longer the chain, which is what reinforcement learning is there to
mend. An error is never the right answer to another task: a Solver's teacher who took the wrong link would teach one.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scope_selfplay.corpus.world import (
    ATTRIBUTES,
    KINDS,
    PLACES,
    RELATIONS,
    VERBS,
    Entity,
    FactQuestion,
    make_entity,
    walk,
    write_answer,
    write_article,
    write_chain,
    write_question,
)

SOLVER_HOPS = (1, 3, 3, 3, 2, 2)
MOST_SEARCHES = 4


@dataclass(frozen=True)
class Habits:
    """How a teacher errs: `gives_up` are log-odds by the kind of place, `tiring` what every further link adds to them.

    `facts`: the share of asked facts that are forgotten; `unasked`: of the others, those that are said all the same.
    `misreads`: how often a Challenger does so at each of its searches; `shortens`: asks for less than it has found.
    """

    gives_up: Mapping[str, float] = field(default_factory=dict)
    tiring: float = 0.0
    facts: float = 0.0
    unasked: float = 0.0
    misreads: Sequence[float] = ()
    shortens: float = 0.15

    def stops(self, rng: random.Random, kind: str, hop: int) -> bool:
        if not self.gives_up:
            return False
        odds = self.gives_up[kind] + self.tiring * hop
        return rng.random() < 1 / (1 + math.exp(-odds))


CAREFUL = Habits()


def unreliable(first: float, last: float, tiring: float, misreads: Sequence[float]) -> Habits:
    """Log-odds of giving up from `first` to `last` over the kinds of places."""
    steps = len(KINDS) - 1
    odds = {kind: first + (last - first) * row / steps for row, kind in enumerate(KINDS)}
    return Habits(odds, tiring, misreads=misreads)


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

    def walk(self, anchor: str, links: int) -> list[tuple[str, Entity]]:
        return walk(self._rng, anchor, links, self.entity)


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
    path = world.walk(anchor, depth)
    links = tuple(link for link, _ in path)
    # Of a place that is named more has to be asked: nobody has to find it.
    end = path[-1][1] if path else world.entity(anchor)
    nouns = tuple(rng.sample(list(end.facts), rng.choice([2, 3]) if path else 3))
    question = FactQuestion(nouns, links, anchor, rng.choice(list(VERBS.values())))
    turns = [f"<think> First {anchor}.</think>\n<search> {anchor}</search>"]
    place, known, careful = world.entity(anchor), 0, rng.randrange(depth) if depth and habits.gives_up else 0
    while known < depth and (known < careful or not habits.stops(rng, place.kind, known)):
        place, known = path[known][1], known + 1
        turns.append(search_turn(anchor, links[:known], place.name))
    # Who is at another place than the one that is asked about tells of it what it has to tell.
    wanted = nouns if known == depth else tuple(place.facts)[: len(nouns)]
    told = {noun: place.facts[noun] for noun in wanted if rng.random() >= habits.facts}
    if habits.unasked:
        rest = (noun for noun in place.facts if noun not in wanted and rng.random() < habits.unasked)
        told |= {noun: place.facts[noun] for noun in rest}
    thought = write_chain(anchor, links[:known])
    turns.append(f"<think> {thought}.</think>\n<answer> {write_answer(place.name, told)}</answer>")
    return SolverLesson(write_question(question), turns, careful + 1 if careful else 0)


def challenger_lesson(rng: random.Random, world: OpenWorld, habits: Habits) -> ChallengerLesson:
    """As many searches along links as are assigned, and a task about where they led, or about a place on the way."""
    source, searches = world.any_name(), rng.randint(1, MOST_SEARCHES)
    path = world.walk(source, searches)
    links, places = [link for link, _ in path], [world.entity(source), *(place for _, place in path)]
    for hop, misreads in enumerate(habits.misreads[:searches]):
        others = [link for link in places[hop].links if link not in links]
        if others and rng.random() < misreads:
            links[hop] = rng.choice(others)
    turns = [search_turn(source, links[: row + 1], place.name) for row, (_, place) in enumerate(path)]
    depth = rng.randint(1, searches) if rng.random() < habits.shortens else searches
    verb = rng.choice(list(VERBS.values()))
    nouns = tuple(rng.sample(list(places[depth].facts), rng.choice([2, 3])))
    task = write_question(FactQuestion(nouns, tuple(links[:depth]), source, verb))
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
    name = world.any_name()
    facts = world.entity(name).facts
    nouns = tuple(rng.sample(list(facts), rng.randint(1, len(facts))))
    question = write_question(FactQuestion(nouns, (), name, rng.choice(list(VERBS.values()))))
    return f" {question} [1] {name}: {world.article(name)}", write_answer(
        name, {noun: facts[noun] for noun in nouns}
    )


def search_turn(anchor: str, links: Sequence[str], name: str) -> str:
    """What was found at the end of `links`, and the search for it."""
    return f"<think> {write_chain(anchor, links)} is {name}.</think>\n<search> {name}</search>"
