"""What belongs to an event loop is opened once in it and closed with it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from scope_selfplay.net.loops import PerLoop


class Door:
    opened = closed = fails = 0

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[int]:
        await asyncio.sleep(0)
        self.fails -= 1
        if self.fails >= 0:
            raise OSError("jammed")
        self.opened += 1
        try:
            yield self.opened
        finally:
            self.closed += 1


def test_every_loop_opens_its_own_once_and_closes_it() -> None:
    """Also what was let go before the loop ends, and opened again."""
    door = Door()
    doors = PerLoop(door.entered)

    async def loop() -> list[int]:
        found = await asyncio.gather(*(doors.here() for _ in range(5)))
        await doors.close()
        return [*found, await doors.here()]

    assert [asyncio.run(loop()), asyncio.run(loop())] == [[1] * 5 + [2], [3] * 5 + [4]]
    assert (door.opened, door.closed) == (4, 4)


def test_one_that_did_not_open_and_a_caller_that_goes_away_take_nothing_from_the_others() -> None:
    door = Door()
    door.fails = 1
    doors = PerLoop(door.entered)

    async def loop() -> int:
        with pytest.raises(OSError, match="jammed"):
            await doors.here()
        first, second = asyncio.create_task(doors.here()), asyncio.create_task(doors.here())
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(loop()) == 1
