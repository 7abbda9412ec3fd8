"""Who is let in next: turns of episodes under way before new ones, calls of one batch side by side with their like."""

import asyncio

from scope_selfplay.net.admission import Admission


async def _pass(gate: Admission, text: str, order: list[str]) -> None:
    async with gate.turn(text):
        order.append(text)
        await asyncio.sleep(0)


async def test_a_batch_goes_in_the_order_of_its_texts_and_who_comes_later_belongs_to_the_next() -> None:
    gate, order = Admission(1), list[str]()
    first = [asyncio.create_task(_pass(gate, text, order)) for text in ("now", "n", "m", "o")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = [asyncio.create_task(_pass(gate, text, order)) for text in ("b", "a")]
    await asyncio.gather(*first, *second)
    assert order == ["m", "n", "now", "o", "a", "b"]


async def test_a_gate_lets_so_many_through_and_later_turns_first() -> None:
    gate, order, most, inside = Admission(2), [], 0, 0

    async def turn(name: str, number: int) -> None:
        nonlocal most, inside
        async with gate.turn(number=number):
            inside += 1
            most = max(most, inside)
            order.append(name)
            await asyncio.sleep(0.001)
            inside -= 1

    await asyncio.gather(*(turn(f"new {row}", 0) for row in range(4)), turn("under way", 1))
    assert most == 2 and order == ["under way", "new 0", "new 1", "new 2", "new 3"]


async def test_who_goes_away_while_waiting_or_inside_leaves_the_gate_open() -> None:
    gate = Admission(1)

    async def hold() -> None:
        async with gate.turn():
            await asyncio.sleep(60)

    inside, waiting, beside = (asyncio.ensure_future(hold()) for _ in range(3))
    await asyncio.sleep(0)
    waiting.cancel()
    inside.cancel()
    # The place was handed to `beside`, which goes away before it takes it.
    await asyncio.sleep(0)
    beside.cancel()
    await asyncio.gather(inside, waiting, beside, return_exceptions=True)
    async with asyncio.timeout(60), gate.turn():
        pass
