"""A training that is killed, told to stop, or finds its checkpoint damaged ends as if nothing had happened."""

import ctypes
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from benchmarks.faults.counting import FaultCounts, points
from scope_selfplay.base.errors import StorageError
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.store.files import read_rows
from scope_selfplay.store.folder import StageFolder, damage_of
from scope_selfplay.training.checkpoint import PARTS, Checkpoints
from scope_selfplay.training.passes import RewardedRollout
from scope_selfplay.training.ranks import Ranks
from tests.integration.loop.seam import Killed, by_member, job_of, killed_in, same, train_on

WRITES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}


def newest(work: Path) -> str | None:
    found = Checkpoints(work, Ranks()).newest(print)
    return found and found.name


KINDS: dict[str, tuple[dict[str, Any], ModelConfig]] = {
    "the newest checkpoint damaged": ({}, ModelConfig()),
    "one step ahead": ({"overlap": 1}, ModelConfig()),
    "an adapter": ({"kl_beta": 0.1, "learning_rate": 5e-2}, ModelConfig(lora_rank=4)),
    # A step moves a weight by less than bfloat16 can tell apart.
    "float32 over bfloat16": ({"learning_rate": 1e-6}, ModelConfig(export_dtype="float32")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training_goes_on_with_every_step_once_and_ends_with_the_same_bits(
    random_policy: Path, half_policy: Path, tmp_path: Path, kind: str
) -> None:
    settings, model = KINDS[kind]
    policy = half_policy if model.export_dtype == "float32" else random_policy
    said: list[str] = []
    whole, killed = (
        job_of(policy, tmp_path / name, steps=4, said=said, model=model, **settings)
        for name in ("whole", "killed")
    )
    train_on(whole, by_member)
    with pytest.raises(Killed):
        train_on(killed, killed_in(2))
    if is_damaged := "damaged" in kind:
        # What is damaged is left for a person, and made again from the checkpoint before.
        state = killed.folder.work / "checkpoint-2" / PARTS / "__0_0.distcp"
        state.write_bytes(state.read_bytes()[:-100])
    asked = [step for _, step in train_on(killed, by_member)]
    assert asked == ([1, 2, 3] if is_damaged else [2, 3])
    assert [f"{PARTS}/__0_0.distcp has changed" in line for line in said] == [True] * is_damaged
    assert (killed.folder.work / "checkpoint-2.damaged-1").exists() == is_damaged
    lines, bits = [], []
    for folder in (whole.folder, killed.folder):
        lines.append([(row["step"], row["loss"], row["grad_norm"]) for row in read_rows(folder.metrics)])
        bits.append({file.name: file.read_bytes() for file in folder.checkpoint.rglob("*.safetensors")})
    assert lines[0] == lines[1] and [step for step, *_ in lines[1]] == [1, 2, 3, 4]
    assert bits[0] == bits[1] and len(bits[1]) == (2 if model.lora_rank else 1)


@pytest.mark.fault(9)
def test_a_training_that_is_told_to_stop_anywhere_loses_what_was_not_saved_at_most(
    random_policy: Path, tmp_path: Path, counts: FaultCounts, capfd: pytest.CaptureFixture[str]
) -> None:
    """At a moment of a step: while it is sampled, at a write of its save, or between; the page tries twenty."""
    whole = job_of(random_policy, tmp_path / "whole", steps=4, save_every=3)
    train_on(whole, by_member)
    capfd.readouterr()
    for number in range(points(4, 20)):
        folder, rng = tmp_path / str(number), Random(number)
        step, moment = rng.randrange(1, 4), rng.randrange(12) if number else 0
        code, reached = in_fork_of_training(random_policy, folder, step, moment)
        assert os.waitstatus_to_exitcode(code) == 143 and reached.exists(), number
        assert "SIGTERM: ending" in capfd.readouterr().err
        saved, done = newest(folder / ".work"), len(read_rows(StageFolder(folder).metrics))
        kept = int(saved.removeprefix("checkpoint-")) if saved else 0
        # What is complete is saved whatever save_every says; in the middle of an update, what was saved is kept.
        assert kept in (done, done // 3 * 3)
        assert moment or kept == done == step, "rollouts that last are abandoned"
        resumed = job_of(random_policy, folder, steps=4, save_every=3)
        asked = train_on(resumed, by_member)
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
                    time.sleep(0.5)
                else:
                    seen = max(seen, 0)
            return by_member(record, member, at)

        sys.addaudithook(hook)
        train_on(job_of(policy, folder, steps=4, save_every=3), score)

    return in_fork(work), reached


# A mutex that its own thread locks twice: like a rank in a collective call whose peers are gone, it runs no Python.
STUCK = """
import ctypes
from scope_selfplay.training import ranks

ranks.ENDING_SECONDS = 0.5
lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
with ranks.Ranks():
    lock(mutex)
    print("here", flush=True)
    lock(mutex)
"""


def test_a_process_that_is_stuck_in_a_call_ends_as_well() -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"here\n"
            child.send_signal(signal.SIGTERM)
            assert child.wait(120) == 143
        finally:
            child.kill()


@pytest.mark.fault(7)
@pytest.mark.parametrize("largest", [1_000, 100_000])
def test_a_full_disk_is_named_and_the_checkpoint_before_stays(
    random_policy: Path, tmp_path: Path, largest: int
) -> None:
    """No file may grow beyond so many bytes once a step has been saved."""
    folder, said = tmp_path / "full", tmp_path / "said"

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def fill(step: int, line: dict[str, Any], accounts: Any) -> None:
        limit(largest if step == 2 else resource.RLIM_INFINITY)

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            train_on(job_of(random_policy, folder, steps=3, on_step=fill), by_member)
        except StorageError as error:
            limit(resource.RLIM_INFINITY)
            said.write_text(str(error))

    in_fork(work)
    assert "cannot be written" in said.read_text() and "make room" in said.read_text()
    assert newest(folder / ".work") == "checkpoint-1"


def in_fork(work: Callable[[], None]) -> int:
    """The exit status of a copy of this process that does the work."""
    # An update computes in two threads, which a fork has not: they are ended first (omp_pause_hard) and begun anew.
    openmp = next((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    assert ctypes.CDLL(str(openmp)).omp_pause_resource_all(2) == 0
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


def state_of(step: int) -> dict[str, Any]:
    weights = {name: torch.full((size,), float(step)) for name, size in (("a", 5000), ("b", 70))}
    moments = {"step": torch.tensor(float(step)), "exp_avg": torch.full((5000,), step / 2)}
    return {"weights": weights, "optimizer": {"a": moments}}


def save(work: Path, *steps: int, keep: int = 2) -> Path:
    for step in steps:
        Checkpoints(work, Ranks(), keep).save(step, state_of(step))
    return work


def killed_save(work: Path, keep: int, last: int) -> int:
    """Save step 4 in a fork that is killed at its `last` write that can be seen from here; how many it came to."""
    count = work.with_suffix(".count")

    def in_child() -> None:
        seen = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if event in WRITES and str(work) in str(arguments[0] if arguments else ""):
                seen += 1
                if seen == last:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        save(work, 4, keep=keep)
        count.write_text(str(seen))

    status = in_fork(in_child)
    assert not last or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
    return int(count.read_text()) if count.exists() else 0


@pytest.mark.fault(10)
@pytest.mark.parametrize("keep", [1, 2])
def test_a_save_that_is_killed_anywhere_leaves_a_whole_checkpoint(
    tmp_path: Path, counts: FaultCounts, keep: int
) -> None:
    """Of three before: with 1 all of them go, and none before a newer one is whole."""
    kills, before = points(5, 20), save(tmp_path / "before", 1, 2, 3, keep=3)
    writes = killed_save(shutil.copytree(before, tmp_path / "dry"), keep, last=0)
    assert writes >= 15, writes
    found = []
    for number in range(kills):
        work = shutil.copytree(before, tmp_path / f"kill-{number}")
        killed_save(work, keep, 1 + number * (writes - 1) // (kills - 1))
        checkpoints, said, state = Checkpoints(work, Ranks(), keep), list[str](), state_of(0)
        found.append(checkpoints.restore(lambda state=state: state, said.append))
        torch.testing.assert_close(state, state_of(found[-1]), rtol=0, atol=0)
        whole = [path.name for path in work.glob("checkpoint-*") if damage_of(path) is None]
        assert len(whole) >= (3 if found[-1] == 3 else min(keep, 3)) and said == []
        # What goes on clears up, and keeps as many as it is told to.
        checkpoints.save(5, state_of(5))
        assert sorted(path.name for path in work.iterdir()) == sorted([*whole, "checkpoint-5"])[-keep:]
        counts.add(tried=1, survived=1)
    assert set(found) == {3, 4} and found == sorted(found)


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: FaultCounts
) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystem

    work = save(tmp_path / "work", 1, 2)

    def press_while_saving(folder: Path, press: int) -> None:
        PressedStream.writes = 0
        monkeypatch.setattr(FileSystem, "create_stream", lambda _, path, mode: PressedStream(path, press))
        save(folder, 3)

    press_while_saving(tmp_path / "dry", 0)
    writes, presses = PressedStream.writes, points(10, 50)
    for number in range(presses):
        with pytest.raises(KeyboardInterrupt):
            press_while_saving(work, 1 + number * (writes - 1) // (presses - 1))
        assert newest(work) == "checkpoint-2"
        counts.add(tried=1, survived=1)
