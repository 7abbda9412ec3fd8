"""`scope tools`: what the Solver of a config may call, as its prompt shows it, and one call by hand."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from scope_selfplay.config import RunConfig, load_config
from scope_selfplay.dialects import Call, dialect
from scope_selfplay.errors import ConfigError, OutsideError, did_you_mean
from scope_selfplay.prompts import load_pack
from scope_selfplay.prompts.folder import pack_path
from scope_selfplay.schemas import Document, ToolCall
from scope_selfplay.search import NothingToSearch, Searcher, open_retriever
from scope_selfplay.store import RunFolder
from scope_selfplay.tools import SEARCH, OpenTools, Tool, ToolResult, UseTool, search_tool
from scope_selfplay.tools.listing import example_arguments, listed
from scope_selfplay.tools.opening import open_tools
from scope_selfplay.tools.showing import recorded, refusal, shown_result


@click.group()
def tools() -> None:
    """List the tools that a config gives the Solver, and call one."""


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting."),
        click.option("--config", type=click.Path(path_type=Path), help="YAML file of settings."),
    ):
        command = option(command)
    return command


@tools.command("ls")
@_options
def list_tools(config: Path | None, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """List the tools, as the Solver's prompt shows them."""
    settings = load_config(config, overrides)
    with _opened(settings) as found:
        if as_json:
            click.echo(json.dumps([_described(tool) for tool in found], indent=1, ensure_ascii=False))
        else:
            click.echo(listed(found, dialect(settings.model.dialect)))


@tools.command("try")
@click.argument("name")
@click.argument("arguments", default="{}")
@_options
def try_tool(
    name: str, arguments: str, config: Path | None, overrides: tuple[str, ...], *, as_json: bool
) -> None:
    """Call the tool NAME with ARGUMENTS, a JSON object, and show what a policy would be shown.

    A tool's fault ends with exit 0, as it does not end a rollout; a server that is down with 75.
    """
    settings = load_config(config, overrides)
    given = _parsed(arguments)
    with _opened(settings) as found:
        tool = next((tool for tool in found if tool.name == name), None)
        if tool is None:
            names = [tool.name for tool in found]
            raise ConfigError(
                f"no tool {name!r}{did_you_mean(name, names)}; the config has {', '.join(names)}"
            )
        if given is None:
            example = json.dumps(example_arguments(tool), ensure_ascii=False)
            raise ConfigError(
                f"{arguments[:80]!r} is not a JSON object of arguments; expected such as '{example}'"
            )
        call = asyncio.run(_called(tool, given, found, settings))
    if as_json:
        click.echo(call.model_dump_json(indent=1))
        return
    click.echo(call.result)
    notes = [f"{call.seconds:.3f} s", *([call.fault.value] if call.fault else []), *call.sources]
    click.echo(f"({', '.join(notes)})", err=True)


async def _called(tool: Tool, given: dict[str, Any], found: Sequence[Tool], settings: RunConfig) -> ToolCall:
    from scope_selfplay.inference.checkpoints import policy_path
    from scope_selfplay.inference.codec import ChatCodec
    from scope_selfplay.search import show_passages

    call = Call(tool.name, given, json.dumps(given))
    result = None
    if tool.name != SEARCH.name or tool.problem(given):
        result = refusal(call, tool, found, 1)
    if result is None:
        result = await OpenTools(found).use(UseTool(tool.name, given))
    codec, most = ChatCodec.load(policy_path(settings.model.path)), settings.search.max_tokens
    if result.passages is not None:
        text, shown = show_passages(result.passages, codec, most, settings.search.truncation)
        sources = tuple(passage.id for passage in shown)
        result = ToolResult(text, sources=sources, seconds=result.seconds, is_shown=True)
    return recorded(call, result, shown_result(result, tool, call, codec, most))


@contextmanager
def _opened(settings: RunConfig) -> Iterator[list[Tool]]:
    """The tools of a config, search first."""

    def down(outage: OutsideError) -> None:
        """The call itself says it."""

    with tempfile.TemporaryDirectory() as folder:
        searcher = _searcher(settings, RunFolder(Path(folder)), down)
        opened = open_tools(settings.tools, searcher, down)
        try:
            search = (
                [] if isinstance(searcher, NothingToSearch) else [search_tool(searcher, settings.search.topk)]
            )
            yield [*search, *opened.tools]
        finally:
            opened.close()


def _searcher(settings: RunConfig, folder: RunFolder, down: Callable[[OutsideError], None]) -> Searcher:
    from scope_selfplay.run_directory import run_documents

    if settings.corpus.path == "none":
        return NothingToSearch()
    documents: list[Document] = run_documents(settings, load_pack(pack_path(settings.domain)))
    return open_retriever(settings.search, documents, folder, down)


def _parsed(arguments: str) -> dict[str, Any] | None:
    from scope_selfplay.wire.strict_json import parse_object

    try:
        return parse_object(arguments)
    except ValueError:
        return None


def _described(tool: Tool) -> dict[str, Any]:
    budget = {"calls": tool.budget.calls, "tokens": tool.budget.tokens, "seconds": tool.budget.seconds}
    return {"name": tool.name, "description": tool.description, "arguments": tool.schema, "budget": budget}
