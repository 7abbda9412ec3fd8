"""The port of a server, taken before its address is named: whoever reads the address can connect at once."""

import errno
import socket

from scope_selfplay.errors import ConfigError, OutsideError

BACKLOG = 2048
"""Connections that wait to be accepted: a step of training opens all of its own at once."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket at the first address of `host`; port 0 takes a free one.

    Raises OutsideError where another process has the port, ConfigError where this machine has no such address or
    forbids it.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{host}:{port} is no address to listen at ({error}); choose another --host"
        ) from None
    # asyncio turns Nagle's delay off only where the protocol is named: 40 ms an answer on a kept connection.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        bound.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise OutsideError(
                f"{host}:{port} is taken, another process listens there; end it, or choose another --port"
            ) from None
        why = error.strerror if isinstance(error, OSError) else "a port is a number from 0 to 65535"
        raise ConfigError(
            f"{host}:{port} cannot be listened at ({why}); choose another --host or --port"
        ) from None
    return bound


def url_of(listening: socket.socket) -> str:
    """`http://host:port` of a listening socket, an IPv6 host in brackets."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
