"""Time that a test puts forward: what would be waited for is over at once, however fast or slow the machine is."""

import time

import pytest


class Clock:
    """`time.monotonic`, by which asyncio ends its waits. It runs on; a thread that sleeps hears of no skip."""

    def __init__(self) -> None:
        self._real, self._skipped = time.monotonic, 0.0

    def now(self) -> float:
        return self._real() + self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.now)
    # Its own name for it: else its pool keeps connections that the server has closed since.
    monkeypatch.setattr("aiohttp.connector.monotonic", clock.now)
    return clock
