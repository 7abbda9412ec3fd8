"""`evaluate/` of a run's folder: a Job that runs `scope eval`, reaches what it asks, and fits the schemas."""

import shlex
from pathlib import Path
from typing import Any

import click
import yaml

from scope_selfplay.cluster.check import schema_problems
from scope_selfplay.cluster.folder import RunFolderLayout, run_folder
from scope_selfplay.cluster.objects import allows, pods_of
from scope_selfplay.config.load import load_config
from scope_selfplay.evaluation.commands import evaluate
from tests.unit.k8s.test_prepare import rendered, rendered_run

EVALUATE = {
    "checkpoints": ["S_2", "S_0"],
    "benchmarks": ["embedded", "popqa=/data/benchmarks/popqa"],
    "options": ["--samples=4"],
}


def job_of(folder: Path) -> dict[str, Any]:
    (job,) = [body for body in rendered(folder / "evaluate") if body["kind"] == "Job"]
    return job


def test_the_job_runs_the_command_on_the_runs_volume_with_its_servers(tmp_path: Path) -> None:
    folder = rendered_run(tmp_path, evaluate=EVALUATE, key_secret="key", images={"trainer": "gpu:1"})
    job = job_of(folder)
    (pod,) = pods_of([job])
    (container,) = pod.containers
    assert job["metadata"]["name"] == "r1-evaluate" and container["image"] == "gpu:1"
    assert [*container["command"], *container["args"]] == shlex.split(
        "scope eval /data/runs/r1:S_2 --against /data/runs/r1:S_0 --benchmark embedded "
        "--benchmark popqa=/data/benchmarks/popqa --set judge.endpoint.base_url=http://r1-judge:8000/v1 "
        "--set judge.endpoint.api_key_env=VLLM_API_KEY --set search.url=http://r1-retriever:8000 "
        "--set search.api_key_env=VLLM_API_KEY --root /data/runs/r1/benchmarks --samples=4"
    )
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert {"VLLM_API_KEY"} <= {each["name"] for each in container["env"]}
    # The words are those of the command.
    with click.Context(evaluate) as context:
        evaluate.parse_args(context, container["args"])


def test_it_may_reach_judge_and_retriever_and_fits_the_schemas(tmp_path: Path) -> None:
    folder = rendered_run(tmp_path, evaluate=EVALUATE)
    bodies, run = rendered(folder / "evaluate"), rendered(folder / "shared")
    assert schema_problems(bodies) == []
    policies = [body for body in run if body["kind"] == "NetworkPolicy"]
    (pod,) = pods_of(bodies)
    assert pod.labels["scope/run"] == "r1"
    for component in ("judge", "retriever"):
        server = {"app.kubernetes.io/name": "scope-selfplay", "app.kubernetes.io/component": component}
        spec = {"containers": [{"ports": [{"name": "http", "containerPort": 8000}]}]}
        (peer,) = pods_of([{"kind": "Pod", "metadata": {"name": component, "labels": server}, "spec": spec}])
        assert allows(policies, "Egress", pod, peer, 8000) and allows(policies, "Ingress", peer, pod, 8000)


def test_a_run_that_names_no_checkpoints_has_no_such_folder() -> None:
    assert not any("evaluate" in name for name in run_folder(load_config(None, []), "", RunFolderLayout()))
    config = load_config(None, [f"cluster.evaluate={yaml.safe_dump(EVALUATE, default_flow_style=True)}"])
    assert config.hash == load_config(None, []).hash
