"""A real browser before a real `scope view` of a finished run of the embedded world."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scope_selfplay.store.folder import RunFolder

CHROMIUM = Path(os.environ.get("SCOPE_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium")
SCOPE = (sys.executable, "-m", "scope_selfplay.cli")
MINI = (
    "iterations=1 challenger.steps=1 solver.steps=1 tasks.target=6 tasks.in_flight=8 compare.tasks=12".split()
)


@pytest.fixture(scope="session")
def mini_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """SCOPE_MINI_RUN names a finished one; otherwise one is made, in half a minute."""
    given = os.environ.get("SCOPE_MINI_RUN")
    folder = tmp_path_factory.mktemp("browser") / "mini"
    if given:
        shutil.copytree(given, folder)
        return RunFolder(folder)
    pytest.importorskip("trl", reason="making a run needs the train extra")
    settings = [part for setting in MINI for part in ("--set", setting)]
    where = ["--root", str(folder.parent), "--name", "mini"]
    subprocess.run([*SCOPE, "run", *where, *settings], check=True, timeout=1500)
    return RunFolder(folder)


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is absent; install Debian's chromium or set SCOPE_CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def serve(folder: RunFolder, *options: str) -> Iterator[str]:
    """The address of `scope view` in a process of its own."""
    command = [*SCOPE, "view", folder.path.name, "--port", "0", *options]
    # Commands on a page name the run as a person would who stands beside it.
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=folder.path.parent, env=env
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "http://" in said, said + process.stderr.read()
        try:
            yield said.rsplit(" ", 1)[-1].strip()
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0


@pytest.fixture(scope="session")
def address(mini_run: RunFolder) -> Iterator[str]:
    with serve(mini_run, "--base-path", "/runs/mini") as served:
        yield served
