"""One hand of the driver: Jobs, Deployments and Services of a Kubernetes namespace.

Nothing is remembered between two rounds but what saves calls: the status as written last, and which Events were sent.
"""

import datetime
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from scope_selfplay.base.errors import ConfigError, ExitCode, OutsideError, UserError
from scope_selfplay.base.terminal import received_signals
from scope_selfplay.cluster.pods import (
    EVERY_RUN,
    IN_PODS,
    Component,
    Label,
    ManifestContext,
    Owner,
    event,
    lease,
    lease_name,
    status_map,
    status_name,
)
from scope_selfplay.config.run import RunConfig
from scope_selfplay.driver.api import (
    TIMEOUT,
    Body,
    ClusterClient,
    Conflict,
    LeaseLost,
    NoReply,
    ObjectKind,
    QuotaError,
    Transport,
)
from scope_selfplay.driver.keeper import rotate
from scope_selfplay.driver.loop import Clock, Controller, Hand, drive
from scope_selfplay.driver.metrics import serve_run_metrics
from scope_selfplay.driver.observed import ObservedCluster, annotation, observe, other_controllers, owner_of
from scope_selfplay.driver.parts import (
    Action,
    Adopt,
    Apply,
    ControllerEvent,
    Create,
    Delete,
    Inputs,
    Publish,
    RunStore,
    make_cache,
)
from scope_selfplay.store.folder import RunFolder

EXPIRY = 43_200
"""Seconds after which the cluster ends a run whose controller is not at work; it goes on when it is applied again."""
KEPT = 3600
"""Seconds for which the log of a controller that ended without a verdict can be read."""
_RENEWALS = 24
DURATION = 60.0
RENEW = 20.0
MARGIN = 2 * TIMEOUT
"""Seconds before the lease ends in which nothing is written any more: longer than one request may take."""
RESYNC = 15.0
"""Seconds between two rounds when nothing happens."""
SHORTEST = 2.0
"""Seconds between two rounds however much happens."""
_WATCH = 290.0
_LOOK_AT_LOGS = 20.0
_LONGEST_LINE = 100_000


def control(
    read_inputs: Callable[[], Inputs],
    *,
    root: Path,
    job: str,
    only_iteration: int | None = None,
    namespace: str | None = None,
    metrics: int | None = None,
    say: Callable[[str], None],
) -> ExitCode:
    """Bring a run to its end on the cluster of this pod, or of KUBECONFIG; 143 after SIGTERM.

    `root` holds the runs, `job` owns all, `metrics` is a port. Raises UserError for missing rights and the like.
    """
    from scope_selfplay.driver.transport import connect

    stop, wake = threading.Event(), threading.Event()

    def end(received: list[int]) -> None:
        stop.set()
        wake.set()

    def pause() -> None:
        stop.wait(SHORTEST)
        wake.wait(RESYNC - SHORTEST)
        wake.clear()

    config = read_inputs().config
    folder = RunFolder(root / config.name)
    # A container that is started again in the same pod leads on at once.
    identity = os.environ.get("HOSTNAME") or socket.gethostname()
    clock = Clock(time.monotonic, stop.wait)
    hand = KubernetesHand(
        connect(namespace), config, folder, job=job, identity=identity, clock=clock, rng=Random(), say=say
    )
    controller = Controller(
        hand, read_inputs, folder, clock.monotonic, only_iteration=only_iteration, say=say
    )
    serve_run_metrics(folder, config, metrics)
    # They wait in a socket for minutes, where nothing but the end of the process reaches them: threads of their own.
    cluster = ClusterClient(connect(namespace), rng=Random(), sleep=stop.wait)
    watch = partial(watch_jobs, cluster, config.name, wake, stop.wait)
    logs = partial(keep_logs, cluster, folder, lambda: hand.leadership.holds, stop.wait)
    for work in (watch, logs):
        threading.Thread(target=work, daemon=True).start()
    with received_signals((signal.SIGTERM,), end):
        try:
            return drive(controller, pause, stop.is_set, say)
        finally:
            stop.set()


def watch_jobs(
    cluster: ClusterClient, run: str, wake: threading.Event, wait: Callable[[float], bool]
) -> None:
    """Wake the loop at every change of a Job, until `wait` says that it is over. A watch that ends, fails or lies costs
    nothing: rounds go on."""
    is_over, rng = False, Random()
    while not is_over:
        with suppress(NoReply):
            for _ in cluster.changes(ObjectKind.JOB, f"{Label.RUN}={run}", _WATCH):
                wake.set()
        # Also after a clean end: a server that ends every watch at once must not be asked in a tight loop.
        is_over = wait(rng.uniform(5, 15))


