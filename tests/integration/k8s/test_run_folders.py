"""Every run folder of the repository: renders, fits its config, and names nothing that is not there."""

import copy
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from jobs.__main__ import jobs
from scope_selfplay.cluster.check import check_folder, config_of, packs_of, schema_problems
from scope_selfplay.cluster.check_pods import reference_problems
from scope_selfplay.cluster.folder import RunFolderLayout, components_of, packs_needed, run_folder
from scope_selfplay.cluster.objects import Pods, allows, planned_objects, pods_of
from scope_selfplay.cluster.pods import Component
from scope_selfplay.cluster.stages import is_vllm
from scope_selfplay.config.load import load_config
from scope_selfplay.run.commands import index
from tests.unit.k8s.conftest import REPOSITORY, RUNS, applied, rendered, with_components
from tests.unit.k8s.test_monitoring import asked, series_of
from tests.unit.k8s.test_tool_servers import FLIGHTS

pytestmark = pytest.mark.integration

COMPONENTS = sorted(each.parent.name for each in REPOSITORY.glob("k8s/components/*/kustomization.yaml"))
ONE_GPU = REPOSITORY / "k8s/runs/one-gpu"
PREPARED = sorted(each.parent for each in REPOSITORY.glob("k8s/runs/*/prepare/**/kustomization.yaml"))


def name(folder: Path) -> str:
    return folder.name


def place(folder: Path) -> str:
    return str(folder.relative_to(REPOSITORY / "k8s" / "runs"))


@pytest.mark.parametrize("folder", PREPARED, ids=place)
def test_what_prepares_a_run_fits_it_and_no_reference_is_broken(folder: Path) -> None:
    top = folder.parents[1] if folder.name == "warm-start" else folder.parent
    run, prepared = rendered(top), rendered(folder)
    config = config_of(run, top)
    # As docs/kubernetes.md has it: the shared folder first, then this one, and nothing else of the run.
    objects = [*rendered(top / "shared"), *prepared]
    assert reference_problems(objects) == []
    written = {}
    for pods in pods_of(prepared):
        (container,) = pods.containers
        images = config.cluster.images
        has_gpu = config.cluster.gpu_resource in container["resources"]["limits"]
        assert container["image"] == (images.trainer if has_gpu else images.worker)
        *_, group, command = container["command"]
        # Parsed by the command itself: an option that it does not have, or one that is missing, is an error.
        owner = pods.owner.replace(f"/{config.name}-", "/")
        parser = {"jobs": jobs, "index": index}[group].commands[command]
        written[owner] = parser.make_context(owner, list(container["args"])).params
    if folder.name == "prepare":
        warm_start = config.cluster.prepare.warm_start
        base = config.model.path if warm_start is None else warm_start.start
        assert str(written["Job/fetch-model"]["folder"]) == base
        if "Job/fetch-corpus" in written:
            assert str(written["Job/fetch-corpus"]["file"]) == config.corpus.path
        if is_vllm(config, Component.JUDGE) and config.cluster.judge.model != config.model.path:
            assert str(written["Job/fetch-judge"]["folder"]) == config.cluster.judge.model
    elif folder.name == "warm-start":
        learns, settings = written["Job/warm-start"], config.cluster.prepare.warm_start
        assert settings is not None and learns["processes"] == 1
        assert (str(learns["start"]), str(learns["out"])) == (settings.start, config.model.path)
        assert [str(file) for file in learns["trajectories"]] == list(settings.trajectories)
        (pod,) = pods_of(prepared)
        (container,) = pod.containers
        assert {"name": "SCOPE_PROCESSES", "value": str(settings.gpus)} in container["env"]
        assert container["resources"]["limits"][config.cluster.gpu_resource] == str(settings.gpus)
    if build := written.get("Job/build-index"):
        assert str(build["index"]) == config.cluster.retriever.index
        assert str(build["source"]) == config.corpus.path
        encoder = build["options"][build["options"].index("--encoder") + 1]
        assert encoder in [word for pods in pods_of(prepared) for word in pods.containers[0]["args"]]
    pytest.importorskip("kubernetes_validate", reason="needs the k8s extra")
    assert schema_problems(prepared) == []


DNS = Pods("Pod/coredns", {"k8s-app": "kube-dns"}, {"containers": []})
OUTSIDE = Pods("Pod/elsewhere", {}, {"containers": []})


@pytest.mark.parametrize("run", [each for each in RUNS if each.name != "tiny"], ids=name)
def test_jobs_that_fetch_reach_dns_and_the_hub_and_no_other_job_leaves_the_cluster(run: Path) -> None:
    """Before the run itself is applied: its own policies may not be needed, nor missed."""
    folders = ["shared", *(part for part in ("prepare", "prepare/warm-start") if (run / part).is_dir())]
    objects = [each for folder in folders for each in rendered(run / folder)]
    policies = [body for body in objects if body["kind"] == "NetworkPolicy"]
    ways = {
        pods.owner: [
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


@pytest.mark.parametrize("folder", RUNS, ids=name)
def test_a_run_folder_has_no_problem_in_any_release(folder: Path) -> None:
    rendered(folder)
    pytest.importorskip("kubernetes_validate", reason="needs the k8s extra")
    checked = check_folder(folder)
    assert checked.problems == []
    kinds = {body["kind"] for body in checked.objects}
    assert {"Job", "Deployment", "Service", "NetworkPolicy", "PersistentVolumeClaim", "Role"} <= kinds


@pytest.mark.parametrize("folder", RUNS, ids=name)
def test_a_run_folder_is_what_render_makes_of_its_config(folder: Path) -> None:
    text = (folder / "setup" / "run.yaml").read_text()
    config = load_config(folder / "setup" / "run.yaml")
    layout = RunFolderLayout(packs=packs_needed(config), components=components_of(folder))
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


@pytest.mark.parametrize("folder", RUNS, ids=name)
def test_an_iteration_is_the_run_with_another_controller(folder: Path) -> None:
    whole = rendered(folder)
    config = config_of(whole, folder)
    for number in range(1, config.iterations + 1):
        alone = rendered(folder / f"iteration-{number:02d}")
        assert [body for body in alone if body["kind"] != "Job"] == [
            body for body in whole if body["kind"] != "Job"
        ]
        (job,) = [body for body in alone if body["kind"] == "Job"]
        assert job["metadata"]["name"] == f"{config.name}-i{number:02d}-controller"
        assert job["spec"]["template"]["spec"]["containers"][0]["args"][-2:] == [
            "--only-iteration",
            f"{number:02d}",
        ]


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_fits_a_run(component: str, tmp_path: Path) -> None:
    folder = with_components(tmp_path, ONE_GPU, component)
    objects = applied(folder)
    assert objects != applied(ONE_GPU)
    # The pods that it lets trainers and workers through to are the user's.
    own = FLIGHTS if component == "tool-servers" else []
    config = config_of(objects, folder)
    everything = [*objects, *planned_objects(config, packs_needed(config)), *own]
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
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    for word in (*COMPONENTS, *jobs.commands, "prepare", "iteration-NN"):
        assert f"`{word}" in page, word


def test_the_dashboard_shows_what_a_policys_server_exports() -> None:
    from scope_selfplay.inference.server import ModelMetrics

    shown = {name for name in asked() if name.startswith("scope_model_")}
    assert shown and shown <= set(series_of(ModelMetrics().registry.collect()))
