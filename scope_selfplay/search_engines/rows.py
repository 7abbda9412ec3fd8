"""What the adapters share: how an engine is asked, and how a row of it is read as a passage."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from scope_selfplay.config import EngineConfig
from scope_selfplay.errors import ConfigError, SearchError
from scope_selfplay.schemas import Document, Passage

Ask = Callable[[str, str, Mapping[str, Any] | None], Awaitable[dict[str, Any]]]
"""Method, path and JSON body to a JSON object. Raises as `EngineSearcher.search`."""


@dataclass(frozen=True)
class Held:
    """What an engine holds: `mark` changes when its index is another one."""

    rows: int
    mark: str


class Adapter(Protocol):
    """One kind of engine. Every method raises SearchError, ConfigError for settings that do not fit the index."""

    async def held(self) -> Held: ...

    async def search(self, query: str, topk: int) -> list[Passage]: ...

    async def document(self, passage_id: str) -> Document | None: ...


def passage(settings: EngineConfig, row_id: object, row: Mapping[str, Any], score: float) -> Passage:
    title, text = _title(settings, row), _field(settings, "text", row)
    return Passage(id=str(row_id), title=title, text=text, score=float(score))


def document(settings: EngineConfig, row_id: object, row: Mapping[str, Any]) -> Document:
    text = _field(settings, "document" if settings.document else "text", row)
    return Document(id=str(row_id), title=_title(settings, row), text=text)


def _title(settings: EngineConfig, row: Mapping[str, Any]) -> str:
    # Some rows of a corpus have no title.
    return str(row.get(settings.title) or "") if settings.title else ""


def _field(settings: EngineConfig, setting: str, row: Mapping[str, Any]) -> str:
    name = getattr(settings, setting)
    value = row.get(name)
    if isinstance(value, str):
        return value
    if name in row:
        raise SearchError(f"{settings.name}: {name} of a row of {settings.index} is no text: {value!r:.60}")
    found = ", ".join(sorted(map(str, row))[:12]) or "none"
    raise ConfigError(
        f"search.engine.{setting}: a row of {settings.index} has no field {name!r}; its fields: {found}"
    )
