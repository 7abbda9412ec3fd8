"""The served process under load: a thousand clients, SIGTERM in the middle, killed workers, a taken port."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.ports import free_port

pytestmark = pytest.mark.integration

CLIENTS = 1000
COMMAND = "from retrieval.commands import serve_retriever; serve_retriever()"


class Served:
    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    @property
    def workers(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if "retrieval.workers" in child.cmdline()]

    def memory(self) -> int:
        """Bytes of the server and its workers."""
        return sum(process.memory_info().rss for process in [psutil.Process(self.process.pid), *self.workers])


@asynccontextmanager
async def served(folder: Path, *options: str) -> AsyncIterator[Served]:
    port = free_port()
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[3]))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", COMMAND, str(folder), "--port", str(port), *options), env=environment
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await ready(url)
        yield Served(process, url)
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 30)


async def ready(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(600):
            try:
                async with session.get(url + "/readyz") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
    raise AssertionError("the server did not become ready in 30 s")


async def test_a_thousand_clients_and_a_sigterm_mix_and_lose_nothing(index_folder: Path) -> None:
    outcome: Counter[str] = Counter()
    stop = asyncio.Event()

    async def client(session: aiohttp.ClientSession, url: str, name: int) -> None:
        number = name
        while not stop.is_set():
            number = (number * 31 + 7) % 500
            body = {"queries": [f"town{number}"], "topk": 3, "return_scores": True}
            try:
                async with session.post(url + "/retrieve", json=body) as response:
                    status, text = response.status, await response.text()
            except (aiohttp.ClientError, ConnectionError):
                outcome["refused"] += 1
                return
            if status != 200:
                outcome[str(status)] += 1
                continue
            (rows,) = json.loads(text)["result"]
            assert rows[0]["document"]["id"] == f"t{number}"
            outcome["right"] += 1

    async with (
        served(index_folder, "--cache", "100") as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        clients = [asyncio.create_task(client(session, server.url, name)) for name in range(CLIENTS)]
        while outcome["right"] < 3 * CLIENTS:
            await asyncio.sleep(0.1)
        before = server.memory()
        while outcome["right"] < 8 * CLIENTS:
            await asyncio.sleep(0.1)
        after = server.memory()
        server.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(server.process.wait(), 30)
        stop.set()
        await asyncio.gather(*clients)
    print(f"soak: {dict(outcome)}, memory {before / 1e6:.0f} -> {after / 1e6:.0f} MB")
    assert server.process.returncode == 0
    assert set(outcome) <= {"right", "refused", "429"}
    assert outcome["refused"] <= CLIENTS
    assert after < before * 1.1


async def test_a_killed_worker_costs_no_answer(index_folder: Path) -> None:
    async with (
        served(index_folder, "--workers", "2", "--cache", "0") as server,
        aiohttp.ClientSession() as session,
    ):

        async def ask(number: int) -> str:
            async with session.post(server.url + "/retrieve", json={"query": f"town{number}"}) as response:
                return str((await response.json())["result"][0][0]["id"])

        answers = []
        for round_ in range(6):
            asked = [asyncio.create_task(ask(number)) for number in range(50)]
            if round_ in (1, 3):
                server.workers[0].kill()
            answers += await asyncio.gather(*asked)
        async with session.get(server.url + "/metrics") as response:
            metrics = await response.text()
    assert answers == [f"t{number}" for number in range(50)] * 6
    assert "scope_retriever_worker_restarts 2.0" in metrics
    print("killed workers: 2 injected, 300 of 300 searches answered")


@asynccontextmanager
async def one_who_does_not_read(url: str) -> AsyncIterator[None]:
    """A client with 60 MB of response before it of which it reads the first bytes."""
    queries = [f"harbour town{number}" for number in range(2500)]
    body = json.dumps({"queries": queries, "topk": 100}).encode()
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 10)
    writer.write(
        b"POST /retrieve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    assert await reader.readexactly(15) == b"HTTP/1.1 200 OK"
    try:
        yield
    finally:
        writer.transport.abort()


async def test_after_the_deadline_a_client_that_does_not_read_does_not_keep_the_server(
    index_folder: Path,
) -> None:
    """SIGTERM never ended the server."""
    async with (
        served(index_folder, "--deadline", "10", "--workers", "2") as server,
        one_who_does_not_read(server.url),
    ):
        workers = server.workers
        server.process.terminate()
        assert await asyncio.wait_for(server.process.wait(), 40) == 0
        assert psutil.wait_procs(workers, timeout=10)[1] == []


async def test_a_second_sigterm_ends_the_server_at_once(index_folder: Path) -> None:
    async with served(index_folder, "--deadline", "600") as server, one_who_does_not_read(server.url):
        workers = server.workers
        server.process.terminate()
        await asyncio.sleep(0.5)
        assert server.process.returncode is None
        server.process.terminate()
        assert await asyncio.wait_for(server.process.wait(), 20) == -signal.SIGTERM
        assert psutil.wait_procs(workers, timeout=10)[1] == []
