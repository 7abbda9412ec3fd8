"""Whole runs that are killed, interrupted, out of disk or damaged: nothing is lost, doubled or changed.

The page of reliability tries many points of each fault (benchmarks.faults), these a few.
"""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from benchmarks.faults.counting import FaultCounts, points
from scope_selfplay.base.errors import ExitCode, ScopeError
from scope_selfplay.base.terminal import Progress
from scope_selfplay.cli import main
from scope_selfplay.driver.local import run_here
from scope_selfplay.judge import model as run_key
from scope_selfplay.judge.rules import LexicalJudge
from scope_selfplay.judge.served import judged_reply
from scope_selfplay.net.serve import ServedReply, ServedRequest
from scope_selfplay.run.begin import open_run
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.testing.chat_server import FakeServer
from tests.disks import Disk, disk_at
from tests.integration.loop.test_run import config_of, in_child, records, settings_of, whole_run
from tests.integration.serving.threads import in_thread
from tests.kills import die_before_write

pytestmark = pytest.mark.timeout(7200)

CONCURRENCY = 4


class CallLog:
    """A judge that logs its calls, and kills the process that it serves when the call number `kill_at` arrives."""

    def __init__(self) -> None:
        self.paid: Counter[tuple[str, object]] = Counter()
        self.client, self.kill_at, self._since = 0, 0, 0
        self.judge = LexicalJudge()

    def expect(self, client: int, kill_at: int) -> None:
        self.client, self.kill_at, self._since = client, kill_at, 0

    async def __call__(self, request: ServedRequest) -> ServedReply:
        if request.body.get("max_tokens") != 1:
            self.paid[request.prompt, request.body.get("seed")] += 1
            self._since += 1
            if self._since == self.kill_at:
                os.kill(self.client, signal.SIGKILL)
        return await judged_reply(self.judge, request)

    @property
    def again(self) -> int:
        return self.paid.total() - len(self.paid)


@contextmanager
def served_judge() -> Iterator[tuple[CallLog, str]]:
    log = CallLog()
    with in_thread(FakeServer(log, model=log.judge.identity).serving()) as url:
        yield log, url


def run_served(policy: Path, root: Path, url: str, kill_before: int | None) -> None:
    """A whole run in this process; all runs mark their judge's texts with one key, so that their calls are the same.

    Candidates are made one at a time: which of those started ahead of the quota still ask the judge is a matter of
    timing. No exam is held, so that calls, by which the moments of kills are drawn, are those of stages.
    """
    run_key.secrets = SimpleNamespace(token_bytes=bytes, token_hex=lambda size: str(os.getpid()))  # type: ignore[attr-defined]
    served = ("judge.kind=model", f"judge.endpoint.base_url={url}", f"judge.concurrency={CONCURRENCY}")
    whole_run(policy, root, kill_before, *served, "tasks.in_flight=1", "judge.exam=none")


def start_served(log: CallLog, *given: object, kill_at: int = 0) -> int:
    """The exit code of `run_served` in a process of its own, which its judge may kill."""
    return in_child(run_served, *given, begun=lambda process: log.expect(process, kill_at))


@pytest.fixture(scope="module")
def served(speaking_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CallLog]:
    """A run that nothing disturbed, and the judge calls that it paid for."""
    root = tmp_path_factory.mktemp("served")
    with served_judge() as (log, url):
        assert start_served(log, speaking_policy, root, url, None) == 0
    assert log.again == 0
    return root, log


