"""`scope status|stop|logs RUN`: a run is followed where it is, on this machine or on a cluster."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scope_selfplay.base.errors import ConfigError, OutsideError, UserError
from scope_selfplay.base.machine import is_locked
from scope_selfplay.base.terminal import Table
from scope_selfplay.cluster.kubectl import Kubectl
from scope_selfplay.cluster.pods import Body, Component, Label, status_name
from scope_selfplay.config.cluster import GRACE
from scope_selfplay.store.folder import RunFolder

STATUS, LOCK = "status.json", "lock"
"""In the driver's folder of a run on one machine."""
ENDS_WITHIN = GRACE + 60.0
"""Seconds that all programs of a run may take to end: a checkpoint in writing is finished."""
_GPU = ("GPU", "MiB used", "of", "% busy")


def nvidia_smi(*columns: str) -> list[list[str]]:
    """Of each GPU of this machine its number and these columns, without units; nothing where there is none."""
    query = ["nvidia-smi", f"--query-gpu={','.join(('index', *columns))}", "--format=csv,noheader,nounits"]
    try:
        rows = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [row.split(", ") for row in rows.splitlines()]


def follow(run: str, root: Path, namespace: str | None) -> "FollowedHere | FollowedThere":
    """A run of this machine, or else of the cluster."""
    folder = RunFolder(root / run)
    here = namespace is None and (folder.driver / STATUS).exists()
    if namespace is None and not here and folder.config.exists():
        raise UserError(
            f"{folder.path}: ran in one process, without --gpus: `scope report {folder.path}` shows it; for a run on "
            "the cluster give --namespace"
        )
    return FollowedHere(folder) if here else FollowedThere(Kubectl(namespace), folder)


class FollowedHere:
    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def status(self) -> dict[str, Any]:
        found = json.loads((self._folder.driver / STATUS).read_text())
        if not self._is_driven():
            found["parts"] = []
            if found["status"]["phase"] == "Running":
                found["status"]["message"] = "nothing runs; the same command goes on"
        elif any(part["on"].startswith("GPU") for part in found["parts"]):
            full = nvidia_smi("memory.used", "memory.total", "utilization.gpu")
            found["gpus"] = [dict(zip(_GPU, row, strict=True)) for row in full]
        return {"run": self._folder.path.name, **found}

    def stop(self) -> str:
        pid = json.loads((self._folder.driver / STATUS).read_text())["pid"]
        if not self._is_driven():
            return "nothing runs"
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + ENDS_WITHIN
        while self._is_driven():
            if time.monotonic() > end:
                raise OutsideError(f"process {pid} does not end; `kill -INT {pid}` ends it at once")
            time.sleep(0.2)
        return "stopped"

    def logs(self, part: str, lines: int) -> str:
        files = [file for file in self._folder.driver.glob("*.log") if part in file.name]
        if not files:
            raise ConfigError(f"{self._folder.driver}: no log has {part!r} in its name")
        files.sort(key=lambda file: file.stat().st_mtime)
        return "\n".join(f"== {file.name}\n{_tail(file, lines)}".rstrip() for file in files)

    def _is_driven(self) -> bool:
        return is_locked(self._folder.driver / LOCK)


class FollowedThere:
    def __init__(self, cluster: Kubectl, folder: RunFolder) -> None:
        self._cluster, self._folder, self._run = cluster, folder, folder.path.name
        self._selector = f"{Label.RUN}={self._run}"

    def status(self) -> dict[str, Any]:
        cluster = self._cluster
        found = cluster.get("configmaps", status_name(self._run))
        jobs = cluster.objects("jobs", self._selector)
        if found is None and not jobs:
            raise ConfigError(
                f"{self._run}: no run of this name in --root or in the namespace; apply its folder, or give --namespace"
            )
        servers = cluster.objects("deployments", self._selector)
        jobs = sorted(jobs, key=lambda body: str(body["metadata"].get("creationTimestamp", "")))
        parts = [_part(body) for body in (*jobs, *servers)]
        return {"run": self._run, "status": (found or {}).get("data") or {}, "parts": parts}

    def stop(self) -> str:
        owners = self._cluster.objects("jobs", f"{self._selector},{Label.COMPONENT}={Component.CONTROLLER}")
        driving = sorted(str(job["metadata"]["name"]) for job in owners)
        for name in driving:
            self._cluster.delete("job", name)
        gone = f"deleted Job {', '.join(driving)}, and with it what it made" if driving else "nothing runs"
        return f"{gone}; apply its folder to go on"

    def logs(self, part: str, lines: int) -> str:
        kept, pods = {file.stem: file for file in self._folder.logs.glob("*.log")}, set[str]()
        try:
            found = self._cluster.objects("pods", self._selector)
            pods = {str(pod["metadata"]["name"]) for pod in found}
        except (ConfigError, OutsideError):
            # What was fetched can be read without a cluster.
            if not kept:
                raise
        chosen = sorted(name for name in {*pods, *kept} if part in name)
        if not chosen:
            advice = f"`scope k8s fetch {self._run}` brings what pods that are gone said"
            raise ConfigError(f"{self._run}: no pod has {part!r} in its name; {advice}")
        said = {
            name: self._cluster.log(name, lines) if name in pods else _tail(kept[name], lines)
            for name in chosen
        }
        return "\n".join(f"== {name}\n{tail}".rstrip() for name, tail in said.items())


def _tail(file: Path, lines: int) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-lines:])


def _part(body: Body) -> dict[str, Any]:
    """A Job or a Deployment."""
    labels, found = body["metadata"].get("labels") or {}, body.get("status") or {}
    true = [item["type"] for item in found.get("conditions") or [] if item["status"] == "True"]
    ended = next((kind.lower() for kind in ("Complete", "Failed", "Suspended") if kind in true), "")
    state = ended or ("running" if found.get("active") else "waiting")
    if Label.SERVER in labels:
        state = "ready" if found.get("readyReplicas") else "waiting"
    return {"name": body["metadata"]["name"], "on": "cluster", "state": state}


def status_lines(found: dict[str, Any]) -> Iterator[str]:
    for key, value in found["status"].items():
        # JSON values are data for programs, not for a person.
        if not str(value).lstrip().startswith(("{", "[")):
            yield f"{key}: {value}"
    for title, names in (("parts", ("name", "on", "state")), ("gpus", _GPU)):
        rows = tuple(tuple(str(part[name]) for name in names) for part in found.get(title, ()))
        yield from Table(title, names, rows).text() if rows else ()
