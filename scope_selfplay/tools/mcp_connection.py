"""One live connection to an MCP server, by the official package; the only module that imports it.

A connection lives in a task of its own: what the transport raises when a server dies ends that task and nothing else,
and a call that waits is told.
"""

import asyncio
import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

from scope_selfplay.config.tools import McpConfig
from scope_selfplay.errors import ConfigError
from scope_selfplay.wire.guarded_http import checked_url, secret

Found = TypeVar("Found")
_MOST_PAGES = 32
# What the package says in place of a server that is away, beside CONNECTION_CLOSED.
_AWAY = ("Session terminated", "Server returned an error response")


class ConnectionEnded(Exception):
    """The server was not reached, died, or ended the session before the call was answered."""


class NoAnswerYet(ConnectionEnded):
    """It was waited for only so long."""


class CallRefused(Exception):
    """The server answered with an error; its text."""


@dataclass(frozen=True)
class ListedTool:
    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True)
class McpAnswer:
    """The text of a result; what is not text is named in its place."""

    text: str
    is_error: bool


class McpConnection:
    """Open it with `open_connection`. All of it runs in one event loop."""

    def __init__(self, settings: McpConfig) -> None:
        self._settings = settings
        self._client: Any = None
        self._ready, self._leave, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._why = ""
        self._task = asyncio.create_task(self._live())

    @property
    def is_alive(self) -> bool:
        return self._client is not None and not self.ended.is_set()

    async def wait_until_open(self, seconds: float) -> None:
        """Raises ConnectionEnded where no server answers in time; ConfigError where there is no such program."""
        try:
            await self._unless_ended(self._ready.wait(), seconds)
        except TimeoutError:
            raise NoAnswerYet(f"no answer within {seconds:.3g} seconds") from None

    async def list_tools(self, seconds: float) -> list[ListedTool]:
        """Raises ConnectionEnded, CallRefused, TimeoutError."""
        found: list[ListedTool] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self._asked(self._client.list_tools(cursor=cursor), seconds)
            found += [ListedTool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    async def call(self, tool: str, arguments: Mapping[str, Any], seconds: float) -> McpAnswer:
        """Raises ConnectionEnded, CallRefused, TimeoutError."""
        result = await self._asked(self._client.call_tool(tool, dict(arguments)), seconds)
        texts = [_text_of(block) for block in result.content]
        if not texts and result.structured_content is not None:
            texts = [json.dumps(result.structured_content, ensure_ascii=False)]
        return McpAnswer("\n".join(texts), bool(result.is_error))

    async def close(self) -> None:
        self._leave.set()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(10.0):
                await self.ended.wait()
        self._task.cancel()

    async def _asked(self, question: Awaitable[Found], seconds: float) -> Found:
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

    async def _unless_ended(self, question: Awaitable[Found], seconds: float) -> Found:
        asked, ended = asyncio.ensure_future(question), asyncio.create_task(self.ended.wait())
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
                async with _client(self._settings, said) as self._client:
                    self._ready.set()
                    await self._leave.wait()
            except Exception as error:  # noqa: BLE001 - the wall to transports, which raise groups of anything
                self._why = _last_line(said) or _innermost(error)
            finally:
                self.ended.set()


@contextlib.asynccontextmanager
async def _client(settings: McpConfig, said: IO[bytes]) -> AsyncIterator[Any]:
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

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
            transport = await _http_transport(settings, stack)
        yield await stack.enter_async_context(Client(transport, cache=None))


async def _http_transport(settings: McpConfig, stack: contextlib.AsyncExitStack) -> Any:
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    token = secret(settings.api_key_env, "tools.mcp.api_key_env")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
    return streamable_http_client(settings.url or "", http_client=http)


def environment_of(settings: McpConfig) -> dict[str, str]:
    """A program's environment besides PATH and its like. Raises ConfigError for a variable that is not set."""
    values = {name: secret(ours, f"tools.mcp.env.{name}") for name, ours in settings.env.items()}
    return {name: value for name, value in values.items() if value is not None}


def check_settings(settings: McpConfig) -> None:
    """Raises ConfigError for what no connection could be opened with."""
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise ConfigError(
            "tools: an MCP server needs the package mcp; install it: pip install 'scope-selfplay[mcp]'"
        ) from None
    environment_of(settings)
    secret(settings.api_key_env, "tools.mcp.api_key_env")
    if settings.url is not None:
        host = urlsplit(settings.url).hostname
        checked_url(settings.url, (host,) if host else (), what="tools.mcp.url")
    elif shutil.which(settings.command[0]) is None:
        raise ConfigError(f"tools.mcp.command: there is no program {settings.command[0]!r}; give its path")


def _text_of(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    resource = getattr(block, "resource", None)
    return str(getattr(resource, "text", "") or f"({block.type} left out)")


def _last_line(said: IO[bytes]) -> str:
    """The last line that a server wrote to its standard error."""
    said.seek(max(said.seek(0, 2) - 2000, 0))
    lines = said.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:200]
