"""One process at a time works in a folder: the second waits, then goes on or says who holds it."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from scope_selfplay.base.errors import StorageError
from scope_selfplay.base.machine import folder_lock

pytestmark = pytest.mark.integration

HOLDER = """
import sys
from pathlib import Path
from scope_selfplay.base.machine import folder_lock
folder = Path(sys.argv[1])
with folder_lock(folder, folder.with_name(f".{folder.name}.lock"), work="writing", say=print, timeout=0):
    print("held", flush=True)
    sys.stdin.readline()
"""


def writing(
    folder: Path, *, say: Callable[[str], None] = print, timeout: float = 0.0
) -> AbstractContextManager[None]:
    return folder_lock(
        folder, folder.with_name(f".{folder.name}.lock"), work="writing", say=say, timeout=timeout
    )


@contextmanager
def held_elsewhere(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_stage_that_another_process_writes_is_refused_by_name(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        held_elsewhere(tmp_path / "solver") as process,
        pytest.raises(StorageError, match=rf"solver: process {process.pid} on .* is writing there; wait"),
        writing(tmp_path / "solver", say=said.append, timeout=0.2),
    ):
        pytest.fail("two writers")
    assert len(said) == 1 and "waiting up to 0 s" in said[0]


def test_the_second_goes_on_when_the_first_is_killed(tmp_path: Path) -> None:
    def kill(line: str) -> None:
        process.kill()

    with (
        held_elsewhere(tmp_path / "solver") as process,
        writing(tmp_path / "solver", say=kill, timeout=30),
    ):
        assert process.wait(5) != 0


def test_stages_beside_each_other_do_not_wait(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / "solver"), writing(tmp_path / "tasks", timeout=0):
        assert {path.name for path in tmp_path.iterdir()} == {".solver.lock", ".tasks.lock"}


def test_a_volume_without_locks_is_named_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    said: list[str] = []
    with writing(tmp_path / "solver", say=said.append):
        pass
    assert len(said) == 1 and "the volume has no locks" in said[0]
