"""A server on loopback that answers as it is told, and keeps what it was sent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple

from tests.ports import handled


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
            for name, value in (*reply.headers, ("Content-Length", str(len(reply.body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_POST = do_PATCH = _answer  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    with handled(Handler) as port:
        yield port, seen
