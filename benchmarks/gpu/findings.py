"""What a part finds, noted as it goes; and the file of results: one JSON object a line, one line a part."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from scope_selfplay.store.files import Appender, check_lines, write_atomic


class Status(StrEnum):
    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


class Found(BaseModel):
    """What a part has found so far; `broken` are the claims that do not hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    skipped: str | None = None
    broken: tuple[str, ...] = ()
    figures: Mapping[str, float | str] = {}


class PartLine(BaseModel):
    """One part on one machine. `reason` says why it failed or was skipped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    part: str
    status: Status
    reason: str | None
    seconds: float
    figures: Mapping[str, float | str]
    scale: str
    machine: str
    versions: Mapping[str, str]
    at: str
    """When it ended, in UTC."""


def append(line: PartLine, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with Appender(file) as lines:
        lines.append(line)


def check(file: Path) -> None:
    """Raises RecordError where a line is not one of a part."""
    check_lines(file, PartLine)


class Findings:
    """Written to `file` with every note."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._write(Found())

    def note(self, **figures: float | str) -> None:
        self._update(figures={**self.found.figures, **figures})

    def claim(self, kept: bool, otherwise: str) -> None:
        """Where it is not kept the part goes on, and has failed."""
        if not kept:
            self._update(broken=(*self.found.broken, otherwise))

    def skip(self, reason: str) -> None:
        self._update(skipped=reason)

    def _update(self, **changes: Any) -> None:
        self._write(self.found.model_copy(update=changes))

    def _write(self, found: Found) -> None:
        self.found = found
        write_atomic(self._file, found.model_dump_json())


def read_found(file: Path) -> Found:
    return Found.model_validate_json(file.read_bytes()) if file.is_file() else Found()
