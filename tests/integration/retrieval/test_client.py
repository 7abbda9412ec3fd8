"""The client against our server and against servers that misbehave in every way we know."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from retrieval.client import HttpSearcher
from scope_selfplay.base.errors import RunMismatchError, SearchError
from scope_selfplay.net.client import RetryPolicy

from .conftest import Running, serve_app

pytestmark = pytest.mark.integration

HASTY = RetryPolicy(deadline=3.0, attempt=0.3, attempts=4, first_pause=0.01, longest_pause=0.05)
GOOD = {"result": [[{"document": {"id": "a", "contents": '"T"\ntext'}, "score": 1.5}]]}


@pytest.mark.fault(6)
async def test_the_handshake_refuses_another_index(running: Running, index_folder: Path) -> None:
    async with running(index_folder) as url:
        async with HttpSearcher(url) as searcher:
            identity = searcher.identity
        async with HttpSearcher(url, expected_identity=identity):
            pass
        with pytest.raises(RunMismatchError, match="this run was made with other"):
            async with HttpSearcher(url, expected_identity="other"):
                pass


class Peer:
    """A server whose /retrieve answers are scripted; the last one repeats."""

    def __init__(self, *answers: Callable[[], Awaitable[Response]], info: object = None) -> None:
        self.calls = 0
        self.times: list[float] = []
        self._answers = answers
        self._info = {"identity": "x"} if info is None else info

    def app(self) -> Starlette:
        return Starlette(
            routes=[Route("/info", self.info), Route("/retrieve", self.retrieve, methods=["POST"])]
        )

    async def info(self, request: Request) -> Response:
        return Response(json.dumps(self._info), media_type="application/json")

    async def retrieve(self, request: Request) -> Response:
        self.calls += 1
        self.times.append(asyncio.get_running_loop().time())
        return await self._answers[min(self.calls, len(self._answers)) - 1]()


def gives(body: object, status: int = 200, **headers: str) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Response(
            data, status, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )

    return answer


async def hangs() -> Response:
    await asyncio.sleep(2)
    return Response(b"{}")


async def drips() -> Response:
    async def parts() -> object:
        for _ in range(100):
            yield b" "
            await asyncio.sleep(0.05)

    return StreamingResponse(parts())  # type: ignore[arg-type]


async def half_a_body() -> Response:
    return Response(b'{"result": [[', headers={"Content-Length": "13"})


@pytest.mark.fault(5)
@pytest.mark.parametrize(
    "fault",
    [
        gives({"error": "x"}, 500),
        gives({}, 503),
        gives({}, 429),
        half_a_body,
        hangs,
        drips,
        gives(b"\0garbage"),
    ],
)
async def test_a_passing_fault_is_retried_and_nothing_is_lost(
    fault: Callable[[], Awaitable[Response]],
) -> None:
    peer = Peer(fault, fault, gives(GOOD))
    async with serve_app(peer.app()) as url, HttpSearcher(url, retry_policy=HASTY) as searcher:
        (passage,) = await searcher.search("q", 3)
    assert (passage.id, passage.title, passage.text, passage.score) == ("a", "T", "text", 1.5)
    assert peer.calls == 3


@pytest.mark.fault(5)
@pytest.mark.parametrize("fault", [gives({}, 500), half_a_body, hangs])
async def test_a_lasting_fault_is_a_search_error_after_bounded_attempts(
    fault: Callable[[], Awaitable[Response]],
) -> None:
    peer = Peer(fault)
    async with serve_app(peer.app()) as url, HttpSearcher(url, retry_policy=HASTY) as searcher:
        with pytest.raises(SearchError, match="gave up after 4 attempts"):
            await searcher.search("q", 3)
    assert peer.calls == 4


async def test_retry_after_is_honoured() -> None:
    peer = Peer(gives({}, 429, Retry_After="1"), gives(GOOD))
    async with serve_app(peer.app()) as url, HttpSearcher(url, retry_policy=HASTY) as searcher:
        await searcher.search("q", 3)
    assert peer.times[1] - peer.times[0] >= 0.95


async def test_a_retry_after_beyond_the_deadline_ends_the_search_at_once() -> None:
    peer = Peer(gives({}, 429, Retry_After="3600"))
    async with serve_app(peer.app()) as url, HttpSearcher(url, retry_policy=HASTY) as searcher:
        with pytest.raises(SearchError, match="gave up after 1 attempts"):
            await asyncio.wait_for(searcher.search("q", 3), 1)


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
    async with serve_app(peer.app()) as url, HttpSearcher(url, retry_policy=HASTY) as searcher:
        with pytest.raises(SearchError):
            await searcher.search("q", 3)
    assert peer.calls == 1


@pytest.mark.fault(6)
async def test_an_index_that_changes_after_the_handshake_is_noticed() -> None:
    peer = Peer(gives(GOOD, X_Scope_Index="another"))
    async with serve_app(peer.app()) as url, HttpSearcher(url, retry_policy=HASTY) as searcher:
        with pytest.raises(RunMismatchError, match="now serves another"):
            await searcher.search("q", 3)


@pytest.mark.fault(6)
async def test_a_server_that_is_not_a_retriever_is_refused_at_the_handshake() -> None:
    async with serve_app(Peer(gives(GOOD), info={"hello": 1}).app()) as url:
        with pytest.raises(RunMismatchError, match="names no index"):
            async with HttpSearcher(url, retry_policy=HASTY):
                pass


@pytest.mark.fault(5)
async def test_a_retriever_that_is_down_for_a_while_costs_time_and_no_search(
    running: Running, index_folder: Path
) -> None:
    retry_policy = RetryPolicy(deadline=20.0, attempt=5.0, attempts=50, first_pause=0.05, longest_pause=0.2)
    async with running(index_folder) as url:
        searcher = HttpSearcher(url, retry_policy=retry_policy)
        await searcher.__aenter__()
    searches = [asyncio.create_task(searcher.search(f"town{n}", 1)) for n in range(30)]
    await asyncio.sleep(1.0)
    assert not any(search.done() for search in searches)
    port = int(url.rsplit(":", 1)[1])
    async with running(index_folder, port=port):
        found = await asyncio.gather(*searches)
    assert [passages[0].id for passages in found] == [f"t{n}" for n in range(30)]
    await searcher.__aexit__(None, None, None)
    print("searches during an outage: 30 injected, 30 answered, 0 empty")


async def test_the_field_s_full_endpoint_url_is_accepted(running: Running, index_folder: Path) -> None:
    async with running(index_folder) as url, HttpSearcher(f"{url}/retrieve/") as searcher:
        assert (await searcher.search("town7", 1))[0].id == "t7"
