"""What a volume lacks is told in one line, and a run works without what it can do without."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

from jobs.__main__ import jobs
from scope_selfplay.base.errors import ConfigError, StorageError
from scope_selfplay.cluster.probe import check_volume, probe_volume
from scope_selfplay.judge.model import run_key
from scope_selfplay.store import files
from scope_selfplay.store.files import sync_folder, write_atomic
from scope_selfplay.store.folder import StageManifest, publish_manifest, read_manifest


def manifest(attempt: int) -> StageManifest:
    return StageManifest(stage="tasks", iteration=1, spec_hash="a", attempt=attempt)


def refuse(number: int) -> Callable[..., None]:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return refused


def test_a_local_disk_can_do_all_and_nothing_stays_behind(tmp_path: Path) -> None:
    assert probe_volume(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []
    said: list[str] = []
    assert check_volume(tmp_path, said.append) == f"{tmp_path}: the volume can do all that a run needs"
    assert said == []


NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@pytest.mark.parametrize("number", NO_LINKS, ids=os.strerror)
def test_a_volume_without_links_is_told_and_a_manifest_is_published_there_once(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", refuse(number))
    said: list[str] = []
    line = check_volume(tmp_path, said.append)
    assert said == [f"warning: {line}"] and "\n" not in line
    assert f"cannot link ({os.strerror(number)}): manifests are published without" in line
    for attempt in (1, 2, 3):
        publish_manifest(tmp_path, manifest(attempt))
    assert read_manifest(tmp_path) == manifest(1)
    assert len({run_key(tmp_path) for _ in range(3)}) == 1


def test_everything_that_is_missing_is_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.fsync

    def no_folders(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        whole(handle)

    monkeypatch.setattr(os, "fsync", no_folders)
    monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOLCK))
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setattr(os, "getegid", lambda: 4242)
    monkeypatch.setattr(os, "getgroups", lambda: [4242])
    assert [*probe_volume(tmp_path)] == ["link", "lock", "flush a folder", "give files to this user"]
    # Without flushed folders everything is written all the same.
    sync_folder(tmp_path)
    write_atomic(tmp_path / "a", "b")
    assert (tmp_path / "a").read_text() == "b"


def test_a_lock_that_two_get_and_a_rename_that_keeps_the_old_file_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert [*probe_volume(tmp_path).values()] == [
        "cannot lock (two held the same lock): two pods may write one stage; do not start a run twice, and end stuck "
        "pods by hand"
    ]
    monkeypatch.setattr(Path, "replace", lambda *_: None)
    with pytest.raises(ConfigError, match=r"cannot rename .*no run can work on it"):
        check_volume(tmp_path, print)


def test_a_volume_that_takes_nothing_ends_with_one_line_that_kubernetes_shows(tmp_path: Path) -> None:
    """As root of a read-only mount and as a user without rights: here a file where the folder should be."""
    message = tmp_path / "termination-log"
    message.touch()
    (tmp_path / "data").write_text("no folder")
    arguments = ["--message", str(message), "--folder"]
    done = CliRunner().invoke(jobs, ["probe-volume", *arguments, str(tmp_path / "data")])
    assert isinstance(done.exception, ConfigError)
    assert (
        message.read_text() == str(done.exception) and "cannot write (Not a directory)" in message.read_text()
    )
    done = CliRunner().invoke(jobs, ["probe-volume", *arguments, str(tmp_path)])
    assert done.exit_code == 0 and "can do all that a run needs" in message.read_text()


def test_another_fault_of_a_link_is_no_missing_ability_and_a_claim_of_one_killed_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", refuse(errno.ENOSPC))
    with pytest.raises(StorageError, match="No space left"):
        publish_manifest(tmp_path, manifest(1))
    assert read_manifest(tmp_path) is None
    # Killed between its claim and its rename.
    monkeypatch.setattr(os, "link", refuse(errno.EPERM))
    monkeypatch.setattr(files, "CLAIM_SECONDS", 0.2)
    (tmp_path / ".manifest.json.claim").touch()
    publish_manifest(tmp_path, manifest(2))
    assert read_manifest(tmp_path) == manifest(2)
    # One that lives is waited for.
    late = tmp_path / "late"
    late.mkdir()
    (late / ".manifest.json.claim").touch()
    monkeypatch.setattr(files, "CLAIM_SECONDS", 30)
    made = manifest(1).model_dump_json()
    threading.Timer(0.2, write_atomic, (late / "manifest.json", made)).start()
    publish_manifest(late, manifest(2))
    assert read_manifest(late) == manifest(1)


def test_of_many_at_once_one_is_published_and_no_reader_sees_a_part(tmp_path: Path) -> None:
    """Four processes publish on a volume without links while this one reads."""
    program = dedent(
        """
        import errno, os, sys
        from pathlib import Path
        from scope_selfplay.store.folder import StageManifest, publish_manifest
        def refused(*_): raise OSError(errno.EPERM, "no links")
        os.link = refused
        folder, attempt = Path(sys.argv[1]), int(sys.argv[2])
        sys.stdin.readline()
        for stage in range(25):
            (folder / str(stage)).mkdir(exist_ok=True)
            made = StageManifest(stage=f"{attempt}" * 5000, iteration=1, spec_hash="a", attempt=attempt)
            publish_manifest(folder / str(stage), made)
            print(StageManifest.model_validate_json((folder / str(stage) / "manifest.json").read_bytes()).attempt)
        """
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    jobs = [subprocess.Popen([*command, str(number)], **pipes) for number in range(1, 5)]  # type: ignore[call-overload]
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.flush()
    seen = [job.communicate(timeout=120)[0].split() for job in jobs]
    # Whoever published a stage, all of them read the same.
    assert all(len(each) == 25 for each in seen)
    assert all(len(set(of_stage)) == 1 for of_stage in zip(*seen, strict=True))
