"""Our retrieval server against the field's baseline design, on one machine in one run.

    python -m benchmarks.retrieval [--queries 256]

Builds one exhaustive index with one encoder (random weights in the shape of E5-base-v2, so no download is needed) and
serves it with both servers. The clients run in this process and are not counted.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np
import psutil

from benchmarks.markdown import markdown
from benchmarks.options import read_options
from benchmarks.scope_command import ROOT
from retrieval.build import SILENT, finish_build, store_passages
from retrieval.encoder import FAMILIES, MINILM, Backend, encoder_hash, model_folder, prepare_encoder
from retrieval.folder import ENCODER, IndexKind, IndexManifest
from scope_selfplay.base.machine import free_port
from scope_selfplay.base.values import Document
from scope_selfplay.testing.random_encoder import write_random_encoder

CLIENTS = 64
PASSAGES = 2000
WORDS = """river town founded bridge king battle island museum language harbour church film novel album railway
    league species mountain castle festival governor treaty dynasty engine painter orchestra glacier senate comet
    alloy""".split()
Rows = list[tuple[str, float]]


class Measured(NamedTuple):
    """`cpu_ms`: CPU milliseconds per query, children included; `answers`: ids and scores per query."""

    cpu_ms: float
    ready_seconds: float
    rss_mb: float
    answers: list[Rows]


def main() -> None:
    options = read_options(__doc__, queries=256)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare_servers(Path(folder), options.queries))


async def compare_servers(folder: Path, count: int) -> None:
    model, index = prepare(folder)
    words = random.Random(4)
    queries = [f"which {' '.join(words.choices(WORDS, k=words.randint(6, 14)))} {n}?" for n in range(count)]
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    baseline = ["-m", "benchmarks.baseline_retriever", str(model), str(index)]
    serve = "from retrieval.commands import serve_retriever; serve_retriever()"
    ours = await measure(["-c", serve, str(index), "--workers", "1", "--port"], one_thread, queries)
    tuned = await measure(baseline, one_thread, queries)
    shipped = await measure(baseline, {}, queries)
    rows = [["server", f"CPU ms per query, {CLIENTS} clients", "seconds to ready", "RSS MB"]]
    for name, each in (("ours", ours), ("baseline, one thread", tuned), ("baseline, as shipped", shipped)):
        rows.append([name, *(f"{value:.1f}" for value in each[:3])])
    print(markdown(rows))
    print(f"\nscores for equal ids differ by at most {largest_difference(ours, tuned):.2g}")


def prepare(folder: Path) -> tuple[Path, Path]:
    """The model's folder and an exhaustive index of made-up passages, vectors drawn instead of encoded."""
    tokenizer = model_folder(MINILM) / "tokenizer.json"
    model = write_random_encoder(folder / "model", tokenizer=tokenizer)
    index = folder / "index"
    index.mkdir()
    words = random.Random(2)
    texts = [" ".join(words.choices(WORDS, k=100)) for _ in range(PASSAGES)]
    documents = (Document(id=str(row), title=f"Article {row}", text=text) for row, text in enumerate(texts))
    store_passages(documents, index, SILENT)
    prepare_encoder(str(model), FAMILIES["e5"], Backend.ONNX, index / ENCODER)
    vectors = np.random.default_rng(3).standard_normal((PASSAGES, 768), np.float32)
    np.save(index / "vectors.npy", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    manifest = IndexManifest(
        kind=IndexKind.DENSE,
        profile="flat",
        rows=PASSAGES,
        dimensions=vectors.shape[1],
        encoder_hash=encoder_hash(index / ENCODER),
    )
    finish_build(index, manifest, 0.0)
    return model, index


async def measure(command: list[str], environment: dict[str, str], queries: list[str]) -> Measured:
    """Starts a server, puts the load on it, and ends it."""
    port, begun = free_port(), time.perf_counter()
    inherited = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command, str(port)), env={**inherited, "PYTHONPATH": str(ROOT), **environment}
    )
    server = psutil.Process(process.pid)
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        while True:
            try:
                await _ask(session, ["is it ready?"])
                break
            except aiohttp.ClientConnectionError:
                if time.perf_counter() > begun + 120:
                    raise SystemExit(f"{command} did not come up within two minutes") from None
                await asyncio.sleep(0.05)
        ready, answers = time.perf_counter() - begun, await _ask(session, queries[:16])
        # A tag keeps the cache out of it.
        cost = await put_load(server, session, [f"{query} once" for query in queries])
    rss = sum(each.memory_info().rss for each in (server, *server.children(recursive=True))) / 1e6
    process.terminate()
    await process.wait()
    return Measured(cost, ready, rss, answers)


async def _ask(session: aiohttp.ClientSession, queries: list[str]) -> list[Rows]:
    body = {"queries": queries, "topk": 3, "return_scores": True}
    async with session.post("/retrieve", json=body, raise_for_status=True) as response:
        found = (await response.json())["result"]
    return [[(row["document"]["id"], row["score"]) for row in rows] for rows in found]


async def put_load(server: psutil.Process, session: aiohttp.ClientSession, queries: list[str]) -> float:
    """The CPU milliseconds of a query."""
    waiting, before = list(reversed(queries)), cpu_seconds(server)

    async def client() -> None:
        while waiting:
            await _ask(session, [waiting.pop()])

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return 1000 * (cpu_seconds(server) - before) / len(queries)


def cpu_seconds(server: psutil.Process) -> float:
    times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def largest_difference(ours: Measured, theirs: Measured) -> float:
    """Of two scores; infinite when the ids differ."""
    pairs = zip(*(chain.from_iterable(each.answers) for each in (ours, theirs)), strict=True)
    return max(abs(mine[1] - other[1]) if mine[0] == other[0] else float("inf") for mine, other in pairs)


if __name__ == "__main__":
    main()
