"""Processes that start at once: forks of one that has imported what takes seconds, each ending as a script ends.

    with fork_server("benchmarks.ranks", folder) as command:
        subprocess.run([*command, "argument", ...])

`command` is a small process that asks for a fork and stands for it: the fork has its streams, environment, folder and
process group, gets its signals, and calls `run(arguments)` of the module. `$ENDING` names a file for the exit code.
"""

import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def fork_server(module: str, folder: Path) -> Iterator[list[str]]:
    """The beginning of a command line; `module` has `run(arguments)` and `preload()`."""
    import subprocess

    address = folder / "forks"
    # As the launcher starts a rank.
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ}
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.forked", module, str(address)], env=quiet)
    try:
        while not address.exists():
            assert server.poll() is None, f"{module} cannot be imported"
            signal.sigtimedwait([], 0.05)
        yield [sys.executable, "-S", "-E", __file__, "--fork", str(address)]
    finally:
        server.kill()
        server.wait()


def _stand_for_a_fork(address: str, arguments: list[str]) -> None:
    early: list[int] = []
    for each in _SIGNALS:
        signal.signal(each, lambda number, _: early.append(number))
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        here = {"environment": dict(os.environ), "group": os.getpgrp(), "folder": str(Path.cwd())}
        socket.send_fds(server, [json.dumps({"arguments": arguments, **here}).encode()], [0, 1, 2])
        process = int(server.recv(16))
        for each in _SIGNALS:
            signal.signal(each, lambda number, _: _pass_on(process, number))
        for number in early:
            _pass_on(process, number)
        code = os.waitstatus_to_exitcode(int(server.recv(16)))
    if ending := os.environ.get("ENDING"):
        # As a shell gives it.
        Path(ending).write_text(str(code if code >= 0 else 128 - code))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code in _SIGNALS else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _pass_on(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def _next_fork(address: str) -> list[str]:
    """Returns in forks only, with their arguments."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            asker, _ = listener.accept()
            if os.fork() == 0:
                break
            asker.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, streams, _, _ = socket.recv_fds(asker, 1 << 18, 3)
    told = json.loads(text)
    if process := os.fork():
        with suppress(BrokenPipeError):  # Who asked may have been killed.
            asker.sendall(str(process).encode())
            status = os.waitpid(process, 0)[1]
            asker.sendall(str(status).encode())
        os._exit(0)
    asker.close()
    os.setpgid(0, told["group"])
    os.chdir(told["folder"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(told["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return [str(each) for each in told["arguments"]]


if __name__ == "__main__":
    if sys.argv[1] == "--fork":
        _stand_for_a_fork(sys.argv[2], sys.argv[3:])
    called = importlib.import_module(sys.argv[1])
    called.preload()
    called.run(_next_fork(sys.argv[2]))
