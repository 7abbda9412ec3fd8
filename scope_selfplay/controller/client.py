"""Every API call of the controller: with a timeout, retried with jitter, read back, refused in one clear line.

What may have happened already is safe to repeat: names are deterministic, so a second create meets the first one
(409) and is read; applies and deletes are idempotent; a replace that meets its own result counts as done.
"""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from scope_selfplay.controller.api import (
    VERBS,
    Body,
    ClusterError,
    Conflict,
    ForbiddenError,
    InvalidError,
    NoReply,
    ObjectKind,
    QuotaError,
    Reply,
    Transport,
)

FIELD_MANAGER = "scope-controller"
TIMEOUT = 10.0
"""Seconds for one request."""
TRIES = 6
_LONGEST_PAUSE = 15.0
_APPLY = "application/apply-patch+yaml"
_JSON = "application/json"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

# Without the TTL controller (alpha before Kubernetes 1.21) finished Jobs stay until their owner goes.
_MAY_BE_DROPPED = {"spec.ttlSecondsAfterFinished"}


class ClusterClient:
    """The namespace of one run. `guard` is asked before every write and may raise LeaseLost."""

    def __init__(
        self,
        transport: Transport,
        *,
        rng: Random,
        sleep: Callable[[float], None],
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self.guard = guard
        self.calls = 0
        self.verbs_used: set[tuple[str, str, str]] = set()
        self._transport = transport
        self._rng = rng
        self._sleep = sleep

    @property
    def namespace(self) -> str:
        return self._transport.namespace

    def list(self, kind: ObjectKind, selector: str) -> list[Body]:
        reply = self._ask("GET", kind, None, query={"labelSelector": selector}, verb="list").reply
        items: list[Body] = _accepted(reply, f"list {kind.resource}").get("items") or []
        return items

    def get(self, kind: ObjectKind, name: str) -> Body | None:
        reply = self._ask("GET", kind, name, verb="get").reply
        return None if reply.status == 404 else _accepted(reply, f"get {kind.resource} {name}")

    def create(self, kind: ObjectKind, body: Body) -> tuple[Body, bool]:
        """The object as the server has it, and whether it is new; an older one of the same name may differ.

        Raises InvalidError when the server dropped a field of a new one (and takes it back), QuotaError,
        ForbiddenError, ClusterError.
        """
        name = body["metadata"]["name"]
        asked = self._ask("POST", kind, None, body=body)
        if asked.reply.status == 409:
            if not _may_get(kind):
                # An Event's name follows from what it says: the older one says the same.
                return body, False
            found = self.get(kind, name)
            if found is None:
                raise Conflict(f"{kind.resource} {name} existed a moment ago and is gone")
            return found, False
        created = _accepted(asked.reply, f"create {kind.resource} {name}")
        self._check_kept(kind, body, created)
        return created, True

    def apply(self, kind: ObjectKind, body: Body) -> Body:
        """Server-side apply; with metadata.resourceVersion only onto that version, else Conflict."""
        name = body["metadata"]["name"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        asked = self._ask("PATCH", kind, name, body=body, query=query, content_type=_APPLY)
        if asked.reply.status == 409:
            return self._own_result(kind, body, asked.ambiguous)
        applied = _accepted(asked.reply, f"apply {kind.resource} {name}")
        self._check_kept(kind, body, applied)
        return applied

    def replace(self, kind: ObjectKind, body: Body) -> Body:
        """Replace the version that the body names. Raises Conflict when there is a newer one."""
        name = body["metadata"]["name"]
        asked = self._ask("PUT", kind, name, body=body)
        if asked.reply.status in (404, 409):
            return self._own_result(kind, body, asked.ambiguous)
        return _accepted(asked.reply, f"update {kind.resource} {name}")

    def delete(self, kind: ObjectKind, name: str, uid: str) -> None:
        """Delete exactly this object and what it owns; one that is gone or has been replaced is left alone."""
        # Jobs orphan their pods unless told otherwise, and orphaned pods keep their GPUs.
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        reply = self._ask("DELETE", kind, name, body=options).reply
        if reply.status not in (404, 409):
            _accepted(reply, f"delete {kind.resource} {name}")

    def changes(self, kind: ObjectKind, selector: str, seconds: float) -> Iterator[Body]:
        """A watch, for as long as it lasts. Raises NoReply."""
        self.calls += 1
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
        raise InvalidError(
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
        content_type: str = _JSON,
        verb: str | None = None,
    ) -> "_Asked":
        path = kind.path(self.namespace, name)
        self.verbs_used.add((kind.group, kind.resource, verb or _VERBS[method]))
        ambiguous, last = False, ""
        for number in range(TRIES):
            if method != "GET":
                self.guard()
            self.calls += 1
            pause = self._rng.uniform(0, min(_LONGEST_PAUSE, 0.5 * 2**number))
            try:
                reply = self._transport.send(
                    method, path, query=query or {}, body=body, content_type=content_type, timeout=TIMEOUT
                )
            except NoReply as error:
                ambiguous, last = True, str(error)
            else:
                if reply.status not in (401, 429) and reply.status < 500:
                    return _Asked(reply, ambiguous)
                # A server error may come after the write; too many requests comes before.
                ambiguous |= reply.status >= 500
                last = f"{reply.status} {_message(reply)}"
                pause = max(pause, _retry_after(reply))
            if number < TRIES - 1:
                self._sleep(pause)
        raise ClusterError(
            f"{method} {path}: no success in {TRIES} tries ({last}); see that the API server is well"
        )


class _Asked:
    def __init__(self, reply: Reply, ambiguous: bool) -> None:
        self.reply = reply
        self.ambiguous = ambiguous
        """An earlier try may have done the write."""


def _may_get(kind: ObjectKind) -> bool:
    return "get" in VERBS[kind.group, kind.resource]


def dropped_fields(sent: Any, kept: Any, path: str = "") -> list[str]:
    """The dotted paths that were sent and are not there; values may be written differently by the server."""
    if isinstance(sent, dict):
        if not isinstance(kept, dict):
            return [path] if sent else []
        return [
            missing
            for key, value in sent.items()
            for missing in _dropped_key(key, value, kept, f"{path}.{key}".lstrip("."))
        ]
    if isinstance(sent, list):
        if not isinstance(kept, list) or len(kept) < len(sent):
            return [path]
        return [
            missing
            for number, (one, other) in enumerate(zip(sent, kept, strict=False))
            for missing in dropped_fields(one, other, f"{path}[{number}]")
        ]
    return []


def _dropped_key(key: str, value: Any, kept: Body, path: str) -> list[str]:
    # False, "" and [] are what a server leaves out.
    if key not in kept:
        return [path] if value not in (False, "", [], {}, None) else []
    return dropped_fields(value, kept[key], path)


def _accepted(reply: Reply, what: str) -> Body:
    if reply.status < 300:
        return reply.body
    text = _message(reply)
    match reply.status:
        case 403 if "exceeded quota" in text:
            raise QuotaError(f"{what}: {text}")
        case 403:
            raise ForbiddenError(f"{what}: {text}; compare the controller's Role with k8s/base")
        case 409:
            raise Conflict(f"{what}: {text}")
        case 400 | 404 | 405 | 413 | 415 | 422:
            raise InvalidError(f"{what}: {text}")
        case _:
            raise ClusterError(f"{what}: {reply.status} {text}")


def _message(reply: Reply) -> str:
    return " ".join(str(reply.body.get("message") or "no message").split())[:500]


def _retry_after(reply: Reply) -> float:
    """Seconds that the server asks for, 60 at most."""
    value = reply.headers.get("retry-after", "")
    return min(60.0, float(value)) if value.isdigit() else 0.0
