"""What is said of a server that does not answer, whatever the clock on the wall does meanwhile."""

import time

import pytest

from scope_selfplay.net.client import Client, RetryPolicy
from scope_selfplay.testing.chat_server import FakeServer, FaultKind
from tests.judges import always


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
