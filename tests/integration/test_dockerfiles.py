"""Every Dockerfile copies all that a build of the package needs, and nothing that is kept out of the context; the wheel
carries everything that an installation without a checkout needs."""

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
DOCKERFILES = [*sorted(REPOSITORY.glob("k8s/images/*.Dockerfile")), REPOSITORY / "retrieval" / "Dockerfile"]
pytestmark = pytest.mark.integration


def label(file: Path) -> str:
    return str(file.relative_to(REPOSITORY))


def lines_of(file: Path, word: str) -> list[str]:
    """What follows `word` in each instruction of a Dockerfile."""
    joined = re.sub(r"\\\n", " ", file.read_text())
    return re.findall(rf"^{word} +(.*)$", joined, re.MULTILINE)


def copied(file: Path) -> dict[str, str]:
    """Source below the context -> target below the working folder."""
    pairs: dict[str, str] = {}
    for line in lines_of(file, "COPY"):
        *sources, target = line.split()
        pairs |= {
            source: f"{target}{Path(source).name}" if target.endswith("/") else target for source in sources
        }
    return pairs


@pytest.fixture(scope="module")
def wheel_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """The wheel of what a Dockerfile copies, built once for those that copy the same; a build leaves traces."""
    pytest.importorskip("setuptools", minversion="77", reason="builds need setuptools 77")

    @cache
    def built(pairs: frozenset[tuple[str, str]]) -> Path:
        top = tmp_path_factory.mktemp("build")
        for source, target in pairs:
            if (REPOSITORY / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
                shutil.copytree(REPOSITORY / source, top / target, ignore=ignored)
            else:
                shutil.copy(REPOSITORY / source, top / target)
        command = [sys.executable, "-c", "from setuptools.build_meta import build_wheel; build_wheel('dist')"]
        done = subprocess.run(command, cwd=top, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        (wheel,) = (top / "dist").glob("*.whl")
        return wheel

    return lambda file: built(frozenset(copied(file).items()))


@pytest.mark.parametrize("file", DOCKERFILES, ids=label)
def test_what_a_dockerfile_copies_is_enough_to_build_the_package(
    file: Path, wheel_of: Callable[[Path], Path]
) -> None:
    kept = re.findall(r"^!(\S+)$", (REPOSITORY / ".dockerignore").read_text(), re.MULTILINE)
    for source in copied(file):
        assert source.split("/")[0] in kept, f"{source} is no part of the context: see .dockerignore"
    wheel = wheel_of(file)
    names = zipfile.ZipFile(wheel).namelist()
    for part in ("retrieval/server.py", "scope_selfplay/cli.py"):
        assert part in names
    assert "scope_selfplay/prompt_packs/wikipedia/domain.yaml" in names
    for line in lines_of(file, "RUN"):
        for named in re.findall(r"--constraint ((?!/)\S+)", line):
            assert (wheel.parents[1] / named).is_file(), f"{named} is not copied"


@pytest.fixture
def wheel(wheel_of: Callable[[Path], Path]) -> Path:
    return wheel_of(DOCKERFILES[0])


def test_what_lies_at_the_top_of_the_checkout_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = REPOSITORY / "scope_selfplay"
    expected = {
        str(path.relative_to(REPOSITORY))
        for kind in (
            "embedded/policy/*",
            "embedded/run.yaml",
            "rewards/run.yaml",
            "report/templates/*",
            "report/static/*",
            "**/*.py",
        )
        for path in package.glob(kind)
        if path.is_file()
    }
    for source, target, kinds in (
        ("prompts", "prompt_packs", ("*/*.md", "*/*.yaml")),
        ("k8s", "kustomize", ("components/**/*.yaml", "shared/*.yaml", "images/*")),
    ):
        found = {path for kind in kinds for path in (REPOSITORY / source).glob(kind)}
        assert found, source
        expected |= {f"scope_selfplay/{target}/{path.relative_to(REPOSITORY / source)}" for path in found}
    assert expected - names == set()
    assert any(name.endswith("embedded/policy/model.safetensors") for name in names)
    assert any(name.endswith("prompt_packs/wikipedia/domain.yaml") for name in names)
    assert "scope_selfplay/kustomize/shared/role.yaml" in names


def test_an_unpacked_wheel_renders_a_run_far_from_any_checkout(wheel: Path, tmp_path: Path) -> None:
    installed, desk = tmp_path / "site", tmp_path / "desk"
    zipfile.ZipFile(wheel).extractall(installed)
    desk.mkdir()
    shutil.copy(REPOSITORY / "k8s" / "runs" / "tiny" / "setup" / "run.yaml", desk / "my-run.yaml")
    environment = {"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "scope_selfplay.cli", "k8s", "render", "my-run.yaml"]
    done = subprocess.run(command, cwd=desk, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for file in ("k8s/runs/tiny/kustomization.yaml", "k8s/shared/role.yaml", "prompts/embedded/domain.yaml"):
        assert (desk / file).is_file(), file


@pytest.mark.parametrize("file", DOCKERFILES, ids=label)
def test_an_image_has_a_base_by_argument_and_a_user_that_kubelet_can_tell_from_root(file: Path) -> None:
    assert lines_of(file, "FROM") == ["${BASE}"] and "BASE" in lines_of(file, "ARG")
    assert lines_of(file, "USER") == ["10001:10001"]
    makefile = (REPOSITORY / "Makefile").read_text()
    recipe = makefile.partition("check-manifests:")[2].partition("\n\n")[0]
    linted = recipe.partition("hadolint ")[2].split()
    assert any(file in REPOSITORY.glob(pattern) for pattern in linted), "check-manifests does not lint it"


def test_only_jobs_that_fetch_are_online() -> None:
    """The images are offline, and what a manifest says of a container comes after what its image says."""
    for file in DOCKERFILES:
        (line,) = lines_of(file, "ENV")
        assert "HF_HUB_OFFLINE=1" in line.split(), file
    online = set()
    for manifest in REPOSITORY.glob("k8s/**/*.yaml"):
        bodies = list(yaml.safe_load_all(manifest.read_text()))
        for job in (body for body in bodies if body.get("kind") == "Job"):
            for container in job["spec"]["template"]["spec"].get("containers", []):
                offline = {each["name"]: each.get("value") for each in container["env"]}
                if offline.get("HF_HUB_OFFLINE", "1") != "1":
                    online.add(job["metadata"]["name"])
                    assert container["command"][-1] == "fetch-model"
                else:
                    assert container["command"][-1] != "fetch-model", manifest
    assert online and all("-fetch-" in name for name in online)