def keep_logs(
    cluster: ClusterClient, run: RunFolder, leads: Callable[[], bool], wait: Callable[[float], bool]
) -> None:
    """Until `wait` says that it is over, what each pod of a run says goes to its folder, because pods and Jobs go. What
    fails is tried again at the next look."""
    restarts: dict[str, int] = {}
    ended: set[str] = set()
    while not wait(_LOOK_AT_LOGS):
        pods: Sequence[Body] = ()
        with suppress(OutsideError, UserError):
            pods = cluster.list(ObjectKind.POD, f"{Label.RUN}={run.path.name}") if leads() else ()
        for name, status in ((pod["metadata"]["name"], pod.get("status") or {}) for pod in pods):
            if name in ended:
                continue
            count = sum(each.get("restartCount", 0) for each in status.get("containerStatuses") or [])
            # What a container said last is what explains that there is another one.
            for previous in (True, False) if count > restarts.get(name, 0) else (False,):
                with suppress(NoReply, OSError):
                    _keep_log(run.logs / f"{name}.log", partial(cluster.log, name, previous=previous))
                    ended |= {name} if status.get("phase") in ("Succeeded", "Failed") else set()
            restarts[name] = count


def _keep_log(file: Path, said_since: Callable[[str], Iterable[bytes]]) -> None:
    """Append what comes after the last line, which begins with its time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    last = b""
    for older in (file, file.with_name(f"{file.name}.1")):
        if not last and older.exists():
            with older.open("rb") as content:
                content.seek(max(0, content.seek(0, os.SEEK_END) - _LONGEST_LINE))
                last = content.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
    lines = list(said_since(last.partition(b" ")[0].decode(errors="replace")))
    fresh = lines[lines.index(last) + 1 :] if last in lines else lines
    with file.open("ab") as content:
        content.writelines(line + b"\n" for line in fresh)
    rotate(file)


class KubernetesHand(Hand):
    """One namespace, for one process that may lead."""

    passing = (OutsideError, Conflict, LeaseLost)
    place = IN_PODS

    def __init__(
        self,
        transport: Transport,
        config: RunConfig,
        folder: RunFolder,
        *,
        job: str,
        identity: str,
        clock: Clock,
        rng: Random,
        say: Callable[[str], None],
    ) -> None:
        # Before Kubernetes 1.34 a Service is named by RFC 1035.
        if not config.name[0].isalpha():
            raise ConfigError(f"name: found {config.name!r}; on a cluster a run's id begins with a letter")
        self._run, self._folder, self._job, self._log = config.name, folder, job, say
        unguarded = ClusterClient(transport, rng=rng, sleep=clock.sleep)
        self.leadership = Leadership(unguarded, config, job, identity, clock.monotonic)
        self.cluster = ClusterClient(transport, rng=rng, sleep=clock.sleep, guard=self.leadership.check)
        self._expiry = JobExpiry(unguarded, job, clock.monotonic, clock.wall, say)
        self._store = RunStore(config.cluster.store, folder) if config.cluster.store else None
        self._owner: Owner | None = None
        self._status: tuple[Mapping[str, str], str | None] | None = None
        self._told: frozenset[str] = frozenset()

    def acquire(self) -> int | None:
        return self.leadership.fence if self.leadership.acquire() else None

    def forget(self) -> None:
        # The status may have been written, changed or deleted: the next round reads it.
        self._status = None

    def rest(self, *, ended: bool) -> None:
        if ended:
            self._expiry.lift()
        else:
            # Last, so that nothing waits for it where it fails.
            self._expiry.renew(EXPIRY)

    def release(self) -> None:
        with suppress(OutsideError, UserError):
            if self._store is not None and self.leadership.holds:
                self._store.store_logs()
        with suppress(OutsideError, LeaseLost, Conflict):
            self.leadership.release()

    def bring(self, config: RunConfig) -> int:
        return 0 if self._store is None else self._store.look(config)

    def owner(self) -> Owner:
        if self._owner is None:
            found = self.cluster.get(ObjectKind.JOB, self._job)
            if found is None:
                why = f"there is none in namespace {self.cluster.namespace}; name the Job that this controller runs in"
                raise ConfigError(f"Job {self._job}: {why}, everything that it makes will be owned by it")
            self._owner = Owner(self._job, found["metadata"]["uid"])
        return self._owner

    def observe(self) -> ObservedCluster:
        selector = f"{Label.RUN}={self._run}"
        if self._status is None:
            found = self.cluster.get(ObjectKind.CONFIG_MAP, status_name(self._run)) or {"metadata": {}}
            self._status = (found.get("data") or {}, found["metadata"].get("resourceVersion"))
        # Pods are listed after their Jobs: a Job that has ended never appears with older states of its pods.
        kinds = (ObjectKind.JOB, ObjectKind.DEPLOYMENT, ObjectKind.SERVICE)
        jobs, deployments, services = (self.cluster.list(kind, selector) for kind in kinds)
        pods = self.cluster.list(ObjectKind.POD, EVERY_RUN)
        return observe(self._run, jobs, pods, deployments, services, self._status[0], self._job)

    def record(self, context: ManifestContext, status: Mapping[str, str], *, acts: bool) -> None:
        """Write onto the version that was read, before every action: a former leader that was replaced fails here."""
        assert self._status is not None
        before, version = self._status
        if dict(before) == dict(status) and not acts:
            return
        written = self.cluster.apply(ObjectKind.CONFIG_MAP, status_map(context, status, version))
        self._status = (status, written["metadata"]["resourceVersion"])
        if status["message"] not in ("", before.get("message")):
            self._log(status["message"])

    def act(self, context: ManifestContext, action: Action) -> None:
        try:
            match action:
                case Create(body):
                    found, is_new = self.cluster.create(ObjectKind.JOB, body)
                    expected = (context.owner.uid, annotation(body, Label.SPEC_HASH))
                    # One of this name is adopted where it is ours and computes the same.
                    if not is_new and (owner_of(found), annotation(found, Label.SPEC_HASH)) != expected:
                        why = f"Job {body['metadata']['name']} exists and was not made by this run; delete it"
                        raise QuotaError(why)
                case Apply(kind, body):
                    make_cache(self._folder, body)
                    self.cluster.apply(kind, body)
                case Adopt(kind, name):
                    self.cluster.give(kind, name, context.owner.reference)
                case Delete(kind, name, uid):
                    self.cluster.delete(kind, name, uid)
                case Publish(step, attempt) if self._store is not None:
                    self.leadership.check()
                    self._store.publish(step, attempt)
        except QuotaError as error:
            self.tell(context, (ControllerEvent("NoRoom", str(error), True),))
            raise

    def tell(self, context: ManifestContext, events: Sequence[ControllerEvent]) -> None:
        """Send what was not sent in the round before; an Event that fails is not worth a round."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        told: set[str] = set()
        for notice in events:
            body = event(context, self.cluster.namespace, **vars(notice), now=now)
            told.add(body["metadata"]["name"])
            if body["metadata"]["name"] not in self._told:
                try:
                    self.cluster.create(ObjectKind.EVENT, body)
                except (OutsideError, UserError, Conflict) as error:
                    self._log(str(error))
        self._told = frozenset(told)


