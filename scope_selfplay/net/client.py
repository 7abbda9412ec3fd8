"""Servers of JSON objects, asked as if they were one until one answers or the retry budget is spent; one client a loop.

    async with Client("http://127.0.0.1:8000", what="retriever URL") as client:
        info = await client.ask("GET", "/info")

Tried again: refused and broken connections, half bodies, what is not a JSON object, and the statuses that pass (408,
425, 429, 500, 502-504), as long as a Retry-After asks for, else with growing pauses. Everything else is an answer,
and a refusal. No redirects, no cookies; of the environment the proxy of HTTPS alone (HTTPS_PROXY, NO_PROXY).

What belongs together goes to the same server: an engine keeps the beginnings of its prompts. Servers are ranked by a
hash of the subject and their own URL (rendezvous hashing), so that one that is gone moves only its own subjects, to
others evenly, and gets them back. With
`patience` a busy server or an outage uses up no attempt of a call, and canaries tell who is down:

    busy (429, or 503 with Retry-After)   everyone pauses as long as asked, fewer calls at once; asked again
    failed (connection, 5xx, half body)   counted; so many in a row, and the server is down
    silent                                a canary is sent; unanswered, the server is down and its calls have timed out
    down                                  calls go elsewhere or wait; one canary at a time; given up after the outage
"""

import asyncio
import hashlib
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

import aiohttp

from scope_selfplay.base.errors import OutsideError, ScopeError
from scope_selfplay.base.text import one_line
from scope_selfplay.net.admission import Admission
from scope_selfplay.net.guard import GuardedResolver, checked_url, retry_after
from scope_selfplay.net.json import parse_object

T = TypeVar("T")

RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_BUSY, _LOADING = 429, 503
_SHORTEST = 0.1
"""Seconds: no attempt is so short that a server which works could not answer."""
_BUSY_PAUSE = 1.0
_FIRST_REST, _LONGEST_REST = 1.0, 30.0
"""Seconds for which a server that is down is left alone: doubled each time, up to the longest or the patience."""
_SPARE_CONNECTIONS = 2
"""Canaries need one when all others hang."""
SILENCE = 30.0
"""Seconds without any reply after which a canary asks whether an engine is alive, and which it may take; at most a
twentieth of the patience."""
FAILURES = 8
"""Consecutive failures after which a server is down."""


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
    """Each asks every server until one answers. None: as many as the deadline allows."""
    first_pause: float = 0.25
    """Seconds before the first retry; doubles, with jitter. A longer Retry-After wins."""
    longest_pause: float = 10.0
    max_response: int = 4 << 20
    """Bytes of one response."""
    connections: int = 256
    """Calls of one server at once."""


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

    @property
    def is_busy(self) -> bool:
        """Whether the server works, and wants a pause."""
        return self.status == _BUSY or (self.status == _LOADING and self.after > 0)

    def but(self, more: str) -> Self:
        """The same fault, of which `more` is known."""
        known = {"status": self.status, "body": self.body, "after": self.after, "timed_out": self.timed_out}
        return type(self)(f"{self}; {more}", **known)  # type: ignore[arg-type]


class Refused(HttpFault):
    """The server answered and will not do it: asking again would not help."""


class ServerUnavailable(HttpFault):
    """Nothing usable came; asking again may help, and did not where `Client.ask` raises it."""


class _Unsent(Exception):
    """The server went down while a call waited for its turn."""


class Health:
    """Whether a server may be asked.

    well --(`failures` in a row, or silence)--> down --(an answer)--> well. While it is down it rests, longer each time.
    """

    def __init__(self, failures: int = 1, outage: float = math.inf) -> None:
        self._failures = failures
        self._outage = outage
        self.succeed()

    def succeed(self) -> None:
        self._in_a_row = self._rests = 0
        self._down_since: float | None = None
        self._rests_until = -math.inf

    def fail(self) -> None:
        """A call failed because of the server, not because of what was asked."""
        self._in_a_row += 1
        if self._in_a_row >= self._failures:
            self.go_down()

    def go_down(self) -> None:
        """It rests, unless it does already."""
        now = time.monotonic()
        self._down_since = now if self._down_since is None else self._down_since
        if now >= self._rests_until:
            self._rests_until = now + min(_FIRST_REST * 2.0**self._rests, _LONGEST_REST, self._outage)
            self._rests += 1

    @property
    def is_down(self) -> bool:
        return self._down_since is not None

    @property
    def rest(self) -> float:
        """Seconds for which it is still left alone; a rest that an outage would end within ends with it."""
        rest = self._rests_until - time.monotonic()
        return max(0.0, min(rest, self.left) if self.left > 0 else rest)

    @property
    def left(self) -> float:
        """Seconds for which an outage is still waited for; that of a server which is well has not begun."""
        return self._outage - (0.0 if self._down_since is None else time.monotonic() - self._down_since)


