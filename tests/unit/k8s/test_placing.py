"""Where a run's volume and pods can be, before a `kubectl` that answers from files."""

from pathlib import Path
from typing import Any

import yaml

from scope_selfplay.k8s.check import check_folder
from scope_selfplay.k8s.objects import pods_of
from tests.unit.k8s.conftest import QWEN, Answers, asked, with_components


def text_with(**cluster: Any) -> str:
    run = yaml.safe_load((QWEN / "setup" / "run.yaml").read_text())
    run["cluster"] |= cluster
    return yaml.safe_dump(run)


def claim(*modes: str) -> dict[str, Any]:
    return {"spec": {"accessModes": list(modes)}, "status": {"phase": "Bound"}}


def node(name: str, gpus: int, **labels: str) -> dict[str, Any]:
    status = {"allocatable": {"nvidia.com/gpu": str(gpus)}}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def messages(folder: Path, where: str) -> list[str]:
    return [each.message for each in asked(folder).problems if each.where == where]


def test_a_claim_of_ones_own_is_looked_for_on_the_cluster(answers: Answers, tmp_path: Path) -> None:
    folder = with_components(tmp_path / "top", QWEN, text=text_with(volume_claim="mine"))
    assert check_folder(folder).problems == []
    where = "PersistentVolumeClaim/mine"
    assert messages(folder, where) == ["does not exist; create it, or leave cluster.volume_claim out"]
    answers.give_one("persistentvolumeclaims", "mine", claim("ReadWriteOnce"))
    (message,) = messages(folder, where)
    assert message.startswith("is ReadWriteOnce, and the run wants ReadWriteMany")
    answers.give_one("persistentvolumeclaims", "mine", claim("ReadWriteMany"))
    assert messages(folder, where) == []


def test_every_pod_goes_to_the_node_of_the_volume(tmp_path: Path) -> None:
    text = text_with(node_selector={"pool": "a"})
    folder = with_components(tmp_path, QWEN, "single-node", text=text)
    checked = check_folder(folder)
    assert checked.problems == []
    assert checked.config.cluster.node_selector == {"pool": "a", "scope/single-node": "true"}
    # What an earlier render wrote: the whole selector over that of the component.
    setup = folder / "setup" / "kustomization.yaml"
    written = yaml.safe_load(setup.read_text())
    written["patches"][-1] = {
        "target": {"kind": "Job", "name": "controller"},
        "patch": yaml.safe_dump(
            [{"op": "add", "path": "/spec/template/spec/nodeSelector", "value": {"pool": "a"}}]
        ),
    }
    setup.write_text(yaml.safe_dump(written))
    (problem,) = check_folder(folder).problems
    assert problem.where == "Job/qwen3-8b-controller"
    assert "on a node with pool=a, and the run's other pods go to one with pool=a,scope/single-node=true" in (
        problem.message
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
    checked = check_folder(with_components(tmp_path, QWEN, "spot", text=text_with(tolerations=[own])))
    assert checked.problems == []
    for pods in pods_of(checked.objects):
        keys = [each["key"] for each in pods.spec["tolerations"]]
        spot = ["kubernetes.azure.com/scalesetpriority", "cloud.google.com/gke-spot"]
        more = [] if pods.owner == "Job/qwen3-8b-controller" else [*spot, "eks.amazonaws.com/capacityType"]
        assert keys == ["team", *more], pods.owner
        assert pods.spec["tolerations"][0] == own
