"""A real API server takes every run folder, and its answers are what our own checks expect."""

import json
import shutil
from itertools import product
from pathlib import Path

import pytest

from scope_selfplay.base.errors import State
from scope_selfplay.cluster.check import applied_objects, check_cluster, check_folder, config_of, packs_of
from scope_selfplay.cluster.folder import yaml_text
from scope_selfplay.cluster.kubectl import Kubectl, kustomize
from scope_selfplay.cluster.objects import planned_objects
from scope_selfplay.driver.api import VERBS
from tests.cluster.conftest import fit_to_server, kubectl
from tests.unit.k8s.planted import PLANTED, UNENFORCED, tiny_objects

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture
def folder(request: pytest.FixtureRequest, api: object, tmp_path: Path) -> Path:
    """A run's folder of a copy of the checkout."""
    for part in ("k8s", "prompts"):
        shutil.copytree(REPOSITORY / part, tmp_path / part, symlinks=True)
    copied: Path = tmp_path / request.param.relative_to(REPOSITORY)
    fit_to_server(copied)
    return copied


REPOSITORY = Path(__file__).parents[2]
RUNS = sorted(each.parent for each in REPOSITORY.glob("k8s/runs/*/kustomization.yaml"))
PREPARED = sorted(each.parent for each in REPOSITORY.glob("k8s/runs/*/prepare/**/kustomization.yaml"))
TINY = REPOSITORY / "k8s" / "runs" / "tiny"
ALL_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


def name(folder: Path) -> str:
    return folder.name


@pytest.mark.parametrize("folder", RUNS, ids=name, indirect=True)
def test_a_run_folder_is_taken_twice_and_with_an_iteration(folder: Path, namespace: str) -> None:
    for part in (folder / "shared", folder):
        kubectl("apply", "--kustomize", str(part), "--namespace", namespace)
        again = kubectl("apply", "--kustomize", str(part), "--namespace", namespace).stdout
        assert all(line.endswith(" unchanged") for line in again.splitlines()), again
    more = kubectl("apply", "--kustomize", str(folder / "iteration-01"), "--namespace", namespace).stdout
    assert [line for line in more.splitlines() if not line.endswith(" unchanged")] == [
        f"job.batch/{config_of(kustomize(folder), folder).name}-i01-controller created"
    ]


@pytest.mark.parametrize("part", PREPARED, ids=lambda part: "-".join(part.parts[-3:]))
def test_what_prepares_a_run_is_taken(part: Path, namespace: str) -> None:
    kubectl("apply", "--kustomize", str(part), "--namespace", namespace)
    again = kubectl("apply", "--kustomize", str(part), "--namespace", namespace).stdout
    assert again and all(line.endswith(" unchanged") for line in again.splitlines()), again


@pytest.mark.parametrize("folder", RUNS, ids=name, indirect=True)
def test_what_the_controller_will_create_is_taken_too(folder: Path, namespace: str) -> None:
    checked, applied = check_folder(folder), applied_objects(folder)
    given = [each for each in checked.objects if each not in applied]
    assert given == planned_objects(checked.config, packs_of(applied, checked.config.name))
    documents = "---\n".join(yaml_text(body) for body in given)
    said = kubectl("apply", "--dry-run=server", "--namespace", namespace, "-f", "-", stdin=documents).stdout
    assert len(said.splitlines()) == len(given)


@pytest.mark.parametrize("folder", RUNS, ids=name, indirect=True)
def test_the_clusters_own_problems_are_named(folder: Path, namespace: str) -> None:
    kubectl("create", "secret", "generic", "servers", "--from-literal=token=key", "--namespace", namespace)
    problems = check_cluster(check_folder(folder), folder, Kubectl(namespace)).problems
    # A cluster for tests has no storage class, few GPUs and small nodes; nothing else may be wrong.
    small = ("StorageClass", "gpu", "on one node, the largest offers")
    assert [each for each in problems if not any(word in each.what for word in small)] == []


def test_the_controllers_account_may_do_what_it_does_and_nothing_else(namespace: str) -> None:
    kubectl("apply", "--kustomize", str(TINY / "shared"), "--namespace", namespace)
    account = f"--as=system:serviceaccount:{namespace}:scope-controller"
    things = [*VERBS, ("", "secrets"), ("", "pods/exec"), ("", "pods/log")]
    granted: dict[tuple[str, str], set[str]] = {}
    for (group, resource), verb in product(things, ALL_VERBS):
        full = f"{resource}.{group}" if group else resource
        # `pods/exec` would be read as a pod of the name exec.
        kind, _, part = full.partition("/")
        asked = (kind, f"--subresource={part}") if part else (kind,)
        said = kubectl("auth", "can-i", verb, *asked, account, "--namespace", namespace, check=False)
        if said.stdout.strip() == "yes":
            granted.setdefault((group, resource), set()).add(verb)
    assert granted == {key: set(each) for key, each in VERBS.items()}


def test_status_and_doctor_speak_about_a_real_cluster(namespace: str) -> None:
    from scope_selfplay.cluster.commands import examine, read_status

    folder = TINY
    kubectl("apply", "--kustomize", str(folder), "--namespace", namespace)
    found = read_status(Kubectl(namespace), folder.name)
    assert [each["name"] for each in found["jobs"]] == [f"{folder.name}-controller"]
    json.dumps(found)
    findings = {each.where: each.state for each in examine(Kubectl(namespace))}
    needed = ("cluster", "rights to run", "rights to set up")
    assert {findings[name] for name in needed} == {State.OK}


@pytest.mark.parametrize("fault", sorted(PLANTED.keys() - set(UNENFORCED)))
def test_a_server_refuses_what_the_check_without_one_finds(fault: str, namespace: str) -> None:
    """Our rules are no stricter than its own."""
    before, planted = tiny_objects(), tiny_objects()
    PLANTED[fault][0](planted)
    (body,) = [each for each in planted if each not in before]
    said = kubectl(
        "apply", "--dry-run=server", "--namespace", namespace, "-f", "-", stdin=yaml_text(body), check=False
    )
    assert said.returncode != 0, said.stdout
