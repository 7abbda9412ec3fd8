"""A server has its port before its address is named, or one clear line; half of its answer is none."""

import pytest

from scope_selfplay.base.errors import ConfigError, OutsideError
from scope_selfplay.net.client import Client, RetryPolicy
from scope_selfplay.net.serve import listen
from tests.loopback import Reply, loopback


def test_a_port_that_another_has_is_outside_trouble() -> None:
    with listen("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            OutsideError, match=rf"127\.0\.0\.1:{port} is taken, .*choose another --port"
        ) as caught:
            listen("127.0.0.1", port)
    assert caught.value.exit_code == 75
    # Whoever ends the other gets the port, connections that the other had notwithstanding.
    listen("127.0.0.1", port).close()


def test_an_address_that_is_not_ours_is_a_users_mistake() -> None:
    for host, port, complaint in (
        ("192.0.2.1", 0, "cannot be listened at"),
        ("127.0.0.1", 70_000, "cannot be listened at|not an address"),
        ("a" * 64 + ".example", 0, "is not an address to listen at"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            listen(host, port)


async def test_half_a_body_is_no_answer_and_asked_for_again() -> None:
    bodies = [b'{"hits": ', b'{"hits": 1}']
    with loopback(lambda seen: Reply(bodies.pop(0))) as (port, seen):
        async with Client(f"http://127.0.0.1:{port}", retry_policy=RetryPolicy(first_pause=0.01)) as client:
            assert await client.ask("GET", "/info") == {"hits": 1} and len(seen) == 2
