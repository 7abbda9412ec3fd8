"""A person's hands at a real terminal: a tmux session of 40 rows and 100 columns that keys are sent to."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.extras import REPOSITORY

PATIENCE = 200.0
"""Seconds for which something on the screen is waited for."""


class Tmux:
    """One session of a server of its own. `screen` is what stands there now, with what scrolled away."""

    def __init__(self, socket: Path) -> None:
        self._socket = str(socket)

    def scope(self, words: str) -> None:
        """Type a command; its exit code appears behind `ended:`."""
        self._run("clear-history")
        self.type(f"clear; {sys.executable} -m scope_selfplay.cli {words}; echo ended: $?")

    def type(self, text: str, *, enter: bool = True) -> None:
        self._run("send-keys", "-l", text)
        if enter:
            self._run("send-keys", "Enter")

    def press(self, key: str) -> None:
        self._run("send-keys", key)

    @property
    def screen(self) -> str:
        return self._run("capture-pane", "-p", "-J", "-S", "-2000")

    def wait_for(self, words: str, times: int = 1) -> str:
        """The screen as soon as the words stand there so often."""
        end = time.monotonic() + PATIENCE
        while (screen := self.screen).count(words) < times:
            assert time.monotonic() < end, f"{words!r} did not come {times} times:\n{screen}"
            time.sleep(0.2)
        return screen

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *words], capture_output=True, text=True, check=True
        )
        return done.stdout


@contextmanager
def tmux(socket: Path) -> Iterator[Tmux]:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PS1": "$ ", "ENV": ""}
    command = [
        "tmux",
        "-f",
        "/dev/null",
        "-S",
        str(socket),
        "new-session",
        "-d",
        "-x",
        "100",
        "-y",
        "40",
        "sh",
    ]
    subprocess.run(command, env=environment, check=True)
    try:
        yield Tmux(socket)
    finally:
        subprocess.run(["tmux", "-S", str(socket), "kill-server"], check=False)
