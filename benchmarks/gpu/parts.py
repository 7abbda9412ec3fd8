"""The parts of a proof in order of importance: what each one needs, and how long it may take."""

from typing import NamedTuple

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
