"""An engine's index as a searcher: the handshake that names it, its faults as ours.

async with EngineSearcher(settings, client, expected_identity=None) as searcher:
    passages = await searcher.search("Aldmoor", 3)
"""

import json
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from retrieval.client import RefusedError, RetrieverDownError
from scope_selfplay.config import EngineConfig
from scope_selfplay.errors import ConfigError, RunMismatchError, SearchError
from scope_selfplay.schemas import Document, Passage
from scope_selfplay.search_engines.elasticsearch import Elasticsearch
from scope_selfplay.search_engines.encoding import open_query_encoder
from scope_selfplay.search_engines.qdrant import Qdrant
from scope_selfplay.search_engines.rows import Adapter
from scope_selfplay.wire.json_client import JsonClient, Refused, ServerUnavailable

Found = TypeVar("Found")


class EngineSearcher:
    """As `retrieval.client.HttpSearcher`."""

    def __init__(self, settings: EngineConfig, client: JsonClient, *, expected_identity: str | None) -> None:
        self._settings, self._client, self._expected = settings, client, expected_identity
        self._adapter: Adapter
        self._opened = AsyncExitStack()
        self.identity = ""
        self.info: dict[str, Any] = {}
        """What `index.json` of a run keeps of it."""

    async def __aenter__(self) -> Self:
        """Raises as `search`, RunMismatchError for another index than the expected one."""
        encoder = open_query_encoder(self._settings.encoder) if self._settings.encoder else None
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(self._client)
            if encoder is not None:
                self._adapter = Qdrant(self._settings, self._ask, encoder)
            else:
                self._adapter = Elasticsearch(self._settings, self._ask)
            await self._shake_hands(encoder.hash if encoder else "")
            self._opened = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.aclose()

    async def search(self, query: str, topk: int) -> list[Passage]:
        """Raises SearchError (RetrieverDownError where nothing answered), ConfigError for rows of another shape."""
        return await self._read(self._adapter.search(_encodable(query), topk))

    async def document(self, passage_id: str) -> Document | None:
        """Raises as `search`."""
        return await self._read(self._adapter.document(_encodable(passage_id)))

    async def _shake_hands(self, encoder: str) -> None:
        kind, held = self._settings.name, await self._read(self._adapter.held())
        self.identity = f"{kind}-{held.mark[:12]}-{held.rows}{f'-{encoder[:12]}' if encoder else ''}"
        self.info = {"identity": self.identity, "kind": kind, "rows": held.rows, "encoder_hash": encoder}
        if self._expected is not None and self.identity != self._expected:
            raise RunMismatchError(
                f"{kind} {self._settings.index} now is {self.identity}, this run was made with {self._expected}: "
                "search that index, or start a new run"
            )

    async def _read(self, answer: Awaitable[Found]) -> Found:
        """The wall to the engine: what it answered is read, or is another shape."""
        try:
            return await answer
        except (KeyError, IndexError, TypeError, ValueError) as error:
            message = (
                f"the answer of {self._settings.name} has another shape: {type(error).__name__}: {error}"
            )
            raise SearchError(message) from None

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            return await self._client.ask(method, path, None if body is None else json.dumps(body).encode())
        except Refused as refused:
            if refused.status == 404:
                engine, index = self._settings.name, self._settings.index
                raise ConfigError(f"search.engine.index: {engine} has no {index!r}: {refused}") from None
            raise RefusedError(str(refused), refused.status, "") from None
        except ServerUnavailable as fault:
            raise RetrieverDownError(str(fault)) from None


def _encodable(text: str) -> str:
    """Half a surrogate pair is no UTF-8."""
    return text.encode("utf-8", "replace").decode()
