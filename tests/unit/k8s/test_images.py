"""Images: one name each, wherever it is built, started and published; one version of each package, by their lock,
within our bounds and those of vLLM, TRL and all the others."""

import re
import subprocess
import tomllib
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scope_selfplay.config.cluster import ImagesConfig
from tests.unit.k8s.conftest import REPOSITORY

IMAGES = ("worker", "local", "retriever", "trainer")
WORKER, TRAINER = (
    (REPOSITORY / "k8s" / "images" / f"{name}.Dockerfile").read_text() for name in ("worker", "trainer")
)
REQUIREMENTS = REPOSITORY / "tests" / "reference" / "image_requirements.txt"
"""`package version: requirement`, from the packages' own metadata, for what the lock pins and for vLLM."""
VLLM = "0.31.0"
EXTRAS = ("train", "math", "mcp", "view", "local", "index", "retrieval", "k8s", "worker")


def built(image: str, *variables: str) -> str:
    """The name that an image gets by `make`."""
    make = [*f"make --dry-run --silent image-{image} BASE=base:1 TRAINER_BASE=base:1".split(), *variables]
    recipe = subprocess.run(make, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    (name,) = re.findall(r" -t (\S+) ", recipe)
    return str(name)


def test_the_workflow_publishes_every_image_under_the_name_that_make_gives_it() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "images.yml").read_text())
    job: dict[str, Any] = workflow["jobs"]["image"]
    rows = {row["image"]: row for row in job["strategy"]["matrix"]["include"]}
    names = {image: built(image, "TAG=") for image in IMAGES}
    assert ImagesConfig().worker == built("worker")
    assert {image: row["name"] for image, row in rows.items()} == names
    assert f"BASE={rows['trainer']['base']}@sha256:" in TRAINER
    assert all(f"BASE={rows[image]['base']}@sha256:" in WORKER for image in ("worker", "local", "retriever"))
    # The local one alone takes torch from the index for CPUs.
    (step,) = [step for step in job["steps"] if step.get("id") == "build"]
    name, value = "PIP_EXTRA_INDEX_URL", step["env"]["PIP_EXTRA_INDEX_URL"]
    assert f"\nARG {name}\n" in WORKER and f" --build-arg {name} " in step["run"]
    assert value == "${{ matrix.image == 'local' && vars.TORCH_CPU_INDEX || '' }}"


def pins(file: str) -> dict[str, str]:
    lines = [line for line in (REPOSITORY / file).read_text().splitlines() if line and line[0] != "#"]
    pairs = [line.split("==") for line in lines]
    found: dict[str, str] = {canonicalize_name(name): version for name, version in pairs}
    assert len(found) == len(pairs), "a package is pinned twice"
    return found


LOCK, CONSTRAINTS = pins("k8s/images/lock.txt"), pins("constraints.txt")


def test_what_the_project_asks_for_is_pinned_within_its_bounds() -> None:
    both = LOCK.keys() & CONSTRAINTS.keys()
    assert {name: LOCK[name] for name in both} == {name: CONSTRAINTS[name] for name in both}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(each for name in EXTRAS for each in extras[name])]
    for requirement in map(Requirement, asked):
        if requirement.name != "scope-selfplay":
            version = (LOCK | CONSTRAINTS).get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement.name} drifts: pin it in k8s/images/lock.txt"
            assert requirement.specifier.contains(version), f"{requirement} and the lock's {version}"


def test_every_package_of_the_lock_agrees_with_every_other_and_with_vllm() -> None:
    known = LOCK | {"vllm": VLLM}
    stated = set()
    for line in REQUIREMENTS.read_text().splitlines():
        package, text = line.split(": ", 1)
        name, version = package.split()
        assert known[name] == version, f"{REQUIREMENTS.name}: {name} {version}, the lock has {known[name]}"
        stated.add(name)
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found = known[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(found), f"{line}, the lock has {found}"
    assert {"vllm", "trl", "transformers", "accelerate", "peft"} <= stated
