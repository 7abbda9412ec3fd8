"""One call: what is retried and how long, what is refused and how it reads; the watch, which wakes the loop and does
nothing else; two controllers at once, clocks that lie, and one that is gone for good, which holds nothing for ever."""

import json
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scope_selfplay.base.errors import ExitCode, OutsideError, UserError
from scope_selfplay.cluster.pods import Label
from scope_selfplay.driver import keeper
from scope_selfplay.driver.api import (
    TRIES,
    VERBS,
    ApiReply,
    Body,
    ClusterClient,
    Conflict,
    LeaseLost,
    NoReply,
    ObjectKind,
    QuotaError,
)
from scope_selfplay.driver.kubernetes import KEPT, JobExpiry, keep_logs, watch_jobs
from scope_selfplay.driver.loop import Controller, drive
from scope_selfplay.driver.observed import owner_of
from scope_selfplay.store.folder import RunFolder
from scope_selfplay.testing.fake_cluster import ApiFault, FakeCluster, Killed
from tests.unit.controller.worlds import ONE, World, config_of

JOB: Body = {"metadata": {"name": "job"}, "spec": {"completions": 2, "suspend": False}}


def client(fake: FakeCluster, **more: Any) -> ClusterClient:
    return ClusterClient(fake, **{"rng": Random(0), "sleep": fake.advance, **more})


@pytest.mark.fault(14)
def test_pauses_differ_between_controllers_and_heed_what_the_server_asks() -> None:
    def slept(fault: ApiFault, seed: int) -> list[float]:
        fake, pauses = FakeCluster(), list[float]()
        fake.faults = lambda call: fault
        with pytest.raises(OutsideError, match=f"no success in {TRIES} tries"):
            client(fake, rng=Random(seed), sleep=pauses.append).list(ObjectKind.JOB, "")
        assert len(pauses) == TRIES - 1
        return pauses

    one, other = slept(ApiFault.LOST, 1), slept(ApiFault.LOST, 2)
    assert one != other and sum(one) < 31 and sum(other) < 31
    assert min(slept(ApiFault.TOO_MANY, 1)) >= 1 > min(one)


@pytest.mark.fault(14)
@pytest.mark.parametrize("fault", [ApiFault.LOST_AFTER, ApiFault.SERVER_ERROR_AFTER])
def test_a_write_that_may_have_happened_is_done_once(
    fault: ApiFault, record_property: Callable[[str, object], None]
) -> None:
    fake = FakeCluster()
    cluster = client(fake)

    def fail_the_next_call() -> None:
        number = len(fake.calls)
        fake.faults = lambda call: fault if call.number == number else None

    fail_the_next_call()
    found, is_new = cluster.create(ObjectKind.JOB, JOB)
    assert (found["metadata"]["name"], is_new) == ("job", False)
    assert fake.created == {(ObjectKind.JOB, "job"): 1}

    made, _ = cluster.create(ObjectKind.LEASE, {"metadata": {"name": "x"}, "spec": {"holderIdentity": "me"}})
    body = {"metadata": made["metadata"], "spec": {"holderIdentity": "you"}}
    fail_the_next_call()
    assert cluster.replace(ObjectKind.LEASE, body)["spec"] == body["spec"]
    with pytest.raises(Conflict):
        cluster.replace(ObjectKind.LEASE, body | {"spec": {"holderIdentity": "she"}})

    # The Role lets nobody read it again.
    body = {"metadata": {"name": "r1.e1"}, "message": "m"}
    fail_the_next_call()
    assert cluster.create(ObjectKind.EVENT, body) == (body, False)
    record_property("injected", fake.injected)


def test_deleting_what_is_gone_or_was_replaced_does_nothing() -> None:
    fake = FakeCluster()
    client(fake).delete(ObjectKind.JOB, "job", "uid-9")
    client(fake).create(ObjectKind.JOB, JOB)
    client(fake).delete(ObjectKind.JOB, "job", "uid-of-before")
    assert list(fake.objects(ObjectKind.JOB)) == ["job"]


