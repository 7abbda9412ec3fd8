"""A server on a thread of its own: the runs that use it have event loops of their own, one after the other."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from typing import Any


@contextmanager
def in_thread(serving: AbstractAsyncContextManager[str]) -> Iterator[str]:
    """The URL that `serving` gives, for as long as the block lasts."""
    begun: Future[Any] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with serving as url:
            begun.set_result((url, partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set)))
            await stop.wait()

    with ThreadPoolExecutor(1) as thread:
        ended: Future[Any] = thread.submit(asyncio.run, serve())
        wait((begun, ended), 60, FIRST_COMPLETED)
        if ended.done():
            ended.result()
        url, stop = begun.result(0)
        try:
            yield url
        finally:
            with suppress(RuntimeError):  # Its loop may have ended before.
                stop()
