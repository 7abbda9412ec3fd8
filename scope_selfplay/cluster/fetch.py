"""`scope k8s fetch`: a run's files from the volume into a folder here, again and again, without losing what is here.

A pod that does nothing sees the volume, read-only; the files come out of it through `kubectl exec` as a tar, each with
the SHA-256 of the whole file. A file that breaks off is fetched again. What comes is written beside its place
first; a note in the folder says what came from the volume, so that only this is ever replaced.
Those of a run with `cluster.store` come from there, with the credentials of this machine.
"""

import hashlib
import inspect
import json
import os
import re
import secrets
import select
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from scope_selfplay.base.errors import ConfigError, OutsideError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.cluster.check import config_of
from scope_selfplay.cluster.kubectl import Kubectl, kustomize, last_reason
from scope_selfplay.cluster.pods import RUNS, WORKER_ACCOUNT, Body, Label, status_name
from scope_selfplay.store.files import place_of, point_at, read_value, write_atomic
from scope_selfplay.store.folder import RunFolder, Stage, checksum
from scope_selfplay.store.object_store import ObjectFolder, StoredFile, receive
from scope_selfplay.store.ratings import kept_solver

NOTE = ".fetched.json"
TRIES = 5
"""Broken connections in a row, none of which brought a file."""
_HOURS = 12
_SILENCE = 300.0
"""Seconds without a byte after which a connection counts as broken: a large file is read before its sum is known."""
_TOLD = 3
_PARTS = ".fetching"
"""Folder of what is under way."""
_KEPT = ("data", "tmp", "extra-")
_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}


@dataclass
class Fetched:
    """What one fetch did; sizes in bytes."""

    run: str
    folder: str
    files: list[str] = field(default_factory=list)
    bytes: int = 0
    unchanged: int = 0


def fetch(
    pod: "Reader | StoredRun", run: str, to: Path, progress: Progress, *, checkpoints: bool, force: bool
) -> Fetched:
    """Bring a run's files to `to`/`run`. Raises ConfigError, before it writes anything, where a file would be lost."""
    folder = to / run
    note = read_value(folder / NOTE, dict[str, str], "remove it: all files are fetched again") or {}
    # Files that were copied by hand, say: some are the volume's all the same.
    unknown = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - note.keys()
    listed = pod.ask(checkpoints=checkpoints, sums=sorted(unknown))
    if "files" not in listed:
        there = ", ".join(listed["there"]) or "none"
        raise ConfigError(f"{run}: nothing is at {pod.root}; the runs there: {there}")
    changed = {name: place_of(folder, name) for name in listed["files"]}
    for name, (size, at, hashed) in listed["files"].items():
        if _is_here(changed[name], size, at, hashed):
            note |= {name: hashed} if hashed else {}
            del changed[name]
    lost = [
        name
        for name, place in changed.items()
        if place.exists() and not (place.is_file() and checksum(place) == note.get(name))
    ]
    if lost and not force:
        told = ", ".join(lost[:_TOLD]) + (f" and {len(lost) - _TOLD} more" if len(lost) > _TOLD else "")
        raise ConfigError(
            f"{folder}: {told} did not come from {pod.root} and differ from what is there; nothing was fetched: "
            "name another folder with --to, or replace them with --force"
        )
    done = Fetched(run, str(folder), unchanged=len(listed["files"]) - len(changed))
    total = sum(listed["files"][name][0] for name in changed)
    progress.begin(f"fetch {run}, MB", max(1, round(total / 1e6)))
    try:
        pod.bring(changed, note, done, progress)
    finally:
        folder.mkdir(parents=True, exist_ok=True)
        if note:
            write_atomic(folder / NOTE, json.dumps(note, indent=1, sort_keys=True) + "\n")
    # `best` points at the checkpoint that was kept.
    best = listed["best"]
    if checkpoints and best is None and (kept := kept_solver(RunFolder(folder))) is not None:
        # The store has no links.
        best = kept.checkpoint or None
    if best is not None:
        point_at(folder / "best", place_of(folder, best))
    progress.end(f"{len(done.files)} files, {done.bytes / 1e6:,.1f} MB; {done.unchanged} were here")
    return done


