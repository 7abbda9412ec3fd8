"""A run on one machine, driven for real: keepers, ports, probes and signals are real, its programs do next to nothing.

Whatever ends, and whenever: nothing that was started is left, and the same command goes on to the same end.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, suppress
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Candidate
from scope_selfplay.driver import waiting
from scope_selfplay.driver.follow import FollowedHere, status_lines
from scope_selfplay.driver.local import drive_node, read_slots
from scope_selfplay.driver.node import HOST, Ports, succeeds
from scope_selfplay.driver.parts import Inputs
from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.plan.placement import place
from scope_selfplay.run.begin import open_run
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import RunFolder, Stage
from tests.commands import ran, wait_until
from tests.disks import Disk, disk_at
from tests.unit.controller.node_world import NODE, install
from tests.unit.controller.worlds import config_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="keepers are Linux'")
REPOSITORY = Path(__file__).parents[3]
STOPS = int(os.environ.get("SCOPE_STOPS", "3"))
"""Moments at which a run is stopped."""


class Machine:
    """`holds`, `fails` and `silent` are marks that its programs heed."""

    def __init__(self, home: Path) -> None:
        self.home, self.environment = home, install(home)
        self.run = RunFolder(home / "runs" / "r1")
        self.holds, self.fails = home / "jobs" / "holds", home / "jobs" / "fails"
        self.silent = home / "bin" / "silent"

    def start(self, *words: str) -> "subprocess.Popen[str]":
        command = words or ("tests.unit.controller.node_world", str(self.run.path.parent))
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=self.home,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self) -> str:
        """The same command goes on; what it said."""
        driver = self.start()
        said = driver.communicate(timeout=240)[1]
        assert driver.returncode == 0, said
        assert all(self.run.stage(*step).manifest for step in ((0, Stage.COMPARE), (1, Stage.COMPARE)))
        assert self.left() == []
        return said

    def left(self) -> list[psutil.Process]:
        """What was started for this run and still is there."""
        mine = str(self.home)
        found = []
        for process in psutil.process_iter(["environ"]):
            if process.pid != os.getpid() and mine in (process.info["environ"] or {}).get("PYTHONPATH", ""):
                found.append(process)
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for process in made.left():
        with suppress(psutil.NoSuchProcess):
            process.kill()


def lines_until(driver: "subprocess.Popen[str]", text: str) -> list[str]:
    assert driver.stderr is not None
    lines = []
    for line in driver.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError("".join(lines))


def test_a_killed_driver_leaves_nothing_and_the_same_command_goes_on(machine: Machine) -> None:
    machine.holds.touch()
    driver = machine.start()
    lines_until(driver, "running r1-i00-make-tasks-a1")
    wait_until(lambda: "at work" in FollowedHere(machine.run).logs("make-tasks", 1))
    # Keepers, servers and stage, and what these two started in sessions of their own.
    assert len(machine.left()) >= 10
    driver.kill()
    driver.wait()
    wait_until(lambda: machine.left() == [])
    machine.holds.unlink()
    machine.finish()
    assert FollowedHere(machine.run).status()["status"]["phase"] == "Done"


def test_a_run_that_is_stopped_at_any_moment_ends_in_order_and_goes_on(machine: Machine) -> None:
    rng = Random(0)
    for stop in range(STOPS):
        driver = machine.start()
        assert driver.stderr is not None
        for _ in range(rng.randrange(1, 12)):
            driver.stderr.readline()
        time.sleep(rng.random())
        driver.send_signal(signal.SIGINT)
        if stop % 2:
            driver.send_signal(signal.SIGINT)
        driver.communicate(timeout=120)
        # One that was done before the signal came has ended well.
        assert driver.returncode in (0, 130, -signal.SIGINT)
        assert machine.left() == []
    machine.finish()


def test_a_server_that_dies_is_started_again_and_a_stage_that_fails_is_tried_again(machine: Machine) -> None:
    machine.holds.touch()
    driver = machine.start()
    lines_until(driver, "running r1-i00-make-tasks-a1")
    judges = [
        each for each in machine.left() if "r1-judge" not in str(each) and "vllm" in str(each.cmdline())
    ]
    judge = next(
        each for each in judges if "keeper.py" not in str(each.cmdline()) and "judge" in each.cmdline()
    )
    judge.kill()
    said = lines_until(driver, "r1-judge: GPU 0")
    assert any("r1-judge ended with 137" in line for line in said)
    machine.fails.touch()
    machine.holds.unlink()
    said = driver.communicate(timeout=240)[1].splitlines()
    assert "r1-i00-make-tasks-a2: it ended with an error (what it said last); see its log" in said
    assert driver.returncode == 0 and machine.left() == []


def test_a_driver_beside_another_one_waits_and_stop_ends_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.holds.touch()
    driver = machine.start()
    lines_until(driver, "running r1-i00-make-tasks-a1")
    followed = FollowedHere(machine.run)
    parts = {part["name"]: part for part in followed.status()["parts"]}
    assert parts["r1-judge"]["on"] == "GPU 0" and parts["r1-judge"]["state"] == "ready"
    monkeypatch.setenv("PATH", machine.environment["PATH"])
    assert "0     61000  81559      93" in "\n".join(status_lines(followed.status()))
    other = machine.start()
    lines_until(other, f"process {driver.pid}")
    assert followed.stop() == "stopped"
    assert driver.wait() == 143
    lines_until(other, "running r1-i00-make-tasks-a2")
    assert followed.stop() == "stopped" and other.wait() == 143
    assert followed.stop() == "nothing runs"


@pytest.fixture
def here(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The driver is this process."""
    for name in ("PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, machine.environment[name])
    monkeypatch.chdir(machine.home)
    return machine


def driven(machine: Machine, stop_at: str) -> tuple[int, list[str]]:
    """Until it says so."""
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if stop_at in text:
            os.kill(os.getpid(), signal.SIGTERM)

    placement = place(config_of(NODE), read_slots("2"))
    return drive_node(Inputs(placement.config, "0123456789abcdef", ()), machine.run, placement, say), said


def test_a_server_that_never_answers_is_made_again_later(
    here: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STARTUP", 1)
    here.silent.touch()
    code, said = driven(here, "did not answer within 1 s")
    assert code == 143 and here.left() == []
    assert any("it is deleted, and made again after" in line for line in said)


def test_a_port_that_is_taken_is_exchanged(here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken, free = [other.getsockname()[1]], Ports.__missing__

        def first_taken(ports: Ports, server: str) -> int:
            ports[server] = taken.pop() if taken else free(ports, server)
            return ports[server]

        monkeypatch.setattr(Ports, "__missing__", first_taken)
        code, said = driven(here, "starting r1-i00-make-tasks-a1")
        assert (
            code == 143 and f"r1-judge: port {other.getsockname()[1]} is taken; another one is used" in said
        )


def test_what_answers_in_no_http_is_no_server() -> None:
    with socket.create_server((HOST, 0)) as other:

        def answer() -> None:
            with other.accept()[0] as asked:
                asked.recv(4096)
                asked.sendall(b"hello\r\n")

        threading.Thread(target=answer).start()
        assert not succeeds({"httpGet": {"path": "/health"}}, other.getsockname()[1])


def test_a_moved_run_goes_on_with_gpus_and_with_its_model_where_that_lies(here: Machine) -> None:
    model = Path(shutil.copytree(policy_path("embedded"), here.home / "runs" / "model"))
    here.run.config.unlink()
    short = {"max_prompt": 256, "max_response": 512}
    own = {"domain": "embedded", "corpus": {"path": "embedded"}, "challenger": short, "solver": short}
    with chdir(here.home / "runs"):
        open_run(config_of(NODE | own, model=NODE["model"] | {"path": "model"}), Path(), Progress())
    here.run.path.rename(here.home / "r1")
    here.holds.touch()
    again = ("scope_selfplay", "continue", "./r1", "--gpus", "2")
    lines_until(driver := here.start(*again), "running r1-i00-make-tasks-a1")
    assert any(str(model) in each.cmdline() for each in here.left())
    driver.terminate()
    assert driver.wait(120) == 143 and here.left() == []
    model.rename(here.home / "gone")
    assert "model: no such model directory" in here.start(*again).communicate(timeout=240)[1]


GPUS = [("3", "no GPU|GPUs 0, 1"), ("0,7", "GPUs 0, 1"), ("many", "expected auto"), ("0", "expected auto")]


@pytest.mark.parametrize(("asked", "found"), GPUS)
def test_gpus_that_are_not_there_are_refused_in_one_line(here: Machine, asked: str, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        read_slots(asked)
    assert read_slots("auto").numbers == (0, 1) and read_slots("1,0").numbers == (1, 0)
    assert read_slots("cpu:4").numbers == (0, 1, 2, 3)


SHORT = (
    "iterations=1 tasks.target=4 tasks.max_candidates=60 tasks.in_flight=8 tasks.rollouts=2 tasks.low=0.0 "
    "tasks.high=1.0 challenger.steps=1 challenger.batch=2 challenger.group_size=4 challenger.rollouts=2 "
    "challenger.save_every=1 solver.steps=1 solver.batch=2 solver.group_size=4 solver.save_every=1 compare.tasks=8"
).split()
OWN = {"seconds", "config_hash", "prompt_hash", "warnings"}
"""A judge in the process names the documents of a rubric, by which a signal of health is measured."""


def told(summary: Any) -> Any:
    """A summary without what is a place's own; ratings as far as ranks that add up otherwise leave them the same."""
    if isinstance(summary, dict):
        return {name: told(value) for name, value in summary.items() if name not in OWN}
    if isinstance(summary, list):
        return [told(value) for value in summary]
    return pytest.approx(summary, abs=1e-4) if isinstance(summary, float) else summary


def program_of(driver: "subprocess.Popen[str]", name: str) -> psutil.Process:
    """What a keeper keeps, found by its log."""
    keepers = psutil.Process(driver.pid).children()
    found: psutil.Process = next(
        each.children()[0] for each in keepers if any(name in word for word in each.cmdline())
    )
    return found


def disturbed(command: Sequence[str], disk: Disk) -> list[str]:
    """A server, a rank, the disk and the driver fail while they are needed; what was said until the end."""
    filler, said = disk.place / "filler", list[str]()

    def fill() -> None:
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def in_order() -> Iterator[tuple[str, Callable[[], object]]]:
        yield "running tiny-i00-make-tasks-a1", lambda: at_work("i00-make-tasks-a1", "i00-challenger").kill()
        yield "running tiny-i01-train-challenger-a1", lambda: rank_of("i01-train-challenger-a1").kill()
        yield "starting tiny-i01-make-tasks-a1", fill
        yield "i01-make-tasks: something outside was down", filler.unlink
        yield "running tiny-i01-train-solver-a1", lambda: at_work("i01-train-solver-a1") and driver.kill()

    def at_work(stage: str, name: str = "") -> psutil.Process:
        """A program, the stage's own without a name, when the stage has opened what it needs."""
        log = disk.place / "tiny" / "driver" / f"tiny-{stage}.log"
        wait_until(lambda: log.exists() and "judge lexical" in log.read_text())
        return program_of(driver, name or stage)

    def rank_of(stage: str) -> psutil.Process:
        rank: psutil.Process = at_work(stage).children()[1]
        return rank

    faults = in_order()
    # Each when the line before was said.
    expected, fault = next(faults)
    while True:
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as driver:
            assert driver.stderr is not None
            for line in driver.stderr:
                said.append(line)
                if expected and expected in line:
                    fault()
                    expected, fault = next(faults, ("", fill))
        if driver.returncode != -signal.SIGKILL:
            assert driver.returncode == 0 and not expected, "".join([*said, expected])
            return said


@pytest.mark.timeout(1800)
def test_servers_and_ranks_on_one_machine_make_what_one_process_makes_whatever_fails(
    tmp_path: Path, forked: list[str]
) -> None:
    """Retriever, judge and both policies are served, two ranks train: the run `tiny` of a cluster, shortened."""
    settings = [word for setting in SHORT for word in ("--set", setting)]
    config = str(REPOSITORY / "k8s" / "runs" / "tiny" / "run.yaml")
    scope = [sys.executable, "-m", "scope_selfplay", "run", "--config", config, *settings]
    with disk_at(tmp_path / "node") as disk:
        disk.resize(400_000)
        said = disturbed([*scope, "--root", str(disk.place), "--gpus", "cpu:4"], disk)
        shutil.copytree(disk.place / "tiny", tmp_path / "tiny", symlinks=True)
    assert any("tiny-i01-train-challenger-a1: slot 2,3" in line for line in said)
    alone = [
        *forked,
        "scope",
        *scope[3:],
        "--root",
        str(tmp_path / "alone"),
        "--set=judge.kind=lexical",
        "--set=judge.endpoint={}",
    ]
    assert ran(alone, timeout=600).returncode == 0
    served, single = RunFolder(tmp_path / "tiny"), RunFolder(tmp_path / "alone" / "tiny")
    for iteration in range(2):
        files = [run.stage(iteration, Stage.TASKS).candidates for run in (served, single)]
        (one, other) = (
            [(each.id, each.reason, each.task) for each in read_records(file, Candidate)] for file in files
        )
        assert one == other and one
    assert told(json.loads(served.summary.read_text())) == told(json.loads(single.summary.read_text()))
