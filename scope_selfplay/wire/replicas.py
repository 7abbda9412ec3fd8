"""Several servers of the same thing, asked as if they were one: what belongs together goes to the same one.

An engine keeps the beginnings of its prompts. Whoever asks about the same thing again gets the replica that has them:
each is ranked by a hash of the subject and its own URL (rendezvous hashing), so that one that is gone moves only its
own subjects, to others evenly, and gets them back.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self, TypeVar

import aiohttp

from scope_selfplay.wire.json_client import JsonClient, ServerUnavailable

T = TypeVar("T")
_BUSY = 429
_FIRST_REST = 1.0
_LONGEST_REST = 30.0


def by_rank(subject: str, replicas: Sequence[T], name: Callable[[T], str]) -> list[T]:
    """All replicas, the one first that a subject belongs to; the same order everywhere."""

    def rank(replica: T) -> bytes:
        return hashlib.blake2b(f"{subject}\x1f{name(replica)}".encode(), digest_size=8).digest()

    return sorted(replicas, key=rank)


class ReplicatedClient:
    """What `JsonClient.ask` is to one server; use with `async with`. All clients have the same retry policy and `say`.

    One that did not answer is left alone for a while: one second, then twice as long each time, at most half a minute.
    """

    def __init__(self, clients: Sequence[JsonClient]) -> None:
        self._clients = clients
        self._stack = AsyncExitStack()
        self._rests: dict[str, tuple[float, float]] = {}
        """URL -> until when it is left alone, and for how long the next time."""

    async def __aenter__(self) -> Self:
        for client in self._clients:
            await self._stack.enter_async_context(client)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        subject: str,
        check: Callable[[aiohttp.ClientResponse], None] | None = None,
    ) -> dict[str, Any]:
        """As `JsonClient.ask`; one attempt asks each replica, without a pause between them, until one answers.

        Raises Refused, ServerUnavailable.
        """
        if len(self._clients) == 1:
            return await self._clients[0].ask(method, path, body, check=check)
        order = by_rank(subject, self._clients, lambda client: client.url)
        # All calls use the first one's, so that an outage of all replicas is one silence.
        retries = self._clients[0].retries()
        while True:
            # Where all rest, each is asked again: waiting for one would be no better.
            for client in [each for each in order if not self._rests_now(each)] or order:
                try:
                    answer = await client.ask_once(method, path, body, seconds=retries.seconds, check=check)
                except ServerUnavailable as unavailable:
                    fault = unavailable
                    if fault.status != _BUSY:
                        self._let_rest(client)
                else:
                    self._rests.pop(client.url, None)
                    retries.end(client.url)
                    return answer
            nobody = f"{fault}; no replica of {len(order)} answered"
            await retries.pause(ServerUnavailable(nobody, after=fault.after))

    def _rests_now(self, client: JsonClient) -> bool:
        until, _ = self._rests.get(client.url, (0.0, 0.0))
        return asyncio.get_running_loop().time() < until

    def _let_rest(self, client: JsonClient) -> None:
        if not self._rests_now(client):
            _, seconds = self._rests.get(client.url, (0.0, _FIRST_REST))
            until = asyncio.get_running_loop().time() + seconds
            self._rests[client.url] = (until, min(2 * seconds, _LONGEST_REST))
