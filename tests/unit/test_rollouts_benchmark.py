"""The rollout benchmark: its clock, its two schedules on traces that can be worked out by hand, and its goal."""

import asyncio
import time
from dataclasses import replace

import pytest

from benchmarks.rollouts import GOAL, LOADS, Load, Turn, lockstep, measure, ours
from benchmarks.skipping_loop import CpuTimeLoop, run_skipping

LOAD = Load("by hand", episodes=2, slots=2, token=1.0, read_rate=float("inf"))
TRACE = [[Turn(10, 5.0), Turn(10, None)], [Turn(2, 1.0), Turn(2, 1.0), Turn(2, None)]]


def test_episodes_that_flow_take_as_long_as_the_longest_of_them() -> None:
    assert ours(TRACE, LOAD).seconds == pytest.approx(25.0)


def test_one_slot_is_shared_in_the_order_of_arrival() -> None:
    # 0-10 first, 10-12 second, 13-15 second, 15-25 first (back from its search at 15), 25-27 second.
    assert ours(TRACE, replace(LOAD, slots=1)).seconds == pytest.approx(27.0)


def test_lockstep_waits_for_the_slowest_turn_and_serves_searches_one_by_one() -> None:
    # Turns of 10, 10 and 2 seconds; searches of 5 + 1 and 1.
    assert lockstep(TRACE, LOAD, searches=False) == pytest.approx(22.0)
    assert lockstep(TRACE, LOAD, searches=True) == pytest.approx(29.0)


def test_the_clock_skips_what_nobody_works_in() -> None:
    async def wait() -> float:
        await asyncio.gather(asyncio.sleep(1e6), asyncio.sleep(5e5))
        return asyncio.get_running_loop().time()

    assert run_skipping(wait()) == pytest.approx(1e6)

    async def for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="never comes"):
        run_skipping(for_ever())


def test_a_clock_of_cpu_time_counts_work_and_skips_waiting_also_for_threads() -> None:
    async def work() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        began, timer = loop.time(), asyncio.ensure_future(asyncio.sleep(1000.0))
        # Nobody is asked for while the thread waits: the timer does not pass before it.
        await asyncio.to_thread(time.sleep, 0.05)
        waited = loop.time() - began
        while time.process_time() - cpu < 0.2:
            pass
        await timer
        return waited, loop.time() - began

    loop, cpu = CpuTimeLoop(), time.process_time()
    waited, whole = loop.run_until_complete(work())
    loop.close()
    assert waited < 1000.0 <= whole < 2000.0


def test_the_driver_stays_near_the_bound_and_lockstep_does_not() -> None:
    result = measure(LOADS[1])
    assert result.has_queue and 1 <= result.ours / result.work_over_capacity <= GOAL
    assert result.lockstep > 1.2 * result.ours


def test_later_turns_first_keep_prefixes_and_end_groups_early() -> None:
    result = measure(LOADS[1])
    assert result.hits > 0.95 and result.arrival.hits < 0.3
    assert result.group < 0.7 * result.arrival.group
    # Nobody waits longer for it in the end.
    assert result.ours < 1.05 * result.arrival.seconds
