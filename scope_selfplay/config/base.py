"""What all sections of a run config share."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from scope_selfplay.base.values import Truncation


class ConfigSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    def mistakes(self) -> Iterator[str]:
        """What no single setting shows to be wrong: what was found, what was expected."""
        return iter(())

    def lacking(self) -> Iterator[str]:
        """What a run needs besides, and settings that are only shown do not."""
        return iter(())

    @model_validator(mode="after")
    def _settings_fit_each_other(self, info: ValidationInfo) -> Self:
        is_shown = bool(info.context)
        if mistake := next(chain(self.mistakes(), () if is_shown else self.lacking()), None):
            raise ValueError(mistake)
        return self


class ServedConfig(ConfigSection):
    """Where a model is served, by servers that speak OpenAI's chat completions."""

    base_url: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """URL of the server, such as `http://127.0.0.1:8000/v1`; a partner without one runs in this process. A list names
    servers of the same model: prompts with the same beginning, those about one task, go to the same one, whose cache
    has it; when one is gone, the others take its prompts."""
    model: str | None = None
    """Name of the model at the server; may be left out if the server serves only one model."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""

    @property
    def each_url(self) -> tuple[str, ...]:
        """Where the model is served; empty where it runs in this process."""
        return (self.base_url,) if isinstance(self.base_url, str) else self.base_url or ()


WHOLE_SETTINGS = frozenset({"reward", "search_turns"})
"""Settings that are mappings but are only replaced as a whole: a reward design with its settings, shares."""


ON_ONE_GPU = 18e9
"""Up to so many parameters, which in bf16 take less than half of 80 GB, each GPU of a server has a copy of its own."""


def parameters_in(name: str, mark: str = "") -> float | None:
    """Parameters by the last part of a path or of a hub's `owner/name@commit`; None where it names no size.

    With the mark `a` those that a token meets in a mixture of experts: `Qwen3-235B-A22B`.
    """
    last = PurePosixPath(name.partition("@")[0]).name
    found = re.search(rf"(?:^|[-_]){mark}(\d+\.?\d*|\.\d+)b(?=$|[-_])", last.lower())
    return float(found[1]) * 1e9 if found else None


PassageField = Literal["text", "title", "document", "vector"]
_FIELDS: dict[PassageField, str | None] = {"text": "text", "title": "title"}


def _fields(given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    return _FIELDS | {key: given[key] for key in given if given[key] is not None or key == "title"}


class EngineConfig(ConfigSection):
    """A search engine of somebody else that holds the passages, a row each (docs/operate/serving.md)."""

    name: Literal["elasticsearch", "opensearch", "qdrant"]
    """What answers at `search.url`."""
    index: str = Field(min_length=1)
    """Name of the index, alias or collection."""
    fields: Annotated[dict[PassageField, str | None], BeforeValidator(_fields)] = Field(
        default_factory=lambda: dict(_FIELDS)
    )
    """Names of its fields: `text` of a passage, its `title` (null where there is none), the whole `document`, which the
    tool `open` shows (else the passage itself), and Qdrant's `vector` (else the unnamed one)."""
    encoder: str | None = None
    """What makes a vector of a query: `encoder/` of an index folder, `minilm`, or the folder of a model whose name says
    its family (E5, MiniLM). Qdrant needs it."""

    def mistakes(self) -> Iterator[str]:
        if self.name == "qdrant" and self.encoder is None:
            yield "qdrant compares vectors: name the encoder of its passages"
        if self.name != "qdrant" and (self.encoder or self.fields.get("vector")):
            yield f"{self.name} is asked for words: it takes no encoder and no vector"


def _of_others(given: object) -> object:
    """Earlier releases called our own retriever the engine scope."""
    return None if isinstance(given, Mapping) and given.get("name") == "scope" else given


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
    engine: Annotated[EngineConfig | None, BeforeValidator(_of_others)] = None
    """A search engine of somebody else at `url`: its `name`, `index`, `fields` and `encoder`
    (docs/operate/serving.md). When left out, `scope serve-retriever` answers there."""

    def mistakes(self) -> Iterator[str]:
        if self.engine is not None and self.url is None:
            yield f"engine {self.engine.name} needs url: its address, such as http://127.0.0.1:9200"


OPERATION_OF_SEARCH = {"url": True, "api_key_env": True, "outage": True, "engine": {"encoder"}}
"""Where the server is and how it is asked, which is not what a run computes; what an encoder
is stands in the index's identity."""


class OpenConfig(ConfigSection):
    """`open`: a document of the corpus by the title or id that a search showed, in pages."""

    max_calls: int = Field(default=5, ge=1)
    """Calls in one rollout."""
    max_tokens: int = Field(default=3000, ge=16)
    """Maximum policy tokens of a page (Tournament-GRPO: 3,000)."""
    truncation: Literal["pages", "middle"] = "pages"
    """What becomes of a longer document: it comes in pages, or loses its middle."""


class McpConfig(ConfigSection):
    """Tools of an MCP server, a process of this machine (`command`) or one that is reached over HTTP (`url`)."""

    command: tuple[str, ...] = ()
    """Program and arguments of a server that speaks over its standard input and output; each worker starts its own."""
    url: str | None = None
    """URL of a server that speaks streamable HTTP, such as `http://127.0.0.1:9000/mcp`."""
    api_key_env: str | None = None
    """Environment variable that holds the bearer token for `url`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of `command`: its variable -> the variable of this environment whose value it gets. Of all others it
    sees PATH and HOME and their like alone."""
    only: tuple[str, ...] | None = None
    """Names of the tools that are used; all when left out."""
    max_calls: int = Field(default=5, ge=1)
    """Calls of each tool in one rollout."""
    max_tokens: int = Field(default=500, ge=16)
    """Maximum policy tokens of a result."""
    seconds: float = Field(default=30.0, gt=0)
    """Time of a call; after that it is stopped and the policy is told."""
    outage: float = Field(default=120.0, gt=0)
    """Seconds for which a call waits for a server that is down; then the stage stops and can be resumed."""

    def mistakes(self) -> Iterator[str]:
        if bool(self.command) == bool(self.url):
            yield "expected command: [program, ...] or url: http://..., and one of them alone"
        if self.url is None and self.api_key_env is not None:
            yield "api_key_env is for a url; a command gets secrets by env: {ITS_NAME: OUR_NAME}"
        if self.url is not None and self.env:
            yield "env is for a command; a url takes its key from api_key_env"

    @property
    def label(self) -> str:
        """The program or host."""
        return self.command[0].rpartition("/")[2] if self.command else urlsplit(self.url or "").netloc


class ToolConfig(ConfigSection):
    """One entry of `tools`: `open`, or a mapping with one key."""

    open: OpenConfig | None = None
    mcp: McpConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_alone_is_the_default(cls, given: Any) -> Any:
        if given == "open":
            return {"open": OpenConfig()}
        # A resolved config has both keys, one of them null.
        if isinstance(given, dict) and given.get("open", ...) is None and given.get("mcp") is None:
            return {**given, "open": OpenConfig()}
        return given

    def mistakes(self) -> Iterator[str]:
        if (self.open is None) == (self.mcp is None):
            yield "expected one of open: {...} and mcp: {...}"


OPERATION_OF_TOOLS = {"__all__": {"mcp": {"command", "url", "api_key_env", "env", "outage"}}}
"""Where servers are and how they are asked, which is not what a run computes."""
