"""Every Dockerfile copies all that a build of the package needs, and nothing that is kept out of the context."""

import re
import shutil
import subprocess
import sys
import zipfile
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
    pairs = {}
    for line in lines_of(file, "COPY"):
        *sources, target = line.split()
        pairs |= {
            source: f"{target}{Path(source).name}" if target.endswith("/") else target for source in sources
        }
    return pairs


@pytest.mark.parametrize("file", DOCKERFILES, ids=label)
def test_what_a_dockerfile_copies_is_enough_to_build_the_package(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77", reason="builds need setuptools 77")
    kept = re.findall(r"^!(\S+)$", (REPOSITORY / ".dockerignore").read_text(), re.MULTILINE)
    for source, target in copied(file).items():
        assert source.split("/")[0] in kept, f"{source} is no part of the context: see .dockerignore"
        if (REPOSITORY / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(REPOSITORY / source, tmp_path / target, ignore=ignored)
        else:
            shutil.copy(REPOSITORY / source, tmp_path / target)
    program = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for part in (
        "retrieval/server.py",
        "scope_selfplay/cli.py",
        "scope_selfplay/prompt_packs/wikipedia/domain.yaml",
    ):
        assert part in names
    for line in lines_of(file, "RUN"):
        for named in re.findall(r"--constraint ((?!/)\S+)", line):
            assert (tmp_path / named).is_file(), f"{named} is not copied"


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
