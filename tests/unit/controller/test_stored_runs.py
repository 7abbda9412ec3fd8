"""Runs whose pods have a disk each and a store between them: init containers and stages do for real, on folders of this
machine, what their manifests say, and only the work of a stage is simulated.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jobs.__main__ import bring_inputs, jobs
from scope_selfplay.base.errors import ConfigError, ExitCode, OutsideError, RecordError, ScopeError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.cluster.fetch import StoredRun, fetch
from scope_selfplay.cluster.pods import RunStage
from scope_selfplay.cluster.stages import STARTUP
from scope_selfplay.driver.api import Body, ObjectKind
from scope_selfplay.driver.observed import step_of
from scope_selfplay.driver.parts import RunStore
from scope_selfplay.store import object_store
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.object_store import ObjectFolder, Unit, keep, pull, send, store_unit
from scope_selfplay.testing.fake_nodes import PodEnding, SimulatedStages
from tests.commands import wait_until
from tests.unit.controller.worlds import ONE, World, config_of

pytestmark = pytest.mark.integration
MODEL, STEP, STAGE = "models/Qwen2.5-7B-Instruct", "i01-train-solver", "runs/r1/iteration-01/solver"

DRIVES = {"app.kubernetes.io/component": "controller"}


class Pods:
    """Each has a disk of its own; what it runs ends as `ending` says, once it has done its work."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, f"file://{folder}/store"
        self.ending: Callable[[str], int] = lambda job: 0
        self.disks: dict[str, Path] = {}
        self.said = ""
        model = folder / "model"
        model.mkdir()
        (model / "model.safetensors").write_bytes(bytes(range(256)) * 100)
        (model / "config.json").write_text("{}")
        send(ObjectFolder(self.store, Progress(), MODEL), model, model.iterdir(), ["index.json"])

    def __call__(self, job: Body, rank: int) -> PodEnding:
        name, spec = job["metadata"]["name"], job["spec"]["template"]["spec"]
        disk = self.disks[name] = self.folder / name
        (first,) = spec["initContainers"]
        if code := self.run(first["command"], disk):
            return PodEnding(code)
        stages, labels = SimulatedStages(disk / "runs", "r1"), job["metadata"]["labels"]
        work = stages.folder.stage(*step_of(labels)).path / ".work"
        work.mkdir(parents=True, exist_ok=True)
        (work / f"seen-by-{name}").touch()
        (disk / "runs/r1/exam").mkdir(exist_ok=True)
        (disk / "runs/r1/exam/exam.json").write_text(f'"{name}"')
        if (code := self.ending(name)) == 0:
            (work.parent / "checkpoint").mkdir(exist_ok=True)
            (work.parent / "checkpoint/model.safetensors").write_text(name)
            stages(job, rank)
        return PodEnding(self.run(spec["containers"][0]["command"], disk, code))

    def run(self, command: list[str], disk: Path, code: int | None = None) -> int:
        """One of the two commands of `jobs`, on this disk; a program in it ends with `code`."""
        assert command[:3] == ["python", "-m", "jobs"]
        words = [command[3], "--volume", str(disk), *command[4:]]
        if code is not None:
            words = [*words[: words.index("--") + 1], "sh", "-c", f"exit {code}"]
        done = CliRunner().invoke(jobs, words)
        self.said = f"{done.exception}"
        return int(done.exception.exit_code) if isinstance(done.exception, ScopeError) else done.exit_code

    def index(self, stage: str, name: str = "index.json") -> dict[str, str]:
        """The files of an index and their sums."""
        found = ObjectFolder(self.store, Progress(), stage).index(name)
        return {path: file.sha256 for path, file in (found or {}).items()}


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    return Pods(tmp_path)


@pytest.fixture
def world(tmp_path: Path, pods: Pods) -> World:
    return begun(tmp_path / "controller", pods)