@dataclass
class JobExpiry:
    """The deadline of one Job, `seconds` ahead. `cluster` must have no guard: one that waits to lead is at work too."""

    cluster: ClusterClient
    job: str
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    say: Callable[[str], None]
    _renewed_at: float | None = None
    _begun: tuple[str, float] | None = None
    """When the Job started, in the cluster's words and on our monotonic clock."""

    def renew(self, seconds: int) -> None:
        """Move the deadline on, now and then. Raises OutsideError or Conflict; a missing right is only said."""
        now = self.monotonic()
        if self._renewed_at is not None and now < self._renewed_at + seconds / _RENEWALS:
            return
        found = self.cluster.get(ObjectKind.JOB, self.job)
        started = ((found or {}).get("status") or {}).get("startTime")
        if found is None or started is None:
            return
        deadline = math.ceil(self._age(started, now) + seconds)
        before = found.get("spec", {}).get("activeDeadlineSeconds") or 0
        fields = {"activeDeadlineSeconds": max(before, deadline), "ttlSecondsAfterFinished": KEPT}
        self._apply(found, fields)
        self._renewed_at = now

    def lift(self) -> None:
        """The run has its verdict, and nothing is held: Job and status stay. Raises OutsideError or Conflict."""
        found = self.cluster.get(ObjectKind.JOB, self.job)
        # Set by whichever controller: this one may have begun when all was done.
        if found is not None and "activeDeadlineSeconds" in found.get("spec", {}):
            self._apply(found, {})

    def _age(self, started: str, now: float) -> float:
        """Seconds since the Job started. Our clock on the wall is asked once: later jumps of it change nothing."""
        if self._begun is None or self._begun[0] != started:
            age = self.wall() - datetime.datetime.fromisoformat(started).timestamp()
            self._begun = (started, now - max(0.0, age))
        return now - self._begun[1]

    def _apply(self, found: Body, fields: Body) -> None:
        metadata = {name: found["metadata"][name] for name in ("name", "resourceVersion")}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": fields}
        try:
            self.cluster.apply(ObjectKind.JOB, body)
        except UserError as error:
            self.say(f"{error}; should this controller go for good, its servers hold their GPUs")


