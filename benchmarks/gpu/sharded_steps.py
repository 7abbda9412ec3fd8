"""A training under FSDP2 of one rank, with the settings of a GPU pod: it is killed, goes on, and is exported."""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.gpu.made_up import NoEngine, Stopped, job_of, sampler_of
from benchmarks.gpu.part import PartContext
from benchmarks.gpu.role_steps import StepTimes, note_peak, note_step, settings_of, step_times
from jobs.launch import TrainingNode, rank_environments
from scope_selfplay.config.cluster import OFFLOADED
from scope_selfplay.inference.checkpoints import stored_dtype
from scope_selfplay.store.files import read_rows
from scope_selfplay.training.job import GrpoJob, TrainingCallbacks
from scope_selfplay.training.loop import TrainingLoop, load

SAVED = 2
"""The step after which the training is killed; its checkpoint is the first."""
Sums = dict[str, float]


def killed_and_resumed(context: PartContext, gpus: str) -> None:
    """As on a pod of so many GPUs: with four, weights and optimizer are on the GPU, with two in the host's memory."""
    offloaded = int(gpus) in OFFLOADED
    policy = context.random_policy(context.scale.sharded)
    _join_as_one_rank(offloaded)
    settings = settings_of(context, "solver", steps=SAVED + 1, save_every=SAVED)
    job = job_of(policy, context.folder / "training", settings)
    killed = _Training(context, job)
    times = killed.run(stops=True)
    rows = context.scale.batch * context.scale.group * sum(context.scale.lengths["solver"])
    note_step(context, read_rows(job.folder.metrics), rows, times)
    note_peak(context, job, sharded=True, offloaded=offloaded)
    resumed = _Training(context, job)
    resumed.run(stops=False)
    context.note(
        save_seconds=killed.restored_at - killed.stepped_at,
        resume_seconds=resumed.restored_at - resumed.began_at,
        export_seconds=resumed.export_seconds,
    )
    claim, lines = context.claim, read_rows(job.folder.metrics)
    claim(resumed.first_step == SAVED, f"training went on from step {resumed.first_step}, not {SAVED}")
    claim(
        killed.weights == resumed.weights, "weights that were gone on with differ from those that were saved"
    )
    claim([line["step"] for line in lines] == [1, 2, 3], "metrics.jsonl has not one line of each step")
    claim(resumed.live == resumed.exported, "exported weights differ from those in training")


class _Training:
    """One run of the job up to its end or to a kill, with when things happened and sums of its weights."""

    def __init__(self, context: PartContext, job: GrpoJob) -> None:
        self._sample = sampler_of(context.scale.lengths["solver"], context.scale.group)
        self._job = replace(job, callbacks=TrainingCallbacks(on_step=self._stepped))
        self.began_at = self.stepped_at = self.restored_at = self.export_seconds = 0.0
        self.first_step: int | None = None
        self.weights: Sums = {}
        self.live: Sums = {}
        self.exported: Sums = {}

    def run(self, *, stops: bool) -> StepTimes:
        def at_step(model: Any, step: int) -> None:
            self.first_step = step if self.first_step is None else self.first_step
            if step == SAVED:
                self.restored_at = perf_counter()
                self.weights = sums_of(model.network.named_parameters(), "float32")
                if stops:
                    raise Stopped

        self.began_at = perf_counter()
        with self._job.ranks:
            model = load(self._job)
            loop = TrainingLoop(self._job, model, NoEngine(at_step), self._sample)
            times = step_times(loop)
            with suppress(Stopped):
                checkpoint = loop.run()
                # After its last step a training only exports.
                self.export_seconds = perf_counter() - self.stepped_at
                dtype = stored_dtype(self._job.start.base)
                self.live = sums_of(model.network.named_parameters(), dtype)
                self.exported = sums_of(_stored(checkpoint), dtype)
        # The next training needs the room of this one's weights.
        del loop, model
        gc.collect()
        return times

    def _stepped(self, step: int, line: dict[str, Any], accounts: Sequence[Any]) -> None:
        self.stepped_at = perf_counter()


def sums_of(weights: Any, dtype: str) -> Sums:
    """A sum of the bits of every weight, in this data type; of shards, of what they are together."""
    import torch
    from torch.distributed.tensor import DTensor

    width = {"float32": torch.int32, "bfloat16": torch.int16}[dtype]
    device, found = "cuda" if torch.cuda.is_available() else "cpu", {}
    for name, weight in weights:
        with torch.no_grad():
            moved = weight.detach().to(device)
            whole = moved.full_tensor() if isinstance(moved, DTensor) else moved
            bits = whole.to(getattr(torch, dtype)).contiguous().view(width).flatten()
            # The place counts: two weights that changed places are others.
            places = torch.arange(bits.numel(), device=device, dtype=torch.int32) % 8191
            found[name] = int((bits.to(torch.int32) * places).sum(dtype=torch.int64))
    return found


def _stored(checkpoint: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - it is no mapping
                yield name, weights.get_tensor(name)


def _join_as_one_rank(offloaded: bool) -> None:
    """What the launcher does for a rank, here and now."""
    (rank,) = rank_environments(TrainingNode(1))
    os.environ |= rank | {"SCOPE_FSDP_SHARERS": "1", "SCOPE_FSDP_OFFLOAD": f"{offloaded:d}"}
