"""What the controller writes: golden bodies, names that fit, hashes that follow what they name, patches of pods.

`python -m tests.unit.controller.test_manifests` writes the golden files.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from retrieval.commands import serve_retriever
from retrieval.server import CLOSE_SECONDS, SEND_SECONDS
from scope_selfplay.cluster.pods import (
    KEY_VARIABLE,
    Component,
    Label,
    Owner,
    RunStage,
    StageShard,
    event,
    job_name,
    lease,
    patched,
    status_map,
)
from scope_selfplay.cluster.stages import (
    StageAttempt,
    copies_of,
    rank_service,
    server_deployment,
    server_service,
    servers_of,
    stage_job,
)
from scope_selfplay.config.load import parse_config
from scope_selfplay.config.run import RunConfig
from scope_selfplay.inference.commands import serve_model
from scope_selfplay.judge.commands import serve_judge
from scope_selfplay.store.folder import Stage
from tests.unit.controller.worlds import PAPER, TINY, config_of, context_of

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
    return re.sub(rf"{Label.SPEC_HASH}: '?\w+'?", f"{Label.SPEC_HASH}: (12 hex digits)", text)


BODIES = manifests()


def job_of(config: RunConfig, stage: Stage = Stage.SOLVER) -> dict[str, Any]:
    step = RunStage(1, stage)
    return stage_job(context_of(config), StageAttempt(step, 1), servers_of(config, step, (True,)))


def servers_by_component(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Deployments while tasks are made."""
    servers = servers_of(config, RunStage(1, Stage.TASKS), (True,))
    return {server.component.value: server_deployment(context_of(config), server) for server in servers}


def pod_of(body: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = body["spec"]["template"]["spec"]
    return spec


def command_of(body: dict[str, Any]) -> list[str]:
    command: list[str] = pod_of(body)["containers"][0]["command"]
    return command


@pytest.mark.parametrize("name", BODIES)
def test_bodies_are_the_golden_ones(name: str) -> None:
    assert render(BODIES[name]) == (GOLDEN / f"{name}.yaml").read_text("utf-8")


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(BODIES)


def test_names_fit_into_a_label_for_the_longest_run_id() -> None:
    longest = "a" * 32
    for stage in Stage:
        assert len(job_name(longest, RunStage(99, stage), 999, StageShard(98, 99))) <= 63


def test_a_retriever_has_the_time_to_answer_what_has_arrived() -> None:
    retriever = servers_by_component(config_of(TINY))["retriever"]
    defaults: dict[str | None, Any] = {option.name: option.default for option in serve_retriever.params}
    needed = defaults["drain"] + defaults["deadline"] + SEND_SECONDS + CLOSE_SECONDS
    assert pod_of(retriever)["terminationGracePeriodSeconds"] > needed


def test_a_later_leader_writes_the_same_server_body() -> None:
    config = config_of(PAPER)
    server = servers_of(config, RunStage(1, Stage.SOLVER), (True,))[0]
    bodies = [server_deployment(context_of(config, fence), server) for fence in (1, 2)]
    assert len({body["metadata"]["annotations"][Label.BODY_HASH] for body in bodies}) == 1


@pytest.mark.parametrize(
    ("promoted", "iteration", "expected"),
    [
        ((True,), 0, "/data/models/Qwen2.5-7B-Instruct"),
        ((True, True), 1, "/data/runs/r1/iteration-01/solver/checkpoint"),
        ((True, True, False), 2, "/data/runs/r1/iteration-01/solver/checkpoint"),
        ((True, False, False), 2, "/data/models/Qwen2.5-7B-Instruct"),
    ],
)
def test_the_frozen_solver_is_the_one_promoted_last(
    promoted: tuple[bool, ...], iteration: int, expected: str
) -> None:
    servers = servers_of(config_of(PAPER), RunStage(iteration + 1, Stage.CHALLENGER), promoted)
    assert {server.component: server.model for server in servers}[Component.SOLVER] == expected


def test_a_server_that_runs_elsewhere_is_neither_made_nor_named() -> None:
    config = config_of(PAPER, cluster={"judge": {"serve": False}})
    assert "judge" not in servers_by_component(config)
    assert "judge.endpoint" not in " ".join(command_of(job_of(config)))


def test_with_a_key_every_server_asks_for_it_and_every_stage_sends_it() -> None:
    config = config_of(TINY, cluster=TINY["cluster"] | {"key_secret": "scope-key"})
    programs = {"retriever": serve_retriever, "judge": serve_judge}
    servers = servers_by_component(config)
    assert len(servers) == 4
    for name, body in servers.items():
        option = "--token-env" if name == "retriever" else "--api-key-env"
        assert f"{option}={KEY_VARIABLE}" in command_of(body)
        program = programs.get(name, serve_model)
        assert option in [name for parameter in program.params for name in parameter.opts]
    told = command_of(job_of(config, Stage.TASKS))
    groups = ("search", "judge.endpoint", "partners.solver", "partners.challenger")
    assert {f"{group}.api_key_env={KEY_VARIABLE}" for group in groups} <= set(told)
    assert KEY_VARIABLE not in " ".join(command_of(job_of(config_of(TINY), Stage.TASKS)))


@pytest.mark.parametrize(
    ("body", "patch", "expected"),
    [
        ({"a": 1, "b": 2}, {"b": None}, {"a": 1}),
        ({"args": ["x"]}, {"args": ["y"]}, {"args": ["y"]}),
        ({"env": [{"name": "a", "x": 1}]}, {"env": [{"name": "b"}]}, {"env": [{"name": "a", "x": 1}, {"name": "b"}]}),
        ({"env": [{"name": "a", "x": 1}]}, {"env": [{"name": "a", "x": 2}]}, {"env": [{"name": "a", "x": 2}]}),
        ({}, {"volumes": [{"name": "v"}]}, {"volumes": [{"name": "v"}]}),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
    ],
)  # fmt: skip
def test_merging_is_that_of_the_api(
    body: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]
) -> None:
    kept = str(body)
    assert patched(body, patch) == expected and str(body) == kept


MODELS = "/data/models"


@pytest.mark.parametrize(
    ("model", "server", "prepare", "expected"),
    [
        (f"{MODELS}/Qwen3-8B", {}, {}, (4, 1)),
        (f"{MODELS}/policy", {}, {"judge": "Qwen/Qwen3-8B"}, (1, 4)),
        ("Qwen/Qwen2.5-1.5B-Instruct@abc7b", {}, {}, (4, 1)),
        (f"{MODELS}/olmo_3_32b", {}, {}, (1, 4)),
        (f"{MODELS}/Qwen3-8B", {"tensor_parallel": 2}, {}, (2, 2)),
    ],
)
def test_a_model_that_fits_one_gpu_is_copied_and_another_takes_all(
    model: str, server: dict[str, Any], prepare: dict[str, str], expected: tuple[int, int]
) -> None:
    cluster = {"solver": {"gpus": 4, **server}, "judge": {"gpus": 4}, "prepare": prepare}
    config = parse_config({"model": {"path": model}, "cluster": cluster})
    assert copies_of(config, Component.SOLVER, config.cluster.solver) == expected
    # A judge goes by its own name, and /data/models/judge says nothing.
    judge = (4, 1) if "judge" in prepare else (1, 4)
    assert copies_of(config, Component.JUDGE, config.cluster.judge) == judge


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, bodies in manifests().items():
        (GOLDEN / f"{name}.yaml").write_text(render(bodies), encoding="utf-8")
