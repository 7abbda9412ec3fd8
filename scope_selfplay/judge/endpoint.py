"""One judge endpoint as a stage sees it: an admission gate, a circuit breaker, and a canary in a silence.

What a call may meet, and what happens:

    busy (429, or 503 with Retry-After)   everyone pauses as long as asked, fewer calls at once; asked again
    failed (connection, 5xx, half body)   ChatFault; the breaker counts it
    silent                                after `silence` seconds without a reply a one-token canary is sent;
                                          unanswered, the breaker opens and calls in flight end as timed out
    breaker open                          calls wait; one probe at a time; given up after `outage` seconds
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from scope_selfplay.config import JudgeRetryConfig
from scope_selfplay.judge.chat_client import ChatClient, ChatFault, ChatReply, ChatRequest
from scope_selfplay.judge.metrics import JudgeMetrics
from scope_selfplay.schemas import Fault
from scope_selfplay.wire.json_client import Silence

CANARY = ChatRequest("Say 1.", max_tokens=1)
_BUSY_PAUSE = 1.0
# Seconds between probes: the first, doubled each time, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
# An endpoint that refuses is alive, like one that is busy.
_ANSWERS = (Fault.REFUSED, Fault.UNREADABLE)


class Down(ChatFault):
    """Nothing was sent: the endpoint is known to be down."""

    def __init__(self, message: str) -> None:
        super().__init__(Fault.UNAVAILABLE, message)


class Endpoint:
    """Belongs to one event loop. `client` is open for as long as it is used."""

    def __init__(
        self,
        client: ChatClient,
        timeouts: JudgeRetryConfig,
        *,
        limit: int,
        metrics: JudgeMetrics,
        jitter: random.Random,
        say: Callable[[str], None] = lambda text: None,
        is_replica: bool = False,
    ) -> None:
        """Calls do not wait for a replica that is down, which others can take; it is probed for as long as it is."""
        self._is_replica = is_replica
        self._silence = Silence(say)
        self._client = client
        self._timeouts = timeouts
        self._metrics = metrics
        self._jitter = jitter
        self._loop = asyncio.get_running_loop()
        self._gate = AdmissionGate(limit)
        self.breaker = CircuitBreaker(
            failures=timeouts.failures, outage=timeouts.outage, clock=self._loop.time
        )
        self._healthy = asyncio.Event()
        self._healthy.set()
        self._tripped: asyncio.Future[None] = self._loop.create_future()
        self._paused_until = 0.0
        self._last_sign = self._loop.time()
        self._in_flight = 0
        self._watcher: asyncio.Task[None] | None = None
        self._prober: asyncio.Task[None] | None = None

    async def ask(self, request: ChatRequest, *, seconds: float) -> ChatReply:
        """One completion, within `seconds` from when it is sent. Raises Down, ChatFault, ConfigError."""
        give_up = self._loop.time() + self._timeouts.outage
        while True:
            await self._wait_until_healthy()
            async with self._gate.turn(request.prompt):
                if self.breaker.is_open:
                    continue
                # No call is sent before a pause is over, and then not all at the same moment.
                while (left := self._paused_until - self._loop.time()) > 0:
                    await asyncio.sleep(left + self._jitter.uniform(0, 0.1 + 0.1 * left))
                try:
                    return await self._send(request, seconds)
                except ChatFault as fault:
                    now = self._loop.time()
                    if not fault.busy or now >= give_up:
                        raise
                    if now >= self._paused_until:
                        self._gate.shrink()
                    self._paused_until = max(self._paused_until, now + (fault.after or _BUSY_PAUSE))

    @property
    def url(self) -> str:
        return self._client.url

    async def until_well(self) -> None:
        """Waits until it answers again, however long that takes."""
        await self._healthy.wait()

    async def close(self) -> None:
        for task in (self._watcher, self._prober):
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
            self._metrics.endpoint_faults.labels("busy" if fault.busy else fault.fault.value).inc()
            if fault.busy or fault.fault in _ANSWERS:
                self._last_sign = self._loop.time()
            else:
                # Calls in flight go on: those that end well close the breaker again.
                self.breaker.fail()
                if self.breaker.is_open:
                    self._open()
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
            raise ChatFault(Fault.TIMED_OUT, f"{self.url}: hangs; the call was given up")
        return task.result()

    async def _wait_until_healthy(self) -> None:
        if self.breaker.is_open and self._is_replica:
            raise Down(f"{self.url}: is down")
        if self.breaker.is_open and not self.breaker.is_given_up:
            await self._healthy.wait()
        if self.breaker.is_given_up:
            raise Down(f"{self.url}: down for more than {self._timeouts.outage:.0f} s")

    def _open(self) -> None:
        """Let calls wait, and probe until the endpoint is well again."""
        self._metrics.breaker_open.set(1)
        self._silence.begin(f"the judge at {self.url} does not answer", self._timeouts.outage)
        self._healthy.clear()
        if self._prober is None or self._prober.done():
            self._prober = self._loop.create_task(self._probe_until_healthy())

    async def _probe_until_healthy(self) -> None:
        while self.breaker.is_open and (self._is_replica or not self.breaker.is_given_up):
            await asyncio.sleep(self.breaker.pause)
            if not self.breaker.is_open:
                break
            if await self._answers_canary():
                self._recover()
            else:
                self.breaker.fail_probe()
        self._healthy.set()

    def _recover(self) -> None:
        self._last_sign = self._loop.time()
        self.breaker.succeed()
        self._silence.end(f"the judge at {self.url}")
        if not self._healthy.is_set():
            self._metrics.breaker_open.set(0)
            self._healthy.set()
        if self._tripped.done():
            self._tripped = self._loop.create_future()

    async def _watch(self) -> None:
        """While calls are in flight: in every `silence` seconds a reply, a canary's answer, or a trip."""
        while self._in_flight and not self.breaker.is_open:
            await asyncio.sleep(max(0.01, self._last_sign + self._timeouts.silence - self._loop.time()))
            silent_since = self._last_sign
            if not self._in_flight or self._loop.time() - silent_since < self._timeouts.silence:
                continue
            alive = await self._answers_canary()
            if alive:
                self._last_sign = self._loop.time()
            elif self._last_sign == silent_since:
                self.breaker.trip()
                self._open()
                if not self._tripped.done():
                    self._tripped.set_result(None)

    async def _answers_canary(self) -> bool:
        try:
            await self._client.complete(CANARY, seconds=self._timeouts.canary)
        except ChatFault as fault:
            return fault.busy or fault.fault in _ANSWERS
        return True


