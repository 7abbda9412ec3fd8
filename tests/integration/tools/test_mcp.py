"""A real MCP server: its tools in episodes, what becomes of its faults, and how it is opened."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mcp", reason="needs the extra mcp")

from scope_selfplay.base.errors import ConfigError, RunMismatchError, ToolError
from scope_selfplay.base.machine import free_port
from scope_selfplay.base.values import ToolFault
from scope_selfplay.config.base import McpConfig, ToolConfig
from scope_selfplay.dialects.families import DIALECTS
from scope_selfplay.search.mcp import McpServer, OpenedTools, check_same_tools, open_tools
from scope_selfplay.search.searcher import NothingToSearch
from scope_selfplay.search.tools import OpenTools, ToolResult, UseTool, listed
from scope_selfplay.store.folder import RunFolder

ROOT = Path(__file__).parents[3]
COMMAND = (sys.executable, "-m", "tests.flights_server")
FROM_ORSK = {"date": "2026-03-01", "origin": "Orsk", "destination": "Verrin"}
TABLE = "FL101 08:10-09:55, 120 EUR\nFL102 17:30-19:15, 95 EUR"


@pytest.fixture(autouse=True)
def at_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(ROOT)


def settings(**changes: Any) -> McpConfig:
    return McpConfig(**{"command": COMMAND, "env": {"PYTHONPATH": "PYTHONPATH"}, "outage": 60.0, **changes})


@pytest.fixture
def outages() -> list[Exception]:
    return []


def ask(server: McpServer, *origins: str) -> list[ToolResult]:
    """Each call in the order given, all at the same time, in a loop of its own as a training step has one."""

    async def calls() -> list[ToolResult]:
        asked = ({**FROM_ORSK, "origin": origin} for origin in origins)
        return await asyncio.gather(*(server.call("search_flights", each) for each in asked))

    return asyncio.run(calls())


def children_that_serve() -> list[int]:
    children = psutil.Process().children(recursive=True)
    return [each.pid for each in children if "tests.flights_server" in each.cmdline()]


def test_its_tools_are_listed_with_schemas_and_called_from_one_loop_after_another(
    outages: list[Exception],
) -> None:
    server = McpServer(settings(), outages.append)
    assert [tool.name for tool in server.tools()] == ["search_flights", "cities"]
    assert set(server.tools()[0].schema["required"]) == {"date", "origin", "destination"}
    for _ in range(2):
        assert [result.text for result in ask(server, "Orsk", "Nowhere")] == [TABLE, "No flights."]
    # What the server refuses is told, and is no outage.
    (refused,) = ask(server, "raises")
    assert refused.fault is ToolFault.ERROR and refused.text
    assert ask(server, "Orsk")[0].text == TABLE and outages == []
    assert server.starts == 1, "one session per worker"
    (pid,) = children_that_serve()
    server.close()
    assert pid not in children_that_serve()
    server.close()


def test_a_server_that_dies_under_calls_or_between_them_is_started_again_and_they_are_answered(
    outages: list[Exception], tmp_path: Path
) -> None:
    with closing(McpServer(settings(), outages.append)) as server:
        results = ask(server, "Orsk", f"dies-once:{tmp_path / 'died'}", "Orsk")
        assert [result.fault for result in results] == [None, None, None]
        assert [results[0].text, results[2].text] == [TABLE, TABLE] and server.starts == 2
        # A call that kills it each time is an error for the policy alone.
        (fatal,) = ask(server, "dies")
        assert fatal.fault is ToolFault.ERROR and "ended during the call" in fatal.text
        assert ask(server, "Orsk")[0].text == TABLE
        for pid in children_that_serve():
            os.kill(pid, signal.SIGKILL)
        assert ask(server, "Orsk")[0].text == TABLE and outages == []


def test_a_call_that_hangs_is_stopped_and_the_next_is_answered(outages: list[Exception]) -> None:
    with closing(McpServer(settings(seconds=0.5), outages.append)) as server:
        server.tools()
        with pytest.raises(TimeoutError):
            asyncio.run(server.call("search_flights", {**FROM_ORSK, "origin": "hangs"}))
        # The next may take its time: the machine may be busy.
        server.settings = settings(seconds=60.0)
        assert asyncio.run(server.call("cities", {})).fault is None and outages == []


def test_a_server_sees_the_variables_it_is_given_and_no_other(
    monkeypatch: pytest.MonkeyPatch, outages: list[Exception]
) -> None:
    monkeypatch.setenv("OUR_FLIGHTS_KEY", "k-123")
    monkeypatch.setenv("OTHER_SECRET", "never")
    config = settings(env={"PYTHONPATH": "PYTHONPATH", "FLIGHTS_KEY": "OUR_FLIGHTS_KEY"})
    code = (
        "import os, sys; from mcp.server.mcpserver import MCPServer; s = MCPServer('e', log_level='CRITICAL')\n"
        "@s.tool()\ndef names() -> str:\n    'n'\n    return ' '.join(f'{k}={v}' for k, v in os.environ.items())\n"
        "s.run('stdio')"
    )
    program = config.model_copy(update={"command": (sys.executable, "-c", code)})
    with closing(McpServer(program, outages.append)) as server:
        seen = asyncio.run(server.call("names", {})).text
    assert "FLIGHTS_KEY=k-123" in seen and "never" not in seen
    monkeypatch.delenv("OUR_FLIGHTS_KEY")
    with pytest.raises(ConfigError, match=r"FLIGHTS_KEY.*OUR_FLIGHTS_KEY is not set"):
        McpServer(config, outages.append)


@pytest.mark.parametrize("later", ["exit 1", "test -e died && exec sleep 60; touch died; exit 1"])
def test_a_server_that_cannot_be_reached_is_an_outage_with_its_last_words(
    later: str, outages: list[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = ("sh", "-c", f"echo no table of flights >&2; {later}")
    with closing(McpServer(settings(command=program, outage=10.0), outages.append)) as server:
        with pytest.raises(ToolError, match=r"sh did not answer for 10 s \(no table of flights\)"):
            server.tools()
        with pytest.raises(ToolError, match="did not answer"):
            asyncio.run(server.call("cities", {}))
        assert len(outages) == 1, "after an outage every call fails at once"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, "list[subprocess.Popen[bytes]]"]]:
    """The URL of a server over HTTP, and its processes: append another one to start it again."""
    port = free_port()
    processes = [serve(port)]
    yield f"http://127.0.0.1:{port}/mcp", processes
    for process in processes:
        process.kill()
        process.wait()


def serve(port: int) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([*COMMAND, "--port", str(port)], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/mcp", timeout=5)
        except urllib.error.HTTPError:
            return process
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server does not start")


def test_a_server_over_http_that_is_killed_and_comes_back_costs_nothing(
    served: tuple[str, "list[subprocess.Popen[bytes]]"], outages: list[Exception]
) -> None:
    url, processes = served
    with closing(McpServer(McpConfig(url=url, outage=120.0), outages.append)) as server:
        assert ask(server, "Orsk")[0].text == TABLE
        processes[0].kill()
        processes[0].wait()

        async def asked_while_it_is_away() -> ToolResult:
            call = asyncio.create_task(server.call("search_flights", FROM_ORSK))
            await asyncio.sleep(0.3)
            assert not call.done()
            processes.append(await asyncio.to_thread(serve, int(url.split(":")[2].split("/")[0])))
            return await call

        assert asyncio.run(asked_while_it_is_away()).text == TABLE and outages == []


def opened(*changes: dict[str, Any]) -> OpenedTools:
    servers = [ToolConfig(mcp=settings(**each)) for each in changes or ({},)]
    return open_tools(servers, NothingToSearch(), print)


def test_tools_are_chosen_by_name_and_have_the_runs_budgets() -> None:
    with closing(opened({"only": ("cities",), "max_calls": 2, "max_tokens": 64, "seconds": 3.0})) as found:
        (tool,) = found.tools
        assert (tool.name, tool.budget.calls, tool.budget.tokens) == ("cities", 2, 64)
        assert "Aldmoor" in asyncio.run(OpenTools(found.tools).use(UseTool("cities", {}))).text
    with pytest.raises(
        ConfigError, match=r"no tool 'citys' \(did you mean cities\?\); it has search_flights"
    ):
        opened({"only": ("citys",)})
    with pytest.raises(ConfigError, match="two tools are called 'cities'"):
        opened({"only": ("cities",)}, {"only": ("cities",)})


def test_a_run_refuses_tools_that_say_something_else_than_before(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with closing(opened()) as found:
        check_same_tools(folder, found.tools)
        check_same_tools(folder, found.tools)
        assert [each["name"] for each in json.loads(folder.tools.read_text())] == ["search_flights", "cities"]
        with pytest.raises(RunMismatchError, match="search_flights is not as in"):
            check_same_tools(folder, found.tools[1:])


CLOCK = [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"]
TIME = {"mcp": {"command": CLOCK, "only": ["convert_time"], "outage": 60.0}}
NOON = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}


def test_a_published_server_is_listed_in_every_family_answers_refuses_and_answers_again(
    outages: list[Exception],
) -> None:
    pytest.importorskip("mcp_server_time", reason="needs the package mcp-server-time")

    def told(**changes: str) -> ToolResult:
        return asyncio.run(OpenTools(clock.tools).use(UseTool("convert_time", {**NOON, **changes})))

    with closing(open_tools([ToolConfig.model_validate(TIME)], NothingToSearch(), outages.append)) as clock:
        (tool,) = clock.tools
        assert tool.problem({"time": "12:00"}) is not None and tool.problem(NOON) is None
        for family in DIALECTS:
            line = listed(clock.tools, family)
            assert "convert_time" in line and "source_timezone" in line
        answer = told()
        assert answer.fault is None and json.loads(answer.text)["time_difference"] == "+9.0h"
        assert told(target_timezone="Mars/Base").fault is ToolFault.ERROR
        assert told(time="25:99").fault is ToolFault.ERROR
        assert told().text == answer.text and clock.servers[0].starts == 1
    assert outages == []
