"""BM25 over a corpus: exact, deterministic, no model, no download (bm25s, Lucene's variant).

Two things are ours. Ties go to the lower row. And a query that names an article finds it first: an article whose whole
title occurs in the query gets `title tokens * log(1 + rows / rows with that title)`, times the title's share of the
query. With Lucene's variant a term adds less than its idf, and a title's words are never rarer than the title, so for a
query that is exactly a title the bonus exceeds whatever other articles can score.
"""

import json
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
from numpy.typing import NDArray

from retrieval.folder import ARRAY_FAULTS, Passages, RowsByKey, map_array, text_key
from retrieval.wire import Hit, Scores, best_rows
from scope_selfplay.base.errors import CorpusError, RecordError
from scope_selfplay.base.text import SIGNS, spaced


@contextmanager
def _hidden(*names: str) -> Iterator[None]:
    """These modules cannot be imported meanwhile."""
    known = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.modules |= dict.fromkeys(names, cast(ModuleType, None))
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules |= known


# bm25s tries out a top-k of JAX, which nobody here asks for and which takes three quarters of a GPU's memory.
with _hidden("jax", "jax.lax"):
    import bm25s
    from bm25s.tokenization import Tokenized

K1, B = 1.5, 0.75
TITLE_FILES = ("title_keys.npy", "title_starts.npy", "title_rows.npy")
LONGEST_TITLE = 12
"""Titles of more words get no bonus; bounds the work for one query."""
WORD = re.compile(rf"[\w{SIGNS}]+")
STOPWORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been but by did do does for from had has have he her his how i in into is it"
        " its of on or she s that the their them there these they this to was we were what when where which"
        " who whom whose why will with would you",
    )
)


class Bm25Index:
    """An index of `size` rows; `titles` has the rows that carry a title, by its words."""

    def __init__(self, scorer: bm25s.BM25, titles: RowsByKey, size: int) -> None:
        self._scorer = scorer
        self._titles = titles
        self.size = size

    @classmethod
    def build(cls, passages: Passages) -> "Bm25Index":
        """Index titles and texts, in memory. Raises CorpusError for an empty corpus."""
        if not passages.size:
            raise CorpusError("the corpus is empty: nothing to search")
        vocabulary: dict[str, int] = {}
        ids: list[list[int]] = []
        keys: list[int] = []
        for row in range(passages.size):
            document = passages.document(row)
            words = content_words(f"{document.title} {document.text}")
            ids.append([vocabulary.setdefault(word, len(vocabulary)) for word in words])
            keys.append(text_key(" ".join(all_words(document.title))))
        if not vocabulary:
            raise CorpusError("the corpus holds no word: nothing to search")
        scorer = bm25s.BM25(k1=K1, b=B, method="lucene")
        scorer.index(Tokenized(ids=ids, vocab=vocabulary), show_progress=False)
        return cls(scorer, RowsByKey.of(keys), passages.size)

    def save(self, folder: Path) -> None:
        self._scorer.save(folder, show_progress=False)
        for name, array in zip(TITLE_FILES, self._titles, strict=True):
            np.save(folder / name, array)
        (folder / "size.json").write_text(json.dumps({"rows": self.size}))

    @classmethod
    def open(cls, folder: Path) -> "Bm25Index":
        """Map a saved index. Raises RecordError when its files are missing or damaged."""
        try:
            scorer = bm25s.BM25.load(folder, mmap=True, show_progress=False)
            size = json.loads((folder / "size.json").read_text())["rows"]
            return cls(scorer, RowsByKey(*(map_array(folder / name) for name in TITLE_FILES)), size)
        except (*ARRAY_FAULTS, KeyError) as error:
            raise RecordError(f"{folder}: not a readable BM25 index: {error}") from None

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        return [best_rows(self.scores(query), topk) for query in queries]

    def scores(self, query: str) -> Scores:
        """BM25 plus the title bonus, for every row (rows,); 0 where no word matches."""
        words = content_words(query)
        known = [word for word in words if word in self._scorer.vocab_dict]
        scores: Scores = np.zeros(self.size, dtype=np.float32)
        if known:
            scores += self._scorer.get_scores(known)[: self.size]
        for length, rows in self._named_articles(query):
            share = min(1.0, length / max(len(words), 1))
            scores[rows] += share * length * np.log1p(self.size / len(rows))
        return scores

    def _named_articles(self, query: str) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Titles that occur in the query: their length in words and their rows."""
        words = all_words(query)
        seen: set[int] = set()
        for start in range(len(words)):
            for end in range(start + 1, min(start + LONGEST_TITLE, len(words)) + 1):
                part = words[start:end]
                key = text_key(" ".join(part))
                is_name = len(part) == len(words) or any(word not in STOPWORDS for word in part)
                if is_name and key not in seen and len(rows := self._titles.rows_of(key)):
                    seen.add(key)
                    yield len(part), rows


def all_words(text: str) -> list[str]:
    """Words without case, accents and plural endings, in order."""
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        letters = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
        # Lone surrogates cannot be hashed or stored as UTF-8.
        text = letters.encode("utf-8", "replace").decode()
    return [singular(word) for word in WORD.findall(spaced(text.lower(), 2))]


def content_words(text: str) -> list[str]:
    return [word for word in all_words(text) if word not in STOPWORDS]


def singular(word: str) -> str:
    """Harman's S stemmer (1991): -ies to -y, -es to -e, -s dropped, with its exceptions."""
    if len(word) < 4 or not word.endswith("s") or word.endswith(("us", "ss")):
        return word
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    return word[:-1]
