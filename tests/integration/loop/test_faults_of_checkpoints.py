"""A training that is killed, told to stop, or finds its checkpoint damaged ends as if nothing had happened."""

import asyncio
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from benchmarks.faults.counting import FaultCounts, points
from scope_selfplay.errors import StorageError
from scope_selfplay.stages.room import least_bytes
from scope_selfplay.store import StageFolder
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.checkpoints import Checkpoints
from scope_selfplay.training.grpo import make_trainer
from scope_selfplay.training.job import StepResult
from scope_selfplay.training.rows import RewardedRollout
from scope_selfplay.training.step_metrics import StepMetrics
from scope_selfplay.training.termination import Termination
from scope_selfplay.training.trained_model import trained_model
from tests.integration.loop.seam import by_member, job_of, make_sampler, same, train

pytestmark = pytest.mark.integration

WRITES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}


@pytest.mark.fault(9)
def test_a_training_that_is_told_to_stop_abandons_its_step_and_ends_with_the_same_weights(
    random_policy: Path, tmp_path: Path
) -> None:
    whole = job_of(random_policy, tmp_path / "whole", steps=4, save_every=100)
    train(whole, by_member)

    def stop_in_the_fourth(record: str, member: int, step: int) -> RewardedRollout:
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return by_member(record, member, step)

    stopped = job_of(random_policy, tmp_path / "stopped", steps=4)
    with pytest.raises(SystemExit) as ended:
        train(stopped, stop_in_the_fourth)
    assert ended.value.code == 143
    work = stopped.folder.work
    newest = Checkpoints(work).newest(print)
    assert newest is not None and newest.name == "checkpoint-3"
    assert [line["step"] for line in read_rows(stopped.folder.metrics)] == [1, 2, 3]
    # The newest is damaged: the resumed training goes back one more and leaves the damaged one for a person.
    state = newest / "shards" / "__0_0.distcp"
    state.write_bytes(state.read_bytes()[:-100])
    said: list[str] = []
    resumed = job_of(random_policy, tmp_path / "stopped", steps=4, said=said)
    asked = train(resumed, by_member)
    assert [step for _, step in asked] == [2, 3]
    assert len(said) == 1 and "__0_0.distcp has changed" in said[0]
    assert (work / "checkpoint-3.damaged-1" / "shards" / "__0_0.distcp").exists()
    assert same(resumed.folder.checkpoint, whole.folder.checkpoint)
    pairs = zip(read_rows(resumed.folder.metrics), read_rows(whole.folder.metrics), strict=True)
    assert all(one["loss"] == pytest.approx(two["loss"]) for one, two in pairs)


@pytest.mark.fault(9)
def test_a_training_that_is_told_to_stop_anywhere_loses_what_was_not_saved_at_most(
    random_policy: Path, tmp_path: Path, counts: FaultCounts, capfd: pytest.CaptureFixture[str]
) -> None:
    """At a moment of a step: while it is sampled, at a write of its save, or between; the page tries twenty."""
    whole = job_of(random_policy, tmp_path / "whole", steps=4, save_every=2)
    train(whole, by_member)
    capfd.readouterr()
    for number in range(points(8, 20)):
        folder, rng = tmp_path / str(number), Random(number)
        code, reached = in_fork_of_training(random_policy, folder, rng.randrange(1, 4), rng.randrange(12))
        assert os.waitstatus_to_exitcode(code) == 143 and reached.exists(), number
        saved = Checkpoints(folder / ".work").newest(print)
        done = [line["step"] for line in read_rows(StageFolder(folder).metrics)]
        # A step that is complete is saved whatever save_every says; in the middle of one, what was saved is kept.
        is_complete = "the step that is complete is saved first" in capfd.readouterr().err
        kept = len(done) if is_complete else len(done) // 2 * 2
        assert (saved.name if saved else None) == (f"checkpoint-{kept}" if kept else None)
        resumed = job_of(random_policy, folder, steps=4, save_every=2)
        asked = train(resumed, by_member)
        assert [step for _, step in asked] == list(range(kept, 4))
        is_same = same(resumed.folder.checkpoint, whole.folder.checkpoint)
        one, two = (
            [(row["step"], row["reward"]) for row in read_rows(each.folder.metrics)]
            for each in (resumed, whole)
        )
        lost, wrong = len(set(two) - set(one)), len(set(one) - set(two)) + (not is_same)
        counts.add(tried=1, survived=int(not lost and not wrong), lost=lost, wrong=wrong)
        counts.add(duplicated=len(one) - len(set(one)))
    counts.check()


