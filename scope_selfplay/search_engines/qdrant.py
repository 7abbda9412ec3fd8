"""Qdrant over its REST interface: the points whose vector is nearest to the query's."""

import asyncio
import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from scope_selfplay.config import EngineConfig
from scope_selfplay.schemas import Document, Passage
from scope_selfplay.search_engines.encoding import QueryEncoder
from scope_selfplay.search_engines.rows import Ask, Held, document, passage


class Qdrant:
    def __init__(self, settings: EngineConfig, ask: Ask, encoder: QueryEncoder) -> None:
        self._settings, self._ask, self._encoder = settings, ask, encoder
        self._collection = f"/collections/{quote(settings.index or '', safe='')}"

    async def held(self) -> Held:
        known = (await self._ask("GET", self._collection, None))["result"]
        counted = await self._ask("POST", f"{self._collection}/points/count", {"exact": True})
        shape = json.dumps(known["config"]["params"]["vectors"], sort_keys=True)
        return Held(int(counted["result"]["count"]), hashlib.sha256(shape.encode()).hexdigest())

    async def search(self, query: str, topk: int) -> list[Passage]:
        vector = await asyncio.to_thread(self._encoder.vector, query)
        body: dict[str, Any] = {"query": vector, "limit": topk, "with_payload": True}
        if self._settings.vector:
            body["using"] = self._settings.vector
        answer = await self._ask("POST", f"{self._collection}/points/query", body)
        points: list[Mapping[str, Any]] = answer["result"]["points"]
        return [passage(self._settings, each["id"], each["payload"] or {}, each["score"]) for each in points]

    async def document(self, passage_id: str) -> Document | None:
        point = _point_id(passage_id)
        if point is None:
            return None
        answer = await self._ask("POST", f"{self._collection}/points", {"ids": [point], "with_payload": True})
        points = answer["result"]
        return document(self._settings, points[0]["id"], points[0]["payload"] or {}) if points else None


def _point_id(text: str) -> int | str | None:
    """A number of 64 bits or a UUID; None for what cannot be a point's id."""
    if text.isascii() and text.isdecimal():
        return int(text) if int(text) < 1 << 64 else None
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None
