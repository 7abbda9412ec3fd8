"""How the Kubernetes API is asked: a few kinds, one way to send, retries with jitter, typed refusals.

`Transport` is the seam: `transport.KubernetesTransport` talks to a real API server, `testing.fake_cluster.FakeCluster`
is one in memory. Neither retries; `ClusterClient` does, for both. What may have happened already is safe to repeat:
names are deterministic, so a second create meets the first one (409) and is read; applies and deletes are idempotent;
a replace that meets its own result counts as done.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, Protocol

from scope_selfplay.base.errors import OutsideError, UserError

Body = dict[str, Any]

FIELD_MANAGER = "scope-controller"
TIMEOUT = 10.0
"""Seconds for one request."""
TRIES = 6
_LONGEST_PAUSE = 15.0
_LOG_BYTES = 16_000_000
VERB_OF_METHOD = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class ObjectKind(StrEnum):
    JOB = "Job"
    POD = "Pod"
    DEPLOYMENT = "Deployment"
    SERVICE = "Service"
    CONFIG_MAP = "ConfigMap"
    LEASE = "Lease"
    EVENT = "Event"

    @property
    def group(self) -> str:
        """The API group, empty for core."""
        return {"Job": "batch", "Deployment": "apps", "Lease": "coordination.k8s.io"}.get(self, "")

    @property
    def resource(self) -> str:
        """The resource as a Role and a path name it."""
        return f"{self.value.lower()}s"

    def path(self, namespace: str, name: str | None = None) -> str:
        prefix = f"/apis/{self.group}/v1" if self.group else "/api/v1"
        path = f"{prefix}/namespaces/{namespace}/{self.resource}"
        return path if name is None else f"{path}/{name}"


VERBS: Mapping[tuple[str, str], frozenset[str]] = {
    ("", "configmaps"): frozenset({"get", "create", "patch"}),
    ("", "events"): frozenset({"create"}),
    ("", "pods"): frozenset({"list"}),
    ("", "pods/log"): frozenset({"get"}),
    ("", "services"): frozenset({"list", "create", "patch", "delete"}),
    ("apps", "deployments"): frozenset({"list", "create", "patch", "delete"}),
    ("batch", "jobs"): frozenset({"get", "list", "watch", "create", "patch", "delete"}),
    ("coordination.k8s.io", "leases"): frozenset({"get", "create", "update"}),
}
"""(API group, resource) -> the verbs that the controller uses: what its Role grants, no more and no less.

