"""`viewer/` of a run's folder: the run's web page, which reads the volume and talks to nobody."""

from pathlib import Path
from typing import Any

import click

from scope_selfplay.k8s.check import schema_problems
from scope_selfplay.k8s.check_references import reference_problems
from scope_selfplay.k8s.check_rules import rule_problems
from scope_selfplay.k8s.objects import Pods, allows, pods_of
from scope_selfplay.viewer.cli import view
from tests.unit.k8s.test_prepare import rendered, rendered_run


def viewer_of(top: Path, *components: str, **cluster: Any) -> tuple[Pods, list[dict[str, Any]], Path]:
    folder = rendered_run(top, *components, **cluster)
    bodies = rendered(folder / "viewer")
    (pod,) = pods_of(bodies)
    return pod, bodies, folder


def test_the_page_shows_the_run_and_may_not_write_to_it(tmp_path: Path) -> None:
    images = {"worker": "registry.example/scope:2"}
    pod, bodies, folder = viewer_of(tmp_path, images=images, pull_secret="registry", user=12345)
    assert {body["metadata"]["name"] for body in bodies} == {"r1-viewer"}
    (container,) = pod.containers
    with click.Context(view) as context:
        assert view.parse_args(context, list(container["args"])) == []
    assert context.params["run"] == "/data/runs/r1" and context.params["hosts"] == ("r1-viewer",)
    assert container["image"] == images["worker"]
    assert {"name": "data", "mountPath": "/data", "readOnly": True} in container["volumeMounts"]
    assert pod.spec["imagePullSecrets"] == [{"name": "registry"}]
    assert pod.spec["securityContext"]["runAsUser"] == 12345
    assert schema_problems(bodies) == [] and rule_problems(bodies) == []
    unused = ("podSelector", "rule matches no pods")
    found = [each.message for each in reference_problems([*rendered(folder / "shared"), *bodies])]
    assert [each for each in found if not any(part in each for part in unused)] == []


def test_only_pods_that_are_told_so_may_ask_it_and_it_asks_nobody(tmp_path: Path) -> None:
    pod, bodies, folder = viewer_of(tmp_path)
    objects = [*rendered(folder / "shared"), *bodies]
    policies = [body for body in objects if body["kind"] == "NetworkPolicy"]
    worker = Pods("Pod/worker", {**pod.labels, "app.kubernetes.io/component": "worker"}, {"containers": []})
    assert not allows(policies, "Ingress", pod, worker, 8080)
    assert not any(allows(policies, "Egress", pod, peer, 443) for peer in (worker, None))
    (policy,) = [body for body in bodies if body["kind"] == "NetworkPolicy"]
    (peer,) = policy["spec"]["ingress"][0]["from"]
    assert peer["podSelector"] == {"matchLabels": {"scope/may-view": "true"}}
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod.labels.items()


def test_on_a_volume_of_one_node_it_runs_on_that_node(tmp_path: Path) -> None:
    pod, _, _ = viewer_of(tmp_path, "single-node")
    assert pod.spec["nodeSelector"] == {"scope/single-node": "true"}
