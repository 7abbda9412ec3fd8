"""The controller as a process: rounds every few seconds, sooner when a Job changes, until the end or SIGTERM."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from scope_selfplay.controller.api import ClusterClient, NoReply, ObjectKind, Transport
from scope_selfplay.controller.draft import RunEnd
from scope_selfplay.controller.loop import Clock, Controller, Inputs
from scope_selfplay.controller.names import RUN
from scope_selfplay.errors import ExitCode

RESYNC = 15.0
"""Seconds between two rounds when nothing happens."""
SHORTEST = 2.0
"""Seconds between two rounds however much happens."""
_WATCH = 290.0


def control(
    read_inputs: Callable[[], Inputs],
    *,
    root: Path,
    job: str,
    only_iteration: int | None = None,
    namespace: str | None = None,
    say: Callable[[str], None],
) -> ExitCode:
    """Bring a run to its end on the cluster of this pod, or of KUBECONFIG; 143 after SIGTERM.

    `root` holds the runs, `job` is the Job that this process belongs to. A verdict is told through `say` and comes
    back as its exit code; raises UserError for what cannot even be wound down, such as missing rights.
    """
    from scope_selfplay.controller.cluster import connect

    stop, wake = threading.Event(), threading.Event()

    def end(number: int, frame: object) -> None:
        stop.set()
        wake.set()

    def sleep(seconds: float) -> None:
        stop.wait(seconds)

    before = signal.signal(signal.SIGTERM, end)
    controller = Controller(
        connect(namespace),
        read_inputs,
        root=root,
        job=job,
        # A container that is started again in the same pod leads on at once.
        identity=os.environ.get("HOSTNAME") or socket.gethostname(),
        clock=Clock(time.monotonic, sleep),
        rng=Random(),
        only_iteration=only_iteration,
        say=say,
    )
    selector = f"{RUN}={read_inputs().config.name}"
    watcher = threading.Thread(
        target=watch_jobs, args=(connect(namespace), selector, wake, stop, stop.wait), daemon=True
    )
    watcher.start()

    def pause() -> None:
        stop.wait(SHORTEST)
        wake.wait(RESYNC - SHORTEST)
        wake.clear()

    try:
        return verdict(drive(controller, pause, stop.is_set), say)
    finally:
        stop.set()
        signal.signal(signal.SIGTERM, before)


def drive(controller: Controller, pause: Callable[[], None], is_stopped: Callable[[], bool]) -> RunEnd | None:
    """Round after round until there is a verdict; None when it was stopped before."""
    try:
        while not is_stopped():
            finish = controller.round()
            if finish is not None:
                return finish
            pause()
        return None
    finally:
        controller.stop()


def verdict(finish: RunEnd | None, say: Callable[[str], None]) -> ExitCode:
    if finish is None:
        say("stopped; whoever starts next goes on from here")
        return ExitCode.TERMINATED
    say(finish.message)
    return finish.code


def watch_jobs(
    transport: Transport,
    selector: str,
    wake: threading.Event,
    stop: threading.Event,
    pause: Callable[[float], object],
) -> None:
    """Wake the loop at every change of a Job. A watch that ends, fails or lies costs nothing: rounds go on."""
    rng = Random()
    cluster = ClusterClient(transport, rng=rng, sleep=time.sleep)
    while not stop.is_set():
        with suppress(NoReply):
            for _ in cluster.changes(ObjectKind.JOB, selector, _WATCH):
                wake.set()
        # Also after a clean end: a server that ends every watch at once must not be asked in a tight loop.
        pause(rng.uniform(5, 15))
