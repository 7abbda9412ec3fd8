"""`scope export --format verifiers`: the library's own command evaluates a model in the exported environment."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from scope_selfplay.net.serve import ServedReply, ServedRequest
from scope_selfplay.testing.chat_server import FakeServer
from tests.exported_run import write_exports, write_finished_run

pytestmark = [pytest.mark.consumers, pytest.mark.timeout(300)]


def answer_or_judge(request: ServedRequest) -> ServedReply:
    if "criterion" not in request.prompt:
        return ServedReply("Ada built it.")
    return ServedReply("yes" if "Identifies the builder." in request.prompt else "no")


async def evaluate(folder: Path, out: Path, url: str) -> str:
    command = [str(Path(sys.executable).parent / "vf-eval"), "scope_tasks", "--model", "fake", "-n", "3"]
    judge = ["--env.taskset.task.judge.base-url", url, "--env.taskset.task.judge.model", "fake"]
    where = ["--client.base-url", url, "--env.agent.runtime.type", "subprocess", "-o", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *(*command, *where, *judge, "--no-push", "--no-rich"),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


async def test_vf_eval_asks_the_tasks_and_the_judge_decides_by_criterion(tmp_path: Path) -> None:
    folder = write_exports(write_finished_run(tmp_path / "demo"), tmp_path / "exports")["verifiers"]
    fake = FakeServer(answer_or_judge)
    async with fake.serving() as url:
        said = await evaluate(folder, tmp_path / "out", url)
    (traces,) = (tmp_path / "out").rglob("traces.jsonl")
    episodes = [json.loads(line) for line in traces.read_text().splitlines()]
    scores = [trace["rewards"]["rubric"]["score"] for each in episodes for trace in each["traces"]]
    # One of two criteria of the same weight is met, in each of three tasks.
    assert scores == [0.5, 0.5, 0.5], said
    assert len(fake.requests) == 3 * (1 + 2)
