"""Sampling on several cores: this process and others that it starts each decode a share of the episodes.

Which process samples an episode changes nothing but the time: every sequence draws noise of its own, and with
`deterministic` no draw depends on what shares its batch. The turns of an episode stay in one process, which still
holds the keys and values of those before.

Both ends are this file, and one starts the other, so messages are pickled: plainly, since what multiprocessing makes of
torch's tensors is shared memory. A message to a process is the name of one of its `_Engines`' methods and what that is
called with; an answer is (call, sample, fault), and one without a call says why the process ends. It ends when the
other end of its socket is closed, whatever became of the other process.
"""

import asyncio
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from scope_selfplay.base.errors import InferenceError, ScopeError
from scope_selfplay.base.sampling import Generate, Sample, settle_from_thread
from scope_selfplay.base.values import Key, seed_from
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel

_END_SECONDS = 10.0
_STDERR = 2


class SamplingProcesses:
    """`count` processes beside this one, kept through all stages and policies of a run."""

    def __init__(self, count: int, on_outage: Callable[[InferenceError], None] = lambda fault: None) -> None:
        """They load their libraries while this process goes on. `on_outage` is told when one of them died."""
        self.workers = [SamplingWorker(on_outage) for _ in range(count)]
        self.share = 1 + count
        """Over how many processes sampling is spread, this one included."""
        self._engines = itertools.count()

    def spread(self, local: InProcessModel, options: dict[str, Any]) -> "SpreadModel":
        """`options`: those of InProcessModel for the engines in the other processes."""
        return SpreadModel(local, self.workers, next(self._engines), options)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


class SpreadModel:
    """A `PolicyModel`: the engine of this process, and its like in every worker."""

    def __init__(
        self, local: InProcessModel, workers: list["SamplingWorker"], engine: int, options: dict[str, Any]
    ) -> None:
        self._local, self._workers, self._engine, self._options = local, workers, engine, options
        self._place_of: dict[Key, int] = {}
        self._under_way = [0] * (1 + len(workers))
        self._begun = [0] * (1 + len(workers))
        # What nobody can ask any more takes no memory in the workers.
        for worker in workers:
            weakref.finalize(self, worker.forget, engine).atexit = False
        if local.model is not None:
            self._send_weights()

    @property
    def identity(self) -> str:
        return self._local.identity

    def refresh(self, identity: str) -> None:
        """Take over the weights of the source model as they are now, in all processes. Raises as the engine does."""
        self._local.refresh(identity)
        self._place_of.clear()
        self._send_weights()

    async def generate(self, request: Generate, key: Key) -> Sample:
        if self._local.model is None:
            self.refresh(self.identity)
        place = self._place(key[:-1])
        self._under_way[place] += 1
        try:
            if place == 0:
                return await self._local.generate(request, key)
            sample = await self._workers[place - 1].ask(self._engine, request, seed_from(*key))
        finally:
            self._under_way[place] -= 1
        self._local.on_tokens(len(sample.ids))
        return sample

    def _place(self, episode: Key) -> int:
        """Where the turns of an episode are sampled: a new one where least is under way."""
        if episode not in self._place_of:
            load = list(zip(self._under_way, self._begun, strict=True))
            place = load.index(min(load))
            self._begun[place] += 1
            self._place_of[episode] = place
        return self._place_of[episode]

    def _send_weights(self) -> None:
        model, codec = self._local.model, self._local.codec
        tensors = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
        weights = (type(model), model.config, tensors, codec, self._options)
        for worker in self._workers:
            worker.send("set_weights", self._engine, self.identity, *weights)


