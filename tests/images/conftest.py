"""Images built once for all tests of the tier; skipped where `parts.sh` was not run.

The one that trains is left as an archive, for the pods of `tests.cluster.image`.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.images.buildah import PARTS, Buildah


@pytest.fixture(scope="session")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed: run tests/images/parts.sh")
    if not (PARTS / "base.tar").is_file() or not (PARTS / "wheels").is_dir():
        pytest.skip(f"nothing to build from in {PARTS}: run tests/images/parts.sh")
    folder = tmp_path_factory.mktemp("buildah")
    builder = Buildah(folder)
    builder.make_base()
    yield builder
    builder.call("rm", "--all")
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def slim_worker(buildah: Buildah) -> str:
    buildah.make("image-worker")
    return "localhost/scope-selfplay"


@pytest.fixture(scope="session")
def retriever(buildah: Buildah) -> str:
    buildah.make("image-retriever")
    return "localhost/scope-retriever"


@pytest.fixture(scope="session")
def training_worker(buildah: Buildah) -> str:
    buildah.make("image-local")
    image = "localhost/scope-selfplay-local"
    buildah.save(image, f"{image}:built", PARTS / "worker.tar")
    return image


@pytest.fixture
def inside(buildah: Buildah) -> Iterator[Callable[..., str]]:
    """Run a command in a fresh container of an image, as its user: its output."""
    containers: list[str] = []

    def run(image: str, *command: str, mounts: dict[Path, str] | None = None) -> str:
        containers.append(buildah.container(image))
        return buildah.run(containers[-1], *command, mounts=mounts or {})

    yield run
    for each in containers:
        buildah.call("rm", each)
