"""The bodies of everything that the controller creates, as plain dicts. Pure: equal arguments, equal bodies.

Every object carries the run's labels and is owned by the controller's Job, so that deleting that Job frees
everything. Two hashes go with each body: `scope/spec-hash` says what it computes, `scope/body-hash` how.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from scope_selfplay.config import RunConfig, StageConfig
from scope_selfplay.controller.names import (
    ATTEMPT,
    BODY_HASH,
    FENCE,
    JOB_NAMES,
    PORT,
    RUN,
    SERVER,
    SHARD,
    SHARDS,
    SPEC_HASH,
    Component,
    RunStep,
    StageShard,
    job_name,
    lease_name,
    status_name,
)
from scope_selfplay.controller.pods import (
    CONFIG_FOLDER,
    Body,
    Program,
    gpus_of,
    pod_template,
    server_program,
)
from scope_selfplay.controller.servers import RUNS, Server, endpoint_settings
from scope_selfplay.store import Stage

_TRAINS = (Stage.CHALLENGER, Stage.SOLVER)
_RENDEZVOUS_PORT = 29500
_GRACE = 30
"""Seconds between SIGTERM and SIGKILL of a server."""
_RETRIEVER_GRACE = 75
"""It answers what has arrived within its deadline, 60 s, and needs up to ten seconds more to end."""
_API_VERSIONS = {"Job": "batch/v1", "Deployment": "apps/v1"}


class Owner(NamedTuple):
    """The controller's Job."""

    name: str
    uid: str


class ManifestContext(NamedTuple):
    """In whose name objects are written, and from which inputs."""

    config: RunConfig
    prompt_hash: str
    packs: tuple[str, ...]
    """Prompt packs, each in a ConfigMap `prompts-<pack>`: the run's domain and every one that it extends."""
    owner: Owner
    fence: int
    """The Lease's token; a later leader has a higher one."""


class StageAttempt(NamedTuple):
    """One try of a step; `share` is None where one Job does it all."""

    step: RunStep
    number: int
    share: StageShard | None = None


def stage_job(author: ManifestContext, attempt: StageAttempt, servers: tuple[Server, ...]) -> Body:
    """The Job of one attempt: one pod per node, never restarted in place; the controller decides about the next."""
    config, step = author.config, attempt.step
    settings = stage_settings(config, step.stage)
    name = job_name(config.name, step, attempt.number, attempt.share)
    labels = _labels(config, _part(step.stage)) | step.labels | {ATTEMPT: str(attempt.number)}
    if attempt.share is not None:
        labels[SHARDS] = str(attempt.share.of)
        if attempt.share.number is not None:
            labels[SHARD] = str(attempt.share.number)
    template = pod_template(config, _stage_program(author, attempt, servers), labels, packs=author.packs)
    template["spec"] |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": settings.grace}
    spec: Body = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": settings.deadline,
        "ttlSecondsAfterFinished": config.cluster.keep,
        "template": template,
    }
    nodes = nodes_of(config, step.stage)
    if nodes > 1:
        # One rank lost fails the Job, which ends the other ranks: the next attempt starts all of them together.
        spec |= {"completions": nodes, "parallelism": nodes, "completionMode": "Indexed"}
        template["spec"]["subdomain"] = ranks_name(config, step)
    return _stamped(author, "Job", name, labels, spec, what=spec_hash(author, attempt))


