"""Several endpoints of one judge, asked as if they were one: a task's prompts go to the same one, while it is well."""

import asyncio
from collections.abc import Sequence

from scope_selfplay.judge.chat_client import ChatFault, ChatReply, ChatRequest
from scope_selfplay.judge.endpoint import Down, Endpoint
from scope_selfplay.schemas import Fault
from scope_selfplay.wire.replicas import by_rank

_GONE = (Fault.UNAVAILABLE, Fault.TIMED_OUT)


class ReplicatedEndpoint:
    """Belongs to one event loop, as its `replicas` do.

    Where all are down, calls wait until one is well, or all have been down for `outage` seconds; then all fail at once.
    """

    def __init__(self, replicas: Sequence[Endpoint], *, outage: float) -> None:
        self._replicas = replicas
        self._outage = outage

    async def ask(self, request: ChatRequest, *, seconds: float, subject: str = "") -> ChatReply:
        """As `Endpoint.ask`; a call that one replica does not answer is sent to the next.

        Requests of one `subject` share their prompts' beginning. Raises ChatFault, ConfigError.
        """
        if len(self._replicas) == 1:
            return await self._replicas[0].ask(request, seconds=seconds)
        order = by_rank(subject or request.prompt, self._replicas, lambda replica: replica.url)
        while True:
            failed: ChatFault | None = None
            for replica in order:
                try:
                    return await replica.ask(request, seconds=seconds)
                except Down:
                    continue
                except ChatFault as fault:
                    if fault.fault not in _GONE:
                        raise
                    failed = fault
            if failed is not None:
                # As with one endpoint: what was sent and failed is the caller's to repeat, and not for ever.
                raise failed
            await self._until_one_is_well()

    async def _until_one_is_well(self) -> None:
        """Waits for as long as an outage of the last that went down is waited for. Raises Down."""
        left = max(replica.breaker.left for replica in self._replicas)
        waiting = [asyncio.ensure_future(replica.until_well()) for replica in self._replicas]
        try:
            done, _ = await asyncio.wait(waiting, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        if not done:
            urls = ", ".join(replica.url for replica in self._replicas)
            raise Down(f"{urls}: all down for more than {self._outage:.0f} s")
