"""A server of JSON objects, asked until it answers or the retry budget is spent; and one client per event loop.

    async with JsonClient("http://127.0.0.1:8000", what="retriever URL") as client:
        info = await client.ask("GET", "/info")

Tried again: refused and broken connections, half bodies, what is not a JSON object, and the statuses that pass (408,
425, 429, 500, 502-504), as long as a Retry-After asks for, else with growing pauses. Everything else is an answer,
and a refusal. No redirects, no proxy of the environment, no cookies.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import aiohttp

from scope_selfplay.errors import OutsideError
from scope_selfplay.untrusted_text import one_line
from scope_selfplay.wire.guarded_http import LOOPBACK, GuardedResolver, checked_url, retry_after
from scope_selfplay.wire.strict_json import parse_object

T = TypeVar("T")

RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_SHORTEST = 0.1
"""Seconds: no attempt is so short that a server which works could not answer."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long a client keeps trying, and how much it reads."""

    deadline: float = 60.0
    """Seconds from the first attempt in which another one may begin."""
    attempt: float = 20.0
    """Seconds for one attempt."""
    cuts_last: bool = False
    """Whether an attempt that is under way at the deadline ends with it: answers come at once or not at all."""
    attempts: int | None = 8
    """None: as many as the deadline allows."""
    first_pause: float = 0.25
    """Seconds before the first retry; doubles, with jitter. A longer Retry-After wins."""
    longest_pause: float = 10.0
    max_response: int = 4 << 20
    """Bytes of one response."""
    connections: int = 256


class HttpFault(OutsideError):
    """A request without a usable answer. `status` is 0 where none came, or came with a response that was bad.

    `body` is what came with another status, `after` the seconds that a Retry-After asks for.
    """

    def __init__(
        self, message: str, *, status: int = 0, body: bytes = b"", after: float = 0.0, timed_out: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.after = after
        self.timed_out = timed_out


class Refused(HttpFault):
    """The server answered and will not do it: asking again would not help."""


class ServerUnavailable(HttpFault):
    """Nothing usable came; asking again may help, and did not where `JsonClient.ask` raises it."""


class Silence:
    """Says once that a server does not answer, since when and for how long it is waited for, and once that it does."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._since: float | None = None

    def begin(self, reason: str, left: float) -> None:
        """It did not answer; `left` are the seconds for which it will be asked again."""
        if self._since is None:
            self._since = time.monotonic()
            clock = time.strftime("%H:%M:%S")
            self._say(f"{reason} (since {clock}); asking again for up to {left:.0f} s")

    def end(self, what: str) -> None:
        if self._since is not None:
            self._say(f"{what} answers again, after {time.monotonic() - self._since:.0f} s")
            self._since = None


class Retries:
    """The budget of one call, from now on: seconds for the next attempt, pauses, and who is told of a silence."""

    def __init__(self, policy: RetryPolicy, *, jitter: random.Random, silence: Silence) -> None:
        self._policy = policy
        self._jitter = jitter
        self._silence = silence
        self._now = asyncio.get_running_loop().time
        self._end = self._now() + policy.deadline
        self._pause = policy.first_pause
        self._failed = 0

    @property
    def seconds(self) -> float:
        """For an attempt that begins now."""
        left = self._end - self._now() if self._policy.cuts_last else self._policy.attempt
        return max(_SHORTEST, min(self._policy.attempt, left))

    async def pause(self, fault: ServerUnavailable) -> None:
        """Returns when to ask again. Raises ServerUnavailable where the budget is spent."""
        self._failed += 1
        wait = max(fault.after, self._pause * self._jitter.uniform(0.5, 1.0))
        if self._failed == self._policy.attempts or self._now() + wait >= self._end:
            raise ServerUnavailable(f"{fault}; gave up after {self._failed} attempts") from None
        self._silence.begin(str(fault), self._end - self._now())
        await asyncio.sleep(wait)
        self._pause = min(self._pause * 2, self._policy.longest_pause)

    def end(self, what: str) -> None:
        """`what` answered."""
        self._silence.end(what)


class JsonClient:
    """One pool of kept-alive connections to one server; use with `async with`."""

    def __init__(
        self,
        url: str,
        *,
        what: str = "endpoint",
        allowed_hosts: Collection[str] = LOOPBACK,
        token: str | None = None,
        scheme: str = "Bearer",
        retry_policy: RetryPolicy | None = None,
        jitter: random.Random | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`what` names the URL in complaints; `scheme` is the kind of key that `token` is; `say` gets a line when the
        server stops answering, and one when it answers again. Raises ConfigError for a URL that may not be called.
        """
        self._silence = Silence(say)
        self.retry_policy = retry_policy or RetryPolicy()
        self._jitter = jitter or random.Random()
        self.url = checked_url(url, allowed_hosts, what=what)
        self._headers = {"Authorization": f"{scheme} {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=self.retry_policy.connections, resolver=GuardedResolver())
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        check: Callable[[aiohttp.ClientResponse], None] | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> dict[str, Any]:
        """One JSON object. `check` sees every response of status 200 and may raise what it likes.

        Raises Refused, ServerUnavailable.
        """
        retries = self.retries(retry_policy)
        while True:
            try:
                answer = await self.ask_once(method, path, body, seconds=retries.seconds, check=check)
                retries.end(self.url)
                return answer
            except ServerUnavailable as fault:
                await retries.pause(fault)

    def retries(self, retry_policy: RetryPolicy | None = None) -> Retries:
        """The budget of one call that begins now."""
        return Retries(retry_policy or self.retry_policy, jitter=self._jitter, silence=self._silence)

    async def ask_once(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        seconds: float,
        check: Callable[[aiohttp.ClientResponse], None] | None = None,
        base: str | None = None,
    ) -> dict[str, Any]:
        """As `ask`, in one attempt of at most `seconds`; `base` is another path of the same server."""
        assert self._session is not None, "use `async with`"
        where = f"{base or self.url}{path}"
        headers = {"Content-Type": "application/json"} if body is not None else {}
        call = self._session.request(method, where, data=body, headers=headers, allow_redirects=False)
        try:
            async with asyncio.timeout(seconds), call as response:
                data = await _read_capped(response, self.retry_policy.max_response)
        except TimeoutError:
            raise ServerUnavailable(
                f"{where}: no answer within {seconds:.{0 if seconds >= 1 else 1}f} s", timed_out=True
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServerUnavailable(f"{where}: {type(error).__name__}: {error}") from None
        if response.status != 200:
            raise _fault_of(response, data or b"", where)
        if check is not None:
            check(response)
        if data is None:
            raise Refused(f"{where}: a response of more than {self.retry_policy.max_response:,} bytes")
        try:
            return parse_object(data)
        except ValueError as error:
            raise ServerUnavailable(f"{where}: the response is {error}") from None


async def _read_capped(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """The whole body; None as soon as it has more than `limit` bytes."""
    data = bytearray()
    async for part in response.content.iter_any():
        data += part
        if len(data) > limit:
            return None
    return bytes(data)


def _fault_of(response: aiohttp.ClientResponse, data: bytes, where: str) -> HttpFault:
    status, after = response.status, retry_after(response.headers.get("Retry-After"))
    message = f"{where}: status {status}: {one_line(data[:300].decode('utf-8', 'replace'))}"
    if 300 <= status < 400:
        message += " (redirects are not followed)"
    kind = ServerUnavailable if status in RETRIED else Refused
    return kind(message, status=status, body=data, after=after)


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
