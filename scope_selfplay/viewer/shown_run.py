"""The run behind the pages: read when asked, kept fresh while it goes on, its slow numbers made beside it."""

import threading
import time
from pathlib import Path

from scope_selfplay.health import Checkup
from scope_selfplay.inspection.overview import Overview, overview
from scope_selfplay.store.reader import RunReader
from scope_selfplay.viewer.examination import Examination


class ShownRun:
    """One reader for all requests. Raises RecordError when the folder is no run."""

    def __init__(self, path: Path, *, fresh_for: float = 1.0) -> None:
        """`fresh_for`: seconds until the folder is looked at again."""
        self.reader = RunReader(path)
        self._fresh_for = fresh_for
        self._looked = time.monotonic()
        self._lock = threading.Lock()
        self._changes = 0
        self._numbers: Overview | None = None
        # Apart from `_lock`: other pages do not wait while the numbers are made.
        self._counting = threading.Lock()
        self._path = path
        self._examination: Examination | None = None
        self._outdated = False

    @property
    def name(self) -> str:
        return str(self.reader.settings.get("name", self.reader.folder.path.resolve().name))

    @property
    def is_running(self) -> bool:
        """Whether a stage has begun and not ended: by a run that works on it, or by one that was stopped."""
        return any(state.manifest is None for state in self.reader.stages())

    def fresh(self) -> RunReader:
        """The reader, with what was appended up to a moment ago. Raises RecordError for a damaged file."""
        with self._lock:
            if time.monotonic() - self._looked >= self._fresh_for:
                if self.reader.refresh():
                    self._changes += 1
                    self._numbers = None
                    self._outdated = True
                self._looked = time.monotonic()
        return self.reader

    def numbers(self) -> Overview:
        """All but health, which `checkups` gives."""
        with self._counting:
            self.fresh()
            with self._lock:
                known, changes = self._numbers, self._changes
            if known is not None:
                return known
            made = overview(self.reader, health=False)
            with self._lock:
                # What was taken in meanwhile is not in them.
                if self._changes == changes:
                    self._numbers = made
            return made

    def checkups(self, *, wait: float = 0.0) -> list[Checkup] | None:
        """The newest finished checkups; None until the first are. Texts are compared, which takes seconds.

        Waits for them at most `wait` seconds. Raises RecordError for a damaged file.
        """
        with self._lock:
            earlier = self._examination
            if earlier is None or (self._outdated and earlier.is_done):
                self._outdated = False
                self._examination = Examination(self._path)
                if earlier is not None and not wait:
                    return earlier.checkups.result()
            current = self._examination
        assert current is not None
        try:
            return current.checkups.result(timeout=wait) if wait or current.is_done else None
        except TimeoutError:
            return None

    def close(self) -> None:
        if self._examination is not None:
            self._examination.stop()
        self.reader.close()
