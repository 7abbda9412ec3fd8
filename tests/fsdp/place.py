"""Cases that several ranks work on, one after the other: functions of a `Place` that return what a test looks at."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobs.launch import TrainingNode, rank_environments, run_ranks
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.ranks import Ranks
from tests.integration.loop.seam import job_of

Found = dict[str, list[dict[str, Any]]]
"""By the name of a case, what each rank returned from it, as JSON has it."""


@dataclass(frozen=True)
class Place:
    """`folder` is the case's own, shared by its ranks; the policies are tiny and belong to all cases."""

    folder: Path
    random_policy: Path
    speaking_policy: Path
    ranks: Ranks


def found_by(
    command: Sequence[str],
    cases: Sequence[Callable[[Place], dict[str, Any]]],
    folder: Path,
    *,
    ranks: int = 2,
    sharers: int | None = None,
) -> Found:
    """What ranks of the project's own launcher find, told what those of GPUs are told: all share one copy, or so many.

    `command`: the fixture `forks`. A signal to this process reaches all ranks, as in a pod.
    """
    told = {"SCOPE_FSDP_SHARERS": str(sharers or ranks), "SCOPE_FSDP_OFFLOAD": "0"}
    environments = [{**told, **rank} for rank in rank_environments(TrainingNode(ranks))]
    names, said = [f"{case.__module__}:{case.__name__}" for case in cases], list[str]()
    ending = run_ranks(
        [*command, str(folder), *names], environments, said.append, grace=60.0, after_failure=10.0
    )
    assert ending.code == 0, "\n".join(said[-40:])
    return {
        case.__name__: [
            json.loads((folder / case.__name__ / f"rank-{rank}.json").read_text()) for rank in range(ranks)
        ]
        for case in cases
    }


def sharded_job(
    place: Place, name: str = "", *, start: Path | None = None, lora: bool = False, **settings: Any
) -> GrpoJob:
    """A step's four rollouts are two for each of two ranks, in two passes. `name`: of several in one case."""
    given = {"micro_tokens": 1, "kl_beta": 0.0, "model": ModelConfig(lora_rank=4 * lora), **settings}
    job = job_of(place.random_policy, place.folder / name, start=start, **given)
    return replace(job, ranks=place.ranks)


def weights_on_disk(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    return {name: weight for file in files for name, weight in load_file(file).items()}


@contextmanager
def offloading() -> Iterator[None]:
    """What the launcher tells two GPUs: weights and optimizer lie in the host's memory."""
    os.environ["SCOPE_FSDP_OFFLOAD"] = "1"
    try:
        yield
    finally:
        os.environ["SCOPE_FSDP_OFFLOAD"] = "0"
