"""Sampling in several processes: the same tokens and records in any number, and nothing is left when a run ends."""

import asyncio
import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from scope_selfplay.base.errors import InferenceError
from scope_selfplay.base.sampling import Generate, Message, Sample
from scope_selfplay.base.terminal import Progress
from scope_selfplay.driver.local import run_here
from scope_selfplay.inference.checkpoints import load_model
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.in_process import InProcessModel
from scope_selfplay.inference.processes import SamplingProcesses, SpreadModel
from scope_selfplay.run.begin import open_run
from scope_selfplay.store.folder import RunFolder
from tests.integration.loop.test_run import config_of, records

OPTIONS: dict[str, Any] = {"slots": 8, "max_length": 160}


@pytest.fixture
def processes() -> Iterator[SamplingProcesses]:
    started = SamplingProcesses(1)
    yield started
    started.close()
    assert not any(alive(worker.pid) for worker in started.workers)


@pytest.fixture
def model(random_policy: Path) -> Any:
    return load_model(random_policy)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def spread(model: Any, codec: ChatCodec, processes: SamplingProcesses, **options: Any) -> SpreadModel:
    return processes.spread(InProcessModel(model, codec, identity="S_0", **OPTIONS, **options), OPTIONS)


def episodes(engine: Any, codec: ChatCodec, count: int = 6) -> list[list[Sample]]:
    """Two turns each."""

    async def episode(row: int) -> list[Sample]:
        prompt = codec.encode_prompt([Message("user", "Report the river. " * (1 + row))])
        one = await engine.generate(Generate(prompt, 12, ("</search>",)), ("key", row, 0))
        after = (*prompt, *one.ids, *codec.encode_next([Message("user", "go on")], sampled=one.ids))
        return [one, await engine.generate(Generate(after, 12, turn=1), ("key", row, 1))]

    async def together() -> list[list[Sample]]:
        return list(await asyncio.gather(*map(episode, range(count))))

    return asyncio.run(together())


def ids_of(rollouts: list[list[Sample]]) -> list[list[tuple[int, ...]]]:
    return [[sample.ids for sample in rollout] for rollout in rollouts]


def test_two_processes_sample_what_one_samples_for_a_frozen_policy_and_one_in_training(
    model: Any, codec: ChatCodec, processes: SamplingProcesses
) -> None:
    counted: list[int] = []
    learner = copy.deepcopy(model)
    frozen = spread(model, codec, processes, frozen=True)
    both = spread(learner, codec, processes, on_tokens=counted.append)
    alone = InProcessModel(learner, codec, identity="S_0", **OPTIONS)
    expected, found = episodes(alone, codec), episodes(both, codec)
    assert ids_of(found) == ids_of(expected) == ids_of(episodes(frozen, codec))
    assert sum(counted) == sum(len(sample.ids) for rollout in found for sample in rollout)
    with torch.no_grad():
        learner.model.embed_tokens.weight.normal_(std=0.3)
    for engine in (alone, both):
        engine.refresh("S_0@1")
    assert ids_of(episodes(both, codec)) == ids_of(episodes(alone, codec)) != ids_of(expected)
    assert ids_of(episodes(frozen, codec)) == ids_of(expected)


def test_a_process_that_dies_fails_its_calls_and_is_reported(model: Any, codec: ChatCodec) -> None:
    outages: list[InferenceError] = []
    processes = SamplingProcesses(1, outages.append)
    engine = spread(model, codec, processes)
    episodes(engine, codec, 2)
    os.kill(processes.workers[0].pid, signal.SIGKILL)
    with pytest.raises(
        InferenceError, match=r"ended \(exit code -9\); run the same command again, with a lower"
    ):
        for _ in range(20):
            episodes(engine, codec, 8)
    processes.close()
    assert [str(outage) for outage in outages] == [str(outages[0])]


PARENT = """
import os, signal, sys, time
from scope_selfplay.inference.processes import SamplingProcesses
# A shell starts what runs in its background deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
print(SamplingProcesses(1).workers[0].pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_one_that_started_it(number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert alive(worker)
    parent.send_signal(number)
    parent.wait(120)
    parent.stdout.close()
    deadline = time.monotonic() + 120
    while alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(worker)


def test_a_run_in_two_processes_keeps_the_records_of_one(
    finished: RunFolder, speaking_policy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_here(open_run(config_of(speaking_policy, "model.processes=2"), tmp_path, Progress()))
    assert capfd.readouterr().out == ""
    assert records(tmp_path) == records(finished.path.parent)
