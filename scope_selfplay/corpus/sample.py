"""Sampling of a run's documents for its stages, and what task to write from each.

A corpus is `shuffled` once per run by the seed, whatever the order of the files. Every stage takes the next
documents that no earlier stage has taken, so its sample is a pure function of the seed and the ids already used.
Nothing is fixed in advance (task making does not know how many documents it will need), two stages can never
share a document, and a resumed run that passes the same ids takes the same documents again.
"""

import heapq
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.values import Document, seed_from
from scope_selfplay.corpus.formats import format_of
from scope_selfplay.corpus.screen import near_copies

Choice = TypeVar("Choice")
_LOOKED_AT, _SURE = 500, 0.7


@dataclass(frozen=True)
class TaskSource:
    """What one Challenger episode starts from."""

    document: Document
    task_type: str
    search_turns: int


def language_of(document: Document) -> str:
    """Its code, such as `de`: as the document says, else as py3langid is sure of it; "" where neither is there."""
    code = document.metadata.get("language", "")
    if re.fullmatch(r"[a-zA-Z]{2,3}(-[a-zA-Z0-9]{2,4}){0,2}", code):
        return code
    try:
        code, confidence = _identifier().classify(document.text[:_LOOKED_AT])
    except ImportError:
        return ""
    return code if confidence >= _SURE else ""


def task_language(wanted: str, document: Document) -> str:
    """The code, such as `de`, of the language in which a task about a document is written: `wanted`, the name of the
    domain's, else the document's. "" for a name without a code, `en` where nothing is known.
    """
    if wanted:
        return _CODES.get(wanted, "")
    return language_of(document).partition("-")[0].lower() or "en"


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


_NAMES = (
    "ar Arabic|az Azerbaijani|bg Bulgarian|bn Bengali|ca Catalan|cs Czech|da Danish|de German|el Greek|en English"
    "|es Spanish|et Estonian|eu Basque|fa Persian|fi Finnish|fr French|he Hebrew|hi Hindi|hr Croatian|hu Hungarian"
    "|hy Armenian|id Indonesian|it Italian|ja Japanese|ka Georgian|kk Kazakh|ko Korean|lt Lithuanian|lv Latvian"
    "|ms Malay|my Burmese|nb Norwegian|nl Dutch|no Norwegian|pl Polish|pt Portuguese|ro Romanian|ru Russian"
    "|sk Slovak|sl Slovenian|sr Serbian|sv Swedish|ta Tamil|th Thai|tr Turkish|uk Ukrainian|ur Urdu|uz Uzbek"
    "|vi Vietnamese|zh Chinese"
)
LANGUAGES = dict(each.split(" ") for each in _NAMES.split("|"))
"""Their codes with what they are called in a prompt."""
_CODES = {name: code for code, name in LANGUAGES.items()}
# As sites name translations: `de/guide.md`, `guide.de.md`, `guide_zh-CN.md`.
_TAG = rf"(?:{'|'.join(LANGUAGES)})(?:[-_][a-z]{{2,4}})?"
_TRANSLATED = re.compile(rf"(?:^|(?<=/)){_TAG}/|[._-]{_TAG}(?=\.\w+$)", re.IGNORECASE)
_OF_A_PAGE = 4
"""Held-out documents of one page, as long as there are others."""


def page_of(document_id: str) -> str:
    """What a document and its translations are of: a page of text, or a record."""
    name, _, part = document_id.partition("#")
    row = format_of(Path(name))
    return f"{name}#{part.partition('#')[0]}" if row and row.holds_records else _TRANSLATED.sub("", name)


def page_by_page(documents: Iterable[Document]) -> list[Document]:
    """The documents in an order of which any beginning is of few pages: some of the first, of the second, and so on."""
    pages, seen = dict[str, int](), Counter[str]()

    def place(document: Document) -> tuple[int, int]:
        page = page_of(document.id)
        seen[page] += 1
        return (seen[page] - 1) // _OF_A_PAGE, pages.setdefault(page, len(pages))

    return sorted(documents, key=place)


