"""`scope k8s check` and `doctor` before a `kubectl` that answers from files, and refuses what is not there."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from scope_selfplay.errors import ConfigError
from scope_selfplay.k8s.check import check_folder, config_of
from scope_selfplay.k8s.check_cluster import peak_gpus
from scope_selfplay.k8s.doctor import examine
from scope_selfplay.k8s.kubectl import Kubectl
from scope_selfplay.k8s.objects import pods_of
from scope_selfplay.planning import Assumptions, make_plan
from tests.unit.k8s.conftest import QWEN, REPOSITORY, Answers, asked, rendered, with_components


def test_rights_in_one_namespace_are_enough_for_a_check(answers: Answers) -> None:
    answers.give("resourcequotas")
    found = asked(QWEN)
    assert found.problems == []
    assert [each.partition(" not checked: ")[0] for each in found.notes] == [
        "storage classes",
        "nodes and their GPUs",
    ]
    assert all("Forbidden" in each for each in found.notes)
    assert all(each.ok for each in examine(Kubectl()))


def test_a_doctor_that_may_see_no_quota_says_so(answers: Answers) -> None:
    (quotas,) = [each for each in examine(Kubectl()) if each.what == "quotas"]
    assert quotas.ok and "cannot be seen" in quotas.found


def quota(name: str, hard: str, used: str = "0", **spec: Any) -> dict[str, Any]:
    status = {"hard": {name: hard}, "used": {name: used}}
    return {"kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": spec, "status": status}


def enough_but_quota(answers: Answers, *quotas: dict[str, Any]) -> None:
    answers.give("resourcequotas", *quotas)
    for kind in ("pods", "jobs", "deployments", "services"):
        answers.give(kind)


@pytest.mark.parametrize(
    ("name", "enough", "too_little"),
    [
        # Controller, Job, judge, retriever, Challenger and Solver while tasks are made.
        ("pods", "6", "5"),
        ("count/jobs.batch", "2", "1"),
        ("count/deployments.apps", "4", "3"),
        ("requests.nvidia.com/gpu", "6", "5"),
        # Trainer of the Solver 32, retriever 16, judge 8, controller 0.25.
        ("requests.cpu", "56250m", "56"),
        ("cpu", "57", "56"),
        ("limits.memory", "609Gi", "608Gi"),
    ],
)
def test_a_quota_is_compared_with_the_largest_stage(
    answers: Answers, name: str, enough: str, too_little: str
) -> None:
    enough_but_quota(answers, quota(name, enough))
    assert asked(QWEN).problems == []
    enough_but_quota(answers, quota(name, too_little))
    (problem,) = asked(QWEN).problems
    assert (
        problem.where == "ResourceQuota/team"
        and f"allows {too_little} {name}, others use 0" in problem.message
    )


def test_what_others_use_is_not_there_and_what_the_run_uses_is(answers: Answers) -> None:
    enough_but_quota(answers, quota("requests.nvidia.com/gpu", "8", used="4"))
    (problem,) = asked(QWEN).problems
    assert "others use 4, the stage" in problem.message and problem.message.endswith("takes 6")
    pod = {"spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "4"}}}]}}
    answers.give("pods", {**pod, "status": {"phase": "Running"}})
    assert asked(QWEN).problems == []
    answers.give("pods", {**pod, "status": {"phase": "Succeeded"}})
    assert len(asked(QWEN).problems) == 1


def test_a_quota_for_some_pods_only_is_none_of_ours(answers: Answers) -> None:
    enough_but_quota(answers, quota("pods", "1", scopes=["BestEffort"]))
    assert asked(QWEN).problems == []


def test_components_are_part_of_what_is_checked(answers: Answers, tmp_path: Path) -> None:
    folder = with_components(tmp_path, QWEN, "multi-node", "kueue", "sharded-tasks")
    checked = check_folder(folder)
    assert checked.problems == []
    assert peak_gpus(checked.config)["train-solver"] == 10
    assert any("train-solver 10" in note for note in checked.notes)
    (trainer,) = [
        each for each in checked.objects if each["metadata"]["name"] == "qwen3-8b-i01-train-solver-a1"
    ]
    assert trainer["spec"]["parallelism"] == 2
    assert trainer["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "scope"
    # The controller, four workers and their four servers.
    enough_but_quota(answers, quota("pods", "8"))
    assert "takes 9" in asked(folder).problems[0].message


def test_a_volume_of_one_node_keeps_every_pod_there(tmp_path: Path) -> None:
    checked = check_folder(with_components(tmp_path / "one", QWEN, "single-node"))
    assert checked.problems == []
    for pods in pods_of(checked.objects):
        assert pods.spec["nodeSelector"] == {"scope/single-node": "true"}, pods.owner
    folder = with_components(tmp_path / "loose", QWEN)
    volume = folder.parents[1] / "base" / "foundation" / "volume.yaml"
    volume.write_text(volume.read_text().replace("ReadWriteMany", "ReadWriteOnce"))
    found = check_folder(folder).problems
    assert {each.where for each in found} >= {"Job/qwen3-8b-controller", "Deployment/qwen3-8b-judge"}
    assert all("which is ReadWriteOnce" in each.message for each in found)


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
    plan = make_plan(checked.config, gpus=max(peaks), gates=2, assumptions=Assumptions(), parameters=8e9)
    assert plan.gpu_hours > 0


def test_a_setting_of_a_component_that_is_wrong_is_blamed_on_it(tmp_path: Path) -> None:
    objects = rendered(with_components(tmp_path, QWEN, "multi-node"))
    (controller,) = [each for each in objects if each["kind"] == "Job"]
    controller["spec"]["template"]["spec"]["containers"][0]["args"][-1] = "cluster.train_solver.nodes=none"
    with pytest.raises(ConfigError, match=r"^--set cluster\.train_solver\.nodes=none: "):
        config_of(objects, tmp_path)


def test_a_gpu_with_the_workers_image_is_a_problem(tmp_path: Path) -> None:
    text = (QWEN / "setup" / "run.yaml").read_text()
    for name in ("trainer", "server"):
        text = text.replace(f"    {name}: scope-trainer:latest\n", "")
    text = text.replace("  images:\n", "  images:\n    worker: scope-selfplay:latest\n")
    found = {
        each.where: each.message for each in check_folder(with_components(tmp_path, QWEN, text=text)).problems
    }
    assert found.keys() == {"cluster.images.trainer", "cluster.images.server"}
    assert "train_challenger, train_solver would get GPUs" in found["cluster.images.trainer"]
    assert "judge, solver, challenger would get GPUs" in found["cluster.images.server"]


EXTERNAL = {
    "judge.endpoint.base_url": "https://judge.example/v1",
    "search.url": "https://search.example",
}


def external_text(port: str = "") -> str:
    run = yaml.safe_load((QWEN / "setup" / "run.yaml").read_text())
    run["judge"]["endpoint"]["base_url"] = f"https://judge.example{port}/v1"
    run |= {"search": {"url": EXTERNAL["search.url"]}}
    for server in ("judge", "retriever"):
        run["cluster"][server] = {"serve": False}
    return yaml.safe_dump(run)


def test_servers_outside_need_a_way_out_of_the_cluster(tmp_path: Path) -> None:
    folder = with_components(tmp_path / "without", QWEN, text=external_text())
    found = {each.where: each.message for each in check_folder(folder).problems}
    assert found.keys() == EXTERNAL.keys()
    for where, message in found.items():
        assert EXTERNAL[where] in message and "lets trainer and worker out to port 443" in message
    folder = with_components(tmp_path / "with", QWEN, "external-servers", text=external_text())
    assert check_folder(folder).problems == []
    folder = with_components(tmp_path / "port", QWEN, "external-servers", text=external_text(":8443"))
    (problem,) = check_folder(folder).problems
    assert problem.where == "judge.endpoint.base_url" and "out to port 8443" in problem.message