def begun(disk: Path, pods: Pods) -> World:
    """A run that is at its beginning, on the controller's disk."""
    settings = ONE | {"cluster": ONE["cluster"] | {"store": pods.store}}
    world = World(disk / "runs", settings, work=pods)
    world.add_controller_job(**DRIVES)
    (disk / "runs/r1").mkdir(parents=True)
    (disk / "runs/r1/run.yaml").write_text("name: r1\n")
    return world


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_run_without_a_shared_volume_ends_with_one_index_of_each_stage_and_is_fetched(
    tmp_path: Path, world: World, pods: Pods
) -> None:
    assert world.drive().code is ExitCode.DONE
    assert set(world.jobs_created.values()) == {1}
    stages = [place.name for place in sorted(tmp_path.glob("store/runs/r1/iteration-*/*"))]
    assert len(stages) == len(world.jobs_created) == 6
    here, last = names(tmp_path / "controller/runs/r1"), world.status["store"]
    assert not [name for name in here if "checkpoint" in name or ".work" in name], "records of others"
    assert last == pods.store
    # The stage before brings what all share, and the checkpoint that is served comes to who names it.
    compare = names(pods.disks["r1-i01-compare-a1"])
    weights = {name for name in compare if "checkpoint" in name}
    assert weights == {
        f"{STAGE}/checkpoint/model.safetensors",
        "runs/r1/iteration-01/compare/checkpoint/model.safetensors",
    }
    assert f"{MODEL}/model.safetensors" in compare and "runs/r1/run.yaml" in compare
    assert (tmp_path / "controller/runs/r1/exam/exam.json").read_text() == '"r1-i01-compare-a1"'
    to, run = tmp_path / "to", StoredRun(pods.store, "r1")
    done = fetch(run, "r1", to, Progress(), checkpoints=True, force=False)
    assert {"run.yaml", "iteration-01/solver/checkpoint/model.safetensors"} < set(done.files)
    assert (to / "r1/best").readlink() == Path("iteration-01/solver/checkpoint")
    again = fetch(run, "r1", to, Progress(), checkpoints=True, force=False)
    assert (again.files, again.unchanged) == ([], len(done.files))
    (to / "r1/run.yaml").write_text("mine")
    with pytest.raises(ConfigError, match=r"run.yaml did not come from file:.* and differ"):
        fetch(run, "r1", to, Progress(), checkpoints=False, force=False)
    with pytest.raises(ConfigError, match=r"r2: nothing is at file:.*/runs/r2; the runs there: r1$"):
        fetch(StoredRun(pods.store, "r2"), "r2", to, Progress(), checkpoints=False, force=False)


def test_an_attempt_goes_on_where_the_one_before_was_cut_off(world: World, pods: Pods) -> None:
    """And not where one goes on that was given up and lives."""
    late = list[Body]()

    def work(job: Body, rank: int) -> PodEnding:
        name = job["metadata"]["name"]
        if name == f"r1-{STEP}-a1":
            late.append(job)
        elif name == f"r1-{STEP}-a3":
            (container,) = late[0]["spec"]["template"]["spec"]["containers"]
            assert pods.run(container["command"], pods.disks[f"r1-{STEP}-a1"], 143) == 143
        return pods(job, rank)

    world.nodes.work = work
    pods.ending = lambda job: 137 if job == f"r1-{STEP}-a1" else 143 if job == f"r1-{STEP}-a2" else 0
    assert world.drive().code is ExitCode.DONE
    assert {name: count for name, count in world.jobs_created.items() if STEP in name} == {
        f"r1-{STEP}-a{number}": 1 for number in (1, 2, 3)
    }
    third = names(pods.disks[f"r1-{STEP}-a3"] / STAGE / ".work")
    assert third == {f"seen-by-r1-{STEP}-a{number}" for number in (1, 2, 3)}
    assert pods.index(STAGE) == pods.index(STAGE, "index-a3.json") != {}


def test_an_attempt_that_ends_late_publishes_nothing(world: World, pods: Pods) -> None:
    late = list[Body]()

    def work(job: Body, rank: int) -> PodEnding:
        if job["metadata"]["name"] != f"r1-{STEP}-a1":
            return pods(job, rank)
        late.append(job)
        return PodEnding(status={"reason": "NodeLost"})

    world.nodes.work = work
    controller = world.controller()
    world.go_until(controller, lambda: pods.index(STAGE))
    second = pods.index(STAGE)
    assert second == pods.index(STAGE, "index-a2.json")
    assert pods(late[0], 0).exit_code == 0
    assert pods.index(STAGE, "index-a1.json") not in ({}, second)
    # Nor does a controller that was the leader when that attempt had ended.
    asleep = RunStore(pods.store, RunFolder(pods.folder / "old/runs/r1"))
    asleep.publish(RunStage(1, Stage.SOLVER), 1)
    assert world.drive(controller).code is ExitCode.DONE
    assert pods.index(STAGE) == second
    assert names(pods.disks["r1-i01-compare-a1"] / STAGE / "checkpoint") == {"model.safetensors"}
    assert (
        pods.disks["r1-i01-compare-a1"] / STAGE / "checkpoint/model.safetensors"
    ).read_text() == f"r1-{STEP}-a2"


