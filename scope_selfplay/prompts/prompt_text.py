"""What a prompt's own words get wrong: what they must ask for, what they may not hold, and how long they are.

Tokens are counted by a model's tokenizer where one is given, else estimated as a quarter of the UTF-8 bytes, so
that a check needs no model and says the same everywhere. Over the wikipedia pack the estimate is 4 % above what
a vocabulary of 30,000 word pieces counts, and within a sixth for every single prompt; scripts of two or three
bytes a character are counted as dearer, as they are.
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from scope_selfplay.prompts.contracts import (
    CONTRACTS,
    GATE_EXAMPLES,
    GATE_ROLES,
    OUTPUTS,
    POLICY_ROLES,
    PromptRole,
)
from scope_selfplay.prompts.template import Anatomy, TemplateFault

CountTokens = Callable[[str], int]

_SPECIAL_TOKEN = re.compile(r"<\|[^<>|\s]{1,40}\|>|</?s>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>")
_SEARCH_CALL = re.compile(r"</?(?:search|tool_call|function_calls)>")
_SINGLE_BRACES = re.compile(r"(?<!\{)\{ ?([a-z_]+) ?\}(?!\})")
# Joiners are left out: Persian, Indic scripts and emoji need them.
_INVISIBLE = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)
_GROWING = ("task", "answer", "criterion")
"""From what changes least between calls to what changes most."""


def quarter_of_bytes(text: str) -> int:
    """Tokens of a text, estimated without a tokenizer."""
    return -(-len(text.encode()) // 4)


class Checking(NamedTuple):
    """How to check a file; a `taught` policy knows its protocol, only the contract's subject is required."""

    budget_tokens: int | None = None
    count_tokens: CountTokens = quarter_of_bytes
    taught: bool = False


def text_faults(role: PromptRole, body: str, anatomy: Anatomy, checking: Checking) -> Iterator[TemplateFault]:
    """Lines count from the body's first."""
    reading = OUTPUTS[CONTRACTS[role].output]
    missing = [text for text in reading.mentions if text not in anatomy.literal]
    if missing and not checking.taught:
        asked = f"never mentions {' or '.join(missing)}"
        yield TemplateFault(1, f"{asked}; ask for it, because the code reads {reading.parsed}")
    budget = CONTRACTS[role].budget_tokens if checking.budget_tokens is None else checking.budget_tokens
    tokens = checking.count_tokens(body)
    if tokens > budget:
        yield TemplateFault(
            1, f"takes about {tokens} tokens; a {role} prompt has {budget}: cut about {tokens - budget}"
        )
    if role in GATE_ROLES:
        yield from _example_faults(body)
    yield from _foreign_faults(role, body)
    yield from _order_faults(anatomy)


def _example_faults(body: str) -> Iterator[TemplateFault]:
    """An example is counted by its last line, a score alone; scores inside sentences are instructions."""
    lines = [line.strip() for line in body.split("\n")]
    for side, score in (("pass", "<score>1</score>"), ("fail", "<score>0</score>")):
        found = lines.count(score)
        if found < GATE_EXAMPLES:
            message = (
                f"shows {found} examples that {side}; a gate shows at least {GATE_EXAMPLES} on each side"
            )
            yield TemplateFault(1, f"{message}, each ended by {score} alone on a line")


def _foreign_faults(role: PromptRole, body: str) -> Iterator[TemplateFault]:
    """What belongs to a model family, to another template language, or to nobody's eyes."""
    for number, line in enumerate(body.split("\n"), start=1):
        for found in _SPECIAL_TOKEN.findall(line):
            advice = "the chat template writes those, so take it out"
            yield TemplateFault(number, f"holds {found}, a special token of some model family; {advice}")
        if role in POLICY_ROLES:
            for found in _SEARCH_CALL.findall(line)[:1]:
                advice = "write {{ search_syntax }}, which fits the model"
                yield TemplateFault(number, f"writes {found}, the search call of one model family; {advice}")
        for name in _SINGLE_BRACES.findall(line):
            if name in CONTRACTS[role].inputs:
                written = f"writes {{{name}}} in single braces, which stays as it is"
                yield TemplateFault(number, f"{written}; write {{{{ {name} }}}}")
        for found in _INVISIBLE.findall(line)[:1]:
            yield TemplateFault(number, f"holds the invisible character U+{ord(found):04X}; take it out")


def _order_faults(anatomy: Anatomy) -> Iterator[TemplateFault]:
    """Engines keep the common beginning of prompts: what changes most has to come last."""
    used = [name for name in _GROWING if name in anatomy.uses]
    for earlier, later in pairwise(used):
        if anatomy.uses[later] < anatomy.uses[earlier]:
            advice = f"put {{{{ {later} }}}} after it, so that calls share the longest beginning"
            yield TemplateFault(
                anatomy.uses[later], f"uses {{{{ {later} }}}} before {{{{ {earlier} }}}}; {advice}"
            )
