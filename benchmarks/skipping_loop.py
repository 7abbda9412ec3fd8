"""An event loop whose clock jumps to the next timer instead of waiting for it."""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_IN_FLIGHT = 2e-4
"""Seconds in which bytes that this process sent to itself arrive."""
_NEVER = 60.0


def run_skipping(work: Coroutine[Any, Any, T]) -> T:
    """Run on a loop of which nothing but timers takes time."""
    loop = SkippingLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


class SkippingLoop(asyncio.SelectorEventLoop):
    """`spent` says how much time the work itself has taken: nothing, or this process's CPU.

    With CPU the clock shows when all would have happened on a machine that has a core for this process alone, however
    busy this one is. Threads are waited for before a timer is reached: what they wait for takes no time, what they
    compute does.
    """

    def __init__(self, spent: Callable[[], float] = lambda: 0.0) -> None:
        self._skipping = _SkippingSelector(spent)
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now

    def run_in_executor(self, executor: Any, func: Any, *arguments: Any) -> Any:
        future = super().run_in_executor(executor, func, *arguments)
        self._skipping.in_threads += 1
        future.add_done_callback(self._skipping.thread_done)
        return future

    async def shutdown_default_executor(self, *arguments: Any) -> None:
        # It ends in a thread of its own.
        self._skipping.in_threads += 1
        try:
            await super().shutdown_default_executor(*arguments)
        finally:
            self._skipping.in_threads -= 1


class CpuTimeLoop(SkippingLoop):
    """A loop whose clock shows this process's CPU time and what it would have waited."""

    def __init__(self) -> None:
        super().__init__(time.process_time)


class _SkippingSelector(selectors.DefaultSelector):
    def __init__(self, spent: Callable[[], float]) -> None:
        super().__init__()
        self._spent = spent
        self._skipped = 0.0
        self.in_threads = 0

    @property
    def now(self) -> float:
        return self._skipped + self._spent()

    def thread_done(self, future: Any) -> None:
        self.in_threads -= 1

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0) or (super().select(_IN_FLIGHT) if timeout != 0 else [])
        if ready or timeout == 0:
            return ready
        if self.in_threads:
            return super().select(_NEVER)
        if timeout is None:
            raise RuntimeError("every task waits for something that never comes")
        self._skipped += max(timeout, 0.0)
        return ready
