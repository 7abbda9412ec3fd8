"""One round of the controller: lead, look, plan, write the status, act, tell.

Nothing is remembered between two rounds but what saves calls: the status as written last, how long conditions
have held, and which Events were sent.
"""

import datetime
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.api import (
    Body,
    ClusterClient,
    Conflict,
    LeaseLost,
    ObjectKind,
    QuotaError,
    Transport,
)
from scope_selfplay.controller.draft import Apply, Create, Delete, NextActions, RunEnd, Say
from scope_selfplay.controller.goals import Markers, desired, steps_of
from scope_selfplay.controller.leadership import Leadership
from scope_selfplay.controller.manifests import ManifestContext, Owner, event, status_map
from scope_selfplay.controller.markers import read_markers
from scope_selfplay.controller.names import RUN, SPEC_HASH, status_name
from scope_selfplay.controller.observed import Observed, observe, owner_of
from scope_selfplay.controller.plan import next_actions
from scope_selfplay.errors import ConfigError, ExitCode, OutsideError, UserError
from scope_selfplay.store import RunFolder


class Inputs(NamedTuple):
    """What the mounted ConfigMaps say now."""

    config: RunConfig
    prompt_hash: str
    packs: tuple[str, ...]
    edited: tuple[str, ...] = ()
    """Settings that differ from those that the run folder was begun with, and `prompts`."""


class Clock(NamedTuple):
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


