"""The tools of an episode's driver: a call within its time, and what it gave."""

import asyncio
import time
from collections.abc import Sequence

from scope_selfplay.schemas import ToolFault
from scope_selfplay.search import Searcher
from scope_selfplay.tools.search_tool import search_tool
from scope_selfplay.tools.tool import Tool, ToolResult, UseTool


class OpenTools:
    """Tools that are really called."""

    def __init__(self, tools: Sequence[Tool], *, index: str = "") -> None:
        self._tools = {tool.name: tool for tool in tools}
        self.index = index

    async def use(self, request: UseTool) -> ToolResult:
        tool, start = self._tools[request.tool], time.monotonic()
        seconds = None if tool.keeps_time else tool.budget.seconds
        try:
            if seconds is None:
                result = await tool.call(request.arguments)
            else:
                async with asyncio.timeout(seconds):
                    result = await tool.call(request.arguments)
        except TimeoutError:
            text = f"{tool.name} took longer than {tool.budget.seconds:g} seconds and was stopped."
            result = ToolResult(text, fault=ToolFault.TIMED_OUT)
        return result.taking(round(time.monotonic() - start, 3))


def searching(searcher: Searcher, topk: int) -> OpenTools:
    """Search alone."""
    return OpenTools([search_tool(searcher, topk)], index=searcher.identity)
