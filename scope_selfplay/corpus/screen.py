"""Which of the documents that were read are kept: no copies, none too short or of a foreign licence, no source that is
most of the corpus, and of web pages nothing that many of them repeat.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.base.text import plain, spaced
from scope_selfplay.base.values import Document
from scope_selfplay.config.run import CorpusConfig
from scope_selfplay.corpus.formats import FORMATS, format_of, without_repeated

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
        if (row := format_of(Path(name))) and not row.holds_records:
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
        # By parts: the words of a whole book are ten times as large as it.
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
    web = [each for each in documents if source_of(each).endswith(_WEB)]
    own = without_repeated([(source_of(each), each.text) for each in web])
    texts = dict(zip((each.id for each in web), own, strict=True))
    for document in documents:
        if (text := texts.get(document.id, document.text)) != document.text:
            document = document.model_copy(update={"text": text})
        if text:
            yield document
