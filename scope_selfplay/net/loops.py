"""Things of an event loop, for callers that outlive many of them, or have none."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives, in a thread and an event loop of its own: the caller may or may not have one running."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, work).result()


async def all_of(work: Iterable[Awaitable[T]]) -> list[T]:
    """What each gives, all begun at once. Raises the first fault in their order when all have ended."""
    found = await asyncio.gather(*work, return_exceptions=True)
    for fault in (each for each in found if isinstance(each, BaseException)):
        raise fault
    return [each for each in found if not isinstance(each, BaseException)]


class PerLoop(Generic[T]):
    """One `T` per event loop: opened by the first call in it, closed with it, for callers that outlive many loops.

    A stage runs several loops after each other, and a trainer has one for every step. `asyncio.run` ends by
    cancelling the tasks that are left, so a task that holds the thing closes it at the right moment. (Async
    generators are all closed at once after that, an outer one and the one inside it at the same time, which fails.)
    """

    def __init__(self, enter: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._enter = enter
        self._opened: dict[asyncio.AbstractEventLoop, asyncio.Future[T]] = {}
        # The loop itself knows its tasks only weakly.
        self._holders: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    async def here(self) -> T:
        """The running loop's own. Raises what opening raises; the next call then opens again."""
        loop = asyncio.get_running_loop()
        opened = self._opened.get(loop)
        if opened is None:
            opened = self._opened[loop] = loop.create_future()
            self._holders[loop] = loop.create_task(self._hold(loop, opened))
        if opened.done():
            return opened.result()
        # A caller that goes away must not end the opening for the others.
        return await asyncio.shield(opened)

    async def close(self) -> None:
        """Close the running loop's own now, for a caller that drops this object in a loop that goes on.

        An object that nothing refers to is collected while the loop still runs, and cannot await anything then. The
        next call opens again.
        """
        holder = self._holders.get(asyncio.get_running_loop())
        if holder is not None:
            holder.cancel()
            await asyncio.wait([holder])

    async def _hold(self, loop: asyncio.AbstractEventLoop, opened: "asyncio.Future[T]") -> None:
        try:
            async with self._enter() as thing:
                opened.set_result(thing)
                await loop.create_future()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)
        finally:
            opened.cancel()
            self._opened.pop(loop, None)
            self._holders.pop(loop, None)
