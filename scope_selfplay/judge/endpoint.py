"""One judge endpoint as a stage sees it: waves of calls, a breaker around them, a canary in a silence.

What a call may meet, and what happens:

    busy (429, or 503 with Retry-After)   everyone pauses as long as asked, fewer calls at once; asked again
    failed (connection, 5xx, half body)   ChatFault; the breaker counts it
    silent                                after `silence` seconds without a reply a one-token canary is sent;
                                          unanswered, the breaker opens and calls in flight end as timed out
    breaker open                          calls wait; one probe at a time; given up after `outage` seconds
"""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from scope_selfplay.config import JudgeRetryConfig
from scope_selfplay.judge.breaker import Breaker
from scope_selfplay.judge.chat_client import ChatClient, ChatFault, ChatReply, ChatRequest
from scope_selfplay.judge.metrics import JudgeMetrics
from scope_selfplay.judge.waves import WaveGate
from scope_selfplay.schemas import Fault

CANARY = ChatRequest("Say 1.", max_tokens=1)
_BUSY_PAUSE = 1.0


class Endpoint:
    """Belongs to one event loop. `client` is open for as long as it is used."""

    def __init__(
        self,
        client: ChatClient,
        patience: JudgeRetryConfig,
        *,
        limit: int,
        metrics: JudgeMetrics,
        jitter: random.Random,
    ) -> None:
        self._client = client
        self._patience = patience
        self._metrics = metrics
        self._jitter = jitter
        self._loop = asyncio.get_running_loop()
        self._gate = WaveGate(limit)
        self.breaker = Breaker(failures=patience.failures, outage=patience.outage, clock=self._loop.time)
        self._healthy = asyncio.Event()
        self._healthy.set()
        self._tripped: asyncio.Future[None] = self._loop.create_future()
        self._quiet_until = 0.0
        self._last_sign = self._loop.time()
        self._in_flight = 0
        self._watcher: asyncio.Task[None] | None = None
        self._healer: asyncio.Task[None] | None = None

    @property
    def model(self) -> str:
        return self._client.model

    async def ask(self, request: ChatRequest, *, seconds: float) -> ChatReply:
        """One completion, within `seconds` from when it is sent. Raises ChatFault, ConfigError."""
        give_up = self._loop.time() + self._patience.outage
        while True:
            await self._until_healthy()
            async with self._gate.turn(request.prompt):
                if self.breaker.is_open:
                    continue
                await self._until_quiet_is_over()
                try:
                    return await self._send(request, seconds)
                except ChatFault as fault:
                    if not fault.busy or self._loop.time() >= give_up:
                        raise
                    self._hold_back(fault)

    async def close(self) -> None:
        for task in (self._watcher, self._healer):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _send(self, request: ChatRequest, seconds: float) -> ChatReply:
        if self._in_flight == 0:
            self._last_sign = self._loop.time()
        self._in_flight += 1
        self._metrics.in_flight.inc()
        if self._watcher is None or self._watcher.done():
            self._watcher = self._loop.create_task(self._watch())
        try:
            reply = await self._unless_tripped(self._client.complete(request, seconds=seconds))
        except ChatFault as fault:
            self._note(fault)
            raise
        finally:
            self._in_flight -= 1
            self._metrics.in_flight.dec()
        self._gate.grow()
        self._recover()
        return reply

    async def _unless_tripped(self, call: Coroutine[Any, Any, ChatReply]) -> ChatReply:
        task = self._loop.create_task(call)
        try:
            either: set[asyncio.Future[Any]] = {task, self._tripped}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
        if task.cancelled() or not task.done():
            raise ChatFault(Fault.TIMED_OUT, f"{self._client.url}: hangs; the call was given up")
        return task.result()

    def _note(self, fault: ChatFault) -> None:
        self._metrics.endpoint_faults.labels("busy" if fault.busy else fault.fault.value).inc()
        if fault.busy or fault.fault in (Fault.REFUSED, Fault.UNREADABLE):
            self._last_sign = self._loop.time()
            return
        # Calls in flight go on: those that end well close the breaker again.
        self.breaker.fail()
        if self.breaker.is_open:
            self._open()

    def _hold_back(self, fault: ChatFault) -> None:
        """Nobody sends before the pause is over; not all at the same moment then, and fewer than before."""
        now = self._loop.time()
        if now >= self._quiet_until:
            self._gate.shrink()
        self._quiet_until = max(self._quiet_until, now + (fault.after or _BUSY_PAUSE))

    async def _until_quiet_is_over(self) -> None:
        while (left := self._quiet_until - self._loop.time()) > 0:
            await asyncio.sleep(left + self._jitter.uniform(0, 0.1 + 0.1 * left))

    async def _until_healthy(self) -> None:
        if self.breaker.is_open and not self.breaker.is_given_up:
            await self._healthy.wait()
        if self.breaker.is_given_up:
            down = f"{self._client.url}: down for more than {self._patience.outage:.0f} s"
            raise ChatFault(Fault.UNAVAILABLE, down)

    def _open(self) -> None:
        """Let calls wait, and probe until the endpoint is well again."""
        self._metrics.breaker_open.set(1)
        self._healthy.clear()
        if self._healer is None or self._healer.done():
            self._healer = self._loop.create_task(self._heal())

    async def _heal(self) -> None:
        while self.breaker.is_open and not self.breaker.is_given_up:
            await asyncio.sleep(self.breaker.pause)
            if not self.breaker.is_open:
                break
            if await self._is_alive():
                self._recover()
            else:
                self.breaker.fail_probe()
        self._healthy.set()

    def _recover(self) -> None:
        self._last_sign = self._loop.time()
        self.breaker.succeed()
        if not self._healthy.is_set():
            self._metrics.breaker_open.set(0)
            self._healthy.set()
        if self._tripped.done():
            self._tripped = self._loop.create_future()

    async def _watch(self) -> None:
        """While calls are in flight: in every `silence` seconds a reply, a canary's answer, or a trip."""
        while self._in_flight and not self.breaker.is_open:
            await asyncio.sleep(max(0.01, self._last_sign + self._patience.silence - self._loop.time()))
            silent_since = self._last_sign
            if not self._in_flight or self._loop.time() - silent_since < self._patience.silence:
                continue
            alive = await self._is_alive()
            if alive:
                self._last_sign = self._loop.time()
            elif self._last_sign == silent_since:
                self.breaker.trip()
                self._open()
                if not self._tripped.done():
                    self._tripped.set_result(None)

    async def _is_alive(self) -> bool:
        try:
            await self._client.complete(CANARY, seconds=self._patience.canary)
        except ChatFault as fault:
            # Refusing or being busy is an answer, too.
            return fault.busy or fault.fault in (Fault.REFUSED, Fault.UNREADABLE)
        return True
