"""The wheel carries everything that an installation without a checkout needs."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
_SOURCES = ("scope_selfplay", "retrieval", "jobs", "prompts", "k8s")
_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves folders beside its sources."""
    pytest.importorskip("setuptools", minversion="77", reason="builds need setuptools 77")
    top = tmp_path_factory.mktemp("wheel")
    for name in _SOURCES:
        shutil.copytree(REPOSITORY / name, top / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _FILES:
        shutil.copy(REPOSITORY / name, top / name)
    program = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", program], cwd=top, check=True, capture_output=True, timeout=240)
    (built,) = (top / "dist").glob("*.whl")
    return built


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
