"""A fork shares what is finished, is whole or absent, and leaves the run that it came from as it was."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.errors import ConfigError, RunMismatchError, ScopeError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.cli import cli
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.report.overview import recorded_sections
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.fork import fork_run
from scope_selfplay.run.schedule import stages_of
from scope_selfplay.store.card import run_card
from scope_selfplay.store.files import write_atomic
from scope_selfplay.store.folder import RunFolder, Stage, StageManifest, checksums, publish_manifest
from scope_selfplay.store.ratings import read_fork
from scope_selfplay.store.reader import RunReader


@pytest.fixture
def source(tmp_path: Path) -> RunFolder:
    """A run of two finished iterations and a third that has begun."""
    config = load_config(DEFAULT_CONFIG, ["name=demo", "iterations=3", "corpus.sample=60"])
    folder = open_run(config, tmp_path, Progress()).folder
    for iteration, stage in stages_of(config):
        path = folder.stage(iteration, stage).path
        if iteration > 2:
            break
        (path / "checkpoint").mkdir(parents=True)
        write_atomic(path / "checkpoint" / "weights", f"{iteration} {stage}")
        publish_manifest(
            path,
            StageManifest(stage=stage, iteration=iteration, spec_hash="0", outputs=checksums(path)),
        )
    begun = folder.stage(3, Stage.CHALLENGER).path
    begun.mkdir(parents=True)
    write_atomic(begun / "metrics.jsonl", "")
    return folder


def snapshot(folder: Path) -> dict[str, tuple[float, bytes]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime, path.read_bytes()) for path in files}


def config_of(source: RunFolder, *settings: str, name: str = "other") -> RunConfig:
    return load_config(source.config, settings, options={"name": name})


def test_a_fork_has_the_finished_iterations_and_its_own_settings(source: RunFolder) -> None:
    before, root = snapshot(source.path), source.path.parent
    made = fork_run(
        source.path, root, config_of(source, "challenger.freeze_after=1", "solver.reward=live"), after=1
    )
    assert snapshot(source.path) == before
    new = RunFolder(root / "other")
    weights = "iteration-01/solver/checkpoint/weights"
    assert (source.path / weights).samefile(new.path / weights)
    assert made.linked == 1 + 2 * 6 and made.copied == 0
    assert not (new.path / "iteration-02").exists() and not (new.path / "iteration-03").exists()
    kept = load_config(new.config)
    assert (kept.name, kept.challenger.freeze_after, kept.solver.reward.design) == ("other", 1, "live")
    fork = read_fork(new)
    assert fork is not None and (fork.run, fork.after) == ("demo", 1)
    assert fork.changed["challenger.freeze_after"] == (None, 1)
    assert fork.config_hashes == (load_config(source.config).hash,) * 2
    # It opens as a run of its own, and says whose iterations it has.
    open_run(kept, root, Progress())
    with RunReader(new.path) as reader:
        (shared,) = (each for each in recorded_sections(reader)[0].parts if "are those of" in str(each))
    assert str(shared).startswith("Iterations 0 to 1 are those of the run demo; from then on ")
    assert "challenger.freeze_after=1" in str(shared) and str(shared)[1:] in run_card(new, "other")


def test_a_fork_of_a_fork_knows_the_config_of_every_iteration(source: RunFolder) -> None:
    root = source.path.parent
    fork_run(source.path, root, config_of(source, "solver.reward=live", name="first"), after=1)
    first = RunFolder(root / "first")
    for stage in (Stage.CHALLENGER, Stage.TASKS, Stage.SOLVER, Stage.COMPARE):
        path = first.stage(2, stage).path
        path.mkdir(parents=True)
        publish_manifest(path, StageManifest(stage=stage, iteration=2, spec_hash="0"))
    fork_run(first.path, root, config_of(first, "solver.reward=balanced", name="second"), after=2)
    fork = read_fork(RunFolder(root / "second"))
    own, old = load_config(first.config).hash, load_config(source.config).hash
    assert fork is not None and fork.config_hashes == (old, old, own)


@pytest.mark.parametrize(
    ("settings", "after", "said"),
    [
        (
            ["challenger.freeze_after=0"],
            1,
            "challenger.freeze_after: would have changed what iterations 0 to 1 train",
        ),
        (["solver.tasks=x.jsonl"], 1, "solver.tasks: would have changed"),
        (
            ["model.path=other"],
            1,
            "model.path: cannot change in a fork: the shared checkpoints were trained from it",
        ),
        (
            ["corpus.path=docs"],
            0,
            "corpus.path: cannot change in a fork: the shared corpus.jsonl was made by it",
        ),
        (["compare.tasks=3"], 0, "compare.tasks: cannot change in a fork: the held-out tasks were made once"),
        (["domain=support"], 1, "domain: cannot change in a fork: a run has one prompt pack"),
        (["iterations=2"], 2, "leaves nothing to do after iteration 2; --set iterations=3"),
        ([], 3, "iteration-03/challenger: is not finished, so iteration 3 cannot be shared"),
    ],
)
def test_what_the_shared_iterations_have_decided_is_refused_with_its_reason(
    source: RunFolder, settings: list[str], after: int, said: str
) -> None:
    settings = settings or ["iterations=4"]
    with pytest.raises((ConfigError, RunMismatchError)) as error:
        fork_run(source.path, source.path.parent, config_of(source, *settings), after=after)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert sorted(path.name for path in source.path.parent.iterdir()) == ["demo"]


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == Path(tempfile.gettempdir()).stat().st_dev:
        pytest.skip("needs a second file system")
    folder = Path(tempfile.mkdtemp(dir=memory))
    yield folder
    shutil.rmtree(folder)


def test_another_file_system_gets_copies(source: RunFolder, elsewhere: Path) -> None:
    made = fork_run(source.path, elsewhere, config_of(source, "seed=2"), after=1)
    assert made.linked == 0 and made.copied == 13
    weights = "iteration-01/solver/checkpoint/weights"
    assert (elsewhere / "other" / weights).read_bytes() == (source.path / weights).read_bytes()


KILLED = """
import os, signal, sys
from pathlib import Path
from scope_selfplay.config.load import load_config
from scope_selfplay.run.fork import fork_run