def _is_here(place: Path, size: int, at: int, hashed: str | None) -> bool:
    """By size and time, as rsync tells, or by its sum; then it gets the time that it has there."""
    if not place.is_file():
        return False
    if hashed and hashed == checksum(place):
        # The store knows no times.
        at = at or place.stat().st_mtime_ns
        os.utime(place, ns=(at, at))
    found = place.stat()
    return (found.st_size, found.st_mtime_ns) == (size, at)


def _receive(stream: "_Stream", wanted: dict[str, Path], note: dict[str, str], done: Fetched) -> None:
    """Takes out of `wanted` what has come whole."""
    parts = Path(done.folder) / _PARTS
    try:
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as archive:
            for member in (each for each in archive if each.name in wanted):
                place, sent = wanted[member.name], member.pax_headers
                part = parts / member.name
                part.parent.mkdir(parents=True, exist_ok=True)
                with part.open("wb") as file:
                    shutil.copyfileobj(cast(IO[bytes], archive.extractfile(member)), file)
                if (found := checksum(part)) != sent["scope.sha256"]:
                    raise OutsideError(f"{member.name} changed while it was fetched")
                os.utime(part, ns=(int(sent["scope.time"]),) * 2)
                place.parent.mkdir(parents=True, exist_ok=True)
                part.replace(place)
                note[member.name] = found
                done.files.append(member.name)
                del wanted[member.name]
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def answer(request: dict[str, Any], out: BinaryIO) -> None:
    """Runs in the pod: its text is sent there, so that both ends are of one version whatever the image is.

    Lists a run's files, each with its size, time and, where `sums` asks, SHA-256; or sends those of `send`. Hidden
    files are a stage's own, for going on; caches are made anew; `best` is a link to a checkpoint.
    """
    root = Path(request["root"])

    def summed(path: Path, size: int) -> str:
        """Of the first bytes: what is appended meanwhile comes with the next fetch."""
        found = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(min(1 << 20, size)):
                found.update(block)
                size -= len(block)
        return found.hexdigest()

    if "send" in request:
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for name in request["send"]:
                # One that went away is left out.
                with suppress(FileNotFoundError), (root / name).open("rb") as file:
                    info = archive.gettarinfo(arcname=name, fileobj=file)
                    info.pax_headers = {
                        "scope.sha256": summed(root / name, info.size),
                        "scope.time": str(os.fstat(file.fileno()).st_mtime_ns),
                    }
                    archive.addfile(info, file)
    elif not root.is_dir():
        there = sorted(each.name for each in root.parent.iterdir()) if root.parent.is_dir() else []
        out.write(json.dumps({"there": there}).encode() + b"\n")
    else:
        files = {}
        for folder, folders, names in os.walk(root):
            here = Path(folder)
            left_out = {"cache"} if here == root else set() if request["checkpoints"] else {"checkpoint"}
            folders[:] = [each for each in sorted(folders) if each[0] != "." and each not in left_out]
            for path in (here / name for name in sorted(names) if name[0] != "."):
                if path.is_file() and not path.is_symlink():
                    size, name = path.stat().st_size, str(path.relative_to(root))
                    hashed = summed(path, size) if name in request["sums"] else None
                    files[name] = [size, path.stat().st_mtime_ns, hashed]
        best = root / "best"
        target = os.readlink(best) if request["checkpoints"] and best.is_symlink() else None  # noqa: PTH115 - as it is
        out.write(json.dumps({"files": files, "best": target}).encode() + b"\n")
    out.flush()


_PROGRAM = f"""\
from __future__ import annotations
import hashlib, json, os, sys, tarfile
from contextlib import suppress
from pathlib import Path
{inspect.getsource(answer)}
"""
# One line is read, not all of it: some connections cannot tell the other end that nothing more comes.
_RUN = "import json,sys; exec(json.loads(sys.stdin.readline()))"


