"""Every Dockerfile copies all that a build of the package needs, and nothing that is kept out of the context; the wheel
carries everything that an installation without a checkout needs."""

import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.commands import ran

REPOSITORY = Path(__file__).parents[2]
RETRIEVER = REPOSITORY / "retrieval" / "Dockerfile"
DOCKERFILES = [*sorted(REPOSITORY.glob("k8s/images/*.Dockerfile")), RETRIEVER]


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


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: str(file.relative_to(REPOSITORY)))
def test_an_image_is_built_from_what_is_there_for_a_user_that_kubelet_can_tell_from_root(file: Path) -> None:
    assert lines_of(file, "FROM") == ["${BASE}"]
    (base,) = [line for line in lines_of(file, "ARG") if line.startswith("BASE=")]
    # Whoever builds names it by digest; by default it is a tag of a registry that is named.
    assert re.fullmatch(r"BASE=docker\.io/[a-z/-]+:v?[0-9][-a-z0-9.]+", base), base
    assert lines_of(file, "USER") == ["10001:10001"]
    makefile = (REPOSITORY / "Makefile").read_text()
    linted = makefile.partition("check-manifests:")[2].partition("hadolint ")[2].partition("\n")[0].split()
    assert any(file in REPOSITORY.glob(pattern) for pattern in linted), "check-manifests does not lint it"
    kept = re.findall(r"^!(\S+)$", (REPOSITORY / ".dockerignore").read_text(), re.MULTILINE)
    for source in copied(file):
        assert source.split("/")[0] in kept, f"{source} is no part of the context: see .dockerignore"
    for line in lines_of(file, "RUN"):
        for named in re.findall(r"--constraint ((?!/)\S+)", line):
            assert named.split("/")[0] in copied(file) and (REPOSITORY / named).is_file(), named
    # The wheel below is of what the retriever's copies; the others have the jobs, too.
    more = {} if file == RETRIEVER else {"jobs": "jobs"}
    assert copied(file) == copied(RETRIEVER) | more


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of what the retriever's Dockerfile copies; a build leaves traces."""
    pytest.importorskip("setuptools", minversion="77", reason="builds need setuptools 77")
    top = tmp_path_factory.mktemp("build")
    for source, target in copied(RETRIEVER).items():
        if (REPOSITORY / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(REPOSITORY / source, top / target, ignore=ignored)
        else:
            shutil.copy(REPOSITORY / source, top / target)
    command = [sys.executable, "-c", "from setuptools.build_meta import build_wheel; build_wheel('dist')"]
    done = ran(command, cwd=top, timeout=240)
    assert done.returncode == 0, done.stderr
    (wheel,) = (top / "dist").glob("*.whl")
    return wheel


def test_all_that_lies_in_the_package_and_at_the_top_of_the_checkout_is_in_the_wheel(wheel: Path) -> None:
    kinds = {
        "scope_selfplay": "embedded/policy/* */run.yaml report/templates/* report/static/* **/*.py".split(),
        "retrieval": ("*.py",),
        "prompts": ("*/*.md", "*/*.yaml"),
        "k8s": ("components/**/*.yaml", "shared/*.yaml", "images/*", "presets/*", "clusters/*"),
    }
    targets = {"prompts": "scope_selfplay/prompt_packs", "k8s": "scope_selfplay/kustomize"}
    expected: set[str] = set()
    for source, patterns in kinds.items():
        top = REPOSITORY / source
        found = {path.relative_to(top) for kind in patterns for path in top.glob(kind) if path.is_file()}
        expected |= {f"{targets.get(source, source)}/{path}" for path in found}
    assert {
        "retrieval/server.py",
        "scope_selfplay/embedded/policy/model.safetensors",
        "scope_selfplay/prompt_packs/wikipedia/domain.yaml",
        "scope_selfplay/kustomize/shared/rights.yaml",
    } <= expected
    assert expected - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_an_unpacked_wheel_renders_a_run_far_from_any_checkout(wheel: Path, tmp_path: Path) -> None:
    installed, desk = tmp_path / "site", tmp_path / "desk"
    zipfile.ZipFile(wheel).extractall(installed)
    desk.mkdir()
    shutil.copy(REPOSITORY / "k8s" / "runs" / "tiny" / "setup" / "run.yaml", desk / "my-run.yaml")
    environment = {"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "scope_selfplay.cli", "k8s", "render", "my-run.yaml", "--vendor"]
    done = ran(command, cwd=desk, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    files = "k8s/runs/tiny/kustomization.yaml k8s/shared/rights.yaml prompts/embedded/domain.yaml".split()
    for file in files:
        assert (desk / file).is_file(), file


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
                is_online = offline.get("HF_HUB_OFFLINE", "1") != "1"
                assert is_online == (container["command"][-1] == "fetch-model"), manifest
                online |= {job["metadata"]["name"]} if is_online else set()
    assert online and all("-fetch-" in name for name in online)
