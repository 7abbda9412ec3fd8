"""One part of a proof, in a process of its own: python -m benchmarks.gpu.part NAME SCALE FOLDER

Works in FOLDER/<name> and shares FOLDER/policies with other parts; what it finds is in FOLDER/<name>.json at any time.
"""

import importlib
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from benchmarks.gpu.policies import forget_the_gpu, random_policy, speaking_policy
from benchmarks.gpu.scales import SCALES, Scale, Shape
from scope_selfplay.plan.memory import GIB
from scope_selfplay.store.files import write_atomic

TRAINER = ("trl", "transformers", "accelerate", "datasets")
PROVES = {
    "solver-step": "a Solver's update of 1.7B, all weights",
    "challenger-step": "a Challenger's update of 1.7B, all weights",
    "sharded": "FSDP2 of one rank: kill, save, resume and export of 0.6B",
    "colocated": "vLLM on the trainer's GPU: drift, sleep and wake, tokens per second",
    "sharded-offloaded": "FSDP2 of one rank with its weights in host memory",
    "adapter-step": "a Solver's update of 8B with an adapter",
    "solver-episodes": "shares of a step with real episodes, sampled by vLLM",
    "solver-episodes-in-process": "shares of a step with real episodes, sampled in this process",
    "challenger-episodes-in-process": "the same of a Challenger",
    "one-gpu": "`scope run --gpus 1`: an iteration with its servers on the trainers' GPU",
}


class Part(NamedTuple):
    """`work`: a module of this package, its function, and what that is told; `seconds`, how long it may take.

    `gpu_gib` and `disk_gib` are what it needs in the shapes of Qwen3.
    """

    name: str
    work: str
    seconds: int
    gpu_gib: int
    disk_gib: int
    extras: tuple[str, ...] = ()

    @property
    def proves(self) -> str:
        return PROVES[self.name]

    @property
    def packages(self) -> tuple[str, ...]:
        return (*TRAINER, *self.extras)


PARTS = (
    Part("solver-step", "role_steps:whole:solver", 100, 56, 5),
    Part("challenger-step", "role_steps:whole:challenger", 80, 56, 5),
    Part("sharded", "sharded_steps:killed_and_resumed:4", 120, 24, 20),
    Part("colocated", "colocated_steps:sleeping", 180, 70, 5, ("vllm",)),
    Part("sharded-offloaded", "sharded_steps:killed_and_resumed:2", 140, 24, 20),
    Part("adapter-step", "role_steps:adapter", 150, 62, 18, ("peft",)),
    Part("solver-episodes", "episode_steps:steps:solver:vllm_colocated", 180, 72, 10, ("bm25s", "vllm")),
    Part("solver-episodes-in-process", "episode_steps:steps:solver", 150, 72, 10, ("bm25s",)),
    Part("challenger-episodes-in-process", "episode_steps:steps:challenger", 150, 72, 10, ("bm25s",)),
    Part("one-gpu", "run_steps:one_gpu", 300, 40, 30, ("bm25s", "duckdb", "uvicorn")),
)
BY_NAME = {part.name: part for part in PARTS}


class Found(BaseModel):
    """What a part has found so far; `broken` are the claims that do not hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    skipped: str | None = None
    broken: tuple[str, ...] = ()
    figures: Mapping[str, float | str] = {}


@dataclass
class PartContext:
    """`folder` is the part's own and removed when it ends; `policies` belongs to all parts. Every note is written to
    `file`, so that a part that was stopped leaves what it had.
    """

    scale: Scale
    folder: Path
    policies: Path
    file: Path
    found: Found = field(default_factory=Found)

    def note(self, **figures: float | str) -> None:
        self._update(figures={**self.found.figures, **figures})

    def claim(self, kept: bool, otherwise: str) -> None:
        """Where it is not kept the part goes on, and has failed."""
        if not kept:
            self._update(broken=(*self.found.broken, otherwise))

    def skip(self, reason: str) -> None:
        self._update(skipped=reason)

    def _update(self, **changes: Any) -> None:
        self.found = self.found.model_copy(update=changes)
        write_atomic(self.file, self.found.model_dump_json())

    def random_policy(self, shape: Shape, *, shared: bool = True) -> Path:
        parent = self.policies if shared else self.folder / "policies"
        parent.mkdir(exist_ok=True)
        return self._written(random_policy(shape, self.scale.words, parent / shape.name))

    def speaking_policy(self) -> Path:
        return self._written(speaking_policy(self.scale, self.policies / "speaking"))

    def _written(self, policy: Path) -> Path:
        forget_the_gpu()
        return policy


def main() -> None:
    part, scale, folder = BY_NAME[sys.argv[1]], SCALES[sys.argv[2]], Path(sys.argv[3])
    context = PartContext(scale, folder / part.name, folder / "policies", folder / f"{part.name}.json")
    lacking = what_is_lacking(part, scale, folder)
    if lacking:
        context.skip(lacking)
        return
    for path in (context.folder, context.policies):
        path.mkdir(exist_ok=True)
    module, function, *told = part.work.split(":")
    getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)(context, *told)


def what_is_lacking(part: Part, scale: Scale, folder: Path) -> str | None:
    """What this part needs and this machine has not; None where it has all."""
    missing = [name for name in part.packages if find_spec(name) is None]
    if missing:
        return f"needs {', '.join(missing)}, not installed here"
    import torch

    if "vllm" in part.extras and not torch.cuda.is_available():
        return "vLLM beside a trainer needs an NVIDIA GPU"
    if not scale.on_gpu:
        return None
    have = torch.cuda.get_device_properties(0).total_memory / GIB
    if have < part.gpu_gib:
        return f"needs {part.gpu_gib} GiB of GPU memory, this one has {have:.0f}"
    free = shutil.disk_usage(folder).free / GIB
    if free < part.disk_gib:
        return f"needs {part.disk_gib} GiB of disk at {folder}, {free:.0f} are free"
    return None


if __name__ == "__main__":
    # What the parts import is this module by its name, not the one that runs.
    from benchmarks.gpu.part import main as run

    run()
