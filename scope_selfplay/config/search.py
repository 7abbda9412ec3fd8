"""What the policies search, and how much of it they are shown."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from scope_selfplay.config.base import ConfigSection
from scope_selfplay.schemas import Truncation


class EngineConfig(ConfigSection):
    """A search engine of somebody else that holds the passages, a row each (docs/retrieval.md)."""

    name: Literal["scope", "elasticsearch", "opensearch", "qdrant"] = "scope"
    """What is searched: `scope` is `scope serve-retriever` at `search.url`, or BM25 in this process."""
    index: str | None = None
    """Name of the index, alias or collection."""
    text: str = "text"
    """Field with a passage's text."""
    title: str | None = "title"
    """Field with its title; null where there is none."""
    document: str | None = None
    """Field with the whole document, which the tool `open` shows; when left out, the passage itself."""
    vector: str | None = None
    """Name of the vector that queries are compared with (Qdrant); the unnamed one when left out."""
    encoder: str | None = None
    """What makes a vector of a query: `encoder/` of an index folder, `minilm`, or the folder of a model whose name says
    its family (E5, MiniLM). Qdrant needs it."""

    @model_validator(mode="after")
    def _fits_the_engine(self) -> Self:
        if self.name == "scope":
            if self != EngineConfig.model_construct(name="scope"):
                raise ValueError("expected the name of an engine beside its settings, such as name: qdrant")
            return self
        if not self.index:
            raise ValueError(f"{self.name} needs index: the name of its index or collection")
        if self.name == "qdrant" and self.encoder is None:
            raise ValueError("qdrant compares vectors: name the encoder of its passages")
        if self.name != "qdrant" and (self.encoder or self.vector):
            raise ValueError(f"{self.name} is asked for words: it takes no encoder and no vector")
        return self


class SearchConfig(ConfigSection):
    topk: int = Field(default=3, ge=1)
    """Documents per query (Table 9)."""
    max_tokens: int = Field(default=500, ge=8)
    """Maximum policy tokens of a tool response (Table 9)."""
    truncation: Truncation = Truncation.END
    """What a tool response that is too long loses: the lowest-ranked documents and the end of the last one shown, or
    the middle of every long document, which then have equal shares (Tournament-GRPO, table 4)."""
    url: str | None = None
    """URL of a retriever, such as `http://127.0.0.1:8000`; when left out, BM25 over the corpus in this process."""
    api_key_env: str | None = None
    """Environment variable that holds the retriever's bearer token, or the engine's API key or `user:password`."""
    outage: float = Field(default=600.0, gt=0)
    """Seconds for which a search waits for a retriever that is down; then the stage stops and can be resumed."""
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _engine_has_an_address(self) -> Self:
        if self.engine.name != "scope" and self.url is None:
            raise ValueError(
                f"engine {self.engine.name} needs url: its address, such as http://127.0.0.1:9200"
            )
        return self


OPERATION_OF_SEARCH = {"url": True, "api_key_env": True, "outage": True, "engine": {"encoder"}}
"""Where the server is and how it is asked, which is not what a run computes; what an encoder
is stands in the index's identity."""


def without_retriever(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run that searches another engine starts no retriever of its own, unless it says that it does."""
    search, cluster = given.get("search"), given.get("cluster", {})
    engine = search.get("engine") if isinstance(search, Mapping) else None
    if not isinstance(engine, Mapping) or engine.get("name", "scope") == "scope":
        return given
    retriever = cluster.get("retriever", {}) if isinstance(cluster, Mapping) else None
    if not isinstance(retriever, Mapping):
        return given
    return {**given, "cluster": {**cluster, "retriever": {"serve": False, **retriever}}}