class CircuitBreaker:
    """Whether an endpoint may be asked. Pure; the clock is given.

    closed --(`failures` in a row, or a dead canary)--> open --(probe answered)--> closed
                                                        open --(`outage` seconds)--> given up

    While it is open there is one probe at a time, after pauses that double.
    """

    def __init__(
        self,
        *,
        failures: int = 8,
        outage: float = 600.0,
        clock: Callable[[], float],
    ) -> None:
        self._most = failures
        self._outage = outage
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
        return self.left <= 0

    @property
    def left(self) -> float:
        """Seconds for which an outage is still waited for; a closed breaker's has not begun."""
        return self._outage - (self._clock() - self._opened_at if self._opened_at is not None else 0.0)

    @property
    def pause(self) -> float:
        """Seconds before the next probe; those of an outage that is not given up yet end with it."""
        assert self._opened_at is not None, "a closed breaker is not probed"
        wanted = min(_FIRST_PAUSE * 2.0**self._probes, _LONGEST_PAUSE)
        return wanted if self.is_given_up else min(wanted, self.left)

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


class AdmissionGate:
    """Admits calls in batches: at most `limit` at once, those with a common beginning next to each other.

    The calls that wait when a batch begins belong to it and go in the order of their text, so that an engine with a
    prefix cache gets the K criteria of one answer, and the answers to one task, one after the other. Later calls belong
    to the next batch, so no call waits for ever. `limit` shrinks when the endpoint asks for a pause and grows back call
    by call.
    """

    def __init__(self, limit: int) -> None:
        self._most = limit
        self._limit = float(limit)
        self.inside = 0
        self._batch: deque[tuple[str, asyncio.Future[None]]] = deque()
        self._next: list[tuple[str, asyncio.Future[None]]] = []
        self._scheduled = False

    @property
    def limit(self) -> int:
        return int(self._limit)

    @asynccontextmanager
    async def turn(self, text: str) -> AsyncIterator[None]:
        """Waits for this call's turn; `text` decides its place in its batch."""
        loop = asyncio.get_running_loop()
        admitted: asyncio.Future[None] = loop.create_future()
        self._next.append((text, admitted))
        if not self._scheduled:
            # One turn of the loop later, so that calls which are made together make one batch.
            self._scheduled = True
            loop.call_soon(self._open_batch)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self._leave()
            raise
        try:
            yield
        finally:
            self._leave()

    def shrink(self) -> None:
        self._limit = max(1.0, self._limit / 2)

    def grow(self) -> None:
        if self._limit < self._most:
            self._limit = min(self._most, self._limit + 1 / self._limit)

    def _open_batch(self) -> None:
        self._scheduled = False
        self._admit()

    def _leave(self) -> None:
        self.inside -= 1
        self._admit()

    def _admit(self) -> None:
        while self.inside < self.limit:
            if not self._batch:
                if not self._next:
                    return
                self._batch = deque(sorted(self._next, key=lambda waiting: waiting[0]))
                self._next = []
            _, admitted = self._batch.popleft()
            if not admitted.done():
                self.inside += 1
                admitted.set_result(None)
