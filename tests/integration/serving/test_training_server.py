"""A policy in training that is sampled elsewhere: no rollout before its weights are there, and what its outage is.

The server that samples is real, and so is TRL's client; what brings weights over NCCL needs GPUs on both sides, and is
stood in for.
"""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from benchmarks.forked import fork_server
from jobs.launch import TrainingNode, rank_environments
from scope_selfplay.base.errors import ExitCode
from scope_selfplay.inference.server import ModelService, model_app
from scope_selfplay.net.serve import serving
from scope_selfplay.store.files import read_rows
from tests.integration.serving.threads import in_thread

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


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with fork_server("tests.integration.serving.served_training", tmp_path_factory.mktemp("forks")) as begun:
        yield begun


def train_sharded(forks: list[str], folder: Path, *given: object) -> Ended:
    """Two ranks that share one copy of the policy, as two GPUs do; `given` are policy, URL, overlap and adapter."""
    command = [*forks, str(folder), *map(str, given)]
    output: dict[str, Any] = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with ExitStack() as to_kill:
        running = []
        for rank in rank_environments(TrainingNode(2)):
            environment = {**os.environ, **rank, "SCOPE_FSDP_SHARERS": "2"}
            running.append(subprocess.Popen(command, env=environment, **output))
            to_kill.callback(running[-1].kill)
        said = [rank.communicate(timeout=300)[0].splitlines() for rank in running]
    return Ended([rank.returncode for rank in running], said)


def weights_seen(folder: Path, rank: int) -> list[str]:
    """With which weights a rank began each step."""
    return [(folder / f"rank-{rank}-step-{step}").read_text() for step in range(3)]


def test_no_rank_samples_before_the_weights_of_its_turn_are_there_or_while_they_come(
    random_policy: Path, tmp_path: Path, served: tuple[TakesWeights, str], forks: list[str]
) -> None:
    server, url = served
    ended = train_sharded(forks, tmp_path, random_policy, url, 1, 2)
    assert ended.codes == [0, 0], ended.said
    first, second, third = weights_seen(tmp_path, 0)
    # Rollouts one step ahead begin with the weights that the step before them began with.
    assert first == second != third and weights_seen(tmp_path, 1) == [first, second, third]
    assert server.asked == [*BEGIN, *PUSH * 3]
    announced = zip(*(server.announced[-1][each] for each in ("names", "dtype_names", "shapes")), strict=True)
    assert list(map(list, announced)) == json.loads((tmp_path / "streamed").read_text())


def test_a_push_that_breaks_ends_both_ranks_and_the_same_command_goes_on(
    random_policy: Path, tmp_path: Path, served: tuple[TakesWeights, str], forks: list[str]
) -> None:
    server, url = served
    (tmp_path / "breaks").write_text("3")
    ended = train_sharded(forks, tmp_path, random_policy, url, 0, 0)
    assert ended.codes == [ExitCode.OUTSIDE] * 2
    assert [len(lines) for lines in ended.said] == [1, 0], ended.said
    (line,) = ended.said[0]
    assert re.match(r"train: model\.vllm_url: \S+ did not take the weights \(NCCL error.*same command", line)
    # The second rank has gathered to the end and left by itself.
    assert all((tmp_path / f"left-{rank}").exists() for rank in (0, 1))
    assert server.asked == [*BEGIN, *PUSH, *PUSH[:2]]
    server.asked.clear()

    assert train_sharded(forks, tmp_path, random_policy, url, 0, 0).codes == [0, 0]
    assert server.asked == [*BEGIN, *PUSH * 2]
    assert [line["step"] for line in read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3]
