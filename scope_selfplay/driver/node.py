"""One hand of the driver: what the plan asks for as Jobs and Deployments are process groups of this machine.

A body is read as what it says of a program: its command, its variables, its probes, how long it may take to end. Each
program has a keeper (`keeper`), which ends it and everything that it started when this process is gone, and which holds
the run's lock for as long as it lives: whoever drives the run next meets a machine on which nothing of it is left.
"""

import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from subprocess import DEVNULL, Popen, SubprocessError, TimeoutExpired
from subprocess import run as run_program
from typing import Any
from urllib.request import urlopen

from scope_selfplay.base.errors import ExitCode, OutsideError, machine_fault
from scope_selfplay.base.machine import free_port
from scope_selfplay.cluster.pods import OF_CONTAINERS, Component, Label, ManifestContext, Owner, Place
from scope_selfplay.driver.api import Body, ObjectKind
from scope_selfplay.driver.follow import STATUS
from scope_selfplay.driver.loop import Hand
from scope_selfplay.driver.observed import ObservedCluster, observe, step_of
from scope_selfplay.driver.parts import Action, Apply, ControllerEvent, Create, Delete
from scope_selfplay.plan.placement import NodePlacement
from scope_selfplay.store.files import write_atomic
from scope_selfplay.store.folder import RunFolder, Stage

HOST = "127.0.0.1"
_KEEPER = Path(__file__).with_name("keeper.py")
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 300.0
"""Seconds before a server that ended is started again; each time twice as many, until it answered."""
_SHOWN, _TAIL = 12, 8192
"""Lines, in so many last bytes, of the log of a program that failed."""
_SAID = 15.0
"""Seconds between two lines that tell how far a stage is."""


class Ports(dict[str, int]):
    """A free port for each server that asks."""

    def __missing__(self, server: str) -> int:
        port = self[server] = free_port()
        return port


def is_free(port: int) -> bool:
    with socket.socket() as listener:
        return listener.connect_ex((HOST, port)) != 0