@pytest.mark.parametrize(
    ("status", "message", "error", "code", "text"),
    [
        (403, "exceeded quota: x", QuotaError, ExitCode.OUTSIDE, "create jobs job: exceeded quota"),
        (403, "no right", UserError, ExitCode.USER, "compare the controller's Role"),
        (422, "spec: too long", UserError, ExitCode.USER, "create jobs job: spec: too long"),
        (418, "tea", OutsideError, ExitCode.OUTSIDE, "create jobs job: 418 tea"),
    ],
)
def test_a_refusal_is_one_line_with_its_exit_code(
    status: int, message: str, error: type[OutsideError | UserError], code: ExitCode, text: str
) -> None:
    class Refusing(FakeCluster):
        def send(self, *args: Any, **rest: Any) -> ApiReply:
            return ApiReply(status, {}, {"message": message})

    with pytest.raises(error, match=text) as caught:
        client(Refusing()).create(ObjectKind.JOB, JOB)
    assert caught.value.exit_code is code


@pytest.mark.fault(14)
@pytest.mark.parametrize(
    ("method", "arguments"),
    [("create", [JOB]), ("apply", [JOB]), ("replace", [JOB]), ("delete", ["job", "uid"])],
)
def test_nothing_is_written_once_the_lease_may_be_lost(method: str, arguments: list[Any]) -> None:
    def lost() -> None:
        raise LeaseLost

    fake = FakeCluster()
    cluster = client(fake, guard=lost)
    cluster.list(ObjectKind.JOB, "")
    with pytest.raises(LeaseLost):
        getattr(cluster, method)(ObjectKind.JOB, *arguments)
    assert [call.method for call in fake.calls] == ["GET"]


def seen(version: str) -> Body:
    return {"type": "MODIFIED", "object": {"metadata": {"resourceVersion": version}}}


class Watching(FakeCluster):
    """Every watch gives what is next in `ways`."""

    def __init__(self, *ways: list[Body | NoReply]) -> None:
        super().__init__()
        self.ways = list(ways)

    def lines(self, path: str, **rest: Any) -> Iterator[bytes]:
        for each in self.ways.pop(0):
            if isinstance(each, NoReply):
                raise each
            yield json.dumps(each).encode()


GONE = NoReply("410 Gone")


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    ("ways", "wakes"),
    [
        ([[GONE], [GONE]], False),
        ([[seen("9"), GONE], [GONE]], True),
        ([[], []], False),
        ([[seen("9"), seen("3"), seen("7")]], True),
        ([[{}]], True),
    ],
    ids=["410", "a late 410", "silence", "out of order", "nonsense"],
)
def test_a_watch_that_fails_or_lies_is_opened_again(ways: list[list[Body | NoReply]], wakes: bool) -> None:
    fake, wake, pauses = Watching(*ways), threading.Event(), list[float]()

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return not fake.ways

    watch_jobs(client(fake), "r1", wake, wait)
    assert len(pauses) == len(ways)
    assert wake.is_set() is wakes
    # Never in a tight loop, however soon the server ends it.
    assert all(5 <= pause <= 15 for pause in pauses)


def test_what_a_pod_says_is_kept_once_whoever_leads_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "LARGEST", 50)
    fake, said, file = FakeCluster(), list[bytes](), tmp_path / "r1" / "log" / "r1-judge-1.log"
    fake.said["r1-judge-1"] = said
    for name in ("r1-judge-1", "r1-gone-1"):
        status = {"phase": "Running", "containerStatuses": [{"restartCount": 1}]}
        labels = {"scope/run": "r1"}
        fake.put(ObjectKind.POD, {"metadata": {"name": name, "labels": labels}, "status": status})

    def look(*more: str, leads: bool = True) -> list[str]:
        said.extend(f"2026-11-27T10:00:{each}".encode() for each in more)
        over = iter([False, True])
        keep_logs(client(fake), RunFolder(tmp_path / "r1"), lambda: leads, lambda seconds: next(over))
        files = [each for each in (file.with_name(f"{file.name}.1"), file) if each.exists()]
        return [line.partition("Z ")[2] for each in files for line in each.read_text().splitlines()]

    assert look("01.25Z one", leads=False) == []
    assert look() == ["one"]
    # Of the second of the last line all comes again.
    assert look("01.5Z two", "02Z three") == look() == ["one", "two", "three"]
    assert file.stat().st_size == 0
    assert look("02.1Z four") == ["one", "two", "three", "four"]


