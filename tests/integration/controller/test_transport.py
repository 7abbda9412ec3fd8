"""The real client package against a server on loopback: what it sends, and what becomes of its failures."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from scope_selfplay.controller.api import NoReply

pytestmark = pytest.mark.integration
kubernetes = pytest.importorskip("kubernetes", reason="needs the extra k8s")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[dict[str, Any]] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body = b"{}"
        self.answers = threading.Event()
        self.answers.set()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.server.seen.append(
            {
                "method": self.command,
                "path": self.path,
                "type": self.headers.get("Content-Type"),
                "authorization": self.headers.get("Authorization"),
                "body": self.rfile.read(length),
            }
        )
        self.server.answers.wait(60)
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def _transport(port: int) -> Any:
    from scope_selfplay.controller.cluster import KubernetesTransport

    settings = kubernetes.client.Configuration(host=f"http://127.0.0.1:{port}")
    settings.api_key = {"authorization": "Bearer secret"}
    return KubernetesTransport(settings, "ml")


def _send(server_port: int, method: str = "GET", timeout: float = 5.0, **rest: Any) -> Any:
    settings = {"query": {}, "body": None, **rest}
    return _transport(server_port).send(method, "/api/v1/namespaces/ml/pods", timeout=timeout, **settings)


def test_an_apply_is_sent_as_one_and_fields_that_no_model_knows_stay(server: Server) -> None:
    body = {"metadata": {"name": "x"}, "spec": {"invented": {"deep": [1]}}}
    reply = _send(server.server_port, "PATCH", body=body, query={"force": "true"})
    (seen,) = server.seen
    assert (reply.status, seen["method"], seen["path"]) == (
        200,
        "PATCH",
        "/api/v1/namespaces/ml/pods?force=true",
    )
    assert seen["type"] == "application/apply-patch+yaml"
    assert seen["authorization"] == "Bearer secret"
    assert json.loads(seen["body"]) == body


@pytest.mark.parametrize("status", [404, 409, 410, 429, 500, 503])
def test_every_status_comes_back_once_and_nothing_is_retried(server: Server, status: int) -> None:
    server.status, server.headers, server.body = status, {"Retry-After": "7"}, b'{"message": "no"}'
    reply = _send(server.server_port)
    assert (reply.status, reply.headers["retry-after"], reply.body) == (status, "7", {"message": "no"})
    assert len(server.seen) == 1


def test_a_reply_that_is_not_json_becomes_a_message(server: Server) -> None:
    server.status, server.body = 502, b"<html>bad gateway</html>"
    assert _send(server.server_port).body == {"message": "<html>bad gateway</html>"}


def test_a_server_that_does_not_answer_is_given_up_in_time(server: Server) -> None:
    server.answers.clear()
    with pytest.raises(NoReply):
        _send(server.server_port, "POST", timeout=1.0, body={})
    server.answers.set()
    assert len(server.seen) == 1


def test_a_refused_connection_raises_no_reply() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(NoReply):
        _send(port)


def test_a_watch_yields_lines_and_an_expired_one_raises_no_reply(server: Server) -> None:
    server.body = b'{"type": "ADDED"}\n{"type": "DELETED"}\n'
    watch = _transport(server.server_port).watch("/apis/batch/v1/namespaces/ml/jobs", query={}, timeout=5.0)
    assert [change["type"] for change in watch] == ["ADDED", "DELETED"]
    server.status = 410
    with pytest.raises(NoReply, match="410"):
        list(_transport(server.server_port).watch("/apis/batch/v1/namespaces/ml/jobs", query={}, timeout=5.0))


def test_without_a_cluster_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from scope_selfplay.controller.cluster import connect
    from scope_selfplay.errors import ConfigError

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"no cluster: .*; run this in a pod"):
        connect()
