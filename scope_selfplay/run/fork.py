"""`scope fork`: a run that shares the finished iterations of another one and goes on with other settings.

The new run is built beside its place under a hidden name and moved there whole. The old one is only read: a finished
stage is never written again, so both may hold the same files, as hard links where the file system has them.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from scope_selfplay import __version__
from scope_selfplay.base.errors import ConfigError, RunMismatchError
from scope_selfplay.base.machine import folder_lock
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig, changed_settings
from scope_selfplay.corpus.screen import kin_of
from scope_selfplay.judge.model import KEY_FILE
from scope_selfplay.prompts.folder import load_pack
from scope_selfplay.run.begin import CorpusChanges, corpus_changes, write_config
from scope_selfplay.run.given import given_files, read_given_tasks
from scope_selfplay.run.schedule import challenger_of, stages_of
from scope_selfplay.store.files import LINK_FAULTS, disk_faults, read_value, write_atomic, write_records
from scope_selfplay.store.folder import RunFolder, Stage, read_manifest
from scope_selfplay.store.ratings import Fork, read_fork, shared_words

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
            write_config(building, config)
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
