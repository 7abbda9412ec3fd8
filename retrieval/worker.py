"""`python -m retrieval.worker FOLDER`: one process that searches one index, one batch at a time.

Frames on stdin and stdout: four bytes of length, then JSON. The first frame out says `ready` after a real
query was answered, or `error` and its `kind`, the name of its class. It ends when stdin does.
"""

import json
import os
import signal
import struct
import sys
from pathlib import Path
from typing import IO, Any

from retrieval.hits import Index
from retrieval.indexes import open_index
from retrieval.manifest import Verify, read_manifest
from scope_selfplay.errors import ScopeError

LENGTH = struct.Struct(">I")


def main() -> None:
    # Ctrl-C reaches the whole process group; the server decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    frames_in, frames_out = _take_standard_streams()
    try:
        folder = Path(sys.argv[1])
        index = open_index(folder, read_manifest(folder, Verify.SIZES))
        index.search(["a query to load everything that loads late"], 1)
    except Exception as error:  # noqa: BLE001 - the server reports it
        said = str(error) if isinstance(error, ScopeError) else f"{type(error).__name__}: {error}"
        _write(frames_out, {"error": said, "kind": type(error).__name__})
        return
    _write(frames_out, {"ready": os.getpid()})
    while message := _read(frames_in):
        _write(frames_out, _answer(index, message))


def _answer(index: Index, message: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"hits": index.search(message["queries"], message["topk"])}
    except Exception as error:  # noqa: BLE001 - one bad batch must not end the worker
        return {"error": f"{type(error).__name__}: {error}"}


def _take_standard_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Own copies of stdin and stdout; what a library prints goes to stderr, not between the frames."""
    frames_in = os.fdopen(os.dup(0), "rb")
    frames_out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return frames_in, frames_out


def _read(stream: IO[bytes]) -> dict[str, Any] | None:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    message: dict[str, Any] = json.loads(stream.read(LENGTH.unpack(head)[0]))
    return message


def _write(stream: IO[bytes], message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()


if __name__ == "__main__":
    main()
