"""`scope index` and `tools`: what a run searches, and what its Solver may call. `scope fork`: a run that shares the
finished iterations of another one and goes on with other settings.

A fork is built beside its place under a hidden name and moved there whole. The old run is only read: a finished stage
is never written again, so both may hold the same files, as hard links where the file system has them.
"""

import asyncio
import copy
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from retrieval.commands import index as of_the_retriever
from scope_selfplay import __version__
from scope_selfplay.base.errors import ConfigError, RunMismatchError, did_you_mean
from scope_selfplay.base.machine import folder_lock
from scope_selfplay.base.terminal import end_on_sigterm, quiet_libraries, shown_progress, with_options
from scope_selfplay.base.values import Document, ToolCall
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig, changed_settings
from scope_selfplay.corpus.screen import kin_of
from scope_selfplay.dialects.families import Call, dialect
from scope_selfplay.judge.model import KEY_FILE
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.run.begin import CorpusChanges, corpus_changes
from scope_selfplay.run.given import given_files, read_given_tasks
from scope_selfplay.run.schedule import challenger_of, stages_of
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
from scope_selfplay.store.files import LINK_FAULTS, disk_faults, read_value, write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage, read_manifest
from scope_selfplay.store.ratings import Fork, read_fork, shared_words

CONFIGS = (".yaml", ".yml")


def documents_of(config: Path, overrides: tuple[str, ...]) -> list[Document]:
    """The documents of a run, the same as its stages search. Raises UserError."""
    from scope_selfplay.run.begin import run_documents

    quiet_libraries()
    run = load_config(config, overrides)
    return run_documents(run, load_pack(pack_path(run.domain)))


def _build() -> click.Command:
    plain = of_the_retriever.commands["build"]
    build = copy.copy(plain)
    again = click.Option(
        ["--set", "overrides"],
        multiple=True,
        metavar="KEY=VALUE",
        help="Change one setting of a run's config.",
    )
    build.params = [*plain.params, again]
    build.help = (
        f"{plain.help}\n\n    Or a run's config (.yaml): its documents, cut as a run of it cuts them."
    )

    def of_a_run_or_a_corpus(
        *, source: Path, folder: Path, overrides: tuple[str, ...], **options: Any
    ) -> None:
        if source.suffix in CONFIGS:
            from scope_selfplay.store.files import write_records

            found, source = (
                documents_of(source, overrides),
                folder.with_name(f"{folder.name}.documents.jsonl"),
            )
            source.parent.mkdir(parents=True, exist_ok=True)
            write_records(source, found)
        elif overrides:
            raise click.UsageError("--set changes a run's config, and SOURCE is none")
        assert plain.callback is not None
        plain.callback(source=source, folder=folder, **options)

    build.callback = of_a_run_or_a_corpus
    return build


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
    commands={**of_the_retriever.commands, "build": _build(), "fetch": fetch},
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
    from scope_selfplay.net.json import parse_object

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
    from scope_selfplay.inference.checkpoints import ChatCodec, policy_path
    from scope_selfplay.search.searcher import show_passages

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
    budget = {"calls": tool.budget.calls, "tokens": tool.budget.tokens, "seconds": tool.budget.seconds}
    return {"name": tool.name, "description": tool.description, "arguments": tool.schema, "budget": budget}


_BOUND = {
    "model.path": "the shared checkpoints were trained from it",
    "model.dialect": "the shared checkpoints were trained in it",
    "model.earlier_thinking": "the shared checkpoints were trained in it",
    "model.lora_rank": "the shared checkpoints have its shape",
    "corpus": "the shared corpus.jsonl was made by it, and its documents are marked as used",
    "domain": "a run has one prompt pack, and the shared iterations were made with it",
    "compare.tasks": "the held-out tasks were made once, before iteration 1",
    "compare.given": "the held-out tasks were made once, before iteration 1",
    "compare.both_orders": "ratings go over the comparisons of all iterations",
}
"""Settings, or sections, that later iterations cannot have otherwise than the shared ones, and why."""

