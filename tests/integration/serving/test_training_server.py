"""A policy in training that is sampled elsewhere: no rollout before its weights are there, and what its outage is.

The server that samples is real, and so is TRL's client; what brings weights over NCCL needs GPUs on both sides, and is
stood in for.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import requests
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from jobs.launch import TrainingNode, rank_environments
from scope_selfplay.base.errors import ExitCode, InferenceError, OutsideError
from scope_selfplay.inference.server import ModelService, model_app
from scope_selfplay.net.client import RetryPolicy
from scope_selfplay.net.serve import serving
from scope_selfplay.run import engines
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.job import TrainingCallbacks
from tests.integration.serving.served_training import served_job, train_served
from tests.integration.serving.threads import in_thread
from tests.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PUSH = ["/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache"]
BEGIN = ["/server_info", "/get_world_size", "/init_weight_transfer_engine"]
PLAIN = {
    "/server_info": {"vllm_config": {"weight_transfer_config": {"backend": "nccl"}}},
    "/get_world_size": {"world_size": 1},
}


class TakesWeights:
    """A server of a policy with vLLM's endpoints for weights; the policy stays as it is."""

    def __init__(self, policy: Path, folder: Path) -> None:
        self.service = ModelService(str(policy), slots=4, max_length=128)
        self.asked: list[str] = []
        self.announced: list[dict[str, Any]] = []
        self._push = folder / "push"

    def app(self) -> Starlette:
        routes = [Route(path, self._answer, methods=["GET", "POST"]) for path in (*BEGIN, *PUSH)]
        return Starlette(routes=[*routes, Mount("/", app=model_app(self.service))])

    async def _answer(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        if request.url.path == "/update_weights":
            self.announced.append((await request.json())["update_info"])
            while not self._push.exists():
                await asyncio.sleep(0.02)
            ended = self._push.read_text()
            self._push.unlink()
            if ended == "broken":
                return Response("NCCL error", status_code=500)
        return JSONResponse(PLAIN.get(request.url.path, {"success": True}))


@pytest.fixture
def served(random_policy: Path, tmp_path: Path) -> Iterator[tuple[TakesWeights, str]]:
    server = TakesWeights(random_policy, tmp_path)
    with in_thread(serving(server.app())) as url:
        yield server, url


class Ended(NamedTuple):
    """The exit codes of two ranks, and the lines that each said."""

    codes: list[int]
    said: list[list[str]]


def train_sharded(folder: Path, policy: Path, url: str, overlap: int = 0, adapter: int = 0) -> Ended:
    """Two ranks that share one copy of the policy, as two GPUs do."""
    module = "tests.integration.serving.served_training"
    command = [sys.executable, "-m", module, str(folder), str(policy), url, str(overlap), str(adapter)]
    environments = [
        {**os.environ, **rank, "SCOPE_FSDP_SHARERS": "2"} for rank in rank_environments(TrainingNode(2))
    ]
    output: dict[str, Any] = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with ExitStack() as to_kill:
        running = [subprocess.Popen(command, env=each, **output) for each in environments]
        for rank in running:
            to_kill.callback(rank.kill)
        said = [rank.communicate(timeout=300)[0].splitlines() for rank in running]
    return Ended([rank.returncode for rank in running], said)


def weights_seen(folder: Path, rank: int) -> list[str]:
    """With which weights a rank began each step."""
    return [(folder / f"rank-{rank}-step-{step}").read_text() for step in range(3)]


def test_no_rank_samples_before_the_weights_of_its_turn_are_there_or_while_they_come(
    random_policy: Path, tmp_path: Path, served: tuple[TakesWeights, str]
) -> None:
    server, url = served
    ended = train_sharded(tmp_path, random_policy, url, overlap=1, adapter=2)
    assert ended.codes == [0, 0], ended.said
    first, second, third = weights_seen(tmp_path, 0)
    # Rollouts one step ahead begin with the weights that the step before them began with.
    assert first == second != third and weights_seen(tmp_path, 1) == [first, second, third]
    assert server.asked == [*BEGIN, *PUSH * 3]
    announced = zip(*(server.announced[-1][each] for each in ("names", "dtype_names", "shapes")), strict=True)
    assert list(map(list, announced)) == json.loads((tmp_path / "streamed").read_text())


def test_a_push_that_breaks_ends_both_ranks_and_the_same_command_goes_on(
    random_policy: Path, tmp_path: Path, served: tuple[TakesWeights, str]
) -> None:
    server, url = served
    (tmp_path / "breaks").write_text("3")
    ended = train_sharded(tmp_path, random_policy, url)
    begun = float((tmp_path / "broken").read_text())
    assert ended.codes == [ExitCode.OUTSIDE] * 2
    assert [len(lines) for lines in ended.said] == [1, 0], ended.said
    (line,) = ended.said[0]
    assert re.match(r"train: model\.vllm_url: \S+ did not take the weights \(NCCL error.*same command", line)
    # The second rank has gathered to the end and left by itself.
    assert all((tmp_path / f"left-{rank}").stat().st_mtime - begun < 10 for rank in (0, 1))
    assert server.asked == [*BEGIN, *PUSH, *PUSH[:2]]
    server.asked.clear()

    assert train_sharded(tmp_path, random_policy, url).codes == [0, 0]
    assert server.asked == [*BEGIN, *PUSH * 2]
    assert [line["step"] for line in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3]


class Brought:
    """TRL's client without NCCL: weights are brought with `bring`."""

    bring = staticmethod(lambda: None)

    def __init__(self, base_url: str) -> None:
        self.session = requests.Session()

    def init_communicator(self, device: Any) -> None: ...

    def update_named_params(self, known: Any, weights: Iterator[Any]) -> None:
        next(weights)
        self.bring()

    def reset_prefix_cache(self) -> None: ...


def test_a_server_that_goes_away_among_rollouts_is_an_outage_of_the_run(
    random_policy: Path,
    tmp_path: Path,
    served: tuple[TakesWeights, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, url = served
    monkeypatch.setattr("trl.generation.vllm_client.VLLMClient", Brought)
    hasty = RetryPolicy(deadline=0.5, attempt=5.0, attempts=None, first_pause=0.05)
    monkeypatch.setattr(engines, "SERVER_RETRIES", hasty)
    outages: list[OutsideError] = []

    def leave(step: int) -> None:
        server.service.draining = step == 1

    job = served_job(random_policy, tmp_path / "stage", url, steps=2)
    with pytest.raises(InferenceError, match="see that the server runs"):
        train_served(replace(job, callbacks=TrainingCallbacks(on_outage=outages.append)), leave)
    assert outages


def gone(*_: Any, **__: Any) -> None:
    requests.post(f"http://127.0.0.1:{free_port()}/update_weights", timeout=5)


def ours(*_: Any) -> None:
    raise TypeError("ours")


@pytest.mark.parametrize(
    ("call", "fails", "fault", "said"),
    [
        (
            "init_communicator",
            gone,
            InferenceError,
            r"did not take the weights \(.*run the same command again",
        ),
        ("bring", gone, InferenceError, r"did not take the weights \(.*run the same command again"),
        ("bring", ours, TypeError, "ours"),
    ],
)
def test_a_server_that_does_not_take_the_weights_is_outside_trouble_and_what_none_has_said_is_not(
    random_policy: Path,
    tmp_path: Path,
    served: tuple[TakesWeights, str],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    fails: Callable[..., None],
    fault: type[Exception],
    said: str,
) -> None:
    monkeypatch.setattr("trl.generation.vllm_client.VLLMClient", Brought)
    monkeypatch.setattr(Brought, call, fails)
    with pytest.raises(fault, match=said):
        train_served(served_job(random_policy, tmp_path / "stage", served[1]))
