"""What an iteration's tasks are like: near duplicates, and whether they need their searches.

Near duplicates are found by MinHash over word trigrams, so that a corpus of any size takes one pass. A Challenger's
search is needed when its passages hold a name or a number that the rubric asks for and that is neither in the source
document nor in another search's passages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from scope_selfplay.schemas import Document
from scope_selfplay.store.reader import RunReader
from scope_selfplay.untrusted_text.characters import plain

if TYPE_CHECKING:
    from datasketch import MinHash

PERMUTATIONS = 128
SAME = 0.8
"""Word trigrams shared (Jaccard) from which two tasks count as one."""
SEARCHES_SAMPLE = 500
"""Accepted tasks of an iteration whose searches are looked at."""


def duplicate_share(texts: Sequence[str], *, before: Sequence[str] = ()) -> float | None:
    """The share of `texts` with a near duplicate before them, among themselves or in `before`; None without texts.

    A duplicate is found with high probability, not with certainty: the index is tuned for `SAME`.
    """
    # It brings scipy: 45 MB that only a checkup needs.
    from datasketch import MinHashLSH

    if not texts:
        return None
    signatures = [_signature(text) for text in (*before, *texts)]
    index = MinHashLSH(threshold=SAME, num_perm=PERMUTATIONS)
    duplicates = 0
    for row, signature in enumerate(signatures):
        if row >= len(before):
            duplicates += any(
                signatures[other].jaccard(signature) >= SAME for other in index.query(signature)
            )
        index.insert(row, signature)
    return duplicates / len(texts)


def _signature(text: str) -> "MinHash":
    from datasketch import MinHash

    # A copy in other letters, or with hidden ones, is a copy.
    words = plain(text).lower().split()
    grams = {" ".join(words[start : start + 3]) for start in range(max(1, len(words) - 2))}
    signature = MinHash(num_perm=PERMUTATIONS, seed=1)
    signature.update_batch([gram.encode("utf-8", "replace") for gram in sorted(grams)])
    return signature


@dataclass(frozen=True)
class Need:
    """`needed`: the share of searches that are needed by text, over `searches` of them."""

    needed: float | None
    searches: int


def needed_searches(reader: RunReader, iteration: int) -> Need:
    """Over the first accepted tasks of an iteration."""
    rows = reader.sql(
        "SELECT c.rubric, c.provenance.document_id AS document_id, r.turns FROM candidates c "
        "JOIN rollouts r ON r.id = c.challenger_rollout_id AND r.iteration = ? AND r.stage = 'tasks' "
        "WHERE c.iteration = ? AND c.stage = 'tasks' AND c.status = 'accepted' ORDER BY c.ordinal LIMIT ?",
        [iteration, iteration, SEARCHES_SAMPLE],
    )
    documents = reader.documents([row["document_id"] for row in rows])
    flags = [
        flag
        for row in rows
        for flag in _needs(
            [criterion["text"] for criterion in row["rubric"]["criteria"]],
            documents.get(row["document_id"]),
            [
                [passage["title"] + " " + passage["text"] for passage in turn["passages"] or ()]
                for turn in row["turns"]
                if turn["query"] is not None
            ],
        )
    ]
    return Need(sum(flags) / len(flags) if flags else None, len(flags))


def _needs(
    criteria: Sequence[str], document: Document | None, searches: Sequence[Sequence[str]]
) -> list[bool]:
    needed = _facts(criteria)
    known = _words([document.title, document.text] if document else [])
    found = [needed & _words(passages) for passages in searches]
    return [
        bool(own - known - set().union(*(found[other] for other in range(len(found)) if other != row)))
        for row, own in enumerate(found)
    ]


def _facts(criteria: Iterable[str]) -> set[str]:
    """Names and numbers: words with a digit, or with a capital anywhere but at a sentence's start."""
    facts: set[str] = set()
    for text in criteria:
        words = text.split()
        for before, word in pairwise(words):
            named = word[:1].isupper() and before[-1:] not in ".:"
            if named or any(letter.isdigit() for letter in word):
                facts.add(_bare(word))
    return facts - {""}


def _words(texts: Iterable[str]) -> set[str]:
    return {_bare(word) for text in texts for word in text.split()}


def _bare(word: str) -> str:
    return word.strip(".,;:!?()[]\"'").lower()