def test_a_stopped_loop_hands_its_lease_over_and_ends_with_143(tmp_path: Path) -> None:
    world, said = World(tmp_path), list[str]()
    controller, rounds = world.controller(), list[int]()

    def pause() -> None:
        rounds.append(1)
        world.cluster.advance(15)

    assert drive(controller, pause, lambda: len(rounds) == 3, said.append) is ExitCode.TERMINATED
    successor = world.controller(identity="pod-2")
    successor.round()
    assert successor.hand.leadership.holds
    assert said == ["stopped; whoever starts next goes on from here"]


@pytest.mark.fault(12)
def test_a_leader_that_does_not_know_that_it_was_replaced_fails_at_the_status(tmp_path: Path) -> None:
    world = World(tmp_path)
    # A process that was stopped between the check of its Lease and its write sees no time pass.
    stopped: list[float] = []
    old = world.controller(clock=lambda: stopped[0] if stopped else world.cluster.now)
    new = world.controller(identity="pod-2")
    for _ in range(4):
        world.cluster.advance(20)
        old.round()
    stopped.append(world.cluster.now)
    world.go(new, 150, step=10)
    assert new.hand.leadership.holds
    world.cluster.remove(ObjectKind.DEPLOYMENT, "r1-judge")
    created = dict(world.cluster.created)
    old.round()
    assert world.said[-1] == "configmaps r1-status was changed by somebody else; looking again"
    assert world.cluster.created == created


class Handover:
    """A controller whose stage runs, and one of another image, whose Job is applied beside its own."""

    step = "i01-train-solver"

    def __init__(self, root: Path) -> None:
        self.world = World(root, only=[self.step, "i01-compare"])
        self.world.work_on(self.step, lambda job, rank: None)
        self.old = self.controller("r1-controller-1")
        self.world.go_until(self.old, lambda: self.world.status.get("jobs"))
        other = {"worker": "registry.example/scope:2", "trainer": "registry.example/scope-train:2"}
        config = config_of(ONE | {"cluster": ONE["cluster"] | {"images": other}})
        self.world.inputs = self.world.inputs._replace(config=config)
        self.new = self.controller("r1-controller-2")

    def controller(self, job: str) -> Controller:
        if job not in self.world.cluster.objects(ObjectKind.JOB):
            self.world.add_controller_job(job, **{Label.COMPONENT: "controller"})
        inputs, pod = self.world.inputs, f"{job}-{len(self.world.cluster.calls)}"
        return self.world.controller(identity=pod, job=job, read=lambda: inputs)

    def owned(self) -> dict[str, tuple[str, str | None]]:
        """What the run holds: its uid, and whose it is."""
        kinds = (ObjectKind.JOB, ObjectKind.DEPLOYMENT, ObjectKind.SERVICE)
        found = [body for kind in kinds for body in self.world.cluster.objects(kind).values()]
        return {
            f"{body['kind']} {body['metadata']['name']}": (body["metadata"]["uid"], owner_of(body))
            for body in found
            if body["metadata"].get("ownerReferences")
        }


@pytest.mark.fault(13)
@pytest.mark.parametrize("killed_at", range(32))
def test_a_controller_of_another_image_takes_over_what_runs_wherever_it_is_killed(
    tmp_path: Path, killed_at: int, record_property: Callable[[str, object], None]
) -> None:
    run = Handover(tmp_path)
    world, before, kills = run.world, run.owned(), 0
    numbers = count()
    dies = (ApiFault.KILLED, ApiFault.KILLED_AFTER)[killed_at % 2]
    for _ in range(60):
        # Its pod goes with its Job.
        if "r1-controller-1" in world.cluster.objects(ObjectKind.JOB):
            run.old.round()
        world.cluster.faults = lambda call: dies if next(numbers) == killed_at else None
        try:
            run.new.round()
        except Killed:
            kills, run.new = kills + 1, run.controller("r1-controller-2")
        world.cluster.faults = lambda call: None
        world.cluster.advance(5)
    assert "r1-controller-1" not in world.cluster.objects(ObjectKind.JOB)
    own = world.cluster.objects(ObjectKind.JOB)["r1-controller-2"]["metadata"]["uid"]
    assert run.owned() == {name: (uid, own) for name, (uid, _) in before.items()}
    world.nodes.work = world.stages
    assert world.drive(run.new).code is ExitCode.DONE
    assert world.jobs_created == {"r1-i01-train-solver-a1": 1, "r1-i01-compare-a1": 1}
    assert run.owned().keys() == {f"Job {name}" for name in world.jobs_created}
    assert kills == 1
    record_property("injected", kills)


