"""Whether what training reports to has its key and its way out, and whether Secrets that a run names are there."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.manifests import COMPONENT, Component
from scope_selfplay.k8s.kubectl import Kubectl
from scope_selfplay.k8s.objects import Body, ManifestProblem, Pods, allows, pods_of

_HTTPS = 443
TRACKERS: Mapping[str, tuple[str, ...]] = {
    "wandb": ("WANDB_API_KEY", "WANDB_MODE"),
    "comet_ml": ("COMET_API_KEY", "COMET_MODE"),
    "mlflow": ("MLFLOW_TRACKING_URI",),
}
"""Trackers that need a variable, by transformers' names: one of these tells them where or who they are."""
_OFFLINE = {"WANDB_MODE": "offline", "COMET_MODE": "offline"}
_ELSEWHERE = ("wandb", "comet_ml")
"""They call hosts outside the cluster over HTTPS. Where an MLflow is, its address says, which a Secret may hold."""


def tracking_problems(config: RunConfig, objects: Sequence[Body]) -> Iterator[ManifestProblem]:
    """Training pods that do not know a tracker's key, or may not call it. Pure."""
    trainers = [pods for pods in pods_of(objects) if pods.labels.get(COMPONENT) == Component.TRAINER]
    policies = [body for body in objects if body.get("kind") == "NetworkPolicy"]
    for tracker in config.tracking.report_to if trainers else ():
        names = TRACKERS.get(tracker, ())
        values, sealed = _environment(trainers[0])
        where = f"tracking.report_to {tracker}"
        if names and not sealed and not values.keys() & set(names):
            yield ManifestProblem(
                where,
                f"needs {names[0]} in training pods; create a Secret with this key, and name it in "
                "cluster.tracking_secret",
            )
        is_offline = any(values.get(name) == value for name, value in _OFFLINE.items() if name in names)
        is_open = allows(policies, "Egress", trainers[0], None, _HTTPS, pods_of(objects))
        if tracker in _ELSEWHERE and not is_offline and not is_open:
            message = f"is outside the cluster, and no NetworkPolicy lets training out to port {_HTTPS}"
            yield ManifestProblem(where, f"{message}; add the component tracking")


def _environment(pods: Pods) -> tuple[dict[str, str], bool]:
    """The variables of a pod, empty where a value comes from elsewhere; and whether it takes a whole Secret's."""
    containers = list(pods.containers)
    variables = [each for container in containers for each in container.get("env") or []]
    whole = any(container.get("envFrom") for container in containers)
    return {each["name"]: each.get("value", "") for each in variables}, whole


class NamedSecret(NamedTuple):
    """A Secret that a run names: its keys, each with the option of kubectl that fills it."""

    name: str
    keys: Mapping[str, str]

    @property
    def advice(self) -> str:
        return (
            " ".join(["kubectl create secret generic", self.name, *self.keys.values()])
            if self.keys
            else "create it"
        )


def secrets_of(config: RunConfig) -> dict[str, NamedSecret]:
    """By the setting that names it. What is in a registry's is not ours to say. Pure."""
    named = config.cluster
    trackers = [name for tracker in config.tracking.report_to for name in TRACKERS.get(tracker, ())[:1]]
    keys: dict[str, tuple[str | None, dict[str, str]]] = {
        "key_secret": (named.key_secret, {"token": "--from-literal=token=$(openssl rand -hex 32)"}),
        "tracking_secret": (named.tracking_secret, {name: f"--from-file={name}=FILE" for name in trackers}),
        "pull_secret": (named.pull_secret, {}),
    }
    return {
        setting: NamedSecret(name, filled) for setting, (name, filled) in keys.items() if name is not None
    }


def secret_problems(config: RunConfig, cluster: Kubectl) -> Iterator[ManifestProblem]:
    """Secrets that the run names and the namespace lacks, or whose keys are others. Raises ConfigError where they may
    not be seen."""
    for setting, wanted in secrets_of(config).items():
        secret, what = cluster.get("secrets", wanted.name), f"names the Secret {wanted.name}, which"
        if secret is None:
            message = f"{what} the namespace does not have; {wanted.advice}"
            yield ManifestProblem(f"cluster.{setting}", message)
        elif lacking := [key for key in wanted.keys if key not in (secret.get("data") or {})]:
            message = f"{what} has no key {', '.join(lacking)}; delete it, then {wanted.advice}"
            yield ManifestProblem(f"cluster.{setting}", message)
