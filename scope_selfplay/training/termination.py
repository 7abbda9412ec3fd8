"""What SIGTERM does to a training: the step at work is abandoned, a step that is complete is saved first, also where
`save_every` would not have.

A step of a large model takes tens of minutes and nobody waits so long; the last step that was saved is on disk.
"""

import os
import signal
import sys
import threading
import time
from typing import Self

from scope_selfplay.errors import ExitCode
from scope_selfplay.training.ranks import Ranks

ABANDON_SECONDS = 10.0
"""How long cancelled rollouts have to close their connections."""
PEERS_SECONDS = 60.0
"""How long a process whose step is complete waits for the others, one of which may have abandoned it."""

_HELD = b"SIGTERM: the step that is complete is saved first; the same command goes on from the newest checkpoint\n"
_ENDING = b"SIGTERM: ending; the same command goes on from the newest checkpoint\n"


class Termination:
    """While entered, SIGTERM ends this process with 143.

    The main thread raises SystemExit wherever it is, which cancels rollouts. Where it runs no Python, as in a
    collective call whose peers are gone, a second thread ends the process in time.
    """

    def __init__(self, ranks: Ranks | None = None) -> None:
        self._ranks = ranks or Ranks()
        self.requested = False
        """Whether SIGTERM has come."""
        self._held = False
        self._all_hold = False
        self._over = threading.Event()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)
            self._before = signal.signal(signal.SIGTERM, self._request)
            # Written to by the signal itself, whatever the main thread does.
            self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._wakeup)
            signal.signal(signal.SIGTERM, self._before)
            self._over.set()
            os.close(self._writer)
        if not self.requested:
            return
        if self._ranks.processes > 1:
            # Nothing is torn down: NCCL would wait for peers that have ended.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ExitCode.TERMINATED)
        # A peer or server that ended first may have raised something else meanwhile.
        raise SystemExit(int(ExitCode.TERMINATED)) from error

    def hold(self) -> None:
        """The step is complete: until `release`, SIGTERM waits."""
        self._held = True

    def all_hold(self) -> None:
        """Every process is here, so none waits for one that has gone: SIGTERM waits without a limit of its own."""
        self._all_hold = True

    def release(self) -> None:
        self._held = self._all_hold = False
        if self.requested:
            raise SystemExit(int(ExitCode.TERMINATED))

    def _request(self, *_: object) -> None:
        # Once: a second one must not cut short what the first one began to close.
        if not self.requested:
            self.requested = True
            # Not through Python's buffers, which may be in the middle of a write.
            os.write(2, _HELD if self._held else _ENDING)
            if not self._held:
                raise SystemExit(int(ExitCode.TERMINATED))

    def _watch(self, reader: int) -> None:
        with open(reader, "rb", buffering=0) as signals:
            received = iter(lambda: signals.read(1), b"")
            if not any(number[0] == signal.SIGTERM for number in received):
                return
        waits = time.monotonic()
        while not self._over.wait(0.1):
            if self._all_hold:
                waits = time.monotonic()
            if time.monotonic() - waits > (PEERS_SECONDS if self._held else ABANDON_SECONDS):
                os._exit(ExitCode.TERMINATED)