def test_a_leader_whose_successor_goes_leads_again(tmp_path: Path) -> None:
    run = Handover(tmp_path)
    run.new.round()
    run.world.go(run.old, 25, step=5)
    assert not run.old.hand.leadership.holds
    run.world.go(run.old, 90, step=5)
    assert run.old.hand.leadership.holds and run.world.jobs_created["r1-i01-train-solver-a1"] == 1


HOUR = 3600.0
OWN = "r1-controller"


def begun(root: Path) -> World:
    """A run whose first stage goes on for ever, with its servers."""
    world = World(root, work=lambda job, rank: None, tick=60.0)
    world.go(world.controller(), 1200, step=60)
    assert world.nodes.taken() == 4
    return world


def spec_of(world: World) -> dict[str, float]:
    spec: dict[str, float] = world.cluster.objects(ObjectKind.JOB)[OWN]["spec"]
    return spec


def test_what_a_controller_that_is_gone_held_is_free_within_its_expiry(tmp_path: Path) -> None:
    world = begun(tmp_path)
    world.cluster.advance(11 * HOUR)
    assert world.nodes.taken() == 4
    world.cluster.advance(1 * HOUR + KEPT + 300)
    assert world.nodes.taken() == 0
    kinds = (ObjectKind.JOB, ObjectKind.DEPLOYMENT, ObjectKind.SERVICE, ObjectKind.POD)
    assert [world.cluster.objects(kind) for kind in kinds] == [{}] * 4
    # Applied again, the run goes on from its volume.
    world.nodes.work = world.stages
    world.add_controller_job()
    assert world.drive(world.controller(identity="pod-2")).code is ExitCode.DONE


@pytest.mark.parametrize("pods", [1, 12])
def test_a_controller_at_work_never_expires_however_often_its_pod_is_another(
    tmp_path: Path, pods: int
) -> None:
    world = begun(tmp_path)
    for number in range(pods):
        controller = world.controller(identity=f"pod-{number}")
        world.go(controller, 24 // pods * 0.9 * HOUR, step=0.9 * HOUR)
        controller.stop()
    assert world.cluster.now > 20 * HOUR
    assert world.nodes.taken() == 4
    # Twelve pods in their turn give no longer a time than one.
    assert spec_of(world)["activeDeadlineSeconds"] - world.cluster.now <= 12 * HOUR


@pytest.mark.parametrize("wrong_by", [-5 * HOUR, 5 * HOUR])
def test_a_clock_that_jumps_under_a_controller_changes_nothing(tmp_path: Path, wrong_by: float) -> None:
    world = begun(tmp_path)
    jumped = False

    def wall() -> float:
        return world.cluster.now + (wrong_by if jumped else 0.0)

    cluster = world.controller().hand.leadership.cluster
    clock = JobExpiry(cluster, OWN, lambda: world.cluster.now, wall, world.said.append)
    for _ in range(3):
        clock.renew(43_200)
        world.cluster.advance(HOUR)
        jumped = True
    ahead = spec_of(world)["activeDeadlineSeconds"] - (world.cluster.now - HOUR)
    assert 11 * HOUR <= ahead <= 12 * HOUR + 60


def test_one_that_may_not_delete_says_so_and_leaves_that_to_the_cluster(tmp_path: Path) -> None:
    verbs = {**VERBS, ("apps", "deployments"): VERBS["apps", "deployments"] - {"delete"}}
    world = World(tmp_path, ONE, verbs=verbs)
    with pytest.raises(UserError, match="cannot delete"):
        world.drive()
    assert world.status["phase"] == "Failed" and "cannot delete" in world.status["message"]
    # The Job of a controller that ends so goes an hour later, and with it the servers and this status.
    assert world.nodes.taken() and spec_of(world)["ttlSecondsAfterFinished"] == KEPT


def test_an_older_role_is_said_and_the_run_goes_on(tmp_path: Path) -> None:
    verbs = {**VERBS, ("batch", "jobs"): VERBS["batch", "jobs"] - {"patch"}}
    world = World(tmp_path, ONE, verbs=verbs)
    assert isinstance(world.cluster, FakeCluster)
    assert world.drive().code is ExitCode.DONE
    said = [line for line in world.said if "cannot patch" in line]
    assert said and all("compare the controller's Role with k8s/shared" in line for line in said)