@dataclass
class Leadership:
    """`cluster` must have no guard; `identity` is the pod's name, so that a restarted container leads on.

    A controller whose Job takes the place of the leader's asks for the Lease by name; the leader leaves it to that one
    when it renews.
    """

    cluster: ClusterClient
    config: RunConfig
    job: str
    identity: str
    monotonic: Callable[[], float]
    fence: int = 0
    _asked_at: float | None = None
    _record: tuple[Any, ...] | None = None
    _record_since: float = 0.0

    @property
    def holds(self) -> bool:
        return self._asked_at is not None and self.monotonic() < self._asked_at + DURATION - MARGIN

    def check(self) -> None:
        """Raises LeaseLost when another controller may lead by now."""
        if not self.holds:
            raise LeaseLost("the Lease was not renewed in time")

    def acquire(self) -> bool:
        """Take, renew or watch the Lease, one step of it; whether this controller leads now.

        Raises OutsideError when the API server does not answer.
        """
        now = self.monotonic()
        if self._asked_at is not None and now < self._asked_at + RENEW:
            return True
        found = self.cluster.get(ObjectKind.LEASE, lease_name(self.config.name))
        if found is None:
            found, is_new = self.cluster.create(ObjectKind.LEASE, lease(self.config, self._spec(1), None))
            if is_new or _holder(found) == self.identity:
                return self._lead(found, now)
        holder, successor = _holder(found), annotation(found, Label.SUCCESSOR)
        is_promised = successor not in ("", self.identity)
        if holder == self.identity and is_promised:
            self._write(found, {**found["spec"], "holderIdentity": ""}, successor)
        elif holder == self.identity or (holder == "" and not is_promised) or self._is_over(found, now):
            spec, is_mine = found["spec"], holder == self.identity
            taken = self._spec(int(spec.get("leaseTransitions") or 0) + (0 if is_mine else 1))
            if is_mine:
                taken["acquireTime"] = spec.get("acquireTime", taken["acquireTime"])
            if (written := self._write(found, taken)) is not None:
                return self._lead(written, now)
        elif successor != self.identity and self._takes_the_place_of(holder):
            self._write(found, found["spec"], self.identity)
        self._asked_at = None
        return False

    def release(self) -> None:
        """Let the next controller lead at once, instead of after the whole lease."""
        if not self.holds:
            return
        found = self.cluster.get(ObjectKind.LEASE, lease_name(self.config.name))
        self._asked_at = None
        if found is not None and _holder(found) == self.identity:
            self._write(found, {**found["spec"], "holderIdentity": ""})

    def _lead(self, body: Body, asked_at: float) -> bool:
        self.fence = int(body["spec"]["leaseTransitions"])
        self._asked_at = asked_at
        self._record = None
        return True

    def _takes_the_place_of(self, leader: str) -> bool:
        """Whether the leader, by its pod's name, is of an older form of this controller's Job."""
        jobs = self.cluster.list(
            ObjectKind.JOB, f"{Label.RUN}={self.config.name},{Label.COMPONENT}={Component.CONTROLLER}"
        )
        older, _ = other_controllers(self.job, jobs)
        return leader.rpartition("-")[0] in {each.name for each in older}

    def _write(self, found: Body, spec: Body, successor: str = "") -> Body | None:
        version = found["metadata"]["resourceVersion"]
        try:
            return self.cluster.replace(ObjectKind.LEASE, lease(self.config, spec, version, successor))
        except Conflict:
            return None

    def _is_over(self, found: Body, now: float) -> bool:
        spec = found["spec"]
        record = (_holder(found), spec.get("renewTime"), spec.get("leaseTransitions"))
        if record != self._record:
            self._record, self._record_since = record, now
            return False
        return now - self._record_since >= float(spec.get("leaseDurationSeconds") or DURATION)

    def _spec(self, token: int) -> Body:
        # For people who read the Lease; nothing is decided by it.
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(DURATION),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": token,
        }


def _holder(body: Body) -> str:
    return str((body.get("spec") or {}).get("holderIdentity") or "")
