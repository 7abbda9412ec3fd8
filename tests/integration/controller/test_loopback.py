"""The real client against a server on loopback: what it sends, and what becomes of its failures; the probe of a served
model, as its pod runs it: a hung engine is found, a busy one is left alone."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from scope_selfplay.base.machine import free_port
from scope_selfplay.cluster.pods import RunStage
from scope_selfplay.cluster.stages import server_deployment, servers_of
from scope_selfplay.driver.api import NoReply
from scope_selfplay.store.folder import Stage
from tests.loopback import Reply, Seen, loopback
from tests.unit.controller.worlds import PAPER, config_of, context_of

kubernetes = pytest.importorskip("kubernetes", reason="needs the extra k8s")


class Server:
    """What it was sent; its reply may be changed, and held back."""

    def __init__(self) -> None:
        self.reply = Reply()
        self.answers = threading.Event()
        self.answers.set()
        self.port = 0
        self.seen: list[Seen] = []

    def answer(self, seen: Seen) -> Reply:
        self.answers.wait(60)
        return self.reply


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    with loopback(server.answer) as (server.port, server.seen):
        yield server


def _transport(port: int) -> Any:
    from scope_selfplay.driver.transport import KubernetesTransport

    settings = kubernetes.client.Configuration(host=f"http://127.0.0.1:{port}")
    settings.api_key = {"authorization": "Bearer secret"}
    return KubernetesTransport(settings, "ml")


def _send(port: int, method: str = "GET", timeout: float = 60.0, **rest: Any) -> Any:
    settings = {"query": {}, "body": None, **rest}
    return _transport(port).send(method, "/api/v1/namespaces/ml/pods", timeout=timeout, **settings)


def test_an_apply_is_sent_as_one_and_fields_that_no_model_knows_stay(server: Server) -> None:
    body = {"metadata": {"name": "x"}, "spec": {"invented": {"deep": [1]}}}
    reply = _send(server.port, "PATCH", body=body, query={"force": "true"})
    (seen,) = server.seen
    assert (reply.status, seen.method, seen.path) == (200, "PATCH", "/api/v1/namespaces/ml/pods?force=true")
    assert seen.headers["Content-Type"] == "application/apply-patch+yaml"
    assert seen.headers["Authorization"] == "Bearer secret"
    assert json.loads(seen.body) == body


@pytest.mark.parametrize("status", [404, 409, 410, 429, 500, 503])
def test_every_status_comes_back_once_and_nothing_is_retried(server: Server, status: int) -> None:
    server.reply = Reply(b'{"message": "no"}', status, (("Retry-After", "7"),))
    reply = _send(server.port)
    assert (reply.status, reply.headers["retry-after"], reply.body) == (status, "7", {"message": "no"})
    assert len(server.seen) == 1


def test_a_reply_that_is_not_json_becomes_a_message(server: Server) -> None:
    server.reply = Reply(b"<html>bad gateway</html>", 502)
    assert _send(server.port).body == {"message": "<html>bad gateway</html>"}


def test_a_server_that_does_not_answer_is_given_up_in_time(server: Server) -> None:
    server.answers.clear()
    with pytest.raises(NoReply):
        _send(server.port, "POST", timeout=1.0, body={})
    while not server.seen:
        time.sleep(0.01)
    server.answers.set()
    assert len(server.seen) == 1


def test_a_refused_connection_raises_no_reply() -> None:
    with pytest.raises(NoReply):
        _send(free_port())


def test_a_watch_yields_lines_and_an_expired_one_raises_no_reply(server: Server) -> None:
    server.reply = Reply(b'{"type": "ADDED"}\n{"type": "DELETED"}\n')
    watch = _transport(server.port).lines("/apis/batch/v1/namespaces/ml/jobs", query={}, timeout=60.0)
    assert [json.loads(change)["type"] for change in watch] == ["ADDED", "DELETED"]
    server.reply = Reply(status=410)
    with pytest.raises(NoReply, match="410"):
        list(_transport(server.port).lines("/apis/batch/v1/namespaces/ml/jobs", query={}, timeout=60.0))


def test_without_a_cluster_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from scope_selfplay.base.errors import ConfigError
    from scope_selfplay.driver.transport import connect

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"no cluster: .*; run this in a pod"):
        connect()


@pytest.mark.parametrize(
    ("answers", "tokens", "lives"),
    [(True, None, True), (False, count(100), True), (False, iter([100] * 9), False), (False, None, False)],
    ids=["answers", "full queue", "hangs", "hangs without metrics"],
)
def test_a_server_is_restarted_only_when_nobody_gets_a_token(
    answers: bool, tokens: Iterator[int] | None, lives: bool
) -> None:
    """`tokens` are those generated so far, at each look; None without metrics."""
    closed = threading.Event()

    def answer(seen: Seen) -> Reply:
        if seen.method == "POST":
            return Reply() if answers or closed.wait(60) else Reply(status=500)
        if tokens is None:
            return Reply(status=404)
        lines = ["# TYPE vllm:generation_tokens_total counter", "vllm:num_requests_running 9.0"]
        lines += [f'vllm:generation_tokens_total{{engine="0"}} {next(tokens)}.0', ""]
        return Reply("\n".join(lines).encode())

    with loopback(answer) as (port, _):
        assert _probe(port, "60" if answers else "1").returncode == (0 if lives else 1)
        closed.set()


def _probe(port: int, seconds: str) -> subprocess.CompletedProcess[str]:
    config = config_of(PAPER)
    judge = servers_of(config, RunStage(1, Stage.SOLVER), (True,))[0]
    container = server_deployment(context_of(config), judge)["spec"]["template"]["spec"]["containers"][0]
    _, flag, script, url, model, _ = container["livenessProbe"]["exec"]["command"]
    here = url.replace("8000", str(port))
    command = [sys.executable, flag, script, here, model, seconds]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