@pytest.mark.parametrize("gone", ["its disk", "the stage's Job", "its own Job", "all that it made"])
def test_what_a_killed_controller_has_decided_to_publish_the_next_one_does(
    world: World, pods: Pods, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(store: RunStore, *what: Any) -> None:
        raise KeyboardInterrupt

    controller, tasks, job = world.controller(), "runs/r1/iteration-01/tasks", "r1-i01-make-tasks-a1"
    world.go_until(controller, lambda: "i01-make-tasks" in world.status.get("step", ""))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunStore, "publish", dies)
        world.go_until(controller, lambda: False)
    assert json.loads(world.status["ledger"])["histories"]["i01-make-tasks"]["published"] == 1
    assert not pods.index(tasks)
    made = pods.index(tasks, "index-a1.json")[f"{tasks[8:]}/manifest.json"]
    other = begun(pods.folder / "another", pods)
    other.cluster, other.nodes = world.cluster, world.nodes
    own = "r1-controller"
    if gone == "the stage's Job":
        world.cluster.erase(ObjectKind.JOB, job)
    elif gone != "its disk":
        if gone == "all that it made":
            world.cluster.erase(ObjectKind.JOB, own)
        own = other.add_controller_job("r1-controller-2", **DRIVES)
    assert other.drive(other.controller(identity="pod-2", job=own)).code is ExitCode.DONE
    # With its Job goes what it has noted, and another attempt finds the work done; no number is given twice.
    last = 2 if gone == "all that it made" else 1
    made_here = [name for name in world.jobs_created if name.startswith(job[:-1])]
    assert made_here == [f"{job[:-1]}{number}" for number in range(1, last + 1)]
    assert pods.index(tasks) == pods.index(tasks, f"index-a{last}.json")
    assert pods.index(tasks)[f"{tasks[8:]}/manifest.json"] == made


