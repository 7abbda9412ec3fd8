"""What the controller writes: golden bodies, names that fit, hashes that follow what they name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from retrieval.commands import serve_retriever
from retrieval.server import CLOSE_SECONDS, SEND_SECONDS
from scope_selfplay.cluster.pods import (
    BODY_HASH,
    KEY_VARIABLE,
    SPEC_HASH,
    Component,
    RunStage,
    StageShard,
    job_name,
)
from scope_selfplay.cluster.stages import StageAttempt, server_deployment, servers_of, stage_job
from scope_selfplay.config.run import RunConfig
from scope_selfplay.inference.commands import serve_model
from scope_selfplay.judge.commands import serve_judge
from scope_selfplay.store.folder import Stage
from tests.unit.controller.examples import PAPER, TINY, config_of, context_of, sized
from tests.unit.controller.golden_manifests import GOLDEN, manifests, render

BODIES = manifests()
REPOSITORY = Path(__file__).parents[3]


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
    bodies = [body for body in BODIES["tiny.make-tasks"] if _has_pod(body)]
    (retriever,) = [body for body in bodies if _command(body)[:2] == ["scope", "serve-retriever"]]
    defaults = {option.name: option.default for option in serve_retriever.params}
    needed = defaults["drain"] + defaults["deadline"] + SEND_SECONDS + CLOSE_SECONDS
    assert retriever["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > needed


def test_a_server_without_a_gpu_decodes_as_the_run_does_in_one_process() -> None:
    solver = {"solver": {"gpus": 0, "args": ["--slots", "4"]}}
    config = config_of(PAPER, model={"slots": 8, "max_length": 512}, cluster=PAPER["cluster"] | solver)
    servers = servers_of(config, RunStage(1, Stage.TASKS), (True,))
    (server,) = [each for each in servers if each.component == "solver"]
    _, _, policy, *options = _command(server_deployment(context_of(config), server))
    expected = {"slots": 4, "max_length": 512}
    with serve_model.make_context("serve-model", [policy, *options]) as context:
        assert {name: context.params[name] for name in expected} == expected
    assert options.index("8") < options.index("4")


def test_a_server_without_a_gpu_has_the_workers_image_and_the_cores_that_it_asks_for() -> None:
    own = {"solver": {"gpus": 0} | sized(cpu="7500m"), "images": {"trainer": "s", "worker": "w"}}
    config = config_of(PAPER, cluster=PAPER["cluster"] | own)
    servers = servers_of(config, RunStage(1, Stage.TASKS), (True,))
    made = {each.component: _container(server_deployment(context_of(config), each)) for each in servers}
    assert [made[Component(part)]["image"] for part in ("solver", "challenger")] == ["w", "s"]
    assert {"name": "OMP_NUM_THREADS", "value": "7"} in made[Component.SOLVER]["env"]


@pytest.mark.parametrize(
    ("change", "spec", "body"),
    [
        ({}, False, False),
        ({"seed": 1}, True, False),
        ({"cluster": PAPER["cluster"] | {"volume_claim": "other"}}, False, True),
    ],
)
def test_hashes_follow_what_they_name(change: dict[str, Any], spec: bool, body: bool) -> None:
    before, after = (
        _training_job(config_of(PAPER, **changes))["metadata"]["annotations"] for changes in ({}, change)
    )
    assert (before[SPEC_HASH] != after[SPEC_HASH]) is spec
    assert (before[BODY_HASH] != after[BODY_HASH]) is body


def test_a_later_leader_writes_the_same_server_body() -> None:
    config = config_of(PAPER)
    server = servers_of(config, RunStage(1, Stage.SOLVER), (True,))[0]
    bodies = [server_deployment(context_of(config, fence), server) for fence in (1, 2)]
    assert len({body["metadata"]["annotations"][BODY_HASH] for body in bodies}) == 1


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


def test_a_frozen_challenger_serves_the_base_model_in_every_iteration() -> None:
    config = config_of(TINY, challenger={"freeze_after": 0})
    served = {
        server.component.value: server.model
        for server in servers_of(config, RunStage(3, Stage.TASKS), (True,) * 3)
    }
    assert served["challenger"] == "embedded"


def test_a_server_that_runs_elsewhere_is_neither_made_nor_named() -> None:
    config = config_of(PAPER, cluster={"judge": {"serve": False}})
    servers = servers_of(config, RunStage(1, Stage.SOLVER), (True,))
    assert [server.component.value for server in servers] == ["retriever"]
    assert "judge.endpoint" not in " ".join(_command(_training_job(config)))


def test_with_a_key_every_server_asks_for_it_and_every_stage_sends_it() -> None:
    config = config_of(TINY, cluster=TINY["cluster"] | {"key_secret": "scope-key"})
    step = RunStage(1, Stage.TASKS)
    servers = servers_of(config, step, (True,))
    programs = {Component.RETRIEVER: serve_retriever, Component.JUDGE: serve_judge}
    for server in servers:
        option = "--token-env" if server.component is Component.RETRIEVER else "--api-key-env"
        assert f"{option}={KEY_VARIABLE}" in _command(server_deployment(context_of(config), server))
        program = programs.get(server.component, serve_model)
        assert option in [name for parameter in program.params for name in parameter.opts]
    assert len(servers) == 4
    told = _command(stage_job(context_of(config), StageAttempt(step, 1), servers))
    groups = ("search", "judge.endpoint", "partners.solver", "partners.challenger")
    assert {f"{group}.api_key_env={KEY_VARIABLE}" for group in groups} <= set(told)
    assert KEY_VARIABLE not in " ".join(_command(_training_job(config_of(TINY))))


def test_the_controllers_job_outlives_three_drains_a_day_until_its_deadline() -> None:
    spec = yaml.safe_load((REPOSITORY / "k8s/runs/tiny/setup/controller.yaml").read_text("utf-8"))["spec"]
    assert spec["backoffLimit"] >= 100 and "activeDeadlineSeconds" not in spec


def _training_job(config: RunConfig) -> dict[str, Any]:
    step = RunStage(1, Stage.SOLVER)
    return stage_job(context_of(config), StageAttempt(step, 1), servers_of(config, step, (True,)))


def _has_pod(body: dict[str, Any]) -> bool:
    return body["kind"] in ("Job", "Deployment")


def _container(body: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = body["spec"]["template"]["spec"]["containers"][0]
    return container


def _command(body: dict[str, Any]) -> list[str]:
    command: list[str] = _container(body)["command"]
    return command
