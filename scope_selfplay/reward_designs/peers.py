"""The processes that share a step: what is a matter of the whole step is decided over the groups of all of them."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Peers(Protocol):
    @property
    def number(self) -> int:
        """Which of them this process is; the groups of a step are dealt out in this order."""
        ...

    async def gather(self, what: str, own: T) -> list[T]:
        """What every process gave, by number: all come here, for the same thing, and each waits for the others."""
        ...

    async def once(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """What the first process to ask for `name` makes, in every process that asks."""
        ...


class Alone:
    """One process that has the whole step."""

    number = 0

    async def gather(self, what: str, own: T) -> list[T]:
        return [own]

    async def once(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        return await make()
