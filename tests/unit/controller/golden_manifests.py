"""Every kind of object as YAML; `python -m tests.unit.controller.golden_manifests` writes the golden files."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from scope_selfplay.cluster.pods import SPEC_HASH, Owner, RunStage, StageShard, event, lease, status_map
from scope_selfplay.cluster.stages import (
    StageAttempt,
    rank_service,
    server_deployment,
    server_service,
    servers_of,
    stage_job,
)
from scope_selfplay.store.folder import Stage
from tests.unit.controller.examples import PAPER, TINY, config_of, context_of

GOLDEN = Path(__file__).parents[2] / "golden" / "manifests"
_CLUSTER = PAPER["cluster"]
_PLACED = _CLUSTER | {
    "pod": {
        "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "research"}},
        "spec": {
            "nodeSelector": {"gpu": "h100"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "priorityClassName": "batch",
            "imagePullSecrets": [{"name": "registry"}],
        },
    },
    "key_secret": "scope-key",
    "train_solver": {"gpus": 8, "nodes": 2, "sharding": "hybrid"},
    "make_tasks": {"shards": 4},
}


def manifests() -> dict[str, list[dict[str, Any]]]:
    """Golden file name -> its documents."""
    files: dict[str, list[dict[str, Any]]] = {}
    for data in (PAPER, TINY):
        context = context_of(config_of(data))
        for stage in Stage:
            step = RunStage(2, stage)
            servers = servers_of(context.config, step, (True, True))
            bodies = [stage_job(context, StageAttempt(step, 1), servers)]
            for server in servers:
                bodies += [server_deployment(context, server), server_service(context, server)]
            files[f"{context.config.name}.{stage.job_name}"] = bodies
    placed = context_of(config_of(PAPER, cluster=_PLACED))
    training, making = RunStage(1, Stage.SOLVER), RunStage(1, Stage.TASKS)
    servers = servers_of(placed.config, making, (True,))
    files["placed.nodes-and-shards"] = [
        stage_job(placed, StageAttempt(training, 3), servers_of(placed.config, training, (True,))),
        rank_service(placed, training),
        stage_job(placed, StageAttempt(making, 1, StageShard(3, 4)), servers),
        stage_job(placed, StageAttempt(making, 1, StageShard(None, 4)), servers),
        server_deployment(placed, servers[0]),
    ]
    owned = replace(placed, owner=Owner("r1-controller", "u1"))
    files["bookkeeping"] = [
        status_map(placed, {"phase": "running"}, "41"),
        lease(placed.config, {"holderIdentity": "pod-1", "leaseDurationSeconds": 60}, None),
        event(owned, "ml", reason="StageDone", message="done", warning=False, now="2026-01-02T03:04:05Z"),
    ]
    return files


def render(bodies: list[dict[str, Any]]) -> str:
    """As YAML; without the hashes that follow from every setting of a run, whoever adds one."""
    text = yaml.safe_dump_all(bodies, sort_keys=False, width=110)
    return re.sub(rf"{SPEC_HASH}: '?\w+'?", f"{SPEC_HASH}: (12 hex digits)", text)


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, bodies in manifests().items():
        (GOLDEN / f"{name}.yaml").write_text(render(bodies), encoding="utf-8")