def test_a_store_that_is_down_holds_up_the_rounds_and_ends_no_run(
    tmp_path: Path, world: World, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once while a stage works, and once when its work is stored and not yet published."""
    monkeypatch.setattr(object_store, "PAUSE", 0.0)
    store, away = tmp_path / "store/runs/r1", tmp_path / "away"
    down = list[str]()

    def work(job: Body, rank: int) -> PodEnding:
        ending = pods(job, rank)
        if STEP in (name := job["metadata"]["name"]) and not away.exists() and name not in down:
            down.append(name)
            store.rename(away)
            store.touch()
        return ending

    world.nodes.work = work
    controller = world.controller()
    world.go_until(controller, lambda: "i01-make-tasks" in world.status.get("jobs", ""))
    store.rename(away)
    store.touch()
    for job in ("r1-i01-make-tasks-a1", f"r1-{STEP}-a1"):
        world.go(controller, 120)
        assert "the same command again" in world.said[-1] and world.said[-1].endswith("looking again")
        assert job in world.status["message"]
        store.unlink()
        away.rename(store)
        world.go_until(
            controller, lambda: away.exists() or (len(down) and world.status.get("step") == "i01-compare")
        )
    assert world.drive(controller).code is ExitCode.DONE
    # A pod that could not store its work is made again, and what was stored is published.
    made = [name for name in world.jobs_created if "i01-make-tasks" in name or STEP in name]
    assert made == ["r1-i01-make-tasks-a1", "r1-i01-make-tasks-a2", f"r1-{STEP}-a1"]


def test_what_somebody_has_deleted_before_it_was_published_is_said(
    tmp_path: Path, world: World, pods: Pods
) -> None:
    def work(job: Body, rank: int) -> PodEnding:
        ending = pods(job, rank)
        for file in tmp_path.glob("store/runs/r1/iteration-01/solver/index-a1.json"):
            file.unlink()
        return ending

    world.nodes.work = work
    run_end = world.drive()
    assert (run_end.code, "index-a1.json: was deleted since its" in run_end.message) == (ExitCode.USER, True)


def test_a_server_has_its_time_from_when_its_model_has_come(world: World, pods: Pods) -> None:
    world.nodes.leaves_alone = lambda name: name.startswith("r1-judge")
    controller = world.controller()
    world.go(controller, 30)
    (judge,) = [each for name, each in world.cluster.objects(ObjectKind.POD).items() if "r1-judge" in name]
    comes: dict[str, Any] = {
        "phase": "Pending",
        "initContainerStatuses": [{"name": "pull", "state": {"running": {}}}],
    }
    judge["status"] = comes
    world.go(controller, 2 * STARTUP, step=60)
    assert "ServerLate" not in world.reasons
    judge["status"] = {"phase": "Running"}
    world.go(controller, STARTUP - 120, step=60)
    assert "ServerLate" not in world.reasons
    world.go(controller, 240, step=60)
    assert "ServerLate" in world.reasons


def test_a_manifest_comes_after_what_it_says_is_there(tmp_path: Path) -> None:
    store, unit = f"file://{tmp_path}/store", Unit("runs/r1/iteration-00/compare")
    folder = tmp_path / "here/runs/r1/iteration-00/compare"
    folder.mkdir(parents=True)
    for name in ("manifest.json", "ratings.json"):
        (folder / name).write_text(name)
    remote, seen = ObjectFolder(store, Progress(), unit.name), list[list[str]]()
    store_unit(remote, unit, tmp_path / "here", ["index.json"])

    class Watching(Progress):
        def advance(self, done: int, note: str = "") -> None:
            seen.append([path.name for path in (tmp_path / "to").rglob("*.json")])

    assert pull(store, unit, tmp_path / "to", Watching())
    assert seen == [[], ["ratings.json"]]


def test_workers_share_a_stage_see_each_other_and_are_collected(tmp_path: Path) -> None:
    store, unit = f"file://{tmp_path}/store", Unit("runs/r1/iteration-01/tasks")

    def share(disk: str, worker: int, start: int) -> Path:
        return tmp_path / disk / unit.name / f".work/shares/{worker:02d}-of-02-{start:03d}/candidates.jsonl"

    def keep_on(disk: Path, attempt: int, worker: int, program: str) -> int:
        which = {"attempt": attempt, "worker": worker, "every": 0.1}
        return keep(store, unit, disk, [sys.executable, "-c", program], print, **which)

    for attempt, (worker, start) in enumerate([(0, 0), (1, 0), (1, 1)], start=1):
        disk = tmp_path / f"disk-{attempt}"
        pull(store, unit, disk, Progress(), of_work=True)
        write = f"import pathlib; p = pathlib.Path({str(share(disk.name, worker, start))!r}); "
        write += (
            "p.parent.mkdir(parents=True); p.write_text(str(p.parent.name)); import time; time.sleep(0.5)"
        )
        assert keep_on(disk, attempt, worker, write) == 0
    # The first attempt of a worker ends late, long after the second one.
    assert keep_on(tmp_path / "disk-2", 2, 1, "") == 0
    remote = ObjectFolder(store, Progress(), unit.name)
    assert remote.names() == ["work-a1-s00.json", "work-a2-s01.json", "work-a3-s01.json"]
    assert all("/shares/01-" in name for name in remote.index("work-a3-s01.json") or ())
    # The collecting Job finds all of them; a worker has seen the others' while it worked.
    pull(store, unit, tmp_path / "last", Progress(), of_work=True)
    expected = {"00-of-02-000", "01-of-02-000", "01-of-02-001"}
    for disk in ("last", "disk-3"):
        assert {path.name for path in (tmp_path / disk / unit.name / ".work/shares").iterdir()} == expected


LOOP = """
import pathlib, shutil, signal, sys, time
folder = pathlib.Path("disk/runs/r1/iteration-01/solver/.work")
def save(name):
    (folder / "staging").mkdir(parents=True, exist_ok=True)
    (folder / "staging" / "weights").write_text("x" * 5000)
    (folder / "staging").rename(folder / name)
signal.signal(signal.SIGTERM, lambda *_: (save("checkpoint-last"), sys.exit(143)))
for step in range(1000):
    save(f"checkpoint-{step}")
    shutil.rmtree(folder / f"checkpoint-{step - 2}", ignore_errors=True)
    time.sleep(0.05)
"""
KEEP = (
    "import scope_selfplay.store.object_store as o; import jobs.__main__ as m; "
    "o.keep.__kwdefaults__['every'] = 0.1; m.jobs()"
)


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_cut_program_made_is_there_for_the_next_and_sigterm_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: signal.Signals
) -> None:
    monkeypatch.chdir(tmp_path)
    store = f"file://{tmp_path}/store"
    words = [*f"keep --store {store} --volume disk --attempt 1 {STAGE} -- {sys.executable} -c".split(), LOOP]
    process = subprocess.Popen([sys.executable, "-c", KEEP, *words], process_group=0)
    remote = ObjectFolder(store, Progress(), STAGE)
    wait_until(lambda: any("/checkpoint-" in name for name in remote.newest_work() or ()))
    os.killpg(process.pid, stop) if stop is signal.SIGKILL else process.send_signal(stop)
    assert process.wait() == (-9 if stop is signal.SIGKILL else 143)
    assert pull(store, Unit(STAGE), tmp_path / "next", Progress(), of_work=True)
    saved = {path.parent.name: path.read_text() for path in tmp_path.glob(f"next/{STAGE}/.work/*/weights")}
    assert "x" * 5000 in {saved[name] for name in saved.keys() - {"staging"}}, "though each is removed soon"
    assert ("checkpoint-last" in saved) is (stop is signal.SIGTERM)
    assert remote.index("index-a1.json") is None


def test_damage_is_named_and_what_cannot_be_stored_is_tried_again(
    tmp_path: Path, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    (part,) = [each for each in (tmp_path / "store" / MODEL / "parts").iterdir() if each.stat().st_size > 2]
    part.write_bytes(b"x")
    with pytest.raises(RecordError, match=f"parts/{part.name}: is damaged; delete it, then upload again"):
        pull(pods.store, Unit(MODEL), tmp_path / "disk", Progress())
    assert not (tmp_path / "disk" / MODEL / "model.safetensors").exists()
    words = ["python", "-m", "jobs", "pull", "--store", pods.store, MODEL, "models/other"]
    assert pods.run(words, tmp_path / "disk") == 64 and "is damaged" in pods.said
    assert pods.run([*words[:-2], words[-1]], tmp_path / "disk") == 75
    assert "models/other: not in" in pods.said and "yet; the other Jobs of prepare bring" in pods.said
    monkeypatch.setattr(object_store, "TRIES", 1)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.setenv(name, "true")
    down = "s3://bucket/runs?endpoint=http://127.0.0.1:9"
    words = ["python", "-m", "jobs", "keep", "--store", down, "--attempt", "1", STAGE, "--", "true"]
    assert pods.run(words, tmp_path / "disk", 0) == 75 and "onnect" in pods.said
    # How a program ended counts more.
    assert pods.run(words, tmp_path / "disk", 64) == 64


def test_a_controller_waits_for_what_its_run_needs_and_brings_it(tmp_path: Path, pods: Pods) -> None:
    cluster = {"store": pods.store, "judge": {"serve": False}, "retriever": {"serve": False}}
    named = {"corpus": {"path": "/data/corpus/c.jsonl"}, "solver": {"tasks": "/data/tasks.jsonl"}}
    config = config_of(ONE, **named, cluster=cluster)
    with pytest.raises(
        OutsideError, match=r"^corpus/c.jsonl: not there yet; the other Jobs of prepare bring"
    ):
        bring_inputs(config, tmp_path / "first/runs", 0)

    def give(unit: str, name: str) -> None:
        file = tmp_path / "here" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(unit)
        send(ObjectFolder(pods.store, Progress(), unit), file.parent, [file], ["index.json"])

    give("corpus/c.jsonl", "mine.jsonl")
    give("tasks.jsonl", "tasks.jsonl")
    bring_inputs(config, tmp_path / "first/runs", 0)
    every = {"corpus/c.jsonl", "tasks.jsonl", f"{MODEL}/model.safetensors", f"{MODEL}/config.json"}
    assert names(tmp_path / "first") == every
    give("runs/r1/begin", "run.yaml")
    bring_inputs(config, tmp_path / "second/runs", 0)
    # What it began with is all that it needs of its corpus.
    assert names(tmp_path / "second") == every - {"corpus/c.jsonl"} | {"runs/r1/run.yaml"}


def test_what_a_job_of_prepare_has_brought_is_not_brought_again(tmp_path: Path, pods: Pods) -> None:
    disk = tmp_path / "disk"
    words = ["keep", "--store", pods.store, "--volume", str(disk), "corpus/c.jsonl", "--", "sh", "-c"]
    program = f"mkdir -p {disk}/corpus && echo {{}} >> {disk}/corpus/c.jsonl"
    assert CliRunner().invoke(jobs, [*words, "exit 75"]).exit_code == 75
    assert pods.index("corpus/c.jsonl") == {}
    for _ in range(2):
        assert CliRunner().invoke(jobs, [*words, program]).exit_code == 0
    assert pull(pods.store, Unit.of("corpus/c.jsonl"), tmp_path / "other", Progress())
    assert (tmp_path / "other/corpus/c.jsonl").read_text() == "{}\n"
