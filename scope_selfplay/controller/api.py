"""How the Kubernetes API is asked: a few kinds, one way to send, retries with jitter, typed refusals.

`Transport` is the seam: `cluster.KubernetesTransport` talks to a real API server, `testing.fake_cluster.FakeCluster`
is one in memory. Neither retries; `ClusterClient` does, for both. What may have happened already is safe to repeat:
names are deterministic, so a second create meets the first one (409) and is read; applies and deletes are idempotent;
a replace that meets its own result counts as done.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, Protocol

from scope_selfplay.errors import OutsideError, UserError

Body = dict[str, Any]

FIELD_MANAGER = "scope-controller"
TIMEOUT = 10.0
"""Seconds for one request."""
TRIES = 6
_LONGEST_PAUSE = 15.0
VERB_OF_METHOD = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

# Without the TTL controller (alpha before Kubernetes 1.21) finished Jobs stay until their owner goes.
_MAY_BE_DROPPED = {"spec.ttlSecondsAfterFinished"}


class ObjectKind(StrEnum):
    JOB = "Job"
    JOB_SET = "JobSet"
    POD = "Pod"
    DEPLOYMENT = "Deployment"
    SERVICE = "Service"
    CONFIG_MAP = "ConfigMap"
    LEASE = "Lease"
    EVENT = "Event"

    @property
    def group(self) -> str:
        """The API group, empty for core."""
        groups = {"Job": "batch", "Deployment": "apps", "Lease": "coordination.k8s.io"}
        return (groups | {"JobSet": "jobset.x-k8s.io"}).get(self, "")

    @property
    def version(self) -> str:
        return "v1alpha2" if self is ObjectKind.JOB_SET else "v1"

    @property
    def resource(self) -> str:
        """The resource as a Role and a path name it."""
        return f"{self.value.lower()}s"

    def path(self, namespace: str, name: str | None = None) -> str:
        prefix = f"/apis/{self.group}/{self.version}" if self.group else "/api/v1"
        path = f"{prefix}/namespaces/{namespace}/{self.resource}"
        return path if name is None else f"{path}/{name}"


VERBS: Mapping[tuple[str, str], frozenset[str]] = {
    ("", "configmaps"): frozenset({"get", "create", "patch"}),
    ("", "events"): frozenset({"create"}),
    ("", "pods"): frozenset({"list"}),
    ("", "services"): frozenset({"list", "create", "patch", "delete"}),
    ("apps", "deployments"): frozenset({"list", "create", "patch", "delete"}),
    ("batch", "jobs"): frozenset({"get", "list", "watch", "create", "patch", "delete"}),
    ("coordination.k8s.io", "leases"): frozenset({"get", "create", "update"}),
    ("jobset.x-k8s.io", "jobsets"): frozenset({"get", "list", "create", "delete"}),
}
"""(API group, resource) -> the verbs that the controller uses: what its Role grants, no more and no less.