_SCHEDULING = ("challenger.freeze_after", "solver.tasks")


@dataclass(frozen=True)
class Forked:
    """What a fork made: how many files are one with the old run's, and how many are copies."""

    folder: Path
    fork: Fork
    linked: int
    copied: int


def fork_run(source: Path, root: Path, config: RunConfig, *, after: int, corpus: bool = False) -> Forked:
    """Make `root`/`config.name` out of the run in `source`, with the `corpus` as it is now. Raises UserError before
    anything is written.
    """
    old, new = RunFolder(source), RunFolder(root / config.name)
    before = load_config(old.config)
    check_settings(before, config, after)
    _check_finished(old, before, after)
    changes = corpus_changes(old, before, load_pack(old.prompts)) if corpus else None
    if changes is not None and not any(changes[:3]):
        raise ConfigError(f"--corpus: {before.corpus.path} holds what {old.corpus} does; fork without it")
    building = RunFolder(root / f".{config.name}.fork")
    with disk_faults(new.path):
        root.mkdir(parents=True, exist_ok=True)
        lock = root / f".{config.name}.fork.lock"
        with folder_lock(new.path, lock, work="forking", say=lambda _: None, timeout=60):
            if new.path.exists():
                raise RunMismatchError(f"{new.path}: exists; give another --name, nothing is written over")
            # What a fork that was killed has left.
            shutil.rmtree(building.path, ignore_errors=True)
            fork = _fork_of(old, before, config, after)
            linked, copied = _share(old, building, before, after)
            if changes is not None:
                fork = _with_corpus(building, changes, config, fork)
            for setting, file in given_files(config).items():
                kept = old.given(setting)
                is_same = file == given_files(before).get(setting) and kept.is_file()
                read_given_tasks(str(kept if is_same else file), setting)
                shutil.copy2(kept if is_same else file, building.given(setting))
            if before.judge == config.judge and old.exam.exists():
                shutil.copytree(old.exam, building.exam)
            write_atomic(building.config, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
            write_atomic(building.fork, fork.model_dump_json(indent=1) + "\n")
            building.path.rename(new.path)
    return Forked(new.path, fork, linked, copied)


def check_settings(before: RunConfig, config: RunConfig, after: int) -> None:
    """Raises ConfigError for a setting that the shared iterations have decided already."""
    for name in changed_settings(before, config):
        for bound, reason in _BOUND.items():
            if name == bound or name.startswith(f"{bound}."):
                raise ConfigError(
                    f"--set {name}: cannot change in a fork: {reason}; begin a run of its own instead"
                )
    if _shared_schedule(config, after) != _shared_schedule(before, after):
        deciding = [name for name in changed_settings(before, config) if name in _SCHEDULING]
        raise ConfigError(
            f"--set {' '.join(deciding)}: would have changed what iterations 0 to {after} train; fork after an earlier "
            "iteration, or leave it"
        )
    if config.iterations <= after:
        raise ConfigError(
            f"iterations: found {config.iterations}, which leaves nothing to do after iteration {after}; "
            f"--set iterations={after + 1}"
        )


def _shared_schedule(config: RunConfig, after: int) -> object:
    """The stages of the shared iterations, and who writes the tasks of each."""
    return _shared_stages(config, after), [challenger_of(config, number) for number in range(after + 1)]


def _shared_stages(config: RunConfig, after: int) -> list[tuple[int, Stage]]:
    everything = config.model_copy(update={"stop_after": None, "iterations": max(after, config.iterations)})
    return [(number, stage) for number, stage in stages_of(everything) if number <= after]


def _check_finished(folder: RunFolder, config: RunConfig, after: int) -> None:
    for number, stage in _shared_stages(config, after):
        path = folder.stage(number, stage).path
        if read_manifest(path) is None:
            raise RunMismatchError(
                f"{path}: is not finished, so iteration {after} cannot be shared; finish it, or fork after an earlier "
                "iteration"
            )


def _fork_of(old: RunFolder, before: RunConfig, config: RunConfig, after: int) -> Fork:
    earlier = read_fork(old)
    hashes = [before.hash] * (after + 1)
    if earlier is not None:
        own = earlier.config_hashes[: after + 1]
        hashes[: len(own)] = own
    return Fork(
        run=before.name,
        after=after,
        held_out=earlier.held_out if earlier else (),
        config_hashes=tuple(hashes),
        changed={
            name: (_value(before, name), _value(config, name)) for name in changed_settings(before, config)
        },
        version=__version__,
    )


def _with_corpus(new: RunFolder, changes: CorpusChanges, config: RunConfig, fork: Fork) -> Fork:
    """No task is written from a held-out document as it is now, or from what came to its page or has its old text."""
    tried = read_value(new.stage(0, Stage.TASKS).path / "documents.json", list[str], "fork an undamaged run")
    held = set(tried or ())
    fresh = set() if config.corpus.hold_out == "document" else {*changes.new, *changes.changed} - held
    if fresh:
        before = (each for each in changes.before if each.id in held)
        fresh.intersection_update(kin_of(held, [*before, *changes.now]))
    for file in (new.corpus, new.index):
        # It may be one with the old run's.
        file.unlink(missing_ok=True)
    write_records(new.corpus, changes.now)
    update = {
        "changed": fork.changed | {"corpus": ("", str(changes))},
        "rewritten": tuple(each for each in changes.changed if each not in held),
        "held_out": (*fork.held_out, *sorted(fresh)),
    }
    return fork.model_copy(update=update)


def _value(config: RunConfig, name: str) -> Any:
    found: Any = config.content
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _share(old: RunFolder, new: RunFolder, config: RunConfig, after: int) -> tuple[int, int]:
    """How many of the shared files are linked, and how many copied; what a run keeps for itself is copied."""
    linked: list[bool] = []

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError as error:
            # Some file systems have no links.
            if error.errno not in LINK_FAULTS:
                raise
            shutil.copy2(source, target)
            linked.append(False)
        else:
            linked.append(True)

    new.path.mkdir()
    shutil.copytree(old.prompts, new.prompts)
    for file in (old.index, old.path / KEY_FILE, old.base):
        if file.exists():
            shutil.copy2(file, new.path / file.name, follow_symlinks=False)
    link(str(old.corpus), str(new.corpus))
    hidden = shutil.ignore_patterns(".*")
    for number, stage in _shared_stages(config, after):
        source, target = (each.stage(number, stage).path for each in (old, new))
        shutil.copytree(source, target, ignore=hidden, copy_function=link)
    return sum(linked), len(linked) - sum(linked)


@click.command()
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option("--after", type=click.IntRange(min=0), required=True, help="Last iteration that is shared.")
@click.option("--name", required=True, help="Id of the new run.")
@click.option("--corpus", is_flag=True, help="Go on with the documents as they are now.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting.")
@click.option(
    "--root", type=click.Path(path_type=Path), default=None, help="Folder of runs.  [default: that of RUN]"
)
@click.option("--json", "as_json", is_flag=True, help="Print what was made as JSON.")
def fork(
    run: Path, after: int, name: str, corpus: bool, overrides: Sequence[str], root: Path | None, as_json: bool
) -> None:
    """Begin a run that shares the iterations of RUN up to --after and goes on with other settings."""
    from scope_selfplay.store.reader import check_run, find_run

    check_run(RunFolder(source := find_run(str(run))))
    config = load_config(source / "run.yaml", overrides, options={"name": name})
    made = fork_run(source, root or source.resolve().parent, config, after=after, corpus=corpus)
    if as_json:
        found = made.fork.model_dump(mode="json") | {"linked": made.linked, "copied": made.copied}
        click.echo(json.dumps({"folder": str(made.folder), **found}, indent=1))
        return
    click.echo(f"{made.folder}: {shared_words(made.fork)}")
    click.echo(f"{made.linked} files are shared, {made.copied} copied")
    click.echo(f"scope continue {made.folder}")
