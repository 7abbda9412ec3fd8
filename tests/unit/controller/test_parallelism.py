"""A model that fits one GPU is served by a copy on each; a larger one, or one of unknown size, by all GPUs together."""

from typing import Any

import pytest

from scope_selfplay.cluster.pods import Component, RunStage, copies_of
from scope_selfplay.cluster.stages import server_deployment, servers_of
from scope_selfplay.config.base import parameters_in
from scope_selfplay.config.load import parse_config
from scope_selfplay.store.folder import Stage
from tests.unit.controller.examples import context_of


def found(component: Component = Component.SOLVER, **settings: Any) -> tuple[int, int]:
    model, cluster = settings.pop("model", "/data/models/Qwen3-8B"), settings.pop("cluster", {})
    server = {"gpus": 4, **settings}
    config = parse_config({"model": {"path": model}, "cluster": {component.value: server, **cluster}})
    return copies_of(config, component, getattr(config.cluster, component.value))


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("/data/models/Qwen3-8B", 8),
        ("Qwen/Qwen2.5-1.5B-Instruct@abc7b", 1.5),
        ("/data/models/judge", None),
        ("olmo_3_32b", 32),
    ],
)
def test_a_name_says_how_large_its_model_is(name: str, billions: float | None) -> None:
    assert parameters_in(name) == (billions and billions * 1e9)


def test_a_model_that_fits_one_gpu_is_copied() -> None:
    assert found() == (4, 1)
    assert found(model="/data/models/policy", cluster={"prepare": {"model": "Qwen/Qwen3-14B@main"}}) == (4, 1)


def test_a_large_model_and_one_of_unknown_size_take_all_gpus() -> None:
    for model in ("/data/models/Qwen3-32B", "/data/models/policy"):
        assert found(model=model) == (1, 4)


def test_a_judge_goes_by_its_own_name() -> None:
    assert found(Component.JUDGE) == (1, 4), "/data/models/judge says nothing"
    assert found(Component.JUDGE, cluster={"prepare": {"judge": "Qwen/Qwen3-8B"}}) == (4, 1)


def test_the_config_decides_and_arguments_are_left_alone() -> None:
    assert found(tensor_parallel=2) == (2, 2)
    assert found(args=("--tensor-parallel-size=4",)) == (1, 1)


@pytest.mark.parametrize(
    ("settings", "workers"),
    [
        ({}, 15),
        ({"cpu": "2500m"}, 1),
        ({"cpu": "500m"}, 1),
        ({"gpus": 1}, 1),
        ({"args": ["--workers", "5"]}, 5),
        ({"args": ["--workers=2", "--cache=10"]}, 2),
    ],
)
def test_the_retriever_has_a_search_process_for_each_cpu_but_one(
    settings: dict[str, Any], workers: int
) -> None:
    config = parse_config({"name": "r1", "cluster": {"retriever": settings}})
    assert config.cluster.retriever.workers == workers
    server = servers_of(config, RunStage(1, Stage.SOLVER), (True,))[-1]
    body = server_deployment(context_of(config), server)
    command = body["spec"]["template"]["spec"]["containers"][0]["command"]
    named = [part for part in command if part.startswith("--workers")]
    given = [part for part in settings.get("args", ()) if part.startswith("--workers")]
    assert named == (given or ([f"--workers={workers}"] if workers > 1 else []))
