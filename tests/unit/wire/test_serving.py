"""The port of every server: taken before its address is named, or one clear line."""

import asyncio
import socket

import pytest

from scope_selfplay.base.errors import ConfigError, OutsideError
from scope_selfplay.net.serve import listen, url_of


def test_a_free_port_can_be_reached_at_once_at_the_address_that_is_named() -> None:
    with listen("127.0.0.1", 0) as listening:
        host, port = listening.getsockname()
        assert url_of(listening) == f"http://127.0.0.1:{port}" and port > 0
        with socket.create_connection((host, port), timeout=5):
            pass


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


@pytest.mark.parametrize(
    ("host", "port", "complaint"),
    [
        ("192.0.2.1", 0, "cannot be listened at"),
        ("127.0.0.1", 70_000, "cannot be listened at|not an address"),
        ("no such host", 0, "is not an address to listen at"),
        ("a" * 64 + ".example", 0, "is not an address to listen at"),
    ],
)
def test_an_address_that_is_not_ours_is_a_users_mistake(host: str, port: int, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        listen(host, port)


def test_an_ipv6_address_is_in_brackets() -> None:
    try:
        listening = listen("::1", 0)
    except ConfigError:
        pytest.skip("this machine has no IPv6 loopback")
    with listening:
        assert url_of(listening) == f"http://[::1]:{listening.getsockname()[1]}"


async def test_answers_are_sent_without_waiting_for_the_clients_acknowledgement() -> None:
    delays: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        delays.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with listen("127.0.0.1", 0) as listening:
        async with await asyncio.start_server(answer, sock=listening):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            await reader.read()
            writer.close()
    assert delays and all(delays)
