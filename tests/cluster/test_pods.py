"""The run tiny with real pods: judge, retriever and frozen partners behind Services, pods stopped on their way.

The volume is a folder of this machine, which the cluster's nodes must see at the same path. Pods run the image that
SCOPE_IMAGE names or SCOPE_IMAGE_ARCHIVE holds (make test-images leaves one), else this checkout: `tests.cluster.image`.
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Candidate
from scope_selfplay.config.load import load_config
from scope_selfplay.driver.local import run_here
from scope_selfplay.run.begin import open_run
from scope_selfplay.store.files import read_records
from scope_selfplay.store.folder import RunFolder, Stage
from tests.cluster.conftest import fit_to_server, kubectl
from tests.cluster.image import Image, renamed
from tests.unit.controller.worlds import sized
from tests.unit.k8s.conftest import TINY, with_components

pytestmark = [pytest.mark.pods, pytest.mark.timeout(3600)]


SHORT: dict[str, Any] = {
    "iterations": 1,
    "challenger": {"steps": 2, "batch": 2, "group_size": 4, "rollouts": 2, "save_every": 1},
    "solver": {"steps": 2, "batch": 2, "group_size": 4, "save_every": 1},
    "tasks": {"target": 4, "max_candidates": 60, "in_flight": 8, "rollouts": 2, "low": 0.0, "high": 1.0},
    "compare": {"tasks": 8},
}
SMALL = {
    # Two cores for everything at once: the controller, its judge and retriever, two policies and a stage.
    "judge": sized(cpu="100m", memory="1Gi") | {"gpus": 0},
    "retriever": {"cpu": "100m", "memory": "1Gi", "gpus": 0, "index": "/data/index/tiny"},
    "solver": sized(cpu="600m", memory="2Gi") | {"gpus": 0},
    "challenger": sized(cpu="500m", memory="2Gi") | {"gpus": 0},
    "train_challenger": sized(cpu="1", memory="4Gi") | {"gpus": 0},
    "train_solver": sized(cpu="1", memory="4Gi") | {"gpus": 0},
    "make_tasks": sized(cpu="550m", memory="3Gi"),
    "compare": sized(cpu="1", memory="3Gi"),
}


Kill = tuple[Stage, str | Path]
"""The stage in whose middle pods are deleted, and their labels; or what is applied then."""
CHALLENGER: Kill = (Stage.CHALLENGER, "app.kubernetes.io/component=trainer,scope/iteration=01")
CONTROLLER: Kill = (Stage.TASKS, "app.kubernetes.io/component=controller")
SOLVER: Kill = (Stage.SOLVER, "app.kubernetes.io/component=trainer,scope/iteration=01")
WORKERS: list[Kill] = [
    (stage, f"app.kubernetes.io/component=worker,scope/iteration=01,scope/stage={stage.job_name}")
    for stage in (Stage.TASKS, Stage.COMPARE)
]
RECORDS = {Stage.TASKS: "candidates", Stage.COMPARE: "rollouts"}
"""What grows first in a stage; in a training its metrics."""


def write_run(
    top: Path, settings: dict[str, Any], *, small: Sequence[str], components: Sequence[str] = ()
) -> Path:
    """The folder to apply of the run `tiny` with these settings, which lie in `top` as run.yaml; containers of its
    controller's pod that are named in `small` ask for little.
    """
    folder = with_components(top, TINY, *components, text=yaml.safe_dump(settings))
    fit_to_server(folder)
    overlay = folder.with_name("small")
    overlay.mkdir()
    # A node of two cores has no room for what the base asks for.
    patch = [
        {"op": "replace", "path": f"/spec/template/spec/{each}/0/resources/requests/cpu", "value": "100m"}
        for each in small
    ]
    target = {"kind": "Job", "name": "tiny-controller-.*"}
    patched = {"resources": ["../tiny"], "patches": [{"target": target, "patch": yaml.safe_dump(patch)}]}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(patched))
    return overlay


def written(top: Path, image: Image, changes: dict[str, Any], *components: str) -> Path:
    """The run folder of tiny with some settings changed and these components."""
    settings = yaml.safe_load((TINY / "setup" / "run.yaml").read_text())
    for group, values in changes.items():
        settings[group] = settings.get(group, {}) | values if isinstance(values, dict) else values
    settings["cluster"] |= SMALL | {"images": {"worker": image.name}, "pod": image.pod()}
    # With a store the retriever makes the index, and not the controller.
    small = ("containers",) if "store" in settings["cluster"] else ("containers", "initContainers")
    return write_run(top, settings, small=small, components=components)


def when(true: Callable[[], Any], *, minutes: float, namespace: str, every: float = 1) -> None:
    end = time.monotonic() + 60 * minutes
    while not true():
        if time.monotonic() > end:
            state = kubectl("get", "pods,jobs,events", "--namespace", namespace, check=False).stdout
            pytest.fail(f"gave up waiting\n{state[-6000:]}")
        time.sleep(every)


def condition(namespace: str) -> str:
    """How the run's controller ended."""
    path = "jsonpath={.items[*].status.conditions[?(@.status=='True')].type}"
    selector = "--selector=scope/run=tiny,app.kubernetes.io/component=controller"
    return kubectl("get", "jobs", selector, "--namespace", namespace, "--output", path, check=False).stdout


def start(folder: Path, namespace: str, volume: Path) -> RunFolder:
    """Apply the shared objects and the run."""
    for part in (folder.with_name("tiny") / "shared", folder):
        kubectl("apply", "--kustomize", str(part), "--namespace", namespace)
    return RunFolder(volume / "runs" / "tiny")


