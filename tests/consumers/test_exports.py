"""Every export, loaded by the library that it is for; `make test-consumers` installs them in an environment."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.inference.checkpoints import policy_path
from scope_selfplay.net.serve import ServedReply, ServedRequest
from scope_selfplay.testing.chat_server import FakeServer
from tests.exported_run import write_exports, write_finished_run

pytestmark = pytest.mark.consumers


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    run = write_finished_run(tmp_path_factory.mktemp("runs") / "demo")
    return write_exports(run, tmp_path_factory.mktemp("exports"))


def test_inspect_builds_a_task_on_samples(exported: dict[str, Path]) -> None:
    from inspect_ai import Task
    from inspect_ai.dataset import json_dataset
    from inspect_ai.scorer import includes

    samples = json_dataset(str(exported["inspect"] / "test.jsonl"))
    assert len(samples) == 12 and str(samples[0].target).startswith("- Identifies the builder.")
    assert samples[0].metadata is not None and samples[0].metadata["task_id"] == samples[0].id
    assert [each.id for each in Task(dataset=samples, scorer=includes()).dataset] == [
        each.id for each in samples
    ]


def test_verifiers_reads_task_data(exported: dict[str, Path]) -> None:
    from datasets import load_dataset
    from verifiers.v1.task import WireTaskData

    rows = load_dataset(str(exported["verifiers"]), split="train")
    assert len(rows) == 24
    for row in rows:
        data = WireTaskData(**row)
        assert data.prompt_text.startswith("Say who built") and json.loads(data.info)["rubric"]


def verl_dataset(path: Path, cache: Path) -> Any:
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    settings = {
        "cache_dir": str(cache),
        "prompt_key": "prompt",
        "max_prompt_length": 512,
        "filter_overlong_prompts": True,
        "filter_overlong_prompts_workers": 1,
    }
    tokenizer = AutoTokenizer.from_pretrained(policy_path("embedded"))
    return RLHFDataset(str(path), tokenizer, OmegaConf.create(settings))


def test_verl_trains_on_the_rows_of_its_dataset(exported: dict[str, Path], tmp_path: Path) -> None:
    from verl.utils.dataset.rl_dataset import collate_fn

    rows = verl_dataset(exported["verl"] / "train.parquet", tmp_path)
    # None is left out as too long or unreadable by the chat template.
    assert len(rows) == 24
    batch = collate_fn([rows[0], rows[5]])
    assert batch["raw_prompt"][1][0]["role"] == "user" and list(batch["index"]) == [0, 5]
    # What a custom reward function is called with.
    truth = json.loads(batch["reward_model"][0]["ground_truth"])
    assert truth[0]["text"] == "Identifies the builder." and batch["data_source"][0] == "scope-selfplay"


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


async def test_vf_eval_asks_the_tasks_and_the_judge_decides_by_criterion(
    exported: dict[str, Path], tmp_path: Path
) -> None:
    """The library's own command evaluates a model in the exported environment."""
    fake = FakeServer(answer_or_judge)
    async with fake.serving() as url:
        said = await evaluate(exported["verifiers"], tmp_path / "out", url)
    (traces,) = (tmp_path / "out").rglob("traces.jsonl")
    episodes = [json.loads(line) for line in traces.read_text().splitlines()]
    scores = [trace["rewards"]["rubric"]["score"] for each in episodes for trace in each["traces"]]
    # One of two criteria of the same weight is met, in each of three tasks.
    assert scores == [0.5, 0.5, 0.5], said
    assert len(fake.requests) == 3 * (1 + 2)
