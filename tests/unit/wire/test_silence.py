"""What is said of a server that does not answer, whatever the clock on the wall does meanwhile."""

import time

import pytest

from scope_selfplay.wire.json_client import Silence


@pytest.mark.fault(18)
@pytest.mark.parametrize("jump", [-86_400, 86_400])
def test_a_clock_that_jumps_does_not_change_how_long_a_server_was_away(
    monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    said = list[str]()
    silence, now = Silence(said.append), time.time()
    silence.begin("the judge does not answer", 60)
    monkeypatch.setattr(time, "time", lambda: now + jump)
    silence.end("the judge")
    assert said[-1].startswith("the judge answers again, after ") and "864" not in said[-1]
