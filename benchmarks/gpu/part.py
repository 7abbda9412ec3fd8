"""One part of a proof, in a process of its own.

python -m benchmarks.gpu.part NAME SCALE FOLDER

Works in FOLDER/<name> and shares FOLDER/policies with other parts; what it finds is in FOLDER/<name>.json at any time.
"""

import importlib
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.context import CannotRun, PartContext
from benchmarks.gpu.findings import Findings
from benchmarks.gpu.scales import SCALES, Scale

TRAINER = ("trl", "transformers", "accelerate", "datasets")


class Part(NamedTuple):
    """`work` is `module:function` in this package; `seconds`, how long it may take.

    `gpu_gib` and `disk_gib` are what it needs in the shapes of Qwen3.
    """

    name: str
    work: str
    proves: str
    seconds: int
    gpu_gib: int
    disk_gib: int
    packages: tuple[str, ...] = TRAINER


PARTS = (
    Part("solver-step", "role_steps:solver", "a Solver's update of 1.7B, all weights", 100, 56, 5),
    Part("challenger-step", "role_steps:challenger", "a Challenger's update of 1.7B, all weights", 80, 56, 5),
    Part(
        "sharded",
        "sharded_steps:four_gpus",
        "FSDP2 of one rank: kill, save, resume and export of 0.6B",
        120,
        24,
        20,
    ),
    Part(
        "colocated",
        "colocated_steps:sleeping",
        "vLLM on the trainer's GPU: drift, sleep and wake, tokens per second",
        180,
        70,
        5,
        (*TRAINER, "vllm"),
    ),
    Part(
        "sharded-offloaded",
        "sharded_steps:two_gpus",
        "FSDP2 of one rank with its weights in host memory",
        140,
        24,
        20,
    ),
    Part(
        "adapter-step",
        "role_steps:adapter",
        "a Solver's update of 8B with an adapter",
        150,
        62,
        18,
        (*TRAINER, "peft"),
    ),
    Part(
        "solver-episodes",
        "episode_steps:solver_colocated",
        "shares of a step with real episodes, sampled by vLLM",
        180,
        72,
        10,
        (*TRAINER, "bm25s", "vllm"),
    ),
    Part(
        "solver-episodes-in-process",
        "episode_steps:solver_in_process",
        "shares of a step with real episodes, sampled in this process",
        150,
        72,
        10,
        (*TRAINER, "bm25s"),
    ),
    Part(
        "challenger-episodes-in-process",
        "episode_steps:challenger_in_process",
        "the same of a Challenger",
        150,
        72,
        10,
        (*TRAINER, "bm25s"),
    ),
)
BY_NAME = {part.name: part for part in PARTS}


GIB = 2**30


def main() -> None:
    name, scale, folder = sys.argv[1], SCALES[sys.argv[2]], Path(sys.argv[3])
    run_part(BY_NAME[name], scale, folder)


def run_part(part: Part, scale: Scale, folder: Path) -> None:
    findings, own = Findings(folder / f"{part.name}.json"), folder / part.name
    lacking = what_is_lacking(part, scale, folder)
    if lacking:
        findings.skip(lacking)
        return
    policies = folder / "policies"
    for path in (own, policies):
        path.mkdir(exist_ok=True)
    module, _, function = part.work.partition(":")
    work = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)
    try:
        work(PartContext(scale, own, policies, findings))
    except CannotRun as reason:
        findings.skip(str(reason))
    finally:
        shutil.rmtree(own, ignore_errors=True)


def what_is_lacking(part: Part, scale: Scale, folder: Path) -> str | None:
    """What this part needs and this machine has not; None where it has all."""
    missing = [name for name in part.packages if find_spec(name) is None]
    if missing:
        return f"needs {', '.join(missing)}, not installed here"
    if not scale.on_gpu:
        return None
    import torch

    have = torch.cuda.get_device_properties(0).total_memory / GIB
    if have < part.gpu_gib:
        return f"needs {part.gpu_gib} GiB of GPU memory, this one has {have:.0f}"
    free = shutil.disk_usage(folder).free / GIB
    if free < part.disk_gib:
        return f"needs {part.disk_gib} GiB of disk at {folder}, {free:.0f} are free"
    return None


if __name__ == "__main__":
    main()