source, last, calls, link = Path(sys.argv[1]), int(sys.argv[2]), [], os.link

def counted(*given, **named):
    calls.append(given)
    if len(calls) == last:
        os.kill(os.getpid(), signal.SIGKILL)
    link(*given, **named)

os.link = counted
config = load_config(source / "run.yaml", ["seed=3"], options={"name": "other"})
fork_run(source, source.parent, config, after=1)
"""


@pytest.mark.parametrize("last", [1, 7, 13])
def test_a_fork_that_was_killed_is_absent_and_the_next_one_is_whole(source: RunFolder, last: int) -> None:
    before, root = snapshot(source.path), source.path.parent
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(source.path), str(last)], check=False, timeout=60
    )
    assert done.returncode == -9
    assert not (root / "other").exists() and snapshot(source.path) == before
    made = fork_run(source.path, root, config_of(source, "seed=3"), after=1)
    assert made.linked == 13 and not (root / ".other.fork").exists()


def test_the_command_says_what_it_made(source: RunFolder) -> None:
    settings = "--after 1 --name other --set challenger.freeze_after=1"
    arguments = ["fork", str(source.path), *settings.split()]
    done = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert (found["run"], found["after"], found["linked"]) == ("demo", 1, 13)
    assert found["changed"] == {"challenger.freeze_after": [None, 1]}
    assert yaml.safe_load((Path(found["folder"]) / "run.yaml").read_text())["name"] == "other"
    again = CliRunner().invoke(cli, arguments)
    assert isinstance(again.exception, ScopeError) and "exists; give another --name" in str(again.exception)
