"""Search engines of somebody else that hold a run's passages, as searchers: asked in their words, never written to.

async with ENGINES[settings.name](settings, client, expected_identity=None) as searcher:
    passages = await searcher.search("Aldmoor", 3)
"""

import asyncio
import hashlib
import json
import tempfile
import uuid
from abc import abstractmethod
from collections.abc import Awaitable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from retrieval.client import RefusedError, RemoteSearcher
from retrieval.encoder import (
    FAMILIES,
    Backend,
    Encoder,
    encoder_hash,
    family_of,
    open_encoder,
    prepare_encoder,
)
from retrieval.folder import ENCODER_SETTINGS
from scope_selfplay.base.errors import ConfigError, SearchError
from scope_selfplay.base.text import encodable
from scope_selfplay.base.values import Document, Passage
from scope_selfplay.config.base import EngineConfig, PassageField
from scope_selfplay.net.client import Client

# Characters: a longer query could have more words than an engine takes clauses (1,024 in its older releases).
_LONGEST = 1000
Found = TypeVar("Found")


class HeldRow(NamedTuple):
    """What an engine holds of one passage."""

    id: object
    fields: Mapping[str, Any]
    score: float = 0.0


class EngineSearcher(RemoteSearcher):
    """An engine's index; a subclass asks one kind of engine, and may meet what is not of its kind: the wall is here.

    Raises as `RemoteSearcher`, ConfigError for settings that do not fit the index.
    """

    def __init__(self, settings: EngineConfig, client: Client, *, expected_identity: str | None) -> None:
        super().__init__(client, expected_identity, what=f"{settings.name} {settings.index}")
        self._settings = settings
        self._place = quote(settings.index or "", safe="")

    async def search(self, query: str, topk: int) -> list[Passage]:
        return await self._read(self._passages(encodable(query), topk))

    async def document(self, passage_id: str) -> Document | None:
        return await self._read(self._document(encodable(passage_id)))

    @abstractmethod
    async def _held(self) -> tuple[int, str]:
        """The number of rows, and a text that is another one for another index."""

    @abstractmethod
    async def _nearest(self, query: str, topk: int) -> list[HeldRow]: ...

    @abstractmethod
    async def _row(self, passage_id: str) -> HeldRow | None: ...

    async def _served(self) -> dict[str, Any]:
        kind, encoder = self._settings.name, self._settings.encoder
        hashed = open_query_encoder(encoder)[1] if encoder else ""
        rows, held = await self._read(self._held())
        mark = hashlib.sha256(held.encode()).hexdigest()
        identity = f"{kind}-{mark[:12]}-{rows}{f'-{hashed[:12]}' if hashed else ''}"
        return {"identity": identity, "kind": kind, "rows": rows, "encoder_hash": hashed}

    async def _passages(self, query: str, topk: int) -> list[Passage]:
        return [
            Passage(
                id=str(row.id), title=self._title(row), text=self._field("text", row), score=float(row.score)
            )
            for row in await self._nearest(query, topk)
        ]

    async def _document(self, passage_id: str) -> Document | None:
        row = await self._row(passage_id)
        if row is None:
            return None
        text = self._field("document" if self._settings.fields.get("document") else "text", row)
        return Document(id=str(row.id), title=self._title(row), text=text)

    async def _read(self, answer: Awaitable[Found]) -> Found:
        """What the engine answered, or SearchError for another shape."""
        try:
            return await answer
        except RefusedError as refused:
            if refused.status == 404:
                engine, index = self._settings.name, self._settings.index
                raise ConfigError(f"search.engine.index: {engine} has no {index!r}: {refused}") from None
            raise
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise SearchError(
                f"the answer of {self._settings.name} has another shape: {type(error).__name__}: {error}"
            ) from None

    def _title(self, row: HeldRow) -> str:
        # Some rows of a corpus have no title.
        field = self._settings.fields["title"]
        return str(row.fields.get(field) or "") if field else ""

    def _field(self, setting: PassageField, row: HeldRow) -> str:
        name, settings = self._settings.fields[setting], self._settings
        value = row.fields.get(name or "")
        if isinstance(value, str):
            return value
        if name in row.fields:
            raise SearchError(
                f"{settings.name}: {name} of a row of {settings.index} is no text: {value!r:.60}"
            )
        found = ", ".join(sorted(map(str, row.fields))[:12]) or "none"
        raise ConfigError(
            f"search.engine.fields.{setting}: a row of {settings.index} has no field {name!r}; its fields: {found}"
        )


