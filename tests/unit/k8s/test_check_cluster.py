"""Quotas, volumes and nodes, before a `kubectl` that answers from files and refuses what is not there."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from scope_selfplay.cluster.check import check_folder
from scope_selfplay.cluster.objects import pods_of
from tests.unit.k8s.conftest import QWEN, Answers, cluster_check, text_of, with_components


def test_rights_in_one_namespace_are_enough_for_a_check(answers: Answers) -> None:
    answers.give("resourcequotas")
    found = cluster_check(QWEN)
    assert found.problems == []
    from_cluster = found.notes[len(check_folder(QWEN).notes) :]
    unchecked = [note.partition(" not checked: ")[0] for note in from_cluster]
    assert unchecked == ["storage classes", "nodes and their GPUs"]
    assert all("Forbidden" in note for note in from_cluster)


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
        ("limits.memory", "481Gi", "480Gi"),
    ],
)
def test_a_quota_is_compared_with_the_largest_stage(
    answers: Answers, name: str, enough: str, too_little: str
) -> None:
    enough_but_quota(answers, quota(name, enough))
    assert cluster_check(QWEN).problems == []
    enough_but_quota(answers, quota(name, too_little))
    (problem,) = cluster_check(QWEN).problems
    assert (
        problem.where == "ResourceQuota/team" and f"allows {too_little} {name}, others use 0" in problem.what
    )


def test_what_others_use_is_not_there_and_what_the_run_uses_is(answers: Answers) -> None:
    enough_but_quota(answers, quota("requests.nvidia.com/gpu", "8", used="4"))
    (problem,) = cluster_check(QWEN).problems
    assert "others use 4, the stage" in problem.what and problem.what.endswith("takes 6")
    pod = {"spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "4"}}}]}}
    answers.give("pods", {**pod, "status": {"phase": "Running"}})
    assert cluster_check(QWEN).problems == []
    answers.give("pods", {**pod, "status": {"phase": "Succeeded"}})
    assert len(cluster_check(QWEN).problems) == 1


def test_a_quota_for_some_pods_only_is_none_of_ours(answers: Answers) -> None:
    enough_but_quota(answers, quota("pods", "1", scopes=["BestEffort"]))
    assert cluster_check(QWEN).problems == []


def test_a_volume_of_one_node_keeps_every_pod_there(tmp_path: Path) -> None:
    checked = check_folder(with_components(tmp_path / "one", QWEN, "single-node"))
    assert checked.problems == []
    for pods in pods_of(checked.objects):
        assert pods.spec["nodeSelector"] == {"scope/single-node": "true"}, pods.owner
    folder = with_components(tmp_path / "loose", QWEN)
    volume = folder.parents[1] / "shared" / "volume.yaml"
    volume.write_text(volume.read_text().replace("ReadWriteMany", "ReadWriteOnce"))
    found = check_folder(folder).problems
    assert {each.where for each in found} >= {"Job/qwen3-8b-controller", "Deployment/qwen3-8b-judge"}
    assert all("which is ReadWriteOnce" in each.what for each in found)


def claim(*modes: str) -> dict[str, Any]:
    return {"spec": {"accessModes": list(modes)}, "status": {"phase": "Bound"}}


def node(name: str, gpus: int, **labels: str) -> dict[str, Any]:
    status = {"allocatable": {"nvidia.com/gpu": str(gpus)}}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def messages(folder: Path, where: str) -> list[str]:
    return [each.what for each in cluster_check(folder).problems if each.where == where]


def test_a_claim_of_ones_own_is_looked_for_on_the_cluster(answers: Answers, tmp_path: Path) -> None:
    folder = with_components(tmp_path / "top", QWEN, text=text_of(QWEN, cluster__volume_claim="mine"))
    assert check_folder(folder).problems == []
    where = "PersistentVolumeClaim/mine"
    assert messages(folder, where) == ["does not exist; create it, or leave cluster.volume_claim out"]
    answers.give_one("persistentvolumeclaims", "mine", claim("ReadWriteOnce"))
    (message,) = messages(folder, where)
    assert message.startswith("is ReadWriteOnce, and the run wants ReadWriteMany")
    answers.give_one("persistentvolumeclaims", "mine", claim("ReadWriteMany"))
    assert messages(folder, where) == []


def test_every_pod_goes_to_the_node_of_the_volume(tmp_path: Path) -> None:
    text = text_of(QWEN, cluster__pod={"spec": {"nodeSelector": {"pool": "a"}}})
    folder = with_components(tmp_path, QWEN, "single-node", text=text)
    checked = check_folder(folder)
    assert checked.problems == []
    assert checked.config.cluster.node_selector == {"pool": "a", "scope/single-node": "true"}
    # A person's patch: the whole selector over that of the component.
    setup = folder / "setup" / "kustomization.yaml"
    written = yaml.safe_load(setup.read_text())
    change = [{"op": "add", "path": "/spec/template/spec/nodeSelector", "value": {"pool": "a"}}]
    target = {"kind": "Job", "name": "qwen3-8b-controller"}
    written["patches"].append({"target": target, "patch": yaml.safe_dump(change)})
    setup.write_text(yaml.safe_dump(written))
    (problem,) = check_folder(folder).problems
    assert problem.where == "Job/qwen3-8b-controller"
    assert "on a node with pool=a, and the run's other pods go to one with pool=a,scope/single-node=true" in (
        problem.what
    )


def test_gpus_of_nodes_that_the_run_may_not_go_to_do_not_count(answers: Answers, tmp_path: Path) -> None:
    folder = with_components(tmp_path / "top", QWEN, "single-node")
    label = {"scope/single-node": "true"}
    answers.give("nodes", node("a", 4), node("b", 4))
    (message,) = messages(folder, "nodes")
    assert message.startswith("none has scope/single-node=true; label one")
    answers.give("nodes", node("a", 4, **label), node("b", 4, **label))
    two, few = messages(folder, "nodes")
    assert two.startswith("2 have scope/single-node=true, and the volume is ReadWriteOnce")
    assert few == ("offer 4 nvidia.com/gpu, the largest stage takes 6 all on the one node of the volume")
    answers.give("nodes", node("a", 8, **label), node("b", 4))
    assert messages(folder, "nodes") == []


def test_several_nodes_share_a_run_whose_volume_they_share(answers: Answers) -> None:
    answers.give("nodes", node("a", 4), node("b", 4))
    assert messages(QWEN, "nodes") == []
    answers.give("nodes", node("a", 4), node("b", 1))
    assert messages(QWEN, "nodes") == ["offer 5 nvidia.com/gpu, the largest stage takes 6 at once"]


def test_spot_nodes_are_tolerated_besides_what_the_run_tolerates(tmp_path: Path) -> None:
    own = {"key": "team", "operator": "Equal", "value": "x", "effect": "NoSchedule"}
    checked = check_folder(
        with_components(
            tmp_path, QWEN, "spot", text=text_of(QWEN, cluster__pod={"spec": {"tolerations": [own]}})
        )
    )
    assert checked.problems == []
    for pods in pods_of(checked.objects):
        keys = [each["key"] for each in pods.spec["tolerations"]]
        spot = ["kubernetes.azure.com/scalesetpriority", "cloud.google.com/gke-spot"]
        more = [] if pods.owner == "Job/qwen3-8b-controller" else [*spot, "eks.amazonaws.com/capacityType"]
        if any("nvidia.com/gpu" in container["resources"]["limits"] for container in pods.containers):
            more.append("nvidia.com/gpu")
        assert keys == ["team", *more], pods.owner
        assert pods.spec["tolerations"][0] == own


def held_by_others(node_name: str, **requests: str) -> dict[str, Any]:
    container = {"resources": {"requests": requests}}
    spec = {"nodeName": node_name, "containers": [container]}
    return {"metadata": {"name": "other", "labels": {}}, "spec": spec, "status": {"phase": "Running"}}


def test_gpus_that_other_pods_hold_are_not_free(answers: Answers) -> None:
    answers.give("nodes", node("a", 8))
    answers.give("everywhere", held_by_others("a", **{"nvidia.com/gpu": "2"}))
    assert messages(QWEN, "nodes") == []
    answers.give("everywhere", held_by_others("a", **{"nvidia.com/gpu": "4"}))
    (message,) = messages(QWEN, "nodes")
    assert message.startswith(
        "have 4 free nvidia.com/gpu (other pods hold 4), the largest stage takes 6 at once"
    )
    # What the run itself holds is its own.
    ours = held_by_others("a", **{"nvidia.com/gpu": "4"})
    ours["metadata"]["labels"] = {"scope/run": "qwen3-8b"}
    answers.give("everywhere", ours)
    assert messages(QWEN, "nodes") == []


def test_a_node_that_takes_no_pods_of_the_run_offers_nothing(answers: Answers) -> None:
    gpus = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    team = {"key": "team", "value": "vision", "effect": "NoSchedule"}
    for taints, expected in (([gpus], 0), ([gpus, {**team, "effect": "PreferNoSchedule"}], 0), ([team], 5)):
        answers.give("nodes", {**node("a", 8), "spec": {"taints": taints}})
        found = [each for each in cluster_check(QWEN).problems if "team=vision is a taint" in each.what]
        assert len(found) >= expected if expected else not found
    answers.give("nodes", {**node("a", 8), "spec": {"unschedulable": True}})
    assert messages(QWEN, "nodes") == ["offer 0 nvidia.com/gpu, the largest stage takes 6 at once"]


def test_pods_without_gpus_need_a_node_that_takes_them(answers: Answers) -> None:
    tainted = node("a", 8)
    tainted["spec"] = {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}
    small = node("b", 0)
    small["status"]["allocatable"] |= {"cpu": "4", "memory": "16Gi"}
    answers.give("nodes", tainted)
    assert messages(QWEN, "Job/qwen3-8b-controller") == [
        "tolerates no node: nvidia.com/gpu= is a taint of theirs; tolerate it in cluster.pod"
    ]
    answers.give("nodes", tainted, small)
    assert messages(QWEN, "Job/qwen3-8b-controller") == []
    assert messages(QWEN, "Deployment/qwen3-8b-retriever") == [
        "takes 16 cpu on one node, the largest offers 4",
        "takes 32Gi memory on one node, the largest offers 16Gi",
    ]


def test_cpu_and_memory_of_a_stage_fit_the_one_node_of_the_volume(answers: Answers, tmp_path: Path) -> None:
    folder = with_components(tmp_path / "top", QWEN, "single-node")
    big = node("a", 8, **{"scope/single-node": "true"})
    big["status"]["allocatable"] |= {"cpu": "96", "memory": "1000Gi"}
    answers.give("nodes", big)
    assert messages(folder, "nodes") == []
    answers.give("everywhere", held_by_others("a", memory="600Gi"))
    (message,) = messages(folder, "nodes")
    assert message.startswith("have 400Gi free memory (other pods hold 600Gi), the largest stage takes 480Gi")
    assert "all on the one node of the volume" in message
