"""The probe of a served model, as its pod runs it: a hung engine is found, a busy one is left alone."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest

from scope_selfplay.controller.manifests import RunStage
from scope_selfplay.controller.servers import server_deployment, servers_of
from scope_selfplay.store import Stage
from tests.unit.controller.examples import PAPER, config_of, context_of

pytestmark = pytest.mark.integration


class Engine(ThreadingHTTPServer):
    """The two pages of vLLM that the probe reads."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Pages)
        self.answers = True
        self.tokens: Iterator[int] | None = count()
        """Generated so far, at each look; None without metrics."""
        self.closed = threading.Event()


class Pages(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        if self.server.tokens is None:
            self.send_error(404)
            return
        self._reply(
            f"# TYPE vllm:generation_tokens_total counter\nvllm:num_requests_running 9.0\n"
            f'vllm:generation_tokens_total{{engine="0"}} {next(self.server.tokens)}.0\n'
        )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if not self.server.answers:
            self.server.closed.wait(60)
        self._reply("{}")

    def _reply(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    yield engine
    engine.closed.set()
    engine.shutdown()
    engine.server_close()


@pytest.mark.parametrize(
    ("answers", "tokens", "lives"),
    [
        (True, None, True),
        (False, count(100), True),
        (False, iter([100] * 9), False),
        (False, None, False),
    ],
    ids=["answers", "full queue", "hangs", "hangs without metrics"],
)
def test_a_server_is_restarted_only_when_nobody_gets_a_token(
    engine: Engine, answers: bool, tokens: Iterator[int] | None, lives: bool
) -> None:
    engine.answers, engine.tokens = answers, tokens
    assert _probe(engine.server_port).returncode == (0 if lives else 1)


def _probe(port: int) -> subprocess.CompletedProcess[str]:
    config = config_of(PAPER)
    judge = servers_of(config, RunStage(1, Stage.SOLVER), (True,))[0]
    container = server_deployment(context_of(config), judge)["spec"]["template"]["spec"]["containers"][0]
    _, flag, script, url, model, _ = container["livenessProbe"]["exec"]["command"]
    here = url.replace("8000", str(port))
    command = [sys.executable, flag, script, here, model, "1"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
