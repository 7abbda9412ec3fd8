"""The run is opened, its port is taken (a taken one is one clear line), then it is shown until a signal."""

from collections.abc import Callable
from pathlib import Path

import uvicorn

from scope_selfplay.viewer.app import Site, build_app
from scope_selfplay.viewer.shown_run import ShownRun
from scope_selfplay.wire.serving import listen, url_of


def serve_run(path: Path, site: Site, *, host: str, port: int, said: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `said` gets the address. Port 0 takes a free one.

    Raises RecordError when the folder is no run, and as `listen` does.
    """
    run = ShownRun(path)
    listening = listen(host, port)
    said(f"{url_of(listening)}{site.base}/")
    config = uvicorn.Config(
        build_app(run, site), log_level="warning", access_log=False, server_header=False, lifespan="on"
    )
    uvicorn.Server(config).run(sockets=[listening])
