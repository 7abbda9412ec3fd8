"""The API server of a real cluster: the only place that knows the kubernetes client."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.driver.api import ApiReply, Body, NoReply

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class KubernetesTransport:
    """One namespace of a real cluster."""

    def __init__(self, settings: Any, namespace: str) -> None:
        """`settings` is a `kubernetes.client.Configuration`."""
        self.namespace = namespace
        # Its default retries three times with no pause, and never a POST.
        settings.retries = False
        self._client: Any = client.ApiClient(settings)

    def send(
        self, method: str, path: str, *, query: Mapping[str, str], body: Body | None, timeout: float
    ) -> ApiReply:
        try:
            raw = self._open(method, path, query=query, body=body, timeout=timeout).response
            data, status, headers = raw.data, raw.status, raw.headers
        except (urllib3.exceptions.HTTPError, client.ApiException, OSError) as error:
            raise NoReply(_in_a_line(error)) from error
        return ApiReply(status, {name.lower(): value for name, value in headers.items()}, _parsed(data))

    def lines(self, path: str, *, query: Mapping[str, str], timeout: float) -> Iterator[bytes]:
        try:
            raw = self._open("GET", path, query=query, body=None, timeout=timeout).response
            if raw.status != 200:
                raise NoReply(f"GET {path}: {raw.status}")
            # The last one may have been cut off.
            yield from (line[:-1] for line in raw if line.endswith(b"\n"))
        except (urllib3.exceptions.HTTPError, client.ApiException, OSError) as error:
            raise NoReply(_in_a_line(error)) from error

    def _open(
        self, method: str, path: str, *, query: Mapping[str, str], body: Body | None, timeout: float
    ) -> Any:
        patch = "apply-patch+yaml" if "force" in query else "merge-patch+json"
        content_type = f"application/{patch if method == 'PATCH' else 'json'}"
        sent = self._client.param_serialize(
            method=method,
            resource_path=path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        return self._client.call_api(*sent, _request_timeout=(min(5.0, timeout), timeout))


def connect(namespace: str | None = None) -> KubernetesTransport:
    """The cluster of this pod, else the one of the kubeconfig. Raises ConfigError when there is neither."""
    settings = client.Configuration()
    try:
        if _NAMESPACE_FILE.exists():
            config.load_incluster_config(client_configuration=settings)
            return KubernetesTransport(settings, namespace or _NAMESPACE_FILE.read_text().strip())
        config.load_kube_config(client_configuration=settings)
        _, context = config.list_kube_config_contexts()
    except config.ConfigException as error:
        raise ConfigError(
            f"no cluster: {_in_a_line(error)}; run this in a pod with a ServiceAccount, or set KUBECONFIG"
        ) from None
    return KubernetesTransport(settings, namespace or context["context"].get("namespace") or "default")


def _parsed(data: bytes) -> Body:
    try:
        parsed = json.loads(data or b"{}")
    except ValueError:
        # Proxies in front of an API server answer in HTML.
        return {"message": data[:200].decode(errors="replace")}
    return parsed if isinstance(parsed, dict) else {}


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