class _Stream:
    """What a program in the pod writes."""

    def __init__(self, handle: int, count: Callable[[bytes], object]) -> None:
        self._handle, self._count = handle, count

    def read(self, size: int = 1 << 20) -> bytes:
        """Something, or nothing at the end. Raises OutsideError where the program stays silent."""
        if not select.select([self._handle], [], [], _SILENCE)[0]:
            raise OutsideError(
                f"the cluster sent nothing for {_SILENCE:.0f} s; run the command again, it goes on"
            )
        data = os.read(self._handle, size)
        self._count(data)
        return data


class Reader:
    """A pod that is up and sees the volume of a run."""

    def __init__(self, cluster: Kubectl, name: str, run: str) -> None:
        self.root = f"{RUNS}/{run}"
        self._cluster, self._name = cluster, name

    def bring(self, wanted: dict[str, Path], note: dict[str, str], done: Fetched, progress: Progress) -> None:
        """All of them, over as many connections as it takes."""

        def count(data: bytes) -> None:
            done.bytes += len(data)
            progress.advance(round(done.bytes / 1e6), next(iter(wanted), ""))

        failures = 0
        while wanted:
            before = len(wanted)
            try:
                with self.answer_to(count, send=list(wanted)) as stream:
                    _receive(stream, wanted, note, done)
                # The rest is gone there.
                wanted.clear()
            except OutsideError as error:
                failures = failures + 1 if len(wanted) == before else 1
                if failures >= TRIES:
                    raise OutsideError(
                        f"{error}; {len(wanted)} files are left, the same command goes on"
                    ) from None
                progress.say(f"{error}; going on")

    def ask(self, **request: Any) -> Any:
        """What `answer` says. Raises OutsideError where the connection breaks."""
        with self.answer_to(len, **request) as stream:
            return json.loads(b"".join(iter(stream.read, b"")))

    @contextmanager
    def answer_to(self, count: Callable[[bytes], object], /, **request: Any) -> Iterator[_Stream]:
        """What `answer` writes, each piece told to `count`. Raises OutsideError where it is not whole at the end."""
        asked = json.dumps({"root": self.root, **request})
        program = f"{_PROGRAM}answer(json.loads({asked!r}), sys.stdout.buffer)\n"
        command = ("exec", "--stdin", self._name, "--container=main", "--", "python3", "-c", _RUN)
        with self._cluster.start(*command) as process:
            assert process.stdin and process.stdout and process.stderr
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(program).encode() + b"\n")
                process.stdin.close()
            stream = _Stream(process.stdout.fileno(), count)
            try:
                yield stream
                while stream.read():
                    pass
                if process.wait() == 0:
                    return
            except (tarfile.TarError, EOFError, ValueError):
                # It broke off: kubectl says why.
                pass
            finally:
                process.kill()
            raise OutsideError(f"the connection to the pod broke: {last_reason(process.stderr.read())}")


class StoredRun:
    """The same of a run with `cluster.store`; of a stage that is at work what it has so far."""

    def __init__(self, store: str, run: str) -> None:
        self.root = f"{store.partition('?')[0]}/runs/{run}"
        self._found: dict[str, tuple[ObjectFolder, StoredFile]] = {}
        # What comes is counted by `bring`.
        open_at = partial(ObjectFolder, store, Progress())
        names, self._others = open_at(f"runs/{run}").names(), open_at("runs").names()
        iterations = (name for name in names if name.startswith("iteration-"))
        stages = [f"{iteration}/{stage}" for iteration in iterations for stage in Stage]
        # In the order of the run: of what each stage takes along, the last one's counts.
        for part in ("begin", *stages, "log"):
            remote = open_at(f"runs/{run}/{part}")
            files = remote.index() or remote.newest_work() or {}
            self._found |= {name: (remote, file) for name, file in files.items()}

    def ask(self, *, checkpoints: bool, sums: list[str]) -> Any:
        """What the pod's program says: no hidden files, no links."""
        left_out = re.compile(r"(^|/)\." if checkpoints else r"(^|/)(\.|checkpoint/)")
        chosen = {name: file for name, (_, file) in self._found.items() if not left_out.search(name)}
        files = {name: [file.size, 0, file.sha256] for name, file in chosen.items()}
        return {"files": files, "best": None} if files else {"there": self._others}

    def bring(self, wanted: dict[str, Path], note: dict[str, str], done: Fetched, progress: Progress) -> None:
        for name in [*wanted]:
            remote, file = self._found[name]
            receive(remote, {name: file}, Path(done.folder), Progress())
            note[name] = file.sha256
            done.files.append(name)
            done.bytes += file.size
            progress.advance(round(done.bytes / 1e6), name)


