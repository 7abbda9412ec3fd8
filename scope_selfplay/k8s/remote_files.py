"""The files of a run, listed, summed and sent by the pod that can see them.

Its text is sent into the pod and run there: the two ends are of one version whatever the image is, so it needs
Python's own library alone. Answers are one line of JSON; `send` is, for every file, a line of JSON, blocks with their
length before them, an empty block, and the SHA-256 of the whole file: a connection that breaks anywhere is noticed.
"""

import hashlib
import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

BLOCK = 1 << 18
LENGTH = struct.Struct("<I")
_CACHE = "cache"
_CHECKPOINT = "checkpoint"
_BEST = "best"


def main(request: dict[str, Any], out: BinaryIO) -> None:
    """Answer `{"what": "list" | "sums" | "send", "root": ..., ...}`."""
    root = Path(request["root"])
    if request["what"] == "send":
        for name, offset in request["files"]:
            _send(root / name, int(offset), out)
    else:
        answer = _sums(root, request) if request["what"] == "sums" else _listed(root, request)
        out.write(json.dumps(answer).encode() + b"\n")
    out.flush()


def _listed(root: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Size and time of every file; `best`, a link to a checkpoint, comes with the checkpoints."""
    if not root.is_dir():
        there = sorted(each.name for each in root.parent.iterdir()) if root.parent.is_dir() else []
        return {"missing": str(root), "there": there}
    files = {}
    for path in _files(root, request["checkpoints"]):
        found = path.stat()
        files[str(path.relative_to(root))] = [found.st_size, found.st_mtime_ns]
    best = root / _BEST
    target = os.readlink(best) if request["checkpoints"] and best.is_symlink() else None  # noqa: PTH115 - as it is
    return {"files": files, "best": target}


def _files(root: Path, checkpoints: bool) -> Iterator[Path]:
    """Hidden ones are a stage's own, for going on; caches are made anew."""
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        left_out = {_CACHE} if here == root else set() if checkpoints else {_CHECKPOINT}
        folders[:] = [each for each in sorted(folders) if each[0] != "." and each not in left_out]
        for name in sorted(names):
            path = here / name
            if name[0] != "." and path.is_file() and not path.is_symlink():
                yield path


def _sums(root: Path, request: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name in request["files"]:
        with (root / name).open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _send(path: Path, offset: int, out: BinaryIO) -> None:
    """From `offset` on, and from the beginning where the file is shorter by now. A file that went away has no size."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        out.write(json.dumps({"size": None}).encode() + b"\n")
        return
    with file:
        found = os.fstat(file.fileno())
        start = offset if offset <= found.st_size else 0
        head = {"size": found.st_size, "time": found.st_mtime_ns, "start": start}
        out.write(json.dumps(head).encode() + b"\n")
        hashed, at = hashlib.sha256(), 0
        # What is appended meanwhile comes with the next fetch.
        while block := file.read(min(BLOCK, found.st_size - at)):
            hashed.update(block)
            new = block[max(0, start - at) :]
            at += len(block)
            if new:
                out.write(LENGTH.pack(len(new)) + new)
        out.write(LENGTH.pack(0) + hashed.digest())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.stdout.buffer)
