"""`scope k8s check --cluster` and `scope k8s doctor`: quotas, volumes, nodes, versions and Secrets, before a `kubectl`
that answers from files and refuses what is not there; and the reason of a failing one."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from jobs.__main__ import exit_code_of
from scope_selfplay.base.errors import ConfigError, ExitCode, Finding, OutsideError, State
from scope_selfplay.cli import cli
from scope_selfplay.cluster.check import VERSIONS, check_folder, schema_problems
from scope_selfplay.cluster.check_cluster import OLDEST
from scope_selfplay.cluster.doctor import examine
from scope_selfplay.cluster.kubectl import Kubectl
from scope_selfplay.cluster.objects import pods_of
from scope_selfplay.config.load import parse_config
from tests.unit.k8s.conftest import (
    QWEN,
    TINY,
    Answers,
    cluster_check,
    plain,
    rendered,
    take_as_kubectl,
    with_components,
)

GPU = "nvidia.com/gpu"
LABEL = {"scope/single-node": "true"}


def messages(folder: Path, where: str) -> list[str]:
    return [each.what for each in cluster_check(folder).problems if plain(each.where) == where]


def doctor(where: str) -> Finding:
    (finding,) = [each for each in examine(Kubectl()) if each.where == where]
    return finding


def test_rights_in_one_namespace_are_enough_for_a_check_and_for_a_doctor(answers: Answers) -> None:
    assert doctor("quotas").state is State.OK and "cannot be seen" in doctor("quotas").what
    answers.give("resourcequotas")
    found = cluster_check(QWEN)
    assert found.problems == []
    from_cluster = found.notes[len(check_folder(QWEN).notes) :]
    unchecked = [note.partition(": not checked: ")[0] for note in from_cluster]
    assert unchecked == ["storage classes", "nodes and their GPUs", "what the volume can do"]
    assert all("Forbidden" in note for note in from_cluster)
    assert all(finding.state is State.OK for finding in examine(Kubectl()))


def quota(name: str, hard: str, used: str = "0", **spec: Any) -> dict[str, Any]:
    status = {"hard": {name: hard}, "used": {name: used}}
    return {"kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": spec, "status": status}


def give_quota(answers: Answers, *quotas: dict[str, Any]) -> None:
    answers.give("resourcequotas", *quotas)
    for kind in ("pods", "jobs", "deployments", "services"):
        answers.give(kind)


@pytest.mark.parametrize(
    ("name", "enough", "too_little"),
    [
        # Controller, Job, judge, retriever, Challenger and Solver while tasks are made.
        ("pods", "6", "5"),
        ("count/jobs.batch", "2", "1"),
        (f"requests.{GPU}", "6", "5"),
        ("cpu", "57", "56"),
        ("limits.memory", "481Gi", "480Gi"),
    ],
)
def test_a_quota_is_compared_with_the_largest_stage(
    answers: Answers, name: str, enough: str, too_little: str
) -> None:
    give_quota(answers, quota(name, enough))
    assert cluster_check(QWEN).problems == []
    give_quota(answers, quota(name, too_little))
    (problem,) = cluster_check(QWEN).problems
    assert problem.where == "ResourceQuota/team"
    assert f"allows {too_little} {name}, others use 0" in problem.what


def test_what_others_use_is_not_there_and_what_the_run_uses_is(answers: Answers) -> None:
    give_quota(answers, quota(f"requests.{GPU}", "8", used="4"))
    (message,) = messages(QWEN, "ResourceQuota/team")
    assert "others use 4, the stage" in message and message.endswith("takes 6")
    pod = {"spec": {"containers": [{"resources": {"requests": {GPU: "4"}}}]}}
    answers.give("pods", {**pod, "status": {"phase": "Running"}})
    assert messages(QWEN, "ResourceQuota/team") == []
    answers.give("pods", {**pod, "status": {"phase": "Succeeded"}})
    assert len(messages(QWEN, "ResourceQuota/team")) == 1
    # A quota for some pods only is none of ours.
    give_quota(answers, quota("pods", "1", scopes=["BestEffort"]))
    assert cluster_check(QWEN).problems == []


def test_a_volume_of_one_node_keeps_every_pod_there(tmp_path: Path) -> None:
    own = {"spec": {"nodeSelector": {"pool": "a"}}}
    folder = with_components(tmp_path / "one", QWEN, "single-node", cluster__pod=own)
    checked = check_folder(folder)
    assert checked.problems == []
    assert checked.config.cluster.node_selector == {"pool": "a", **LABEL}
    for pods in pods_of(checked.objects):
        assert pods.spec["nodeSelector"] == {"pool": "a", **LABEL}, pods.owner
    # A person's patch: the whole selector over that of the component.
    setup = folder / "setup" / "kustomization.yaml"
    written = yaml.safe_load(setup.read_text())
    change = [{"op": "add", "path": "/spec/template/spec/nodeSelector", "value": {"pool": "a"}}]
    target = {"kind": "Job", "name": "qwen3-8b-controller-.*"}
    written["patches"].append({"target": target, "patch": yaml.safe_dump(change)})
    setup.write_text(yaml.safe_dump(written))
    (problem,) = check_folder(folder).problems
    assert plain(problem.where) == "Job/qwen3-8b-controller"
    said = "on a node with pool=a, and the run's other pods go to one with pool=a,scope/single-node=true"
    assert said in problem.what

    folder = with_components(tmp_path / "loose", QWEN)
    volume = folder.parents[1] / "shared" / "volume.yaml"
    volume.write_text(volume.read_text().replace("ReadWriteMany", "ReadWriteOnce"))
    found = check_folder(folder).problems
    assert {plain(each.where) for each in found} >= {"Job/qwen3-8b-controller", "Deployment/qwen3-8b-judge"}
    assert all("which is ReadWriteOnce" in each.what for each in found)


def test_a_claim_of_ones_own_is_looked_for_on_the_cluster(answers: Answers, tmp_path: Path) -> None:
    folder = with_components(tmp_path / "top", QWEN, cluster__volume_claim="mine")
    assert check_folder(folder).problems == []
    where = "PersistentVolumeClaim/mine"
    assert messages(folder, where) == ["does not exist; create it, or leave cluster.volume_claim out"]
    for mode, said in (("Once", ["is ReadWriteOnce, and the run wants ReadWriteMany"]), ("Many", [])):
        claim = {"spec": {"accessModes": [f"ReadWrite{mode}"]}, "status": {"phase": "Bound"}}
        answers.give_one("persistentvolumeclaims", "mine", claim)
        assert [message.partition(";")[0] for message in messages(folder, where)] == said


def node(name: str, gpus: int, labels: dict[str, str] | None = None, **offers: str) -> dict[str, Any]:
    status = {"allocatable": {GPU: str(gpus), **offers}}
    return {"metadata": {"name": name, "labels": labels or {}}, "status": status}


def held_by_others(node_name: str, **labels_and_requests: Any) -> dict[str, Any]:
    labels = labels_and_requests.pop("labels", {})
    spec = {"nodeName": node_name, "containers": [{"resources": {"requests": labels_and_requests}}]}
    return {"metadata": {"name": "other", "labels": labels}, "spec": spec, "status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("nodes", "held", "said"),
    [
        (
            [node("a", 4, LABEL), node("b", 4, LABEL)],
            [],
            [
                "2 have scope/single-node=true, and the volume is ReadWriteOnce",
                "offer 4 nvidia.com/gpu, the largest stage takes 6 all on the one node of the volume",
            ],
        ),
        ([node("a", 8, LABEL, cpu="96", memory="1000Gi")], [], []),
        (
            [node("a", 8, LABEL, cpu="96", memory="1000Gi")],
            [held_by_others("a", memory="600Gi")],
            ["have 400Gi free memory (other pods hold 600Gi), the largest stage takes 480Gi all on the one node"],
        ),
    ],
)  # fmt: skip
def test_a_run_of_one_node_needs_one_with_its_label_and_room(
    answers: Answers, tmp_path: Path, nodes: list[Any], held: list[Any], said: list[str]
) -> None:
    answers.give("nodes", *nodes)
    answers.give("everywhere", *held)
    found = messages(with_components(tmp_path / "top", QWEN, "single-node"), "nodes")
    assert len(found) == len(said)
    assert all(message.startswith(start) for message, start in zip(found, said, strict=True)), found


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({}, ["have 4 free nvidia.com/gpu (other pods hold 4), the largest stage takes 6 at once"]),
        # What the run itself holds is its own.
        ({"scope/run": "qwen3-8b"}, []),
    ],
)
def test_gpus_are_those_of_open_nodes_without_what_other_pods_hold(
    answers: Answers, labels: dict[str, str], said: list[str]
) -> None:
    answers.give("nodes", node("a", 8))
    answers.give("everywhere", held_by_others("a", **{GPU: "4"}, labels=labels))
    assert [message.partition(";")[0] for message in messages(QWEN, "nodes")] == said


@pytest.mark.parametrize(
    ("found", "changes", "lacking"),
    [
        (node("a", 0), {}, GPU),
        (node("a", 8) | {"spec": {"unschedulable": True}}, {}, GPU),
        (node("a", 8), {"cluster__pod": {"spec": {"nodeSelector": LABEL}}}, "scope/single-node=true"),
        (node("a", 8), {"cluster__gpu_pod": {"spec": {"nodeSelector": {"pool": "h100"}}}}, "pool=h100"),
    ],
    ids=["no GPU", "cordoned", "no label", "no pool"],
)
def test_a_pool_that_begins_from_zero_is_a_note(
    answers: Answers, tmp_path: Path, found: dict[str, Any], changes: dict[str, Any], lacking: str
) -> None:
    """An autoscaler makes a node when a pod waits for one."""
    answers.give("nodes", found)
    answers.give("everywhere")
    checked = cluster_check(with_components(tmp_path / "top", QWEN, **changes))
    assert checked.problems == []
    notes = [note for note in checked.notes if note.startswith("nodes: ")]
    assert [note.split(";")[0] for note in notes] == [f"nodes: none has {lacking} now"]


def storage_class(name: str, provisioner: str, *, default: bool = False) -> dict[str, Any]:
    annotations = {"storageclass.kubernetes.io/is-default-class": str(default).lower()}
    return {"metadata": {"name": name, "annotations": annotations}, "provisioner": provisioner}


GP3 = storage_class("gp3", "ebs.csi.aws.com", default=True)
EFS = storage_class("efs-sc", "efs.csi.aws.com")


def test_a_claim_for_several_nodes_is_not_left_to_block_storage(answers: Answers, tmp_path: Path) -> None:
    answers.give("storageclasses", GP3, EFS)
    (found,) = messages(QWEN, "PersistentVolumeClaim/scope-data")
    assert (
        "the StorageClass gp3 (ebs.csi.aws.com) are one node's; name one for several nodes (efs-sc)" in found
    )
    # The empty name asks for a volume that was made by hand.
    for name in ("efs-sc", ""):
        named = with_components(tmp_path / f"named-{name}", QWEN, cluster__claim={"storageClassName": name})
        assert messages(named, "PersistentVolumeClaim/scope-data") == []


def head_of(file: Path) -> str:
    """What a doctor asks for."""
    return "".join(line for line in file.read_text().splitlines() if line.startswith("#   "))


def test_a_doctor_writes_what_it_sees_and_asks_for_the_rest(answers: Answers, tmp_path: Path) -> None:
    file = tmp_path / "k8s" / "cluster.yaml"
    taints = [{"key": "team", "value": "a", "effect": "NoSchedule"}]
    mig = node("a", 0) | {"spec": {"taints": taints}}
    mig["status"]["allocatable"] |= {"nvidia.com/mig-3g.40gb": "4"}
    mig["metadata"]["labels"] = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB"}
    answers.give("nodes", mig, node("b", 0))
    answers.give("storageclasses", GP3, EFS)
    answers.give("localqueues", {"metadata": {"name": "research"}})
    answers.give("runtimeclasses", {"metadata": {"name": "nvidia"}})
    assert CliRunner().invoke(cli, ["k8s", "doctor", "--write", str(file)]).exit_code == 0
    cluster = yaml.safe_load(file.read_text())["cluster"]
    spec = cluster["gpu_pod"]["spec"]
    assert cluster["claim"] == {"storageClassName": "efs-sc"} and cluster["queue"] == "research"
    assert cluster["gpu_resource"] == "nvidia.com/mig-3g.40gb" and spec["runtimeClassName"] == "nvidia"
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB"}
    assert spec["tolerations"] == [{"key": "team", "operator": "Exists"}]
    named = {"registry", "imagePullSecrets", "proxy", "hub"}
    unseen = {"claim: {storageClassName", "gpu_pod"}
    assert {each for each in named | unseen if f"{each}:" in head_of(file)} == named
    parse_config({"cluster": cluster})
    for kind in ("nodes", "storageclasses"):
        answers.give(kind)
    other = tmp_path / "other.yaml"
    assert CliRunner().invoke(cli, ["k8s", "doctor", "--write", str(other)]).exit_code == 0
    assert {each for each in named | unseen if f"{each}:" in head_of(other)} == named | unseen


def test_a_doctor_ends_with_64_where_a_right_is_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = 'Error from server (Forbidden): roles "scope-controller" is forbidden: attempting to grant RBAC permissions'
    cases = f"*apply*) echo '{said}' >&2; exit 1 ;;\n*can-i*) echo yes ;;\n*) echo '{{}}' ;;"
    take_as_kubectl(f'#!/bin/sh\ncase "$*" in\n{cases}\nesac\n', tmp_path, monkeypatch)
    done = CliRunner().invoke(cli, ["k8s", "doctor"])
    assert done.exit_code == ExitCode.USER and "attempting to grant RBAC" in done.stdout


def test_a_node_that_takes_no_pods_of_the_run_offers_nothing(answers: Answers) -> None:
    gpus = {"key": GPU, "effect": "NoSchedule"}
    team = {"key": "team", "value": "vision", "effect": "NoSchedule"}
    for taints, is_closed in (
        ([gpus], False),
        ([gpus, {**team, "effect": "PreferNoSchedule"}], False),
        ([team], True),
    ):
        answers.give("nodes", {**node("a", 8), "spec": {"taints": taints}})
        found = [each for each in cluster_check(QWEN).problems if "team=vision is a taint" in each.what]
        assert len(found) >= 5 if is_closed else not found
    # Pods without GPUs need a node that takes them.
    tainted = {**node("a", 8), "spec": {"taints": [gpus]}}
    answers.give("nodes", tainted)
    assert messages(QWEN, "Job/qwen3-8b-controller") == [
        "tolerates no node: nvidia.com/gpu= is a taint of theirs; tolerate it in cluster.pod"
    ]
    answers.give("nodes", tainted, node("b", 0, cpu="4", memory="16Gi"))
    assert messages(QWEN, "Job/qwen3-8b-controller") == []
    assert messages(QWEN, "Deployment/qwen3-8b-retriever") == [
        "takes 16 cpu on one node, the largest offers 4",
        "takes 32Gi memory on one node, the largest offers 16Gi",
    ]


def volume(name: str, claim: str | None = "scope-data", **spec: Any) -> dict[str, Any]:
    kept = {"claimRef": {"namespace": "default", "name": claim}} if claim else {}
    whole = {"capacity": {"storage": "2Ti"}, "accessModes": ["ReadWriteMany"], **kept, **spec}
    return {"metadata": {"name": name}, "spec": whole, "status": {"phase": "Available"}}


@pytest.mark.parametrize(
    ("found", "is_enough"),
    [
        (volume("kept", storageClassName="nfs"), True),
        (volume("free", claim=None), True),
        (volume("others", claim="their-data"), False),
        (volume("small", capacity={"storage": "1Gi"}), False),
        (volume("one-node", accessModes=["ReadWriteOnce"]), False),
        (volume("classed", claim=None, storageClassName="nfs"), False),
        (None, False),
    ],
    ids=lambda each: each["metadata"]["name"] if isinstance(each, dict) else None,
)
def test_a_volume_that_waits_for_the_claim_needs_no_storage_class(
    answers: Answers, found: dict[str, Any] | None, is_enough: bool
) -> None:
    answers.give("storageclasses")
    if found is not None:
        answers.give("persistentvolumes", found)
    problems = messages(QWEN, "PersistentVolumeClaim/scope-data")
    said = [
        each
        for each in problems
        if "names no StorageClass" in each and "make a PersistentVolume for it" in each
    ]
    assert problems == said and len(said) == (0 if is_enough else 1)


def probe(line: str, code: int, at: str) -> dict[str, Any]:
    ended = {"terminated": {"finishedAt": at, "message": f"{line}\n", "exitCode": code}}
    return {"metadata": {"name": at}, "spec": {}, "status": {"containerStatuses": [{"state": ended}]}}


def test_check_and_doctor_tell_what_the_newest_probe_has_shown(answers: Answers) -> None:
    answers.give("pods")
    assert [each for each in cluster_check(QWEN).notes if "was not probed yet" in each]
    lacks = (
        "/data: the volume cannot link (Operation not permitted): manifests are published without, forks copy"
    )
    first = probe(lacks, 0, "2026-01-02T00:00:00Z")
    answers.give("pods", first, probe("older", 64, "2026-01-01T00:00:00Z"))
    assert f"the volume: {lacks}" in cluster_check(QWEN).notes and messages(QWEN, "the volume") == []
    assert (doctor("volume").state, doctor("volume").what) == (State.OK, lacks)

    broken = "/data: the volume cannot write (Read-only file system): no run can work on it"
    answers.give("pods", first, probe(broken, 64, "2026-01-03T00:00:00Z"))
    assert messages(QWEN, "the volume") == [broken]
    assert doctor("volume").state is State.WARNING


def test_a_secret_that_the_namespace_lacks_or_whose_key_is_another_is_found_there(
    answers: Answers, tmp_path: Path
) -> None:
    answers.give("resourcequotas")
    settings: dict[str, Any] = {"tracking": {"report_to": ["wandb"]}, "cluster__tracking_secret": "wandb"}
    folder = with_components(tmp_path / "run", QWEN, "tracking", **settings)
    answers.give_one("secrets", "servers", {"data": {"key": "eA=="}})
    found = {problem.where: problem.what for problem in cluster_check(folder).problems}
    assert found.keys() == {"cluster.key_secret", "cluster.tracking_secret"}
    assert "has no key token; delete it, then kubectl create secret" in found["cluster.key_secret"]
    assert "create secret generic wandb --from-file=WANDB_API_KEY=FILE" in found["cluster.tracking_secret"]
    answers.give_one("secrets", "servers", {"data": {"token": "eA=="}})
    answers.give_one("secrets", "wandb", {"data": {"WANDB_API_KEY": "eA=="}})
    assert cluster_check(folder).problems == []


@pytest.mark.parametrize(
    ("version", "is_old"), [("v1.20.2", True), ("v1.29.9-gke.1", True), ("v1.30.0", False), ("what", False)]
)
def test_a_server_too_old_for_a_run_is_named_with_what_to_do(
    answers: Answers, version: str, is_old: bool
) -> None:
    answers.run_version(version)
    told = [note for note in cluster_check(QWEN).notes if note.startswith("version: ")]
    assert told == [str(each) for each in examine(Kubectl()) if each.where == "version"]
    assert ["add the component older-kubernetes" in each for each in told] == [True] * is_old
    assert VERSIONS[0] == OLDEST


def test_the_controllers_job_ends_with_every_run_that_failed_and_outlives_drains() -> None:
    """As Kubernetes' rules of `podFailurePolicy` are read: what no rule names counts as one of its restarts."""
    (job,) = [body for body in rendered(QWEN) if body["kind"] == "Job"]
    # Three drains a day, until the deadline that the controller moves on.
    assert job["spec"]["backoffLimit"] >= 100 and "activeDeadlineSeconds" not in job["spec"]
    failed, drained = job["spec"]["podFailurePolicy"]["rules"]
    codes = {exit_code_of(verdict) for verdict in (ExitCode.USER, ExitCode.BUG)}
    assert (failed["action"], set(failed["onExitCodes"]["values"])) == ("FailJob", codes)
    assert not codes & {1, exit_code_of(ExitCode.OUTSIDE), exit_code_of(ExitCode.TERMINATED)}
    assert (drained["action"], drained["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert schema_problems([job]) == []


NOISE = (
    'E1122 03:49:10.399353   22825 memcache.go:265] "Unhandled Error" err="could not get current server API group '
    'list: Get https://10.0.0.1: dial tcp: connect: connection refused"\n'
)
REFUSED = "The connection to the server localhost:8080 was refused"


def test_without_a_cluster_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real kubectl, with no context at all."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: nothing reports what is wrong")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(
        OutsideError, match=f"^the cluster does not answer: {REFUSED}; see `kubectl config get-c"
    ):
        Kubectl().version()
    done = CliRunner().invoke(cli, ["k8s", "doctor"])
    assert done.exit_code == ExitCode.OUTSIDE
    assert "the cluster does not answer" in done.stdout and "memcache" not in done.output


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that prints what this file holds, and fails."""
    take_as_kubectl(f"#!/bin/sh\ncat {tmp_path}/said >&2\nexit 1\n", tmp_path, monkeypatch)
    return tmp_path / "said"


@pytest.mark.parametrize(
    ("said", "error", "line"),
    [
        (f"{NOISE * 5}{REFUSED} - did you specify the right host or port?\n", OutsideError, f": {REFUSED};"),
        (f"{NOISE}Error from server (Forbidden): not you\n", ConfigError, r"refuses: Error.*not you$"),
        ("", ConfigError, "no reason given"),
    ],
    ids=["refused", "forbidden", "silent"],
)
def test_kubectls_last_sentence_is_taken(failing: Path, said: str, error: type[Exception], line: str) -> None:
    failing.write_text(said)
    with pytest.raises(error, match=line) as raised:
        Kubectl().objects("jobs")
    assert "memcache" not in str(raised.value)


def test_a_server_whose_webhook_is_down_has_answered(failing: Path) -> None:
    webhook = 'Error from server (InternalError): failed calling webhook "a": connect: connection refused'
    failing.write_text(f"{NOISE}{webhook}\n")
    assert Kubectl().refusals(TINY) == [webhook]
