"""Which of the documents that were read are kept: no copies, none too short or of a foreign licence, no source that is
most of the corpus, and of web pages nothing that many of them repeat; what became of a corpus, as tables; and which of
the kept a stage takes, and what task to write from each.

A corpus is `shuffled` once per run by the seed, whatever the order of the files. Every stage takes the next
documents that no earlier stage has taken, so its sample is a pure function of the seed and the ids already used.
Nothing is fixed in advance (task making does not know how many documents it will need), two stages can never
share a document, and a resumed run that passes the same ids takes the same documents again.
"""

import hashlib
import heapq
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.machine import in_processes
from scope_selfplay.base.suspicions import suspicions
from scope_selfplay.base.terminal import Table
from scope_selfplay.base.text import language_in, plain, spaced, without_repeated
from scope_selfplay.base.values import Document, seed_from
from scope_selfplay.config.run import CorpusConfig
from scope_selfplay.corpus.formats import FORMATS, format_of, suffix_of

Choice = TypeVar("Choice")


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
    return language_in(document.text)


def task_language(wanted: str, document: Document) -> str:
    """The code, such as `de`, of the language in which a task about a document is written: `wanted`, the name of the
    domain's, else the document's. "" for a name without a code, `en` where nothing is known.
    """
    if wanted:
        return _CODES.get(wanted, "")
    return language_of(document).partition("-")[0].lower() or "en"


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
    row = format_of(name)
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


SAME = 0.8
"""Word trigrams shared (Jaccard) from which two documents count as one."""
_BANDS, _ROWS = 16, 4
"""Of a MinHash: of two documents that share .8 of their trigrams one pair in 5,000 is not compared."""
_SAME_PAGE = 0.7
"""Of the trigrams of the shorter one; measured .81 to 1 for one page, at most .5 for chapters of a book."""
_PART = 1 << 20
_WEB = (".html", ".htm")


class LeftOut(NamedTuple):
    reason: str
    document: Document
    kept: str = ""
    """The id of the document that is instead."""


class Screened(NamedTuple):
    kept: list[Document]
    left_out: list[LeftOut]

    def __str__(self) -> str:
        counts = Counter(each.reason for each in self.left_out)
        return f"left out: {', '.join(f'{count:,} {reason}' for reason, count in counts.items())}"


def screen(documents: Sequence[Document], settings: CorpusConfig) -> Screened:
    """What is kept of the documents, in their order."""
    kept = list(_without_repeated(documents))
    own = {each.id for each in kept}
    left_out = [LeftOut("of what many pages repeat alone", each) for each in documents if each.id not in own]
    for rule in (_unfit, _formats, _copies, _near_copies, _wholes, _beyond):
        found = list(rule(kept, settings))
        gone = {each.document.id for each in found}
        kept, left_out = [each for each in kept if each.id not in gone], left_out + found
    return Screened(kept, left_out)


def _unfit(documents: Sequence[Document], settings: CorpusConfig) -> Iterator[LeftOut]:
    licences = {licence.casefold() for licence in settings.licences}
    for document in documents:
        if licences and document.metadata.get("licence", "").casefold() not in licences:
            yield LeftOut("whose licence is not in corpus.licences", document)
        elif len(document.text) < settings.min_characters:
            yield LeftOut(f"shorter than {settings.min_characters} characters", document)


def _formats(documents: Sequence[Document], settings: CorpusConfig) -> Iterator[LeftOut]:
    """Of files that differ in their suffix alone and say the same, all but the one whose form is known best."""
    pages: defaultdict[str, dict[tuple[int, str], list[Document]]] = defaultdict(dict)
    for document in documents if settings.duplicates != "keep" else ():
        name = source_of(document)
        if (row := format_of(name)) and not row.holds_records:
            page = pages[name.removesuffix(".gz").rpartition(".")[0]]
            page.setdefault((FORMATS.index(row), name), []).append(document)
    for page in pages.values():
        (_, best), *others = sorted(page.items())
        said = _trigrams(best) if others else set()
        for _, other in others:
            found = _trigrams(other)
            shorter, longer = sorted((len(said), len(found)))
            # An abstract beside its paper is another document.
            if shorter and longer <= 2 * shorter and len(said & found) >= _SAME_PAGE * shorter:
                yield from (LeftOut("in other formats, too", each, best[0].id) for each in other)