`create` beside `patch` because server-side apply asks for both where the object does not exist yet.
"""


@dataclass(frozen=True)
class ApiReply:
    status: int
    headers: Mapping[str, str]
    """Names in small letters."""
    body: Body


class NoReply(Exception):
    """No reply: refused, cut off, or too late. The server may have done what was asked all the same."""


class Transport(Protocol):
    namespace: str

    def send(
        self, method: str, path: str, *, query: Mapping[str, str], body: Body | None, timeout: float
    ) -> ApiReply:
        """One request, `timeout` seconds in all; PATCH with `force` is server-side apply, else a merge.

        Raises NoReply; every status comes back as a ApiReply.
        """
        ...

    def lines(self, path: str, *, query: Mapping[str, str], timeout: float) -> Iterator[bytes]:
        """A log, or a watch: lines until the server ends the stream, for `timeout` seconds at most. Raises NoReply."""
        ...


class QuotaError(OutsideError):
    """A ResourceQuota of the namespace has no room for an object."""


class Conflict(Exception):
    """Somebody else changed the object in between."""


class LeaseLost(Exception):
    """Another controller leads, or may by now."""


class ClusterClient:
    """The namespace of one run. `guard` is asked before every write and may raise LeaseLost."""

    def __init__(
        self,
        transport: Transport,
        *,
        rng: Random,
        sleep: Callable[[float], object],
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self.verbs_used: set[tuple[str, str, str]] = set()
        """(API group, resource, verb) of every request so far."""
        self._guard = guard
        self._transport = transport
        self._rng = rng
        self._sleep = sleep

    @property
    def namespace(self) -> str:
        return self._transport.namespace

    def list(self, kind: ObjectKind, selector: str) -> list[Body]:
        reply, _ = self._ask("GET", kind, None, query={"labelSelector": selector})
        items: list[Body] = reply.body.get("items") or []
        return items

    def get(self, kind: ObjectKind, name: str) -> Body | None:
        reply, _ = self._ask("GET", kind, name, expected=(404,))
        return None if reply.status == 404 else reply.body

    def create(self, kind: ObjectKind, body: Body) -> tuple[Body, bool]:
        """The object as the server has it, and whether it is new; an older one of the same name may differ.

        Raises UserError for a missing right and for what the server does not take; QuotaError, OutsideError.
        """
        name = body["metadata"]["name"]
        reply, _ = self._ask("POST", kind, None, body=body, expected=(409,))
        if reply.status != 409:
            return reply.body, True
        # An Event's name follows from its text: the older one has the same.
        found = self.get(kind, name) if _may_get(kind) else body
        if found is None:
            raise Conflict(f"{kind.resource} {name} existed a moment ago and is gone")
        return found, False

    def apply(self, kind: ObjectKind, body: Body) -> Body:
        """Server-side apply; with metadata.resourceVersion only onto that version, else Conflict."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return self._written("PATCH", kind, body, query, conflicts=(409,))

    def give(self, kind: ObjectKind, name: str, reference: Body) -> None:
        """Make an object the Job's that `reference` names. Raises Conflict where it is gone."""
        body = {"metadata": {"name": name, "ownerReferences": [reference]}}
        self._written("PATCH", kind, body, {}, conflicts=(404, 409))

    def replace(self, kind: ObjectKind, body: Body) -> Body:
        """Replace the version that the body names. Raises Conflict when there is a newer one."""
        return self._written("PUT", kind, body, {}, conflicts=(404, 409))

    def delete(self, kind: ObjectKind, name: str, uid: str) -> None:
        """Delete exactly this object and what it owns; one that is gone or has been replaced is left alone."""
        # Jobs orphan their pods unless told otherwise, and orphaned pods keep their GPUs.
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        self._ask("DELETE", kind, name, body=options, expected=(404, 409))

    def changes(self, kind: ObjectKind, selector: str, seconds: float) -> Iterator[bytes]:
        """A watch, for as long as it lasts, in JSON lines. Raises NoReply."""
        self.verbs_used.add((kind.group, kind.resource, "watch"))
        query = {"labelSelector": selector, "watch": "true", "timeoutSeconds": str(int(seconds))}
        return self._transport.lines(kind.path(self.namespace), query=query, timeout=seconds + TIMEOUT)

    def log(self, pod: str, since: str, *, previous: bool) -> Iterator[bytes]:
        """What a pod's container, or the one before it, said since a time, or a part of a second before; the time is in
        front of each line. Raises NoReply."""
        self.verbs_used.add(("", "pods/log", "get"))
        query = {"container": "main", "timestamps": "true", "limitBytes": str(_LOG_BYTES)}
        query |= ({"sinceTime": since} if since else {}) | ({"previous": "true"} if previous else {})
        path = f"{ObjectKind.POD.path(self.namespace, pod)}/log"
        return self._transport.lines(path, query=query, timeout=TIMEOUT)

    def _written(
        self, method: str, kind: ObjectKind, body: Body, query: Mapping[str, str], conflicts: Collection[int]
    ) -> Body:
        """The object as written; after a conflict what an earlier try of the same write has left, or Conflict."""
        name = body["metadata"]["name"]
        reply, ambiguous = self._ask(method, kind, name, body=body, query=query, expected=conflicts)
        if reply.status not in conflicts:
            return reply.body
        # What the Role does not let it read is seen by the lists of the next round.
        found = self.get(kind, name) if ambiguous and _may_get(kind) else None
        parts = [part for part in ("spec", "data") if part in body]
        if found is None or any(found.get(part) != body[part] for part in parts):
            raise Conflict(f"{kind.resource} {name} was changed by somebody else")
        return found

    def _ask(
        self,
        method: str,
        kind: ObjectKind,
        name: str | None,
        *,
        body: Body | None = None,
        query: Mapping[str, str] | None = None,
        expected: Collection[int] = (),
    ) -> tuple[ApiReply, bool]:
        """The reply, a success or of an `expected` status, and whether an earlier try may have done the write."""
        path = kind.path(self.namespace, name)
        verb = VERB_OF_METHOD.get(method) or ("list" if name is None else "get")
        self.verbs_used.add((kind.group, kind.resource, verb))
        ambiguous, last = False, ""
        for number in range(TRIES):
            if method != "GET":
                self._guard()
            pause = self._rng.uniform(0, min(_LONGEST_PAUSE, 0.5 * 2**number))
            try:
                reply = self._transport.send(method, path, query=query or {}, body=body, timeout=TIMEOUT)
            except NoReply as error:
                ambiguous, last = True, str(error)
            else:
                if reply.status not in (401, 429) and reply.status < 500:
                    if reply.status >= 300 and reply.status not in expected:
                        named = name or ((body or {}).get("metadata") or {}).get("name", "")
                        raise _refusal(reply, f"{verb} {kind.resource} {named}".rstrip())
                    return reply, ambiguous
                # A server error may come after the write; too many requests comes before.
                ambiguous |= reply.status >= 500
                last = f"{reply.status} {_message(reply)}"
                asked = reply.headers.get("retry-after", "")
                pause = max(pause, min(60.0, float(asked)) if asked.isdigit() else 0.0)
            if number < TRIES - 1:
                self._sleep(pause)
        raise OutsideError(
            f"{method} {path}: no success in {TRIES} tries ({last}); see that the API server is well"
        )


def _may_get(kind: ObjectKind) -> bool:
    return "get" in VERBS[kind.group, kind.resource]


def _refusal(reply: ApiReply, what: str) -> Exception:
    text = _message(reply)
    match reply.status:
        case 403 if "exceeded quota" in text:
            return QuotaError(f"{what}: {text}")
        case 403:
            return UserError(f"{what}: {text}; compare the controller's Role with k8s/shared")
        case 409:
            return Conflict(f"{what}: {text}")
        case 400 | 404 | 405 | 413 | 415 | 422:
            return UserError(f"{what}: {text}")
        case _:
            return OutsideError(f"{what}: {reply.status} {text}")


def _message(reply: ApiReply) -> str:
    return " ".join(str(reply.body.get("message") or "no message").split())[:500]
