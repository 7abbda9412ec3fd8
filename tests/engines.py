"""Search engines for tests: Qdrant itself, in this process, and the wire of Elasticsearch as recorded.

Qdrant's server is its own local mode behind its own REST paths: requests are read by the official models, so that one
which the real server would refuse is refused here.
"""

import base64
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.loopback import Reply, Seen, loopback

Row = Mapping[str, Any]
Answer = Callable[[str, str, Any], tuple[int, Any]]
"""Method, path and JSON body to status and JSON body."""


@contextmanager
def served(answer: Answer, *, authorization: str | None = None) -> Iterator[str]:
    """The address of a server that answers so; with an authorization, only those who show it."""

    def reply(seen: Seen) -> Reply:
        if authorization is not None and seen.headers.get("Authorization") != authorization:
            status, body = 401, {"error": "security_exception"}
        else:
            status, body = answer(seen.method, seen.path, json.loads(seen.body) if seen.body else None)
        # Elasticsearch's official client refuses a server that does not say so.
        headers = (("Content-Type", "application/json"), ("X-Elastic-Product", "Elasticsearch"))
        return Reply(json.dumps(body).encode(), status, headers)

    with loopback(reply) as (port, _):
        yield f"http://127.0.0.1:{port}"


class RecordedElasticsearch:
    """The answers of release 9 (OpenSearch 3 gives the same) over rows that are scored by the words they share."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)
        self.asked: list[tuple[str, str, Any]] = []

    def __call__(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        self.asked.append((method, path, body))
        index, _, question = path.partition("?")[0].removeprefix("/").partition("/")
        if index != "wiki":
            reason = {"type": "index_not_found_exception", "reason": f"no such index [{index}]"}
            return 404, {"error": reason, "status": 404}
        match question:
            case "_settings":
                about = {"uuid": "wQ1q8dL3T2uZl0", "number_of_shards": "1", "provided_name": "wiki"}
                return 200, {"wiki-2026": {"settings": {"index": about}}}
            case "_count":
                return 200, {"count": len(self.rows), "_shards": {"total": 1, "successful": 1, "failed": 0}}
        return self._search(body)

    def _search(self, body: Any) -> tuple[int, Any]:
        if "ids" in body["query"]:
            scored = [(1.0, row) for row in self.rows if row["id"] in body["query"]["ids"]["values"]]
        else:
            asked = body["query"]["multi_match"]
            words = _words(asked["query"])
            if len(words) * len(asked["fields"]) > 1024:
                return 400, {"error": {"type": "too_many_clauses"}, "status": 400}
            texts = [" ".join(str(row.get(field) or "") for field in asked["fields"]) for row in self.rows]
            scores = [float(len(set(words) & set(_words(text)))) for text in texts]
            pairs = zip(scores, self.rows, strict=True)
            scored = sorted((each for each in pairs if each[0]), key=lambda each: -each[0])
        hits = [
            {"_index": "wiki-2026", "_id": row["id"], "_score": score, "_source": dict(row)}
            for score, row in scored[: body["size"]]
        ]
        found = {"total": {"value": len(scored), "relation": "eq"}, "max_score": None, "hits": hits}
        shards = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}
        return 200, {"took": 1, "timed_out": False, "_shards": shards, "hits": found}


class LocalQdrant:
    """Needs the package qdrant-client."""

    def __init__(self, rows: Sequence[Row], vector: Callable[[str], list[float]]) -> None:
        from qdrant_client import QdrantClient, models

        self._models, self._vector, self._lock = models, vector, threading.Lock()
        self.client = QdrantClient(":memory:")
        self.client.create_collection(
            "wiki", models.VectorParams(size=len(vector("")), distance=models.Distance.COSINE)
        )
        self.add(rows)

    def add(self, rows: Sequence[Row]) -> None:
        first = self.client.count("wiki").count
        points = [
            self._models.PointStruct(id=first + place, vector=self._vector(row["text"]), payload=dict(row))
            for place, row in enumerate(rows)
        ]
        self.client.upsert("wiki", points)

    def __call__(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        collection, _, question = path.removeprefix("/collections/").partition("/")
        with self._lock:
            if not self.client.collection_exists(collection):
                return 404, {"status": {"error": f"Not found: Collection `{collection}` doesn't exist!"}}
            try:
                result = self._result(collection, question, body)
            except ValueError as error:
                return 400, {"status": {"error": f"Format error in JSON body: {error}"}}
        return 200, {"result": result, "status": "ok", "time": 0.001}

    def _result(self, collection: str, question: str, body: Any) -> Any:
        models, client = self._models, self.client
        match question:
            case "":
                return client.get_collection(collection).model_dump(mode="json")
            case "points/count":
                asked = models.CountRequest.model_validate(body)
                return client.count(collection, exact=bool(asked.exact)).model_dump()
            case "points":
                wanted = models.PointRequest.model_validate(body)
                found = client.retrieve(collection, wanted.ids, with_payload=bool(wanted.with_payload))
                return [each.model_dump(mode="json") for each in found]
            case _:
                query = models.QueryRequest.model_validate(body)
                answer = client.query_points(
                    collection, query=query.query, using=query.using, limit=query.limit or 10
                )
                return answer.model_dump(mode="json")


def basic(key: str) -> str:
    return f"Basic {base64.b64encode(key.encode()).decode()}"


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