def _trigrams(documents: Sequence[Document]) -> set[tuple[str, ...]]:
    """Of words alone: marks differ from format to format."""
    words = re.findall(r"\w+", spaced(plain("\n".join(each.text for each in documents))).lower())
    return set(zip(words, words[1:], words[2:], strict=False))


def _copies(documents: Sequence[Document], settings: CorpusConfig) -> Iterator[LeftOut]:
    first: dict[bytes, str] = {}
    for document in documents if settings.duplicates != "keep" else ():
        digest = hashlib.blake2b(digest_size=12)
        # By parts: the words of a whole book are ten times as large as it. Without blanks: a part may end in a word.
        for start in range(0, len(document.text), _PART):
            part = "".join(document.text[start : start + _PART].split())
            digest.update(part.encode("utf-8", "replace"))
        if (kept := first.setdefault(digest.digest(), document.id)) != document.id:
            yield LeftOut("copies", document, kept)


def _near_copies(documents: Sequence[Document], settings: CorpusConfig) -> Iterator[LeftOut]:
    if settings.duplicates == "near":
        for row, first in near_copies([each.text for each in documents]).items():
            yield LeftOut("near copies", documents[row], documents[first].id)


def _wholes(documents: Sequence[Document], settings: CorpusConfig) -> Iterator[LeftOut]:
    """A book on one page, beside its chapters: most of its paragraphs stand in documents of half its size."""
    if settings.duplicates != "near" or not documents:
        return
    sizes = [len(each.text) for each in documents]
    middle = median(sizes)
    long = [each for each in documents if len(each.text) > 2 * middle]
    if not long:
        return
    shortest: dict[int, int] = {}
    for document, size in zip(documents, sizes, strict=True):
        for paragraph in _paragraphs(document):
            shortest[paragraph] = min(size, shortest.get(paragraph, size))
    for document in long:
        own = _paragraphs(document)
        said = sum(length for each, length in own.items() if 2 * shortest[each] <= len(document.text))
        if said and said >= _SAME_PAGE * sum(own.values()):
            yield LeftOut("made of other documents", document)


def _paragraphs(document: Document) -> dict[int, int]:
    """Hash -> length in letters, of words alone."""
    found = ("".join(re.findall(r"\w+", each)).casefold() for each in document.text.split("\n\n"))
    return {hash(words): len(words) for words in found}


def _beyond(documents: Sequence[Document], settings: CorpusConfig) -> Iterator[LeftOut]:
    """The last documents of each source that would make up more than its share of all characters."""
    share, sizes, taken = settings.largest_share, Counter[str](), Counter[str]()
    for document in documents:
        sizes[source_of(document)] += len(document.text)
    for document in documents if share < 1 and len(sizes) > 1 else ():
        source = source_of(document)
        taken[source] += len(document.text)
        if taken[source] > (sizes.total() - sizes[source]) * share / (1 - share):
            yield LeftOut(f"beyond {share:.0%} of all characters for one source", document)


