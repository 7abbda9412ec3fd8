"""Trainings of a few steps on made-up rollouts, as the ranks of a case run them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from scope_selfplay.base.errors import TrainingError
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.ranks import PeerEnded
from tests.fsdp.place import Place
from tests.integration.loop.seam import NoEngine, Score, by_member, job_of, sampler_of, train_on, with_model


def sharded_job(
    place: Place, name: str = "", *, start: Path | None = None, lora: bool = False, **settings: Any
) -> GrpoJob:
    """A step's four rollouts are two for each of two ranks, in two passes. `name`: of several in one case."""
    given = {"micro_tokens": 1, "kl_beta": 0.0, **settings}
    job = replace(job_of(place.random_policy, place.folder / name, start=start, **given), ranks=place.ranks)
    return with_model(job, job.options.model.model_copy(update={"lora_rank": 4})) if lora else job


def trained_metrics(job: GrpoJob, score: Score = by_member) -> list[dict[str, Any]]:
    """Trains as a stage does; returns the lines of metrics.jsonl."""
    train_on(job, score)
    return read_rows(job.folder.metrics)


def ending_of(work: Callable[[], object]) -> dict[str, Any]:
    """How a training ends that must fail on every rank: the first one to tell tells why."""
    try:
        work()
    except TrainingError as error:
        return {"code": int(error.exit_code), "error": str(error)}
    except PeerEnded as ended:
        return {"code": ended.code, "error": ""}
    return {"code": 0}


def loop_of(job: GrpoJob, score: Score = by_member) -> Any:
    """The loop of a training, for cases that look into it; within `with job.ranks`."""
    from scope_selfplay.training.loop import TrainingLoop, load

    return TrainingLoop(job, load(job), NoEngine(), sampler_of(score))


def weights_on_disk(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    return {name: weight for file in files for name, weight in load_file(file).items()}


def changed(job: GrpoJob) -> list[str]:
    """The names of the weights that a training has moved."""
    before, after = weights_on_disk(job.start.weights), weights_on_disk(job.folder.checkpoint)
    return [name for name, weight in before.items() if not weight.equal(after[name])]