@pytest.mark.fault(1)
@pytest.mark.parametrize("chain", range(points(4, 200) // 15 or 1))
def test_a_run_killed_again_and_again_is_the_run_that_nothing_disturbed(
    served: tuple[Path, CallLog], speaking_policy: Path, tmp_path: Path, counts: FaultCounts, chain: int
) -> None:
    """At writes and within judge calls in turn: each attempt goes on where the one before was killed."""
    undisturbed, asked = served
    writes, calls = int((undisturbed / "writes").read_text()), len(asked.paid)
    rng, kills, most = Random(chain), 0, min(20, points(4, 200))
    with served_judge() as (log, url):
        while True:
            at_write = rng.randint(1, 2 * writes // most) if kills % 2 == 0 and kills < most else None
            at_call = rng.randint(1, 2 * calls // most) if kills % 2 and kills < most else 0
            ended = start_served(log, speaking_policy, tmp_path, url, at_write, kill_at=at_call)
            if ended == 0:
                break
            assert ended == -signal.SIGKILL, f"after {kills} kills"
            kills += 1
    counts.compare(records(undisturbed), records(tmp_path), tried=kills)
    counts.add(paid_again=log.again, in_flight=kills * CONCURRENCY)
    counts.check()
    assert log.again <= kills * CONCURRENCY and kills >= most // 2
    assert log.paid.keys() == asked.paid.keys()


STOPPED = ("stopped; run the same command to go on",)
FULL = ("No space left on device", "cannot be written")


def press_after(count: int) -> None:
    """A Ctrl-C for this process, at any moment once it has made so many writes."""
    writes = die_before_write(None)

    def press() -> None:
        while writes() < count:
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press, daemon=True).start()


def scope_run(policy: Path, root: Path, said: Path, moment: int | None) -> None:
    """`scope run` in this process, which writes what it says to a file."""
    errors = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
    # Without a file of settings it would be the demo's run.
    own = said.with_suffix(".yaml")
    own.write_text("name: tiny\n")
    settings = [word for each in settings_of(policy) for word in ("--set", each)]
    sys.argv = ["scope", "run", "--config", str(own), "--root", str(root), *settings]
    if moment is not None:
        press_after(moment)
    main()


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


@pytest.mark.fault(9)
def test_a_ctrl_c_at_any_moment_is_one_line_and_the_run_goes_on(
    finished: RunFolder, speaking_policy: Path, tmp_path: Path, counts: FaultCounts
) -> None:
    undisturbed = records(finished.path.parent)
    writes = int((finished.path.parent / "writes").read_text())
    count, resumed = points(2, 50), points(1, 10)
    stopped = 0
    for number in range(count):
        root, said = tmp_path / str(number), tmp_path / f"said-{number}"
        moment = writes * (number + 1) // (count + 1)
        code = in_child(scope_run, speaking_policy, root, said, moment)
        stopped += not whole_or_stopped(code, said, ExitCode.INTERRUPTED, STOPPED)
        if number % (count // resumed) == 0:
            assert in_child(scope_run, speaking_policy, root, said, None) == 0, said.read_text()
            counts.compare(undisturbed, records(root), tried=int(code != 0))
        shutil.rmtree(root, ignore_errors=True)
    counts.check()
    assert stopped >= count * 0.8


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with disk_at(tmp_path / "disk") as made:
        yield made


@pytest.mark.fault(7)
def test_a_disk_of_any_size_that_fills_up_is_one_line_and_with_room_the_run_goes_on(
    finished: RunFolder, speaking_policy: Path, disk: Disk, tmp_path: Path, counts: FaultCounts
) -> None:
    undisturbed = records(finished.path.parent)
    needed = sum(path.stat().st_size for path in finished.path.rglob("*") if path.is_file()) // 1024
    count, resumed = points(2, 20), points(1, 10)
    full = 0
    for number in range(count):
        size, said = 8 + needed * number // count, tmp_path / f"said-{number}"
        disk.resize(size)
        code = in_child(scope_run, speaking_policy, disk.place, said, None)
        full += not whole_or_stopped(code, said, ExitCode.OUTSIDE, FULL)
        if number % (count // resumed) == 0:
            disk.resize(20 * needed)
            assert in_child(scope_run, speaking_policy, disk.place, said, None) == 0, said.read_text()
            counts.compare(undisturbed, records(disk.place), tried=int(code != 0))
        shutil.rmtree(disk.place / "tiny", ignore_errors=True)
    counts.check()
    assert full >= count * 0.8


# Of a run that has ended. Corpus and index are compared when a search is opened.
UNREAD = {
    "summary.json",
    "README.md",
    "corpus.jsonl",
    "index.json",
    *(f".{stage.value}.lock" for stage in Stage),
}

# Later stages list the hash of a manifest; of the last one, time, attempt, rows and version are notes.
LAST_MANIFEST = "tiny/iteration-01/compare/manifest.json"


def flip_in_process(policy: Path, root: Path, count: int, said: Path) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    expected, rng, found = records(root), Random(0), []
    order = rng.sample(files, len(files))
    contents = {path: path.read_bytes() for path in files}
    for number in range(count):
        # Every file comes up before any comes up again.
        file = order[number % len(order)]
        place, bit = rng.randrange(len(contents[file])), rng.randrange(8)
        damaged = bytearray(contents[file])
        damaged[place] ^= 1 << bit
        file.write_bytes(damaged)
        try:
            run_here(open_run(config_of(policy), root, Progress()))
            found.append(("same" if records(root) == expected else "wrong", str(file.relative_to(root)), ""))
        except ScopeError as error:
            found.append(("refused", str(file.relative_to(root)), str(error)))
        except Exception as error:  # noqa: BLE001 - a traceback is what must not be
            found.append(("traceback", str(file.relative_to(root)), repr(error)))
        for path, content in contents.items():
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)
    said.write_text(json.dumps(found))


@pytest.mark.fault(8)
def test_a_flipped_bit_is_refused_or_changes_nothing(
    finished: RunFolder, speaking_policy: Path, tmp_path: Path, counts: FaultCounts
) -> None:
    shutil.copytree(finished.path, tmp_path / "runs" / "tiny", symlinks=True)
    said = tmp_path / "said"
    assert in_child(flip_in_process, speaking_policy, tmp_path / "runs", points(20, 100), said) == 0
    found = json.loads(said.read_text())
    endings = Counter(ending for ending, _, _ in found)
    counts.add(tried=len(found), survived=endings["refused"] + endings["same"], refused=endings["refused"])
    counts.add(lost=0, duplicated=0, wrong=endings["wrong"])
    bad = [each for each in found if each[0] not in ("refused", "same")]
    assert not bad, bad
    # What a manifest lists is refused; notes that nobody reads again, and those of a lock, change nothing.
    same = {file for ending, file, _ in found if ending == "same"}
    assert {Path(file).name for file in same - {LAST_MANIFEST}} <= UNREAD
    counts.check()
