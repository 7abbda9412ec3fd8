"""Builds the shipped Dockerfiles without a registry, and runs commands in what came out.

`parts.sh` has made the base and the wheels, which are served to the builds from here. Root and chroot isolation are
enough: no daemon, no user namespaces, and a build shares the network of this machine.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml

from tests.commands import ran
from tests.loopback import handled

REPOSITORY = Path(__file__).resolve().parents[2]
PARTS = REPOSITORY / "build" / "images"
BASE = "localhost/base:parts"


class Buildah:
    """An image store of its own below `folder`: nothing that buildah has elsewhere is seen or changed."""

    def __init__(self, folder: Path) -> None:
        self._store = ["--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self._environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "overlay"}

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(["buildah", *self._store, *arguments])

    def make_base(self) -> None:
        container = self.call("from", "scratch").stdout.strip()
        self.call("add", "--quiet", container, str(PARTS / "base.tar"), "/")
        self.call("commit", "--quiet", "--rm", container, BASE)

    def make(self, target: str) -> None:
        """`make image-...`, as a user without a package index calls it: pip goes by the wheels that are there."""
        with served(PARTS / "wheels") as wheels:
            without_index = f"--build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS={wheels}"
            build = f"buildah {' '.join(self._store)} build --quiet --format docker --layers {without_index}"
            self._run(["make", target, f"BUILD={build}", f"BASE={BASE}", "TAG="])

    def container(self, image: str) -> str:
        return self.call("from", image).stdout.strip()

    def run(self, container: str, *command: str, mounts: dict[Path, str]) -> str:
        """The output of a command, run as the image's user; `mounts` are TARGET[:ro] by their sources."""
        volumes = [f"--volume={source}:{place}" for source, place in mounts.items()]
        return self.call("run", *volumes, container, "--", *command).stdout

    def config(self, image: str) -> dict[str, Any]:
        """What the image says about itself: User, Cmd, Entrypoint, Env, ExposedPorts."""
        told = yaml.safe_load(self.call("inspect", "--type", "image", image).stdout)
        return dict(told["Docker"]["config"])

    def save(self, image: str, name: str, archive: Path) -> None:
        """As `docker save` writes it, for `ctr images import`."""
        archive.unlink(missing_ok=True)
        self.call("push", "--quiet", image, f"docker-archive:{archive}:{name}")

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        done = ran(command, cwd=REPOSITORY, env=self._environment, timeout=1500)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a page with links to the files of a folder, as pip reads one."""
    with handled(partial(_Quiet, directory=str(folder))) as port:
        yield f"http://127.0.0.1:{port}/"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing: a build reads hundreds of files."""
