"""Images have one name each: what is built, started and published has it; loaded ones are found."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scope_selfplay import __version__
from scope_selfplay.cluster.check import applied_objects, check_folder, config_of, packs_of
from scope_selfplay.cluster.objects import planned_objects, pods_of
from scope_selfplay.config.cluster import ImagesConfig
from scope_selfplay.config.load import load_config
from tests.unit.k8s.conftest import QWEN, with_components

REPOSITORY = Path(__file__).parents[3]
WORKFLOW = REPOSITORY / ".github" / "workflows" / "images.yml"
IMAGES = ("worker", "local", "retriever", "trainer")


def recipe(image: str, *variables: str) -> str:
    """The command by which `make` builds an image."""
    make = [
        "make",
        "--dry-run",
        "--silent",
        f"image-{image}",
        "BASE=base:1",
        "TRAINER_BASE=base:1",
        *variables,
    ]
    return subprocess.run(make, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


def built(image: str, *variables: str) -> str:
    """The name that it gets."""
    (name,) = re.findall(r" -t (\S+) ", recipe(image, *variables))
    return str(name)


def job() -> dict[str, Any]:
    return dict(yaml.safe_load(WORKFLOW.read_text())["jobs"]["image"])


def test_an_image_is_called_by_its_version_because_latest_is_never_taken_as_loaded() -> None:
    assert [built(image) for image in IMAGES] == [
        f"scope-{name}:{__version__}" for name in ("selfplay", "selfplay-local", "retriever", "trainer")
    ]
    assert built("worker", "REGISTRY=host.example/me/", "TAG=7") == "host.example/me/scope-selfplay:7"


def test_of_the_published_images_the_local_one_alone_takes_torch_from_the_index_for_cpus() -> None:
    dockerfile = (REPOSITORY / "k8s" / "images" / "worker.Dockerfile").read_text()
    (step,) = [step for step in job()["steps"] if step.get("id") == "build"]
    name, value = "PIP_EXTRA_INDEX_URL", step["env"]["PIP_EXTRA_INDEX_URL"]
    assert f"\nARG {name}\n" in dockerfile and f" --build-arg {name} " in step["run"]
    assert value == "${{ matrix.image == 'local' && vars.TORCH_CPU_INDEX || '' }}"


def test_manifests_start_what_is_built() -> None:
    known = {built(image) for image in IMAGES}
    assert ImagesConfig().worker == built("worker")
    for file in sorted(REPOSITORY.glob("k8s/runs/*/setup/run.yaml")):
        assert set(load_config(file).cluster.images.model_dump().values()) - {""} <= known, file
    pods = 0
    for folder in sorted(REPOSITORY.glob("k8s/runs/*")):
        applied = applied_objects(folder)
        config = config_of(applied, folder)
        iterations = range(config.iterations + 1)
        for owner in pods_of(planned_objects(config, packs_of(applied, config.name), iterations)):
            pods += 1
            for container in owner.containers:
                assert container["image"] in known, f"{folder}: {owner.owner}"
                # The default by the tag: only an image that a node lacks is pulled.
                assert "imagePullPolicy" not in container
    assert pods > 100


@pytest.mark.parametrize("image", ["scope-selfplay:latest", "scope-selfplay"])
def test_latest_is_noted(tmp_path: Path, image: str) -> None:
    text = (
        (QWEN / "setup" / "run.yaml").read_text().replace("  images:\n", f"  images:\n    worker: {image}\n")
    )
    notes = check_folder(with_components(tmp_path, QWEN, text=text)).notes
    assert [note for note in notes if "called latest" in note and f"loaded: {image};" in note]
    assert not [note for note in check_folder(QWEN).notes if "called latest" in note]


@pytest.mark.parametrize(
    ("name", "users"),
    [("tiny", "train_solver, train_challenger, solver, challenger"), ("one-gpu", "solver, challenger")],
)
def test_the_slim_image_neither_trains_nor_serves(tmp_path: Path, name: str, users: str) -> None:
    run = REPOSITORY / "k8s" / "runs" / name
    assert check_folder(run).problems == []
    text = (run / "setup" / "run.yaml").read_text()
    elsewhere = f"host.example/me/scope-selfplay@sha256:{'0' * 64}"
    for top, worker in (("built", built("worker")), ("elsewhere", elsewhere)):
        changed = with_components(tmp_path / top, run, text=text.replace(built("local"), worker))
        (problem,) = check_folder(changed).problems
        assert problem.where == "cluster.images.worker"
        assert f"is {worker}, the slim image, which has no torch for {users};" in problem.what


def test_the_workflow_publishes_every_image_under_the_name_that_make_gives_it() -> None:
    rows = {row["image"]: row for row in job()["strategy"]["matrix"]["include"]}
    assert rows.keys() == set(IMAGES)
    assert {image: row["name"] for image, row in rows.items()} == {
        image: built(image, "TAG=") for image in IMAGES
    }
    trainer = (REPOSITORY / "k8s" / "images" / "trainer.Dockerfile").read_text()
    assert f"BASE={rows['trainer']['base']}@sha256:" in trainer
    worker = (REPOSITORY / "k8s" / "images" / "worker.Dockerfile").read_text()
    assert all(f"BASE={rows[image]['base']}@sha256:" in worker for image in ("worker", "local", "retriever"))
