"""The processes (ranks) of one training: how they stay in step, and how the end of one reaches the others.

What ranks tell each other goes over the store at which they met, a table of values by name that no GPU is needed for:

    agree(what, own)     every rank's value, by rank: what follows depends on this table alone
    leader(what, work)   what the first rank's work returned
    gather, once         the same from the event loop in which rollouts are made and judged

A rank that fails posts its fault there. A thread of every other rank sees it within a fraction of a second, interrupts
what it can, and ends the process where that was not enough, as in a collective call whose peers are gone. SIGTERM takes
the same way, but the step at which all ranks stop is part of the table. Hard deaths are the launcher's (`launch`).
"""

import asyncio
import atexit
import os
import pickle
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, Self, TypeVar

from scope_selfplay.base.errors import ExitCode, OutsideError, ScopeError, machine_fault
from scope_selfplay.base.terminal import HeldSigterm
from scope_selfplay.base.text import one_line

T = TypeVar("T")

WAIT_SECONDS = 7200.0
"""One rank may wait this long for another's rollouts and judgements."""
ENDING_SECONDS = 5.0
"""From a fault or SIGTERM to the end of a process that did not come to an end by itself."""
_MEETING = timedelta(minutes=10)
_POLL, _LONGEST_POLL = 0.001, 0.05
_WATCH_SECONDS = 0.2
_LEAVING_SECONDS = 2.0
_ENDING = b"SIGTERM: ending; steps that are complete are saved; the same command goes on from the newest checkpoint\n"
_NOBODY = -1


class RankFault(NamedTuple):
    """Which rank failed, and with what exit code; nobody's is that of a rank that died hard."""

    rank: int
    code: int

    @classmethod
    def of(cls, rank: int, error: BaseException) -> "RankFault":
        """With the code that a command ends with (`terminal.run_command`)."""
        known = error if isinstance(error, ScopeError) else machine_fault(error)
        if isinstance(error, SystemExit):
            return cls(rank, error.code if isinstance(error.code, int) else ExitCode.BUG)
        if isinstance(error, RuntimeError) and "gloo/transport" in str(error):
            # A collective call whose peer is gone.
            return cls(_NOBODY, ExitCode.BUG)
        code = ExitCode.INTERRUPTED if isinstance(error, KeyboardInterrupt) else ExitCode.BUG
        return cls(rank, known.exit_code if known else code)


class PeerEnded(SystemExit):
    """Ends this rank without a word of its own, with the exit code of the one that failed."""


