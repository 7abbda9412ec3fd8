"""A group: one task and its rollouts, which may still be generated when judging begins."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from scope_selfplay.inference import Generate, PolicyModel, Sample
from scope_selfplay.keys import Key
from scope_selfplay.schemas import Rollout, Rubric, Task


class ArrivalOrder(Protocol):
    """Iterates over the members of a group once, by number, in the order in which they count as finished."""

    deterministic: bool

    def __aiter__(self) -> AsyncIterator[int]: ...


class Arrivals:
    """The order in which the rollouts of a group count as finished.

    By default the order in which they finish. `deterministic`: the order of (tokens generated, number), as if all
    were generated side by side; a finished rollout waits until no other can come before it any more, which the tokens
    that the others have generated so far decide.
    """

    def __init__(self, size: int, *, deterministic: bool) -> None:
        self._tokens = [0] * size
        self._waiting = set(range(size))
        self._finished: list[int] = []
        self.deterministic = deterministic
        self._changed = asyncio.Event()

    def generated(self, number: int, tokens: int) -> None:
        """A rollout has generated this many tokens more."""
        self._tokens[number] += tokens
        self._changed.set()

    def counting(self, model: PolicyModel, number: int) -> PolicyModel:
        """`model`, which says here what it generates for a rollout."""
        return _Counting(model, self, number)

    def finish(self, number: int) -> None:
        self._finished.append(number)
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[int]:
        """Every number once. One reader only."""
        while self._waiting:
            number = self._next()
            if number is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            self._waiting.remove(number)
            yield number

    def _next(self) -> int | None:
        if not self.deterministic:
            return next((number for number in self._finished if number in self._waiting), None)
        first = min(self._waiting, key=lambda number: (self._tokens[number], number))
        return first if first in self._finished else None


@dataclass(frozen=True)
class _Counting:
    model: PolicyModel
    arrivals: Arrivals
    number: int

    @property
    def identity(self) -> str:
        return self.model.identity

    async def generate(self, request: Generate, key: Key) -> Sample:
        sample = await self.model.generate(request, key)
        self.arrivals.generated(self.number, len(sample.ids))
        return sample


@dataclass(frozen=True)
class RolloutGroup:
    """`rollouts` are futures of one event loop, in the order of the group's members; `key` names its draws."""

    task: Task
    rubric: Rubric
    rollouts: Sequence["asyncio.Future[Rollout]"]
    arrivals: ArrivalOrder
    key: Key

    async def all_rollouts(self) -> list[Rollout]:
        return list(await asyncio.gather(*self.rollouts))
