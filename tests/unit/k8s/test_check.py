"""`scope k8s check`: what of a run's folder and config no cluster could do, one clear problem each; and planted
mistakes that no schema knows of. `tests/cluster` plants those of `PLANTED` and asks a real server."""

import copy
import re
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from scope_selfplay.cli import cli
from scope_selfplay.cluster.check import check_folder, schema_problems
from scope_selfplay.cluster.check_cluster import peak_gpus
from scope_selfplay.cluster.check_pods import reference_problems, rule_problems
from scope_selfplay.cluster.objects import Pods, allows, name_of, pods_of
from scope_selfplay.config.load import load_config
from scope_selfplay.plan.load import make_plan
from scope_selfplay.plan.size import Assumptions
from tests.cluster.image import Image, served
from tests.unit.k8s.conftest import (
    ONE_GPU,
    QWEN,
    REPOSITORY,
    TINY,
    everything_of,
    plain,
    problems_of,
    with_components,
)

Objects = list[dict[str, Any]]
Fault = Callable[[Objects], None]
POD = "spec/template/spec"
MAIN = f"{POD}/containers/0"
SERVICE = ("Service", "tiny-judge")


def tiny_objects() -> Objects:
    return copy.deepcopy(everything_of(TINY))


def find(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    return next(body for body in objects if plain(name_of(body)) == f"{kind}/{name}")


def changed(which: tuple[str, str], path: str, value: Any) -> Fault:
    """Set a field; the last step `+` adds to a list."""

    def change(objects: Objects) -> None:
        place: Any = find(objects, *which)
        *way, last = path.split("/")
        for step in way:
            place = (
                place[int(step)] if isinstance(place, list) else place.setdefault(step.replace("~", "/"), {})
            )
        if last == "+":
            place.append(value)
        else:
            place[int(last) if isinstance(place, list) else last.replace("~", "/")] = value

    return change


controller, judge = (
    partial(changed, each) for each in (("Job", "tiny-controller"), ("Deployment", "tiny-judge"))
)
claim, service = partial(changed, ("PersistentVolumeClaim", "scope-data")), partial(changed, SERVICE)


def asks(requests: dict[str, str], limits: dict[str, str]) -> Fault:
    return judge(f"{MAIN}/resources", {"requests": requests, "limits": limits})


def file_of(key: str) -> Fault:
    source = {"name": "tiny-config", "items": [{"key": key, "path": "a"}]}
    return controller(f"{POD}/volumes/1", {"name": "tmp", "configMap": source})


GPU = "nvidia.com/gpu"
PLANTED: dict[str, tuple[Fault, str]] = {
    "envFrom": (controller(f"{MAIN}/envFrom", [{"configMapRef": {"name": "absent"}}]), "comes from ConfigMap absent"),
    "restart of a Job": (controller(f"{POD}/restartPolicy", "Always"), "restartPolicy Always"),
    "GPUs unlike": (asks({GPU: "1"}, {GPU: "2"}), "devices need equal ones"),
    "half a GPU": (asks({}, {GPU: "500m"}), "devices are whole"),
    "more than the limit": (asks({"cpu": "2"}, {"cpu": "1500m"}), "requests 2 cpu, more than its limit"),
    "quantity": (judge(f"{MAIN}/resources/limits/memory", "4 GB"), "is '4 GB', which is no quantity"),
    "size": (claim("spec/resources/requests/storage", "1TB"), "is '1TB', which is no quantity"),
    "access mode": (claim("spec/accessModes", ["ReadWriteAll"]), "has accessModes ['ReadWriteAll']"),
    "name": (claim("metadata/name", "Scope_Data"), "metadata.name is 'Scope_Data'"),
    "name of a Service": (service("metadata/name", "1judge"), "metadata.name is '1judge'"),
    "long name": (controller("metadata/name", "a" * 64), "at most 63"),
    "label": (controller("metadata/labels/team", "a b"), "labels.team is 'a b'"),
    "key of a label": (controller("metadata/labels/a b", "x"), "labels has the key 'a b'"),
    "port": (service("spec/ports/0/port", 80000), "has port 80000; 1 to 65535"),
    "volume twice": (controller(f"{POD}/volumes/+", {"name": "tmp", "emptyDir": {}}), "has the volume tmp 2 times"),
    "container twice": (controller(f"{POD}/initContainers/0/name", "main"), "has the container main 2 times"),
    "path twice": (
        controller(f"{MAIN}/volumeMounts/+", {"name": "tmp", "mountPath": "/data"}),
        "has the mountPath /data 2 times",
    ),
    "image": (controller(f"{MAIN}/image", ""), "has the image ''"),
    "file of no key": (file_of("absent"), "takes absent of ConfigMap tiny-config, which has no such key"),
}  # fmt: skip
UNENFORCED = ("envFrom", "file of no key")
"""What Kubernetes' reference rules out and an API server takes: the pod does not start, or not as it is written."""

LABELS = {
    "app.kubernetes.io/name": "scope-selfplay",
    "app.kubernetes.io/component": "tools",
    "tool": "flights",
}
IMAGE = Image(f"registry.example/flights@sha256:{'0' * 64}", [])
FLIGHTS = served(IMAGE, "flights", LABELS, port=80, ports=[{"name": "http", "containerPort": 9000}])
"""A server of tools that a user runs beside a run."""
FLIGHTS[1]["spec"]["ports"][0]["targetPort"] = "http"

SLIM = f"host.example/me/scope-selfplay@sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"cluster__key_secret": None}, "cluster.key_secret: not set"),
        ({"cluster__images__worker": "scope-selfplay:latest"}, "loaded: scope-selfplay:latest;"),
        ({"cluster__images__worker": "scope-selfplay"}, "loaded: scope-selfplay;"),
    ],
)
def test_what_is_no_mistake_is_noted(changes: dict[str, Any], note: str, tmp_path: Path) -> None:
    assert not any(note in each for each in check_folder(QWEN).notes)
    assert any(note in each for each in check_folder(with_components(tmp_path, QWEN, **changes)).notes)


