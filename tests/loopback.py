"""Servers on loopback that answer as they are told and keep what they were sent."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


@contextmanager
def handled(handler: Callable[..., BaseHTTPRequestHandler], host: str = "127.0.0.1") -> Iterator[int]:
    """The port of a server that handles requests so, each in a thread of its own."""
    with ThreadingHTTPServer((host, 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


class Reply(NamedTuple):
    body: bytes = b"{}"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class Seen(NamedTuple):
    method: str
    path: str
    headers: Message
    body: bytes


@contextmanager
def loopback(answer: Callable[[Seen], Reply]) -> Iterator[tuple[int, list[Seen]]]:
    """Its port, and all that came."""
    seen: list[Seen] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append(Seen(self.command, self.path, self.headers, body))
            reply = answer(seen[-1])
            self.send_response(reply.status)
            length = {"Content-Length": str(len(reply.body))}
            for name, value in (length | dict(reply.headers)).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_POST = do_PATCH = _answer  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with handled(Handler) as port:
        yield port, seen