class Replica:
    """One of a client's servers: what it is asked, and whether it may be asked."""

    def __init__(self, url: str, client: "Client", patience: float | None, well: asyncio.Event) -> None:
        self.url = url
        self._client = client
        self._patience = patience
        self._silence = min(SILENCE, (patience or 0.0) / 20)
        self._well = well
        self.health = Health() if patience is None else Health(FAILURES, patience)
        self._gate = Admission(client.retry_policy.connections)
        self._paused_until = -math.inf
        self._last_sign = -math.inf
        self._leashes: set[asyncio.Timeout] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        seconds: float,
        check: Callable[[aiohttp.ClientResponse], None] | None = None,
        at_root: bool = False,
    ) -> dict[str, Any]:
        """As `Client.ask`, in one attempt of at most `seconds`."""
        where = f"{self.url.removesuffix('/v1') if at_root else self.url}{path}"
        headers = {"Content-Type": "application/json"} if body is not None else {}
        session, limit = self._client.session, self._client.retry_policy.max_response
        proxy = proxy_for(where)
        call = session.request(method, where, data=body, headers=headers, allow_redirects=False, proxy=proxy)
        try:
            async with asyncio.timeout(seconds), call as response:
                data = await _read_capped(response, limit)
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
            raise Refused(f"{where}: a response of more than {limit:,} bytes")
        try:
            return parse_object(data)
        except ValueError as error:
            raise ServerUnavailable(f"{where}: the response is {error}") from None

    async def send(self, attempt: "Attempt[T]", seconds: Callable[[], float], text: str, turn: int) -> T:
        """One attempt when its turn has come, of `seconds` from then on.

        Raises what it raises; ServerUnavailable where a silent server's canary goes unanswered meanwhile.
        """
        async with self._gate.turn(text, number=turn):
            if self._patience is not None:
                if self.health.is_down:
                    raise _Unsent
                # No call is sent before a pause is over, and then not all at the same moment.
                while (left := self._paused_until - time.monotonic()) > 0:
                    await asyncio.sleep(left + self._client.jitter.uniform(0, 0.1 + 0.1 * left))
            try:
                answer = await self._on_leash(attempt(self, seconds()))
            except ServerUnavailable as fault:
                self._note(fault)
                raise
            except ScopeError:
                # A server that refuses is alive, like one that is busy.
                self._last_sign = time.monotonic()
                raise
        self._gate.grow()
        self._recover()
        return answer

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _on_leash(self, call: Awaitable[T]) -> T:
        if not self._leashes:
            self._last_sign = time.monotonic()
        leash = asyncio.timeout(None)
        self._leashes.add(leash)
        self._keep_up("watch", self._watch_calls)
        try:
            async with leash:
                return await call
        except TimeoutError:
            raise ServerUnavailable(f"{self.url}: hangs; the call was given up", timed_out=True) from None
        finally:
            self._leashes.discard(leash)

    def _note(self, fault: ServerUnavailable) -> None:
        now = time.monotonic()
        if fault.is_busy:
            self._last_sign = now
            if now >= self._paused_until:
                self._gate.shrink()
            self._paused_until = max(self._paused_until, now + (fault.after or _BUSY_PAUSE))
        else:
            # Calls in flight go on: those that end well make the server well again.
            self.health.fail()
            if self.health.is_down:
                self._keep_up("probe", self._probe_until_well)

    def _recover(self) -> None:
        self._last_sign = time.monotonic()
        self.health.succeed()
        self._well.set()

    def _keep_up(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._patience is not None and (name not in self._tasks or self._tasks[name].done()):
            self._tasks[name] = asyncio.get_running_loop().create_task(work())

    async def _probe_until_well(self) -> None:
        while self.health.is_down:
            await asyncio.sleep(self.health.rest)
            if self.health.is_down and await self._answers():
                self._recover()
            elif self.health.is_down:
                self.health.go_down()

    async def _watch_calls(self) -> None:
        """While calls are in flight: in every silence a reply, a canary's answer, or the end of those calls."""
        while self._leashes and not self.health.is_down:
            await asyncio.sleep(max(0.01, self._last_sign + self._silence - time.monotonic()))
            silent_since = self._last_sign
            if not self._leashes or time.monotonic() - silent_since < self._silence:
                continue
            if await self._answers():
                self._last_sign = time.monotonic()
            elif self._last_sign == silent_since:
                self.health.go_down()
                self._keep_up("probe", self._probe_until_well)
                for leash in self._leashes:
                    leash.reschedule(0.0)

    async def _answers(self) -> bool:
        try:
            await self._client.canary(self, self._silence)
        except ServerUnavailable as fault:
            return fault.is_busy
        except ScopeError:
            pass
        return True


Attempt = Callable[[Replica, float], Awaitable[T]]
"""What is done with one server, within so many seconds; raises ServerUnavailable where another one may do better."""


class Client:
    """Kept-alive connections to `urls`, which serve the same; use with `async with`, in one event loop."""

    def __init__(
        self,
        *urls: str,
        what: str = "endpoint",
        token: str | None = None,
        scheme: str = "Bearer",
        retry_policy: RetryPolicy | None = None,
        patience: float | None = None,
        jitter: random.Random | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`what` names the URLs in complaints; `scheme` is the kind of key that `token` is; `say` gets a line when
        nobody answers, and one when somebody does again. Raises ConfigError for a URL that may not be called.
        """
        self.retry_policy = retry_policy or RetryPolicy()
        self.jitter = jitter or random.Random()
        self._patience = patience
        self._say = say
        self._silent_since: float | None = None
        self._headers = {"Authorization": f"{scheme} {token}"} if token else {}
        self._well = asyncio.Event()
        checked = [checked_url(url, what=what) for url in urls]
        self.servers = [Replica(url, self, patience, self._well) for url in checked]
        self.url = checked[0]

    async def __aenter__(self) -> Self:
        limit = self.retry_policy.connections + (_SPARE_CONNECTIONS if self._patience is not None else 0)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=limit, resolver=GuardedResolver()),
            headers=self._headers,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        for server in self.servers:
            await server.close()
        await self.session.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        subject: str = "",
        check: Callable[[aiohttp.ClientResponse], None] | None = None,
        at_root: bool = False,
    ) -> dict[str, Any]:
        """One JSON object. `check` sees every response of status 200 and may raise what it likes; a path `at_root` is
        not below the `/v1` of the URL. Raises Refused, ServerUnavailable.
        """

        async def once(server: Replica, seconds: float) -> dict[str, Any]:
            return await server.ask(method, path, body, seconds=seconds, check=check, at_root=at_root)

        return await self.call(once, subject=subject)

    async def call(self, attempt: Attempt[T], *, subject: str = "", text: str = "", turn: int = 0) -> T:
        """What `attempt` gives at the first server that answers it, in the order of `subject`; `turn` and `text` tell
        when its turn comes. Raises ServerUnavailable, and what `attempt` raises.
        """
        policy, now = self.retry_policy, time.monotonic
        end, pause, failed = math.inf, policy.first_pause, 0

        def seconds() -> float:
            nonlocal end
            end = min(end, now() + policy.deadline)
            left = end - now() if policy.cuts_last else policy.attempt
            return max(_SHORTEST, min(policy.attempt, left))

        while True:
            fault: ServerUnavailable | None = None
            for server in await self._order(subject or text):
                try:
                    answer = await server.send(attempt, seconds, text, turn)
                except _Unsent:
                    continue
                except ServerUnavailable as unavailable:
                    fault = unavailable
                    if self._is_patient(fault):
                        # Another one would have to compute what this one keeps.
                        break
                else:
                    if self._silent_since is not None:
                        silence = time.monotonic() - self._silent_since
                        self._say(f"{server.url} answers again, after {silence:.0f} s")
                        self._silent_since = None
                    return answer
            if fault is None:
                continue
            is_patient = self._is_patient(fault)
            failed += not is_patient
            if len(self.servers) > 1 and not is_patient:
                fault = fault.but(f"no replica of {len(self.servers)} answered")
            wait = max(fault.after, pause * self.jitter.uniform(0.5, 1.0))
            if failed == policy.attempts or now() + wait >= end:
                raise fault if policy.attempts == 1 else fault.but(f"gave up after {failed} attempts")
            if not is_patient:
                self._begin_silence(str(fault), end - now())
            await asyncio.sleep(wait)
            pause = min(pause * 2, policy.longest_pause)

    async def canary(self, server: Replica, seconds: float) -> object:
        """Asks for next to nothing. Raises ServerUnavailable; any other error is an answer. Needed with patience."""
        raise NotImplementedError

    async def _order(self, subject: str) -> list[Replica]:
        """Those that may be asked, best first. Where all rest, each is asked again: waiting would be no better.

        With patience, waits for one that is well, for as long as the last that went down is waited for. Raises
        ServerUnavailable.
        """
        ranked = sorted(self.servers, key=lambda server: rank(subject, server.url))
        if self._patience is None:
            return [server for server in ranked if not server.health.rest] or ranked
        while not (standing := [server for server in ranked if not server.health.is_down]):
            left = max(server.health.left for server in self.servers)
            urls = ", ".join(server.url for server in self.servers)
            if left <= 0:
                raise ServerUnavailable(f"{urls}: down for more than {self._patience:.0f} s")
            self._begin_silence(f"{urls} does not answer", left)
            self._well.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._well.wait(), left)
        return standing

    def _is_patient(self, fault: ServerUnavailable) -> bool:
        return fault.is_busy and self._patience is not None

    def _begin_silence(self, reason: str, left: float) -> None:
        """Said once, with the seconds for which they will be asked again."""
        if self._silent_since is None:
            self._silent_since = time.monotonic()
            clock = time.strftime("%H:%M:%S")
            self._say(f"{reason} (since {clock}); asking again for up to {left:.0f} s")


def rank(subject: str, url: str) -> bytes:
    """The server with the lowest is the one that a subject belongs to; the same everywhere."""
    return hashlib.blake2b(f"{subject}\x1f{url}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def proxy_for(url: str) -> str | None:
    """The proxy of the environment for what is called over HTTPS; NO_PROXY names hosts without."""
    is_outside = url.startswith("https:") and not proxy_bypass(urlsplit(url).netloc)
    return os.environ.get("HTTPS_PROXY") or None if is_outside else None


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
