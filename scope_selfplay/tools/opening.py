"""The tools that a run's config lists, opened: servers are asked what they offer, once, and a run keeps that."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from scope_selfplay.config.tools import ToolConfig
from scope_selfplay.dialects import is_tool_name
from scope_selfplay.errors import ConfigError, OutsideError, RunMismatchError
from scope_selfplay.schemas import Value
from scope_selfplay.search import Library, Searcher
from scope_selfplay.store import RunFolder, write_atomic
from scope_selfplay.store.files import read_value
from scope_selfplay.tools.mcp_server import McpServer
from scope_selfplay.tools.mcp_tools import mcp_tools
from scope_selfplay.tools.open_document import open_tool
from scope_selfplay.tools.tool import Tool

RESERVED = frozenset(
    {
        "search",
        "think",
        "task",
        "answer",
        "question",
        "information",
        "tool_call",
        "tool_response",
        "function_calls",
    }
)
"""Names that are tags of the families' own protocols."""


class ToolRecord(Value):
    """What a policy was told of a tool: a run keeps it, and refuses a server that offers something else later."""

    name: str
    description: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class OpenedTools:
    """The Solver's tools besides search, and the servers behind them."""

    tools: tuple[Tool, ...] = ()
    servers: tuple[McpServer, ...] = ()

    def close(self) -> None:
        for server in self.servers:
            server.close()


def open_tools(
    settings: Sequence[ToolConfig], searcher: Searcher, on_outage: Callable[[OutsideError], None]
) -> OpenedTools:
    """Raises ConfigError for tools that cannot be had together or at all, ToolError for a server that is down."""
    tools: list[Tool] = []
    servers: list[McpServer] = []
    try:
        for entry in settings:
            if entry.open is not None:
                tools.append(open_tool(_library(searcher), entry.open))
            if entry.mcp is not None:
                servers.append(McpServer(entry.mcp, on_outage))
                tools += mcp_tools(servers[-1])
        _check_names([tool.name for tool in tools])
    except BaseException:
        OpenedTools((), tuple(servers)).close()
        raise
    return OpenedTools(tuple(tools), tuple(servers))


def check_same_tools(folder: RunFolder, tools: Sequence[Tool]) -> None:
    """Raises RunMismatchError where the run was made with tools that said something else of themselves."""
    found = [
        ToolRecord(name=tool.name, description=tool.description, arguments=dict(tool.schema))
        for tool in tools
    ]
    before = read_value(folder.tools, list[ToolRecord], "restore it, or start a new run")
    if before is None:
        write_atomic(folder.tools, TypeAdapter(list[ToolRecord]).dump_json(found, indent=1) + b"\n")
        return
    if before != found:
        other = sorted({each.name for each in [*before, *found] if (each in before) != (each in found)})
        raise RunMismatchError(
            f"tools: {', '.join(other) or 'the order'} is not as in {folder.tools}, with which the run was made; serve "
            "the same tools, or use another --name"
        )


def _library(searcher: Searcher) -> Library:
    if not isinstance(searcher, Library):
        raise ConfigError("tools: open needs a corpus that is searched, here or by `scope serve-retriever`")
    return searcher


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name in RESERVED or not is_tool_name(name):
            raise ConfigError(f"tools: no tool may be called {name!r}; leave it out by `only`")
        if names.count(name) > 1:
            raise ConfigError(f"tools: two tools are called {name!r}; leave one of them out by `only`")
