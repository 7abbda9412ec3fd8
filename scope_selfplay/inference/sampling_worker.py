"""A process that samples for the one that started it, and ends with it; and what the two tell each other.

Both ends are the same code, and one started the other, so messages are pickled: plainly, since what multiprocessing
makes of torch's tensors is shared memory. The process ends when the other end of
its socket is closed, whatever became of the other process.
"""

import asyncio
import os
import pickle
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from scope_selfplay.errors import ScopeError
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.protocol import Generate, Sample


class SetWeights(NamedTuple):
    """`kind`: a class of transformers, made from `config`; `tensors`: its `state_dict`; `options`: InProcessModel's."""

    engine: int
    identity: str
    kind: type
    config: Any
    tensors: dict[str, Any]
    codec: ChatCodec
    options: dict[str, Any]


class CloseEngine(NamedTuple):
    engine: int


class Ask(NamedTuple):
    call: int
    engine: int
    request: Generate
    seed: int


class Cancel(NamedTuple):
    call: int


class Sampled(NamedTuple):
    """`fault` where there is no sample; without a call, the process ends by it."""

    call: int | None
    sample: Sample | None = None
    fault: str = ""


class _Engines:
    """The engines of this process, driven by messages on its event loop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._engines: dict[int, InProcessModel] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}

    def take(self, message: Any) -> None:
        try:
            self._take(message)
        except Exception as error:  # noqa: BLE001 - the process that asked must know why this one ends
            self._send(Sampled(None, fault=f"{type(error).__name__}: {error}"))
            os._exit(1)

    def _take(self, message: Any) -> None:
        match message:
            case SetWeights():
                self._set_weights(message)
            case CloseEngine():
                self._engines.pop(message.engine, None)
            case Ask():
                self._calls[message.call] = asyncio.get_running_loop().create_task(self._answer(message))
            case Cancel() if message.call in self._calls:
                self._calls[message.call].cancel()

    def _set_weights(self, given: SetWeights) -> None:
        engine = self._engines.get(given.engine)
        model = given.kind(given.config) if engine is None else engine.model
        model.load_state_dict(given.tensors, assign=True)
        if engine is None:
            engine = InProcessModel(model, given.codec, identity="", frozen=True, **given.options)
            self._engines[given.engine] = engine
        engine.refresh(given.identity)

    async def _answer(self, ask: Ask) -> None:
        try:
            answer = Sampled(ask.call, await self._engines[ask.engine].sample(ask.request, ask.seed))
        except ScopeError as error:
            answer = Sampled(ask.call, fault=str(error))
        finally:
            del self._calls[ask.call]
        self._send(answer)

    def _send(self, answer: Sampled) -> None:
        self._connection.send_bytes(pickle.dumps(answer))


def main(descriptor: int) -> None:
    # Ctrl-C reaches the whole process group; the process that asks decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Loaded while the other process loads its own libraries.
    import scope_selfplay.inference.slot_cache  # noqa: F401

    asyncio.run(_serve(Connection(descriptor)))


async def _serve(connection: Connection) -> None:
    loop, engines = asyncio.get_running_loop(), _Engines(connection)

    def read() -> None:
        try:
            while True:
                loop.call_soon_threadsafe(engines.take, pickle.loads(connection.recv_bytes()))
        finally:
            # Nobody is left to answer to: a forward pass under way is not waited for.
            os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    await asyncio.Event().wait()
