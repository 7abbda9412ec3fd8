"""The served process: a thousand clients, SIGTERM, workers that are killed or refuse, a client that does not read."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import psutil
import pytest

from retrieval.folder import MANIFEST, read_manifest
from retrieval.service import SearchService, ServiceSettings
from retrieval.workers import WorkerEngine
from scope_selfplay.base.errors import ConfigError, RecordError, SearchError
from scope_selfplay.base.machine import free_port
from tests.doc_commands import environment

CLIENTS = 1000


class Served:
    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    @property
    def workers(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if "--multiprocessing-fork" in child.cmdline()]

    def memory(self) -> int:
        """Bytes of the server and its workers."""
        return sum(process.memory_info().rss for process in [psutil.Process(self.process.pid), *self.workers])

    async def ready(self) -> None:
        async with asyncio.timeout(120), aiohttp.ClientSession() as session:
            while True:
                with suppress(aiohttp.ClientError):
                    async with session.get(self.url + "/readyz") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.05)


@asynccontextmanager
async def served(folder: Path, *options: str) -> AsyncIterator[Served]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "scope_selfplay.cli",
        "serve-retriever",
        str(folder),
        "--port",
        str(port),
    ]
    process = await asyncio.create_subprocess_exec(*command, *options, env=environment())
    server = Served(process, f"http://127.0.0.1:{port}")
    try:
        await server.ready()
        yield server
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), 120)


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

    async def answered(count: int) -> None:
        while outcome["right"] < count:
            await asyncio.sleep(0.1)

    async with (
        served(index_folder, "--cache", "100") as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        clients = [asyncio.create_task(client(session, server.url, name)) for name in range(CLIENTS)]
        await answered(3 * CLIENTS)
        before = server.memory()
        await answered(8 * CLIENTS)
        after = server.memory()
        server.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(server.process.wait(), 120)
        stop.set()
        await asyncio.gather(*clients)
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

        for round_ in range(6):
            asked = [asyncio.create_task(ask(number)) for number in range(50)]
            if round_ in (1, 3):
                server.workers[0].kill()
            assert await asyncio.gather(*asked) == [f"t{number}" for number in range(50)]
        async with session.get(server.url + "/metrics") as response:
            assert "scope_retriever_worker_restarts 2.0" in await response.text()


@asynccontextmanager
async def who_does_not_read(folder: Path, *options: str) -> AsyncIterator[Served]:
    """A server whose client has 50 MB of response before it of which it reads the first bytes."""
    body = json.dumps({"queries": ["harbour"] * 2500, "topk": 100}).encode()
    head = b"POST /retrieve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with served(folder, *options) as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 10)
        writer.write(head + body)
        assert await reader.readexactly(15) == b"HTTP/1.1 200 OK"
        try:
            yield server
        finally:
            writer.transport.abort()


@pytest.mark.parametrize(("deadline", "insists", "code"), [("20", False, 0), ("600", True, -signal.SIGTERM)])
async def test_a_client_that_does_not_read_keeps_the_server_until_the_deadline_or_another_sigterm(
    index_folder: Path, deadline: str, insists: bool, code: int
) -> None:
    async with who_does_not_read(index_folder, "--deadline", deadline, "--workers", "2") as server:
        workers = server.workers
        server.process.terminate()
        await asyncio.sleep(0.5)
        assert server.process.returncode is None
        async with asyncio.timeout(120):
            # A busy machine takes two signals that come close together for one.
            while insists and server.process.returncode is None:
                server.process.terminate()
                await asyncio.sleep(0.5)
            assert await server.process.wait() == code
        assert psutil.wait_procs(workers, timeout=60)[1] == []


async def test_a_worker_that_refuses_a_batch_stays_and_a_killed_one_is_started_until_the_index_is_whole(
    index_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(index_folder, tmp_path / "index")
    engine = WorkerEngine(folder, 1)
    await engine.start()
    try:
        before = engine.pids()
        with pytest.raises(SearchError):
            await engine.search(["town1"], -1)
        ((hit,),) = await engine.search(["town1"], 1)
        assert (hit.row, engine.pids(), engine.restarts) == (1, before, 0)
        (folder / MANIFEST).rename(tmp_path / MANIFEST)
        os.kill(before[0], signal.SIGKILL)
        asked = asyncio.create_task(engine.search(["town2"], 1))
        await asyncio.sleep(1.5)
        (tmp_path / MANIFEST).rename(folder / MANIFEST)
        ((hit,),) = await asyncio.wait_for(asked, 120)
        assert hit.row == 2
    finally:
        await engine.close()


async def load(index: Path, folder: Path, workers: int, **manifest: object) -> None:
    """A service of an index whose manifest says something else, and fits its files all the same."""
    shutil.copytree(index, folder)
    changed = read_manifest(folder).model_copy(update=manifest)
    (folder / MANIFEST).write_text(changed.model_dump_json())
    await SearchService(ServiceSettings(folder=folder, workers=workers)).load()


async def test_a_damaged_index_and_workers_for_a_gpu_are_the_users_errors(
    index_folder: Path, tmp_path: Path
) -> None:
    # Only who opens the index can tell.
    with pytest.raises(RecordError, match=r"^(?!RecordError).*500 rows, the manifest says 499"):
        await load(index_folder, tmp_path / "index", 2, rows=499)
    with pytest.raises(ConfigError, match=r"--workers 4.*serve the gpu profile with --workers 1"):
        await load(index_folder, tmp_path / "gpu", 4, profile="gpu")
