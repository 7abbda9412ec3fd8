"""What the controller of a run will create, before it does: for checks of a whole run at once. Pure."""

from collections.abc import Sequence

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.manifests import (
    ManifestContext,
    Owner,
    StageAttempt,
    nodes_of,
    rank_service,
    server_deployment,
    server_service,
    shard_count,
    stage_job,
    stage_shards,
)
from scope_selfplay.controller.names import JOB_NAMES, RunStep
from scope_selfplay.controller.pods import Body
from scope_selfplay.controller.servers import Server, servers_of
from scope_selfplay.store import Stage
from scope_selfplay.store.folders import stages_of


def planned_objects(config: RunConfig, packs: Sequence[str], *, iteration: int = 1) -> list[Body]:
    """The first attempt of every stage of iterations 0 and `iteration`, with its servers; every Solver promoted."""
    author = _author(config, packs)
    promoted = [True] * (config.iterations + 1)
    bodies: list[Body] = []
    servers: dict[str, Server] = {}
    for number, stage in stages_of(config):
        if number in (0, iteration):
            step = RunStep(number, stage)
            beside = servers_of(config, step, promoted)
            servers |= {each.name: each for each in beside}
            bodies += [stage_job(author, each, beside) for each in _attempts(config, step)]
            if nodes_of(config, stage) > 1:
                bodies.append(rank_service(author, step))
    for server in servers.values():
        bodies += [server_deployment(author, server), server_service(author, server)]
    return bodies


def stage_objects(config: RunConfig, packs: Sequence[str], *, iteration: int = 1) -> dict[str, list[Body]]:
    """By the stage's name in Jobs, what runs at once while it does: its Jobs, its servers, the run's servers."""
    author = _author(config, packs)
    promoted = [True] * (config.iterations + 1)
    found: dict[str, list[Body]] = {}
    for stage in Stage:
        step = RunStep(iteration, stage)
        beside = servers_of(config, step, promoted)
        # The Job that collects comes when the workers are done.
        attempts = _attempts(config, step)[: shard_count(config, stage)]
        bodies = [stage_job(author, each, beside) for each in attempts]
        if nodes_of(config, stage) > 1:
            bodies.append(rank_service(author, step))
        for server in beside:
            bodies += [server_deployment(author, server), server_service(author, server)]
        found[JOB_NAMES[stage]] = bodies
    return found


def _author(config: RunConfig, packs: Sequence[str]) -> ManifestContext:
    return ManifestContext(config, "0" * 16, tuple(packs), Owner(f"{config.name}-controller", "0" * 8), 1)


def _attempts(config: RunConfig, step: RunStep) -> list[StageAttempt]:
    return [StageAttempt(step, 1, share) for share in stage_shards(shard_count(config, step.stage))]
