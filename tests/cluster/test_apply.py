"""A real API server takes every run folder, and its answers are what our own checks expect; docs/start/cluster.md
begins with at most ten commands from an empty namespace to a running `qwen3-8b`: they are typed as they stand there,
with a simulated node of eight GPUs and a volume that waits for the claim."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from scope_selfplay.base.errors import ConfigError, State
from scope_selfplay.cli import cli
from scope_selfplay.cluster.check import applied_objects, check_cluster, check_folder, config_of, packs_of
from scope_selfplay.cluster.check_cluster import is_older
from scope_selfplay.cluster.doctor import examine
from scope_selfplay.cluster.folder import yaml_text
from scope_selfplay.cluster.kubectl import Kubectl, kustomize
from scope_selfplay.cluster.objects import planned_objects
from scope_selfplay.config.load import load_config
from scope_selfplay.driver.follow import FollowedThere
from scope_selfplay.store.folder import RunFolder
from tests.cluster.conftest import fit_to_server, kubectl
from tests.cluster.simulated_node import SimulatedNode
from tests.cluster.test_pods import when
from tests.commands import ran
from tests.doc_commands import commands_of
from tests.unit.k8s.conftest import QWEN, REPOSITORY, RUNS, TINY, plain, with_components
from tests.unit.k8s.test_check import PLANTED, UNENFORCED, tiny_objects
from tests.unit.k8s.test_policies import DISK, MINIO

pytestmark = pytest.mark.cluster


@pytest.fixture
def folder(request: pytest.FixtureRequest, api: object, tmp_path: Path) -> Path:
    """A run's folder of a copy of the checkout."""
    for part in ("k8s", "prompts"):
        shutil.copytree(REPOSITORY / part, tmp_path / part, symlinks=True)
    copied: Path = tmp_path / request.param.relative_to(REPOSITORY)
    fit_to_server(copied)
    return copied


@pytest.mark.parametrize("folder", [TINY], ids=["tiny"], indirect=True)
def test_a_patch_of_a_controller_that_has_begun_is_refused_and_the_clusters_values_take_its_place(
    folder: Path, namespace: str
) -> None:
    def apply() -> str:
        done = kubectl("apply", "--kustomize", str(folder), "--namespace", namespace, check=False)
        return done.stdout if done.returncode == 0 else done.stderr

    tolerated = [{"key": "team", "operator": "Exists"}]
    assert "created" in apply()
    file, top = folder / "setup" / "kustomization.yaml", folder.parents[2]
    before = file.read_text()
    added = [{"op": "add", "path": "/spec/template/spec/tolerations", "value": tolerated}]
    patched = yaml.safe_load(before)
    patched["patches"].append({"target": {"kind": "Job"}, "patch": yaml_text(added)})
    file.write_text(yaml_text(patched))
    assert "field is immutable" in apply()
    file.write_text(before)
    assert {line.rpartition(" ")[2] for line in apply().splitlines()} == {"unchanged"}
    (top / "k8s" / "cluster.yaml").write_text(
        yaml_text({"cluster": {"cpu_pod": {"spec": {"tolerations": tolerated}}}})
    )
    render = ["k8s", "render", str(folder / "run.yaml"), "--update"]
    CliRunner().invoke(cli, render, catch_exceptions=False)
    assert re.search(r"job.batch/tiny-controller-[0-9a-f]{8} created", apply())


PREPARED = sorted(each.parent for each in REPOSITORY.glob("k8s/runs/*/prepare/**/kustomization.yaml"))


@pytest.mark.parametrize("folder", RUNS, ids=attrgetter("name"), indirect=True)
def test_a_run_folder_is_taken_twice_and_with_an_iteration(folder: Path, namespace: str) -> None:
    for part in (folder / "shared", folder):
        kubectl("apply", "--kustomize", str(part), "--namespace", namespace)
        again = kubectl("apply", "--kustomize", str(part), "--namespace", namespace).stdout
        assert all(line.endswith(" unchanged") for line in again.splitlines()), again
    more = kubectl("apply", "--kustomize", str(folder / "iteration-01"), "--namespace", namespace).stdout
    (made,) = [line for line in more.splitlines() if not line.endswith(" unchanged")]
    name = config_of(kustomize(folder), folder).name
    assert re.fullmatch(rf"job.batch/{name}-i01-controller-[0-9a-f]{{8}} created", made)


@pytest.mark.parametrize("part", PREPARED, ids=lambda part: "-".join(part.parts[-3:]))
def test_what_prepares_a_run_is_taken(part: Path, namespace: str) -> None:
    kubectl("apply", "--kustomize", str(part), "--namespace", namespace)
    again = kubectl("apply", "--kustomize", str(part), "--namespace", namespace).stdout
    assert again and all(line.endswith(" unchanged") for line in again.splitlines()), again