def kin_of(held: Collection[str], documents: Sequence[Document]) -> list[str]:
    """The ids of the other documents on the pages of these, and of near copies of anything there."""
    pages = {page_of(name) for name in held}
    copies = near_copies([document.text for document in documents])
    firsts = {copies.get(row, row) for row, document in enumerate(documents) if page_of(document.id) in pages}
    kin = (document.id for row, document in enumerate(documents) if copies.get(row, row) in firsts)
    return [name for name in kin if name not in held]


def shuffled(documents: Iterable[Document], *, seed: int) -> list[Document]:
    """The documents in the order of a hash of seed and id.

    Depends on the set of documents only: one that is added later takes a place of its own and leaves the
    order of the others as it was. Raises CorpusError for an id that occurs twice, as a piece `a#1` of a
    document `a` and a document `a#1` would: two stages could then take one text.
    """
    ordered = sorted(documents, key=_place(seed))
    for first, second in pairwise(ordered):
        if first.id == second.id:
            raise CorpusError(f"the id {first.id!r} occurs twice in the corpus; ids must be unique")
    return ordered


def first_shuffled(documents: Iterable[Document], count: int, *, seed: int) -> list[Document]:
    """The first `count` of the shuffled documents, in one pass that holds no more than these. Raises CorpusError as
    `shuffled` does for an id that occurs twice among them.
    """
    return shuffled(heapq.nsmallest(count, documents, key=_place(seed)), seed=seed)


def _place(seed: int) -> Callable[[Document], tuple[int, str]]:
    return lambda document: (seed_from(seed, "corpus", document.id), document.id)


def take_unused(
    documents: Sequence[Document], *, count: int, taken: Collection[str], wanted_by: str
) -> list[Document]:
    """The next `count` of shuffled documents whose ids are not in `taken`, in their order.

    `taken` holds the ids of everything taken before, by earlier stages and by earlier batches of this one; a
    smaller sample is the beginning of a larger one. `wanted_by` names the stage in the error.

    Raises CorpusError, with the numbers, when fewer are left.
    """
    used = frozenset(taken)
    left = [document for document in documents if document.id not in used]
    if len(left) < count:
        raise CorpusError(
            f"{wanted_by} needs {count} documents, but of the corpus's {len(documents)} only {len(left)} are not "
            "used yet; add documents or ask for fewer"
        )
    return left[:count]


def assign_sources(
    documents: Sequence[Document],
    task_types: Mapping[str, float],
    rng: random.Random,
    *,
    ratio: Mapping[int, int],
) -> list[TaskSource]:
    """One source per document, with task types and search turns in exact shares (SCOPE appendix G).

    `task_types` maps each enabled type to its weight, `ratio` each number of search turns to its share. Raises
    ValueError as `exact_shares` does.
    """
    types = exact_shares(len(documents), task_types, rng)
    turns = exact_shares(len(documents), ratio, rng)
    return list(map(TaskSource, documents, types, turns))


def exact_shares(n: int, weights: Mapping[Choice, float], rng: random.Random) -> list[Choice]:
    """A choice for each of `n` sources, in random order: whole shares in the proportion of the weights.

    By largest remainder: no share is off its quota by 1 or more, and equal remainders favour the earlier choice. Raises
    ValueError for weights that are negative, not finite, or all 0.
    """
    if not any(weights.values()) or not all(0 <= weight < math.inf for weight in weights.values()):
        raise ValueError(f"weights must be finite, at least 0 and not all 0; got {dict(weights)}")
    total = sum(map(Fraction, weights.values()))
    quotas = {choice: n * Fraction(weight) / total for choice, weight in weights.items()}
    shares = Counter({choice: int(quota) for choice, quota in quotas.items()})
    by_remainder = sorted(quotas, key=lambda choice: shares[choice] - quotas[choice])
    shares.update(by_remainder[: n - shares.total()])
    choices = list(shares.elements())
    rng.shuffle(choices)
    return choices
