"""The controller against a real API server: three iterations, kills, TTL, a quota, rights, owners, two leaders.

Pods do not really run: `SimulatedNode` takes them, and publishes the manifests that their stages would.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scope_selfplay.base.errors import ExitCode
from scope_selfplay.cluster import stages
from scope_selfplay.cluster.pods import Component, Label
from scope_selfplay.config.cluster import ImagesConfig
from scope_selfplay.config.load import parse_config
from scope_selfplay.driver import kubernetes as expiry
from scope_selfplay.driver.api import VERBS, ApiReply, NoReply, ObjectKind, Transport
from scope_selfplay.driver.kubernetes import KubernetesHand
from scope_selfplay.driver.loop import Clock, Controller
from scope_selfplay.driver.parts import Inputs, RunEnd
from scope_selfplay.driver.transport import KubernetesTransport
from scope_selfplay.store.folder import RunFolder
from scope_selfplay.testing.fake_cluster import Killed
from tests.cluster.simulated_node import SimulatedNode
from tests.commands import wait_until
from tests.unit.controller.worlds import sized

pytestmark = pytest.mark.cluster
Report = Callable[[str, object], None]
SMALL = {"cpu": "100m", "memory": "64Mi"}
CLUSTER = {
    "images": {"worker": "scope-selfplay:test"},
    "train_challenger": sized(**SMALL) | {"gpus": 2},
    "train_solver": sized(**SMALL) | {"gpus": 4},
    "retriever": dict(SMALL),
    **{part: sized(**SMALL) for part in ("judge", "solver", "challenger", "make_tasks", "compare")},
}
RUN = {
    "name": "r1",
    "iterations": 3,
    "model": {"path": "/data/models/base"},
    "judge": {"kind": "model", "endpoint": {"base_url": "http://r1-judge:8000/v1"}},
}


class Dying(Transport):
    """Sends, and ends the process around every call whose number says so."""

    def __init__(self, inner: KubernetesTransport) -> None:
        self.namespace = inner.namespace
        self.inner = inner
        self.calls = 0
        self.dies: Callable[[int], bool] = lambda number: False

    def send(self, method: str, path: str, **rest: Any) -> ApiReply:
        self.calls += 1
        number = self.calls
        if self.dies(number) and number % 2:
            raise Killed
        reply = self.inner.send(method, path, **rest)
        if self.dies(number):
            raise Killed
        return reply

    def lines(self, path: str, **rest: Any) -> Any:
        return self.inner.lines(path, **rest)


class Site:
    """One run in one namespace, and the controllers that it had."""

    def __init__(self, api: Any, settings: Any, node: SimulatedNode, root: Path, **changes: Any) -> None:
        self.jobs = api.client.BatchV1Api()
        self.core = api.client.CoreV1Api()
        self.apps = api.client.AppsV1Api()
        self.node = node
        self.namespace = node.selector["scope-test"]
        self.root = root
        cluster = CLUSTER | changes.pop("cluster", {}) | {"pod": {"spec": {"nodeSelector": node.selector}}}
        self.config = parse_config(RUN | changes | {"cluster": cluster})
        self.transport = Dying(KubernetesTransport(settings, self.namespace))
        self.verbs: set[tuple[str, str, str]] = set()
        self.said: list[str] = []
        self.uid = self.make_job("r1-controller")

    def make_job(self, name: str, **metadata: Any) -> str:
        """A Job whose pod finds no node, such as the one that owns everything: the test is the controller."""
        pod = {
            "restartPolicy": "Never",
            "nodeSelector": {"nowhere": "at-all"},
            "containers": [{"name": "main", "image": "scope-selfplay:test"}],
        }
        body = {
            "metadata": {"name": name, "labels": {"scope/run": "r1"}, **metadata},
            "spec": {"template": {"spec": pod}},
        }
        uid: str = self.jobs.create_namespaced_job(self.namespace, body).metadata.uid
        return uid

    def controller(
        self, identity: str = "pod-1", job: str = "r1-controller", clock: Callable[[], float] = time.monotonic
    ) -> Controller:
        inputs = Inputs(self.config, "0123456789abcdef", ("wikipedia",))
        hand = KubernetesHand(
            self.transport,
            self.config,
            RunFolder(self.root / self.config.name),
            job=job,
            identity=identity,
            clock=Clock(clock, time.sleep),
            rng=Random(0),
            say=self.said.append,
        )
        return Controller(
            hand, lambda: inputs, RunFolder(self.root / self.config.name), clock, say=self.said.append
        )

    def drive(self, controller: Controller, seconds: float = 400) -> RunEnd:
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                run_end = controller.round()
                if run_end is not None:
                    return run_end
                time.sleep(0.2)
        finally:
            self.verbs |= controller.hand.cluster.verbs_used | controller.hand.leadership.cluster.verbs_used
        raise AssertionError(f"not ended in {seconds} s: {self.status()}")

    def status(self) -> dict[str, str]:
        data: dict[str, str] = self.core.read_namespaced_config_map("r1-status", self.namespace).data
        return data

    def stage_jobs(self) -> list[str]:
        """Every Job of a stage that ran or is there, one entry for each that was ever made."""
        there = self.jobs.list_namespaced_job(self.namespace, label_selector="scope/stage").items
        return sorted((self.node.jobs | {each.metadata.uid: each.metadata.name for each in there}).values())

    def jobs_left(self) -> list[str]:
        there = self.jobs.list_namespaced_job(self.namespace, label_selector="scope/stage").items
        return sorted(each.metadata.name for each in there)

    def reasons(self) -> Counter[str]:
        return Counter(each.reason for each in self.core.list_namespaced_event(self.namespace).items)

    def servers(self) -> list[str]:
        return [each.metadata.name for each in self.apps.list_namespaced_deployment(self.namespace).items]


@pytest.fixture
def site(
    api: Any, namespace: str, volume: Path, controller_settings: Any, tmp_path: Path
) -> Iterator[Callable[..., Site]]:
    with SimulatedNode(api, namespace, tmp_path) as node:
        yield lambda **changes: Site(api, controller_settings(), node, tmp_path, **changes)


def test_three_iterations_come_to_their_end_with_exactly_the_rights_of_the_role(
    site: Callable[..., Site],
) -> None:
    run = site()
    controller = run.controller()
    changes = controller.hand.cluster.changes(ObjectKind.JOB, "scope/run=r1", 5)
    assert json.loads(next(changes))["object"]["metadata"]["name"] == "r1-controller"
    with pytest.raises(NoReply, match="404"):
        next(controller.hand.cluster.log("nobody", "", previous=False))
    # A Job of a stage that is not this one's turn: what an older controller may leave behind.
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "r1-controller", "uid": run.uid}
    labels = {"scope/run": "r1", "scope/iteration": "03", "scope/stage": "compare", "scope/attempt": "9"}
    run.make_job("r1-i03-compare-a9", labels=labels, ownerReferences=[owner | {"controller": True}])
    wait_until(lambda: controller.round() or "r1-i03-compare-a9" not in run.jobs_left())
    assert run.drive(controller) == RunEnd(ExitCode.DONE, "every stage is done")
    stages = run.stage_jobs()
    assert len(stages) == 14 and all(name.endswith("-a1") for name in stages), stages
    assert run.servers() == []
    assert run.status()["phase"] == "Done"
    reasons = run.reasons()
    assert reasons["StageStarted"] == reasons["StageDone"] == 14
    used = _used(run.verbs)
    # A run as short as this one may end before its Lease is renewed.
    used[("coordination.k8s.io", "leases")].add("update")
    assert used == {key: set(verbs) for key, verbs in VERBS.items()}
    count = sum(len(verbs) for verbs in used.values())
    print(f"14 of 14 stages in {run.transport.calls} calls; {count} of {count} granted verbs used, no other")


@pytest.mark.fault(13)
def test_a_dozen_kills_change_nothing(site: Callable[..., Site], record_property: Report) -> None:
    run, kills = site(iterations=1), 0
    run.transport.dies = lambda number: number % 17 == 0
    while True:
        try:
            assert run.drive(run.controller()).code is ExitCode.DONE
            break
        except Killed:
            kills += 1
    record_property("injected", kills)
    assert kills >= 12
    assert len(run.stage_jobs()) == 6, run.stage_jobs()
    assert len(set(run.node.stages.published)) == len(run.node.stages.published) == 6
    print(f"{kills} of {kills} kills survived; 6 stages, 6 Jobs, {run.transport.calls} calls")


@pytest.mark.fault(17)
def test_finished_jobs_that_the_cluster_deletes_are_not_run_again(
    site: Callable[..., Site], record_property: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = site(iterations=1)
    monkeypatch.setattr(stages, "KEPT", 0)
    assert run.drive(run.controller()).code is ExitCode.DONE
    assert all(name.endswith("-a1") for name in run.stage_jobs())
    assert len(run.stage_jobs()) == 6
    record_property("injected", 6)
    wait_until(lambda: run.jobs_left() == [])
    print("6 of 6 finished Jobs deleted by the cluster, none made again")


@pytest.mark.fault(21)
def test_pods_that_do_not_start_or_end_and_a_quota_are_said_and_waited_for(site: Callable[..., Site]) -> None:
    run = site(iterations=1)
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"count/jobs.batch": "1"}}}
    run.core.create_namespaced_resource_quota(run.namespace, quota)
    wait_until(lambda: run.core.read_namespaced_resource_quota("small", run.namespace).status.used)
    run.node.stuck = lambda pod: pod.startswith("r1-judge")
    run.node.never_ends = lambda pod: pod.startswith("r1-i00-challenger")
    controller = run.controller()
    stuck = "CreateContainerConfigError: no key"
    wait_until(lambda: controller.round() or stuck in run.status().get("message", ""))
    assert run.reasons()["PodStuck"]
    run.node.stuck = lambda pod: False
    wait_until(lambda: controller.round() or run.reasons()["NoRoom"])
    assert run.stage_jobs() == []
    assert "exceeded quota: small" in run.said[-1]
    run.core.delete_namespaced_resource_quota("small", run.namespace)
    wait_until(lambda: controller.round() or "ended: i00-compare needs the GPUs" in run.status()["message"])
    assert run.stage_jobs() == ["r1-i00-make-tasks-a1"]
    run.node.never_ends = lambda pod: False
    assert run.drive(controller).code is ExitCode.DONE
    assert len(run.stage_jobs()) == 6


def test_what_a_controller_made_goes_with_its_job_or_has_the_next_one_as_its_owner(
    site: Callable[..., Site],
) -> None:
    def owners() -> list[str]:
        status_map = run.core.read_namespaced_config_map("r1-status", run.namespace)
        return [each.uid for each in status_map.metadata.owner_references or ()]

    run = site(iterations=1)
    controller = run.controller()
    wait_until(lambda: controller.round() or run.servers())
    run.jobs.delete_namespaced_job("r1-controller", run.namespace, propagation_policy="Background")
    wait_until(lambda: not run.servers())
    wait_until(lambda: not run.core.list_namespaced_pod(run.namespace, label_selector="scope/server").items)
    second_uid = run.make_job("r1-i01-controller")
    second = run.controller(job="r1-i01-controller")
    wait_until(lambda: second.round() or run.servers())
    assert owners() == [second_uid]
    run.jobs.delete_namespaced_job("r1-i01-controller", run.namespace, propagation_policy="Orphan")
    # The cluster takes the owner off what it leaves, the status among it: a change under a controller's hands.
    wait_until(lambda: not owners())
    third_uid = run.make_job("r1-controller")
    third = run.controller()
    third.round()
    assert owners() == [third_uid]
    for name in run.servers():
        run.apps.delete_namespaced_deployment(name, run.namespace)
    for each in run.core.list_namespaced_service(run.namespace).items:
        # An old server answers with a Status, which this client cannot read as a Service.
        run.core.delete_namespaced_service(each.metadata.name, run.namespace, _preload_content=False)
    # It is made again when it is deleted.
    run.core.delete_namespaced_config_map("r1-status", run.namespace)
    assert run.drive(third).code is ExitCode.DONE
    assert run.status()["controller"] == "r1-controller"


def test_a_controller_of_another_image_takes_over_in_the_middle_of_a_stage(site: Callable[..., Site]) -> None:
    run, labels = site(iterations=1), {"scope/run": "r1", Label.COMPONENT: Component.CONTROLLER.value}

    def begin(job: str, image: str) -> tuple[str, Controller]:
        uid, cluster = run.make_job(job, labels=labels), run.config.cluster
        changed = cluster.model_copy(update={"images": ImagesConfig(worker=image)})
        run.config = run.config.model_copy(update={"cluster": changed})
        return uid, run.controller(f"{job}-abcde", job=job)

    def held() -> dict[str, tuple[str, str]]:
        """Uid and owner of what the run holds."""
        jobs = run.jobs.list_namespaced_job(run.namespace, label_selector="scope/stage").items
        servers = run.apps.list_namespaced_deployment(run.namespace).items
        services = run.core.list_namespaced_service(run.namespace).items
        found = [each.metadata for each in (*jobs, *servers, *services)]
        return {each.name: (each.uid, each.owner_references[0].uid) for each in found}

    run.node.holds = lambda pod: "i01-train-challenger" in pod
    first, old = begin("r1-controller-1", "scope-selfplay:1")
    wait_until(lambda: old.round() or run.status()["jobs"] == "r1-i01-train-challenger-a1")
    before, began = held(), time.monotonic()
    assert {owner for _, owner in before.values()} == {first}
    second, new = begin("r1-controller-2", "scope-selfplay:2")
    alive = "r1-controller-1"
    while alive:
        old.round()
        new.round()
        alive = " ".join(
            each.metadata.name
            for each in run.jobs.list_namespaced_job(run.namespace).items
            if each.metadata.uid == first
        )
    print(f"{len(before)} objects taken over in {time.monotonic() - began:.0f} s")
    time.sleep(5)
    changed = {name for name, (uid, owner) in held().items() if (uid, owner) != (before[name][0], second)}
    assert not changed and held().keys() == before.keys()
    run.node.holds = lambda pod: False
    assert run.drive(new).code is ExitCode.DONE
    assert len(run.stage_jobs()) == 6 and run.servers() == [], run.stage_jobs()
    assert run.status()["controller"] == "r1-controller-2"


def test_what_a_controller_that_is_gone_for_good_made_expires(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "KEPT", 5)
    run = site(iterations=1)
    controller = run.controller()
    wait_until(lambda: controller.round() or run.servers())
    spec = run.jobs.read_namespaced_job("r1-controller", run.namespace).spec
    assert 0 <= spec.active_deadline_seconds - expiry.EXPIRY < 400
    # A shorter one than configs take: what it does is moved on, taken away, and met.
    others = (controller.hand.leadership.cluster, "r1-controller", time.monotonic, time.time, run.said.append)
    first, second = expiry.JobExpiry(*others), expiry.JobExpiry(*others)
    first.renew(1)
    first.lift()
    lifted = run.jobs.read_namespaced_job("r1-controller", run.namespace).spec
    assert (lifted.active_deadline_seconds, lifted.ttl_seconds_after_finished) == (None, None)
    second.renew(10)
    wait_until(lambda: not run.servers() and not run.jobs.list_namespaced_job(run.namespace).items)
    wait_until(lambda: not run.core.list_namespaced_pod(run.namespace, label_selector="scope/server").items)


@pytest.mark.fault(12)
def test_a_leader_that_slept_through_its_lease_writes_nothing(site: Callable[..., Site]) -> None:
    run, later = site(iterations=1), [0.0]
    began = time.monotonic()
    sleeper = run.controller(clock=lambda: began)
    wait_until(lambda: sleeper.round() or run.servers())
    second = run.controller("pod-2", clock=lambda: time.monotonic() + later[0])
    second.round()
    assert not second.hand.leadership.holds
    later[0] = 61.0
    second.round()
    assert second.hand.leadership.holds and second.hand.leadership.fence == sleeper.hand.leadership.fence + 1
    wait_until(lambda: second.round() or run.status()["fence"] == str(second.hand.leadership.fence))
    run.apps.delete_namespaced_deployment("r1-judge", run.namespace)
    wait_until(lambda: "r1-judge" not in run.servers())
    sleeper.round()
    assert run.said[-1] == "configmaps r1-status was changed by somebody else; looking again"
    assert "r1-judge" not in run.servers()
    second.stop()
    third = run.controller("pod-3")
    third.round()
    assert third.hand.leadership.holds and third.hand.leadership.fence == second.hand.leadership.fence + 1
    assert run.drive(third).code is ExitCode.DONE
    assert len(run.stage_jobs()) == 6, run.stage_jobs()


def _used(verbs: set[tuple[str, str, str]]) -> dict[tuple[str, str], set[str]]:
    """By resource; server-side apply is a patch that asks for `create` too where the object is new."""
    used: dict[tuple[str, str], set[str]] = {}
    for group, resource, verb in verbs:
        used.setdefault((group, resource), set()).add(verb)
    return {key: each | {"create"} if "patch" in each else each for key, each in used.items()}