`create` beside `patch` because server-side apply asks for both where the object does not exist yet.
"""


@dataclass(frozen=True)
class Reply:
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
    ) -> Reply:
        """One request, `timeout` seconds in all; PATCH is server-side apply.

        Raises NoReply; every status comes back as a Reply.
        """
        ...

    def watch(self, path: str, *, query: Mapping[str, str], timeout: float) -> Iterator[Body]:
        """Changes until the server ends the stream, for `timeout` seconds at most. Raises NoReply."""
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
        items: list[Body] = _accepted(reply, f"list {kind.resource}").get("items") or []
        return items

    def get(self, kind: ObjectKind, name: str) -> Body | None:
        reply, _ = self._ask("GET", kind, name)
        return None if reply.status == 404 else _accepted(reply, f"get {kind.resource} {name}")

    def create(self, kind: ObjectKind, body: Body) -> tuple[Body, bool]:
        """The object as the server has it, and whether it is new; an older one of the same name may differ.

        Raises UserError for a missing right, for what the server does not take, and when it dropped a field of a
        new one (and takes it back); QuotaError, OutsideError.
        """
        name = body["metadata"]["name"]
        reply, _ = self._ask("POST", kind, None, body=body)
        if reply.status == 409:
            if not _may_get(kind):
                # An Event's name follows from its text: the older one has the same.
                return body, False
            found = self.get(kind, name)
            if found is None:
                raise Conflict(f"{kind.resource} {name} existed a moment ago and is gone")
            return found, False
        created = _accepted(reply, f"create {kind.resource} {name}")
        self._check_kept(kind, body, created)
        return created, True

    def apply(self, kind: ObjectKind, body: Body) -> Body:
        """Server-side apply; with metadata.resourceVersion only onto that version, else Conflict."""
        name = body["metadata"]["name"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        reply, ambiguous = self._ask("PATCH", kind, name, body=body, query=query)
        if reply.status == 409:
            return self._own_result(kind, body, ambiguous)
        applied = _accepted(reply, f"apply {kind.resource} {name}")
        self._check_kept(kind, body, applied)
        return applied

    def replace(self, kind: ObjectKind, body: Body) -> Body:
        """Replace the version that the body names. Raises Conflict when there is a newer one."""
        name = body["metadata"]["name"]
        reply, ambiguous = self._ask("PUT", kind, name, body=body)
        if reply.status in (404, 409):
            return self._own_result(kind, body, ambiguous)
        return _accepted(reply, f"update {kind.resource} {name}")

    def delete(self, kind: ObjectKind, name: str, uid: str) -> None:
        """Delete exactly this object and what it owns; one that is gone or has been replaced is left alone."""
        # Jobs orphan their pods unless told otherwise, and orphaned pods keep their GPUs.
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        reply, _ = self._ask("DELETE", kind, name, body=options)
        if reply.status not in (404, 409):
            _accepted(reply, f"delete {kind.resource} {name}")

    def changes(self, kind: ObjectKind, selector: str, seconds: float) -> Iterator[Body]:
        """A watch, for as long as it lasts. Raises NoReply."""
        self.verbs_used.add((kind.group, kind.resource, "watch"))
        query = {"labelSelector": selector, "watch": "true", "timeoutSeconds": str(int(seconds))}
        return self._transport.watch(kind.path(self.namespace), query=query, timeout=seconds + TIMEOUT)

    def _own_result(self, kind: ObjectKind, body: Body, ambiguous: bool) -> Body:
        """After a conflict: what an earlier try of the same write has left, or Conflict."""
        name = body["metadata"]["name"]
        # What the Role does not let it read is seen by the lists of the next round.
        found = self.get(kind, name) if ambiguous and _may_get(kind) else None
        parts = [part for part in ("spec", "data") if part in body]
        if found is None or any(found.get(part) != body[part] for part in parts):
            raise Conflict(f"{kind.resource} {name} was changed by somebody else")
        return found

    def _check_kept(self, kind: ObjectKind, sent: Body, kept: Body) -> None:
        missing = dropped_fields(sent.get("spec"), kept.get("spec"), "spec")
        dropped = [path for path in missing if path not in _MAY_BE_DROPPED]
        if not dropped:
            return
        name, uid = sent["metadata"]["name"], kept["metadata"]["uid"]
        self.delete(kind, name, uid)
        raise UserError(
            f"{kind.value} {name}: this cluster ignores {', '.join(dropped)}; it is too old for these settings "
            "(several nodes need Kubernetes 1.24)"
        )

    def _ask(
        self,
        method: str,
        kind: ObjectKind,
        name: str | None,
        *,
        body: Body | None = None,
        query: Mapping[str, str] | None = None,
    ) -> tuple[Reply, bool]:
        """The reply, and whether an earlier try may have done the write."""
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


def dropped_fields(sent: Any, kept: Any, path: str = "") -> list[str]:
    """The dotted paths that were sent and are not there; values may be written differently by the server."""
    if isinstance(sent, dict):
        if not isinstance(kept, dict):
            return [path] if sent else []
        missing: list[str] = []
        for key, value in sent.items():
            inner = f"{path}.{key}".lstrip(".")
            if key in kept:
                missing += dropped_fields(value, kept[key], inner)
            # False, "" and [] are what a server leaves out.
            elif value not in (False, "", [], {}, None):
                missing.append(inner)
        return missing
    if isinstance(sent, list):
        if not isinstance(kept, list) or len(kept) < len(sent):
            return [path]
        return [
            missing
            for number, (one, other) in enumerate(zip(sent, kept, strict=False))
            for missing in dropped_fields(one, other, f"{path}[{number}]")
        ]
    return []


def _accepted(reply: Reply, what: str) -> Body:
    if reply.status < 300:
        return reply.body
    text = _message(reply)
    match reply.status:
        case 403 if "exceeded quota" in text:
            raise QuotaError(f"{what}: {text}")
        case 403:
            raise UserError(f"{what}: {text}; compare the controller's Role with k8s/shared")
        case 409:
            raise Conflict(f"{what}: {text}")
        case 404 if "jobsets" in what:
            raise UserError(
                f"{what}: {text}; cluster.gang needs JobSet (jobset.x-k8s.io/v1alpha2) and Kueue: install them, or "
                "leave cluster.gang out"
            )
        case 400 | 404 | 405 | 413 | 415 | 422:
            raise UserError(f"{what}: {text}")
        case _:
            raise OutsideError(f"{what}: {reply.status} {text}")


def _message(reply: Reply) -> str:
    return " ".join(str(reply.body.get("message") or "no message").split())[:500]