class SamplingWorker:
    """This side of one process. Its answers are read in a thread: an event loop here lives for one step alone."""

    def __init__(self, on_outage: Callable[[InferenceError], None]) -> None:
        self._on_outage = on_outage
        self._socket, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main({theirs.fileno()})"],
            stdin=subprocess.DEVNULL,
            # What a library prints there goes where people look, stderr, by its number: sys.stderr may be no file.
            stdout=_STDERR,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._connection = Connection(os.dup(self._socket.fileno()))
        self.pid = self._process.pid
        self._lock = threading.Lock()
        self._calls: dict[int, asyncio.Future[Sample]] = {}
        self._forgotten: deque[int] = deque()
        self._numbers = itertools.count()
        self._fault: InferenceError | None = None
        self._closing = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    async def ask(self, engine: int, request: Generate, seed: int) -> Sample:
        call = next(self._numbers)
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        self._calls[call] = future
        try:
            self.send("ask", call, engine, request, seed)
            return await future
        except asyncio.CancelledError:
            with suppress(InferenceError):
                self.send("cancel", call)
            raise
        finally:
            self._calls.pop(call, None)

    def send(self, *message: Any) -> None:
        """Raises InferenceError where the process is gone."""
        with self._lock:
            if self._fault is not None:
                raise self._fault
            closed = [("close_engine", self._forgotten.popleft()) for _ in range(len(self._forgotten))]
            try:
                for each in (*closed, message):
                    self._connection.send_bytes(pickle.dumps(each))
            except OSError:
                raise self._died("") from None

    def forget(self, engine: int) -> None:
        """Have an engine closed before the next message: garbage is collected anywhere, and no place to write."""
        self._forgotten.append(engine)

    def close(self) -> None:
        self._closing = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reader.join(_END_SECONDS)
        self._socket.close()

    def _read(self) -> None:
        reason = ""
        with suppress(EOFError, OSError):
            while True:
                call, sample, fault = pickle.loads(self._connection.recv_bytes())
                if call is None:
                    reason = fault
                elif call in self._calls:
                    settle_from_thread(self._calls[call], sample or InferenceError(fault))
        self._fault = self._died(reason)
        for future in list(self._calls.values()):
            settle_from_thread(future, self._fault)
        if not self._closing:
            self._on_outage(self._fault)

    def _died(self, reason: str) -> InferenceError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        how = reason or f"exit code {self._process.returncode}"
        return InferenceError(
            f"a process that samples beside this one ended ({how}); run the same command again, with a lower "
            "model.processes where memory is short"
        )


class _Engines:
    """The engines of a process that samples for another one, driven by messages on its event loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._engines: dict[int, InProcessModel] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}

    def take(self, name: str, *given: Any) -> None:
        try:
            getattr(self, name)(*given)
        except Exception as error:  # noqa: BLE001 - the process that asked must know why this one ends
            self._send(None, None, f"{type(error).__name__}: {error}")
            os._exit(1)

    def set_weights(
        self,
        number: int,
        identity: str,
        kind: type,
        config: Any,
        tensors: dict[str, Any],
        codec: ChatCodec,
        options: dict[str, Any],
    ) -> None:
        """`kind`: a class of transformers, made from `config`; `tensors`: its `state_dict`."""
        engine = self._engines.get(number)
        model = kind(config) if engine is None else engine.model
        model.load_state_dict(tensors, assign=True)
        if engine is None:
            engine = InProcessModel(model, codec, identity="", frozen=True, **options)
            self._engines[number] = engine
        engine.refresh(identity)

    def close_engine(self, number: int) -> None:
        self._engines.pop(number, None)

    def ask(self, call: int, engine: int, request: Generate, seed: int) -> None:
        answer = self._answer(call, engine, request, seed)
        self._calls[call] = asyncio.get_running_loop().create_task(answer)

    def cancel(self, call: int) -> None:
        if call in self._calls:
            self._calls[call].cancel()

    async def _answer(self, call: int, engine: int, request: Generate, seed: int) -> None:
        try:
            answer: tuple[Sample | None, str] = await self._engines[engine].sample(request, seed), ""
        except ScopeError as error:
            answer = None, str(error)
        finally:
            del self._calls[call]
        self._send(call, *answer)

    def _send(self, *answer: Any) -> None:
        self._connection.send_bytes(pickle.dumps(answer))


def main(descriptor: int) -> None:
    """What a process that samples for another one does, until the socket with this number is closed."""
    # Ctrl-C reaches the whole process group; the process that asks decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Loaded while the other process loads its own libraries.
    import scope_selfplay.inference.slots  # noqa: F401

    asyncio.run(_serve(Connection(descriptor)))


async def _serve(connection: Connection) -> None:
    loop, engines = asyncio.get_running_loop(), _Engines(connection)

    def read() -> None:
        try:
            while True:
                loop.call_soon_threadsafe(engines.take, *pickle.loads(connection.recv_bytes()))
        finally:
            # Nobody is left to answer to: a forward pass under way is not waited for.
            os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    await asyncio.Event().wait()