@pytest.mark.parametrize("folder", RUNS, ids=attrgetter("name"), indirect=True)
def test_what_the_controller_will_create_is_taken_too(folder: Path, namespace: str) -> None:
    checked, applied = check_folder(folder), applied_objects(folder)
    given = [each for each in checked.objects if each not in applied]
    assert given == planned_objects(checked.config, packs_of(applied, checked.config.name))
    documents = "---\n".join(yaml_text(body) for body in given)
    said = kubectl("apply", "--dry-run=server", "--namespace", namespace, "-f", "-", stdin=documents).stdout
    assert len(said.splitlines()) == len(given)


@pytest.mark.parametrize("source", [QWEN, TINY], ids=attrgetter("name"))
def test_a_run_with_a_store_and_a_disk_for_each_pod_is_taken(
    api: object, source: Path, namespace: str, tmp_path: Path
) -> None:
    settings = {"cluster__store": MINIO, "cluster__store_secret": "store"}
    # A server before 1.21 knows no claims of single pods.
    disk = {} if is_older(Kubectl().version(), "1.21") else {"cluster__pod": {"spec": {"volumes": [DISK]}}}
    folder = with_components(tmp_path, source, **settings, **disk)
    fit_to_server(folder)
    for part in (folder / "shared", folder, *folder.glob("prepare")):
        kubectl("apply", "--kustomize", str(part), "--namespace", namespace)
        again = kubectl("apply", "--kustomize", str(part), "--namespace", namespace).stdout
        assert all(line.endswith(" unchanged") for line in again.splitlines()), again
    test_what_the_controller_will_create_is_taken_too(folder, namespace)
    (dns,) = [
        each
        for each in Kubectl(namespace).objects("networkpolicies")
        if each["metadata"]["name"] == "scope-dns"
    ]
    assert {"port": 9000, "protocol": "TCP"} in dns["spec"]["egress"][-1]["ports"]


@pytest.mark.parametrize("folder", RUNS, ids=attrgetter("name"), indirect=True)
def test_the_clusters_own_problems_are_named(folder: Path, namespace: str) -> None:
    kubectl("create", "secret", "generic", "servers", "--from-literal=token=key", "--namespace", namespace)
    problems = check_cluster(check_folder(folder), folder, Kubectl(namespace)).problems
    # A cluster for tests has no storage class, few GPUs and small nodes; nothing else may be wrong.
    small = ("StorageClass", "gpu", "on one node, the largest offers")
    assert [each for each in problems if not any(word in each.what for word in small)] == []


def test_status_and_doctor_speak_about_a_real_cluster(namespace: str, tmp_path: Path) -> None:
    kubectl("apply", "--kustomize", str(TINY), "--namespace", namespace)
    followed = FollowedThere(Kubectl(namespace), RunFolder(tmp_path / TINY.name))
    found = followed.status()
    assert [plain(each["name"]) for each in found["parts"]] == ["tiny-controller"]
    json.dumps(found)
    findings = {each.where: each.state for each in examine(Kubectl(namespace))}
    needed = ("cluster", "rights to run", "rights to set up")
    assert {findings[name] for name in needed} == {State.OK}
    assert "deleted Job tiny-controller" in followed.stop()
    log = tmp_path / TINY.name / "log" / "tiny-judge-1.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\n")
    assert followed.logs("judge", 1) == "== tiny-judge-1\ntwo"
    with pytest.raises(ConfigError, match="no run of this name"):
        followed.status()