class Ranks:
    """This process among those that a launcher started for one training.

    `with ranks:` is around everything that they do together; it may be entered again, by all of them. While a complete
    step is saved (`completing`), SIGTERM waits.
    """

    def __init__(self, number: int = 0, processes: int = 1) -> None:
        self.number = number
        self.processes = processes
        self.stopping = False
        """Whether SIGTERM had come to any rank when they last agreed."""
        self.interrupt: Callable[[], None] = lambda: None
        """Called from another thread when all ranks are about to end."""
        self.files_group: Any = None
        """The process group in which torch's distributed checkpoints are planned; None for one process."""
        self._board: _Board | None = None
        self._entered = 0
        self._begin()

    def _begin(self) -> None:
        self._told_to_stop = self._completing = self._leaving = False
        self._fault: RankFault | None = None
        self._counts: dict[str, int] = {}

    @property
    def leads(self) -> bool:
        """Whether this rank writes what all share."""
        return self.number == 0

    @property
    def ending(self) -> bool:
        """Whether SIGTERM or a fault has come to any rank, as far as this one knows."""
        return self._told_to_stop or self._fault is not None

    def __enter__(self) -> Self:
        self._entered += 1
        self._begin()
        self._over, self._signals = threading.Event(), HeldSigterm()
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()
        if self.processes > 1 and self._board is None:
            self._board, self.files_group = _met(self.number, self.processes)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                # The first rank may have more to do, and fail.
                self.agree("end", None, completing=True)
                if self.stopping:
                    raise SystemExit(int(ExitCode.TERMINATED))
        except BaseException as late:
            self._end(late)
            raise
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Tells the others why, and waits until they know. Raises PeerEnded where another rank has failed before this
        one, which most often only missed it then.
        """
        self._leaving, first = True, None
        # A second Ctrl-C ends nothing sooner.
        with suppress(KeyboardInterrupt):
            if (board := self._board) is not None:
                if error is not None:
                    own = RankFault.of(self.number, error)
                    first = board.first(self._named("fault"), own) or self._of_gone()
                # The store is the first rank's: it stays until the others need it no more.
                until = time.monotonic() + ENDING_SECONDS + 2 * _WATCH_SECONDS
                gone = board.count(self._named("gone"), 1)
                while self.leads and gone < self.processes and time.monotonic() < until:
                    time.sleep(_LONGEST_POLL)
                    gone = board.count(self._named("gone"), 0)
        self._over.set()
        self._signals.release()
        # A thread that comes back from the store while Python ends aborts the process.
        self._watcher.join(_LEAVING_SECONDS)
        if first is not None and first.rank != self.number:
            raise PeerEnded(int(first.code)) from error

    def agree(
        self, what: str, own: T, *, completing: bool = False, unless: Future[Any] | None = None
    ) -> list[T]:
        """What every rank gave, by rank; all come here, for the same thing, `unless` work of this one fails meanwhile.

        Ends all ranks with 143 where SIGTERM has come to one, unless they are `completing` a step: `stopping` is then
        the same on all of them. Raises PeerEnded where one has failed, OutsideError where one does not come.
        """
        self._completing = completing
        waiting = self._waiting("loop", what, (own, self._told_to_stop))
        pause = _POLL
        while (table := next(waiting)) is None:
            if unless is not None and unless.done():
                unless.result()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL)
        self.stopping = any(stopping for _, stopping in table)
        if self.stopping and not completing:
            raise SystemExit(int(ExitCode.TERMINATED))
        return [value for value, _ in table]

    def leader(self, what: str, work: Callable[[], T], *, completing: bool = False) -> T:
        """What the `work` of rank 0 returned, on all of them; its error ends all."""
        self._completing = completing
        agreed: list[Any] = self.agree(what, work() if self.leads else None, completing=completing)
        return agreed[0]  # type: ignore[no-any-return]

    async def gather(self, what: str, own: T) -> list[T]:
        """`agree` among the rollouts of a step, which all ranks call in the same order."""
        waiting = self._waiting("rollouts", what, own)
        return await self._awaited(lambda: next(waiting))

    async def once(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """What the first rank to ask for `name` makes, on every rank that asks."""
        board, value = self._board, self._named(f"value/{name}")
        if board is None:
            return await make()
        if board.first(self._named(f"claim/{name}"), self.number) == self.number:
            made = await make()
            board.post(value, made)
            return made
        found: list[T] = await self._awaited(lambda: self._read([value]))
        return found[0]

    async def _awaited(self, look: Callable[[], T | None]) -> T:
        try:
            while (found := look()) is None:
                await asyncio.sleep(_LONGEST_POLL)
        except PeerEnded as error:
            # As if the rollouts were cancelled already: who waits for them finds out why.
            raise asyncio.CancelledError from error
        return found

    def add_up(self, gradients: Sequence[Any]) -> None:
        """Sums each tensor over all ranks, in place: gradients of ranks that hold whole weights."""
        if self.processes > 1:
            import torch

            for gradient in gradients:
                torch.distributed.all_reduce(gradient)

    def _waiting(self, stream: str, what: str, own: Any) -> Iterator[list[Any] | None]:
        """None until every rank has given its part of the next table of this stream."""
        number = self._counts[stream] = self._counts.get(stream, 0) + 1
        if self._board is None:
            yield [own]
            return
        names = [self._named(f"{stream}/{number}/{rank}") for rank in range(self.processes)]
        self._board.post(names[self.number], (what, own))
        until = time.monotonic() + WAIT_SECONDS
        while (table := self._read(names)) is None:
            if time.monotonic() > until:
                raise OutsideError(
                    f"rank {self.number} of {self.processes} waited {WAIT_SECONDS:.0f} s for the others at "
                    f"'{what}'; see what they do, then run the same command again"
                )
            yield None
        assert {each for each, _ in table} == {what}, f"ranks are at {[each for each, _ in table]}"
        # Who is here has read the table before, so nobody asks for it any more.
        self._board.ask("delete_key", self._named(f"{stream}/{number - 1}/{self.number}"))
        yield [value for _, value in table]

    def _read(self, names: Sequence[str]) -> list[Any] | None:
        """Not when this rank knows of a fault: another one may have given what it was interrupted in."""
        assert self._board is not None
        with suppress(ConnectionError):
            if self._fault is None:
                return self._board.read(names)
        raise PeerEnded(int(self._of_gone().code))

    def _of_gone(self) -> RankFault:
        """Why the first rank is gone, as far as this one knows."""
        return self._fault or RankFault(_NOBODY, ExitCode.TERMINATED if self._told_to_stop else ExitCode.BUG)

    def _named(self, name: str) -> str:
        return f"{self._entered}/{name}"

    def _watch(self) -> None:
        """Until the training is over: sees SIGTERM and the faults of others, and ends what does not end itself."""
        until = None
        while not self._over.is_set():
            signalled = self._signals.came_within(_WATCH_SECONDS) and not self._told_to_stop
            if signalled:
                os.write(2, _ENDING)
                self._told_to_stop = True
            if self._board is not None:
                self._look(self._board.watched, signalled)
            if self.ending and until is None:
                self.interrupt()
            if self.ending and (until is None or (self._completing and self._fault is None)):
                until = time.monotonic() + ENDING_SECONDS
            if until is not None and time.monotonic() > until and not self._leaving:
                if self._board is not None:
                    self._board.watched.count(self._named("gone"), 1)
                sys.stderr.flush()
                os._exit(self._fault.code if self._fault else ExitCode.TERMINATED)
        self._signals.close()

    def _look(self, board: "_Board", signalled: bool) -> None:
        fault, stop = self._named("fault"), self._named("stop")
        if signalled:
            board.post(stop, True)
        try:
            faults, stops = board.read([fault]), board.read([stop])
        except ConnectionError:
            faults, stops = [self._of_gone()], None
        self._fault = self._fault or (faults[0] if faults else None)
        self._told_to_stop = self._told_to_stop or stops is not None


class _Board:
    """Values by name in the store at which the ranks met, which the first of them has: it is gone with that rank."""

    def __init__(self, store: Any, watched: "_Board | None" = None) -> None:
        self._store = store
        self.watched = watched or self
        """The same over a connection of its own: a watching thread waits for nothing that others do."""

    def post(self, name: str, value: Any) -> None:
        self.ask("set", name, pickle.dumps(value))

    def first(self, name: str, value: T) -> T | None:
        """What stands from now on: what was posted before, or this. None where the first rank is gone."""
        text = self.ask("compare_set", name, "", pickle.dumps(value))
        return None if text is None else pickle.loads(text)

    def count(self, name: str, more: int) -> int:
        return self.ask("add", name, more) or 0

    def read(self, names: Sequence[str]) -> list[Any] | None:
        """None until all are there. Raises ConnectionError where the first rank is gone."""
        there = self.ask("check", list(names))
        texts = self.ask("multi_get", list(names)) if there else []
        if there is None or texts is None:
            raise ConnectionError("the first rank is gone")
        return [pickle.loads(text) for text in texts] or None

    def ask(self, what: str, *arguments: Any) -> Any:
        """None where the first rank is gone: `read` alone says so."""
        with suppress(RuntimeError):
            return getattr(self._store, what)(*arguments)


def _met(number: int, processes: int) -> tuple[_Board, Any]:
    """Where the launcher's environment says; all ranks come here. Raises OutsideError where one does not."""
    import torch
    from torch import distributed
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    limit, backend = timedelta(seconds=WAIT_SECONDS), "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        store, _, _ = next(rendezvous("env://", number, processes, timeout=_MEETING))
        shared = PrefixStore("torch", store)
        distributed.init_process_group(
            backend, store=shared, rank=number, world_size=processes, timeout=limit
        )
        atexit.register(distributed.destroy_process_group)
        files_group = distributed.new_group(backend="gloo", timeout=limit)
    except RuntimeError as error:
        raise OutsideError(
            f"rank {number} of {processes} did not meet the others ({one_line(str(error))[:200]}); see how they "
            "ended, then run the same command again"
        ) from error
    return _Board(PrefixStore("scope", store), _Board(PrefixStore("scope", store.clone()))), files_group


def ranks() -> Ranks:
    """This process, as a launcher (`launch`, `torchrun`) numbered it."""
    return Ranks(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
