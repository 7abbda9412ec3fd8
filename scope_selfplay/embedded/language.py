"""The plain language of the embedded world, written and read: sentences, tasks, answers.

`write_*` and `read_*` are inverse to each other (a test walks all families). Reading works by fixed prefixes
and suffixes, so it is linear in the text and cannot be confused by what stands between.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from scope_selfplay.embedded import pools


class Attribute(NamedTuple):
    noun: str
    before: str
    after: str
    values: tuple[str, ...]

    def sentence(self, value: str) -> str:
        return f"{self.before}{value}{self.after}."


ATTRIBUTES = (
    Attribute("founder", "Its founder was ", "", pools.FOUNDERS),
    Attribute("year", "Its first year was ", "", pools.YEARS),
    Attribute("emblem", "Its emblem is the ", "", pools.EMBLEMS),
    Attribute("product", "Its main product is ", "", pools.PRODUCTS),
    Attribute("treasury", "Its treasury holds ", " crowns", pools.AMOUNTS),
    Attribute("river", "Its river is the ", "", pools.RIVERS),
    Attribute("patron", "Its patron is ", "", pools.PATRONS),
    Attribute("motto", "Its motto praises ", "", pools.MOTTOS),
)
BY_NOUN = {attribute.noun: attribute for attribute in ATTRIBUTES}
RELATIONS = ("partner", "rival")
VERBS = {"long_form_qa": "Report", "summarisation": "Summarise"}


class FactQuestion(NamedTuple):
    """What a task asks: facts of the entity at the end of a chain of links that starts at a named entity.

    `links` reads as the task does, nearest to the asked entity first: ("rival", "partner") of X is the rival of
    the partner of X.
    """

    nouns: tuple[str, ...]
    links: tuple[str, ...]
    anchor: str
    verb: str = "Report"

    @property
    def hops(self) -> int:
        return len(self.links)


def write_place(name: str, region: str) -> str:
    return f"{name} lies in {region}."


def write_link(relation: str, target: str) -> str:
    return f"Its {relation} is {target}."


def write_question(question: FactQuestion) -> str:
    """`Report the founder and the river of the rival of Aldmoor Mill.`"""
    return f"{question.verb} {_listed(question.nouns)} of {_chain(question.links, question.anchor)}."


def write_identity(links: Sequence[str], anchor: str, target: str) -> str:
    """`The rival of Aldmoor Mill is Corvale Abbey.`"""
    return f"The {_chain(links, anchor).removeprefix('the ')} is {target}."


def read_question(text: str) -> FactQuestion | None:
    """The question in a task, or None where the text is not one clear question of this language."""
    verb, _, rest = text.strip().removesuffix(".").partition(" ")
    if verb not in VERBS.values() or not rest.startswith("the "):
        return None
    # Split once: cutting link after link off the front would read a long chain again for every link.
    listed, *chain = rest.split(" of ")
    nouns = tuple(part.removeprefix("the ") for part in listed.replace(" and ", ", ").split(", "))
    if not chain or any(noun not in BY_NOUN for noun in nouns) or len(set(nouns)) != len(nouns):
        return None
    links = [part.removeprefix("the ") for part in takewhile(lambda part: part.startswith("the "), chain)]
    if len(links) == len(chain) or any(link not in RELATIONS for link in links):
        return None
    question = FactQuestion(nouns, tuple(links), " of ".join(chain[len(links) :]), verb)
    # Only the exact wording counts, else "the founder and, founder" would slip through the splitting above.
    return question if write_question(question) == text.strip() else None


def sentences(text: str) -> list[str]:
    return [part.strip() + "." for part in text.replace("\n", " ").split(".") if part.strip()]


def read_attribute(sentence: str) -> tuple[str, str] | None:
    """(noun, value) of a sentence such as `Its emblem is the heron.`"""
    for attribute in ATTRIBUTES:
        if sentence.startswith(attribute.before) and sentence.endswith(attribute.after + "."):
            return attribute.noun, sentence[len(attribute.before) : -len(attribute.after) - 1]
    return None


def read_link(sentence: str) -> tuple[str, str] | None:
    """(relation, target) of a sentence such as `Its rival is Corvale Abbey.`"""
    for relation in RELATIONS:
        before = f"Its {relation} is "
        if sentence.startswith(before):
            return relation, sentence[len(before) : -1]
    return None


def read_place(sentence: str) -> tuple[str, str] | None:
    """(name, region) of `Aldmoor Mill lies in Vessia.`"""
    name, lies, region = sentence.removesuffix(".").partition(" lies in ")
    return (name, region) if lies else None


def _listed(nouns: Sequence[str]) -> str:
    each = [f"the {noun}" for noun in nouns]
    return each[0] if len(each) == 1 else ", ".join(each[:-1]) + " and " + each[-1]


def _chain(links: Sequence[str], anchor: str) -> str:
    return "".join(f"the {relation} of " for relation in links) + anchor