def in_fork_of_training(policy: Path, folder: Path, step: int, moment: int) -> tuple[int, Path]:
    """The exit status of a training that gets SIGTERM while a step is sampled (0), or at its later writes."""
    reached = folder / "reached"

    def stop() -> None:
        reached.touch()
        os.kill(os.getpid(), signal.SIGTERM)

    def work() -> None:
        seen = -1

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if event in WRITES and seen >= 0 and str(folder) in str(arguments[0] if arguments else ""):
                seen += 1
                if seen == moment:
                    seen = -1
                    stop()

        def score(record: str, member: int, at: int) -> RewardedRollout:
            nonlocal seen
            if at == step and not reached.exists():
                if moment == 0:
                    stop()
                else:
                    seen = max(seen, 0)
            return by_member(record, member, at)

        sys.addaudithook(hook)
        train(job_of(policy, folder, steps=4, save_every=2), score)

    return in_fork(work), reached


@pytest.mark.fault(9)
def test_a_save_is_finished_before_sigterm_ends_the_training(random_policy: Path, tmp_path: Path) -> None:
    told: list[str] = []

    def tell(event: str, arguments: tuple[Any, ...]) -> None:
        # The first file of the second checkpoint.
        if event == "open" and "checkpoint-2/shards/" in str(arguments[0]) and not told:
            told.append(str(arguments[0]))
            os.kill(os.getpid(), signal.SIGTERM)

    sys.addaudithook(tell)
    job = job_of(random_policy, tmp_path / "stage", steps=4)
    with pytest.raises(SystemExit) as ended:
        train(job, by_member)
    assert ended.value.code == 143 and told
    newest = Checkpoints(job.folder.work).newest(print)
    assert newest is not None and newest.name == "checkpoint-2"
    assert [step for _, step in train(job, by_member)] == [2, 3]


@pytest.mark.parametrize(("keep", "kept"), [(1, [3]), (3, [1, 2, 3])])
def test_a_training_keeps_as_many_checkpoints_as_it_is_told_to(
    random_policy: Path, tmp_path: Path, keep: int, kept: list[int]
) -> None:
    def stop_in_the_fourth(record: str, member: int, step: int) -> RewardedRollout:
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return by_member(record, member, step)

    job = job_of(random_policy, tmp_path / "stage", steps=4, keep_checkpoints=keep)
    with pytest.raises(SystemExit):
        train(job, stop_in_the_fourth)
    found = sorted(path.name for path in job.folder.work.glob("checkpoint-*"))
    assert found == [f"checkpoint-{step}" for step in kept]


@pytest.mark.parametrize("steps", [1, 4])
def test_no_training_writes_less_than_what_is_certain(
    random_policy: Path, tmp_path: Path, steps: int
) -> None:
    job = job_of(random_policy, tmp_path / "stage", steps=steps)
    least = least_bytes(job)
    train(job, by_member)
    saved = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    # Of four checkpoints three lie there at once, and two at the end.
    most = saved if steps == 1 else saved * 3 / 2
    assert 0.6 * most < least <= most
    assert least_bytes(job) < least / 5


# A mutex that its own thread locks twice: like a rank in a collective call whose peers are gone, it runs no Python.
STUCK = """
import ctypes
from scope_selfplay.training import termination

termination.ABANDON_SECONDS = 0.5
lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
with termination.Termination():
    lock(mutex)
    print("here", flush=True)
    lock(mutex)
"""


def test_a_process_that_is_stuck_in_a_call_ends_as_well() -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"here\n"
            child.send_signal(signal.SIGTERM)
            assert child.wait(30) == 143
        finally:
            child.kill()


def fill_the_disk(policy: Path, folder: Path, said: Path, largest: int) -> None:
    """Trains where no file may grow beyond so many bytes once a step has been saved."""

    def fill(step: int, line: dict[str, Any]) -> None:
        if step == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        train(job_of(policy, folder, steps=3, on_step=fill), by_member)
    except StorageError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        said.write_text(str(error))


@pytest.mark.fault(7)
@pytest.mark.parametrize("largest", [1_000, 100_000])
def test_a_full_disk_is_named_and_the_checkpoint_before_stays(
    random_policy: Path, tmp_path: Path, largest: int
) -> None:
    job_folder, said = tmp_path / "full", tmp_path / "said"
    in_fork(lambda: fill_the_disk(random_policy, job_folder, said, largest))
    assert "cannot be written" in said.read_text() and "make room" in said.read_text()
    newest = Checkpoints(job_folder / ".work").newest(print)
    assert newest is not None and newest.name == "checkpoint-1"


def saver(policy: Path, folder: Path) -> Any:
    """A warm trainer that has trained two steps and saved both."""
    job = job_of(policy, folder, steps=2)
    trained = trained_model(job.start.weights, job.start.base, job.options.model.lora)
    sample_step = make_sampler(by_member)(trained.sampled)

    def sample(records: list[str], step: int, trainer: Any) -> StepResult:
        return asyncio.run(sample_step(records, step))

    trainer = make_trainer(job, trained, sample, StepMetrics(job), Termination())
    trainer.train()
    return trainer


