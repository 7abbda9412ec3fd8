"""Whether an endpoint may be asked: a breaker that opens after failures in a row. Pure; the clock is given.

closed --(failures in a row, or a dead canary)--> open --(probe answered)--> closed
                                                   open --(outage seconds)--> given up
"""

from collections.abc import Callable


class CircuitBreaker:
    """`failures` in a row open it; while it is open, one probe at a time, after pauses that double."""

    def __init__(
        self,
        *,
        failures: int = 8,
        outage: float = 600.0,
        first_pause: float = 1.0,
        longest_pause: float = 30.0,
        clock: Callable[[], float],
    ) -> None:
        self._most = failures
        self._outage = outage
        self._first_pause, self._longest_pause = first_pause, longest_pause
        self._clock = clock
        self._in_a_row = 0
        self._opened_at: float | None = None
        self._probes = 0
        self.openings = 0

    @property
    def is_open(self) -> bool:
        return self._opened_at is not None

    @property
    def is_given_up(self) -> bool:
        """Open for longer than an outage is waited for."""
        return self._opened_at is not None and self._clock() - self._opened_at >= self._outage

    @property
    def pause(self) -> float:
        """Seconds before the next probe, at most until the outage is given up."""
        assert self._opened_at is not None, "a closed breaker is not probed"
        wanted = min(self._first_pause * 2.0**self._probes, self._longest_pause)
        return max(0.0, min(wanted, self._opened_at + self._outage - self._clock()))

    def succeed(self) -> None:
        self._in_a_row = 0
        self._probes = 0
        self._opened_at = None

    def fail(self) -> None:
        """A call failed because of the endpoint, not because of what was asked."""
        self._in_a_row += 1
        if self._in_a_row >= self._most:
            self.trip()

    def fail_probe(self) -> None:
        self._probes = min(self._probes + 1, 16)

    def trip(self) -> None:
        if self._opened_at is None:
            self._opened_at = self._clock()
            self.openings += 1
