"""The tools that a run's config lists, opened, and MCP servers by the official package: calls in bounds.

A server is asked once what it offers, and a run keeps that. One connection per process, opened again when it breaks.
The server has an event loop in a thread of its own, because a connection outlives the loops of a training's steps, and
calls come from whichever loop an episode runs in. A connection lives in a task of its own: what the transport raises
when a server dies ends that task and nothing else, and a call that waits is told.
"""

import asyncio
import contextlib
import json
import logging
import re
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeVar

from pydantic import TypeAdapter

from scope_selfplay.base.errors import (
    ConfigError,
    OutsideError,
    RunMismatchError,
    ToolError,
    did_you_mean,
    imports_for,
)
from scope_selfplay.base.values import ToolFault, Value
from scope_selfplay.config.base import McpConfig, ToolConfig
from scope_selfplay.dialects.families import is_tool_name
from scope_selfplay.net.guard import checked_url, secret
from scope_selfplay.search.searcher import HANDSHAKE_SECONDS, NothingToSearch, Searcher
from scope_selfplay.search.tools import Tool, ToolBudget, ToolResult, ToolSpec, open_tool, schema_problem
from scope_selfplay.store.files import read_value, write_atomic
from scope_selfplay.store.folder import RunFolder

_CONCURRENCY = 8
"""Calls that a worker has at a server at the same time."""
_ATTEMPTS = 3
"""A server that dies under a call is asked again: another call may have killed it. This one may, too."""
_PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0)
_MOST_PAGES = 32
# What the package says in place of a server that is away, beside CONNECTION_CLOSED.
_AWAY = ("Session terminated", "Server returned an error response")
LONGEST_RESULT = 200_000
"""Characters of a result that are read."""
LONGEST_DESCRIPTION = 1000
Found = TypeVar("Found")


