"""Every run folder of the repository: renders, fits its config, and names nothing that is not there."""

import copy
import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise, product
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from jobs.__main__ import jobs
from retrieval.service import RetrieverMetrics
from scope_selfplay.cluster.check import check_folder, config_of, packs_of, schema_problems
from scope_selfplay.cluster.check_pods import reference_problems
from scope_selfplay.cluster.folder import components_of, layout_of, packs_needed, run_folder
from scope_selfplay.cluster.objects import Pods, allows, planned_objects, pods_of
from scope_selfplay.cluster.pods import Component
from scope_selfplay.config.load import load_config
from scope_selfplay.driver.metrics import RunCollector
from scope_selfplay.run.commands import index
from scope_selfplay.store.folder import RunFolder
from tests.unit.controller.worlds import PAPER
from tests.unit.controller.worlds import config_of as config_with
from tests.unit.k8s.conftest import PRESETS, REPOSITORY, RUNS, applied, rendered, with_components
from tests.unit.k8s.test_check import FLIGHTS

COMPONENTS = sorted(each.parent.name for each in REPOSITORY.glob("k8s/components/*/kustomization.yaml"))
ONE_GPU = REPOSITORY / "k8s/runs/one-gpu"
name = attrgetter("stem")


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder: of the repository, or as a preset is rendered."""
    source: Path = request.param
    return source if source.is_dir() else with_components(tmp_path_factory.mktemp("run"), source)


every_run = pytest.mark.parametrize("run", [*RUNS, *PRESETS], ids=name, indirect=True)
prepared_run = pytest.mark.parametrize(
    "run", [*(each for each in RUNS if each.name != "tiny"), *PRESETS], ids=name, indirect=True
)


@prepared_run
def test_what_prepares_a_run_fits_it_and_no_reference_is_broken(run: Path) -> None:
    config = config_of(rendered(run), run)
    prepared = [body for file in run.glob("prepare/**/kustomization.yaml") for body in rendered(file.parent)]
    # As docs/operate/kubernetes.md has it: the shared folder first, then these, and nothing else of the run.
    objects = [*rendered(run / "shared"), *prepared]
    assert reference_problems(objects) == []
    for pods in pods_of(prepared):
        (container,) = pods.containers
        images = config.cluster.images
        has_gpu = config.cluster.gpu_resource in container["resources"]["limits"]
        assert container["image"] == (images.trainer if has_gpu else images.worker)
        *_, group, command = container["command"]
        # Parsed by the command itself: an option that it does not have, or one that is missing, is an error.
        parser = {"jobs": jobs, "index": index}[group].commands[command]
        told = parser.make_context(pods.owner, list(container["args"])).params
        if command == "warm-start":
            settings = config.cluster.prepare.warm_start
            assert settings is not None and (str(told["start"]), told["processes"]) == (settings.start, 1)
            assert {"name": "SCOPE_PROCESSES", "value": str(settings.gpus)} in container["env"]
            assert container["resources"]["limits"][config.cluster.gpu_resource] == str(settings.gpus)
    fetched = [word for pods in pods_of(prepared) for word in pods.containers[0]["args"]]
    for encoder in [after for word, after in pairwise(fetched) if word == "--encoder"]:
        assert fetched.count(encoder) == 2, "it is fetched, too"
    pytest.importorskip("kubernetes_validate", reason="needs the k8s extra")
    assert schema_problems(prepared) == []


DNS = Pods("Pod/coredns", {"k8s-app": "kube-dns"}, {"containers": []})
OUTSIDE = Pods("Pod/elsewhere", {}, {"containers": []})


@prepared_run
def test_jobs_that_fetch_reach_dns_and_the_hub_and_no_other_job_leaves_the_cluster(run: Path) -> None:
    """Before the run itself is applied: its own policies may not be needed, nor missed."""
    folders = ["shared", *(part for part in ("prepare", "prepare/warm-start") if (run / part).is_dir())]
    objects = [each for folder in folders for each in rendered(run / folder)]
    policies = [body for body in objects if body["kind"] == "NetworkPolicy"]
    ways = {
        pods.owner.rpartition("-")[0]: [
            (peer.owner, port)
            for peer, port in product((DNS, OUTSIDE), (53, 443, 80))
            if may_ask(policies, pods, peer, port)
        ]
        for pods in pods_of(objects)
    }
    hub = [("Pod/coredns", 53), ("Pod/coredns", 443), ("Pod/elsewhere", 443)]
    name = config_of(rendered(run), run).name
    fetched = {owner for owner in ways if owner.startswith(f"Job/{name}-fetch-")}
    # A run whose tasks are maths searches nothing.
    indexed = (
        {f"Job/{name}-fetch-encoder", f"Job/{name}-build-index"}
        if any("index" in owner for owner in ways)
        else set()
    )
    assert {f"Job/{name}-fetch-model", *indexed} <= set(ways)
    assert ways == {owner: hub if owner in fetched else [] for owner in ways}


def may_ask(policies: list[dict[str, Any]], pods: Pods, peer: Pods, port: int) -> bool:
    """DNS lives in another namespace, which `allows` leaves out: here its rules count by their podSelector."""
    here = copy.deepcopy(policies)
    for rule in [rule for policy in here for rule in policy["spec"].get("egress") or []]:
        for target in rule.get("to") or []:
            target.pop("namespaceSelector", None)
    return allows(here, "Egress", pods, peer, port)


@every_run
def test_a_run_folder_has_no_problem_in_any_release(run: Path) -> None:
    rendered(run)
    pytest.importorskip("kubernetes_validate", reason="needs the k8s extra")
    checked = check_folder(run)
    assert checked.problems == []
    kinds = {body["kind"] for body in checked.objects}
    assert {"Job", "Deployment", "Service", "NetworkPolicy", "PersistentVolumeClaim", "Role"} <= kinds


@pytest.mark.parametrize("folder", RUNS, ids=name)
def test_a_run_folder_is_what_render_makes_of_its_config(folder: Path) -> None:
    text = (folder / "setup" / "run.yaml").read_text()
    config = load_config(folder / "setup" / "run.yaml")
    layout = layout_of(folder, config, components_of(folder))
    rendered(folder)
    # Manifests that changed are written anew by `make run-folders`.
    files = run_folder(config, text, layout)
    found = {
        str(each.relative_to(folder)): each.read_text()
        for each in folder.rglob("*.yaml")
        if each != folder / "run.yaml"
    }
    assert found == files
    assert (folder / "run.yaml").resolve() == (folder / "setup" / "run.yaml").resolve()


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_fits_a_run(component: str, tmp_path: Path) -> None:
    folder = with_components(tmp_path, ONE_GPU, component)
    objects = applied(folder)
    assert objects != applied(ONE_GPU)
    # The pods that it lets trainers and workers through to are the user's.
    own = FLIGHTS if component == "tool-servers" else []
    config = config_of(objects, folder)
    everything = [*objects, *planned_objects(config, [*packs_needed(config)]), *own]
    assert reference_problems(everything) == []
    pytest.importorskip("kubernetes_validate", reason="needs the k8s extra")
    assert schema_problems(everything) == []


def test_the_network_has_exactly_the_edges_of_the_method() -> None:
    folder = REPOSITORY / "k8s/runs/tiny"
    objects = applied(folder)
    config = config_of(objects, folder)
    everything = [*objects, *planned_objects(config, packs_of(objects, config.name))]
    policies = [body for body in objects if body["kind"] == "NetworkPolicy"]
    by_part = {each.labels["app.kubernetes.io/component"]: each for each in pods_of(everything)}
    assert set(by_part) == set(Component)
    edges = {
        (sender, receiver)
        for sender, receiver in product(Component, Component)
        if allows(policies, "Egress", by_part[sender], by_part[receiver], 8000)
        and allows(policies, "Ingress", by_part[receiver], by_part[sender], 8000)
    }
    servers = {Component.JUDGE, Component.SOLVER, Component.RETRIEVER}
    assert edges == {
        *product([Component.TRAINER, Component.WORKER], servers),
        (Component.WORKER, Component.CHALLENGER),
    }


def test_every_component_and_folder_of_a_run_is_in_the_docs() -> None:
    page = (REPOSITORY / "docs" / "operate" / "kubernetes.md").read_text()
    for word in (*COMPONENTS, *jobs.commands, "prepare", "iteration-NN"):
        assert f"`{word}" in page, word


MONITORING = REPOSITORY / "k8s" / "components" / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def asked() -> set[str]:
    """Every metric that a panel or a variable of the dashboard names."""
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    queries += [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    plain = [re.sub(r'"[^"]*"|by \([^)]*\)', "", query).replace("label_values", "") for query in queries]
    return {name for query in plain for name in re.findall(r"\b(?:vllm:|scope_)[a-z0-9_:]+(?=[{,])", query)}


def series_of(families: Iterable[Metric]) -> Iterator[str]:
    for family in families:
        yield from (family.name + suffix for suffix in _SUFFIXES[family.type])


def of_vllm() -> Iterator[str]:
    """By vLLM's own source, of the version that the images take; tests/vllm asks a real one."""
    for line in (REPOSITORY / "tests" / "reference" / "vllm_metrics.txt").read_text().splitlines():
        name, kind = line.split()
        yield from (name + suffix for suffix in _SUFFIXES[kind])


def test_every_metric_of_the_dashboard_is_one_that_a_pod_exports(tmp_path: Path) -> None:
    from scope_selfplay.inference.server import ModelMetrics

    retriever = generate_latest(RetrieverMetrics().registry).decode()
    exported = {
        *of_vllm(),
        *series_of(RunCollector(RunFolder(tmp_path), config_with(PAPER)).collect()),
        *series_of(text_string_to_metric_families(retriever)),
        *series_of(ModelMetrics().registry.collect()),
    }
    found = {name.split("_")[1] for name in asked() if name.startswith("scope_")}
    assert len(asked()) > 25 and found == {"run", "training", "retriever", "model"}
    assert asked() - exported == set()
