"""Requests and responses of `POST /retrieve`, the wire that the field's trainers share.

One deviation in each direction makes it safe: senseless input is refused with a reason, and rows without
scores carry both shapes that clients read (`row["contents"]` and `row["document"]["contents"]`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.net.json import parse_object

Scores = NDArray[np.float32]


class Hit(NamedTuple):
    row: int
    score: float


class Index(Protocol):
    """Searches the rows of one corpus. Not safe to call from several threads at once."""

    size: int
    """Rows in the corpus."""

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """One list per query, at most `min(topk, size)` hits each; shorter when fewer rows match at all."""


def best_rows(scores: Scores, topk: int) -> list[Hit]:
    """The `topk` highest positive entries of `scores` (rows,); equal scores go to the lower row."""
    if topk < scores.size:
        # A plain argpartition would pick arbitrary rows among those tied at the cut.
        threshold = np.partition(scores, scores.size - topk)[scores.size - topk]
        rows = np.flatnonzero(scores >= threshold)
    else:
        rows = np.arange(scores.size)
    ordered = rows[np.argsort(-scores[rows], kind="stable")][:topk]
    return [Hit(int(row), float(scores[row])) for row in ordered if scores[row] > 0]


LONGEST_QUERY = 16_384
"""Characters of a query. Servers refuse longer ones; clients cut them, as a policy's runaway query is not an error."""


Results = Iterable[Iterable[tuple[bytes, float]]]
"""For each query, the stored JSON objects of its passages with their scores."""


DEFAULT_TOPK, MAX_TOPK = 3, 100
MAX_QUERIES = 4096
"""Of a request. Batch clients post a whole rollout batch at once."""
MAX_REQUEST, MAX_RESPONSE = 8 << 20, 64 << 20
"""Bytes; of a response those of its passages."""


@dataclass(frozen=True)
class Retrieval:
    """What a client asked for."""

    queries: list[str]
    topk: int
    return_scores: bool


class WireError(Exception):
    """A request that is refused, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def parse_request(body: bytes) -> Retrieval:
    """Raises WireError (400 or 413) that names the field and what was expected."""
    try:
        record = parse_object(body)
    except ValueError as error:
        raise WireError(400, str(error)) from None
    queries = _queries(record)
    topk = _topk(record)
    if record.get("max_tokens") is not None:
        raise WireError(
            400, "max_tokens: passages are not cut here; ask for a smaller topk, or cut what comes"
        )
    return_scores = record.get("return_scores")
    if return_scores is not None and not isinstance(return_scores, bool):
        raise WireError(400, f"return_scores is {str(return_scores)[:40]}, expected true or false")
    return Retrieval(queries, topk, bool(return_scores))


def render_response(results: Results, *, return_scores: bool) -> bytes:
    """The JSON body, spliced from stored lines."""

    def row(line: bytes, score: float) -> bytes:
        if return_scores:
            return b'{"document": ' + line + b', "score": ' + repr(score).encode() + b"}"
        return line[:-1] + b', "document": ' + line + b"}"

    lists = [b"[" + b", ".join(row(line, score) for line, score in rows) + b"]" for rows in results]
    return b'{"result": [' + b", ".join(lists) + b"]}"


def _queries(record: dict[str, Any]) -> list[str]:
    found = record.get("queries")
    if found is None:
        found = record.get("query")
    if found is None:
        raise WireError(400, "neither 'queries' nor 'query' in the request")
    queries = [found] if isinstance(found, str) else found
    if not isinstance(queries, list):
        raise WireError(400, f"'queries' is a {type(found).__name__}, expected strings")
    if len(queries) > MAX_QUERIES:
        raise WireError(413, f"{len(queries):,} queries, at most {MAX_QUERIES:,} fit into a request")
    for place, query in enumerate(queries):
        if not isinstance(query, str):
            raise WireError(400, f"query {place} is a {type(query).__name__}, expected a string")
        if not query.strip():
            raise WireError(400, f"query {place} is empty")
        if len(query) > LONGEST_QUERY:
            raise WireError(
                413, f"query {place} has {len(query):,} characters, at most {LONGEST_QUERY:,} are searched"
            )
        # A lone surrogate can be written in JSON but not be encoded.
        if not query.isascii() and any("\ud800" <= character <= "\udfff" for character in query):
            raise WireError(400, f"query {place} holds half of a surrogate pair")
    return queries


def _topk(record: dict[str, Any]) -> int:
    value = record.get("topk")
    if value is None:
        return DEFAULT_TOPK
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_TOPK:
        raise WireError(400, f"topk is {str(value)[:40]}, expected a whole number from 1 to {MAX_TOPK}")
    return value