def test_two_nodes_have_the_devices_and_variables_that_the_docs_give_them(tmp_path: Path) -> None:
    """The example of docs/operate/kubernetes.md as it stands there, in a run that enforces Pod Security."""
    page = (REPOSITORY / "docs/operate/kubernetes.md").read_text().partition("### Several nodes\n")[2]
    (example,) = [text for text in re.findall(r"(?:^ {4}.*\n)+", page, re.M) if "NCCL_IB_HCA" in text]
    cluster = {f"cluster__{name}": value for name, value in yaml.safe_load(example)["cluster"].items()}
    checked = check_folder(with_components(tmp_path, QWEN, "namespace", cluster__queue="scope", **cluster))
    assert checked.problems == []
    policies = [body for body in checked.objects if body["kind"] == "NetworkPolicy"]
    trainer = next(pods for pods in pods_of(checked.objects) if "-train-" in pods.owner)
    assert all(allows(policies, way, trainer, trainer, 12_345) for way in ("Egress", "Ingress"))
    spec, *_ = [body["spec"] for body in checked.objects if body.get("spec", {}).get("completionMode")]
    assert (spec["completions"], spec["parallelism"]) == (2, 2)
    (container,) = spec["template"]["spec"]["containers"]
    told = {each["name"]: each.get("value") for each in container["env"]}
    expected = {"SCOPE_NODES": "2", "SCOPE_PROCESSES": "4", "SCOPE_SHARDING": "hybrid", "NCCL_IB_HCA": "mlx5"}
    assert told | expected == told and container["resources"]["limits"]["rdma/hca"] == "1"
    assert spec["template"]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "rdma"


PAPERS = [QWEN, *(REPOSITORY / "k8s/presets" / f"{name}.yaml" for name in ("qwen2.5-7b", "olmo-3-7b"))]


@pytest.mark.parametrize("source", PAPERS, ids=attrgetter("stem"))
@pytest.mark.parametrize(("judge", "peaks"), [(2, (6, 6, 6, 4)), (4, (8, 8, 8, 6))], ids=["six", "eight"])
def test_the_papers_runs_fit_six_gpus_or_eight(
    source: Path, judge: int, peaks: tuple[int, ...], tmp_path: Path
) -> None:
    checked = check_folder(with_components(tmp_path, source, cluster__judge__gpus=judge))
    assert checked.problems == []
    found = peak_gpus(checked.config)
    assert (
        tuple(found[each] for each in ("train-challenger", "make-tasks", "train-solver", "compare")) == peaks
    )
    plan = make_plan(checked.config, gates=2, assumptions=Assumptions(), parameters=8e9)
    assert plan.gpus == max(peaks) and plan.gpu_hours > 0


