"""Trackers of a training on a cluster: key from a Secret, way out from a component, and neither unless asked."""

from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.cluster.check import check_folder
from scope_selfplay.cluster.objects import name_of, planned_objects, pods_of
from tests.unit.k8s.conftest import QWEN, Answers, cluster_check, text_of, with_components

KEYED = {"cluster__tracking_secret": "wandb"}


def text_with(*trackers: str, **changes: Any) -> str:
    return text_of(QWEN, tracking={"report_to": list(trackers)}, **changes)


def problems(top: Path, text: str, *components: str) -> dict[str, str]:
    found = check_folder(with_components(top, QWEN, *components, text=text)).problems
    return {problem.where: problem.what for problem in found}


def test_nobody_but_trainers_gets_the_secret_and_without_one_nothing_changes(tmp_path: Path) -> None:
    folder = with_components(tmp_path, QWEN, "tracking", text=text_with("wandb", **KEYED))
    checked = check_folder(folder)
    assert checked.problems == []
    sources = {
        pods.owner: [each for container in pods.containers for each in container.get("envFrom") or []]
        for pods in pods_of(checked.objects)
    }
    holders = {owner for owner, found in sources.items() if found == [{"secretRef": {"name": "wandb"}}]}
    assert holders == {owner for owner in sources if "-train-" in owner} and holders
    planned = planned_objects(check_folder(QWEN).config, ["wikipedia"])
    assert all("envFrom" not in container for pods in pods_of(planned) for container in pods.containers)


def test_the_way_out_is_the_trainers_alone_and_shared_by_the_runs_of_a_namespace(tmp_path: Path) -> None:
    folder = with_components(tmp_path, QWEN, "tracking", text=text_with("wandb", **KEYED))
    (policy,) = [
        body for body in check_folder(folder).objects if name_of(body) == "NetworkPolicy/scope-tracking"
    ]
    assert policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "trainer"
    assert policy["spec"]["policyTypes"] == ["Egress"]
    assert "k8s/components/tracking" in (folder / "shared" / "kustomization.yaml").read_text()
    assert "tracking" not in (folder / "setup" / "kustomization.yaml").read_text()


def test_a_missing_key_and_a_closed_way_are_found_without_a_cluster(tmp_path: Path) -> None:
    (message,) = problems(tmp_path / "a", text_with("wandb"), "tracking").values()
    assert message.startswith("needs WANDB_API_KEY in training pods; create a Secret with this key")
    found = problems(tmp_path / "b", text_with("wandb", **KEYED))
    assert found == {
        "tracking.report_to wandb": (
            "is outside the cluster, and no NetworkPolicy lets training out to port 443; add the component tracking"
        )
    }
    assert problems(tmp_path / "c", text_with("wandb", **KEYED), "external-servers") == {}


@pytest.mark.parametrize(
    ("tracker", "variables"),
    [
        ("wandb", {"WANDB_MODE": "offline"}),
        ("mlflow", {"MLFLOW_TRACKING_URI": "http://mlflow:5000"}),
        ("tensorboard", {}),
        ("trackio", {}),
    ],
)
def test_trackers_that_stay_inside_need_no_way_out(
    tmp_path: Path, tracker: str, variables: dict[str, str]
) -> None:
    env = [{"name": name, "value": value} for name, value in variables.items()]
    pod = {"spec": {"containers": [{"name": "main", "env": env}]}}
    assert problems(tmp_path, text_with(tracker, cluster__pod=pod)) == {}


def test_a_secret_that_the_namespace_lacks_or_whose_key_is_another_is_found_there(
    answers: Answers, tmp_path: Path
) -> None:
    answers.give("resourcequotas")
    text = text_with("wandb", cluster__key_secret="servers", **KEYED)
    folder = with_components(tmp_path / "run", QWEN, "tracking", text=text)
    answers.give_one("secrets", "servers", {"data": {"key": "eA=="}})
    found = {problem.where: problem.what for problem in cluster_check(folder).problems}
    assert found == {
        "cluster.key_secret": (
            "names the Secret servers, which has no key token; delete it, then kubectl create secret generic servers "
            "--from-literal=token=$(openssl rand -hex 32)"
        ),
        "cluster.tracking_secret": (
            "names the Secret wandb, which the namespace does not have; kubectl create secret generic wandb "
            "--from-file=WANDB_API_KEY=FILE"
        ),
    }
    answers.give_one("secrets", "servers", {"data": {"token": "eA=="}})
    answers.give_one("secrets", "wandb", {"data": {"WANDB_API_KEY": "eA=="}})
    assert cluster_check(folder).problems == []
