"""An MCP server of a run: one connection per process, opened again when it breaks, with calls in bounds.

It has an event loop in a thread of its own, because a connection outlives the loops of a training's steps, and calls
come from whichever loop an episode runs in.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from scope_selfplay.config.tools import McpConfig
from scope_selfplay.errors import ToolError
from scope_selfplay.schemas import ToolFault
from scope_selfplay.tools.mcp_connection import (
    CallRefused,
    ConnectionEnded,
    ListedTool,
    McpConnection,
    NoAnswerYet,
    check_settings,
)
from scope_selfplay.tools.tool import ToolResult

# At the start somebody may be watching: a wrong URL should not look like a long wait.
_HANDSHAKE_SECONDS = 30.0
_ATTEMPTS = 3
"""A server that dies under a call is asked again: another call may have killed it. This one may, too."""
_PAUSES = (0.1, 0.5, 1.0, 2.0, 5.0)
LONGEST_RESULT = 200_000
"""Characters of a result that are read."""


class McpServer:
    """Raises ConfigError as `check_settings` does. `on_outage` is told when it is down for too long."""

    def __init__(self, settings: McpConfig, on_outage: Callable[[ToolError], None]) -> None:
        check_settings(settings)
        self.settings = settings
        self._on_outage = on_outage
        self._outage: ToolError | None = None
        self._connection: McpConnection | None = None
        self.starts = 0
        """Connections so far."""
        self._next_call = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcp", daemon=True)
        self._thread.start()
        self._opening = asyncio.Lock()
        self._slots = asyncio.Semaphore(settings.concurrency)

    def tools(self) -> list[ListedTool]:
        """What the server offers; blocks. Raises ToolError where it does not answer."""
        return asyncio.run_coroutine_threadsafe(self._list(), self._loop).result()

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """From any event loop. Raises ToolError when the server is down for longer than `outage`."""
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._call(tool, arguments), self._loop)
        )

    def close(self) -> None:
        if self._loop.is_closed():
            return
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(timeout=20.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
        if not self._thread.is_alive():
            self._loop.close()

    async def _close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _list(self) -> list[ListedTool]:
        seconds = min(_HANDSHAKE_SECONDS, self.settings.outage)
        try:
            return await (await self._connected(seconds)).list_tools(seconds)
        except (ConnectionEnded, CallRefused, TimeoutError) as error:
            raise ToolError(f"tools: {self.settings.label} does not list its tools: {error}") from None

    async def _call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        async with self._slots:
            await self._pace()
            for _ in range(_ATTEMPTS):
                connection = await self._connected(self.settings.outage)
                try:
                    answer = await connection.call(tool, arguments, self.settings.seconds)
                except ConnectionEnded:
                    await self._forget(connection)
                except CallRefused as error:
                    return ToolResult(clean_text(str(error)), fault=ToolFault.ERROR)
                else:
                    fault = ToolFault.ERROR if answer.is_error else None
                    return ToolResult(clean_text(answer.text), fault=fault)
            return ToolResult(f"The server of {tool} ended during the call.", fault=ToolFault.ERROR)

    async def _connected(self, patience: float) -> McpConnection:
        """The connection, a new one where the last has ended. Raises ToolError when none opens for so long."""
        async with self._opening:
            if self._outage is not None:
                raise self._outage
            if self._connection is not None and self._connection.is_alive:
                return self._connection
            end, tries, why = time.monotonic() + patience, 0, None
            while True:
                connection = McpConnection(self.settings)
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

    async def _forget(self, connection: McpConnection) -> None:
        if self._connection is connection:
            self._connection = None
            await connection.close()

    async def _pace(self) -> None:
        if self.settings.per_second is None:
            return
        now = time.monotonic()
        begin = max(now, self._next_call)
        self._next_call = begin + 1.0 / self.settings.per_second
        await asyncio.sleep(begin - now)


def clean_text(text: str) -> str:
    """A text that can be stored and shown: bounded, without half surrogate pairs and zeros."""
    return text[:LONGEST_RESULT].replace("\x00", "").encode("utf-8", "replace").decode()