class Controller:
    """One process that may lead. `read_inputs` is called every round, so that an edit is seen when it is made."""

    def __init__(
        self,
        transport: Transport,
        read_inputs: Callable[[], Inputs],
        *,
        root: Path,
        job: str,
        identity: str,
        clock: Clock,
        rng: Random,
        only_iteration: int | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._read_inputs = read_inputs
        self._inputs = read_inputs()
        _check_name(self._inputs.config.name)
        self._folder = RunFolder(root / self._inputs.config.name)
        self._job = job
        self._only = only_iteration
        self._monotonic = clock.monotonic
        self._log = say
        unguarded = ClusterClient(transport, rng=rng, sleep=clock.sleep)
        self.leadership = Leadership(unguarded, self._inputs.config, identity, clock.monotonic)
        self.cluster = ClusterClient(transport, rng=rng, sleep=clock.sleep, guard=self.leadership.check)
        self._owner: Owner | None = None
        self._status: tuple[Mapping[str, str], str | None] | None = None
        self._since: dict[str, float] = {}
        self._told: frozenset[str] = frozenset()
        self._problem: RunEnd | None = None
        self._markers = Markers(frozenset(), ())

    def round(self) -> RunEnd | None:
        """Look once and do what is next; the verdict when everything has come to its end.

        Trouble outside ends the round, not the controller. What only a person can mend winds the run down; when
        even that is refused, the UserError is raised.
        """
        try:
            if self.leadership.acquire():
                return self._lead()
            self._forget()
        except (OutsideError, Conflict, LeaseLost) as error:
            self._log(f"{error}; looking again")
            # It may have been written, changed or deleted: the next round reads it.
            self._status = None
        except UserError as error:
            if self._problem is not None:
                raise
            self._problem = RunEnd(ExitCode.USER, str(error))
        return None

    def stop(self) -> None:
        """Leave everything as it is, for the next controller to take over at once."""
        with suppress(OutsideError, LeaseLost, Conflict):
            self.leadership.release()

    def _lead(self) -> RunEnd | None:
        edited = self._refresh()
        config, prompt_hash, packs, _ = self._inputs
        author = ManifestContext(config, prompt_hash, packs, self._own_job(), self.leadership.fence)
        observed = self._observe(config)
        if self._problem is None:
            # Read last: a Job that was seen as ended has published by now what it ever will.
            self._markers = read_markers(self._folder, steps_of(config))
        wanted = desired(author, only_iteration=self._only, edited=edited, problem=self._problem)
        plan = next_actions(wanted, observed, self._markers, self._waited())
        now = self._monotonic()
        self._since = {clock: self._since.get(clock, now) for clock in plan.clocks}
        self._write_status(author, plan)
        for action in plan.actions:
            self._act(author, action)
        self._tell(author, plan.says)
        return None if plan.actions else plan.finish

    def _refresh(self) -> tuple[str, ...]:
        """What was edited; inputs that cannot be read any more count as an edit, and the last good ones stay."""
        try:
            fresh = self._read_inputs()
        except UserError as error:
            return (str(error),)
        if not fresh.edited:
            self._inputs = fresh
        return fresh.edited

    def _own_job(self) -> Owner:
        if self._owner is None:
            found = self.cluster.get(ObjectKind.JOB, self._job)
            if found is None:
                raise ConfigError(
                    f"Job {self._job}: there is none in namespace {self.cluster.namespace}; name the Job that this "
                    "controller runs in, everything that it makes will be owned by it"
                )
            self._owner = Owner(self._job, found["metadata"]["uid"])
        return self._owner

    def _observe(self, config: RunConfig) -> Observed:
        selector = f"{RUN}={config.name}"
        if self._status is None:
            found = self.cluster.get(ObjectKind.CONFIG_MAP, status_name(config.name)) or {"metadata": {}}
            self._status = (found.get("data") or {}, found["metadata"].get("resourceVersion"))
        # Pods come after their Jobs: a Job that has ended is never met by pods of before.
        jobs, deployments, services, pods = (
            self.cluster.list(kind, selector)
            for kind in (ObjectKind.JOB, ObjectKind.DEPLOYMENT, ObjectKind.SERVICE, ObjectKind.POD)
        )
        return observe(jobs, pods, deployments, services, self._status[0])

    def _waited(self) -> dict[str, float]:
        now = self._monotonic()
        return {clock: now - since for clock, since in self._since.items()}

    def _write_status(self, author: ManifestContext, plan: NextActions) -> None:
        """Onto the version that was read, and before every deed: a leader of before, which still believes in
        itself, fails here.
        """
        assert self._status is not None
        before, version = self._status
        if dict(before) == dict(plan.status) and not plan.actions:
            return
        written = self.cluster.apply(ObjectKind.CONFIG_MAP, status_map(author, plan.status, version))
        self._status = (plan.status, written["metadata"]["resourceVersion"])
        if plan.status["message"] not in ("", before.get("message")):
            self._log(plan.status["message"])

    def _act(self, author: ManifestContext, action: Create | Apply | Delete) -> None:
        try:
            match action:
                case Create(body):
                    self._create(author, body)
                case Apply(kind, body):
                    self.cluster.apply(kind, body)
                case Delete(kind, name, uid):
                    self.cluster.delete(kind, name, uid)
        except QuotaError as error:
            self._tell(author, (Say("NoRoom", str(error), True),))
            raise

    def _create(self, author: ManifestContext, body: Body) -> None:
        """Create a Job, or adopt the one of this name that is ours and computes the same."""
        found, is_new = self.cluster.create(ObjectKind.JOB, body)
        if is_new:
            return
        spec = (found["metadata"].get("annotations") or {}).get(SPEC_HASH)
        if (owner_of(found), spec) != (author.owner.uid, body["metadata"]["annotations"][SPEC_HASH]):
            name = body["metadata"]["name"]
            raise QuotaError(f"Job {name} exists and was not made by this run's controller; delete it")

    def _tell(self, author: ManifestContext, says: tuple[Say, ...]) -> None:
        """Send what was not sent in the round before; an Event that fails is not worth a round."""
        about = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "namespace": self.cluster.namespace,
            "name": author.owner.name,
            "uid": author.owner.uid,
        }
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        told: set[str] = set()
        for reason, message, warning in says:
            body = event(author, about, reason=reason, message=message, warning=warning, now=now)
            told.add(body["metadata"]["name"])
            if body["metadata"]["name"] not in self._told:
                try:
                    self.cluster.create(ObjectKind.EVENT, body)
                except (OutsideError, UserError, Conflict) as error:
                    self._log(str(error))
        self._told = frozenset(told)

    def _forget(self) -> None:
        """Whoever led in between may have changed everything."""
        self._status = None
        self._since = {}


def _check_name(name: str) -> None:
    # Before Kubernetes 1.34 a Service is named by RFC 1035.
    if not name[0].isalpha():
        raise ConfigError(f"name: found {name!r}; on a cluster a run's id begins with a letter")
