"""The client against our server and against servers that misbehave in every way we know."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from retrieval.client import HttpSearcher
from scope_selfplay.base.errors import RunMismatchError, SearchError
from scope_selfplay.net.client import RetryPolicy
from tests.clock import Clock

from .conftest import serve_app, serve_folder

Answer = Callable[["Peer"], Awaitable[Response]]
POLICY = RetryPolicy(deadline=600.0, attempt=60.0, attempts=4, first_pause=0.01, longest_pause=0.05)
GOOD = {"result": [[{"document": {"id": "a", "contents": '"T"\ntext'}, "score": 1.5}]]}


@pytest.mark.fault(6)
async def test_the_handshake_refuses_another_index_and_takes_the_fields_full_endpoint(
    index_folder: Path,
) -> None:
    async with serve_folder(index_folder) as url:
        async with HttpSearcher(f"{url}/retrieve/") as searcher:
            assert (await searcher.search("town7", 1))[0].id == "t7"
        async with HttpSearcher(url, expected_identity=searcher.identity):
            pass
        with pytest.raises(RunMismatchError, match="this run was made with other"):
            async with HttpSearcher(url, expected_identity="other"):
                pass


class Peer:
    """A server whose /retrieve answers are scripted; the last one repeats."""

    def __init__(self, *answers: Answer, info: object = None, clock: Clock | None = None) -> None:
        self.asked_times, self.clock = 0, clock or Clock()
        self._answers = answers
        self._info = {"identity": "x"} if info is None else info

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[HttpSearcher]:
        routes = [Route("/info", self._inform), Route("/retrieve", self._retrieve, methods=["POST"])]
        async with (
            serve_app(Starlette(routes=routes)) as url,
            HttpSearcher(url, retry_policy=POLICY) as searcher,
        ):
            yield searcher

    async def _inform(self, request: Request) -> Response:
        return Response(json.dumps(self._info), media_type="application/json")

    async def _retrieve(self, request: Request) -> Response:
        self.asked_times += 1
        return await self._answers[min(self.asked_times, len(self._answers)) - 1](self)


def gives(body: object, status: int = 200, **headers: str) -> Answer:
    async def answer(peer: Peer) -> Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Response(
            data, status, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )

    return answer


async def hangs(peer: Peer) -> Response:
    peer.clock.skip(POLICY.attempt)
    await asyncio.sleep(1)
    return Response(b"{}")


async def drips(peer: Peer) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for part in range(100):
            yield b" "
            await asyncio.sleep(0.05)
            if part == 3:
                peer.clock.skip(POLICY.attempt)

    return StreamingResponse(parts())


async def half_a_body(peer: Peer) -> Response:
    return Response(b'{"result": [[', headers={"Content-Length": "13"})


FAULTS = [
    gives({"error": "x"}, 500),
    gives({}, 503),
    gives({}, 429),
    half_a_body,
    hangs,
    drips,
    gives(b"\0garbage"),
]


@pytest.mark.fault(5)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_passing_fault_is_retried_and_nothing_is_lost(fault: Answer, clock: Clock) -> None:
    peer = Peer(fault, fault, gives(GOOD), clock=clock)
    async with peer.asked() as searcher:
        (passage,) = await searcher.search("q", 3)
    assert (passage.id, passage.title, passage.text, passage.score) == ("a", "T", "text", 1.5)
    assert peer.asked_times == 3


@pytest.mark.fault(6)
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"result": []},
        {"result": [[], []]},
        {"result": [[{"document": {"id": "a"}, "score": 1}]]},
        {"result": [[{"document": {"id": "a", "contents": 7}, "score": 1}]]},
        {"result": [[{"document": {"id": "a", "contents": "x"}, "score": "high"}]]},
        {"result": [GOOD["result"][0] * 4]},
    ],
)
async def test_a_response_of_another_shape_is_an_error_and_never_empty(body: object) -> None:
    peer = Peer(gives(body))
    async with peer.asked() as searcher:
        with pytest.raises(SearchError):
            await searcher.search("q", 3)
    assert peer.asked_times == 1


@pytest.mark.fault(6)
async def test_an_index_that_changes_after_the_handshake_and_a_server_without_one_are_noticed() -> None:
    async with Peer(gives(GOOD, X_Scope_Index="another")).asked() as searcher:
        with pytest.raises(RunMismatchError, match="now serves another"):
            await searcher.search("q", 3)
    with pytest.raises(RunMismatchError, match="names no index"):
        async with Peer(gives(GOOD), info={"hello": 1}).asked():
            pass
