"""The probe of a served model, as its pod runs it: a hung engine is found, a busy one is left alone."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from scope_selfplay.cluster.pods import RunStage
from scope_selfplay.cluster.stages import server_deployment, servers_of
from scope_selfplay.store.folder import Stage
from tests.loopback import Reply, Seen, loopback
from tests.unit.controller.examples import PAPER, config_of, context_of

pytestmark = pytest.mark.integration


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
        assert _probe(port).returncode == (0 if lives else 1)
        closed.set()


def _probe(port: int) -> subprocess.CompletedProcess[str]:
    config = config_of(PAPER)
    judge = servers_of(config, RunStage(1, Stage.SOLVER), (True,))[0]
    container = server_deployment(context_of(config), judge)["spec"]["template"]["spec"]["containers"][0]
    _, flag, script, url, model, _ = container["livenessProbe"]["exec"]["command"]
    here = url.replace("8000", str(port))
    command = [sys.executable, flag, script, here, model, "1"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
