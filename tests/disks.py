"""A file system of its own, which can be full."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Disk:
    def __init__(self, place: Path) -> None:
        self.place = place

    def resize(self, kilobytes: int) -> None:
        subprocess.run(_mount(self.place, f"remount,size={kilobytes}k"), check=True)


@contextmanager
def disk_at(place: Path) -> Iterator[Disk]:
    """Of 64 kB at first."""
    place.mkdir()
    if shutil.which("mount") is None or subprocess.run(_mount(place, "size=64k"), check=False).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield Disk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _mount(place: Path, options: str) -> list[str]:
    return ["mount", "-t", "tmpfs", "-o", options, "scope", str(place)]
