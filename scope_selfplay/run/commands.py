"""`scope index` and `tools`: what a run searches, and what its Solver may call."""

import asyncio
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from retrieval.commands import index as of_the_retriever
from scope_selfplay.base.errors import ConfigError, did_you_mean
from scope_selfplay.base.terminal import end_on_sigterm, quiet_libraries, shown_progress, with_options
from scope_selfplay.base.values import Document, ToolCall
from scope_selfplay.config.load import CONFIGS, load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.dialects.families import Call, dialect
from scope_selfplay.net.json import parse_object
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.search.tools import (
    SEARCH,
    OpenTools,
    Tool,
    ToolResult,
    UseTool,
    example_arguments,
    listed,
    recorded,
    refusal,
    search_tool,
    shown_result,
)
from scope_selfplay.store.files import write_records
from scope_selfplay.store.folder import RunFolder


def documents_of(config: Path, overrides: Sequence[str], **left: Any) -> list[Document]:
    """The documents of a run, the same as its stages search; `left` as in `read_run_corpus`. Raises UserError."""
    from scope_selfplay.run.begin import run_documents

    quiet_libraries()
    run = load_config(config, overrides)
    return run_documents(run, load_pack(pack_path(run.domain)), **left)


_plain_build = of_the_retriever.commands["build"]


@click.command(
    "build",
    params=[*_plain_build.params],
    help=f"{_plain_build.help}\n\n    Or a run's config (.yaml): its documents, cut as a run of it cuts them.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting of a run's config."
)
def build(*, source: Path, folder: Path, overrides: tuple[str, ...], **options: Any) -> None:
    """The retriever's own command, of a run's documents as well as of a corpus."""
    if source.suffix in CONFIGS:
        found, source = documents_of(source, overrides), folder.with_name(f"{folder.name}.documents.jsonl")
        source.parent.mkdir(parents=True, exist_ok=True)
        write_records(source, found)
    elif overrides:
        raise click.UsageError("--set changes a run's config, and SOURCE is none")
    assert _plain_build.callback is not None
    _plain_build.callback(source=source, folder=folder, **options)


@click.command("fetch")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--url",
    "urls",
    multiple=True,
    required=True,
    help="https://..., or hf://datasets/OWNER/NAME@REVISION/PATH; once for each part of a file, in their order.",
)
@click.option("--sha256", required=True, help="Of the file as it is published, its parts joined.")
@click.option("--json", "as_json", is_flag=True, help="Print the file as JSON.")
def fetch(file: Path, urls: tuple[str, ...], sha256: str, *, as_json: bool) -> None:
    """Bring a published corpus or its vectors to FILE; what has come stays when it is cut off, and the command goes
    on.

    DPR's .tsv[.gz] and a .jsonl.gz become JSON lines where FILE ends in .jsonl; anything else stays as it is.
    """
    from scope_selfplay.corpus.published import PublishedFile, checked_sha256, fetch_file

    # A Job of a cluster runs this as the first process of its container.
    end_on_sigterm()
    published = PublishedFile(urls, checked_sha256(sha256))
    with shown_progress() as progress:
        fetch_file(published, file, say=progress.say)
    click.echo(json.dumps({"file": str(file), "sha256": published.sha256}) if as_json else file)


index = click.Group(
    "index",
    help=of_the_retriever.help,
    commands={**of_the_retriever.commands, "build": build, "fetch": fetch},
)


@click.group()
def tools() -> None:
    """List the tools that a config gives the Solver, and call one."""


_options = with_options(
    click.option("--config", type=click.Path(path_type=Path), help="YAML file of settings."),
    click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


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
    settings, given = load_config(config, overrides), None
    with suppress(ValueError):
        given = parse_object(arguments)
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
    from scope_selfplay.search.searcher import show_passages

    call = Call(tool.name, given, json.dumps(given))
    is_search = tool.name == SEARCH.name and not tool.problem(given)
    result = None if is_search else refusal(call, tool, found, 1)
    result = result or await OpenTools(found).use(UseTool(tool.name, given))
    codec, most = ChatCodec.load(policy_path(settings.model.path)), settings.search.max_tokens
    if result.passages is not None:
        text, shown = show_passages(result.passages, codec, most, settings.search.truncation)
        sources = tuple(passage.id for passage in shown)
        result = ToolResult(text, sources=sources, seconds=result.seconds, is_shown=True)
    return recorded(call, result, shown_result(result, tool, call, codec, most))


@contextmanager
def _opened(settings: RunConfig) -> Iterator[list[Tool]]:
    """The tools of a config, search first."""
    from scope_selfplay.run.begin import run_documents
    from scope_selfplay.run.run import Run

    pack = load_pack(pack_path(settings.domain))
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Run(settings, RunFolder(Path(folder)), pack)) as run,
    ):
        run.documents = run_documents(settings, pack)
        search = [search_tool(run.searcher, settings.search.topk)] if run.documents else []
        yield [*search, *run.opened_tools.tools]


def _described(tool: Tool) -> dict[str, Any]:
    named = {"name": tool.name, "description": tool.description, "arguments": tool.schema}
    return named | {"budget": asdict(tool.budget)}
