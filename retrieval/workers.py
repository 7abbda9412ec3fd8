"""Search engines: where batches are searched. In a thread of this process, or in worker processes that may die.

Worker processes keep the event loop free, use one core each, and a crash inside a native library costs one batch's
retry instead of the server. Every worker maps the same index files, so they share its memory.

`python -m retrieval.workers FOLDER` is one worker. It exchanges messages over stdin and stdout, a line of JSON each.
Its first message has `ready` after a real query was answered, or `error` and its `kind`, the name of its class. It ends
when its stdin does.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from retrieval.client import open_index
from retrieval.folder import Verify, read_manifest
from retrieval.wire import Hit, Index
from scope_selfplay.base import errors
from scope_selfplay.base.errors import ScopeError, SearchError

LONGEST_MESSAGE = 1 << 28
"""Bytes: of a batch with all of its hits."""
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
        starts = (SearchWorker.start(self._folder) for _ in range(self.slots))
        started = await asyncio.gather(*starts, return_exceptions=True)
        for worker in started:
            if isinstance(worker, SearchWorker):
                self._add(worker)
        for outcome in started:
            if isinstance(outcome, BaseException):
                await self.close()
                raise outcome

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

    def _add(self, worker: "SearchWorker") -> None:
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
                self._add(await SearchWorker.start(self._folder))
                return
            except ScopeError as error:
                print(f"retriever: a worker did not start: {error}", file=sys.stderr)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 30.0)


class WorkerDied(Exception):
    pass


class SearchWorker:
    """The server's side of one worker process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(cls, folder: Path) -> "SearchWorker":
        environment = dict(os.environ, OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "retrieval.workers", str(folder)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            limit=LONGEST_MESSAGE,
        )
        worker = cls(process)
        try:
            first = await asyncio.wait_for(worker._read(), START_SECONDS)
        except (WorkerDied, OSError):
            await worker.close()
            raise SearchError(f"a search worker for {folder} stopped while it started") from None
        if "error" in first:
            await worker.close()
            # Our own classes keep their exit codes; SearchError is for what a library raised.
            kind = getattr(errors, first.get("kind", ""), None)
            if not (isinstance(kind, type) and issubclass(kind, ScopeError)):
                kind = SearchError
            raise kind(first["error"])
        return worker

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Raises WorkerDied when the process is gone or too slow, SearchError when it refuses the batch."""
        message = json.dumps({"queries": list(queries), "topk": topk}).encode() + b"\n"
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(message)
            await self._process.stdin.drain()
            answer = await asyncio.wait_for(self._read(), BATCH_SECONDS)
        except (OSError, TimeoutError) as error:
            raise WorkerDied from error
        if "error" in answer:
            raise SearchError(answer["error"])
        return [[Hit(row, score) for row, score in hits] for hits in answer["hits"]]

    async def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise WorkerDied
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    # Ctrl-C reaches the whole process group; the server decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Own copies of stdin and stdout; what a library prints goes to stderr, not between the messages.
    requests, responses = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        folder = Path(sys.argv[1])
        index = open_index(folder, read_manifest(folder, Verify.SIZES))
        index.search(["a query to load everything that loads late"], 1)
    except Exception as error:  # noqa: BLE001 - the server reports it
        message = str(error) if isinstance(error, ScopeError) else f"{type(error).__name__}: {error}"
        _write(responses, {"error": message, "kind": type(error).__name__})
        return
    _write(responses, {"ready": os.getpid()})
    for line in requests:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = {"hits": index.search(request["queries"], request["topk"])}
        except Exception as error:  # noqa: BLE001 - one bad batch must not end the worker
            answer = {"error": f"{type(error).__name__}: {error}"}
        _write(responses, answer)


def _write(stream: IO[bytes], message: dict[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


if __name__ == "__main__":
    main()
