"""What each stage of a run takes, and whether quotas allow it.

What this user may not look at is a note, not a fault: rights in one namespace are enough to run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from scope_selfplay.config import RunConfig
from scope_selfplay.errors import ConfigError
from scope_selfplay.k8s.check_references import ManifestProblem
from scope_selfplay.k8s.kubectl import Kubectl
from scope_selfplay.k8s.objects import Body, name_of, pods_of, stage_objects

_SUFFIXES = {
    **{f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTPE", start=1)},
    **{letter: 1e3**power for power, letter in enumerate("kMGTPE", start=1)},
    "m": 1e-3,
    "u": 1e-6,
    "n": 1e-9,
}
_ENDED = ("Succeeded", "Failed")
Amounts = dict[str, float]
"""Resource as a ResourceQuota calls it -> amount."""


def amount(quantity: Any) -> float:
    """A Kubernetes quantity as a number: `500m` is 0.5, `1Gi` 1073741824."""
    text = str(quantity)
    for suffix, factor in _SUFFIXES.items():
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)


def peak_gpus(config: RunConfig) -> dict[str, int]:
    """GPUs of each stage, its servers included."""
    gpus = f"requests.{config.cluster.gpu_resource}"
    return {stage: int(taken(bodies, ()).get(gpus, 0)) for stage, bodies in stage_objects(config, ()).items()}


def taken(objects: Sequence[Body], pods: Sequence[Body]) -> Amounts:
    """What these Jobs, Deployments and Services take of a quota while all of them run, and these pods besides."""
    found: Amounts = {}
    for body in objects:
        kind = str(body["kind"]).lower()
        _add(found, {"job": "count/jobs.batch", "deployment": "count/deployments.apps"}.get(kind), 1)
        if kind == "service":
            _add(found, "services", 1)
            _add(found, "count/services", 1)
        for each in pods_of([body]):
            spec = body["spec"]
            _add_pod(found, each.spec, int(spec.get("parallelism", spec.get("replicas", 1))))
    for body in pods:
        _add_pod(found, body["spec"], 1)
    return found


def quota_problems(config: RunConfig, objects: Sequence[Body], cluster: Kubectl) -> Iterator[ManifestProblem]:
    """Quotas that some stage does not fit into beside what others use. Raises ConfigError where none may be seen."""
    quotas = [each for each in cluster.objects("resourcequotas") if not _is_scoped(each)]
    if not quotas:
        return
    needs = _needs(config, objects)
    # A run that is there already must not count as somebody else.
    ours = _taken_already(config, cluster)
    for quota in quotas:
        status = quota.get("status") or {}
        for name, limit in (status.get("hard") or {}).items():
            others = max(0.0, amount((status.get("used") or {}).get(name, 0)) - ours.get(name, 0.0))
            yield from _too_much(quota, name, limit, needs, others)


def own_quota_problems(config: RunConfig, objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """Quotas that the run brings itself, with nobody else in the namespace. Pure."""
    quotas = [each for each in objects if each.get("kind") == "ResourceQuota" and not _is_scoped(each)]
    needs = _needs(config, objects) if quotas else {}
    for quota in quotas:
        for name, limit in (quota["spec"].get("hard") or {}).items():
            yield from _too_much(quota, name, limit, needs, 0.0)


def _needs(config: RunConfig, objects: Sequence[Body]) -> Mapping[str, Amounts]:
    """By stage, what is alive at once; the controller is among `objects`."""
    controller = [body for body in objects if name_of(body) == f"Job/{config.name}-controller"]
    return {stage: taken([*controller, *bodies], ()) for stage, bodies in stage_objects(config, ()).items()}


def _too_much(
    quota: Body, name: str, limit: Any, needs: Mapping[str, Amounts], others: float
) -> Iterator[ManifestProblem]:
    stage = max(needs, key=lambda each: needs[each].get(name, 0.0))
    wanted = needs[stage].get(name, 0.0)
    if wanted > amount(limit) - others:
        yield ManifestProblem(
            name_of(quota),
            f"allows {limit} {name}, others use {_shown(others)}, the stage {stage} takes {_shown(wanted)}",
        )


def seen(what: str, look: Callable[[], Iterator[ManifestProblem]]) -> tuple[list[ManifestProblem], list[str]]:
    """The problems, or the note that this user may not look."""
    try:
        return list(look()), []
    except ConfigError as error:
        return [], [f"{what} not checked: {error}"]


def _add_pod(found: Amounts, spec: Body, count: int) -> None:
    _add(found, "pods", count)
    _add(found, "count/pods", count)
    for kind in ("requests", "limits"):
        for resource, each in _of_pod(spec, kind).items():
            _add(found, f"{kind}.{resource}", each * count)
            if kind == "requests" and resource in ("cpu", "memory"):
                _add(found, resource, each * count)


def _of_pod(spec: Body, kind: str) -> Mapping[str, float]:
    """Containers run together; of those before them the largest counts, where it is larger than all."""
    together: Amounts = {}
    for each in spec.get("containers") or []:
        for resource, quantity in ((each.get("resources") or {}).get(kind) or {}).items():
            _add(together, resource, amount(quantity))
    for each in spec.get("initContainers") or []:
        for resource, quantity in ((each.get("resources") or {}).get(kind) or {}).items():
            together[resource] = max(together.get(resource, 0.0), amount(quantity))
    return together


def _taken_already(config: RunConfig, cluster: Kubectl) -> Amounts:
    own = f"scope/run={config.name}"
    living = [
        each for each in cluster.objects("pods", own) if (each.get("status") or {}).get("phase") not in _ENDED
    ]
    found = taken((), living)
    for kind, name in (("jobs", "count/jobs.batch"), ("deployments", "count/deployments.apps")):
        _add(found, name, len(cluster.objects(kind, own)))
    services = len(cluster.objects("services", own))
    return {**found, "services": services, "count/services": services}


def _is_scoped(quota: Body) -> bool:
    """One that counts only some pods, such as those of a priority: which ones is the cluster's to say."""
    spec = quota.get("spec") or {}
    return bool(spec.get("scopes") or spec.get("scopeSelector"))


def _add(found: Amounts, name: str | None, more: float) -> None:
    if name is not None:
        found[name] = found.get(name, 0.0) + more


def _shown(number: float) -> str:
    gibi = 2.0**30
    return f"{number / gibi:.0f}Gi" if number >= gibi else f"{number:g}"
