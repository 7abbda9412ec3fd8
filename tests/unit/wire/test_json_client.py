"""What belongs to an event loop is opened once in it and closed with it."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from scope_selfplay.net.loops import PerLoop


class Door:
    def __init__(self, *, fails: int = 0) -> None:
        self.opened = self.closed = 0
        self._fails = fails

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[int]:
        await asyncio.sleep(0)
        if self._fails:
            self._fails -= 1
            raise OSError("jammed")
        self.opened += 1
        try:
            yield self.opened
        finally:
            self.closed += 1


def test_every_loop_opens_its_own_once_and_closes_it() -> None:
    door = Door()
    doors = PerLoop(door.entered)

    async def loop() -> list[int]:
        return await asyncio.gather(*(doors.here() for _ in range(5)))

    assert asyncio.run(loop()) == [1] * 5
    assert asyncio.run(loop()) == [2] * 5
    assert (door.opened, door.closed) == (2, 2)


def test_what_is_let_go_before_its_loop_ends_can_be_closed_and_opens_again() -> None:
    door = Door()

    async def loop() -> list[int]:
        doors = PerLoop(door.entered)
        await doors.close()
        first = await doors.here()
        await doors.close()
        assert door.closed == 1
        second = await doors.here()
        await doors.close()
        del doors
        gc.collect()
        return [first, second]

    assert asyncio.run(loop()) == [1, 2]
    assert (door.opened, door.closed) == (2, 2)


def test_what_did_not_open_is_tried_again_by_the_next_caller() -> None:
    doors = PerLoop(Door(fails=1).entered)

    async def loop() -> int:
        with pytest.raises(OSError, match="jammed"):
            await doors.here()
        return await doors.here()

    assert asyncio.run(loop()) == 1


def test_a_caller_that_goes_away_takes_nothing_from_the_others() -> None:
    doors = PerLoop(Door().entered)

    async def loop() -> int:
        first, second = asyncio.create_task(doors.here()), asyncio.create_task(doors.here())
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(loop()) == 1
