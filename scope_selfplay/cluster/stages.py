"""The Job of one attempt of a stage, and what its nodes need to meet. Pure: equal arguments, equal bodies."""

from collections.abc import Sequence
from dataclasses import dataclass

from scope_selfplay.cluster.pods import (
    ATTEMPT,
    CONFIG_FOLDER,
    RUN,
    RUNS,
    SHARD,
    SHARDS,
    Body,
    Component,
    ManifestContext,
    Program,
    RunStage,
    StageShard,
    gpus_of,
    job_name,
    key_variable,
    labels_of,
    pod_template,
    run_mounts,
    short_hash,
    stamped,
)
from scope_selfplay.cluster.servers import Server, endpoint_settings
from scope_selfplay.config.cluster import GRACE, PodConfig, TrainingStageConfig
from scope_selfplay.config.run import RunConfig
from scope_selfplay.store.folder import Stage

KEPT = 86_400
"""Seconds for which a finished Job and its logs are kept; a restarted controller reads the result from the Job."""
_TRAINS = (Stage.CHALLENGER, Stage.SOLVER)
_RENDEZVOUS_PORT = 29500


@dataclass(frozen=True)
class StageAttempt:
    """One try of a step; `shard` is None where one Job does it all."""

    step: RunStage
    number: int
    shard: StageShard | None = None


def stage_job(context: ManifestContext, attempt: StageAttempt, servers: tuple[Server, ...]) -> Body:
    """The Job of one attempt: one pod per node, never restarted in place; the controller decides about the next."""
    config, step = context.config, attempt.step
    name = job_name(config.name, step, attempt.number, attempt.shard)
    labels = labels_of(config, component_of(step.stage)) | step.labels | {ATTEMPT: str(attempt.number)}
    if attempt.shard is not None:
        labels[SHARDS] = str(attempt.shard.of)
        if attempt.shard.number is not None:
            labels[SHARD] = str(attempt.shard.number)
    nodes, ranks = nodes_of(config, step.stage), ranks_name(config, step)
    program = _stage_program(context, attempt, servers, f"{name}-0.{ranks}")
    mounts = run_mounts(config, context.packs)
    template = pod_template(config.cluster, program, labels, mounts, grace=GRACE)
    spec: Body = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": config.cluster.deadline,
        "ttlSecondsAfterFinished": KEPT,
        "template": template,
    }
    if nodes > 1:
        # One rank lost fails the Job, which ends the other ranks: the next attempt starts all of them together.
        spec |= {"completions": nodes, "parallelism": nodes, "completionMode": "Indexed"}
        template["spec"]["subdomain"] = ranks
    return stamped(context, "Job", name, labels, spec, what=spec_hash(context, attempt))


def rank_service(context: ManifestContext, step: RunStage) -> Body:
    """Names for the nodes of one training: `<job>-0.<service>` is where the ranks meet."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {RUN: context.config.name} | step.labels,
        "ports": [{"name": "rendezvous", "port": _RENDEZVOUS_PORT, "protocol": "TCP"}],
    }
    labels = labels_of(context.config, component_of(step.stage)) | step.labels
    return stamped(context, "Service", ranks_name(context.config, step), labels, spec)


def stage_settings(config: RunConfig, stage: Stage) -> PodConfig:
    found: PodConfig = getattr(config.cluster, stage.job_name.replace("-", "_"))
    return found


def nodes_of(config: RunConfig, stage: Stage) -> int:
    settings = stage_settings(config, stage)
    return settings.nodes if isinstance(settings, TrainingStageConfig) else 1


def shard_count(config: RunConfig, stage: Stage) -> int:
    return config.cluster.make_tasks.shards if stage is Stage.TASKS else 1


def stage_shards(count: int) -> tuple[StageShard | None, ...]:
    """The shards of a stage that `count` Jobs share, and at the end the Job that ends the stage."""
    if count == 1:
        return (None,)
    return (*(StageShard(number, count) for number in range(count)), StageShard(None, count))


def ranks_name(config: RunConfig, step: RunStage) -> str:
    return f"{config.name}-{step.name}"


def spec_hash(context: ManifestContext, attempt: StageAttempt) -> str:
    """Names what an attempt computes: settings, prompts, stage and shard; not where or how fast."""
    shard = tuple(attempt.shard or ())
    return short_hash(context.config.hash, context.prompt_hash, attempt.step.name, str(shard))


def _stage_program(
    context: ManifestContext, attempt: StageAttempt, servers: Sequence[Server], first: str
) -> Program:
    config, step = context.config, attempt.step
    settings = stage_settings(config, step.stage)
    arguments = ["--config", f"{CONFIG_FOLDER}/run.yaml", "--root", RUNS]
    arguments += ["--iteration", str(step.iteration), "--attempt", str(attempt.number)]
    shard = attempt.shard
    if shard is not None:
        arguments += ["--collect"] if shard.number is None else ["--shard", f"{shard.number}/{shard.of}"]
    for setting in endpoint_settings(config, servers):
        arguments += ["--set", setting]
    environment: dict[str, str | Body] = dict(key_variable(config.cluster))
    images, extra = config.cluster.images, {}
    if isinstance(settings, TrainingStageConfig):
        environment |= _rank_variables(gpus_of(config.cluster, settings), settings, first)
        if (secret := config.cluster.tracking_secret) is not None:
            # Trainers, and nobody else, are told of the trackers that they report to.
            extra = {"envFrom": [{"secretRef": {"name": secret}}]}
    image = images.trainer if step.stage in _TRAINS and images.trainer else images.worker
    command = ["python", "-m", "jobs", step.stage.job_name, *arguments]
    return Program(image, command, settings, environment, extra)


def _rank_variables(gpus: int, settings: TrainingStageConfig, first: str) -> dict[str, str]:
    """On how many processes and nodes a training job starts itself; nothing where it is one process."""
    told = {"SCOPE_PROCESSES": str(gpus)} if gpus > 1 else {}
    if settings.nodes > 1:
        # An Indexed Job adds JOB_COMPLETION_INDEX.
        told |= {"SCOPE_NODES": str(settings.nodes), "SCOPE_RENDEZVOUS": f"{first}:{_RENDEZVOUS_PORT}"}
        if settings.sharding == "hybrid":
            told["SCOPE_SHARDING"] = settings.sharding
    return told


def component_of(stage: Stage) -> Component:
    return Component.TRAINER if stage in _TRAINS else Component.WORKER
