"""LanceDB, read in this process from a folder or an object store: by words (its full-text index), or by vectors."""

import asyncio
from typing import Any

from scope_selfplay.config import EngineConfig
from scope_selfplay.errors import ConfigError, SearchError
from scope_selfplay.schemas import Document, Passage
from scope_selfplay.search_engines.encoding import QueryEncoder
from scope_selfplay.search_engines.rows import Held, document, passage


class Lance:
    """Make it with `open_table`."""

    def __init__(self, settings: EngineConfig, table: Any, encoder: QueryEncoder | None) -> None:
        self._settings, self._table, self._encoder = settings, table, encoder

    async def held(self) -> Held:
        return Held(await self._table.count_rows(), str(await self._table.version()))

    async def search(self, query: str, topk: int) -> list[Passage]:
        if self._encoder is not None:
            vector = await asyncio.to_thread(self._encoder.vector, query)
            found = self._table.query().nearest_to(vector).distance_type("cosine")
            found = found.column(self._settings.vector) if self._settings.vector else found
        else:
            from lancedb.query import MultiMatchQuery

            fields = [each for each in (self._settings.title, self._settings.text) if each]
            found = self._table.query().nearest_to_text(MultiMatchQuery(query, fields))
        rows = await self._read(found.limit(topk))
        # A nearer row has a smaller distance.
        scores = [row["_score"] if "_score" in row else 1.0 - row["_distance"] for row in rows]
        scored = zip(rows, scores, strict=True)
        return [passage(self._settings, row["id"], row, float(score)) for row, score in scored]

    async def document(self, passage_id: str) -> Document | None:
        quoted = passage_id.replace("'", "''")
        rows = await self._read(self._table.query().where(f"id = '{quoted}'").limit(1))
        return document(self._settings, rows[0]["id"], rows[0]) if rows else None

    async def _read(self, query: Any) -> list[dict[str, Any]]:
        try:
            return list(await query.to_list())
        except (RuntimeError, ValueError) as error:
            raise SearchError(f"lancedb: {str(error).splitlines()[0][:300]}") from None


async def open_table(settings: EngineConfig) -> Any:
    try:
        import lancedb
    except ImportError:
        missing = "search.engine: lancedb is not installed; pip install 'scope-selfplay[lancedb]'"
        raise ConfigError(missing) from None
    try:
        return await (await lancedb.connect_async(settings.folder)).open_table(settings.index)
    except (RuntimeError, ValueError, OSError) as error:
        said = str(error).splitlines()[0][:300]
        raise ConfigError(f"search.engine.index: {said} in {settings.folder}") from None
