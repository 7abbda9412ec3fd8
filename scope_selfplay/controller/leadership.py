"""One controller at a time: a Lease with a fencing token, safe under clocks that differ, jump or run backwards.

No clock of another machine is ever compared with ours. A candidate takes the Lease over after it saw the record
unchanged for the whole lease on its own monotonic clock; a leader stops writing well before that, by its own
monotonic clock, counted from before it asked. The token is `leaseTransitions`: it only ever grows.
"""

import datetime
from collections.abc import Callable
from typing import Any

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.api import TIMEOUT, Body, ClusterClient, Conflict, LeaseLost, ObjectKind
from scope_selfplay.controller.manifests import lease, lease_name

DURATION = 60.0
RENEW = 20.0
MARGIN = 2 * TIMEOUT
"""Seconds before the lease ends in which nothing is written any more: longer than one request may take."""


class Leadership:
    def __init__(
        self, cluster: ClusterClient, config: RunConfig, identity: str, monotonic: Callable[[], float]
    ) -> None:
        """`cluster` must have no guard; `identity` is the pod's name, so that a restarted container leads on."""
        self.fence = 0
        self.cluster = cluster
        self._config = config
        self._identity = identity
        self._monotonic = monotonic
        self._asked_at: float | None = None
        self._record: tuple[Any, ...] | None = None
        self._record_since = 0.0

    @property
    def holds(self) -> bool:
        return self._asked_at is not None and self._monotonic() < self._asked_at + DURATION - MARGIN

    def check(self) -> None:
        """Raises LeaseLost when another controller may lead by now."""
        if not self.holds:
            raise LeaseLost("the Lease was not renewed in time")

    def acquire(self) -> bool:
        """Take, renew or watch the Lease, one step of it; whether this controller leads now.

        Raises OutsideError when the API server does not answer.
        """
        now = self._monotonic()
        if self._asked_at is not None and now < self._asked_at + RENEW:
            return True
        found = self.cluster.get(ObjectKind.LEASE, lease_name(self._config.name))
        if found is None:
            found, is_new = self.cluster.create(ObjectKind.LEASE, lease(self._config, self._spec(1), None))
            if is_new or _holder(found) == self._identity:
                return self._lead(found, now)
        if _holder(found) in (self._identity, "") or self._is_over(found, now):
            spec, is_mine = found["spec"], _holder(found) == self._identity
            taken = self._spec(int(spec.get("leaseTransitions") or 0) + (0 if is_mine else 1))
            if is_mine:
                taken["acquireTime"] = spec.get("acquireTime", taken["acquireTime"])
            if (written := self._write(found, taken)) is not None:
                return self._lead(written, now)
        self._asked_at = None
        return False

    def release(self) -> None:
        """Let the next controller lead at once, instead of after the whole lease."""
        if not self.holds:
            return
        found = self.cluster.get(ObjectKind.LEASE, lease_name(self._config.name))
        self._asked_at = None
        if found is not None and _holder(found) == self._identity:
            self._write(found, {**found["spec"], "holderIdentity": ""})

    def _lead(self, body: Body, asked_at: float) -> bool:
        self.fence = int(body["spec"]["leaseTransitions"])
        self._asked_at = asked_at
        self._record = None
        return True

    def _write(self, found: Body, spec: Body) -> Body | None:
        version = found["metadata"]["resourceVersion"]
        try:
            return self.cluster.replace(ObjectKind.LEASE, lease(self._config, spec, version))
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
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(DURATION),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": token,
        }


def _holder(body: Body) -> str:
    return str((body.get("spec") or {}).get("holderIdentity") or "")
