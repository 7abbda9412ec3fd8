"""A Kubernetes API in memory, for tests of the controller and of what you build on it: `FakeCluster`.

It is a `Transport` like the real one: lists, creates, applies, replaces, deletes and watches the controller's
kinds, with resource versions, conflicts (409), expired watches (410), the controller's Role and quotas (403), checks
of names and owners (422), and garbage collection by owner. Nothing is random, and time passes only when `advance` is
called; `fake_nodes.FakeNodes` is what then makes, runs and ends pods. Faults are injected per call:

    cluster = FakeCluster()
    cluster.faults = lambda call: ApiFault.LOST_AFTER if call.number == 7 else None
"""

import json
import marshal
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any

from scope_selfplay.driver.api import VERB_OF_METHOD, VERBS, ApiReply, Body, NoReply, ObjectKind


class ApiFault(StrEnum):
    """What may happen to one call; `after` means that the server did what was asked."""

    TOO_MANY = "too_many"
    SERVER_ERROR = "server_error"
    SERVER_ERROR_AFTER = "server_error_after"
    LOST = "lost"
    LOST_AFTER = "lost_after"
    KILLED = "killed"
    KILLED_AFTER = "killed_after"


class Killed(BaseException):
    """The controller's process ends here; not an Exception, so that nothing handles it."""


@dataclass(frozen=True)
class ApiCall:
    number: int
    method: str
    kind: ObjectKind
    name: str | None


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


