"""The time of a stage holds what killed attempts and other workers took."""

import os
from pathlib import Path

from scope_selfplay.stages.work import begin_attempt, time_of_attempts


def set_time(path: Path, seconds: float) -> None:
    path.touch()
    os.utime(path, (seconds, seconds))


def test_the_time_of_every_killed_attempt_counts_once(tmp_path: Path) -> None:
    work = tmp_path / ".work"
    work.mkdir()
    assert begin_attempt(tmp_path, work) == 0
    set_time(work / "seconds", 1000)
    set_time(tmp_path / "rollouts.jsonl", 1030)
    set_time(tmp_path / "grades.jsonl", 1025)
    assert begin_attempt(tmp_path, work) == 30
    # An attempt that wrote nothing adds nothing, whatever files earlier attempts left.
    assert begin_attempt(tmp_path, work) == 30
    set_time(work / "seconds", 5000)
    set_time(work / "checkpoint", 5100)
    assert begin_attempt(tmp_path, work) == 130


def test_every_start_of_a_worker_has_its_own_time(tmp_path: Path) -> None:
    shares = [tmp_path / name for name in ("00-of-02-000", "01-of-02-000", "01-of-02-001")]
    for row, share in enumerate(shares):
        share.mkdir()
        if row < 2:
            begin_attempt(share, share)
            set_time(share / "seconds", 1000)
            set_time(share / "candidates.jsonl", 1010 + row)
    assert time_of_attempts(shares) == 21
