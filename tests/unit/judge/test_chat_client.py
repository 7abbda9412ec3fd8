"""One request, one completion or one typed fault; never a redirect, a foreign host or an endless body."""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.values import Fault, Finish
from scope_selfplay.net.chat import MOST_BYTES, ONCE, ChatClient, ChatFault, ChatRequest
from scope_selfplay.net.guard import retry_after
from scope_selfplay.net.serve import ServedReply, serving
from scope_selfplay.testing.chat_server import FAKE_MODEL, TRANSPORT, FakeServer, FaultKind
from tests.judges import always

REQUEST = ChatRequest("Is it so?", max_tokens=8)


async def test_a_completion_comes_back_with_its_tokens_of_at_most_half_of_the_context() -> None:
    fake = FakeServer(always("yes"))
    async with fake.serving() as url, ChatClient(url, model=FAKE_MODEL, context=4096) as client:
        reply = await client.complete(REQUEST)
        await client.complete(REQUEST._replace(max_tokens=16_384))
    assert (reply.text, reply.finish, reply.tokens_in, reply.tokens_out) == ("yes", Finish.STOP, 3, 1)
    assert [request.body["max_tokens"] for request in fake.requests] == [8, 2048]


async def fault_at(served: AbstractAsyncContextManager[str], attempt: float = ONCE.attempt) -> ChatFault:
    """What one request ends with there."""
    once = replace(ONCE, attempt=attempt)
    async with served as url, ChatClient(url, model=FAKE_MODEL, retry_policy=once) as client:
        with pytest.raises(ChatFault) as raised:
            await client.complete(REQUEST._replace(choices=("1", "0")))
    return raised.value


LATE = dict.fromkeys((FaultKind.HANG, FaultKind.SLOW_DRIP), Fault.TIMED_OUT)
OTHERS = {FaultKind.REFUSAL: Fault.REFUSED, **LATE}


@pytest.mark.parametrize("kind", [*TRANSPORT, FaultKind.REDIRECT, *OTHERS])
async def test_every_fault_has_its_type(kind: FaultKind) -> None:
    fake = FakeServer(always("yes"), drip=0.3)
    fake.fault = kind
    found = await fault_at(fake.serving(), attempt=0.2 if kind in LATE else 60.0)
    assert (found.fault, found.busy) == (OTHERS.get(kind, Fault.UNAVAILABLE), kind is FaultKind.BUSY)


def answering(response: Response) -> AbstractAsyncContextManager[str]:
    """An endpoint that says the same to everybody."""

    async def answer(request: Request) -> Response:
        return response

    return serving(Starlette(routes=[Route("/{rest:path}", answer, methods=["GET", "POST"])]))


async def test_a_status_is_the_users_mistake_or_a_refusal() -> None:
    for status in (401, 403, 404):
        async with answering(Response(b"no", status)) as url, ChatClient(url, model="m") as client:
            with pytest.raises(ConfigError, match=r"base_url, model \(m\) and api_key_env"):
                await client.complete(REQUEST)
    for status in (400, 413, 422):
        found = await fault_at(answering(Response(b"maximum context length", status)))
        assert found.fault is Fault.REFUSED and "maximum context length" in str(found)


def _with_odds(**top: object) -> dict[str, object]:
    return {"message": {"content": "1"}, "logprobs": {"content": [{"top_logprobs": [{"token": "1", **top}]}]}}


async def test_a_body_of_another_shape_or_over_the_cap_is_no_completion() -> None:
    choices = [{}, {"message": None}, {"message": {"content": 7}}, _with_odds(logprob=3), _with_odds()]
    for body in ([], {}, {"choices": {}}, *({"choices": [each]} for each in choices)):
        assert (await fault_at(answering(JSONResponse(body)))).fault is Fault.UNAVAILABLE, body
    fake = FakeServer(always("x" * (MOST_BYTES + 1)))
    assert (await fault_at(fake.serving())).fault is Fault.UNREADABLE


async def test_connections_are_kept_and_never_more_than_the_pool() -> None:
    fake = FakeServer(lambda request: ServedReply("yes", seconds=0.2))
    few = replace(ONCE, connections=4)
    async with fake.serving() as url, ChatClient(url, model=FAKE_MODEL, retry_policy=few) as client:
        await asyncio.gather(*(client.complete(REQUEST) for _ in range(40)))
    assert fake.most_at_once == 4 and len(fake.requests) == 40


def test_retry_after_is_a_date_or_seconds_of_which_no_more_than_300_are_waited() -> None:
    given = {None: 0, "2": 2, "0.5": 0.5, "-3": 0, "nan": 0, "1e9": 300, "soon": 0}
    assert {header: retry_after(header) for header in given} == given
    now = datetime.now(UTC)
    assert 50 < retry_after(format_datetime(now + timedelta(seconds=60))) <= 60
    assert retry_after(format_datetime(now - timedelta(seconds=60))) == 0
