"""Several servers asked as one: a subject stays with its replica, and one that dies costs its calls in flight alone."""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from scope_selfplay.net.chat import ONCE
from scope_selfplay.net.client import Client, Refused, RetryPolicy, ServerUnavailable, rank
from scope_selfplay.net.serve import ServedReply, ServedRequest
from scope_selfplay.testing.chat_server import FAKE_MODEL, FakeServer, FaultKind

SWIFT = RetryPolicy(deadline=30.0, attempt=30.0, attempts=None, first_pause=0.05)
SUBJECTS = [f"task-{number}" for number in range(40)]


def the_prompt(request: ServedRequest) -> ServedReply:
    return ServedReply(request.prompt)


@asynccontextmanager
async def replicated(
    fakes: Sequence[FakeServer], policy: RetryPolicy = SWIFT, **options: Any
) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(fake.serving()) for fake in fakes]
        yield await stack.enter_async_context(Client(*urls, retry_policy=policy, **options))


async def ask(client: Client, subject: str, row: int) -> str:
    body = {
        "model": FAKE_MODEL,
        "messages": [{"role": "user", "content": f"{subject} {row}"}],
        "max_tokens": 64,
    }
    answer = await client.ask("POST", "/chat/completions", json.dumps(body).encode(), subject=subject)
    return str(answer["choices"][0]["message"]["content"])


def all_do(fakes: Sequence[FakeServer], fault: FaultKind | None) -> None:
    for fake in fakes:
        fake.fault = fault


def prompts_of(fake: FakeServer) -> list[str]:
    return [request.prompt for request in fake.requests]


def test_a_replica_that_goes_moves_only_its_own_subjects_and_evenly() -> None:
    names = [f"http://r1-judge-{number}:8000/v1" for number in range(4)]
    subjects = [f"task-{number}" for number in range(4000)]
    before = {subject: min(names, key=partial(rank, subject)) for subject in subjects}
    shares = Counter(before.values())
    assert sorted(shares) == names and all(900 < share < 1100 for share in shares.values())
    after = {subject: min(names[1:], key=partial(rank, subject)) for subject in subjects}
    moved = [subject for subject in subjects if before[subject] != after[subject]]
    assert moved == [subject for subject in subjects if before[subject] == names[0]]
    assert all(250 < share < 400 for share in Counter(after[subject] for subject in moved).values())


async def test_a_replica_that_dies_costs_its_calls_in_flight_and_no_answer() -> None:
    begun, answered, lost = list[str](), list[str](), list[str]()

    async def until_death(request: ServedRequest) -> ServedReply:
        if lost:
            return ServedReply("")
        begun.append(request.prompt)
        if len(begun) == 30:
            lost.extend(prompt for prompt in begun if prompt not in answered)
            dying.fault = FaultKind.RESET
            dying.cut()
        await asyncio.sleep(0.002)
        if not lost:
            answered.append(request.prompt)
        return ServedReply(request.prompt)

    dying, other = FakeServer(until_death), FakeServer(the_prompt)
    at_once = asyncio.Semaphore(8)

    async def ask_in_turn(subject: str, row: int) -> str:
        async with at_once:
            return await ask(client, subject, row)

    async with replicated([dying, other]) as client:
        calls = [(subject, row) for row in range(5) for subject in SUBJECTS]
        found = await asyncio.gather(*(ask_in_turn(*call) for call in calls))
    assert found == [f"{s} {r}" for s, r in calls]
    assert 1 <= len(lost) <= 8
    done = prompts_of(other)
    assert sorted([*answered, *done]) == sorted(found), "each call is answered, and paid for, once"
    assert set(lost) <= set(done)


async def test_one_that_is_busy_is_passed_over_and_not_left_alone() -> None:
    """Where others take its calls, nothing is said of an outage."""
    said, fakes = list[str](), [FakeServer(the_prompt, retry_after=0.01) for _ in range(2)]
    async with replicated(fakes, say=said.append) as client:
        assert await ask(client, "a", 0) == "a 0"
        first, second = sorted(fakes, key=lambda fake: -len(fake.requests))
        first.fault = FaultKind.BUSY
        assert await ask(client, "a", 1) == "a 1" and prompts_of(second) == ["a 1"]
        first.fault = None
        assert await ask(client, "a", 2) == "a 2" and prompts_of(second) == ["a 1"]
        first.fault = FaultKind.ERROR
        assert await ask(client, "a", 3) == "a 3" and prompts_of(second) == ["a 1", "a 3"]
    assert said == []


async def test_with_patience_a_busy_one_is_waited_for_and_nobody_else_is_asked() -> None:
    fakes = [FakeServer(the_prompt, retry_after=0.05) for _ in range(2)]
    async with replicated(fakes, ONCE, patience=600.0) as client:
        assert await ask(client, "a", 0) == "a 0"
        first, second = sorted(fakes, key=lambda fake: -len(fake.requests))
        first.fault = FaultKind.BUSY
        asking = asyncio.create_task(ask(client, "a", 1))
        while not first.injected[FaultKind.BUSY]:
            await asyncio.sleep(0.01)
        assert not asking.done()
        first.fault = None
        assert await asking == "a 1" and prompts_of(second) == []


async def test_what_is_refused_is_asked_of_nobody_else_and_where_all_are_down_that_is_said() -> None:
    fakes = [FakeServer(the_prompt) for _ in range(2)]
    async with replicated(fakes, ONCE) as client:
        all_do(fakes, FaultKind.REDIRECT)
        with pytest.raises(Refused):
            await ask(client, "a", 0)
        assert sum(len(fake.requests) for fake in fakes) == 1
        all_do(fakes, FaultKind.ERROR)
        with pytest.raises(ServerUnavailable, match="no replica of 2 answered"):
            await ask(client, "a", 0)
        assert all(len(fake.requests) >= 1 for fake in fakes)


class Drawn(random.Random):
    """Counts the pauses that were drawn, and makes them none."""

    pauses = 0

    def uniform(self, a: float, b: float) -> float:
        self.pauses += 1
        return 0.0


@pytest.mark.parametrize("replicas", [1, 2])
async def test_each_is_asked_as_often_as_the_policy_says_after_pauses_of_chance(replicas: int) -> None:
    """So that calls which failed together are not repeated together."""
    fakes, jitter = [FakeServer(the_prompt) for _ in range(replicas)], Drawn()
    # Longer than the deadline: who did not draw would give up at once.
    policy = RetryPolicy(attempts=3, first_pause=600.0, longest_pause=600.0)
    async with replicated(fakes, policy, jitter=jitter) as client:
        all_do(fakes, FaultKind.ERROR)
        with pytest.raises(ServerUnavailable, match="gave up after 3 attempts"):
            await ask(client, "a", 0)
        assert jitter.pauses == 3
    assert [len(fake.requests) for fake in fakes] == [3] * replicas


@pytest.mark.fault(18)
@pytest.mark.parametrize("jump", [-86_400, 86_400])
async def test_a_clock_that_jumps_does_not_change_how_long_a_server_was_away(
    monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    said, now, fake = list[str](), time.time(), FakeServer(the_prompt)

    def say(text: str) -> None:
        said.append(text)
        fake.fault = None
        monkeypatch.setattr(time, "time", lambda: now + jump)

    async with replicated([fake], say=say) as client:
        fake.fault = FaultKind.ERROR
        await ask(client, "a", 0)
    seconds = re.search(r" answers again, after (\d+) s", said[-1])
    assert seconds is not None and int(seconds[1]) < 300, "no day"