class Elasticsearch(EngineSearcher):
    """And OpenSearch: words of title and text, scored by the index's own similarity (BM25)."""

    async def _held(self) -> tuple[int, str]:
        # An alias may stand for several indices.
        indices = await self._ask("GET", f"/{self._place}/_settings")
        uuids = sorted(each["settings"]["index"]["uuid"] for each in indices.values())
        counted = await self._ask("GET", f"/{self._place}/_count")
        return int(counted["count"]), json.dumps(uuids)

    async def _nearest(self, query: str, topk: int) -> list[HeldRow]:
        fields = [each for each in (self._settings.fields["title"], self._settings.fields["text"]) if each]
        words = {"multi_match": {"query": query[:_LONGEST], "fields": fields, "type": "cross_fields"}}
        return await self._rows(words, topk)

    async def _row(self, passage_id: str) -> HeldRow | None:
        rows = await self._rows({"ids": {"values": [passage_id]}}, 1)
        return rows[0] if rows else None

    async def _rows(self, query: Mapping[str, Any], most: int) -> list[HeldRow]:
        # A shard that does not answer is a fault, not fewer passages.
        path = f"/{self._place}/_search?allow_partial_search_results=false"
        answer = await self._ask("POST", path, {"query": query, "size": most})
        return [HeldRow(row["_id"], row["_source"], row["_score"]) for row in answer["hits"]["hits"]]


class Qdrant(EngineSearcher):
    """Over its REST interface: the points whose vector is nearest to the query's."""

    async def _held(self) -> tuple[int, str]:
        known = (await self._ask("GET", f"/collections/{self._place}"))["result"]
        counted = await self._ask("POST", f"/collections/{self._place}/points/count", {"exact": True})
        return int(counted["result"]["count"]), json.dumps(
            known["config"]["params"]["vectors"], sort_keys=True
        )

    async def _nearest(self, query: str, topk: int) -> list[HeldRow]:
        encoder, _ = open_query_encoder(self._settings.encoder or "")
        vector = (await asyncio.to_thread(encoder.queries, [query]))[0].tolist()
        body: dict[str, Any] = {"query": vector, "limit": topk, "with_payload": True}
        if self._settings.fields.get("vector"):
            body["using"] = self._settings.fields.get("vector")
        answer = await self._ask("POST", f"/collections/{self._place}/points/query", body)
        return [
            HeldRow(each["id"], each["payload"] or {}, each["score"]) for each in answer["result"]["points"]
        ]

    async def _row(self, passage_id: str) -> HeldRow | None:
        point: int | str
        try:
            is_number = passage_id.isascii() and passage_id.isdecimal()
            point = int(passage_id) if is_number else str(uuid.UUID(passage_id))
        except ValueError:
            return None
        # The id of a point is a number of 64 bits or a UUID.
        if isinstance(point, int) and point >= 1 << 64:
            return None
        body = {"ids": [point], "with_payload": True}
        points = (await self._ask("POST", f"/collections/{self._place}/points", body))["result"]
        return HeldRow(points[0]["id"], points[0]["payload"] or {}) if points else None


ENGINES: Mapping[str, type[EngineSearcher]] = {
    "elasticsearch": Elasticsearch,
    "opensearch": Elasticsearch,
    "qdrant": Qdrant,
}
"""By the names that `EngineConfig` knows."""


# A trainer begins an event loop, and opens its searcher, in every step.
@lru_cache(maxsize=2)
def open_query_encoder(source: str) -> tuple[Encoder, str]:
    """What made the vectors of an engine's passages, with its hash: one for all event loops and threads.

    Raises ConfigError for a model whose family is unknown, CheckpointError for one that cannot be read.
    """
    if (Path(source) / ENCODER_SETTINGS).is_file():
        return open_encoder(Path(source)), encoder_hash(Path(source))
    family = family_of(source)
    if family is None:
        raise ConfigError(
            f"search.engine.encoder: the name of {source} holds no family (e5, minilm); give `encoder/` of an index "
            "folder that was built with --family"
        )
    with tempfile.TemporaryDirectory() as folder:
        prepare_encoder(source, FAMILIES[family], Backend.ONNX, Path(folder))
        return open_encoder(Path(folder)), encoder_hash(Path(folder))
