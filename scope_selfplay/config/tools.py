"""The tools that the Solver has besides search."""

from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from scope_selfplay.config.base import ConfigSection


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

    name: str = Field(default="", pattern=r"^[a-z0-9-]{0,32}$")
    """Name in messages; when left out, the program or host."""
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
    concurrency: int = Field(default=8, ge=1)
    """Calls that a worker has at the server at the same time."""
    per_second: float | None = Field(default=None, gt=0)
    """Calls that a worker begins in a second; unlimited when left out."""
    outage: float = Field(default=120.0, gt=0)
    """Seconds for which a call waits for a server that is down; then the stage stops and can be resumed."""

    @model_validator(mode="after")
    def _is_one_server(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("expected command: [program, ...] or url: http://..., and one of them alone")
        if self.url is None and self.api_key_env is not None:
            raise ValueError("api_key_env is for a url; a command gets secrets by env: {ITS_NAME: OUR_NAME}")
        if self.url is not None and self.env:
            raise ValueError("env is for a command; a url takes its key from api_key_env")
        return self

    @property
    def label(self) -> str:
        if self.name:
            return self.name
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

    @model_validator(mode="after")
    def _is_one_tool(self) -> Self:
        if (self.open is None) == (self.mcp is None):
            raise ValueError("expected one of open: {...} and mcp: {...}")
        return self


OPERATION_OF_TOOLS: dict[str, Any] = {
    "__all__": {
        "mcp": {"name", "command", "url", "api_key_env", "env", "concurrency", "per_second", "outage"},
    }
}
"""Where servers are and how they are asked, which is not what a run computes."""
