"""An MCP server that somebody else wrote and published: mcp-server-time, as a process of its own."""

import asyncio
import json
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

pytest.importorskip("mcp", reason="needs the extra mcp")
pytest.importorskip("mcp_server_time", reason="needs the package mcp-server-time")

from scope_selfplay.base.values import ToolFault
from scope_selfplay.cli import cli
from scope_selfplay.config.base import ToolConfig
from scope_selfplay.dialects.families import DIALECTS
from scope_selfplay.search.mcp import OpenedTools, open_tools
from scope_selfplay.search.searcher import NothingToSearch
from scope_selfplay.search.tools import OpenTools, ToolResult, UseTool, listed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

COMMAND = [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"]
SETTINGS = {"mcp": {"command": COMMAND, "only": ["convert_time"], "outage": 60.0}}
NOON = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}


@pytest.fixture
def clock() -> Iterator[OpenedTools]:
    def down(outage: Exception) -> None:
        pytest.fail(f"an outage: {outage}")

    opened = open_tools([ToolConfig.model_validate(SETTINGS)], NothingToSearch(), down)
    yield opened
    opened.close()


def ask(clock: OpenedTools, arguments: dict[str, str]) -> ToolResult:
    return asyncio.run(OpenTools(clock.tools).use(UseTool("convert_time", arguments)))


def test_it_answers_refuses_and_answers_again(clock: OpenedTools) -> None:
    answer = ask(clock, NOON)
    assert answer.fault is None and json.loads(answer.text)["time_difference"] == "+9.0h"
    assert ask(clock, {**NOON, "target_timezone": "Mars/Base"}).fault is ToolFault.ERROR
    assert ask(clock, {**NOON, "time": "25:99"}).fault is ToolFault.ERROR
    assert ask(clock, NOON).text == answer.text and clock.servers[0].starts == 1


def test_its_schema_refuses_what_lacks_an_argument_and_every_family_can_list_it(clock: OpenedTools) -> None:
    (tool,) = clock.tools
    assert tool.problem({"time": "12:00"}) is not None and tool.problem(NOON) is None
    for family in DIALECTS:
        assert "convert_time" in listed(clock.tools, family) and "source_timezone" in listed(
            clock.tools, family
        )


def test_the_command_calls_it() -> None:
    options = ["--set", f"tools={json.dumps([SETTINGS])}", "--set", "corpus.path=none"]
    done = CliRunner().invoke(cli, ["tools", "try", "convert_time", json.dumps(NOON), *options])
    assert done.exit_code == 0 and "Asia/Tokyo" in done.stdout, done.output
