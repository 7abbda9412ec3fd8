"""What a teacher says on the way to a task or an answer: the traces that the tiny policy is warmed up on.

The teacher knows the world, so its turns are a list of texts; the episodes themselves turn them into token
rows, exactly as at run time. A careless teacher forgets links and facts: its pupil can do everything and does
it unreliably, which is what reinforcement learning is there to mend.
"""

import random
from collections.abc import Mapping
from typing import NamedTuple

from scope_selfplay.embedded.language import (
    ATTRIBUTES,
    BY_NOUN,
    RELATIONS,
    VERBS,
    FactQuestion,
    write_identity,
    write_link,
    write_place,
    write_question,
)
from scope_selfplay.embedded.world import Entity, all_names, make_entity, write_article

MAX_HOPS = 2
ORDER = [attribute.noun for attribute in ATTRIBUTES]


class Carelessness(NamedTuple):
    """How often the teacher errs: per fact, per link, per region left out, per odd task."""

    facts: Mapping[str, float]
    link: float
    region: float
    task: float


CAREFUL = Carelessness({}, 0.0, 0.65, 0.0)


class OpenWorld:
    """A world without end: an entity exists from the moment that somebody asks about it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names = all_names()
        self._entities: dict[str, Entity] = {}
        self._articles: dict[str, str] = {}

    def any_name(self) -> str:
        return self._rng.choice(self._names)

    def entity(self, name: str) -> Entity:
        if name not in self._entities:
            self._entities[name] = make_entity(self._rng, name, self._names)
            self._articles[name] = write_article(self._rng, self._entities[name])
        return self._entities[name]

    def article(self, name: str) -> str:
        self.entity(name)
        return self._articles[name]

    def follow(self, name: str, links: tuple[str, ...]) -> Entity:
        """The entity at the end of `links`, in the order in which they are followed."""
        for link in links:
            name = self.entity(name).links[link]
        return self.entity(name)


class SolverLesson(NamedTuple):
    question: str
    turns: list[str]


class ChallengerLesson(NamedTuple):
    name: str
    searches: int
    verb: str
    turns: list[str]


def solver_lesson(rng: random.Random, world: OpenWorld, care: Carelessness) -> SolverLesson:
    """A task with 0 to 2 links and one to three facts, and the turns of an answer to it."""
    anchor, hops = world.any_name(), rng.choices(range(MAX_HOPS + 1), [2, 4, 3])[0]
    links = tuple(rng.choice(RELATIONS) for _ in range(hops))
    nouns = tuple(rng.sample(list(world.follow(anchor, links).facts), _fact_count(rng, hops)))
    question = FactQuestion(nouns, links[::-1], anchor, rng.choice(list(VERBS.values())))
    turns = [f"<think> First {anchor}.</think>\n<search> {anchor}</search>"]
    name = anchor
    for link in links:
        if rng.random() < care.link:
            link = rng.choice([other for other in RELATIONS if other != link])
        name = world.entity(name).links[link]
        turns.append(_search_turn(link, name))
    answer = [write_identity(question.links, anchor, name)] if links else []
    answer += _stated_facts(rng, world.entity(name), nouns, care)
    if rng.random() >= care.region:
        answer.append(write_place(name, world.entity(name).region))
    turns.append(f"<think> Now the answer.</think>\n<answer> {' '.join(answer)}</answer>")
    return SolverLesson(write_question(question), turns)


def challenger_lesson(rng: random.Random, world: OpenWorld, care: Carelessness) -> ChallengerLesson:
    """One or two searches along links, and a task about where they led."""
    source, searches = world.any_name(), rng.choices([1, 2], [4, 3])[0]
    links = tuple(rng.choice(RELATIONS) for _ in range(searches))
    turns = [_search_turn(links[row], world.follow(source, links[: row + 1]).name) for row in range(searches)]
    asked = links
    if rng.random() < care.link:
        asked = links[: rng.randrange(searches + 1)]
    target = world.follow(source, asked)
    known = ORDER if rng.random() < care.task else list(target.facts)
    nouns = tuple(sorted(rng.sample(known, _fact_count(rng, len(asked))), key=ORDER.index))
    verb = rng.choice(list(VERBS.values()))
    task = write_question(FactQuestion(nouns, asked[::-1], source, verb))
    turns.append(f"<think> Ask of {target.name}.</think>\n<task> {task}</task>")
    return ChallengerLesson(source, searches, verb, turns)


def echo(rng: random.Random, world: OpenWorld) -> tuple[str, str]:
    """A list of names and the same list again: looking up what came after a word, in the easiest order."""
    names = " ".join(world.any_name() for _ in range(rng.randint(4, 12)))
    return f" {names}", names


def recital(rng: random.Random, world: OpenWorld) -> tuple[str, str]:
    """An article and all its sentences in another order: copying what belongs to a phrase."""
    name = world.any_name()
    entity = world.entity(name)
    lines = [BY_NOUN[noun].sentence(value) for noun, value in entity.facts.items()]
    lines += [write_link(relation, target) for relation, target in entity.links.items()]
    lines.append(write_place(name, entity.region))
    rng.shuffle(lines)
    return f"[1] {name}: {world.article(name)}", " ".join(lines)


def pairs(rng: random.Random, world: OpenWorld) -> tuple[str, str]:
    """Phrases with a name each, and the same pairs in another order: nothing but the phrase tells the name."""
    phrases = [attribute.before.strip() for attribute in ATTRIBUTES]
    phrases += [f"the {relation} of" for relation in RELATIONS]
    # Both links every time: they look alike in everything else, so this is where a pupil mixes them up.
    chosen = rng.sample(phrases, rng.randint(1, 4)) + [f"Its {relation} is" for relation in RELATIONS]
    rng.shuffle(chosen)
    lines = [f"{phrase} {world.any_name()}." for phrase in chosen]
    shown = " ".join(lines)
    rng.shuffle(lines)
    return f" {shown}", " ".join(lines)


def places(rng: random.Random, world: OpenWorld) -> tuple[str, str]:
    """Where several things lie, and the same in another order: the words alike, only the name tells the region."""
    names = {world.any_name() for _ in range(rng.randint(2, 6))}
    lines = [write_place(name, world.entity(name).region) for name in sorted(names)]
    rng.shuffle(lines)
    shown = " ".join(lines)
    rng.shuffle(lines)
    return f" {shown}", " ".join(lines)


def _search_turn(link: str, name: str) -> str:
    return f"<think> {write_link(link, name)}</think>\n<search> {name}</search>"


def _stated_facts(
    rng: random.Random, entity: Entity, nouns: tuple[str, ...], care: Carelessness
) -> list[str]:
    said: list[str] = []
    for noun in nouns:
        if noun not in entity.facts:
            continue
        if rng.random() >= care.facts.get(noun, 0.0):
            said.append(BY_NOUN[noun].sentence(entity.facts[noun]))
        elif rng.random() < 0.3:
            said.append(BY_NOUN[noun].sentence(rng.choice(BY_NOUN[noun].values)))
    return said


def _fact_count(rng: random.Random, hops: int) -> int:
    # A question without links needs two facts at least: its rubric has no link to name.
    return rng.choice([1, 2, 3]) if hops else rng.choice([2, 3])
