"""A fake chat endpoint: it answers as a script does, and fails as it is told to.

    fake = FakeServer(lambda request: ServedReply("<score>1</score>"), plan=FaultPlan({FaultKind.RESET: 0.1}))
    async with fake.serving() as url: ...

Which request meets which fault follows from the plan's seed and the request's body, not from timing, so a run
against it repeats; another seed in the request is another draw. `fake.fault` overrides the plan: it makes
every request fail until it is None again.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum

from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from scope_selfplay.base.values import rng_from
from scope_selfplay.net.serve import (
    Responder,
    ServedReply,
    ServedRequest,
    chat_app,
    completion,
    json_response,
    refuse,
    serving,
)

FAKE_MODEL = "fake"


class FaultKind(StrEnum):
    """What a request may meet instead of its answer."""

    BUSY = "busy"
    """429 with Retry-After."""
    ERROR = "error"
    """500."""
    UNAVAILABLE = "unavailable"
    """503 without Retry-After."""
    RESET = "reset"
    HALF_BODY = "half_body"
    """A Content-Length that is never reached, then the end of the connection."""
    SLOW_DRIP = "slow_drip"
    """The right body, a few bytes at a time, for `drip` seconds."""
    HANG = "hang"
    """Accepted, never answered."""
    NOT_JSON = "not_json"
    NO_CHOICES = "no_choices"
    WRONG_MODEL = "wrong_model"
    """The answer of a model with another name."""
    REDIRECT = "redirect"
    REFUSAL = "refusal"
    NO_VERDICT = "no_verdict"
    """From here on: a sound response whose completion is garbage."""
    TWO_VERDICTS = "two_verdicts"
    ONLY_THINKING = "only_thinking"
    """The verdict is inside thinking that never ends."""
    NEARLY = "nearly"
    """0.7 instead of 0 or 1."""
    EMPTY = "empty"
    HUGE = "huge"
    """1 MiB of noise."""
    CUT_OFF = "cut_off"
    """The right text with finish_reason `length`."""


GARBAGE = tuple(map(FaultKind, "no_verdict two_verdicts only_thinking nearly empty huge cut_off".split()))
TRANSPORT = tuple(
    map(FaultKind, "busy error unavailable reset half_body not_json no_choices wrong_model".split())
)


@dataclass(frozen=True)
class FaultPlan:
    """The share of requests that meets each fault; together at most 1."""

    shares: Mapping[FaultKind, float] = field(default_factory=dict)
    seed: int = 0

    @classmethod
    def evenly(cls, kinds: tuple[FaultKind, ...], share: float) -> "FaultPlan":
        return cls({kind: share / len(kinds) for kind in kinds})

    def draw(self, body: Mapping[str, object]) -> FaultKind | None:
        chance = rng_from(self.seed, json.dumps(body, sort_keys=True)).random()
        for kind, share in self.shares.items():
            chance -= share
            if chance < 0:
                return kind
        return None


@dataclass(eq=False)
class FakeServer:
    """`injected` counts faults by kind, `requests` are all chat requests."""

    responder: Responder
    _: KW_ONLY
    plan: FaultPlan = field(default_factory=FaultPlan)
    model: str = FAKE_MODEL
    retry_after: float = 0.05
    drip: float = 0.2
    fault: FaultKind | None = None
    injected: Counter[FaultKind] = field(default_factory=Counter)
    requests: list[ServedRequest] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0
    _busied: set[str] = field(default_factory=set)
    _transports: dict[tuple[str, int], asyncio.Transport] = field(default_factory=dict)

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        protocol = type("_Connection", (_KnownConnection,), {"transports": self._transports})
        app = chat_app(self._answer, model=self.model)
        async with serving(app, port=port, protocol=protocol) as url:
            yield url

    def cut(self) -> None:
        """End every connection, as a process that dies does."""
        for transport in self._transports.values():
            transport.abort()

    async def _answer(self, served: ServedRequest) -> ServedReply | ASGIApp:
        self.requests.append(served)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            fault = self.fault or self._drawn(served)
            answer = self.responder(served)
            reply = await answer if isinstance(answer, Awaitable) else answer
            if not isinstance(reply, ServedReply):
                return reply
            if reply.seconds:
                await asyncio.sleep(reply.seconds)
            if fault is None:
                return reply
            self.injected[fault] += 1
            return await self._fail(served, reply, fault)
        finally:
            self._at_once -= 1

    def _drawn(self, served: ServedRequest) -> FaultKind | None:
        fault = self.plan.draw(served.body)
        if fault is FaultKind.BUSY:
            # Busy is over when the pause is: the same request, sent again, is answered.
            body = json.dumps(served.body, sort_keys=True)
            if body in self._busied:
                return None
            self._busied.add(body)
        return fault

    async def _fail(
        self, served: ServedRequest, reply: ServedReply, fault: FaultKind
    ) -> ServedReply | ASGIApp:
        body = json.dumps(completion(served, reply, self.model)).encode()
        match fault:
            case FaultKind.BUSY:
                return refuse(429, "too many requests", {"Retry-After": str(self.retry_after)})
            case FaultKind.ERROR:
                return refuse(500, "internal error")
            case FaultKind.UNAVAILABLE:
                return refuse(503, "loading")
            case FaultKind.REDIRECT:
                return refuse(307, "elsewhere", {"Location": "http://169.254.169.254/latest"})
            case FaultKind.NOT_JSON:
                return Response("<html>502 Bad Gateway</html>", media_type="text/html")
            case FaultKind.NO_CHOICES:
                return json_response({"object": "chat.completion", "model": self.model, "choices": []})
            case FaultKind.WRONG_MODEL:
                return json_response(completion(served, reply, "somebody-else"))
            case FaultKind.HANG:
                await asyncio.Event().wait()
                raise AssertionError("an event that nobody sets")
            case FaultKind.RESET:
                return self._abort_after(served, b"", len(body))
            case FaultKind.HALF_BODY:
                return self._abort_after(served, body[: len(body) // 2], len(body))
            case FaultKind.SLOW_DRIP:
                headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
                return StreamingResponse(self._dripping(body), headers=headers)
            case _:
                return garbage(fault, reply)

    async def _dripping(self, body: bytes) -> AsyncIterator[bytes]:
        pieces = 10
        size = -(-len(body) // pieces)
        for start in range(0, len(body), size):
            yield body[start : start + size]
            await asyncio.sleep(self.drip / pieces)

    def _abort_after(self, served: ServedRequest, part: bytes, length: int) -> ASGIApp:
        """Sends `part` of a body that has `length` bytes, then ends the connection."""

        async def abort(scope: Scope, receive: Receive, send: Send) -> None:
            if part:
                headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": part, "more_body": True})
            assert served.request is not None and served.request.client is not None
            self._transports[(served.request.client.host, served.request.client.port)].abort()
            while (await receive())["type"] != "http.disconnect":
                pass

        return abort


class _KnownConnection(H11Protocol):
    """Notes the transport of every connection by its client's address: an application cannot reach it otherwise."""

    transports: dict[tuple[str, int], asyncio.Transport]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is not None:
            self.transports[self.client] = transport


def garbage(fault: FaultKind, reply: ServedReply) -> ServedReply:
    """A completion that holds no single verdict in the asked form, whatever the form."""
    if fault is FaultKind.CUT_OFF:
        return replace(reply, finish="length")
    texts = {
        FaultKind.REFUSAL: "",
        FaultKind.NO_VERDICT: "I find this hard to say.",
        FaultKind.TWO_VERDICTS: "<score>1</score> or <score>0</score>",
        FaultKind.ONLY_THINKING: f"<think>I would say {reply.text.replace('</think>', '')}",
        FaultKind.NEARLY: "<think>so</think><score>0.7</score>",
        FaultKind.EMPTY: "",
        FaultKind.HUGE: "<score>" * ((1 << 20) // len("<score>")),
    }
    return ServedReply(texts[fault], refusal="I cannot judge this." if fault is FaultKind.REFUSAL else None)