def in_fork(work: Callable[[], None]) -> int:
    """The exit status of a copy of this process that does the work."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def save_next(trainer: Any, folder: Path, tick: Callable[[int], None]) -> None:
    """Save step 3 into a folder, with a call at every write that can be seen from here."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in WRITES and str(folder) in str(arguments[0] if arguments else ""):
            seen += 1
            tick(seen)

    trainer.checkpoints = Checkpoints(folder)
    trainer.state.global_step = 3
    sys.addaudithook(hook)
    trainer._save_checkpoint(trainer.model, None)


def is_loadable(checkpoint: Path) -> bool:
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    plain = checkpoint.with_suffix(".pt")
    dcp_to_torch_save(checkpoint / "shards", plain)
    state = torch.load(plain, weights_only=False)
    torch.load(checkpoint / "scheduler.pt", weights_only=True)
    return bool(state["weights"] and state["optimizer"]) and (checkpoint / "rng_state.pth").exists()


@pytest.mark.fault(10)
def test_a_save_that_is_killed_anywhere_leaves_a_whole_checkpoint(
    random_policy: Path, tmp_path: Path, counts: FaultCounts
) -> None:
    kills = points(20, 50)
    trainer = saver(random_policy, tmp_path / "warm")
    before = tmp_path / "warm" / ".work"
    counter = tmp_path / "count"
    shutil.copytree(before, tmp_path / "dry")
    in_fork(lambda: save_next(trainer, tmp_path / "dry", lambda seen: counter.write_text(str(seen)) and None))
    writes = int(counter.read_text())
    assert writes >= 20, writes
    found = []
    for number in range(kills):
        folder = tmp_path / f"kill-{number}"
        shutil.copytree(before, folder)
        last = 1 + number * (writes - 1) // (kills - 1)

        def kill(seen: int, last: int = last) -> None:
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)

        status = in_fork(lambda folder=folder, kill=kill: save_next(trainer, folder, kill))
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        said: list[str] = []
        newest = Checkpoints(folder).newest(said.append)
        assert newest is not None and is_loadable(newest) and said == []
        found.append(newest.name)
        counts.add(tried=1, survived=1)
    assert set(found) == {"checkpoint-2", "checkpoint-3"}
    assert found == sorted(found)


class PressedStream(io.FileIO):
    """A file in whose so-manyeth write somebody presses Ctrl-C; `writes` counts those of all files."""

    writes = 0

    def __init__(self, path: str, press: int) -> None:
        super().__init__(path, "wb")
        self._press = press

    def write(self, data: Any) -> int:
        PressedStream.writes += 1
        if PressedStream.writes == self._press:
            raise KeyboardInterrupt
        return super().write(data)


@pytest.mark.fault(9)
def test_ctrl_c_within_any_write_of_a_save_is_no_full_disk(
    random_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: FaultCounts
) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystem

    trainer = saver(random_policy, tmp_path / "warm")

    def save(folder: Path, press: int) -> None:
        PressedStream.writes = 0
        monkeypatch.setattr(FileSystem, "create_stream", lambda _, path, mode: PressedStream(path, press))
        trainer.checkpoints, trainer.state.global_step = Checkpoints(folder), 3
        trainer._save_checkpoint(trainer.model, None)

    save(tmp_path / "dry", 0)
    writes, presses = PressedStream.writes, points(20, 50)
    for number in range(presses):
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path / "warm" / ".work", 1 + number * (writes - 1) // (presses - 1))
        newest = Checkpoints(tmp_path / "warm" / ".work").newest(print)
        assert newest is not None and newest.name == "checkpoint-2"
        counts.add(tried=1, survived=1)


@pytest.mark.fault(11)
def test_a_damaged_checkpoint_is_passed_over_and_kept(
    random_policy: Path, tmp_path: Path, counts: FaultCounts
) -> None:
    """Every file of the newest one in turn: a bit flipped, the end cut off, gone; then of both checkpoints."""
    saver(random_policy, tmp_path / "warm")
    work = tmp_path / "warm" / ".work"
    newest, before = (work / f"checkpoint-{step}" for step in (2, 1))
    rng = Random(0)
    for file in sorted(path for path in newest.rglob("*") if path.is_file()):
        content = file.read_bytes()
        place = rng.randrange(len(content))
        flipped = content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
        for damaged in (flipped, content[: len(content) // 2], None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            said: list[str] = []
            found = Checkpoints(work).newest(said.append)
            is_well = found == before and len(said) == 1 and f"{newest}: damaged checkpoint" in said[0]
            counts.add(tried=1, survived=int(is_well), lost=int(not newest.exists()))
            file.write_bytes(content)
    assert Checkpoints(work).newest(print) == newest
    for each in (newest, before):
        (each / "receipt.json").unlink()
    assert Checkpoints(work).newest([].append) is None
    counts.add(tried=1, survived=1)
    counts.check()