@pytest.mark.parametrize(
    ("source", "changes", "where", "message"),
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
        (
            QWEN,
            {"cluster__images": {"worker": "scope-selfplay:0.2.0"}},
            "cluster.images.trainer",
            "train_challenger, train_solver, judge, solver, challenger would get GPUs",
        ),
        (
            TINY,
            {"cluster__images__worker": SLIM},
            "cluster.images.worker",
            f"is {SLIM}, the slim image, which has no torch for train_solver, train_challenger, solver, challenger;",
        ),
        (QWEN, {"cluster__store": "file:///data"}, "cluster.store", "is a folder, and each pod has its own"),
        (
            QWEN,
            {"cluster__store": "s3://b/p", "cluster__train_solver": {"nodes": 2}},
            "cluster.train_solver.nodes",
            "write into one folder, and with cluster.store each has a disk of its own; train on one node",
        ),
        (
            QWEN,
            {
                "cluster__store": "gs://b/p",
                "cluster__evaluate": {"checkpoints": ["S_1"], "benchmarks": ["a=/b"]},
            },
            "cluster.evaluate",
            "reads a run's folder, which no pod has with cluster.store; leave it out",
        ),
    ],
    ids=[
        "name",
        "judge",
        "engine",
        "batch",
        "no CUDA",
        "no torch",
        "a folder as a store",
        "nodes with a store",
        "evaluate with a store",
    ],
)
def test_what_no_cluster_can_do_is_one_problem(
    source: Path, changes: dict[str, Any], where: str, message: str, tmp_path: Path
) -> None:
    found = problems_of(tmp_path, source, **changes)
    assert found.keys() == {where} and message in found[where]


def test_several_gpus_do_not_sample_in_process(tmp_path: Path) -> None:
    found = problems_of(tmp_path, QWEN, model__engine="in_process")
    assert found.keys() == {"cluster.train_solver", "cluster.train_challenger"}
    assert "each of 4 GPUs holds a share" in found["cluster.train_solver"]
    assert all("set model.engine: vllm_colocated" in what for what in found.values())


def test_a_quota_in_the_folder_is_compared_with_what_the_other_components_take(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "eight", QWEN, "quota", cluster__judge__gpus=4) == {}
    found = problems_of(tmp_path / "more", QWEN, "quota", cluster__train_solver={"nodes": 2})
    (message,) = [found["ResourceQuota/scope"]]
    assert "allows 8 requests.nvidia.com/gpu" in message
    assert message.endswith("the stage train-solver takes 10")


def test_show_prints_every_object_that_a_run_will_create() -> None:
    def shown(*more: str) -> list[dict[str, Any]]:
        done = CliRunner().invoke(cli, ["k8s", "show", str(QWEN), *more], catch_exceptions=False)
        return list(yaml.safe_load_all(done.stdout))

    bodies = shown()
    names = {plain(name_of(body)) for body in bodies}
    assert len(names) == len(bodies) and schema_problems(bodies) == []
    expected = {"PersistentVolumeClaim/scope-data", "Job/qwen3-8b-controller", "Deployment/qwen3-8b-judge"}
    for iteration in range(1, load_config(QWEN / "setup" / "run.yaml").iterations + 1):
        for stage in ("train-challenger", "make-tasks", "train-solver", "compare"):
            expected.add(f"Job/qwen3-8b-i{iteration:02d}-{stage}-a1")
    assert expected <= names
    added = {name_of(body) for body in shown("--iteration", "2")}
    assert added < names and not any("-i01-" in name or name.startswith("Persistent") for name in added)


JUDGE: dict[str, Any] = {
    "judge__endpoint__base_url": "https://judge.example/v1",
    "cluster__judge": {"serve": False},
}
SEARCH = {"url": "https://search.example"}
ENGINE = SEARCH | {"api_key_env": "VLLM_API_KEY", "engine": {"name": "elasticsearch", "index": "wiki"}}
WANDB: dict[str, Any] = {"tracking": {"report_to": ["wandb"]}, "cluster__tracking_secret": "wandb"}


def with_tools(url: str) -> dict[str, Any]:
    return {"tools": ["open", {"mcp": {"url": url}}]}


@pytest.mark.parametrize(
    ("changes", "component", "where", "url"),
    [
        (JUDGE, "external-servers", "judge.endpoint.base_url", "https://judge.example/v1"),
        ({"search": SEARCH, "cluster__retriever": {"serve": False}}, "external-servers", "search.url", SEARCH["url"]),
        # A run that searches another engine starts no retriever.
        ({"search": ENGINE}, "external-servers", "search.url", SEARCH["url"]),
        (with_tools("https://maps.example/mcp"), "external-servers", "tools.1.mcp.url", "https://maps.example/mcp"),
        (WANDB, "external-servers", "tracking.report_to wandb", ""),
        (WANDB, "tracking", "tracking.report_to wandb", ""),
    ],
    ids=["judge", "search", "engine", "tools", "tracker", "tracker alone"],
)  # fmt: skip
def test_what_is_outside_needs_a_way_out_of_the_cluster(
    changes: dict[str, Any], component: str, where: str, url: str, tmp_path: Path
) -> None:
    found = problems_of(tmp_path / "without", QWEN, **changes)
    assert found.keys() == {where} and url in found[where]
    assert f"lets {'trainer and worker' if url else 'training'} out to port 443" in found[where]
    assert problems_of(tmp_path / "with", QWEN, component, **changes) == {}


