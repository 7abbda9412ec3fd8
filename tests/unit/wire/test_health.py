"""Whether a server may be asked, on a clock that the test moves."""

import time

import pytest

from scope_selfplay.net.client import Client, Health, RetryPolicy
from scope_selfplay.testing.chat_server import FakeServer, FaultKind
from tests.judges import always


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_goes_down_after_failures_in_a_row_only_and_an_answer_brings_it_back() -> None:
    health = Health(3, clock=Clock())
    for _ in range(5):
        health.fail()
        health.fail()
        health.succeed()
    assert not health.is_down and not health.rest
    for _ in range(3):
        health.fail()
    assert health.is_down and health.rest
    health.succeed()
    assert not health.is_down and not health.rest


def test_rests_double_up_to_the_longest_and_never_pass_the_outage() -> None:
    clock = Clock()
    health = Health(outage=120.0, clock=clock)
    rests = []
    for _ in range(7):
        health.go_down()
        health.go_down()
        rests.append(health.rest)
        clock.now += health.rest
    assert rests == [1, 2, 4, 8, 16, 30, 30]
    clock.now += 26
    health.go_down()
    assert health.rest == 3


def test_an_outage_is_waited_for_from_when_it_began_and_what_comes_back_later_is_found_all_the_same() -> None:
    clock = Clock()
    health = Health(outage=10.0, clock=clock)
    clock.now += 20
    assert health.left == 10
    health.go_down()
    clock.now += 9
    assert health.left == 1
    clock.now += 1
    assert health.left == 0
    health.go_down()
    assert health.rest == 2


@pytest.mark.fault(18)
@pytest.mark.parametrize("jump", [-86_400, 86_400])
async def test_a_clock_that_jumps_does_not_change_how_long_a_server_was_away(
    monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    said, now, fake = list[str](), time.time(), FakeServer(always("1"))
    fake.fault = FaultKind.ERROR

    def say(text: str) -> None:
        said.append(text)
        fake.fault = None
        monkeypatch.setattr(time, "time", lambda: now + jump)

    async with (
        fake.serving() as url,
        Client(url, retry_policy=RetryPolicy(first_pause=0.05), say=say) as client,
    ):
        body = b'{"model": "fake", "messages": [{"role": "user", "content": "x"}]}'
        await client.ask("POST", "/chat/completions", body)
    assert " answers again, after 0 s" in said[-1]
