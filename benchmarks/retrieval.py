"""Our retrieval server against the field's baseline design, on one machine in one run: ratios, CPU seconds
first.

    python -m benchmarks.retrieval [--queries 256]

Builds one exhaustive index with one encoder (random weights in the shape of E5-base-v2, so no download is needed) and
serves it with both servers. The clients run in this process and are not counted.
"""

import asyncio
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np
import psutil

from benchmarks.markdown import markdown
from benchmarks.options import read_options

ROOT = Path(__file__).parents[1]
CLIENTS = (1, 16, 64)
PASSAGES = 2000
GROUP = 8
"""Rollouts of one GRPO group, which ask the same first query."""
WORDS = """river town founded bridge king battle island museum language harbour church film novel album railway
    league species mountain castle festival governor treaty dynasty engine painter orchestra glacier senate comet
    alloy""".split()


class Load(NamedTuple):
    """What one run of clients cost the server."""

    clients: int
    cpu_ms: float
    """CPU milliseconds per query, children included."""
    rate: float
    """Queries per second."""
    p50_ms: float
    p99_ms: float


class Measured(NamedTuple):
    name: str
    ready_seconds: float
    rss_mb: float
    loads: dict[int, Load]
    repeated: Load | None
    answers: dict[str, list[tuple[str, float]]]


def main() -> None:
    options = read_options(__doc__, queries=256)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare_servers(Path(folder), options.queries))


async def compare_servers(folder: Path, count: int) -> None:
    model, index = prepare(folder)
    queries = make_queries(count)
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    baseline = [sys.executable, "-m", "benchmarks.baseline_retriever", str(model), str(index)]
    serve = "from retrieval.commands import serve_retriever; serve_retriever()"
    ours = [sys.executable, "-c", serve, str(index), "--workers", "1", "--port"]
    ours_measured = await measure("ours", ours, one_thread, queries)
    tuned = await measure("baseline, one thread", baseline, one_thread, queries)
    shipped = await measure("baseline, as shipped", baseline, {}, queries)
    report(ours_measured, tuned, shipped)


