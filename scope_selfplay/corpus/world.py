"""A world: entities with facts and links, and the articles that state them.

Every world is a fresh assignment of facts to names, so nothing can be known by heart: what was true in the
worlds of the warm start is false in the world of a run.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.values import Document, Task, content_id, rng_from
from scope_selfplay.config.run import ARTICLES, HELD_OUT_ARTICLES, CorpusConfig

# One name is one token of the tiny policy, and so is one value: a fact is one thing to copy.
_STEMS = """Ald Bel Brin Cam Clar Cor Crow Dor Dun Eld Elm Esk Fal Fen Gar Glen Had Hal Hart Hol Ist Jor Kel Kes Kin
    Lang Lin Lor Mar Mel Mor Nor Oak Oth Pel Pen Quar Rav Red Rush Sel Stan Sut Tam Thorn Ul Ver Wen Yar Zel"""
_ENDINGS = "moor haven vale mere wick ford ton gate stead rock by combe ley minster thorpe well"

PLACES = tuple(stem + ending for stem in _STEMS.split() for ending in _ENDINGS.split())
_NAMES = frozenset(PLACES)
KINDS = tuple(
    f"{'an' if word[0] in 'ao' else 'a'} {word}"
    for word in "abbey bridge castle guild harbour library market mill observatory school theatre tower".split()
)
FOUNDERS = tuple(
    """Merrin Aldous Bertan Cassia Dorval Edmer Fiora Godric Hesper Ilaria Jocelin Kestrel Lambert Maris Nolan
    Odessa Percival Quentin Rosalind Sabine Tobias Ursula Valerian Wystan Xanthe Yolande Zelda Ambrose Beatrix
    Cyprian Delphine Evander Florian Griselda Horatio Isolde Justus Leontine Magnus Nerissa""".split()
)
YEARS = tuple(str(1103 + 19 * step) for step in range(40))
EMBLEMS = tuple(
    """heron badger otter falcon stag salmon raven hare lynx swan boar dolphin owl adder bear beetle crane eagle
    ferret fox goat hedgehog ibex jackdaw kingfisher lark marten newt osprey pike quail robin seal toad urchin
    viper weasel wolf wren stoat""".split()
)
PRODUCTS = tuple(
    """saffron linen amber honey cider parchment rope glass copper wool salt silk cheese lace indigo tin mustard
    leather candles barley ink pottery walnuts marble felt vinegar soap clocks paper pepper timber sails violins
    needles bricks garlic pearls hops slate wine""".split()
)
RIVERS = tuple(
    """Ysk Tamble Orrin Wey Lune Caddow Irth Mell Soar Tavy Esker Rill Dove Nadder Ouzel Kenn Arrow Teign Yarrow
    Blythe Cole Dane Ebble Frome Gade Hodder Ivel Kym Leam Meon Nene Otter Piddle Quoile Rother Stour Tees Usk
    Vyrnwy Wyre""".split()
)


class Attribute(NamedTuple):
    noun: str
    before: str
    values: tuple[str, ...]

    def sentence(self, value: str) -> str:
        return f"{self.before}{value}."


ATTRIBUTES = (
    Attribute("founder", "Its founder was ", FOUNDERS),
    Attribute("year", "Its first year was ", YEARS),
    Attribute("emblem", "Its emblem is the ", EMBLEMS),
    Attribute("product", "Its main product is ", PRODUCTS),
    Attribute("river", "Its river is the ", RIVERS),
)
BY_NOUN = {attribute.noun: attribute for attribute in ATTRIBUTES}
RELATIONS = ("partner", "rival", "sponsor", "neighbour", "heir", "patron", "ally", "twin")
LINKS = {relation: Attribute(relation, f"Its {relation} is ", PLACES) for relation in RELATIONS}
STATED = 3
"""Facts and links that an article states, of all there are: what can be asked about a place has to be read."""
VERBS = {"long_form_qa": "Report", "summarisation": "Summarise"}


@dataclass(frozen=True)
class FactQuestion:
    """What a task asks: facts of the entity at the end of a chain of links that starts at a named entity.

    `links` are in the order in which they are followed: ("partner", "rival") of X are X's partner's rival. Each occurs
    once, so that what follows a link in the text says what comes next.
    """

    nouns: tuple[str, ...]
    links: tuple[str, ...]
    anchor: str
    verb: str = "Report"

    @property
    def hops(self) -> int:
        return len(self.links)


def write_question(question: FactQuestion) -> str:
    """`Report the founder and the river of Aldmoor's rival.`"""
    *others, last = [f"the {noun}" for noun in question.nouns]
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"{question.verb} {listed} of {write_chain(question.anchor, question.links)}."


def write_chain(anchor: str, links: Sequence[str]) -> str:
    """`Aldmoor's partner's rival`"""
    return anchor + "".join(f"'s {relation}" for relation in links)


def write_answer(name: str, facts: Mapping[str, str]) -> str:
    """`Corvale. Its founder was Maris. Its river is the Mell.`"""
    return " ".join([f"{name}.", *(BY_NOUN[noun].sentence(value) for noun, value in facts.items())])


def read_question(text: str) -> FactQuestion | None:
    """The question in a task, or None where the text is not one clear question of this language."""
    verb, _, rest = text.strip().removesuffix(".").partition(" ")
    if verb not in VERBS.values() or not rest.startswith("the "):
        return None
    listed, _, chain = rest.partition(" of ")
    nouns = tuple(part.removeprefix("the ") for part in listed.replace(" and ", ", ").split(", "))
    if any(noun not in BY_NOUN for noun in nouns) or len(set(nouns)) != len(nouns):
        return None
    anchor, *links = chain.split("'s ")
    if not anchor or any(link not in RELATIONS for link in links) or len(set(links)) != len(links):
        return None
    question = FactQuestion(nouns, tuple(links), anchor, verb)
    # Only the exact wording counts, else "the founder and, founder" would slip through the splitting above.
    return question if write_question(question) == text.strip() else None


def sentences(text: str) -> list[str]:
    return [part.strip() + "." for part in text.replace("\n", " ").split(".") if part.strip()]


def read_attribute(sentence: str, attributes: Iterable[Attribute] = ATTRIBUTES) -> tuple[str, str] | None:
    """(noun, value) of a sentence such as `Its emblem is the heron.`, (relation, target) of one of LINKS."""
    for attribute in attributes:
        if sentence.startswith(attribute.before) and sentence.endswith("."):
            return attribute.noun, sentence[len(attribute.before) : -1]
    return None


def read_place(sentence: str) -> tuple[str, str] | None:
    """(name, kind) of `Aldmoor is a mill.`"""
    name, copula, kind = sentence.removesuffix(".").partition(" is ")
    return (name, kind) if copula and kind in KINDS else None


def read_name(sentence: str) -> str | None:
    """The name in `Corvale.`, by which an answer says what it is about."""
    name = sentence.removesuffix(".")
    return name if name in _NAMES else None


MOST_LINKS = 5
"""Of a held-out task."""
_TRIES = 10_000
"""Of a chain: an article states three links, so that there are at most 243 of five."""


class Entity(NamedTuple):
    name: str
    kind: str
    facts: dict[str, str]
    links: dict[str, str]


def walk(
    rng: random.Random, start: str, links: int, read: Callable[[str], Entity]
) -> list[tuple[str, Entity]]:
    """A chain of as many links from `start`, each as `read` finds it stated: the links and where they lead, in order.

    Each link occurs once, so that what follows it in a task says what comes next. Starts again where a place states
    none that is left. Raises ConfigError where no chain is found.
    """
    longest = 0
    for _ in range(_TRIES):
        path: list[tuple[str, Entity]] = []
        entity = read(start)
        while len(path) < links:
            left = [each for each in entity.links if each not in dict(path)]
            if not left:
                break
            link = rng.choice(left)
            entity = read(entity.links[link])
            path.append((link, entity))
        else:
            return path
        longest = max(longest, len(path))
    raise ConfigError(
        f"the embedded world: no chain of {links} links starts at {start}, found at most {longest}; expected articles "
        "that lead further. Use a run with corpus.path: embedded, or another benchmark"
    )


def make_documents(
    rng: random.Random, count: int, *, source: str, skip: Sequence[str] = ()
) -> list[Document]:
    """The articles of one world of `count` entities whose titles avoid `skip`; ids are `<source>-0000` onwards."""
    skipped = set(skip)
    free = [name for name in PLACES if name not in skipped]
    if not MOST_LINKS < count <= len(free):
        raise ValueError(
            f"{count} articles asked for; a world has more than {MOST_LINKS}, and {len(free)} names are free"
        )
    names = rng.sample(free, count)
    world = [make_entity(rng, name, names) for name in names]
    return [
        Document(id=f"{source}-{row:04d}", title=entity.name, text=write_article(rng, entity), source=source)
        for row, entity in enumerate(world)
    ]


def write_article(rng: random.Random, entity: Entity) -> str:
    lines = [BY_NOUN[noun].sentence(value) for noun, value in entity.facts.items()]
    lines += [LINKS[relation].sentence(target) for relation, target in entity.links.items()]
    rng.shuffle(lines)
    return " ".join([f"{entity.name} is {entity.kind}.", *lines])


def read_article(text: str) -> Entity | None:
    """The entity that an article describes; None where the text is not an article of this language."""
    first, *rest = sentences(text) or [""]
    place = read_place(first)
    if place is None:
        return None
    facts = dict(found for line in rest if (found := read_attribute(line)))
    links = dict(found for line in rest if (found := read_attribute(line, LINKS.values())))
    return Entity(*place, facts, links)


def make_entity(rng: random.Random, name: str, names: Sequence[str]) -> Entity:
    """An entity whose links lead to others of `names`, each to another one."""
    facts = {attribute.noun: rng.choice(attribute.values) for attribute in rng.sample(ATTRIBUTES, STATED)}
    others = [each for each in rng.sample(names, STATED + 1) if each != name][:STATED]
    links = dict(zip(rng.sample(RELATIONS, STATED), others, strict=True))
    return Entity(name, rng.choice(KINDS), facts, links)


HELD_OUT = "held-out"
"""`Document.source` of what the held-out tasks are made from."""


def embedded_documents(seed: int, settings: CorpusConfig) -> list[Document]:
    """Articles of two embedded worlds, one to train on and one for held-out tasks; no title occurs in both."""
    count = settings.sample or ARTICLES
    world = make_documents(rng_from(seed, "world"), count, source=f"world-{seed}")
    titles = [document.title for document in world]
    return world + make_documents(rng_from(seed, HELD_OUT), HELD_OUT_ARTICLES, source=HELD_OUT, skip=titles)


def embedded_tasks(seed: int, documents: Sequence[Document], count: int) -> list[Task]:
    """Tasks about the second world, as many of each number of links: no Challenger's taste decides what is measured.

    Chains of 1 to 5 links start at articles of their own; `documents` are those for held-out tasks. `evidence_ids` are
    the articles along a chain. Raises ConfigError where there are too few.
    """
    if count > len(documents):
        raise ConfigError(
            f"compare.given: {count} embedded tasks (compare.tasks) start at as many articles, found {len(documents)}; "
            "lower compare.tasks"
        )
    rng, tasks = rng_from(seed, HELD_OUT, "tasks"), []
    ids = {document.title: document.id for document in documents}
    world = {entity.name: entity for document in documents if (entity := read_article(document.text))}
    for name, entity in world.items():
        inside = {link: to for link, to in entity.links.items() if to in world}
        world[name] = entity._replace(links=inside)
    for row, start in enumerate(rng.sample(list(documents), count)):
        path = walk(rng, start.title, 1 + row % MOST_LINKS, world.__getitem__)
        links, (*_, end) = zip(*path, strict=True)
        nouns = tuple(rng.sample(list(end.facts), rng.choice([2, 3])))
        text = write_question(FactQuestion(nouns, links, start.title))
        tasks.append(
            Task(
                id=content_id("task", text),
                text=text,
                type="long_form_qa",
                document_id=start.id,
                evidence_ids=tuple(dict.fromkeys(ids[entity.name] for _, entity in path)),
                search_turns=0,
            )
        )
    return tasks


def task_family(task: Task) -> str:
    """The kind of task that a score is reported by: links to follow where they can be read, else type and searches."""
    question = read_question(task.text)
    if question is not None:
        return f"{question.hops} link{'' if question.hops == 1 else 's'}"
    return f"{task.type}, {task.search_turns} searches"
