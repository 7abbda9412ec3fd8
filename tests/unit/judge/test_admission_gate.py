"""Calls of one batch go side by side with their like, and never more than the limit at once."""

import asyncio

from scope_selfplay.judge.endpoint import AdmissionGate


async def _pass(gate: AdmissionGate, text: str, order: list[str]) -> None:
    async with gate.turn(text):
        order.append(text)
        await asyncio.sleep(0)


async def test_a_batch_goes_in_the_order_of_its_texts() -> None:
    gate, order = AdmissionGate(1), list[str]()
    texts = [
        "task b, answer 1, criterion 2",
        "task a, answer 2",
        "task b, answer 1, criterion 1",
        "task a, answer 1",
    ]

    await asyncio.gather(*(_pass(gate, text, order) for text in texts))

    assert order == sorted(texts)


async def test_who_comes_later_belongs_to_the_next_batch() -> None:
    gate, order = AdmissionGate(1), list[str]()
    first = [asyncio.create_task(_pass(gate, text, order)) for text in ("m", "n")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = [asyncio.create_task(_pass(gate, text, order)) for text in ("b", "a")]
    await asyncio.gather(*first, *second)

    assert order == ["m", "n", "a", "b"]


async def test_no_more_than_the_limit_are_inside() -> None:
    gate, most = AdmissionGate(3), 0

    async def visit() -> None:
        nonlocal most
        async with gate.turn(""):
            most = max(most, gate.inside)
            await asyncio.sleep(0.001)

    await asyncio.gather(*(visit() for _ in range(20)))
    assert most == 3 and gate.inside == 0


async def test_one_who_goes_away_gives_the_place_back() -> None:
    gate = AdmissionGate(1)
    async with gate.turn(""):
        waiting = asyncio.create_task(_pass(gate, "x", []))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.wait_for(_pass(gate, "y", []), 1)
    assert gate.inside == 0


async def test_the_limit_halves_when_asked_to_and_grows_back_call_by_call() -> None:
    gate = AdmissionGate(8)
    gate.shrink()
    gate.shrink()
    assert gate.limit == 2
    for _ in range(100):
        gate.grow()
    assert gate.limit == 8
    for _ in range(10):
        gate.shrink()
    assert gate.limit == 1
