"""Puts large responses together, in threads of their own."""

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile

from retrieval.wire import ResponseRow, WireLimits, render_response

THREADS = 2
"""Responses rendered at the same time, which bounds their memory; further ones wait within their deadline."""
INLINE = 1 << 20
"""Bytes of passages that are spliced within a millisecond or two: a thread would cost more."""


class Renderer:
    """One large response must not hold up the answers to everybody else."""

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="render")

    async def render(
        self, results: Iterable[Iterable[ResponseRow]], *, return_scores: bool, is_large: bool
    ) -> bytes:
        """As `render_response`; `results` may read passages only when they are asked for."""
        if not is_large:
            return render_response(results, return_scores=return_scores, limits=self._limits)
        abandoned = threading.Event()

        def is_wanted(_: object) -> bool:
            return not abandoned.is_set()

        # Past its deadline or without its client, a thread ends after the passage at hand.
        wanted = (takewhile(is_wanted, rows) for rows in takewhile(is_wanted, results))
        work = partial(render_response, wanted, return_scores=return_scores, limits=self._limits)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            abandoned.set()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
