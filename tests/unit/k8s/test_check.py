"""`scope k8s check`: what of a run's folder and config no cluster could do, one clear problem each."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from scope_selfplay.base.errors import ConfigError, Finding
from scope_selfplay.cli import cli
from scope_selfplay.cluster.check import check_folder, config_of, schema_problems
from scope_selfplay.cluster.check_cluster import peak_gpus
from scope_selfplay.cluster.objects import name_of
from scope_selfplay.config.load import load_config
from scope_selfplay.plan.load import make_plan
from scope_selfplay.plan.size import Assumptions
from tests.unit.k8s.conftest import (
    QWEN,
    REPOSITORY,
    Answers,
    cluster_check,
    rendered,
    text_of,
    with_components,
)
from tests.unit.k8s.test_check_cluster import enough_but_quota, quota


def test_open_servers_are_told_of(answers: Answers, tmp_path: Path) -> None:
    """The paper-scale runs ask for a key; one on GPUs without is told what closes its servers."""
    assert not any("key_secret" in note for note in check_folder(QWEN).notes)
    text = (QWEN / "setup" / "run.yaml").read_text().replace("  key_secret: servers\n", "")
    notes = check_folder(with_components(tmp_path, QWEN, text=text)).notes
    assert [note for note in notes if note.startswith("cluster.key_secret: not set")]


def test_components_are_part_of_what_is_checked(answers: Answers, tmp_path: Path) -> None:
    folder = with_components(tmp_path, QWEN, "multi-node", "kueue", "sharded-tasks")
    checked = check_folder(folder)
    assert checked.problems == []
    assert peak_gpus(checked.config)["train-solver"] == 10
    assert any("train-solver 10" in note for note in checked.notes)
    (trainer,) = [body for body in checked.objects if name_of(body) == "Job/qwen3-8b-i01-train-solver-a1"]
    assert trainer["spec"]["parallelism"] == 2
    assert trainer["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "scope"
    # The controller, four workers, and their four servers.
    enough_but_quota(answers, quota("pods", "8"))
    assert "takes 9" in cluster_check(folder).problems[0].what


def test_two_nodes_have_the_devices_and_variables_that_the_docs_give_them(tmp_path: Path) -> None:
    """The example of docs/kubernetes.md as it stands there, in a run that enforces Pod Security."""
    page = (REPOSITORY / "docs/kubernetes.md").read_text().partition("### Several nodes\n")[2]
    (example,) = [text for text in re.findall(r"(?:^ {4}.*\n)+", page, re.M) if "NCCL_IB_HCA" in text]
    cluster = yaml.safe_load(example)["cluster"]
    text = text_of(QWEN, **{f"cluster__{name}": value for name, value in cluster.items()})
    checked = check_folder(with_components(tmp_path, QWEN, "multi-node", "namespace", text=text))
    assert checked.problems == []
    everything = checked.objects
    assert "NetworkPolicy/scope-ranks" in map(name_of, everything)
    # One for each iteration.
    spec, *_ = [
        body["spec"] for body in everything if body.get("spec", {}).get("completionMode") == "Indexed"
    ]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    (container,) = spec["template"]["spec"]["containers"]
    told = {each["name"]: each.get("value") for each in container["env"]}
    expected = {"SCOPE_NODES": "2", "SCOPE_PROCESSES": "4", "SCOPE_SHARDING": "hybrid", "NCCL_IB_HCA": "mlx5"}
    assert told | expected == told and told["SCOPE_RENDEZVOUS"].endswith(":29500")
    for limits in container["resources"].values():
        assert (limits["rdma/hca"], limits["nvidia.com/gpu"]) == ("1", "4")
    annotations = spec["template"]["metadata"]["annotations"]
    assert annotations["k8s.v1.cni.cncf.io/networks"] == "rdma"


PAPER_RUNS = ["qwen3-8b", "qwen2.5-7b", "olmo-3-7b"]


@pytest.mark.parametrize("name", PAPER_RUNS)
@pytest.mark.parametrize(
    ("components", "peaks"), [((), (6, 6, 6, 4)), (("eight-gpus",), (8, 8, 8, 6))], ids=["six", "eight"]
)
def test_the_papers_runs_fit_six_gpus_or_eight(
    name: str, components: tuple[str, ...], peaks: tuple[int, ...], tmp_path: Path
) -> None:
    checked = check_folder(with_components(tmp_path, REPOSITORY / "k8s/runs" / name, *components))
    assert checked.problems == []
    found = peak_gpus(checked.config)
    order = ("train-challenger", "make-tasks", "train-solver", "compare")
    assert tuple(found[stage] for stage in order) == peaks
    plan = make_plan(checked.config, gates=2, assumptions=Assumptions(), parameters=8e9)
    assert plan.gpus == max(peaks) and plan.gpu_hours > 0


def test_a_setting_of_a_component_that_is_wrong_is_blamed_on_it(tmp_path: Path) -> None:
    objects = rendered(with_components(tmp_path, QWEN, "multi-node"))
    (controller,) = [body for body in objects if body["kind"] == "Job"]
    controller["spec"]["template"]["spec"]["containers"][0]["args"][-1] = "cluster.train_solver.nodes=none"
    with pytest.raises(ConfigError, match=r"^--set cluster\.train_solver\.nodes=none: "):
        config_of(objects, tmp_path)


def test_a_gpu_with_the_workers_image_is_a_problem(tmp_path: Path) -> None:
    text = (QWEN / "setup" / "run.yaml").read_text()
    text = text.replace("    trainer: scope-trainer:0.1.0\n", "")
    text = text.replace("  images:\n", "  images:\n    worker: scope-selfplay:0.1.0\n")
    found = {
        problem.where: problem.what
        for problem in check_folder(with_components(tmp_path, QWEN, text=text)).problems
    }
    assert found.keys() == {"cluster.images.trainer"}
    users = "train_challenger, train_solver, judge, solver, challenger"
    assert f"{users} would get GPUs" in found["cluster.images.trainer"]


EXTERNAL = {"judge.endpoint.base_url": "https://judge.example/v1", "search.url": "https://search.example"}


def external_text(port: str = "", engine: dict[str, str] | None = None) -> str:
    search = {"url": EXTERNAL["search.url"]}
    return text_of(
        QWEN,
        judge__endpoint__base_url=f"https://judge.example{port}/v1",
        search=search | {"api_key_env": "VLLM_API_KEY", "engine": engine} if engine else search,
        cluster__judge={"serve": False},
        # A run that searches another engine starts no retriever.
        cluster__retriever={} if engine else {"serve": False},
    )


@pytest.mark.parametrize("engine", [None, {"name": "elasticsearch", "index": "wiki"}])
def test_servers_outside_need_a_way_out_of_the_cluster(tmp_path: Path, engine: dict[str, str] | None) -> None:
    folder = with_components(tmp_path / "without", QWEN, text=external_text(engine=engine))
    found = {problem.where: problem.what for problem in check_folder(folder).problems}
    assert found.keys() == EXTERNAL.keys()
    for where, message in found.items():
        assert EXTERNAL[where] in message and "lets trainer and worker out to port 443" in message
    folder = with_components(tmp_path / "with", QWEN, "external-servers", text=external_text(engine=engine))
    assert check_folder(folder).problems == []
    folder = with_components(tmp_path / "port", QWEN, "external-servers", text=external_text(":8443"))
    (problem,) = check_folder(folder).problems
    assert problem.where == "judge.endpoint.base_url" and "out to port 8443" in problem.what


ONE_GPU = REPOSITORY / "k8s/runs/one-gpu"


def problems_of(top: Path, source: Path, change: dict[str, Any], *components: str) -> list[Finding]:
    return check_folder(with_components(top, source, *components, text=text_of(source, **change))).problems


@pytest.mark.parametrize(
    ("source", "change", "where", "message"),
    [
        (QWEN, {"name": "1run"}, "name", "is '1run'; on a cluster a run's id begins with a letter"),
        (ONE_GPU, {"cluster__judge": {"gpus": 0}}, "cluster.judge", "articles of the embedded world"),
        (
            ONE_GPU,
            {"cluster__train_solver": {"gpus": 0}},
            "cluster.train_solver",
            "has no GPU, and model.engine vllm_colocated samples on the trainer's",
        ),
        (
            QWEN,
            {"cluster__train_solver": {"nodes": 3}},
            "cluster.train_solver",
            "4 GPUs on each of 3 nodes: 12 processes cannot share a batch of 256",
        ),
    ],
    ids=["name", "judge", "engine", "batch"],
)
def test_what_no_cluster_can_do_is_one_problem(
    source: Path, change: dict[str, Any], where: str, message: str, tmp_path: Path
) -> None:
    assert problems_of(tmp_path / "before", source, {}) == []
    (problem,) = problems_of(tmp_path / "after", source, change)
    assert problem.where == where and message in problem.what


def test_several_gpus_do_not_sample_in_process(tmp_path: Path) -> None:
    found = problems_of(tmp_path, QWEN, {"model__engine": "in_process"})
    assert [problem.where for problem in found] == ["cluster.train_solver", "cluster.train_challenger"]
    assert "each of 4 GPUs holds a share" in found[0].what
    assert all("set model.engine: vllm_colocated" in problem.what for problem in found)


def test_a_quota_in_the_folder_is_compared_with_what_the_other_components_take(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "eight", QWEN, {}, "eight-gpus", "quota") == []
    (problem,) = problems_of(tmp_path / "more", QWEN, {}, "multi-node", "quota")
    assert problem.where == "ResourceQuota/scope"
    assert "allows 8 requests.nvidia.com/gpu" in problem.what
    assert problem.what.endswith("the stage train-solver takes 10")


def test_show_prints_every_object_that_a_run_will_create() -> None:
    shown = CliRunner().invoke(cli, ["k8s", "show", str(QWEN)], catch_exceptions=False)
    bodies = list(yaml.safe_load_all(shown.stdout))
    names = {name_of(body) for body in bodies}
    config = load_config(QWEN / "setup" / "run.yaml")
    for iteration in range(1, config.iterations + 1):
        stages = ("train-challenger", "make-tasks", "train-solver", "compare")
        assert {f"Job/qwen3-8b-i{iteration:02d}-{stage}-a1" for stage in stages} <= names
    assert {
        "PersistentVolumeClaim/scope-data",
        "Job/qwen3-8b-controller",
        "Deployment/qwen3-8b-judge",
    } <= names
    assert len(names) == len(bodies)
    assert schema_problems(bodies) == []
    one = CliRunner().invoke(cli, ["k8s", "show", str(QWEN), "--iteration", "2"], catch_exceptions=False)
    added = {name_of(body) for body in yaml.safe_load_all(one.stdout)}
    assert added < names and not any("-i01-" in name or name.startswith("Persistent") for name in added)
