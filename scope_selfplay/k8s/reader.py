"""A pod that sees the volume of a run and does nothing: what is fetched is read through `kubectl exec` in it.

It is made from the controller's Job, so it has that pod's image, claim, user and nodes; of its rights and settings it
has none. The volume is mounted read-only. It ends by itself where nobody deletes it.
"""

import copy
import json
import os
import secrets
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from scope_selfplay.controller.manifests import COMPONENT, RUN, RUNS, WORKER_ACCOUNT
from scope_selfplay.errors import ConfigError, OutsideError
from scope_selfplay.k8s import remote_files
from scope_selfplay.k8s.kubectl import Body, Kubectl, kustomize, last_reason

HOURS = 12
SILENCE = 300.0
"""Seconds without a byte after which a connection counts as broken: a large file is read before its sum is known."""
_SLEEP = f"import time; time.sleep({HOURS * 3600})"
# One line is read, not all of it: some connections cannot tell the other end that nothing more comes.
_RUN = "import json,sys; exec(json.loads(sys.stdin.readline()))"
_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
_KEPT = ("data", "tmp", "extra-")


def controller_of(cluster: Kubectl, run: str, folder: Path | None) -> Body:
    """The run's controller: as applied, or, where its Job is deleted, as its folder has it."""
    jobs = cluster.objects("jobs", f"{RUN}={run},{COMPONENT}=controller")
    if jobs:
        return dict(jobs[-1])
    place = folder or Path("k8s") / "runs" / run
    if not place.is_dir():
        raise ConfigError(
            f"{run}: its controller's Job is deleted or never was, and there is no {place}; name the run's folder with "
            "--folder, or the namespace with --namespace"
        )
    return next(body for body in kustomize(place) if body["kind"] == "Job")


def reader_pod(controller: Body, run: str) -> Body:
    """The pod, as it is created. Pure, but for a name that no other has."""
    template = copy.deepcopy(controller["spec"]["template"])
    spec = template["spec"]
    for name in ("initContainers", "nodeName", "terminationGracePeriodSeconds"):
        spec.pop(name, None)
    spec["volumes"] = [each for each in spec["volumes"] if each["name"].startswith(_KEPT)]
    (container,) = [each for each in spec["containers"] if each["name"] == "main"]
    mounts = [each for each in container["volumeMounts"] if each["name"].startswith(_KEPT)]
    spec |= {
        "serviceAccountName": WORKER_ACCOUNT,
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": HOURS * 3600,
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "main",
                "image": container["image"],
                "command": ["python3", "-c", _SLEEP],
                "resources": _RESOURCES,
                "securityContext": container["securityContext"],
                "volumeMounts": [
                    each | ({"readOnly": True} if each["name"] == "data" else {}) for each in mounts
                ],
            }
        ],
    }
    labels = {
        "app.kubernetes.io/name": "scope-selfplay",
        COMPONENT: "reader",
        RUN: run,
    }
    name = f"{run}-reader-{secrets.token_hex(3)}"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


class Stream:
    """What a program in the pod writes. Raises OutsideError where it ends too early or stays silent."""

    def __init__(self, process: "subprocess.Popen[bytes]", program: bytes) -> None:
        self._process, self._rest = process, b""
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(program)
            process.stdin.close()
        self._out = process.stdout.fileno()

    def line(self) -> bytes:
        while b"\n" not in self._rest:
            self._rest += self._more()
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def exactly(self, count: int) -> bytes:
        while len(self._rest) < count:
            self._rest += self._more()
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def _more(self) -> bytes:
        ready, _, _ = select.select([self._out], [], [], SILENCE)
        if not ready:
            raise OutsideError(
                f"the cluster sent nothing for {SILENCE:.0f} s; run the command again, it goes on"
            )
        data = os.read(self._out, 1 << 20)
        if not data:
            assert self._process.stderr is not None
            raise OutsideError(f"the connection to the pod broke: {last_reason(self._process.stderr.read())}")
        return data

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


class Reader:
    """A reader that is up: asks `remote_files` in it."""

    def __init__(self, cluster: Kubectl, name: str, run: str) -> None:
        self._cluster, self._name, self._root = cluster, name, f"{RUNS}/{run}"

    def ask(self, what: str, **request: Any) -> Any:
        """The answer to `list` or `sums`."""
        with closing(self.open(what, **request)) as stream:
            return json.loads(stream.line())

    def open(self, what: str, **request: Any) -> Stream:
        asked = json.dumps({"what": what, "root": self._root, **request})
        text = Path(remote_files.__file__).read_text(encoding="utf-8").partition("\nif __name__")[0]
        program = f"{text}\nmain(json.loads({asked!r}), sys.stdout.buffer)\n"
        command = ("exec", "--stdin", self._name, "--container=main", "--", "python3", "-c", _RUN)
        return Stream(self._cluster.start(*command), json.dumps(program).encode() + b"\n")


@contextmanager
def reader(cluster: Kubectl, controller: Body, run: str, patience: float) -> Iterator[Reader]:
    """A reader from here to the end of the block, in which it is deleted."""
    body = reader_pod(controller, run)
    name = body["metadata"]["name"]
    cluster.create(body)
    try:
        _wait(cluster, name, patience)
        yield Reader(cluster, name, run)
    finally:
        cluster.delete("pod", name)


def _wait(cluster: Kubectl, name: str, patience: float) -> None:
    end = time.monotonic() + patience
    while True:
        status = (cluster.get("pods", name) or {}).get("status") or {}
        if status.get("phase") == "Running":
            return
        waits = _why(status)
        if status.get("phase") in ("Succeeded", "Failed") or time.monotonic() > end:
            raise OutsideError(f"pod {name} did not start in {patience:.0f} s: {waits}")
        time.sleep(1)


def _why(status: Body) -> str:
    """What kubelet or scheduler say of a pod that does not run."""
    waiting = [
        (each.get("state") or {}).get("waiting") or {} for each in status.get("containerStatuses") or []
    ]
    unmet = [each for each in status.get("conditions") or [] if each.get("status") == "False"]
    said = [f"{each.get('reason', '')} {each.get('message', '')}".strip() for each in (*waiting, *unmet)]
    return next(filter(None, [status.get("message", ""), *said]), "no reason is given")[:300]
