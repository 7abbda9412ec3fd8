"""A run's health, examined in a process of its own: comparing all texts takes seconds of a core and much memory.

The server keeps neither: its pages are not held up, and what the comparison took goes back when the process ends.
"""

import multiprocessing
import signal
import threading
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path

from scope_selfplay.errors import OutsideError, ScopeError
from scope_selfplay.health.checkup import Checkup
from scope_selfplay.store.reader import RunReader


class Examination:
    """Begins at once; `checkups` holds what was found, or the ScopeError that ended it."""

    def __init__(self, path: Path) -> None:
        self.checkups: Future[list[Checkup]] = Future()
        context = multiprocessing.get_context("spawn")
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_examine, args=(path, sender), daemon=True, name="health")
        self._process.start()
        sender.close()
        threading.Thread(target=self._receive, daemon=True, name="health").start()

    @property
    def is_done(self) -> bool:
        return self.checkups.done()

    def stop(self) -> None:
        self._process.terminate()

    def _receive(self) -> None:
        try:
            found = self._receiver.recv()
        except EOFError:
            found = OutsideError(
                "the examination of the run's health was ended from outside; is memory short?"
            )
        self._process.join()
        if isinstance(found, Exception):
            self.checkups.set_exception(found)
        else:
            self.checkups.set_result(found)


def _examine(path: Path, sender: Connection) -> None:
    # Ctrl-C is for the server, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from scope_selfplay.health import examine

    found: list[Checkup] | ScopeError
    try:
        with RunReader(path) as reader:
            found = examine(reader)
    except ScopeError as error:
        found = error
    sender.send(found)
