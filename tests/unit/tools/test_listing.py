"""How a prompt shows tools, what configs of tools may say, and arguments that a schema refuses."""

from typing import Any

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.config.base import McpConfig, OpenConfig, ToolConfig
from scope_selfplay.config.load import load_config, parse_config
from scope_selfplay.dialects.families import dialect
from scope_selfplay.search.mcp import open_tools
from scope_selfplay.search.searcher import NothingToSearch
from scope_selfplay.search.tools import ToolBudget, ToolSpec, example_arguments, listed, schema_problem


def spec(schema: dict[str, Any], name: str = "flights") -> ToolSpec:
    return ToolSpec(name=name, description="Lists flights.", schema=schema, budget=ToolBudget(2, 50, 1.0))


FLIGHTS = spec(
    {
        "type": "object",
        "properties": {
            "origin": {"type": "string", "description": "a city"},
            "most": {"type": "integer"},
            "class": {"enum": ["economy", "business"]},
        },
        "required": ["origin", "class"],
    }
)


@pytest.mark.parametrize(
    ("family", "call"),
    [
        ("qwen2.5", '<flights>{"origin": "the origin", "class": "economy"}</flights>'),
        ("qwen3", '{"name": "flights", "arguments": {"origin": "the origin", "class": "economy"}}'),
        ("olmo3", 'flights(origin="the origin", class="economy")'),
    ],
)
def test_a_tool_is_listed_with_its_arguments_and_a_call(family: str, call: str) -> None:
    line = listed([FLIGHTS], dialect(family))
    assert line.startswith("- flights: Lists flights. Arguments: origin (string), a city; most (integer, may")
    assert 'class ("economy" or "business")' in line and "At most 2 calls" in line and call in line
    assert FLIGHTS.problem(example_arguments(FLIGHTS)) is None


def test_a_schema_is_neither_matched_for_ever_nor_fetched_and_what_is_none_is_named() -> None:
    slow = spec({"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}})
    assert slow.problem({"x": "a" * 64 + "!"}) is None, "a pattern is left to the server"
    elsewhere = spec({"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/schema.json"}}})
    assert "cannot be checked" in str(elsewhere.problem({"x": 1}))
    for schema in ({"type": "array"}, {"type": 3}, {"properties": []}):
        assert schema_problem(schema)


def test_open_may_be_given_by_its_name_alone_and_a_config_with_every_tool_reads_back_as_itself() -> None:
    for alone in ("tools=[open]", "tools=[{open: }]"):
        assert load_config(None, [alone]).tools == (ToolConfig(open=OpenConfig()),)
    config = load_config(None, ["tools=[open, {open: {max_calls: 2}}, {mcp: {command: [flights]}}]"])
    assert parse_config(config.model_dump(mode="json")) == config


def test_where_a_server_is_does_not_change_what_a_run_computes() -> None:
    here = load_config(None, ["tools=[{mcp: {command: [flights]}}]"])
    there = load_config(None, ["tools=[{mcp: {url: 'http://flights:9000/mcp', outage: 5}}]"])
    fewer = load_config(None, ["tools=[{mcp: {command: [flights], max_calls: 1}}]"])
    assert here.hash == there.hash != fewer.hash
    assert load_config(None).hash not in (here.hash, fewer.hash)


def test_open_needs_something_to_open_and_a_server_its_program() -> None:
    with pytest.raises(ConfigError, match="open needs a corpus"):
        open_tools([ToolConfig(open=OpenConfig())], NothingToSearch(), print)
    pytest.importorskip("mcp", reason="needs the extra mcp")
    with pytest.raises(ConfigError, match="there is no program 'no-such-program'"):
        open_tools([ToolConfig(mcp=McpConfig(command=("no-such-program",)))], NothingToSearch(), print)
