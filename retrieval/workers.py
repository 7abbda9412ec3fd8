"""Search engines: where batches are searched. In a thread of this process, or in worker processes that may die.

Worker processes keep the event loop free, use one core each, and a crash inside a native library costs one batch's
retry instead of the server. Every worker maps the same index files, so they share its memory.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from retrieval.client import open_index
from retrieval.folder import Verify, read_manifest
from retrieval.wire import Hit, Index
from scope_selfplay.base.errors import ScopeError, SearchError
from scope_selfplay.net.loops import all_of

START_SECONDS = 600.0
BATCH_SECONDS = 60.0


class ThreadEngine:
    """Searches in one thread of this process: BM25, small indexes, and a GPU index, which allows no second one."""

    slots = 1

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = asyncio.Lock()

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        async with self._lock:
            try:
                return await asyncio.to_thread(self._index.search, queries, topk)
            except ScopeError:
                raise
            except Exception as error:  # the wall to the index libraries
                raise SearchError(f"search failed: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        return


class WorkerEngine:
    """`count` processes that each search one batch at a time; a dead one is replaced, its batch tried once more."""

    def __init__(self, folder: Path, count: int) -> None:
        self.slots = count
        self.restarts = 0
        self._folder = folder
        self._idle: asyncio.Queue[SearchWorker] = asyncio.Queue()
        self._workers: set[SearchWorker] = set()
        self._replacing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Raises the worker's own error when one cannot open the index: RecordError for a damaged one."""
        # Of the workers, each of which has one core; this process does not search.
        os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
        await all_of(self._start_one() for _ in range(self.slots))

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        for _ in range(2):
            while not (worker := await self._idle.get()).is_alive:
                self._replace(worker)
            try:
                answers = await worker.search(queries, topk)
            except WorkerDied:
                self._replace(worker)
                continue
            except SearchError:
                # It refused this batch in a whole answer: the worker itself is well.
                self._idle.put_nowait(worker)
                raise
            except BaseException:
                # Cancelled in the middle: its next answer would belong to this batch.
                self._replace(worker)
                raise
            self._idle.put_nowait(worker)
            return answers
        raise SearchError("two search workers died over the same batch")

    async def close(self) -> None:
        self._closed = True
        for task in self._replacing:
            task.cancel()
        await asyncio.gather(*(worker.close() for worker in self._workers))

    @property
    def alive(self) -> int:
        return len(self._workers)

    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    async def _start_one(self) -> None:
        worker = await SearchWorker.start(self._folder)
        self._workers.add(worker)
        self._idle.put_nowait(worker)

    def _replace(self, worker: "SearchWorker") -> None:
        self._workers.discard(worker)
        self.restarts += 1
        task = asyncio.create_task(self._restart(worker))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _restart(self, worker: "SearchWorker") -> None:
        await worker.close()
        pause = 0.5
        while not self._closed:
            try:
                await self._start_one()
                return
            except ScopeError as error:
                print(f"retriever: a worker did not start: {error}", file=sys.stderr)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 30.0)


class WorkerDied(Exception):
    pass


class SearchWorker:
    """The server's side of one worker process."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(folder, theirs), daemon=True, name="search")
        self._process.start()
        theirs.close()

    @classmethod
    async def start(cls, folder: Path) -> "SearchWorker":
        worker = cls(folder)
        try:
            await worker._answer(START_SECONDS)
        except BaseException as error:
            await worker.close()
            if isinstance(error, WorkerDied):
                raise SearchError(f"a search worker for {folder} stopped while it started") from None
            raise
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Raises WorkerDied when the process is gone or too slow, SearchError when it refuses the batch."""
        return await self._answer(BATCH_SECONDS, list(queries), topk)

    async def close(self) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.join)

    async def _answer(self, seconds: float, *asked: object) -> list[list[Hit]]:
        """To what is asked, or to its start. Raises WorkerDied, and what it says that it raised."""

        def answer() -> list[list[Hit]] | ScopeError:
            if asked:
                self._pipe.send(asked)
            if not self._pipe.poll(seconds):
                raise EOFError
            found: list[list[Hit]] | ScopeError = self._pipe.recv()
            return found

        try:
            found = await asyncio.to_thread(answer)
        except (EOFError, OSError) as error:
            raise WorkerDied from error
        if isinstance(found, ScopeError):
            raise found
        return found


def _work(folder: Path, pipe: Connection) -> None:
    """A worker, until the server is gone. Its first answer is to a query of its own, or says why it cannot search."""
    # Ctrl-C reaches the whole process group; the server decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer: list[list[Hit]] | ScopeError
    try:
        index = open_index(folder, read_manifest(folder, Verify.SIZES))
        answer = index.search(["a query to load everything that loads late"], 1)
    except Exception as error:  # noqa: BLE001 - the server reports it
        pipe.send(error if isinstance(error, ScopeError) else SearchError(f"{type(error).__name__}: {error}"))
        return
    with suppress(EOFError, OSError):
        while True:
            pipe.send(answer)
            queries, topk = pipe.recv()
            try:
                answer = index.search(queries, topk)
            except Exception as error:  # noqa: BLE001 - one bad batch must not end the worker
                answer = SearchError(f"{type(error).__name__}: {error}")
