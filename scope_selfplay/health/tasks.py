"""What an iteration's tasks are like: near duplicates, drift of their topics, and whether they need their searches.

Near duplicates are found by MinHash over word trigrams, so that a corpus of any size takes one pass. Whether a task
needs the searches it was written with is judged from the records in two ways. By text: a Challenger's search is needed
when its passages hold a name or a number that the rubric asks for and that is neither in the source document nor in
another search's passages. By outcome: a passage is worth the difference in score between the Solver rollouts that saw
it and those that did not, on the same task.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.keys import numpy_rng_from
from scope_selfplay.schemas import Document
from scope_selfplay.store.reader import RunReader
from scope_selfplay.untrusted_text.characters import plain

if TYPE_CHECKING:
    from datasketch import MinHash

PERMUTATIONS = 128
SAME = 0.8
"""Word trigrams shared (Jaccard) from which two tasks count as one."""
SHUFFLES = 8
SEARCHES_SAMPLE = 500
"""Accepted tasks of an iteration whose searches are looked at."""


@dataclass(frozen=True)
class Diversity:
    """`duplicates`: share of tasks with a near duplicate before them. `distance`: mean 1 - Jaccard to the nearest."""

    duplicates: float | None
    distance: float | None


def measure_diversity(texts: Sequence[str], *, before: Sequence[str] = (), sample: int = 1000) -> Diversity:
    """Of `texts`, against each other and those of `before`; distances among the first `sample` of them.

    A duplicate is found with high probability, not with certainty: the index is tuned for `SAME`.
    """
    # It brings scipy: 45 MB that only a checkup needs.
    from datasketch import MinHashLSH

    if not texts:
        return Diversity(None, None)
    signatures = [_signature(text) for text in (*before, *texts)]
    index = MinHashLSH(threshold=SAME, num_perm=PERMUTATIONS)
    duplicates = 0
    for row, signature in enumerate(signatures):
        if row >= len(before):
            duplicates += any(
                signatures[other].jaccard(signature) >= SAME for other in index.query(signature)
            )
        index.insert(row, signature)
    return Diversity(duplicates / len(texts), _nearest_distance(signatures[len(before) :][:sample]))


def _nearest_distance(signatures: "Sequence[MinHash]") -> float | None:
    if len(signatures) < 2:
        return None
    values = np.array([signature.hashvalues for signature in signatures])
    # The greatest similarity is a task's with itself; its nearest neighbour has the second greatest.
    nearest = [np.partition((values == row).mean(axis=1), -2)[-2] for row in values]
    return 1.0 - float(np.mean(nearest))


def _signature(text: str) -> "MinHash":
    from datasketch import MinHash

    # A copy in other letters, or with hidden ones, is a copy.
    words = plain(text).lower().split()
    grams = {" ".join(words[start : start + 3]) for start in range(max(1, len(words) - 2))}
    signature = MinHash(num_perm=PERMUTATIONS, seed=1)
    signature.update_batch([gram.encode("utf-8", "replace") for gram in sorted(grams)])
    return signature


def topic_drift(before: Sequence[str], after: Sequence[str]) -> float | None:
    """Jensen-Shannon divergence of the two word distributions in bits, less what chance alone gives.

    Chance: the mean divergence of random splits of both together into groups of these sizes. About 0 when
    both come from one source, near 1 when they share no word. None where either is empty.
    """
    if not before or not after:
        return None
    counts = _word_counts([*before, *after])
    size = len(before)
    found = divergence(counts[:size].sum(axis=0), counts[size:].sum(axis=0))
    rng = numpy_rng_from(0, "topic drift")
    chance = []
    for _ in range(SHUFFLES):
        mixed = counts[rng.permutation(len(counts))]
        chance.append(divergence(mixed[:size].sum(axis=0), mixed[size:].sum(axis=0)))
    return max(0.0, found - float(np.mean(chance)))


def divergence(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Jensen-Shannon divergence of two histograms over the same words, in bits: 0 to 1."""
    one, two = first / max(1, first.sum()), second / max(1, second.sum())
    middle = (one + two) / 2
    return (_relative_entropy(one, middle) + _relative_entropy(two, middle)) / 2


def _relative_entropy(of: NDArray[np.float64], to: NDArray[np.float64]) -> float:
    there = of > 0
    return float((of[there] * np.log2(of[there] / to[there])).sum())


def _word_counts(texts: Sequence[str]) -> NDArray[np.int64]:
    """One row per text: how often each of the most frequent words occurs; the rest count as one word."""
    split = [text.lower().split() for text in texts]
    frequent = Counter(word for words in split for word in words).most_common(2000)
    column = {word: number for number, (word, _) in enumerate(frequent)}
    counts = np.zeros((len(texts), len(column) + 1), dtype=np.int64)
    for row, words in enumerate(split):
        np.add.at(counts[row], [column.get(word, len(column)) for word in words], 1)
    return counts


@dataclass(frozen=True)
class Need:
    """`needed`: the share of searches that are needed by text, over `searches` of them."""

    needed: float | None
    searches: int


@dataclass(frozen=True)
class Worth:
    """`gain`: mean score with a passage minus without it, over `pairs` of task and passage that have both."""

    gain: float | None
    pairs: int


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


def worth_of_passages(reader: RunReader, iteration: int) -> Worth:
    """Over all accepted tasks of an iteration whose difficulty was measured."""
    (row,) = reader.sql(
        """
        WITH seen AS (
            SELECT r.subject_id AS task, g.score,
                   flatten(list_transform(r.turns, lambda t: list_transform(t.passages, lambda p: p.id))) AS ids
            FROM rollouts r JOIN grades g ON g.rollout_id = r.id AND g.iteration = $1 AND g.stage = 'tasks'
            WHERE r.iteration = $1 AND r.stage = 'tasks' AND r.role = 'solver' AND g.score IS NOT NULL
        ), evidence AS (
            SELECT task.id AS task, unnest(task.evidence_ids) AS passage FROM candidates
            WHERE iteration = $1 AND stage = 'tasks' AND status = 'accepted'
        ), pair AS (
            SELECT avg(score) FILTER (list_contains(ids, passage)) AS saw,
                   avg(score) FILTER (NOT list_contains(ids, passage)) AS lacking
            FROM evidence JOIN seen USING (task) GROUP BY task, passage
        )
        SELECT avg(saw - lacking) AS gain, count(saw - lacking) AS pairs FROM pair
        """,
        [iteration],
    )
    return Worth(row["gain"], row["pairs"])


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
