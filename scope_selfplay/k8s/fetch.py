"""`scope k8s fetch`: a run's results from its volume to a folder here, as often as one likes.

A file appears whole, with the time that it has there, and its sum is checked; what is half here goes on where it broke.
A note beside them (`.fetched.json`) says which contents came from there: those are replaced by newer ones, and a
file with other contents never is, unless that is asked for.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from scope_selfplay.errors import ConfigError, OutsideError
from scope_selfplay.k8s.reader import Reader, Stream
from scope_selfplay.k8s.remote_files import LENGTH
from scope_selfplay.progress import Progress
from scope_selfplay.store.files import read_value, write_atomic
from scope_selfplay.store.folders import checksum

NOTE = ".fetched.json"
TRIES = 5
"""Broken connections in a row, none of which brought a file."""
_TOLD = 3
_SUM = 32


@dataclass
class Fetched:
    """What one fetch did; sizes in bytes."""

    run: str
    folder: str
    files: list[str] = field(default_factory=list)
    bytes: int = 0
    unchanged: int = 0


class Target:
    """A run's folder here, and what of it came from the volume."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sums = read_value(folder / NOTE, dict[str, str], "remove it: all files are fetched again") or {}

    def place(self, name: str) -> Path:
        """Where a file belongs. Raises OutsideError for a name that leads out of the folder."""
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or name.startswith("/"):
            raise OutsideError(
                f"the pod names a file {name!r}, which is no path inside a run; nothing is written"
            )
        return self.folder.joinpath(*parts)

    def part(self, name: str) -> Path:
        place = self.place(name)
        return place.with_name(f".{place.name}.part")

    def is_same(self, name: str, size: int, time: int) -> bool:
        """By size and time, as rsync tells."""
        place = self.place(name)
        found = place.stat() if place.is_file() else None
        return found is not None and (found.st_size, found.st_mtime_ns) == (size, time)

    def is_ours(self, name: str) -> bool:
        """Whether what is here may be replaced: it came from there, or there is nothing."""
        place = self.place(name)
        return not place.exists() or (place.is_file() and self._sums.get(name) == checksum(place))

    def keep(self, name: str, digest: str, time: int) -> None:
        """Give a whole file its name and the time that it has on the volume."""
        os.utime(self.part(name), ns=(time, time))
        self.part(name).replace(self.place(name))
        self._sums[name] = digest

    def stamp(self, name: str, time: int) -> None:
        """A file that was here already, and is the same."""
        os.utime(self.place(name), ns=(time, time))
        self._sums[name] = checksum(self.place(name))

    def write_note(self) -> None:
        if self._sums:
            write_atomic(self.folder / NOTE, json.dumps(self._sums, indent=1, sort_keys=True) + "\n")


def fetch(pod: Reader, run: str, to: Path, progress: Progress, *, checkpoints: bool, force: bool) -> Fetched:
    """Bring a run's files to `to`/`run`. Raises ConfigError, before it writes anything, where a file would be lost."""
    listed = pod.ask("list", checkpoints=checkpoints)
    if "missing" in listed:
        there = ", ".join(listed["there"]) or "none"
        raise ConfigError(f"{run}: {listed['missing']} is not on the volume; the runs there: {there}")
    target = Target(to / run)
    files: Mapping[str, Sequence[int]] = listed["files"]
    changed = [name for name, (size, time) in files.items() if not target.is_same(name, size, time)]
    foreign = [] if force else [name for name in changed if not target.is_ours(name)]
    same = _same(pod, target, foreign, files)
    if lost := [name for name in foreign if name not in same]:
        told = ", ".join(lost[:_TOLD]) + (f" and {len(lost) - _TOLD} more" if len(lost) > _TOLD else "")
        raise ConfigError(
            f"{target.folder}: {told} did not come from the volume and differ from what is there; nothing was fetched: "
            "name another folder with --to, or replace them with --force"
        )
    wanted = [name for name in changed if name not in same]
    done = Fetched(run, str(target.folder), unchanged=len(files) - len(wanted))
    total = sum(files[name][0] for name in wanted)
    progress.begin(f"fetch {run}, MB", max(1, round(total / 1e6)))
    try:
        _bring(pod, target, wanted, done, progress)
    finally:
        target.folder.mkdir(parents=True, exist_ok=True)
        target.write_note()
    if listed["best"] is not None:
        _link(target, listed["best"])
    progress.end(f"{len(done.files)} files, {done.bytes / 1e6:,.1f} MB; {done.unchanged} were here")
    return done


def _same(pod: Reader, target: Target, names: Sequence[str], files: Mapping[str, Sequence[int]]) -> set[str]:
    """Those whose contents are the volume's all the same, such as files that were copied by hand."""
    alike = [name for name in names if target.place(name).is_file()]
    alike = [name for name in alike if target.place(name).stat().st_size == files[name][0]]
    if not alike:
        return set()
    sums = pod.ask("sums", files=alike)
    found = {name for name in alike if checksum(target.place(name)) == sums[name]}
    for name in found:
        target.stamp(name, files[name][1])
    return found


def _bring(pod: Reader, target: Target, names: Sequence[str], done: Fetched, progress: Progress) -> None:
    """All of them, over as many connections as it takes."""
    left, failures = list(names), 0
    while left:
        before = len(left)
        try:
            for name in _receive(pod, target, left, done, progress):
                left.remove(name)
        except OutsideError as error:
            failures = failures + 1 if len(left) == before else 1
            if failures >= TRIES:
                raise OutsideError(f"{error}; {len(left)} files are left, the same command goes on") from None
            progress.say(f"{error}; going on")


def _receive(
    pod: Reader, target: Target, names: Sequence[str], done: Fetched, progress: Progress
) -> Iterator[str]:
    """The names of files that have come whole, or are gone there, over one connection."""
    offsets = [[name, _size(target.part(name))] for name in names]
    with closing(pod.open("send", files=offsets)) as stream:
        for name in list(names):
            head = json.loads(stream.line())
            if head["size"] is not None:
                _receive_file(stream, target, name, head, done, progress)
            yield name


def _receive_file(
    stream: Stream, target: Target, name: str, head: Mapping[str, Any], done: Fetched, progress: Progress
) -> None:
    part = target.part(name)
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("ab") as file:
        file.truncate(head["start"])
        while length := LENGTH.unpack(stream.exactly(LENGTH.size))[0]:
            file.write(stream.exactly(length))
            done.bytes += length
            progress.advance(round(done.bytes / 1e6), name)
        file.flush()
        os.fsync(file.fileno())
    digest = stream.exactly(_SUM).hex()
    if checksum(part) != digest:
        # It was written anew there between two connections: what is here is half of each.
        part.unlink()
        raise OutsideError(f"{name} changed while it was fetched")
    target.keep(name, digest, head["time"])
    done.files.append(name)


def _link(target: Target, to: str) -> None:
    """`best`, which points at the checkpoint that was kept; one with another target is made anew."""
    link = target.folder / "best"
    if link.is_symlink() or not link.exists():
        target.place(to)
        link.unlink(missing_ok=True)
        link.symlink_to(to)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
