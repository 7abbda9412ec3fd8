"""Patches of pods: merged as the API server merges them, into every pod that they name and no other."""

from typing import Any

import pytest

from scope_selfplay.cluster.pods import Component, RunStage, patched
from scope_selfplay.cluster.stages import StageAttempt, server_deployment, servers_of, stage_job
from scope_selfplay.config.run import RunConfig
from scope_selfplay.store.folder import Stage
from tests.unit.controller.examples import PAPER, config_of, context_of

RDMA = {
    "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "env": [{"name": "NCCL_IB_HCA", "value": "mlx5"}, {"name": "HOME", "value": "/scratch"}],
                "resources": {"limits": {"rdma/hca": "1"}, "requests": {"rdma/hca": "1"}},
                "imagePullPolicy": "Always",
            }
        ],
        "schedulerName": "volcano",
        "runtimeClassName": "nvidia",
        "affinity": {"podAntiAffinity": {}},
    },
}


def with_cluster(**cluster: Any) -> RunConfig:
    return config_of(PAPER, cluster=PAPER["cluster"] | cluster)


def job_of(config: RunConfig, stage: Stage) -> dict[str, Any]:
    template: dict[str, Any] = stage_job(context_of(config), StageAttempt(RunStage(1, stage), 1), ())["spec"][
        "template"
    ]
    return template


def server_of(config: RunConfig, component: Component) -> dict[str, Any]:
    servers = servers_of(config, RunStage(1, Stage.TASKS), (True,))
    (server,) = [each for each in servers if each.component is component]
    template: dict[str, Any] = server_deployment(context_of(config), server)["spec"]["template"]
    return template


def test_a_stage_is_patched_and_keeps_all_else() -> None:
    config = with_cluster(train_solver={"pod": RDMA})
    before, after = job_of(with_cluster(), Stage.SOLVER), job_of(config, Stage.SOLVER)
    (container,), (plain,) = after["spec"]["containers"], before["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert environment["NCCL_IB_HCA"] == "mlx5" and environment["HOME"] == "/scratch"
    assert len(container["env"]) == len(plain["env"]) + 1 and container["command"] == plain["command"]
    assert container["resources"]["limits"] == plain["resources"]["limits"] | {"rdma/hca": "1"}
    assert after["spec"]["schedulerName"] == "volcano" and after["spec"]["runtimeClassName"] == "nvidia"
    assert after["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "rdma"
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert job_of(config, Stage.CHALLENGER) == job_of(with_cluster(), Stage.CHALLENGER)


def test_a_patch_of_all_pods_comes_before_that_of_a_part() -> None:
    variables = [[{"name": "HTTPS_PROXY", "value": value}] for value in ("http://proxy", "")]
    proxy, own = ({"spec": {"containers": [{"name": "main", "env": each}]}} for each in variables)
    config = with_cluster(pod=proxy, judge={"model": "/data/models/j", "pod": own})
    for template, expected in (
        (server_of(config, Component.JUDGE), ""),
        (server_of(config, Component.RETRIEVER), "http://proxy"),
        (job_of(config, Stage.COMPARE), "http://proxy"),
    ):
        environment = template["spec"]["containers"][0]["env"]
        assert [each["value"] for each in environment if each["name"] == "HTTPS_PROXY"] == [expected]


def test_pods_with_gpus_tolerate_the_nodes_of_their_kind_unless_a_patch_says_what_they_tolerate() -> None:
    own = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    patched_job = job_of(with_cluster(pod={"spec": {"tolerations": own}}), Stage.SOLVER)
    assert patched_job["spec"]["tolerations"] == own
    amd = job_of(with_cluster(gpu_resource="amd.com/gpu"), Stage.SOLVER)["spec"]["tolerations"]
    assert [each["key"] for each in amd] == ["amd.com/gpu"]


@pytest.mark.parametrize(
    ("body", "patch", "expected"),
    [
        ({"a": 1, "b": 2}, {"b": None}, {"a": 1}),
        ({"args": ["x"]}, {"args": ["y"]}, {"args": ["y"]}),
        ({"env": [{"name": "a", "x": 1}]}, {"env": [{"name": "b"}]}, {"env": [{"name": "a", "x": 1}, {"name": "b"}]}),
        ({}, {"volumes": [{"name": "v"}]}, {"volumes": [{"name": "v"}]}),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
    ],
)  # fmt: skip
def test_merging_is_that_of_the_api(
    body: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]
) -> None:
    kept = str(body)
    assert patched(body, patch) == expected and str(body) == kept
