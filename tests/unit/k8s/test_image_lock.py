"""The lock of the images: one version of each package, within our bounds and those of vLLM, TRL and all the others."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[3]
REQUIREMENTS = REPOSITORY / "tests" / "reference" / "image_requirements.txt"
"""`package version: requirement`, from the packages' own metadata, for what the lock pins and for vLLM."""
IMAGES = [
    *sorted((REPOSITORY / "k8s" / "images").glob("*.Dockerfile")),
    REPOSITORY / "retrieval" / "Dockerfile",
]
VLLM = "0.31.0"
EXTRAS = ("train", "math", "mcp", "view", "local", "retrieval", "k8s", "worker")


def pins(file: str) -> dict[str, str]:
    lines = [line for line in (REPOSITORY / file).read_text().splitlines() if line and line[0] != "#"]
    pairs = [line.split("==") for line in lines]
    found = {canonicalize_name(name): version for name, version in pairs}
    assert len(found) == len(pairs), "a package is pinned twice"
    return found


LOCK = pins("k8s/images/lock.txt")
CONSTRAINTS = pins("constraints.txt")


def test_what_the_project_asks_for_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(each for name in EXTRAS for each in extras[name])]
    for requirement in map(Requirement, asked):
        if requirement.name == "scope-selfplay":
            continue
        version = (LOCK | CONSTRAINTS).get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} drifts: pin it in k8s/images/lock.txt"
        assert requirement.specifier.contains(version), f"{requirement} and the lock's {version}"


def test_lock_and_constraints_name_the_same_versions() -> None:
    both = LOCK.keys() & CONSTRAINTS.keys()
    assert {name: LOCK[name] for name in both} == {name: CONSTRAINTS[name] for name in both}


def test_every_package_of_the_lock_agrees_with_every_other_and_with_vllm() -> None:
    known = LOCK | {"vllm": VLLM}
    stated = set()
    for line in REQUIREMENTS.read_text().splitlines():
        package, text = line.split(": ", 1)
        name, version = package.split()
        assert known[name] == version, (
            f"{REQUIREMENTS.name} is of {name} {version}, the lock has {known[name]}"
        )
        stated.add(name)
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found = known[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(found), f"{line}, the lock has {found}"
    assert {"vllm", "trl", "transformers", "accelerate", "peft"} <= stated


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: str(image.relative_to(REPOSITORY)))
def test_every_image_is_built_from_the_lock_and_checked(image: Path) -> None:
    text = re.sub(r"\\\n", " ", image.read_text())
    (install,) = [line for line in text.splitlines() if line.startswith("RUN") and "pip install" in line]
    assert "--constraint k8s/images/lock.txt" in install
    assert re.search(r"&& (python3 -m )?pip check\b", install), "pip check comes after the installation"


def test_a_trainer_verifies_maths_calls_tools_encodes_an_index_and_takes_the_vllm_of_the_lock() -> None:
    text = (REPOSITORY / "k8s" / "images" / "trainer.Dockerfile").read_text()
    assert 'lock.txt ".[train,math,mcp,retrieval]" ${TRACKERS} ' in text and f"v{VLLM}" in text
    assert "ARG TRACKERS=\n" in text and "math-verify" in LOCK
