"""Elasticsearch and OpenSearch: words of title and text, scored by the index's own similarity (BM25)."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from scope_selfplay.config import EngineConfig
from scope_selfplay.schemas import Document, Passage
from scope_selfplay.search_engines.rows import Ask, Held, document, passage

# Characters: a longer query could have more words than an engine takes clauses (1,024 in its older releases).
_LONGEST = 1000


class Elasticsearch:
    def __init__(self, settings: EngineConfig, ask: Ask) -> None:
        self._settings, self._ask = settings, ask
        self._index = f"/{quote(settings.index or '', safe='')}"

    async def held(self) -> Held:
        """An alias may stand for several indices."""
        indices = await self._ask("GET", f"{self._index}/_settings", None)
        uuids = sorted(each["settings"]["index"]["uuid"] for each in indices.values())
        counted = await self._ask("GET", f"{self._index}/_count", None)
        return Held(int(counted["count"]), hashlib.sha256(json.dumps(uuids).encode()).hexdigest())

    async def search(self, query: str, topk: int) -> list[Passage]:
        fields = [each for each in (self._settings.title, self._settings.text) if each]
        words = {"multi_match": {"query": query[:_LONGEST], "fields": fields, "type": "cross_fields"}}
        rows = await self._rows(words, topk)
        return [passage(self._settings, row["_id"], row["_source"], row["_score"]) for row in rows]

    async def document(self, passage_id: str) -> Document | None:
        rows = await self._rows({"ids": {"values": [passage_id]}}, 1)
        return document(self._settings, rows[0]["_id"], rows[0]["_source"]) if rows else None

    async def _rows(self, query: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
        # A shard that does not answer is a fault, not fewer passages.
        path = f"{self._index}/_search?allow_partial_search_results=false"
        answer = await self._ask("POST", path, {"query": query, "size": most})
        rows: list[dict[str, Any]] = answer["hits"]["hits"]
        return rows
