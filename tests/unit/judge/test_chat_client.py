"""One request, one completion or one typed fault; never a redirect, a foreign host or an endless body."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scope_selfplay.errors import ConfigError
from scope_selfplay.inference.chat_server import ServedReply
from scope_selfplay.judge.chat_client import MOST_BYTES, ChatClient, ChatFault, ChatRequest
from scope_selfplay.schemas import Fault, Finish
from scope_selfplay.testing.chat_server import FAKE_MODEL, FakeServer, FaultKind
from scope_selfplay.wire.guarded_http import GuardedResolver, retry_after
from scope_selfplay.wire.serving import serving
from tests.judges import always

REQUEST = ChatRequest("Is it so?", max_tokens=8)


async def test_a_completion_comes_back_with_its_tokens() -> None:
    async with FakeServer(always("yes")).serving() as url, ChatClient(url, model=FAKE_MODEL) as client:
        reply = await client.complete(REQUEST, seconds=5)

    assert (reply.text, reply.finish, reply.tokens_in, reply.tokens_out) == ("yes", Finish.STOP, 3, 1)


@pytest.mark.parametrize(
    ("kind", "fault", "busy"),
    [
        (FaultKind.BUSY, Fault.UNAVAILABLE, True),
        (FaultKind.ERROR, Fault.UNAVAILABLE, False),
        (FaultKind.UNAVAILABLE, Fault.UNAVAILABLE, False),
        (FaultKind.RESET, Fault.UNAVAILABLE, False),
        (FaultKind.HALF_BODY, Fault.UNAVAILABLE, False),
        (FaultKind.NOT_JSON, Fault.UNAVAILABLE, False),
        (FaultKind.NO_CHOICES, Fault.UNAVAILABLE, False),
        (FaultKind.WRONG_MODEL, Fault.UNAVAILABLE, False),
        (FaultKind.REDIRECT, Fault.UNAVAILABLE, False),
        (FaultKind.REFUSAL, Fault.REFUSED, False),
        (FaultKind.HANG, Fault.TIMED_OUT, False),
    ],
)
async def test_every_fault_has_its_type(kind: FaultKind, fault: Fault, busy: bool) -> None:
    fake = FakeServer(always("yes"))
    fake.fault = kind
    async with fake.serving() as url, ChatClient(url, model=FAKE_MODEL) as client:
        with pytest.raises(ChatFault) as raised:
            await client.complete(REQUEST, seconds=0.2)

    assert (raised.value.fault, raised.value.busy) == (fault, busy)


async def test_a_slow_answer_is_read_and_one_that_is_too_slow_is_not() -> None:
    fake = FakeServer(always("yes"), drip=0.3)
    fake.fault = FaultKind.SLOW_DRIP
    async with fake.serving() as url, ChatClient(url, model=FAKE_MODEL) as client:
        assert (await client.complete(REQUEST, seconds=5)).text == "yes"
        with pytest.raises(ChatFault) as raised:
            await client.complete(REQUEST, seconds=0.1)

    assert raised.value.fault is Fault.TIMED_OUT


async def test_a_response_over_the_cap_is_unreadable() -> None:
    fake = FakeServer(always("x" * (MOST_BYTES + 1)))
    async with fake.serving() as url, ChatClient(url, model=FAKE_MODEL) as client:
        with pytest.raises(ChatFault) as raised:
            await client.complete(REQUEST, seconds=5)

    assert raised.value.fault is Fault.UNREADABLE


@asynccontextmanager
async def _server(status: int, body: bytes, headers: dict[str, str] | None = None) -> AsyncIterator[str]:
    async def answer(request: Request) -> Response:
        return Response(body, status, headers)

    methods = ["GET", "POST"]
    app = Starlette(routes=[Route("/{rest:path}", answer, methods=methods)])
    async with serving(app) as url:
        yield url


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_wrong_key_path_or_model_is_the_users_mistake(status: int) -> None:
    async with _server(status, b"no") as url, ChatClient(url, model="m") as client:
        with pytest.raises(ConfigError, match=r"base_url, model \(m\) and api_key_env"):
            await client.complete(REQUEST, seconds=5)


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_request_that_is_refused_is_a_refusal(status: int) -> None:
    async with _server(status, b"maximum context length") as url, ChatClient(url, model="m") as client:
        with pytest.raises(ChatFault, match="maximum context length") as raised:
            await client.complete(REQUEST, seconds=5)

    assert raised.value.fault is Fault.REFUSED


BROKEN = [
    {"choices": [{"message": {"content": 7}}]},
    {"choices": [{"message": None}]},
    {"choices": [{}]},
    {"choices": {}},
    {},
    [],
    {
        "choices": [
            {
                "message": {"content": "1"},
                "logprobs": {"content": [{"top_logprobs": [{"token": "1", "logprob": 3}]}]},
            }
        ]
    },
    {
        "choices": [
            {"message": {"content": "1"}, "logprobs": {"content": [{"top_logprobs": [{"token": "1"}]}]}}
        ]
    },
]


@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
async def test_a_body_of_another_shape_is_no_completion(body: object) -> None:
    async with _server(200, json.dumps(body).encode()) as url, ChatClient(url, model="m") as client:
        with pytest.raises(ChatFault) as raised:
            await client.complete(REQUEST._replace(choices=("1", "0")), seconds=5)

    assert raised.value.fault is Fault.UNAVAILABLE


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/v1",
        "http://user:secret@127.0.0.1/v1",
        "http://169.254.169.254/v1",
        "http://example.org/v1",
        "http://127.0.0.1:99999/v1",
        "127.0.0.1:8000",
        "http://127.0.0.1/v1?x=1",
    ],
)
def test_a_url_that_may_not_be_called_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="endpoint"):
        ChatClient(url, allowed_hosts={"127.0.0.1", "169.254.169.254"})


async def test_a_name_never_resolves_to_a_link_local_address() -> None:
    resolver = GuardedResolver()
    assert await resolver.resolve("127.0.0.1", 80)
    with pytest.raises(OSError, match="link-local"):
        await resolver.resolve("169.254.169.254", 80)


async def test_connections_are_kept_and_never_more_than_the_pool() -> None:
    fake = FakeServer(lambda request: ServedReply("yes", seconds=0.01))
    async with fake.serving() as url, ChatClient(url, model=FAKE_MODEL, connections=4) as client:
        await asyncio.gather(*(client.complete(REQUEST, seconds=5) for _ in range(40)))

    assert fake.most_at_once == 4 and len(fake.requests) == 40


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [
        (None, 0, 0),
        ("2", 2, 2),
        ("0.5", 0.5, 0.5),
        ("-3", 0, 0),
        ("nan", 0, 0),
        ("1e9", 300, 300),
        ("soon", 0, 0),
    ],
)
def test_retry_after_is_read_as_seconds(header: str | None, low: float, high: float) -> None:
    assert low <= retry_after(header) <= high


def test_retry_after_may_be_a_date() -> None:
    now = datetime.now(UTC)

    assert 50 < retry_after(format_datetime(now + timedelta(seconds=60))) <= 60
    assert retry_after(format_datetime(now - timedelta(seconds=60))) == 0


async def test_a_completion_takes_at_most_half_of_the_context() -> None:
    fake = FakeServer(always("yes"))
    async with fake.serving() as url, ChatClient(url, model=FAKE_MODEL, context=4096) as client:
        await client.complete(REQUEST._replace(max_tokens=16_384), seconds=5)
        await client.complete(REQUEST, seconds=5)

    assert [request.body["max_tokens"] for request in fake.requests] == [2048, 8]
