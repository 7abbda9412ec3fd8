"""The Kubernetes API as the controller sees it: a few kinds, one way to send, typed refusals.

`Transport` is the seam: `cluster.KubernetesTransport` talks to a real API server, `testing.fake_cluster.FakeCluster` is
one in memory. Neither retries; `client.ClusterClient` does, for both.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from scope_selfplay.errors import OutsideError, UserError

Body = dict[str, Any]


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
        groups = {
            ObjectKind.JOB: "batch",
            ObjectKind.DEPLOYMENT: "apps",
            ObjectKind.LEASE: "coordination.k8s.io",
        }
        return groups.get(self, "")

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
    ("", "services"): frozenset({"list", "create", "patch", "delete"}),
    ("apps", "deployments"): frozenset({"list", "create", "patch", "delete"}),
    ("batch", "jobs"): frozenset({"get", "list", "watch", "create", "delete"}),
    ("coordination.k8s.io", "leases"): frozenset({"get", "create", "update"}),
}
"""(API group, resource) -> the verbs that the controller uses: what its Role grants, no more and no less.

`create` beside `patch` because server-side apply asks for both where the object does not exist yet.
"""


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in small letters."""
    body: Body


class NoReply(Exception):
    """No reply: refused, cut off, or too late. The server may have done what was asked all the same."""


class Transport(Protocol):
    namespace: str

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: Body | None,
        content_type: str,
        timeout: float,
    ) -> Reply:
        """One request, `timeout` seconds in all. Raises NoReply; every status comes back as a Reply."""
        ...

    def watch(self, path: str, *, query: Mapping[str, str], timeout: float) -> Iterator[Body]:
        """Changes until the server ends the stream, for `timeout` seconds at most. Raises NoReply."""
        ...


class ClusterError(OutsideError):
    """The API server could not be reached, or went on failing."""


class QuotaError(OutsideError):
    """A ResourceQuota of the namespace has no room for an object."""


class ForbiddenError(UserError):
    """The controller's Role lacks a right, or a policy refuses an object."""


class InvalidError(UserError):
    """The API server does not take an object, or keeps less of it than was sent."""


class Conflict(Exception):
    """Somebody else changed the object in between."""


class LeaseLost(Exception):
    """Another controller leads, or may by now."""