def test_an_ordinary_admin_of_a_namespace_sets_up_and_runs(
    namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the ClusterRole `admin`; of servers before 1.31 with what that of 1.31 has besides (the rules
    `system:aggregate-to-edit` of kubernetes/kubernetes). A doctor tells the two apart."""
    where = ("--namespace", namespace)
    kubectl("create", "rolebinding", "ann", "--clusterrole=admin", "--user=ann", *where)
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    for each in config["users"]:
        each["user"]["as"] = "ann"
    (tmp_path / "ann").write_text(yaml.safe_dump(config))
    for part in ("k8s", "prompts"):
        shutil.copytree(REPOSITORY / part, tmp_path / part, symlinks=True)
    folder = tmp_path / TINY.relative_to(REPOSITORY)
    fit_to_server(folder)

    def lacking() -> str:
        with monkeypatch.context() as patch:
            patch.setenv("KUBECONFIG", str(tmp_path / "ann"))
            findings = [each for each in examine(Kubectl(namespace)) if each.where.startswith("rights")]
        return "; ".join(each.what for each in findings if each.state is State.STOP)

    if is_older(Kubectl().version(), "1.31"):
        assert "attempting to grant RBAC permissions not currently held" in lacking()
        more = [
            ("", "events", ["create", "patch"]),
            ("coordination.k8s.io", "leases", ["get", "create", "update"]),
        ]
        rules = [{"apiGroups": [group], "resources": [kind], "verbs": verbs} for group, kind, verbs in more]
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "more"}}
        kubectl("apply", "-f", "-", *where, stdin=yaml_text(role | {"rules": rules}))
        kubectl("create", "rolebinding", "more", "--role=more", "--user=ann", *where)
    assert lacking() == ""
    for part in (folder / "shared", folder, folder / "iteration-01"):
        kubectl("apply", "--kustomize", str(part), *where, "--as=ann")


@pytest.mark.parametrize("folder", [TINY], ids=["tiny"], indirect=True)
def test_of_two_owners_neither_sees_the_others_run_nor_mounts_its_volume(
    folder: Path, namespace: str, neighbour: str, volume: Path
) -> None:
    """Each is admin of a namespace of their own; the volume waits for the first one's claim."""
    owners = {namespace: "ann", neighbour: "bob"}
    for where, owner in owners.items():
        kubectl(
            "create", "rolebinding", "owner", "--clusterrole=admin", f"--user={owner}", "--namespace", where
        )
        for part in (folder / "shared", folder):
            kubectl("apply", "--kustomize", str(part), "--namespace", where)

    def rights(person: str, where: str) -> str:
        listed = kubectl(
            "auth", "can-i", "--list", "--no-headers", "--as", person, "--namespace", where
        ).stdout
        # What is no resource has no name in front.
        return "\n".join(line for line in listed.splitlines() if line[0] != " " and "selfsubject" not in line)

    for where, other in ((namespace, neighbour), (neighbour, namespace)):
        accounts = [f"system:serviceaccount:{where}:scope-{name}" for name in ("controller", "worker")]
        assert "pods/exec" in rights(owners[where], where) and "jobs.batch" in rights(accounts[0], where)
        assert [rights(person, other) for person in (owners[where], *accounts)] == ["", "", ""]

    def phase(where: str) -> str:
        path = "jsonpath={.status.phase}"
        return kubectl("get", "pvc", "scope-data", "--namespace", where, "--output", path).stdout

    when(lambda: phase(namespace) == "Bound", minutes=1, namespace=namespace)
    assert phase(neighbour) == "Pending"


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


RUN = "k8s/runs/qwen3-8b"
ASKED = [each.text for each in commands_of(REPOSITORY / "docs" / "start" / "cluster.md")]
PATH = ASKED[ASKED.index("pip install '.[k8s]'") : ASKED.index("scope status qwen3-8b") + 1]


@pytest.fixture
def node(api: object, namespace: str, tmp_path: Path) -> Iterator[SimulatedNode]:
    with SimulatedNode(api, namespace, tmp_path / "stages") as found:
        # The run's controller is not in this image: its pod runs, and is what was asked for.
        found.holds = lambda pod: "controller" in pod
        yield found


@pytest.fixture
def place(node: SimulatedNode, namespace: str, volume: Path, tmp_path: Path) -> Path:
    """A checkout and a kubeconfig of somebody who begins: the namespace is the context's, the images are named."""
    top = tmp_path / "checkout"
    for part in ("k8s", "prompts"):
        shutil.copytree(REPOSITORY / part, top / part, symlinks=True)
    settings = top / RUN / "setup" / "run.yaml"
    config = yaml.safe_load(settings.read_text())
    config["cluster"]["pod"] = {"spec": {"nodeSelector": node.selector}}
    settings.write_text(yaml.safe_dump(config))
    fit_to_server(top / RUN)
    context = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    for each in context["contexts"]:
        each["context"]["namespace"] = namespace
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(context))
    return top


def test_the_path_has_at_most_ten_commands_and_applies_with_the_sixth() -> None:
    assert len(PATH) <= 10 and PATH[5].startswith("kubectl apply"), PATH
    assert load_config(REPOSITORY / RUN / "run.yaml").name == "qwen3-8b"


def test_a_stranger_gets_from_an_empty_namespace_to_a_running_run(place: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig"), "PYTHONPATH": str(REPOSITORY)}
    said: dict[str, str] = {}
    for command in PATH[1:]:
        # By a shell, as it would be typed; there may be no `scope` on its path.
        typed = re.sub(r"^scope ", f"{shlex.quote(sys.executable)} -m scope_selfplay ", command)
        done = ran(["bash", "-c", typed], cwd=place, env=environment, timeout=240)
        said[command] = done.stdout + done.stderr
        assert done.returncode == 0, f"{command}: {said[command]}"
    assert "0 problem(s)" in said[next(each for each in PATH if "k8s check" in each)]
    waited = said[next(each for each in PATH if "kubectl wait" in each)]
    jobs = ("probe-volume", "fetch-model", "fetch-encoder", "fetch-corpus", "build-index")
    for job in jobs:
        assert re.search(rf"job.batch/qwen3-8b-{job}-[0-9a-f]+ condition met", waited)

    where = yaml.safe_load((tmp_path / "kubeconfig").read_text())["contexts"][0]["context"]["namespace"]
    pods = json.loads(kubectl("get", "pods", "-n", where, "-l", "scope/run=qwen3-8b", "-o", "json").stdout)
    assert [pod["status"]["phase"] for pod in pods["items"]] == ["Running"]
    assert "qwen3-8b-controller" in said[PATH[-1]]
