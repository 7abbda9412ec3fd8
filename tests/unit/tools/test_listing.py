"""How a prompt shows tools, what configs of tools may say, and arguments that a schema refuses."""

from typing import Any

import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.config.base import McpConfig, OpenConfig, ToolConfig
from scope_selfplay.config.load import load_config, parse_config
from scope_selfplay.dialects.families import dialect
from scope_selfplay.search.mcp import local_name, open_tools
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


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {"x": True}},
        {"properties": {"x": {"type": ["string", "null"]}}, "required": ["x"]},
        {"type": "object", "properties": {"a b": {}}, "required": ["a b"]},
    ],
)
def test_any_schema_of_an_object_can_be_listed_in_json_families(schema: dict[str, Any]) -> None:
    assert schema_problem(schema) is None
    for family in ("qwen2.5", "qwen3"):
        assert listed([spec(schema)], dialect(family)).startswith("- flights")


def test_a_pattern_of_a_schema_is_left_to_the_server() -> None:
    slow = spec({"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}})
    assert slow.problem({"x": "a" * 64 + "!"}) is None


def test_a_schema_that_points_elsewhere_is_not_fetched() -> None:
    elsewhere = spec({"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/schema.json"}}})
    assert "cannot be checked" in str(elsewhere.problem({"x": 1}))


@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": 3}, {"properties": []}])
def test_what_is_no_schema_of_arguments_is_named(schema: dict[str, Any]) -> None:
    assert schema_problem(schema)


@pytest.mark.parametrize(("name", "local"), [("a.b/c", "a_b_c"), ("x" * 80, "x" * 64), ("ok-1", "ok-1")])
def test_names_of_servers_become_names_that_all_families_write(name: str, local: str) -> None:
    assert local_name(name) == local


def test_open_may_be_given_by_its_name_alone() -> None:
    assert load_config(None, ["tools=[open]"]).tools == (ToolConfig(open=OpenConfig()),)
    assert load_config(None, ["tools=[{open: }]"]).tools == (ToolConfig(open=OpenConfig()),)


def test_a_resolved_config_with_every_kind_of_tool_reads_back_as_itself() -> None:
    config = load_config(None, ["tools=[open, {open: {max_calls: 2}}, {mcp: {command: [flights]}}]"])
    assert parse_config(config.model_dump(mode="json")) == config


def test_where_a_server_is_does_not_change_what_a_run_computes() -> None:
    here = load_config(None, ["tools=[{mcp: {command: [flights]}}]"])
    there = load_config(None, ["tools=[{mcp: {url: 'http://flights:9000/mcp', outage: 5}}]"])
    fewer = load_config(None, ["tools=[{mcp: {command: [flights], max_calls: 1}}]"])
    assert here.hash == there.hash != fewer.hash
    assert load_config(None).hash not in (here.hash, fewer.hash)


def test_open_needs_something_to_open() -> None:
    with pytest.raises(ConfigError, match="open needs a corpus"):
        open_tools([ToolConfig(open=OpenConfig())], NothingToSearch(), print)


def test_a_program_that_is_not_there_is_a_mistake_of_the_config() -> None:
    pytest.importorskip("mcp", reason="needs the extra mcp")
    with pytest.raises(ConfigError, match="there is no program 'no-such-program'"):
        open_tools([ToolConfig(mcp=McpConfig(command=("no-such-program",)))], NothingToSearch(), print)