def _store_of(cluster: Kubectl, run: str, folder: Path) -> str:
    """`cluster.store` of a run, as its status or its `folder` says; empty where it has none."""
    status = cluster.get("configmaps", status_name(run))
    if status is None and folder.is_dir():
        return config_of(kustomize(folder), folder).cluster.store
    return str(((status or {}).get("data") or {}).get("store", ""))


@contextmanager
def reader(cluster: Kubectl, run: str, folder: Path | None, patience: float) -> Iterator[Reader | StoredRun]:
    """A reader from here to the end of the block, in which its pod is deleted. That of a run with a store has none.

    Raises ConfigError where neither the run's controller is known nor its `folder`.
    """
    folder = folder or Path("k8s") / "runs" / run
    if store := _store_of(cluster, run, folder):
        yield StoredRun(store, run)
        return
    body = reader_pod(_controller_of(cluster, run, folder), run)
    name, end = body["metadata"]["name"], time.monotonic() + patience
    cluster.create(body)
    try:
        while (status := (cluster.get("pods", name) or {}).get("status") or {}).get("phase") != "Running":
            if status.get("phase") in ("Succeeded", "Failed") or time.monotonic() > end:
                raise OutsideError(f"pod {name} did not start in {patience:.0f} s: {_why(status)}")
            time.sleep(1)
        yield Reader(cluster, name, run)
    finally:
        cluster.delete("pod", name)


def _controller_of(cluster: Kubectl, run: str, folder: Path) -> Body:
    """The run's controller: as applied, or, where its Job is deleted, as its folder has it."""
    if jobs := cluster.objects("jobs", f"{Label.RUN}={run},{Label.COMPONENT}=controller"):
        return dict(jobs[-1])
    if not folder.is_dir():
        raise ConfigError(
            f"{run}: its controller's Job is deleted or never was, and there is no {folder}; name the run's folder "
            "with --folder, or the namespace with --namespace"
        )
    return next(body for body in kustomize(folder) if body["kind"] == "Job")


def reader_pod(controller: Body, run: str) -> Body:
    """The pod: the controller's image, claim, user and nodes, none of its rights. It ends by itself at last.

    Pure, but for a name that no other has.
    """
    spec = dict(controller["spec"]["template"]["spec"])
    for name in ("initContainers", "nodeName"):
        spec.pop(name, None)
    (main,) = [each for each in spec["containers"] if each["name"] == "main"]
    volumes, mounts = (
        [each for each in listed if each["name"].startswith(_KEPT)]
        for listed in (spec["volumes"], main["volumeMounts"])
    )
    container = {
        "name": "main",
        "image": main["image"],
        "command": ["python3", "-c", f"import time; time.sleep({_HOURS * 3600})"],
        "resources": _RESOURCES,
        "securityContext": main["securityContext"],
        "volumeMounts": [each | ({"readOnly": True} if each["name"] == "data" else {}) for each in mounts],
    }
    spec |= {
        "serviceAccountName": WORKER_ACCOUNT,
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": _HOURS * 3600,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": volumes,
    }
    labels = {Label.NAME: "scope-selfplay", Label.COMPONENT: "reader", Label.RUN: run}
    name = f"{run}-reader-{secrets.token_hex(3)}"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def _why(status: Body) -> str:
    """What kubelet or scheduler say of a pod that does not run."""
    waiting = [
        (each.get("state") or {}).get("waiting") or {} for each in status.get("containerStatuses") or []
    ]
    unmet = [each for each in status.get("conditions") or [] if each.get("status") == "False"]
    said = [f"{each.get('reason', '')} {each.get('message', '')}".strip() for each in (*waiting, *unmet)]
    return next(filter(None, [status.get("message", ""), *said]), "no reason is given")[:300]