def near_copies(texts: Sequence[str]) -> dict[int, int]:
    """Row -> an earlier row with nearly the same text, by MinHash over word trigrams."""
    rng = np.random.default_rng(1)
    factors, shifts = rng.integers(1, 1 << 63, size=(2, _BANDS * _ROWS), dtype=np.uint64)
    words = defaultdict[str, int](count(1).__next__)
    signatures = np.zeros((len(texts), _BANDS * _ROWS), dtype=np.uint32)
    for row, text in enumerate(texts):
        # A copy in other letters, or with hidden ones, is a copy.
        own = list(map(words.__getitem__, spaced(plain(text)).lower().split()))
        ids = np.array(own or [0], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        # Numbers that follow each other must not make trigrams that do.
        ids = (ids ^ (ids >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        grams = ids[:1] * ids[-1:]
        if len(ids) > 2:
            grams = ids[:-2] * np.uint64(31) + ids[1:-1] * np.uint64(1009) + ids[2:]
        grams ^= grams >> np.uint64(32)
        hashes = grams[:, None] * factors + shifts
        signatures[row] = (hashes >> np.uint64(32)).min(axis=0)
    return _same(signatures)


def _same(signatures: NDArray[np.uint32]) -> dict[int, int]:
    found: dict[int, int] = {}
    for band in range(_BANDS if len(signatures) else 0):
        part = np.ascontiguousarray(signatures[:, band * _ROWS : (band + 1) * _ROWS])
        keys = part.view(np.dtype((np.void, part.dtype.itemsize * _ROWS))).ravel()
        _, firsts, groups = np.unique(keys, return_index=True, return_inverse=True)
        first = firsts[groups.ravel()]
        rows = np.nonzero(first < np.arange(len(first)))[0]
        same = (signatures[rows] == signatures[first[rows]]).mean(axis=1) >= SAME
        for row in rows[same].tolist():
            found.setdefault(row, int(first[row]))
    # What is a copy of a copy is one of the first.
    return {row: found.get(first, first) for row, first in sorted(found.items())}


def source_of(document: Document) -> str:
    """The page or file that a document is of."""
    return document.source or document.id.partition("#")[0]


def _without_repeated(documents: Sequence[Document]) -> Iterator[Document]:
    web = [each for each in documents if suffix_of(source_of(each)) in _WEB]
    # Above a section's text stood the heading that is in its title.
    heads = ["#\n\n" if "#" in each.id else "" for each in web]
    own = without_repeated(
        [(source_of(each), head + each.text) for each, head in zip(web, heads, strict=True)]
    )
    texts = {each.id: text.removeprefix(head) for each, head, text in zip(web, heads, own, strict=True)}
    for document in documents:
        if (text := texts.get(document.id, document.text)) != document.text:
            document = document.model_copy(update={"text": text})
        if text:
            yield document


# Below so many characters a document hardly gives a task; to find a language takes a tenth of a millisecond.
_SHORT, _EXAMPLES, _COUNTED = 200, 3, 500


def describe_corpus(
    path: Path,
    documents: Sequence[Document],
    skipped: Mapping[Path, str],
    screened: Screened,
    *,
    whole: bool = False,
) -> list[Table]:
    """`documents` are all that were read, `skipped` the files that were not; `whole` names all of these."""
    kept, sizes = screened.kept, Counter[str]()
    for document in kept:
        sizes[source_of(document)] += len(document.text)
    suspect = zip(kept, in_processes(suspicions, [each.text for each in kept]), strict=True)
    files = {document.id.partition("#")[0] for document in documents} if path.is_dir() else {path.name}
    source, largest = next(iter(sizes.most_common(1)), ("", 0))
    lengths = [len(document.text) for document in kept]
    spread = f"median {median(lengths or [0]):.0f}, longest {max(lengths, default=0)}"
    short = sum(length < _SHORT for length in lengths)
    rows = [
        ("documents", f"{len(kept)} of {len(documents)}", ""),
        ("characters", str(sizes.total()), spread),
        (f"under {_SHORT} characters", f"{short / max(len(kept), 1):.1%}", "of the documents"),
        ("largest source", f"{largest / max(sizes.total(), 1):.1%}", f"of the characters: {source}"),
    ]
    left_out = [(each.reason, f"{each.document.id} = {each.kept}".rstrip(" =")) for each in screened.left_out]
    within = ((file, file.relative_to(path) if path in file.parents else file) for file in skipped)
    not_read = [(skipped[file], name.as_posix()) for file, name in within]
    some = kept[:: len(kept) // _COUNTED + 1]
    values = Counter(item for document in kept for item in document.metadata.items())
    return [
        _table("Files", [(suffix_of(name), name) for name in sorted(files)]),
        _table("Files left out", not_read, len(skipped) if whole else _EXAMPLES),
        _table("Left out", left_out),
        _table("Suspect of injection", [(sign.value, each.id) for each, signs in suspect for sign in signs]),
        _table("Languages", [(language_of(each) or "not known", each.id) for each in some]),
        _table("Metadata", [item for item, _ in values.most_common()]),
        Table("Kept", ("what", "how many", "for example"), tuple(rows)),
    ]


def _table(title: str, pairs: Iterable[tuple[str, str]], most: int = _EXAMPLES) -> Table:
    """How many there are of a kind, the commonest first, and some of them."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name, example in pairs:
        groups[name].append(example)
    found = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = ((name, str(len(each)), ", ".join(each[:most])) for name, each in found)
    return Table(title, ("what", "how many", "for example"), tuple(rows))
