"""Servers that a run's config names and the run does not start: do its NetworkPolicies let it out to them? Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.names import Component
from scope_selfplay.k8s.check_references import ManifestProblem
from scope_selfplay.k8s.objects import Body, Pods, matches, pods_of

_PORTS = {"http": 80, "https": 443}
_STAGES = (Component.TRAINER, Component.WORKER)


class ExternalServer(NamedTuple):
    """A URL of the config, under the setting that names it, and the parts of the run that call it."""

    setting: str
    url: str
    callers: tuple[Component, ...]


def outside_problems(config: RunConfig, objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """One problem for each address that some caller's NetworkPolicies keep it from."""
    policies = [body["spec"] for body in objects if body.get("kind") == "NetworkPolicy"]
    services = {body["metadata"]["name"] for body in objects if body.get("kind") == "Service"}
    pods = pods_of(objects)
    for address in addresses_of(config):
        place = urlsplit(address.url)
        port = place.port or _PORTS.get(place.scheme, 80)
        if place.hostname in services:
            # One of the run's own, which has its edges.
            continue
        kept = [
            part.value
            for part in address.callers
            for caller in [each for each in pods if _is_part(each, part)][:1]
            if not _leaves(policies, caller, pods, port)
        ]
        if kept:
            yield ManifestProblem(
                address.setting,
                f"names {address.url}, and no NetworkPolicy lets {' and '.join(kept)} out to port {port}; add the "
                "component external-servers (port 443), or a policy of your own",
            )


def addresses_of(config: RunConfig) -> list[ExternalServer]:
    """Where a server is started by the run, its address replaces that of the config."""
    cluster, judge, partners = config.cluster, config.judge, config.partners
    found: list[tuple[str, str | None, tuple[Component, ...]]] = []
    if judge.kind == "model":
        if not cluster.judge.serve:
            found.append(("judge.endpoint.base_url", judge.endpoint.base_url, _STAGES))
        for role in type(judge.endpoints).model_fields:
            endpoint = getattr(judge.endpoints, role)
            found.append((f"judge.endpoints.{role}.base_url", endpoint and endpoint.base_url, _STAGES))
    if not cluster.retriever.serve:
        found.append(("search.url", config.search.url, _STAGES))
    if not cluster.solver.serve:
        found.append(("partners.solver.base_url", partners.solver.base_url, _STAGES))
    if not cluster.challenger.serve:
        found.append(("partners.challenger.base_url", partners.challenger.base_url, (Component.WORKER,)))
    if config.model.engine == "vllm_server":
        found.append(("model.vllm_url", config.model.vllm_url, (Component.TRAINER,)))
    return [ExternalServer(setting, url, callers) for setting, url, callers in found if url]


def _is_part(pods: Pods, part: Component) -> bool:
    return pods.labels.get("app.kubernetes.io/component") == part.value


def _leaves(policies: Sequence[Body], caller: Pods, pods: Sequence[Pods], port: int) -> bool:
    """Whether `caller` may reach somebody who is no pod of the run on `port`; who that is, no name tells."""
    chosen = [
        each
        for each in policies
        if "Egress" in (each.get("policyTypes") or []) and matches(each.get("podSelector"), caller.labels)
    ]
    return not chosen or any(
        _reaches_others(rule, pods) and _has_port(rule, port)
        for each in chosen
        for rule in each.get("egress") or []
    )


def _reaches_others(rule: Body, pods: Sequence[Pods]) -> bool:
    peers = rule.get("to")
    return not peers or any(
        "ipBlock" in peer
        or "namespaceSelector" in peer
        or not any(matches(peer.get("podSelector"), each.labels) for each in pods)
        for peer in peers
    )


def _has_port(rule: Body, port: int) -> bool:
    ports = rule.get("ports")
    return not ports or any(
        each.get("port") is None
        or (isinstance(each["port"], int) and each["port"] <= port <= each.get("endPort", each["port"]))
        for each in ports
    )
