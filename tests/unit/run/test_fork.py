"""A fork shares what is finished, is whole or absent, and leaves the run that it came from as it was; which stages a
run has and which Challenger writes the tasks of an iteration; an index of exactly the documents that a run searches."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner, Result

from retrieval.folder import Passages, Verify, read_manifest
from scope_selfplay import DEFAULT_CONFIG
from scope_selfplay.base.errors import ConfigError, RunMismatchError, ScopeError
from scope_selfplay.base.terminal import LineProgress, Progress
from scope_selfplay.base.values import Document
from scope_selfplay.cli import cli
from scope_selfplay.config.load import load_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.prompts.folder import load_pack, pack_path
from scope_selfplay.report.commands import documents
from scope_selfplay.report.overview import recorded_sections
from scope_selfplay.run.begin import open_run, run_documents, say_changes
from scope_selfplay.run.commands import index
from scope_selfplay.run.fork import fork_run
from scope_selfplay.run.schedule import challenger_of, promotion_warning, stages_of
from scope_selfplay.stages.work import stage_sources
from scope_selfplay.store.card import run_card
from scope_selfplay.store.files import read_records, write_atomic
from scope_selfplay.store.folder import RunFolder, Stage, StageManifest, checksums, publish_manifest
from scope_selfplay.store.ratings import read_fork
from scope_selfplay.store.reader import RunReader
from tests.models import write_model


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
            path, StageManifest(stage=stage, iteration=iteration, spec_hash="0", outputs=checksums(path))
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
    source.exam.mkdir()
    (source.exam / "exam.json").write_text('{"judge": "m0", "questions": {}}')
    fork_run(source.path, root, config_of(source, "solver.reward=live", name="first"), after=1)
    first = RunFolder(root / "first")
    assert (first.exam / "exam.json").read_bytes() == (source.exam / "exam.json").read_bytes()
    fork_run(source.path, root, config_of(source, "judge.verdict=token", name="judged"), after=1)
    assert not RunFolder(root / "judged").exam.exists(), "another judge is examined anew"
    for stage in (Stage.CHALLENGER, Stage.TASKS, Stage.SOLVER, Stage.COMPARE):
        path = first.stage(2, stage).path
        path.mkdir(parents=True)
        publish_manifest(path, StageManifest(stage=stage, iteration=2, spec_hash="0"))
    fork_run(first.path, root, config_of(first, "solver.reward=balanced", name="second"), after=2)
    fork = read_fork(RunFolder(root / "second"))
    own, old = load_config(first.config).hash, load_config(source.config).hash
    assert fork is not None and fork.config_hashes == (old, old, own)


def test_what_the_shared_iterations_have_decided_is_refused_with_its_reason(source: RunFolder) -> None:
    for setting, after, said in (
        ("challenger.freeze_after=0", 1, "freeze_after: would have changed what iterations 0 to 1 train"),
        ("model.path=other", 1, "cannot change in a fork: the shared checkpoints were trained from it"),
        ("corpus.path=docs", 0, "cannot change in a fork: the shared corpus.jsonl was made by it"),
        ("compare.tasks=3", 0, "cannot change in a fork: the held-out tasks were made once"),
        ("domain=support", 1, "domain: cannot change in a fork: a run has one prompt pack"),
        ("iterations=2", 2, "leaves nothing to do after iteration 2; --set iterations=3"),
        ("iterations=4", 3, "iteration-03/challenger: is not finished, so iteration 3 cannot be shared"),
    ):
        with pytest.raises((ConfigError, RunMismatchError)) as error:
            fork_run(source.path, source.path.parent, config_of(source, setting), after=after)
        assert said in str(error.value) and "\n" not in str(error.value)
        assert sorted(path.name for path in source.path.parent.iterdir()) == ["demo"]


def test_another_file_system_gets_copies(source: RunFolder) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == source.path.stat().st_dev:
        pytest.skip("needs a second file system")
    with tempfile.TemporaryDirectory(dir=memory) as elsewhere:
        made = fork_run(source.path, Path(elsewhere), config_of(source, "seed=2"), after=1)
        assert made.linked == 0 and made.copied == 13
        weights = "iteration-01/solver/checkpoint/weights"
        copy = Path(elsewhere) / "other" / weights
        assert copy.read_bytes() == (source.path / weights).read_bytes()


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


def test_a_fork_that_was_killed_is_absent_and_the_next_one_is_whole(source: RunFolder) -> None:
    before, root = snapshot(source.path), source.path.parent
    for last in (1, 7, 13):
        command = [sys.executable, "-c", KILLED, str(source.path), str(last)]
        assert subprocess.run(command, check=False, timeout=200).returncode == -9
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


@pytest.mark.parametrize(
    ("settings", "trained", "names"),
    [
        ([], [1, 2, 3], ["C_0", "C_1", "C_2", "C_3"]),
        (["challenger.freeze_after=1"], [1], ["C_0", "C_1", "C_1", "C_1"]),
        (["challenger.freeze_after=0"], [], ["C_0", "C_0", "C_0", "C_0"]),
    ],
)
def test_a_challenger_frozen_after_an_iteration_writes_all_later_tasks(
    settings: list[str], trained: list[int], names: list[str]
) -> None:
    config = load_config(None, settings)
    assert [iteration for iteration, stage in stages_of(config) if stage is Stage.CHALLENGER] == trained
    assert [challenger_of(config, iteration).name for iteration in range(4)] == names


MODEL_JUDGE = "judge={kind: model, endpoint: {base_url: 'http://127.0.0.1:1/v1'}}"
HELD_OUT_JUDGE = "judge.evaluate=[{base_url: 'http://127.0.0.1:2/v1'}]"
BETTER = "compare.promotion=better"


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ([MODEL_JUDGE], False),
        ([MODEL_JUDGE, BETTER], True),
        ([MODEL_JUDGE, "compare.stop=worse", "solver.reward=arenarl"], True),
        ([MODEL_JUDGE, BETTER, HELD_OUT_JUDGE], False),
        ([MODEL_JUDGE, BETTER, HELD_OUT_JUDGE.replace(":2", ":1")], True),
        # Rewards ask for grades, promotion for comparisons, elsewhere.
        ([MODEL_JUDGE, BETTER, "judge.endpoints.compare.base_url=http://127.0.0.1:2/v1"], False),
    ],
)
def test_a_judge_that_is_optimised_and_promotes_is_warned_of(settings: list[str], warned: bool) -> None:
    warning = promotion_warning(load_config(None, settings))
    assert (warning is not None) is warned
    assert warning is None or "set judge.evaluate to another judge" in warning


def test_an_index_of_a_runs_config_has_the_runs_passages(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="needs the retrieval extra")
    pytest.importorskip("transformers", reason="needs the train extra")
    article = {"title": "T", "text": "One or two words. " * 300}
    lines = [json.dumps({"id": str(number), **article}) for number in range(3)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    config = tmp_path / "run.yaml"
    settings = {"corpus": {"path": str(tmp_path / "corpus.jsonl")}, "challenger": {"max_prompt": 4000}}
    config.write_text(json.dumps(settings))
    change = ["--set", "corpus.chunk_tokens=200"]
    done = CliRunner().invoke(index, ["build", str(config), str(tmp_path / "index"), *change])
    assert done.exit_code == 0, done.output
    written = tmp_path / "cut.jsonl"
    listed = CliRunner().invoke(documents, [str(config), "-o", str(written), *change])
    assert listed.exit_code == 0, listed.output
    run = load_config(config, change[1:])
    read = run_documents(run, load_pack(pack_path(run.domain)))
    manifest = read_manifest(tmp_path / "index", Verify.SIZES)
    assert read_records(written, Document) == read
    assert manifest.rows == len(read) > 3
    assert manifest.corpus_hash == Passages.from_documents(read).corpus_hash


def test_settings_belong_to_a_config(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "a", "title": "A", "text": "x"}\n')
    for command, words, said in (
        (index, ["build", str(corpus), str(tmp_path / "index")], "SOURCE is none"),
        (documents, [str(corpus)], "PATH is none"),
    ):
        done = CliRunner().invoke(command, [*words, "--set", "seed=1"], standalone_mode=False)
        assert isinstance(done.exception, click.UsageError) and said in str(done.exception)


def test_new_and_changed_documents_are_said_at_a_start_and_taken_by_a_fork(tmp_path: Path) -> None:
    docs, root = tmp_path / "docs", tmp_path / "runs"

    def write(name: str, text: str) -> None:
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(f"# Page {name}\n\n{text}\n")

    for name in "abcdef":
        write(f"{name}.md", f"What {name} says.")
    given = ["domain=embedded", f"corpus.path={docs}", f"model.path={write_model(tmp_path / 'model')}"]
    config = load_config(None, [*given, "name=demo", "iterations=2", "challenger.max_prompt=4096"])
    folder = open_run(config, root, Progress()).folder
    used = {(0, Stage.TASKS): ["a.md"], (1, Stage.CHALLENGER): ["b.md"], (1, Stage.TASKS): ["c.md"]}
    for iteration, stage in stages_of(config):
        if iteration == 2:
            break
        path = folder.stage(iteration, stage).path
        path.mkdir(parents=True)
        write_atomic(path / "documents.json", json.dumps(used.get((iteration, stage), [])))
        manifest = StageManifest(stage=stage, iteration=iteration, spec_hash="0", outputs=checksums(path))
        publish_manifest(path, manifest)

    def forked(source: str, name: str, *more: str) -> Result:
        return CliRunner().invoke(cli, ["fork", str(root / source), "--after", "1", "--name", name, *more])

    assert "; fork without it" in str(forked("demo", "early", "--corpus").exception)
    assert not (root / "early").exists()
    (docs / "a.md").rename(docs / "moved.md")
    for name in ("a.md", "b.md"):
        write(name, f"{name} was rewritten.")
    for name in ("de/a.md", "g.md"):
        write(name, f"What {name} says.")
    (docs / "f.md").unlink()
    said: list[str] = []
    begun = open_run(config, root, LineProgress(said.append))
    say_changes(begun)
    (line,) = said
    assert "/docs: since the run began 3 documents new, 2 changed, 1 gone; the run keeps its own; `" in line
    assert "/demo --after 1 --name demo-new --corpus`" in line
    made = forked("demo", "grown", "--corpus")
    assert "corpus=3 documents new, 2 changed, 1 gone" in made.output, made.output
    assert forked("grown", "again").exit_code == 0
    for name, free in (("grown", {"b.md", "d.md", "e.md", "g.md"}), ("again", {"d.md", "e.md", "g.md"})):
        run = open_run(load_config(root / name / "run.yaml"), root, Progress())
        texts = {each.id: each.text for each in run.documents}
        assert texts["b.md"] == "b.md was rewritten." and "f.md" not in texts and len(begun.documents) == 6
        left = stage_sources(run, 2, Stage.CHALLENGER, 99, or_fewer=True)
        assert {each.document.id for each in left} == free
    with RunReader(root / "grown") as reader:
        assert reader.document("c.md") is not None
