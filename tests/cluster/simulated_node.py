"""A node of our own for pods that never really run: it says that they run, and publishes what their stages would.

Pods reach it by `SELECTOR`, so it works beside any other node. Stages publish their manifest while they run and end
well; servers are ready; pods that are deleted go, unless `holds` or `never_ends` says otherwise. It outlives pods that
vanish under its hands, and a pod that runs here is known to have existed however short its life was.
"""

import datetime
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from scope_selfplay.cluster.pods import Label
from scope_selfplay.driver.observed import step_of
from scope_selfplay.testing.fake_nodes import SimulatedStages

_ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
_HEARTBEAT = 10.0


class SimulatedNode(threading.Thread):
    def __init__(self, api: Any, namespace: str, root: Path) -> None:
        super().__init__(daemon=True)
        self.name = f"node-{namespace}"
        self.selector = {"scope-test": namespace}
        """What brings pods here."""
        self.stages = SimulatedStages(root, "r1")
        self.jobs: dict[str, str] = {}
        """Every stage Job that had a pod here: uid -> name."""
        self.holds: Callable[[str], bool] = lambda pod: False
        """Pods that come no further, whatever state they are in."""
        self.stuck: Callable[[str], bool] = lambda pod: False
        """Pods whose container cannot be made."""
        self.never_ends: Callable[[str], bool] = lambda pod: False
        self._core = api.client.CoreV1Api()
        self._error = api.client.ApiException
        self._namespace = namespace
        self._stopped = threading.Event()

    def __enter__(self) -> "SimulatedNode":
        self._core.create_node({"metadata": {"name": self.name, "labels": self.selector}})
        self._beat()
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stopped.set()
        self.join(60)
        self._core.delete_node(self.name)

    def run(self) -> None:
        rounds = 0
        while not self._stopped.wait(0.1):
            rounds += 1
            if rounds % int(_HEARTBEAT / 0.1) == 0:
                self._beat()
            mine = f"spec.nodeName={self.name}"
            for pod in self._core.list_namespaced_pod(self._namespace, field_selector=mine).items:
                # Whatever became of the pod since it was listed, the next look shows it.
                with suppress(self._error):
                    self._move(pod)

    def _beat(self) -> None:
        condition = {"type": "Ready", "status": "True", "reason": "Simulated", "lastHeartbeatTime": _now()}
        status = {"capacity": _ROOM, "allocatable": _ROOM, "conditions": [condition]}
        self._core.patch_node_status(self.name, {"status": status})

    def _move(self, pod: Any) -> None:
        """One step: pending, running, succeeded; or gone."""
        name, labels, is_server = pod.metadata.name, pod.metadata.labels, pod.spec.restart_policy == "Always"
        if pod.metadata.deletion_timestamp is not None:
            if self.never_ends(name):
                return
            self._core.delete_namespaced_pod(name, self._namespace, grace_period_seconds=0)
        elif self.stuck(name):
            self._report(
                name, "Pending", {"waiting": {"reason": "CreateContainerConfigError", "message": "no key"}}
            )
        elif pod.status.phase == "Pending":
            self._report(name, "Running", {"running": {"startedAt": _now()}})
        elif pod.status.phase == "Running" and not is_server and not self.holds(name):
            self._end(name, labels)

    def _end(self, name: str, labels: dict[str, str]) -> None:
        job, step = labels["job-name"], step_of(labels)
        if step is not None:
            self.jobs[labels["controller-uid"]] = job
            if Label.SHARD not in labels:
                self.stages.publish(step, job)
        self._report(name, "Succeeded", {"terminated": {"exitCode": 0, "finishedAt": _now()}})

    def _report(self, name: str, phase: str, state: dict[str, Any]) -> None:
        is_ready, now = phase == "Running", _now()
        container = {"name": "main", "image": "", "imageID": "", "restartCount": 0}
        kinds = ("Initialized", "Ready", "ContainersReady")
        status = {
            "phase": phase,
            "startTime": now,
            "conditions": [{"type": each, "status": str(is_ready)} for each in kinds],
            "containerStatuses": [{**container, "ready": is_ready, "state": state}],
        }
        self._core.patch_namespaced_pod_status(name, self._namespace, {"status": status})


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()