@pytest.mark.parametrize("is_open", [False, True])
def test_trainers_and_workers_reach_the_tools_of_a_run_by_components(is_open: bool, tmp_path: Path) -> None:
    components = ["tool-servers"] if is_open else []
    folder = with_components(tmp_path, QWEN, *components, **with_tools("http://flights/mcp"))
    (folder / "flights.yaml").write_text(yaml.safe_dump_all(FLIGHTS))
    kustomization = folder / "kustomization.yaml"
    own = yaml.safe_load(kustomization.read_text()) | {"resources": ["flights.yaml"]}
    kustomization.write_text(yaml.safe_dump(own))
    said = "may not call Deployment/flights: no NetworkPolicy lets it out to port 9000"
    found = check_folder(folder).problems
    assert found == [] if is_open else any(said in problem.what for problem in found)


def test_nobody_but_trainers_gets_a_trackers_secret_and_its_way_out(tmp_path: Path) -> None:
    checked = check_folder(with_components(tmp_path, QWEN, "tracking", **WANDB))
    assert checked.problems == []
    for pods in pods_of(checked.objects):
        sources = [each for container in pods.containers for each in container.get("envFrom") or []]
        assert sources == ([{"secretRef": {"name": "wandb"}}] if "-train-" in pods.owner else []), pods.owner
    policies = [body for body in checked.objects if body["kind"] == "NetworkPolicy"]
    out = {
        pods.labels["app.kubernetes.io/component"]
        for pods in pods_of(checked.objects)
        if allows(policies, "Egress", pods, None, 443, pods_of(checked.objects))
    }
    assert out == {"trainer", "controller"}


def test_a_trackers_missing_key_is_found_without_a_cluster(tmp_path: Path) -> None:
    (message,) = problems_of(tmp_path, QWEN, "tracking", tracking={"report_to": ["wandb"]}).values()
    assert message.startswith("needs WANDB_API_KEY in training pods; create a Secret with this key")


@pytest.fixture
def objects() -> Objects:
    return tiny_objects()


def without(kind: str, name: str) -> Fault:
    return lambda objects: objects.remove(find(objects, kind, name))


MISTAKES = [
    (without("ConfigMap", "tiny-config"), "mounts ConfigMap tiny-config, which does not exist"),
    (without("PersistentVolumeClaim", "scope-data"), "the claim scope-data, which does not exist"),
    (without("ServiceAccount", "scope-worker"), "ServiceAccount scope-worker, which does not exist"),
    (without("Role", "scope-controller"), "binds Role/scope-controller"),
    (without("Service", "tiny-judge"), "there is no Service tiny-judge"),
    (without("NetworkPolicy", "scope-servers"), "refuses Job/tiny-i"),
    (without("NetworkPolicy", "scope-worker"), "may not call Deployment/tiny-"),
    (changed(SERVICE, "spec/selector/scope~server", "other"), "its selector matches no pods"),
    (changed(SERVICE, "spec/ports/0/targetPort", "web"), "port web"),
    (lambda objects: objects.append(objects[0]), "appears twice"),
]


def problems(objects: Objects) -> list[str]:
    return [str(each) for each in [*rule_problems(objects), *reference_problems(objects)]]


@pytest.mark.parametrize(
    ("mistake", "message"),
    [*PLANTED.values(), *MISTAKES],
    ids=[*PLANTED, *(message for _, message in MISTAKES)],
)
def test_a_planted_mistake_is_found(objects: Objects, mistake: Fault, message: str) -> None:
    mistake(objects)
    found = problems(objects)
    assert any(message in each for each in found), found


def test_objects_of_two_namespaces_do_not_find_each_other(objects: Objects) -> None:
    for body in objects:
        body["metadata"]["namespace"] = "scope"
    assert reference_problems(objects) == []
    find(objects, "ServiceAccount", "scope-worker")["metadata"]["namespace"] = "other"
    (found,) = reference_problems(objects)
    assert str(found).startswith(
        "ServiceAccount/scope-worker: is in the namespace other and finds nothing of scope"
    )


def test_the_controller_reaches_the_api_server_on_the_ports_of_the_usual_clusters(objects: Objects) -> None:
    policies = [body for body in objects if body["kind"] == "NetworkPolicy"]
    (controller,) = [pods for pods in pods_of(objects) if plain(pods.owner) == "Job/tiny-controller"]
    for port in (443, 6443, 8443, 16443):
        assert allows(policies, "Egress", controller, Pods("Pod/api", {}, {"containers": []}), port), port