RESERVED = frozenset(
    "search think task answer question information tool_call tool_response function_calls".split()
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
    servers: tuple["McpServer", ...] = ()

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
                if isinstance(searcher, NothingToSearch):
                    raise ConfigError(
                        "tools: open needs a corpus that is searched, here or by `scope serve-retriever`"
                    )
                tools.append(open_tool(searcher, entry.open))
            if entry.mcp is not None:
                servers.append(McpServer(entry.mcp, on_outage))
                tools += servers[-1].tools()
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


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name in RESERVED or not is_tool_name(name):
            raise ConfigError(f"tools: no tool may be called {name!r}; leave it out by `only`")
        if names.count(name) > 1:
            raise ConfigError(f"tools: two tools are called {name!r}; leave one of them out by `only`")


class ConnectionEnded(Exception):
    """The server was not reached, died, or ended the session before the call was answered."""


class NoAnswerYet(ConnectionEnded):
    """It was waited for only so long."""


class CallRefused(Exception):
    """The server answered with an error; its text."""


class McpServer:
    """Raises ConfigError as `check_settings` does. `on_outage` is told when it is down for too long."""

    def __init__(self, settings: McpConfig, on_outage: Callable[[ToolError], None]) -> None:
        check_settings(settings)
        self.settings = settings
        self._on_outage = on_outage
        self._outage: ToolError | None = None
        self._connection: _Connection | None = None
        self.starts = 0
        """Connections so far."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._thread.start()
        self._opening = asyncio.Lock()
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    def tools(self) -> list[Tool]:
        """What a run uses of the server; blocks. Raises ToolError where it does not answer, ConfigError for a tool that
        it has not, or whose arguments no schema describes.
        """
        listed, only, label = self._listed(), self.settings.only, self.settings.label
        names = [tool.name for tool in listed]
        for name in only or ():
            if name not in names:
                raise ConfigError(
                    f"tools.mcp.only: the server {label} has no tool {name!r}{did_you_mean(name, names)}; it has "
                    f"{', '.join(names) or 'none'}"
                )
        chosen = [tool for tool in listed if only is None or tool.name in only]
        if not chosen:
            raise ConfigError(f"tools: the MCP server {label} offers no tool")
        return [self._as_tool(tool.name, tool.description or "", tool.input_schema) for tool in chosen]

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """From any event loop. Raises ToolError when the server is down for longer than `outage`; TimeoutError when the
        call takes longer than `seconds`, in which waiting for the server does not count.
        """
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._call(tool, arguments), self._loop)
        )

    def close(self) -> None:
        if self._loop.is_closed():
            return
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._forget(self._connection), self._loop).result(timeout=20.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
        if not self._thread.is_alive():
            self._loop.close()

    def _listed(self) -> list[Any]:
        async def ask() -> list[Any]:
            seconds = min(HANDSHAKE_SECONDS, self.settings.outage)
            connection = await self._connected(seconds)
            found: list[Any] = []
            cursor: str | None = None
            for _ in range(_MOST_PAGES):
                page = await connection.ask(connection.client.list_tools(cursor=cursor), seconds)
                found += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    break
            return found

        try:
            return asyncio.run_coroutine_threadsafe(ask(), self._loop).result()
        except (ConnectionEnded, CallRefused, TimeoutError) as error:
            raise ToolError(f"tools: {self.settings.label} does not list its tools: {error}") from None

    def _as_tool(self, name: str, description: str, schema: Mapping[str, Any]) -> Tool:
        settings = self.settings
        if (problem := schema_problem(schema)) is not None:
            raise ConfigError(
                f"tools: {settings.label} describes the arguments of {name!r} by no JSON schema: {problem}"
            )
        spec = ToolSpec(
            name=local_name(name),
            description=" ".join(clean_text(description).split())[:LONGEST_DESCRIPTION],
            schema=schema,
            budget=ToolBudget(settings.max_calls, settings.max_tokens, settings.seconds),
            keeps_time=True,
        )
        return spec.called_by(lambda arguments: self.call(name, arguments))

    async def _call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        async with self._slots:
            for _ in range(_ATTEMPTS):
                connection = await self._connected(self.settings.outage)
                try:
                    answer = await connection.ask(
                        connection.client.call_tool(tool, dict(arguments)), self.settings.seconds
                    )
                except ConnectionEnded:
                    await self._forget(connection)
                except CallRefused as error:
                    return ToolResult(clean_text(str(error)), fault=ToolFault.ERROR)
                else:
                    fault = ToolFault.ERROR if answer.is_error else None
                    return ToolResult(clean_text(_text_of(answer)), fault=fault)
            return ToolResult(f"The server of {tool} ended during the call.", fault=ToolFault.ERROR)

    async def _connected(self, patience: float) -> "_Connection":
        """The connection, a new one where the last has ended. Raises ToolError when none opens for so long."""
        async with self._opening:
            if self._outage is not None:
                raise self._outage
            if self._connection is not None and self._connection.is_alive:
                return self._connection
            end, tries, why = time.monotonic() + patience, 0, None
            while True:
                connection = _Connection(self.settings)
                try:
                    await connection.wait_until_open(max(end - time.monotonic(), 1.0))
                except ConnectionEnded as ended:
                    await connection.close()
                    # What a server died of says more than that the last attempt was cut short.
                    why = ended if why is None or not isinstance(ended, NoAnswerYet) else why
                    pause = _PAUSES[min(tries, len(_PAUSES) - 1)]
                    tries += 1
                    if time.monotonic() + pause >= end:
                        raise self._is_down(patience, why) from None
                    await asyncio.sleep(pause)
                else:
                    self.starts += 1
                    self._connection = connection
                    return connection

    def _is_down(self, patience: float, why: Exception) -> ToolError:
        self._outage = ToolError(
            f"tools: the MCP server {self.settings.label} did not answer for {patience:g} s ({why}); see that it runs, "
            "then run the same command again"
        )
        self._on_outage(self._outage)
        return self._outage

    async def _forget(self, connection: "_Connection | None") -> None:
        if connection is not None and self._connection is connection:
            self._connection = None
            await connection.close()


class _Connection:
    """One live connection. All of it runs in one event loop."""

    def __init__(self, settings: McpConfig) -> None:
        self._settings = settings
        self.client: Any = None
        self._ready, self._leave, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._why = ""
        self._task = asyncio.create_task(self._live())

    @property
    def is_alive(self) -> bool:
        return self.client is not None and not self._ended.is_set()

    async def wait_until_open(self, seconds: float) -> None:
        """Raises ConnectionEnded where no server answers in time; ConfigError where there is no such program."""
        try:
            await self._unless_ended(self._ready.wait(), seconds)
        except TimeoutError:
            raise NoAnswerYet(f"no answer within {seconds:.3g} seconds") from None

    async def ask(self, question: Awaitable[Found], seconds: float) -> Found:
        """What the server answers a question of `client`. Raises ConnectionEnded, CallRefused, TimeoutError."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        try:
            return await self._unless_ended(question, seconds)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED or error.message in _AWAY:
                raise ConnectionEnded(error.message) from None
            if error.code == REQUEST_TIMEOUT:
                raise TimeoutError from None
            raise CallRefused(error.message) from None
        except TimeoutError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            # The wall to the package: what a server may send is not always what the package expects.
            raise CallRefused(f"the server's answer could not be read ({type(error).__name__})") from None

    async def close(self) -> None:
        self._leave.set()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(10.0):
                await self._ended.wait()
        self._task.cancel()

    async def _unless_ended(self, question: Awaitable[Found], seconds: float) -> Found:
        asked, ended = asyncio.ensure_future(question), asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({asked, ended}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            if ended.done():
                raise ConnectionEnded(self._why or "the connection was closed")
            raise TimeoutError
        finally:
            for waiting in (asked, ended):
                waiting.cancel()
            await asyncio.gather(asked, ended, return_exceptions=True)

    async def _live(self) -> None:
        """Hold the connection until it is left or breaks."""
        with tempfile.TemporaryFile() as said:
            try:
                async with _client(self._settings, said) as self.client:
                    self._ready.set()
                    await self._leave.wait()
            except Exception as error:  # noqa: BLE001 - the wall to transports, which raise groups of anything
                self._why = _last_line(said) or _innermost(error)
            finally:
                self._ended.set()


@contextlib.asynccontextmanager
async def _client(settings: McpConfig, said: IO[bytes]) -> AsyncIterator[Any]:
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    # It logs what servers send; what matters comes back as an error.
    logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)
    async with contextlib.AsyncExitStack() as stack:
        if settings.command:
            program, *arguments = settings.command
            process = StdioServerParameters(
                command=program,
                args=arguments,
                env=environment_of(settings),
                encoding_error_handler="replace",
            )
            transport: Any = stdio_client(process, errlog=said)  # type: ignore[arg-type, unused-ignore]
        else:
            token = secret(settings.api_key_env, "tools.mcp.api_key_env")
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
            transport = streamable_http_client(settings.url or "", http_client=http)
        yield await stack.enter_async_context(Client(transport, cache=None))


def environment_of(settings: McpConfig) -> dict[str, str]:
    """A program's environment besides PATH and its like. Raises ConfigError for a variable that is not set."""
    values = {name: secret(ours, f"tools.mcp.env.{name}") for name, ours in settings.env.items()}
    return {name: value for name, value in values.items() if value is not None}


def check_settings(settings: McpConfig) -> None:
    """Raises ConfigError for what no connection could be opened with."""
    with imports_for("tools: an MCP server", "mcp"):
        import mcp  # noqa: F401
    environment_of(settings)
    secret(settings.api_key_env, "tools.mcp.api_key_env")
    if settings.url is not None:
        checked_url(settings.url, what="tools.mcp.url")
    elif shutil.which(settings.command[0]) is None:
        raise ConfigError(f"tools.mcp.command: there is no program {settings.command[0]!r}; give its path")


def local_name(name: str) -> str:
    """The name that a policy uses: servers may have dots and slashes in theirs, which no tag can hold."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]


def clean_text(text: str) -> str:
    """A text that can be stored and shown: bounded, without half surrogate pairs and zeros."""
    return text[:LONGEST_RESULT].replace("\x00", "").encode("utf-8", "replace").decode()


def _text_of(answer: Any) -> str:
    """The text of a result; what is not text is named in its place."""

    def text(block: Any) -> str:
        if block.type == "text":
            return str(block.text)
        resource = getattr(block, "resource", None)
        return str(getattr(resource, "text", "") or f"({block.type} left out)")

    if not answer.content and answer.structured_content is not None:
        return json.dumps(answer.structured_content, ensure_ascii=False)
    return "\n".join(map(text, answer.content))


def _last_line(said: IO[bytes]) -> str:
    """The last line that a server wrote to its standard error."""
    said.seek(max(said.seek(0, 2) - 2000, 0))
    lines = said.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:200]
