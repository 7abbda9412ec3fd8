"""The server over real HTTP: the field's clients, the peer's bugs, bad input, limits."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from retrieval.build import build_bm25
from retrieval.client import HttpSearcher
from retrieval.passages import Passages
from retrieval.server import serve
from retrieval.service import SearchEngine, SearchService, ServiceSettings
from retrieval.wire import Hit
from scope_selfplay.base.errors import OutsideError
from scope_selfplay.base.values import Document
from scope_selfplay.net.serve import listen

from .conftest import Running

pytestmark = pytest.mark.integration


async def post(
    http: aiohttp.ClientSession, url: str, body: object, **kwargs: Any
) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(url + "/retrieve", data=data, **kwargs) as response:
        return response.status, await response.json()


async def test_a_topk_beyond_the_corpus_gives_each_passage_once(
    running: Running, tmp_path: Path, http: aiohttp.ClientSession, towns: list[Document]
) -> None:
    """The peer repeats the last passage with a score of -3.4e38."""
    build_bm25(towns[:5], tmp_path)
    async with running(tmp_path) as url:
        _, answer = await post(http, url, {"queries": ["harbour"], "topk": 100, "return_scores": True})
    (rows,) = answer["result"]
    assert sorted(row["document"]["id"] for row in rows) == ["t0", "t1", "t2", "t3", "t4"]
    assert all(0 < row["score"] < 100 for row in rows)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"queries": ["x"], "topk": 10**9}, 400),
        ({"queries": ["x" * 10_000_000]}, 413),
        (b"{broken", 400),
    ],
)
async def test_bad_input_is_refused_and_the_server_lives_on(
    running: Running, index_folder: Path, http: aiohttp.ClientSession, body: object, status: int
) -> None:
    async with running(index_folder) as url:
        answered, answer = await post(http, url, body)
        assert answered == status
        assert answer["error"]["message"]
        assert (await post(http, url, {"query": "town7"}))[0] == 200


async def test_a_body_without_a_length_is_cut_off_at_the_limit(
    running: Running, index_folder: Path, http: aiohttp.ClientSession
) -> None:
    async def endless() -> Any:
        for _ in range(200):
            yield b"x" * 100_000

    async with running(index_folder) as url:
        try:
            async with http.post(url + "/retrieve", data=endless()) as response:
                assert response.status == 413
        except aiohttp.ClientError:
            pass  # the server may close before the client has finished sending
        assert (await post(http, url, {"query": "town7"}))[0] == 200


@pytest.mark.parametrize("path", ["/healthz", "/health", "/readyz"])
async def test_probes_answer(
    running: Running, index_folder: Path, http: aiohttp.ClientSession, path: str
) -> None:
    async with running(index_folder) as url, http.get(url + path) as response:
        assert response.status == 200


async def test_a_draining_server_still_answers_but_is_not_ready(
    running: Running, index_folder: Path, http: aiohttp.ClientSession
) -> None:
    service = SearchService(ServiceSettings(folder=index_folder, workers=0))
    async with running(index_folder, service=service) as url:
        service.draining = True
        async with http.get(url + "/readyz") as response:
            assert response.status == 503
        assert (await post(http, url, {"query": "town7"}))[0] == 200


async def test_metrics_count_requests_and_where_answers_came_from(
    running: Running, index_folder: Path, http: aiohttp.ClientSession
) -> None:
    async with running(index_folder) as url:
        await post(http, url, {"queries": ["town1", "town1", "town2"]})
        await post(http, url, {"queries": ["town1"]})
        await post(http, url, {"queries": [""]})
        async with http.get(url + "/metrics") as response:
            lines = set((await response.text()).splitlines())
    assert {
        'scope_retriever_queries_total{answer="remembered"} 1.0',
        'scope_retriever_queries_total{answer="joined"} 1.0',
        'scope_retriever_queries_total{answer="searched"} 2.0',
        'scope_retriever_requests_total{status="200"} 2.0',
        'scope_retriever_requests_total{status="400"} 1.0',
        "scope_retriever_ready 1.0",
    } <= lines


async def test_a_token_guards_everything_but_probes_and_metrics(
    running: Running, index_folder: Path, http: aiohttp.ClientSession
) -> None:
    async with running(index_folder, token="secret") as url:
        assert (await post(http, url, {"query": "town7"}))[0] == 401
        wrong = {"Authorization": "Bearer Secret"}
        assert (await post(http, url, {"query": "town7"}, headers=wrong))[0] == 401
        right = {"Authorization": "Bearer secret"}
        assert (await post(http, url, {"query": "town7"}, headers=right))[0] == 200
        for path, status in (("/info", 401), ("/readyz", 200), ("/metrics", 200)):
            async with http.get(url + path) as response:
                assert response.status == status


@pytest.mark.parametrize("token", ["schlüssel", "ключ-鍵 🔑"])
async def test_client_and_server_agree_on_a_token_beyond_ascii(
    running: Running, index_folder: Path, http: aiohttp.ClientSession, token: str
) -> None:
    """It was never accepted."""
    async with running(index_folder, token=token) as url:
        async with HttpSearcher(url, token=token) as searcher:
            assert (await searcher.search("town7", 1))[0].id == "t7"
        other = {"Authorization": f"Bearer {token}x"}
        assert (await post(http, url, {"query": "town7"}, headers=other))[0] == 401


class Slow:
    """Searches only when it is let go."""

    slots = 1

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked: list[str] = []

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        self.asked += queries
        await self.go.wait()
        return [[Hit(int(query), 1.0)] for query in queries]

    async def close(self) -> None:
        return


class SlowService(SearchService):
    """The service as it is, with an engine that holds its batches."""

    engine: SearchEngine

    async def load(self) -> None:
        await super().load()
        self.batcher.engine = self.engine


async def waiting(service: SearchService, queries: int) -> None:
    while service.batcher.waiting < queries:
        await asyncio.sleep(0.005)


async def test_a_full_queue_answers_429_with_retry_after_and_loses_nothing(
    running: Running, index_folder: Path, http: aiohttp.ClientSession
) -> None:
    """A queue of less than 4,096 was one of 4,096."""
    service = SlowService(ServiceSettings(folder=index_folder, workers=0, queue=4))
    service.engine = Slow()
    async with running(index_folder, service=service) as url:

        async def ask(number: int) -> tuple[int, str | None, Any]:
            async with http.post(url + "/retrieve", json={"query": str(number), "topk": 1}) as response:
                return response.status, response.headers.get("Retry-After"), await response.json()

        asked = [asyncio.create_task(ask(number)) for number in range(20)]
        while sum(task.done() for task in asked) < 15:
            await asyncio.sleep(0.01)
        service.engine.go.set()
        answers = await asyncio.gather(*asked)
    refused = [answer for answer in answers if answer[0] == 429]
    assert len(refused) == 15
    assert all(int(after or 0) >= 1 for _, after, _ in refused)
    for number, (status, _, answer) in enumerate(answers):
        assert status in (200, 429)
        if status == 200:
            assert answer["result"][0][0]["id"] == f"t{number}"


async def test_a_large_request_is_let_in_beside_single_ones_while_the_queue_has_room(
    running: Running, index_folder: Path, http: aiohttp.ClientSession
) -> None:
    """It needed as many free places as it has queries, which steady single queries never left."""
    service = SlowService(ServiceSettings(folder=index_folder, workers=0, queue=4))
    service.engine = Slow()
    async with running(index_folder, service=service) as url:

        def ask(*numbers: int) -> asyncio.Task[tuple[int, dict[str, Any]]]:
            queries = [str(number) for number in numbers]
            return asyncio.create_task(post(http, url, {"queries": queries, "topk": 1}))

        singles = [ask(number) for number in range(4)]
        await waiting(service, 3)
        batch = ask(*range(100, 200))
        await waiting(service, 103)
        assert (await ask(300))[0] == 429
        # What is being searched already takes no place.
        joined = ask(0, 150)
        service.engine.go.set()
        status, answer = await batch
        assert status == 200
        assert [rows[0]["id"] for rows in answer["result"]] == [f"t{n}" for n in range(100, 200)]
        assert [status for status, _ in await asyncio.gather(*singles, joined)] == [200] * 5


async def test_queries_past_their_deadline_or_without_their_client_are_not_searched(
    running: Running, index_folder: Path, http: aiohttp.ClientSession
) -> None:
    service = SlowService(ServiceSettings(folder=index_folder, workers=0, deadline=0.3))
    engine = Slow()
    service.engine = engine
    async with running(index_folder, service=service) as url:

        async def ask(number: int, seconds: float) -> int:
            try:
                return (await post(http, url, {"query": str(number)}, timeout=seconds))[0]
            except TimeoutError:
                return 0

        # The first occupies the engine; the others wait behind it, five of them not for long.
        first = asyncio.create_task(ask(0, 10))
        while not engine.asked:
            await asyncio.sleep(0.01)
        impatient, patient = range(1, 6), range(6, 11)
        late = [ask(number, 0.05) for number in impatient] + [ask(number, 10) for number in patient]
        assert await asyncio.gather(first, *late) == [504] + [0] * 5 + [504] * 5
        assert service.batcher.waiting == 0
        engine.go.set()
        assert (await post(http, url, {"query": "99"}))[0] == 200
        async with http.get(url + "/metrics") as response:
            assert 'scope_retriever_requests_total{status="499"} 5.0' in await response.text()
    assert engine.asked == ["0", "99"]


class Watched:
    """A corpus that counts the passages that are read."""

    def __init__(self, passages: Passages) -> None:
        self.length = passages.length
        self.reads = 0
        self._passages = passages

    def line(self, row: int) -> bytes:
        self.reads += 1
        return self._passages.line(row)


@pytest.mark.parametrize("return_scores", [True, False])
async def test_a_response_beyond_the_limit_is_refused_before_a_passage_is_read(
    running: Running, index_folder: Path, http: aiohttp.ClientSession, return_scores: bool
) -> None:
    """Every passage was read, copied and joined first: 64 queries took 11 GB."""
    service = SearchService(ServiceSettings(folder=index_folder, workers=0, max_response=20_000))
    async with running(index_folder, service=service) as url:
        watched = Watched(service.passages)
        service.passages = watched  # type: ignore[assignment]
        body = {"queries": ["harbour"] * 64, "topk": 100, "return_scores": return_scores}
        status, answer = await post(http, url, body)
        assert (status, watched.reads) == (413, 0)
        assert "ask for fewer queries or a smaller topk" in answer["error"]["message"]
        assert (await post(http, url, {"query": "town7", "return_scores": return_scores}))[0] == 200


class Stuck(Watched):
    """Reads only when it is let go."""

    def __init__(self, passages: Passages) -> None:
        super().__init__(passages)
        self.began, self.go = threading.Event(), threading.Event()

    def line(self, row: int) -> bytes:
        if threading.current_thread() is not threading.main_thread():
            self.began.set()
            self.go.wait(30)
        return super().line(row)


async def test_while_a_large_response_is_rendered_others_are_answered_and_its_deadline_holds(
    running: Running, index_folder: Path, http: aiohttp.ClientSession
) -> None:
    """The event loop stood still, /healthz included, for as long as the rendering took."""
    service = SearchService(ServiceSettings(folder=index_folder, workers=0, deadline=1.0))
    async with running(index_folder, service=service) as url:
        stuck = Stuck(service.passages)
        service.passages = stuck  # type: ignore[assignment]
        body = {"queries": [f"town{n} harbour" for n in range(200)], "topk": 100}
        asked = asyncio.create_task(post(http, url, body))
        assert await asyncio.to_thread(stuck.began.wait, 10)
        async with http.get(url + "/healthz") as response:
            assert response.status == 200
        assert (await post(http, url, {"query": "town7"}))[0] == 200
        assert (await asked)[0] == 504
        before = stuck.reads
        stuck.go.set()
        await asyncio.sleep(0.2)
    assert stuck.reads == before + 1


async def test_a_taken_port_is_outside_trouble_and_no_address_is_named(
    index_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = SearchService(ServiceSettings(folder=index_folder, workers=0))
    with listen("127.0.0.1", 0) as other, pytest.raises(OutsideError, match="is taken"):
        await serve(service, "127.0.0.1", other.getsockname()[1])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("chooses", [True, False])
def test_the_command_answers_at_the_address_that_it_names(index_folder: Path, chooses: bool) -> None:
    with listen("127.0.0.1", 0) as probe:
        port = 0 if chooses else probe.getsockname()[1]
    command = [sys.executable, "-m", "scope_selfplay.cli", "serve-retriever", str(index_folder)]
    server = subprocess.Popen(
        [*command, "--port", str(port), "--workers", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        url = server.stderr.readline().split()[-1]
        assert re.fullmatch(f"http://127.0.0.1:{port or '[1-9][0-9]+'}", url)
        with urllib.request.urlopen(f"{url}/readyz", timeout=30) as response:
            assert response.status == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) in (0, -signal.SIGTERM)
    finally:
        server.kill()
        server.wait()
        assert server.stderr is not None
        server.stderr.close()
