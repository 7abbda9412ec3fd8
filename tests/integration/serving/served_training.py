"""One rank of a training whose policy is served: TRL's own client, and functions of ours in the place of NCCL's.

A fork of a process that has imported the trainer, told FOLDER POLICY URL OVERLAP ADAPTER. In FOLDER stands what was
`streamed` last, and the hash of the weights with which rollouts of a step began (`rank-<n>-step-<step>`). The server is
told how a push has ended by the file `push`. With a file `breaks`, the second push ends after so many weights as it
says. Who ends by itself leaves `left-<n>`.
"""

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click

from benchmarks.planned_rank import preload as preload
from scope_selfplay.base.sampling import Generate
from scope_selfplay.base.terminal import run_command
from scope_selfplay.base.values import Role
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.training.engines import Rows, StepResult, in_groups, open_engine
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.loop import TrainingLoop, load
from scope_selfplay.training.passes import RewardedRollout
from scope_selfplay.training.ranks import ranks
from tests.integration.loop.seam import GROUP, job_of, row


def sampler_of(source: Any, see: Callable[[int], None], seen: Callable[[], None]) -> Callable[..., Any]:
    """Rollouts of one sampled turn; `see` is called with the step when they begin, `seen` when they have ended."""

    async def sample(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        see(step)
        places = range(GROUP * len(records))
        turns = [source.generate(Generate((40, 41, 42), 3), (step, place)) for place in places]
        rows = [row(sampled=each.ids) for each in await asyncio.gather(*turns)]
        seen()
        rollouts = [RewardedRollout([each], float(place % 2)) for place, each in enumerate(rows)]
        return StepResult(in_groups(rollouts, GROUP), {})

    return sample


TAKEN_ALONG = ("LLM", "RequestOutput", "SamplingParams")
"""What TRL imports beside its client."""


def install_vllm(broadcast: Callable[..., None]) -> None:
    """As much of a vLLM as TRL's client imports."""
    known = {
        "vllm": {"__version__": "0.31.0", "__file__": __file__, **dict.fromkeys(TAKEN_ALONG)},
        "vllm.sampling_params": {"StructuredOutputsParams": None},
        "vllm.utils.network_utils": {"get_ip": lambda: "127.0.0.1"},
        "vllm.distributed.weight_transfer.nccl_common": {
            "trainer_init": lambda info: SimpleNamespace(group=SimpleNamespace())
        },
        "vllm.distributed.weight_transfer.packed_tensor": {"packed_nccl_broadcast_producer": broadcast},
    }
    for name, values in known.items():
        module = ModuleType(name)
        vars(module).update(values, __spec__=ModuleSpec(name, None))
        sys.modules[name] = module


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("policy", type=click.Path(path_type=Path))
@click.argument("url")
@click.argument("overlap", type=int)
@click.argument("adapter", type=int)
def main(folder: Path, policy: Path, url: str, overlap: int, adapter: int) -> None:
    team, brought, breaks = ranks(), folder / "brought", folder / "breaks"
    asked = folder / f"asked-{team.number}"

    def broadcast(
        iterator: Iterator[Any], group: Any, src: int, post_iter_func: Callable[[Any], Any]
    ) -> None:
        assert not [*folder.glob("asked-*")], "rollouts are under way"
        # Long enough for another rank to be at its rollouts, should nothing hold it.
        time.sleep(1)
        most, found = None, hashlib.sha256()
        if breaks.exists() and brought.exists():
            most = int(breaks.read_text())
        streamed: list[tuple[str, str, list[int]]] = []
        for item in iterator:
            if len(streamed) == most:
                breaks.unlink()
                (folder / "push").write_text("broken")
                raise RuntimeError("NCCL error: unhandled system error")
            weight = post_iter_func(item)
            found.update(weight.numpy().tobytes())
            streamed.append((item[0], str(weight.dtype).removeprefix("torch."), list(weight.shape)))
        (folder / "streamed").write_text(json.dumps(streamed))
        brought.write_text(found.hexdigest())
        (folder / "push").write_text("whole")

    def see(step: int) -> None:
        (folder / f"rank-{team.number}-step-{step}").write_text(brought.read_text())
        asked.touch()

    def seen() -> None:
        # One rank is always later than the other.
        time.sleep(team.number / 2)
        asked.unlink()

    install_vllm(broadcast)
    # M0 is asked where there is an adapter.
    beta = 0.1 if adapter else 0.0
    served = ModelConfig(engine="vllm_server", vllm_url=url, lora_rank=adapter)
    job = job_of(policy, folder, kl_beta=beta, micro_tokens=1, steps=3, overlap=overlap, model=served)
    try:
        train(replace(job, ranks=team), see, seen)
    finally:
        (folder / f"left-{team.number}").touch()


def train(job: GrpoJob, see: Callable[[int], None], seen: Callable[[], None]) -> None:
    import torch

    with job.ranks:
        model = load(job)
        # TRL's client goes on for a GPU alone, and leaves one without a number as it is.
        placed: Any = SimpleNamespace(placement=replace(model.placement, device=torch.device("cuda")))
        context: Any = SimpleNamespace(activity=SimpleNamespace(sampled=lambda tokens: None))
        engine = open_engine(job, placed, context, Role.SOLVER, "S_0")
        TrainingLoop(job, model, engine, sampler_of(engine.source, see, seen)).run()


def run(arguments: Sequence[str]) -> None:
    sys.argv[1:] = arguments
    run_command(main, "train")
