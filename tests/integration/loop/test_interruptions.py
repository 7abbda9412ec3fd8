"""A run that a Ctrl-C stops at any moment, or a disk of any size, ends with one line, and goes on later.

Moments are seconds of the run's own CPU, so that the load of the machine does not move them. All 50 moments and 20
sizes take minutes: SCOPE_EVERY_KILL=1 tries them, else a few of each.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.faults.counting import FaultCounts, points
from scope_selfplay.base.errors import ExitCode
from scope_selfplay.cli import main
from tests.integration.loop.served_runs import records
from tests.integration.loop.test_run import SETTINGS, in_child

pytestmark = pytest.mark.timeout(7200)

STOPPED = ("stopped; run the same command to go on",)
FULL = ("No space left on device", "cannot be written")


def press_after(seconds: float) -> None:
    """A Ctrl-C for this process, once it has used so many more seconds of the CPU."""
    moment = time.process_time() + seconds

    def press() -> None:
        while time.process_time() < moment:
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press, daemon=True).start()


def scope_run(policy: Path, root: Path, said: Path, moment: float | None) -> None:
    """`scope run` in this process, which writes what it says, and at last the seconds it took, to a file."""
    errors = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
    settings = [word for each in SETTINGS.split() for word in ("--set", each)]
    sys.argv = ["scope", "run", "--root", str(root), *settings, "--set", f"model.path={policy}"]
    sys.argv += ["--set", "model.processes=1"]
    began = time.process_time()
    if moment is not None:
        press_after(moment)
    main()
    print(time.process_time() - began)


def whole_or_stopped(code: int, said: Path, expected: ExitCode, lines: Sequence[str]) -> bool:
    """Whether the run came to its end; else it was stopped as it should be."""
    text = said.read_text()
    assert "Traceback" not in text and "Exception ignored" not in text, text
    if code == 0:
        return True
    assert code == expected, text
    last = text.splitlines()[-1]
    assert last.startswith("scope: ") and any(line in last for line in lines), text
    return False


@pytest.fixture(scope="module")
def whole(speaking_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run that nothing disturbed, and the seconds of CPU that it took."""
    root = tmp_path_factory.mktemp("whole")
    assert in_child(scope_run, speaking_policy, root, root / "said", None) == 0
    return root, float((root / "said").read_text().splitlines()[-1])


@pytest.mark.fault(9)
def test_a_ctrl_c_at_any_moment_is_one_line_and_the_run_goes_on(
    whole: tuple[Path, float], speaking_policy: Path, tmp_path: Path, counts: FaultCounts
) -> None:
    undisturbed, seconds = whole
    count, resumed = points(5, 50), points(5, 10)
    stopped = 0
    for number in range(count):
        root, said = tmp_path / str(number), tmp_path / f"said-{number}"
        moment = seconds * (number + 1) / (count + 1)
        code = in_child(scope_run, speaking_policy, root, said, moment)
        stopped += not whole_or_stopped(code, said, ExitCode.INTERRUPTED, STOPPED)
        if number % (count // resumed) == 0:
            assert in_child(scope_run, speaking_policy, root, said, None) == 0, said.read_text()
            counts.compare(records(undisturbed), records(root), tried=int(code != 0))
        shutil.rmtree(root, ignore_errors=True)
    print(f"{count} moments, {stopped} stopped, {resumed} gone on with")
    counts.check()
    assert stopped >= count * 0.8


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of 64 kB at first."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None or subprocess.run(mount(place, 64), capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def mount(place: Path, kilobytes: int, *options: str) -> list[str]:
    return ["mount", "-t", "tmpfs", "-o", ",".join([*options, f"size={kilobytes}k"]), "scope", str(place)]


@pytest.mark.fault(7)
def test_a_disk_of_any_size_that_fills_up_is_one_line_and_with_room_the_run_goes_on(
    whole: tuple[Path, float], speaking_policy: Path, disk: Path, tmp_path: Path, counts: FaultCounts
) -> None:
    undisturbed, _ = whole
    needed = sum(path.stat().st_size for path in undisturbed.rglob("*") if path.is_file()) // 1024
    count, resumed = points(4, 20), points(2, 10)
    full = 0
    for number in range(count):
        size, said = 8 + needed * number // count, tmp_path / f"said-{number}"
        subprocess.run(mount(disk, size, "remount"), check=True)
        code = in_child(scope_run, speaking_policy, disk, said, None)
        full += not whole_or_stopped(code, said, ExitCode.OUTSIDE, FULL)
        if number % (count // resumed) == 0:
            subprocess.run(mount(disk, 20 * needed, "remount"), check=True)
            assert in_child(scope_run, speaking_policy, disk, said, None) == 0, said.read_text()
            counts.compare(records(undisturbed), records(disk), tried=int(code != 0))
        shutil.rmtree(disk / "tiny", ignore_errors=True)
    print(f"{count} sizes up to {size} kB, {full} too small, {resumed} gone on with")
    counts.check()
    assert full >= count * 0.8