def play(folder: Path, namespace: str, volume: Path, kills: Sequence[Kill], *, minutes: float) -> RunFolder:
    """Apply, stop pods in the middle of their work, and wait for the end."""
    run = start(folder, namespace, volume)
    for stage, pods in kills:
        records = getattr(run.stage(1, stage), RECORDS.get(stage, "metrics"))
        when(partial(has_lines, records), minutes=minutes, namespace=namespace)
        if isinstance(pods, Path):
            kubectl("apply", "--kustomize", str(pods), "--namespace", namespace)
        else:
            # The notice that a spot node gives.
            now = ("--grace-period=30", "--wait=false")
            kubectl("delete", "pod", "--selector", pods, "--namespace", namespace, *now)
    when(lambda: condition(namespace), minutes=minutes, namespace=namespace)
    assert condition(namespace) == "Complete"
    return run


def has_lines(file: Path) -> bool:
    return file.exists() and b"\n" in file.read_bytes()


def pods_made(namespace: str, job: str) -> int:
    """Pods so far of the Jobs whose names begin so. A Job replaces a deleted pod by itself before Kubernetes 1.26;
    later ones fail, and another attempt follows.
    """
    chosen = "reason=SuccessfulCreate,involvedObject.kind=Job"
    path = "jsonpath={.items[*].involvedObject.name}"
    names = kubectl(
        "get", "events", "--namespace", namespace, "--field-selector", chosen, "--output", path
    ).stdout.split()
    return sum(each.startswith(job) for each in names)


def corpus(run: RunFolder, iteration: int) -> list[tuple[str, str]]:
    candidates = read_records(run.stage(iteration, Stage.TASKS).candidates, Candidate)
    return [(each.id, each.reason.value) for each in candidates]


def same_results_as_at_home(run: RunFolder, settings: Path, home: Path) -> None:
    """The same config in one process: the judge and the retriever inside, no Service anywhere."""
    config = load_config(settings, ["judge.kind=lexical", "judge.endpoint={}"])
    run_here(open_run(config, home, Progress()))
    alone = RunFolder(home / "tiny")
    for iteration in range(config.iterations + 1):
        assert corpus(run, iteration) == corpus(alone, iteration), f"iteration {iteration}"
        here, there = held_out(run, iteration), held_out(alone, iteration)
        assert here.keys() == there.keys()
        for name, (low, high) in here.items():
            assert low <= there[name][1] and there[name][0] <= high, f"{name}: {here[name]} and {there[name]}"


def held_out(run: RunFolder, iteration: int) -> dict[str, tuple[float, float]]:
    """Interval of the held-out score of every checkpoint that an iteration compared."""
    ratings = json.loads((run.stage(iteration, Stage.COMPARE).path / "ratings.json").read_text())
    return {name: (each["all"]["low"], each["all"]["high"]) for name, each in ratings["held_out"].items()}


def test_an_iteration_with_real_pods_makes_the_corpus_of_one_process(
    pods_image: Image, namespace: str, volume: Path, tmp_path: Path
) -> None:
    """Trainers' nodes are drained; in between the whole run gets another image."""
    newer = written(tmp_path / "newer", renamed(pods_image), SHORT)
    kills = [CHALLENGER, (Stage.TASKS, newer), SOLVER]
    run = play(written(tmp_path, pods_image, SHORT), namespace, volume, kills, minutes=20)
    for drained in ("tiny-i01-train-challenger-a", "tiny-i01-train-solver-a"):
        assert pods_made(namespace, drained) >= 2
    assert pods_made(namespace, "tiny-i01-make-tasks-a") == 1 and pods_made(namespace, "tiny-controller") == 2
    said = {file.stem: file.read_text() for file in run.logs.glob("*.log")}
    for part in ("judge", "retriever", "controller", "i01-train-challenger-a1", "i01-compare-a1"):
        assert any(pod.startswith(f"tiny-{part}-") and text for pod, text in said.items()), (part, [*said])
    assert all(len(set(text.splitlines())) == len(text.splitlines()) for text in said.values())
    status_map = kubectl("get", "configmap", "tiny-status", "--namespace", namespace, "--output=json").stdout
    print(json.dumps(json.loads(status_map)["data"], indent=1)[:2000])
    same_results_as_at_home(run, tmp_path / "run.yaml", tmp_path / "home")


@pytest.mark.full
def test_workers_that_are_drained_go_on_and_make_the_same(
    pods_image: Image, namespace: str, volume: Path, tmp_path: Path
) -> None:
    folder = written(tmp_path, pods_image, SHORT | {"compare": {"tasks": 16}})
    run = play(folder, namespace, volume, WORKERS, minutes=20)
    for drained in ("tiny-i01-make-tasks-a", "tiny-i01-compare-a"):
        assert pods_made(namespace, drained) >= 2
    same_results_as_at_home(run, tmp_path / "run.yaml", tmp_path / "home")


@pytest.mark.full
def test_the_whole_run_with_real_pods_makes_the_corpus_of_one_process(
    pods_image: Image, namespace: str, volume: Path, tmp_path: Path
) -> None:
    run = play(
        written(tmp_path, pods_image, {}), namespace, volume, [CHALLENGER, CONTROLLER, SOLVER], minutes=55
    )
    for killed in ("tiny-i01-train-challenger-a", "tiny-controller", "tiny-i01-train-solver-a"):
        assert pods_made(namespace, killed) >= 2, f"{killed}: nothing was replaced"
    same_results_as_at_home(run, tmp_path / "run.yaml", tmp_path / "home")
    shutil.rmtree(tmp_path / "home")
