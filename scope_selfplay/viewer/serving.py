"""The run is opened, its port is taken (a taken one is one clear line), then it is shown until a signal."""

import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from scope_selfplay.errors import ConfigError
from scope_selfplay.viewer.app import Site, build_app
from scope_selfplay.viewer.shown_run import ShownRun


def serve_run(path: Path, site: Site, *, host: str, port: int, said: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `said` gets the address. Port 0 takes a free one.

    Raises RecordError when the folder is no run, ConfigError when the port cannot be bound.
    """
    run = ShownRun(path)
    listening = _bind(host, port)
    shown = f"[{host}]" if ":" in host else host
    said(f"http://{shown}:{listening.getsockname()[1]}{site.base}/")
    config = uvicorn.Config(
        build_app(run, site), log_level="warning", access_log=False, server_header=False, lifespan="on"
    )
    uvicorn.Server(config).run(sockets=[listening])


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        # Whoever follows the address before the server is up waits a moment and is not turned away.
        bound.listen()
    except OSError as error:
        raise ConfigError(
            f"{host}:{port} cannot be bound ({error.strerror}); choose another --port, or 0 for a free one"
        ) from None
    return bound