def rank_service(author: ManifestContext, step: RunStep) -> Body:
    """Names for the nodes of one training: `<job>-0.<service>` is where the ranks meet."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {RUN: author.config.name} | step.labels,
        "ports": [{"name": "rendezvous", "port": _RENDEZVOUS_PORT, "protocol": "TCP"}],
    }
    labels = _labels(author.config, _part(step.stage)) | step.labels
    return _stamped(author, "Service", ranks_name(author.config, step), labels, spec)


def server_deployment(author: ManifestContext, server: Server) -> Body:
    """One replica that is replaced only after it has gone: there are no GPUs for two."""
    config = author.config
    labels = _server_labels(config, server)
    template = pod_template(config, server_program(config, server), labels, packs=author.packs)
    grace = _RETRIEVER_GRACE if server.part is Component.RETRIEVER else _GRACE
    template["spec"] |= {"restartPolicy": "Always", "terminationGracePeriodSeconds": grace}
    _mount_data_read_only(template)
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "revisionHistoryLimit": 0,
        "selector": {"matchLabels": {RUN: config.name, SERVER: server.name}},
        "template": template,
    }
    return _stamped(author, "Deployment", server.name, labels, spec)


def server_service(author: ManifestContext, server: Server) -> Body:
    spec = {
        "selector": {RUN: author.config.name, SERVER: server.name},
        "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
    }
    labels = _server_labels(author.config, server)
    return _stamped(author, "Service", server.name, labels, spec)


def status_map(author: ManifestContext, data: Mapping[str, str], resource_version: str | None) -> Body:
    """`<run>-status`: what people read, and the record of attempts. With a version: only onto that version."""
    body = _object(
        author, "ConfigMap", status_name(author.config.name), _labels(author.config, Component.CONTROLLER)
    )
    if resource_version is not None:
        body["metadata"]["resourceVersion"] = resource_version
    return {**body, "data": dict(data)}


def lease(config: RunConfig, spec: Mapping[str, Any], resource_version: str | None) -> Body:
    """`<run>-controller`: one controller at a time, whichever Job it belongs to.

    Nobody owns it: it must outlive the controller that made it, because its token may never start again.
    """
    metadata: Body = {"name": lease_name(config.name), "labels": _labels(config, Component.CONTROLLER)}
    if resource_version is not None:
        metadata["resourceVersion"] = resource_version
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": dict(spec),
    }


def event(
    author: ManifestContext, about: Mapping[str, str], *, reason: str, message: str, warning: bool, now: str
) -> Body:
    """A core/v1 Event about `about` (apiVersion, kind, namespace, name, uid); `now` is RFC 3339 in UTC.

    The name follows from what is said, so that saying it twice makes one Event.
    """
    name = f"{about['name']}.{_short(reason, message, about['uid'])}"
    body = _object(author, "Event", name, _labels(author.config, Component.CONTROLLER))
    del body["metadata"]["ownerReferences"]
    return {
        **body,
        "involvedObject": dict(about),
        "reason": reason,
        "message": message[:1000],
        "type": "Warning" if warning else "Normal",
        "source": {"component": "scope-controller"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def stage_settings(config: RunConfig, stage: Stage) -> StageConfig:
    found: StageConfig = getattr(config.cluster, JOB_NAMES[stage].replace("-", "_"))
    return found


def nodes_of(config: RunConfig, stage: Stage) -> int:
    match stage:
        case Stage.CHALLENGER:
            return config.cluster.train_challenger.nodes
        case Stage.SOLVER:
            return config.cluster.train_solver.nodes
        case _:
            return 1


def shard_count(config: RunConfig, stage: Stage) -> int:
    return config.cluster.make_tasks.shards if stage is Stage.TASKS else 1


def stage_shards(count: int) -> tuple[StageShard | None, ...]:
    """The shares of a stage that `count` Jobs share, and at the end the Job that ends the stage."""
    return (
        (*(StageShard(number, count) for number in range(count)), StageShard(None, count))
        if count > 1
        else (None,)
    )


def ranks_name(config: RunConfig, step: RunStep) -> str:
    return f"{config.name}-{step.name}"


def spec_hash(author: ManifestContext, attempt: StageAttempt) -> str:
    """Names what an attempt computes: settings, prompts, stage and share; not where or how fast."""
    share = attempt.share or ()
    return _short(author.config.hash, author.prompt_hash, attempt.step.name, str(tuple(share)))


def _stage_program(author: ManifestContext, attempt: StageAttempt, servers: tuple[Server, ...]) -> Program:
    config, step = author.config, attempt.step
    settings = stage_settings(config, step.stage)
    arguments = ["--config", f"{CONFIG_FOLDER}/run.yaml", "--root", RUNS]
    arguments += ["--iteration", str(step.iteration), "--attempt", str(attempt.number)]
    share = attempt.share
    if share is not None:
        arguments += ["--collect"] if share.number is None else ["--shard", f"{share.number}/{share.of}"]
    for each in endpoint_settings(servers, with_key=config.cluster.key_secret is not None):
        arguments += ["--set", each]
    environment = _ranks_environment(config, attempt) if step.stage in _TRAINS else {}
    images = config.cluster.images
    image = images.trainer if step.stage in _TRAINS and images.trainer else images.worker
    command = ["python", "-m", f"jobs.{JOB_NAMES[step.stage].replace('-', '_')}", *arguments]
    return Program(image, command, settings, environment, {})


def _ranks_environment(config: RunConfig, attempt: StageAttempt) -> dict[str, str]:
    """On how many processes and nodes a training job starts itself; nothing where it is one process."""
    step = attempt.step
    gpus, nodes = gpus_of(config.cluster, stage_settings(config, step.stage)), nodes_of(config, step.stage)
    environment = {"SCOPE_PROCESSES": str(gpus)} if gpus > 1 else {}
    if nodes > 1:
        # An Indexed Job adds JOB_COMPLETION_INDEX.
        first = f"{job_name(config.name, step, attempt.number)}-0.{ranks_name(config, step)}"
        environment |= {"SCOPE_NODES": str(nodes), "SCOPE_RENDEZVOUS": f"{first}:{_RENDEZVOUS_PORT}"}
    return environment


def _part(stage: Stage) -> Component:
    return Component.TRAINER if stage in _TRAINS else Component.WORKER


def _labels(config: RunConfig, part: Component) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "scope-selfplay",
        "app.kubernetes.io/component": part.value,
        RUN: config.name,
    }


def _server_labels(config: RunConfig, server: Server) -> dict[str, str]:
    step = server.step.labels if server.step else {}
    return _labels(config, server.part) | step | {SERVER: server.name}


def _mount_data_read_only(template: Body) -> None:
    """A server reads models and indexes; it has no business on the volume beyond that."""
    for mount in template["spec"]["containers"][0]["volumeMounts"]:
        if mount["name"] == "data":
            mount["readOnly"] = True


def _stamped(
    author: ManifestContext, kind: str, name: str, labels: dict[str, str], spec: Body, *, what: str = ""
) -> Body:
    own = labels if kind == "Service" else labels | author.config.cluster.labels
    body = _object(author, kind, name, own)
    annotations = {FENCE: str(author.fence), BODY_HASH: _short(json.dumps(spec, sort_keys=True))}
    if what:
        annotations[SPEC_HASH] = what
    body["metadata"]["annotations"] = annotations
    return {**body, "spec": spec}


def _object(author: ManifestContext, kind: str, name: str, labels: dict[str, str]) -> Body:
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": author.owner.name,
        "uid": author.owner.uid,
        # No blockOwnerDeletion: clusters that check it ask for one more right (update on jobs/finalizers).
        "controller": True,
    }
    metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
    return {"apiVersion": _API_VERSIONS.get(kind, "v1"), "kind": kind, "metadata": metadata}


def _short(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:12]