def prepare(folder: Path) -> tuple[Path, Path]:
    """The model's folder and an exhaustive index of made-up passages, vectors drawn instead of encoded."""
    from retrieval.build import SILENT, finish_build, store_passages
    from retrieval.encoder import FAMILIES, MINILM, Backend, encoder_hash, model_folder, prepare_encoder
    from retrieval.folder import ENCODER, IndexKind, IndexManifest
    from scope_selfplay.base.values import Document
    from scope_selfplay.testing.random_encoder import write_random_encoder

    tokenizer = model_folder(MINILM) / "tokenizer.json"
    model = write_random_encoder(folder / "model", np.random.default_rng(1), tokenizer=tokenizer)
    index = folder / "index"
    index.mkdir()
    words = random.Random(2)
    documents = (
        Document(id=str(row), title=f"Article {row}", text=" ".join(words.choices(WORDS, k=100)))
        for row in range(PASSAGES)
    )
    stored = store_passages(documents, index, SILENT)
    prepare_encoder(str(model), FAMILIES["e5"], Backend.ONNX, index / ENCODER)
    vectors = np.random.default_rng(3).standard_normal((PASSAGES, 768), np.float32)
    np.save(index / "vectors.npy", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    manifest = IndexManifest(
        kind=IndexKind.DENSE,
        profile="flat",
        rows=PASSAGES,
        corpus_hash=stored.corpus_hash,
        dimensions=vectors.shape[1],
        encoder_hash=encoder_hash(index / ENCODER),
    )
    finish_build(index, manifest, 0.0)
    return model, index


def make_queries(count: int) -> list[str]:
    words = random.Random(4)
    return [f"which {' '.join(words.choices(WORDS, k=words.randint(6, 14)))} {n}?" for n in range(count)]


async def measure(name: str, command: list[str], environment: dict[str, str], queries: list[str]) -> Measured:
    """Start a server, put the loads on it one after the other, end it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    start = time.perf_counter()
    inherited = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    process = await asyncio.create_subprocess_exec(
        *command, str(port), env={**inherited, "PYTHONPATH": str(ROOT), **environment}, cwd=ROOT
    )
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await answers(session, url, ["is it ready?"])
        ready_seconds = time.perf_counter() - start
        answered = await answers(session, url, queries[:16])
        loads = {}
        for clients in CLIENTS:
            # Fewer queries for the lone client: its rate is far lower. A tag keeps the cache out of it.
            some = queries[: len(queries) // 4] if clients == 1 else queries
            loads[clients] = await put_load(
                process.pid, session, url, [f"{q} {clients}" for q in some], clients
            )
        groups = [f"{query} group" for query in queries for _ in range(GROUP)]
        repeated = await put_load(process.pid, session, url, groups, 64) if name == "ours" else None
    rss = sum(each.memory_info().rss for each in family(process.pid)) / 1e6
    process.terminate()
    await process.wait()
    return Measured(name, ready_seconds, rss, loads, repeated, answered)


async def answers(
    session: aiohttp.ClientSession, url: str, queries: list[str]
) -> dict[str, list[tuple[str, float]]]:
    """Ids and scores per query; waits until the server is up."""
    for _ in range(2400):
        try:
            body = {"queries": queries, "topk": 3, "return_scores": True}
            async with session.post(url + "/retrieve", json=body) as response:
                result = (await response.json())["result"]
            return {
                query: [(row["document"]["id"], row["score"]) for row in rows]
                for query, rows in zip(queries, result, strict=True)
            }
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.05)
    raise SystemExit(f"{url} did not come up within two minutes")


async def put_load(
    pid: int, session: aiohttp.ClientSession, url: str, queries: list[str], clients: int
) -> Load:
    waiting = list(reversed(queries))
    seconds: list[float] = []

    async def client() -> None:
        while waiting:
            body = {"queries": [waiting.pop()], "topk": 3, "return_scores": True}
            begin = time.perf_counter()
            async with session.post(url + "/retrieve", json=body) as response:
                assert response.status == 200, response.status
                await response.read()
            seconds.append(time.perf_counter() - begin)

    cpu, start = cpu_seconds(pid), time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    wall, cpu = time.perf_counter() - start, cpu_seconds(pid) - cpu
    seconds.sort()
    return Load(
        clients=clients,
        cpu_ms=1000 * cpu / len(queries),
        rate=len(queries) / wall,
        p50_ms=1000 * statistics.median(seconds),
        p99_ms=1000 * seconds[int(0.99 * (len(seconds) - 1))],
    )


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    times = [process.cpu_times() for process in family(pid)]
    return sum(each.user + each.system for each in times)


def report(ours: Measured, tuned: Measured, shipped: Measured) -> None:
    rows = [["server", "ready s", "RSS MB", "clients", "CPU ms/q", "q/s", "p50 ms", "p99 ms"]]
    for each in (ours, tuned, shipped):
        loads = [*each.loads.values(), *([each.repeated] if each.repeated else [])]
        for load in loads:
            name = f"{each.name}, groups of {GROUP}" if load is each.repeated else each.name
            clients, *figures = load
            row = [f"{each.ready_seconds:.1f}", f"{each.rss_mb:.0f}", str(clients)]
            rows.append([name, *row, *(f"{figure:.1f}" for figure in figures)])
    print(
        markdown(rows),
        markdown([["goal", "measured", "wanted", "met"], *goals(ours, tuned, shipped)]),
        sep="\n\n",
    )


def goals(ours: Measured, tuned: Measured, shipped: Measured) -> Iterator[list[str]]:
    busy, alone, one = ours.loads[64], ours.loads[1], tuned.loads[1]
    cached = ours.repeated.rate / busy.rate if ours.repeated else 0.0
    cost = "CPU per query, baseline ({}) / ours, 64 clients"
    for name, value, least in (
        (cost.format("one thread"), tuned.loads[64].cpu_ms / busy.cpu_ms, 2.5),
        (cost.format("as shipped"), shipped.loads[64].cpu_ms / busy.cpu_ms, 4.0),
        ("repeated queries, cached rate / uncached rate", cached, 4.0),
    ):
        yield [name, f"{value:.3g}", f">= {least:g}", "yes" if value >= least else "no"]
    for name, value, most in (
        ("p50 of one client, ours / baseline (one thread)", alone.p50_ms / one.p50_ms, 1.0),
        ("seconds to ready, ours / baseline", ours.ready_seconds / tuned.ready_seconds, 0.25),
        ("RSS, ours / baseline", ours.rss_mb / tuned.rss_mb, 0.7),
        ("largest score difference for equal ids", differences(ours, tuned), 1e-5),
    ):
        yield [name, f"{value:.3g}", f"<= {most:g}", "yes" if value <= most else "no"]


def differences(ours: Measured, theirs: Measured) -> float:
    """Largest difference of two scores; infinite when the ids differ."""
    largest = 0.0
    for query, rows in ours.answers.items():
        for (our_id, our_score), (their_id, their_score) in zip(rows, theirs.answers[query], strict=True):
            largest = max(largest, abs(our_score - their_score) if our_id == their_id else float("inf"))
    return largest


if __name__ == "__main__":
    main()
