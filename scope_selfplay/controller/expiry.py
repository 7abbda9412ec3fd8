"""What a run holds ends with its controller, also with one that is gone for good: the deadline of the controller's Job.

While a controller is at work it moves that deadline on. One that crashed for the last time, finds no node or cannot
reach the API server does not: its Job ends, the cluster deletes it an hour later, and with it all that it owns. The
time is measured by the cluster; our own clock is only asked how long the Job has been there, and a wrong one makes a
deadline later, or earlier by what it is wrong.
"""

import datetime
import math
from collections.abc import Callable

from scope_selfplay.controller.api import Body, ClusterClient, ObjectKind
from scope_selfplay.errors import UserError

KEPT = 3600
"""Seconds for which the log of a controller that ended without a verdict can be read."""
_RENEWALS = 24


class JobExpiry:
    """The deadline of one Job, `seconds` ahead. `cluster` must have no guard: one that waits to lead is at work too."""

    def __init__(
        self,
        cluster: ClusterClient,
        job: str,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._monotonic = monotonic
        self._wall = wall
        self._say = say
        self._renewed_at: float | None = None
        self._begun: tuple[str, float] | None = None
        """When the Job started, in the cluster's words and on our monotonic clock."""

    def renew(self, seconds: int) -> None:
        """Move the deadline on, now and then. Raises OutsideError or Conflict; a missing right is only said."""
        now = self._monotonic()
        if self._renewed_at is not None and now < self._renewed_at + seconds / _RENEWALS:
            return
        found = self._cluster.get(ObjectKind.JOB, self._job)
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
        found = self._cluster.get(ObjectKind.JOB, self._job)
        # Set by whichever controller: this one may have begun when all was done.
        if found is not None and "activeDeadlineSeconds" in found.get("spec", {}):
            self._apply(found, {})

    def _age(self, started: str, now: float) -> float:
        """Seconds since the Job started. Our clock on the wall is asked once: later jumps of it change nothing."""
        if self._begun is None or self._begun[0] != started:
            age = self._wall() - datetime.datetime.fromisoformat(started).timestamp()
            self._begun = (started, now - max(0.0, age))
        return now - self._begun[1]

    def _apply(self, found: Body, fields: Body) -> None:
        metadata = {name: found["metadata"][name] for name in ("name", "resourceVersion")}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": fields}
        try:
            self._cluster.apply(ObjectKind.JOB, body)
        except UserError as error:
            self._say(f"{error}; should this controller go for good, its servers hold their GPUs")