@dataclass
class NodeProcess:
    """A Job or a server: its body, and its keeper while it runs. A server is started again, a Job is not."""

    body: Body
    uid: str
    log: Path
    slots: tuple[int, ...]
    keeper: "Popen[bytes] | None" = None
    since: float = field(default_factory=time.monotonic)
    """When it started or ended last."""
    code: int | None = None
    """How it ended last."""
    failures: int = 0
    """Ends of a server since it answered last."""
    ready: bool = False
    leaving: bool = False
    """It is to end, and is forgotten when it has."""
    late: bool = False
    """It met its deadline."""

    def __post_init__(self) -> None:
        self.name: str = self.body["metadata"]["name"]
        self.is_server: bool = self.body["kind"] == "Deployment"
        self.pod: Body = self.body["spec"]["template"]["spec"]
        self.container: Body = self.pod["containers"][0]
        self.port = int(self.container["ports"][0]["containerPort"]) if self.is_server else 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    @property
    def is_due(self) -> bool:
        """A server that is to be started again now."""
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self.failures, 10))
        return self.is_server and self.keeper is None and self.seconds >= pause

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.keeper is not None:
            self.keeper.send_signal(number)

    def tail(self, lines: int = 1) -> str:
        """The end of what it said."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            said = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
            return "\n".join(said[-lines:])
        return ""

    @property
    def seen_pod(self) -> Body:
        """What a kubelet would say of it."""
        state: Body = {"running": {}} if self.keeper else {}
        if self.is_server and not self.keeper:
            state = {"waiting": {"reason": "CrashLoopBackOff", "message": f"ended with {self.code}"}}
        container: Body = {"state": state}
        if self.code is not None:
            message = self.tail() if self.code else ""
            container["lastState"] = {"terminated": {"exitCode": self.code, "message": message}}
        labels = self.body["metadata"]["labels"] | ({} if self.is_server else {"job-name": self.name})
        metadata = {"name": self.name, "labels": labels, "creationTimestamp": ""}
        phase = "Running" if self.keeper or self.is_server else "Failed" if self.code else "Succeeded"
        return {
            "metadata": metadata | ({"deletionTimestamp": ""} if self.leaving else {}),
            "spec": {"nodeName": HOST},
            "status": {"phase": phase, "containerStatuses": [container]},
        }

    @property
    def seen(self) -> Body:
        """Its body with uid and status, as the API would have them."""
        status: Body = {"observedGeneration": 1, "readyReplicas": int(self.ready), "updatedReplicas": 1}
        if not self.is_server and self.keeper is None and self.code is not None:
            ended = {"type": "Failed" if self.code else "Complete", "status": "True"}
            status["conditions"] = [ended | {"reason": "DeadlineExceeded" if self.late else ""}]
        return {**self.body, "metadata": {**self.body["metadata"], "uid": self.uid}, "status": status}


class NodeHand(Hand):
    """`lock` is the open file that locks the run; `wake` is called when something ended or answers."""

    passing = (OutsideError,)

    def __init__(
        self,
        folder: RunFolder,
        placement: NodePlacement,
        *,
        lock: int,
        say: Callable[[str], None],
        wake: Callable[[], object],
    ) -> None:
        self._folder, self._placement, self._slots = folder, placement, placement.slots
        self._lock, self._say, self._wake = lock, say, wake
        self._ports = Ports()
        self.place = Place(str(folder.path.parent), str(folder.config), HOST, self._ports)
        self._owner = Owner(f"{folder.path.name}-driver", f"{os.getpid()}-{time.time_ns()}")
        self._processes: dict[str, NodeProcess] = {}
        self._services: dict[str, Body] = {}
        self._made, self._written, self._said = 0, "", (0.0, "")
        self._told: Sequence[ControllerEvent] = ()
        self._status: dict[str, str] = {}
        with suppress(OSError, ValueError, KeyError):
            self._status = json.loads((folder.driver / STATUS).read_text())["status"]

    def owner(self) -> Owner:
        return self._owner

    def observe(self) -> ObservedCluster:
        for name, process in list(self._processes.items()):
            if process.keeper is not None and (code := process.keeper.poll()) is not None:
                self._has_ended(process, code)
            if process.keeper is None and process.leaving:
                del self._processes[name]
            elif process.is_due:
                self._start(process)
            elif process.keeper and process.seconds > process.body["spec"].get(
                "activeDeadlineSeconds", float("inf")
            ):
                process.late = True
                process.end()
        every = self._processes.values()
        jobs, servers = ([each for each in every if each.is_server is kind] for kind in (False, True))
        return observe(
            self._folder.path.name,
            [each.seen for each in jobs],
            [each.seen_pod for each in every],
            [each.seen for each in servers if not each.leaving],
            list(self._services.values()),
            self._status,
        )

    def record(self, context: ManifestContext, status: Mapping[str, str], *, acts: bool) -> None:
        # How a run ends is said when it has.
        if status["phase"] == "Running" and status["message"] not in ("", self._status.get("message")):
            self._say(status["message"])
        self._status = dict(status)
        parts = [self._shown(each) for each in self._processes.values() if each.keeper or each.is_server]
        data = json.dumps({"pid": os.getpid(), "status": self._status, "parts": parts}, indent=1)
        if data != self._written:
            write_atomic(self._folder.driver / STATUS, data + "\n")
            self._written = data

    def act(self, context: ManifestContext, action: Action) -> None:
        match action:
            case Create(body):
                self._start(self._new(body))
            case Apply(ObjectKind.SERVICE, body):
                name = body["metadata"]["name"]
                self._services[name] = {**body, "metadata": {**body["metadata"], "uid": name}}
            case Apply(_, body):
                before = self._processes.get(body["metadata"]["name"])
                if before is not None and before.keeper is not None:
                    # The changed one takes its place as soon as it has ended.
                    before.leaving = True
                    before.end()
                else:
                    self._start(self._new(body))
            case Delete(ObjectKind.SERVICE, name):
                self._services.pop(name, None)
            case Delete(_, name):
                self._processes[name].leaving = True
                self._processes[name].end()

    def tell(self, context: ManifestContext, events: Sequence[ControllerEvent]) -> None:
        for event in events:
            if event not in self._told and event.reason not in ("StageStarted", "Failed"):
                self._say(event.message)
        self._told = events

    def rest(self, *, ended: bool) -> None:
        """Say how far the stage at work is, now and then."""
        working = [each for each in self._processes.values() if each.keeper and not each.is_server]
        line = "; ".join(f"{each.name}: {said}" for each in working if (said := each.tail()))
        if line not in ("", self._said[1]) and time.monotonic() - self._said[0] > _SAID:
            self._said = (time.monotonic(), line)
            self._say(line)

    def release(self) -> None:
        """End everything in order: stages before the servers that they ask."""
        for is_server in (False, True):
            left = [each for each in self._processes.values() if each.keeper and each.is_server is is_server]
            for process in left:
                process.end()
            for process in left:
                assert process.keeper is not None
                process.keeper.wait()

    def hurry(self) -> None:
        """End everything at once."""
        for process in self._processes.values():
            process.end(signal.SIGINT)

    def run(self, name: str, command: Sequence[str], is_stopped: Callable[[], bool]) -> None:
        """Do what must be there before the run. Raises OutsideError where it fails."""
        pod = {"containers": [{"command": list(command), "env": []}], "terminationGracePeriodSeconds": 30}
        metadata = {"name": name, "labels": {Label.COMPONENT: Component.WORKER.value}}
        process = self._new({"kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}})
        self._start(process)
        assert process.keeper is not None
        while (code := process.keeper.poll()) is None and not is_stopped():
            time.sleep(0.1)
        if code is not None:
            self._has_ended(process, code)
            del self._processes[name]
        if code:
            raise OutsideError(f"{name} ended with {code}: {process.tail()}; see {process.log}")

    def _new(self, body: Body) -> NodeProcess:
        self._made += 1
        name, labels = body["metadata"]["name"], body["metadata"]["labels"]
        step = step_of(labels)
        slots = self._placement.slots_of(step.stage if step else Stage.TASKS, labels[Label.COMPONENT])
        made = NodeProcess(body, f"{name}/{self._made}", self._folder.driver / f"{name}.log", slots)
        self._processes[name] = made
        return made

    def _start(self, process: NodeProcess) -> None:
        """Raises OutsideError where the machine cannot start a process."""
        if process.is_server and not is_free(process.port):
            # Its body names the port: the next round makes one with another.
            del self._ports[process.name], self._processes[process.name]
            self._say(f"{process.name}: port {process.port} is taken; another one is used")
            return
        grace = str(process.pod["terminationGracePeriodSeconds"])
        keeper = [sys.executable, "-I", "-S", str(_KEEPER), str(os.getpid()), grace, str(process.log)]
        command = [*keeper, *_here(process.container["command"])]
        environment = self._environment(process)
        try:
            # In a session of its own: a terminal's Ctrl-C is this process's to pass on.
            process.keeper = Popen(
                command, stdin=DEVNULL, env=environment, pass_fds=(self._lock,), start_new_session=True
            )
        except OSError as error:
            raise machine_fault(error) or OutsideError(f"{process.name}: {error}") from error
        process.since, process.code, process.ready = time.monotonic(), None, False
        self._say(f"{process.name}: {self._slots.words(process.slots)}; {process.log}")
        threading.Thread(target=self._watch, args=(process, process.keeper), daemon=True).start()

    def _environment(self, process: NodeProcess) -> dict[str, str]:
        own = {each["name"]: each["value"] for each in process.container["env"] if "value" in each}
        own = {name: value for name, value in own.items() if name not in OF_CONTAINERS}
        own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        if self._slots.gib:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, process.slots))
        else:
            own["SCOPE_PROCESSES"] = str(max(1, len(process.slots)))
        return {**os.environ, **own}

    def _watch(self, process: NodeProcess, keeper: "Popen[bytes]") -> None:
        """In a thread for each process: whether a server answers, whether it lives, and when it has ended."""
        readiness, liveness = (process.container.get(f"{each}Probe") for each in ("readiness", "liveness"))
        failed, asked = 0, time.monotonic()
        while readiness and liveness and keeper.poll() is None:
            answers = succeeds(readiness, process.port)
            if process.ready != answers:
                process.ready, process.failures = answers, 0 if answers else process.failures
                self._wake()
            if answers and time.monotonic() - asked >= liveness["periodSeconds"]:
                failed, asked = 0 if succeeds(liveness, process.port) else failed + 1, time.monotonic()
                if failed >= liveness["failureThreshold"]:
                    self._say(f"{process.name}: does not answer any more; it is started again")
                    keeper.terminate()
                    break
            with suppress(TimeoutExpired):
                keeper.wait(readiness["periodSeconds"] if answers else 0.5)
        keeper.wait()
        self._wake()

    def _has_ended(self, process: NodeProcess, code: int) -> None:
        process.code = 128 - code if code < 0 else code
        process.keeper, process.ready, process.since = None, False, time.monotonic()
        process.failures += 1
        if not process.leaving and process.code != ExitCode.DONE:
            said = process.tail(_SHOWN)
            self._say(f"{process.name} ended with {process.code}; the end of {process.log}:\n{said}")

    def _shown(self, process: NodeProcess) -> dict[str, Any]:
        state = "ready" if process.ready else "running" if process.keeper else f"ended with {process.code}"
        on = self._slots.words(process.slots)
        shown = {"name": process.name, "on": on, "state": "ending" if process.leaving else state}
        return shown | {"log": str(process.log)}


def _here(command: Sequence[str]) -> list[str]:
    """The programs of an image are those of this Python."""
    first, *rest = command
    here = {"python": [sys.executable], "scope": [sys.executable, "-m", "scope_selfplay"]}
    return [*here.get(first.removesuffix("3"), [shutil.which(first) or first]), *rest]


def succeeds(probe: Body, port: int) -> bool:
    """One probe, as a kubelet makes it."""
    timeout = float(probe.get("timeoutSeconds", 1))
    # Whatever listens on the port may answer in words of its own.
    with suppress(OSError, ValueError, SubprocessError, HTTPException):
        if "exec" in probe:
            run_program(_here(probe["exec"]["command"]), timeout=timeout, capture_output=True, check=True)
        else:
            urlopen(f"http://{HOST}:{port}{probe['httpGet']['path']}", timeout=timeout).close()
        return True
    return False