_KINDS = {(kind.group, kind.resource): kind for kind in ObjectKind}
_PATH = re.compile(r"^/(?:api|apis/([a-z.0-9-]+))/v1(?:alpha2)?/namespaces/([^/]+)/([a-z]+)(?:/([^/]+))?$")
_NAME = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")
_SERVICE_NAME = re.compile(r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")
_LABEL = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")


@dataclass(eq=False)
class FakeCluster:
    """One namespace. `quota` limits objects by resource, such as `{"jobs": 2}`; `verbs` are what the Role grants."""

    namespace: str = "ml"
    _: KW_ONLY
    quota: dict[str, int] = field(default_factory=dict)
    verbs: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=lambda: VERBS)
    tick: float = 1.0
    now: float = 0.0
    calls: list[ApiCall] = field(default_factory=list)
    faults: Callable[[ApiCall], ApiFault | None] = lambda call: None
    injected: int = 0
    """How many calls met a fault."""
    said: dict[str, list[bytes]] = field(default_factory=dict)
    """By a pod's name what its container says, each line with its time."""
    created: Counter[tuple[ObjectKind, str]] = field(default_factory=Counter)
    """How often an object was created."""
    on_advance: list[Callable[[float], None]] = field(default_factory=list)
    _objects: dict[ObjectKind, dict[str, Body]] = field(
        default_factory=lambda: {kind: {} for kind in ObjectKind}
    )
    _version: int = 0

    def advance(self, seconds: float) -> None:
        """Let time pass; whoever acts in a cluster acts then, once a tick."""
        while seconds > 0:
            step = min(self.tick, seconds)
            seconds -= step
            self.now += step
            for act in self.on_advance:
                act(step)
            self.collect_garbage()

    def send(
        self, method: str, path: str, *, query: Mapping[str, str], body: Body | None, timeout: float
    ) -> ApiReply:
        kind, name = self._locate(path)
        call = ApiCall(len(self.calls), method, kind, name or (body or {}).get("metadata", {}).get("name"))
        self.calls.append(call)
        fault = self.faults(call)
        self.injected += fault is not None
        match fault:
            case ApiFault.TOO_MANY:
                return ApiReply(429, {"retry-after": "1"}, {"message": "too many requests"})
            case ApiFault.SERVER_ERROR:
                return ApiReply(500, {}, {"message": "etcd leader changed"})
            case ApiFault.LOST:
                raise NoReply("connection refused")
            case ApiFault.KILLED:
                raise Killed
        reply = self._answer(method, kind, name, query, _copy(body))
        match fault:
            case ApiFault.SERVER_ERROR_AFTER:
                return ApiReply(500, {}, {"message": "timed out waiting for the result"})
            case ApiFault.LOST_AFTER:
                self.advance(timeout)
                raise NoReply("read timed out")
            case ApiFault.KILLED_AFTER:
                raise Killed
        return reply

    def lines(self, path: str, *, query: Mapping[str, str], timeout: float) -> Iterator[bytes]:
        """What a pod said since the second of `sinceTime`, nothing of containers that were before; or a watch: the
        objects of a kind, with which it begins and ends here."""
        if path.endswith("/log"):
            since, said = query.get("sinceTime", "")[:19].encode(), self.said.get(path.split("/")[-2])
            if said is None or "previous" in query:
                raise NoReply(f"GET {path}: 400")
            yield from (line for line in said if line[:19] >= since)
            return
        kind, _ = self._locate(path)
        self.calls.append(ApiCall(len(self.calls), "WATCH", kind, None))
        if "watch" not in self.verbs[kind.group, kind.resource]:
            raise NoReply(f"GET {path}: 403")
        for body in self.objects(kind).values():
            yield json.dumps({"type": "ADDED", "object": body}).encode()

    def objects(self, kind: ObjectKind) -> dict[str, Body]:
        """Everything of a kind by name; changing it changes the cluster."""
        return dict(self._objects[kind])

    def put(self, kind: ObjectKind, body: Body) -> Body:
        """Create an object as somebody else would, past faults, quotas and checks."""
        self._version += 1
        metadata = {
            "uid": f"uid-{self._version}",
            "generation": 1,
            "creationTimestamp": f"{self.now:012.0f}",
            **body["metadata"],
            "resourceVersion": str(self._version),
        }
        stored: Body = _copy({**body, "metadata": metadata})
        self._objects[kind][metadata["name"]] = stored
        self.created[kind, metadata["name"]] += 1
        return stored

    def touch(self, kind: ObjectKind, name: str) -> None:
        """A new version, after a change of an object that `objects` gave out."""
        self._version += 1
        self._objects[kind][name]["metadata"]["resourceVersion"] = str(self._version)

    def remove(self, kind: ObjectKind, name: str) -> None:
        """Delete at once what has no pods of its own, and ask pods to end."""
        body = self._objects[kind].get(name)
        if body is None:
            return
        if kind is ObjectKind.POD and body.get("status", {}).get("phase") in ("Pending", "Running"):
            body["metadata"].setdefault("deletionTimestamp", f"{self.now:.0f}")
            self.touch(kind, name)
        else:
            del self._objects[kind][name]

    def erase(self, kind: ObjectKind, name: str) -> None:
        """What a kubelet does when a pod has ended: the object goes."""
        self._objects[kind].pop(name, None)

    def collect_garbage(self) -> None:
        """Delete what is owned by objects that are gone; again, until nothing is."""
        every = [(kind, name, body) for kind, found in self._objects.items() for name, body in found.items()]
        uids = {body["metadata"]["uid"] for _, _, body in every}
        for kind, name, body in every:
            owners = body["metadata"].get("ownerReferences") or []
            if owners and not any(owner["uid"] in uids for owner in owners):
                self.remove(kind, name)

    def _answer(
        self, method: str, kind: ObjectKind, name: str | None, query: Mapping[str, str], body: Body | None
    ) -> ApiReply:
        try:
            self._check_rights(method, kind, name)
            match method:
                case "GET" if name is None:
                    return ApiReply(200, {}, self._list(kind, query.get("labelSelector", "")))
                case "GET":
                    return ApiReply(200, {}, _copy(self._found(kind, name)))
                case "DELETE":
                    return self._delete(kind, name, body or {})
            assert body is not None
            match method:
                case "POST":
                    return ApiReply(201, {}, _copy(self._create(kind, body)))
                case "PUT":
                    found = self._found(kind, name)
                    _check_version(found, body)
                    found["metadata"]["annotations"] = body["metadata"].get("annotations") or {}
                    parts = {key: value for key, value in body.items() if key != "metadata"}
                    return ApiReply(200, {}, _copy(self._change(kind, found, parts)))
                case "PATCH":
                    if "force" not in query:
                        self._found(kind, name)
                    return ApiReply(200, {}, _copy(self._apply(kind, body)))
            raise Refusal(405, f"{method} is not known")
        except Refusal as error:
            return ApiReply(error.status, {}, {"message": str(error)})

    def _check_rights(self, method: str, kind: ObjectKind, name: str | None) -> None:
        verbs = {VERB_OF_METHOD.get(method) or ("list" if name is None else "get")}
        if method == "PATCH" and name not in self._objects[kind]:
            verbs.add("create")
        for verb in sorted(verbs - self.verbs[kind.group, kind.resource]):
            raise Refusal(403, f'{kind.resource} is forbidden: cannot {verb} in API group "{kind.group}"')

    def _list(self, kind: ObjectKind, selector: str) -> Body:
        wanted = dict(part.split("=", 1) for part in selector.split(",") if part).items()
        bodies = self.objects(kind).values()
        found = [body for body in bodies if wanted <= (body["metadata"].get("labels") or {}).items()]
        return {
            "metadata": {"resourceVersion": str(self._version)},
            "items": marshal.loads(marshal.dumps(found)),
        }

    def _create(self, kind: ObjectKind, body: Body) -> Body:
        name = body["metadata"]["name"]
        if name in self._objects[kind]:
            raise Refusal(409, f'{kind.resource} "{name}" already exists')
        _check(kind, body)
        limit = self.quota.get(kind.resource)
        if limit is not None and len(self.objects(kind)) >= limit:
            why = f"exceeded quota: small, limited: {limit}"
            raise Refusal(403, f'{kind.resource} "{name}" is forbidden: {why}')
        body["metadata"].pop("resourceVersion", None)
        return self.put(kind, body)

    def _apply(self, kind: ObjectKind, body: Body) -> Body:
        name = body["metadata"]["name"]
        if name not in self._objects[kind]:
            if "resourceVersion" in body["metadata"]:
                raise Refusal(409, f'{kind.resource} "{name}": the version asked for is gone')
            return self._create(kind, body)
        found = self._found(kind, name)
        _check_version(found, body)
        _check(kind, body)
        for part in ("labels", "annotations", "ownerReferences"):
            if part in body["metadata"]:
                found["metadata"][part] = body["metadata"][part]
        return self._change(kind, found, {key: body[key] for key in ("spec", "data") if key in body})

    def _change(self, kind: ObjectKind, found: Body, parts: Body) -> Body:
        if any(found.get(key) != value for key, value in parts.items()):
            found["metadata"]["generation"] += 1
        found.update(parts)
        self.touch(kind, found["metadata"]["name"])
        return found

    def _delete(self, kind: ObjectKind, name: str | None, options: Body) -> ApiReply:
        found = self._found(kind, name)
        uid = (options.get("preconditions") or {}).get("uid")
        if uid is not None and uid != found["metadata"]["uid"]:
            raise Refusal(409, f'{kind.resource} "{name}": the uid asked for is another one')
        self.remove(kind, found["metadata"]["name"])
        if options.get("propagationPolicy") == "Background":
            self.collect_garbage()
        return ApiReply(200, {}, {"status": "Success"})

    def _found(self, kind: ObjectKind, name: str | None) -> Body:
        found = self._objects[kind].get(name or "")
        if found is None:
            raise Refusal(404, f'{kind.resource} "{name}" not found')
        return found

    def _locate(self, path: str) -> tuple[ObjectKind, str | None]:
        match = _PATH.match(path)
        assert match is not None, path
        group, namespace, resource, name = match.groups()
        assert namespace == self.namespace, path
        return _KINDS[group or "", resource], name


def _check_version(found: Body, body: Body) -> None:
    asked = body["metadata"].get("resourceVersion")
    if asked is not None and asked != found["metadata"]["resourceVersion"]:
        raise Refusal(409, "the object has been modified")


def _check(kind: ObjectKind, body: Body) -> None:
    metadata = body["metadata"]
    pattern = _SERVICE_NAME if kind is ObjectKind.SERVICE else _NAME
    if not pattern.match(metadata["name"]):
        raise Refusal(422, f"metadata.name: invalid value {metadata['name']!r}")
    for key, value in (metadata.get("labels") or {}).items():
        if not _LABEL.match(value):
            raise Refusal(422, f"metadata.labels[{key}]: invalid value {value!r}")
    controllers = [owner for owner in metadata.get("ownerReferences") or [] if owner.get("controller")]
    if len(controllers) > 1:
        raise Refusal(422, "metadata.ownerReferences: only one reference can have controller set to true")


def _copy(value: Any) -> Any:
    """What a wire makes of it."""
    return json.loads(json.dumps(value))
