"""The server over real HTTP: the field's clients, the peer's bugs, bad input, limits."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from retrieval.client import HttpSearcher
from retrieval.folder import Passages
from retrieval.service import SearchService, ServiceSettings
from tests.clock import Clock
from tests.unit.retrieval.test_service import HeldEngine

from .conftest import serve_folder

DEADLINE = 200.0
"""Seconds; longer than any machine takes."""


async def post(
    http: aiohttp.ClientSession, url: str, body: object, **kwargs: Any
) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(url + "/retrieve", data=data, **kwargs) as response:
        return response.status, await response.json()


async def test_bad_input_is_refused_and_the_server_lives_on(
    index_folder: Path, http: aiohttp.ClientSession
) -> None:
    async def endless() -> Any:
        for _ in range(200):
            yield b"x" * 100_000

    async with serve_folder(index_folder) as url:
        large = b'{"query": "' + b"x" * 10_000_000 + b'"}'
        bodies = {b'{"queries": ["x"], "topk": 1000000000}': 400, b"{broken": 400, large: 413}
        for body, status in bodies.items():
            answered, answer = await post(http, url, body)
            assert answered == status and answer["error"]["message"]
        try:
            # Without a length it is cut off at the limit.
            async with http.post(url + "/retrieve", data=endless()) as response:
                assert response.status == 413
        except aiohttp.ClientError:
            pass  # the server may close before the client has finished sending
        assert (await post(http, url, {"query": "town7"}))[0] == 200


async def status_of(http: aiohttp.ClientSession, address: str) -> int:
    async with http.get(address) as response:
        return response.status


async def test_a_draining_server_still_answers_but_is_not_ready(
    index_folder: Path, http: aiohttp.ClientSession
) -> None:
    service = SearchService(ServiceSettings(folder=index_folder, workers=0))
    async with serve_folder(index_folder, service=service) as url:
        probes = [f"{url}/{name}" for name in ("healthz", "health", "readyz")]
        assert [await status_of(http, each) for each in probes] == [200] * 3
        service.draining = True
        assert [await status_of(http, each) for each in probes] == [200, 200, 503]
        assert (await post(http, url, {"query": "town7"}))[0] == 200


@pytest.mark.parametrize("token", ["secret", "schlüssel", "ключ-鍵 🔑"])
async def test_a_token_guards_everything_but_probes_and_metrics(
    index_folder: Path, http: aiohttp.ClientSession, token: str
) -> None:
    async with serve_folder(index_folder, token=token) as url:
        async with HttpSearcher(url, token=token) as searcher:
            assert (await searcher.search("town7", 1))[0].id == "t7"
        for headers in ({}, {"Authorization": f"Bearer {token.title()}"}):
            assert (await post(http, url, {"query": "town7"}, headers=headers))[0] == 401
        statuses = [await status_of(http, f"{url}/{name}") for name in ("info", "readyz", "metrics")]
        assert statuses == [401, 200, 200]


class SlowService(SearchService):
    """The service as it is, with an engine that answers a query with its number, and only when it is let go."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(ServiceSettings(folder=folder, workers=0, **settings))
        self.engine = HeldEngine(row=int)

    async def load(self) -> None:
        await super().load()
        self.batcher.engine = self.engine

    async def waits_for(self, queries: int) -> None:
        while self.batcher.waiting < queries or not self.engine.batches:
            await asyncio.sleep(0.005)


async def test_a_large_request_is_let_in_while_the_queue_has_room_and_a_full_one_answers_429(
    index_folder: Path, http: aiohttp.ClientSession
) -> None:
    service = SlowService(index_folder, queue=4)
    async with serve_folder(index_folder, service=service) as url:

        async def ask(*numbers: int) -> tuple[int, str | None, Any]:
            body = {"queries": [str(number) for number in numbers], "topk": 1}
            async with http.post(url + "/retrieve", json=body) as response:
                return response.status, response.headers.get("Retry-After"), await response.json()

        asked = [(number,) for number in range(4)]
        singles = [asyncio.create_task(ask(*numbers)) for numbers in asked]
        await service.waits_for(3)
        large = asyncio.create_task(ask(*range(100, 200)))
        await service.waits_for(103)
        status, after, _ = await ask(300)
        assert (status, int(after or 0) >= 1) == (429, True)
        # What is being searched already takes no place.
        joined = asyncio.create_task(ask(0, 150))
        await asyncio.sleep(0.05)
        service.engine.go.set()
        answers = await asyncio.gather(*singles, large, joined)
    for numbers, (status, _, answer) in zip([*asked, range(100, 200), (0, 150)], answers, strict=True):
        assert status == 200
        assert [rows[0]["id"] for rows in answer["result"]] == [f"t{number}" for number in numbers]


async def test_queries_past_their_deadline_or_without_their_client_are_not_searched(
    index_folder: Path, http: aiohttp.ClientSession, clock: Clock
) -> None:
    service = SlowService(index_folder, deadline=DEADLINE)
    async with serve_folder(index_folder, service=service) as url:

        def ask(number: int) -> asyncio.Task[tuple[int, dict[str, Any]]]:
            return asyncio.create_task(post(http, url, {"query": str(number)}))

        # The first occupies the engine; the others wait behind it, five of them not for long.
        first = ask(0)
        await service.waits_for(0)
        late = [ask(number) for number in range(1, 11)]
        await service.waits_for(10)
        for impatient in late[:5]:
            impatient.cancel()
        while service.batcher.waiting > 5:
            await asyncio.sleep(0.01)
        clock.skip(DEADLINE)
        assert [status for status, _ in await asyncio.gather(first, *late[5:])] == [504] * 6
        assert service.batcher.waiting == 0
        service.engine.go.set()
        assert (await post(http, url, {"query": "99"}))[0] == 200
        async with http.get(url + "/metrics") as response:
            assert 'scope_retriever_requests_total{status="499"} 5.0' in await response.text()
    assert [queries for queries, _ in service.engine.batches] == [["0"], ["99"]]


class Stuck:
    """Reads passages only when it is let go."""

    def __init__(self, passages: Passages) -> None:
        self.length, self._passages = passages.length, passages
        self.began, self.go = threading.Event(), threading.Event()

    def line(self, row: int) -> bytes:
        if threading.current_thread() is not threading.main_thread():
            self.began.set()
            self.go.wait(120)
        return self._passages.line(row)


async def test_while_a_large_response_is_rendered_others_are_answered_and_its_deadline_holds(
    index_folder: Path, http: aiohttp.ClientSession, clock: Clock
) -> None:
    service = SearchService(ServiceSettings(folder=index_folder, workers=0, deadline=DEADLINE))
    async with serve_folder(index_folder, service=service) as url:
        stuck = Stuck(service.passages)
        service.passages = stuck  # type: ignore[assignment]
        body = {"queries": [f"town{n} harbour" for n in range(200)], "topk": 100}
        asked = asyncio.create_task(post(http, url, body))
        assert await asyncio.to_thread(stuck.began.wait, 60)
        async with http.get(url + "/healthz") as response:
            assert response.status == 200
        assert (await post(http, url, {"query": "town7"}))[0] == 200
        clock.skip(DEADLINE)
        assert (await asked)[0] == 504
        stuck.go.set()
