"""Whether ranks that have unequal rows teach what one process teaches from the rows of all: gradients, and weights.

Two updates by plain SGD, of every loss, with and without a KL, in full and by an adapter, under every placement. In
bf16 each row has a pass of its own: rows that share a pass are rounded together, whoever computes it.
tests/fsdp/test_uneven_ranks.py tries cases of all, and with `make bench-ranks` all 480.
"""

import importlib
import json
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import planned_rank
from benchmarks.forked import fork_server
from benchmarks.gpu.made_up import NoEngine, job_of
from benchmarks.tiny_tokenizer import build_tokenizer
from jobs.launch import TrainingNode, rank_environments, run_ranks
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.testing.random_policy import small_qwen3
from scope_selfplay.training.engines import StepResult
from scope_selfplay.training.loop import TrainingLoop
from scope_selfplay.training.model import Placement, TrainedModel
from scope_selfplay.training.passes import RewardedRollout, TrainingRow
from scope_selfplay.training.ranks import Ranks, ranks

LOSSES = ("grpo", "dr_grpo", "dapo", "cispo", "gspo")
PLACEMENTS = {"plain": "float32", "plain bf16": "bfloat16", "FSDP": "float32", "FSDP bf16": "bfloat16"}
KEPT: Any = {"steps": 1, "epochs": 2, "batch": 3, "sampling_cap": 3.0, "clip_norm": 1e9, "warmup_ratio": 0}
KEPT |= {"max_prompt": 8, "max_response": 504}
_SHORT = [[([2 + place % 4], 0.0), ([3], 1.0)] for place in range(20)]
SHAPES: dict[str, Sequence[Any]] = {
    "2 and 4 rows": [[[([5], 1.0), ([9], 0.0)]], [[([7], 0.0), ([4, 12, 3], 1.0)]]],
    "one empty": [[[([], None), ([], 0.0)]], [[([7], 0.0), ([11], 1.0)]]],
    "one masked": [[[([7], 0.3), ([11], 0.9)]], [[([5], None), ([20], None)]]],
    "one flat": [[[([5], 0.4), ([20], 0.4)]], [[([7], 1.0), ([11], 0.0), ([2], 0.1)]]],
    "one of 504 tokens, 40 short": [[[([504], 1.0), ([2], 0.0)]], _SHORT],
    "1, 5 and 0 rows": [[[([9], 1.0), ([6], 0.0)]], [[([5], 1.0), ([8, 3], 0.0)], _SHORT[0]], []],
}
"""By rank, group and rollout: the tokens of its rows, its reward."""


class Case(NamedTuple):
    loss: str
    beta: float
    adapter: int
    placement: str
    shape: str


class Difference(NamedTuple):
    """Of both gradients from one process, over their norms, and of the weights, over how far they have `moved`."""

    first: float
    second: float
    weights: float
    moved: float


def all_cases() -> list[Case]:
    return [Case(*each) for each in product(LOSSES, (0.0, 0.1), (0, 4), PLACEMENTS, SHAPES)]


def preload() -> None:
    importlib.import_module("peft")
    planned_rank.preload()


def run(arguments: Sequence[str]) -> None:
    """One rank: a folder, and cases."""
    torch.set_num_threads(1)
    with ranks() as team:
        for case in json.loads(arguments[1]):
            found = _trained(Case(*case), Path(arguments[0]), team)
            if team.leads:
                torch.save(found, Path(arguments[0], f"{case}-{team.processes}"))


def _trained(case: Case, folder: Path, team: Ranks) -> list[Any]:
    """The gradients of both updates, and the weights before and after."""
    compute, sharded = getattr(torch, PLACEMENTS[case.placement]), case.placement.startswith("FSDP")
    # Dr. GRPO divides by the tokens that a rollout may spend.
    rate = (0.1 if case.adapter else 0.5) * (50.4 if case.loss == "dr_grpo" else 1)
    rows = {"micro_tokens": 64 if compute is torch.float32 else 1, "learning_rate": rate}
    settings = SolverConfig(loss=case.loss, kl_beta=case.beta, **rows, **KEPT)
    job = replace(job_of(folder / "base", folder / f"stage-{team.processes}", settings), ranks=team)
    placement = Placement(torch.device("cpu"), compute, team.processes if sharded else 1, sharded)
    # An adapter is over M0 itself. It is drawn, as `load` does it.
    start = folder / ("base" if case.adapter else "start")
    torch.manual_seed(3)
    model = TrainedModel(start, folder / "base", case.adapter, team, placement, refers=case.beta > 0)
    gradients, rollouts = list[Any](), _rollouts(case.shape)

    async def sample(records: Sequence[str], step: int, sampled: Any) -> StepResult:
        return StepResult(rollouts[team.number] if team.processes > 1 else list(chain(*rollouts)), {})

    def whole(tensors: Any) -> Any:
        return torch.cat([(each.full_tensor() if sharded else each).detach().flatten() for each in tensors])

    def update() -> None:
        gradients.append(whole(weight.grad for weight in model.trained.values()))
        descend()

    loop = TrainingLoop(job, model, NoEngine(lambda model, step: None), sample)
    loop.optimizer = torch.optim.SGD(model.trained.values(), rate)
    before, descend, loop.optimizer.step = whole(model.trained.values()), loop.optimizer.step, update
    loop.step(0)
    return [*gradients, before, whole(model.trained.values())]


def _rollouts(shape: str) -> list[list[list[RewardedRollout]]]:
    """By rank and group; every fifth token of a row was not sampled."""
    draw = random.Random(shape)

    def row(length: int) -> TrainingRow:
        mask = [int(place % 5 != 4) for place in range(length)]
        prompt, ids = ([draw.randrange(60, 1300) for _ in range(size)] for size in (8, length))
        return TrainingRow(prompt, ids, mask, [-7.0 * each for each in mask])

    def rollout(lengths: Sequence[int], *told: Any) -> RewardedRollout:
        return RewardedRollout([*map(row, lengths)], *told)

    return [[[rollout(*each) for each in group] for group in groups] for groups in SHAPES[shape]]


def _launched(processes: int, cases: Sequence[Case], folder: Path, command: Sequence[str]) -> None:
    told = [case for case in cases if processes in (1, len(SHAPES[case.shape]))]
    arguments, said = [*command, str(folder), json.dumps(told)], list[str]()
    ending = run_ranks(arguments, rank_environments(TrainingNode(processes)), said.append, grace=20.0)
    assert ending.code == 0, "\n".join(said[-20:])


def _difference(case: Case, folder: Path) -> Difference:
    files = [folder / f"{list(case)}-{processes}" for processes in (len(SHAPES[case.shape]), 1)]
    ours, theirs = map(torch.load, files)
    apart = [float((one - two).norm()) for one, two in zip(ours, theirs, strict=True)]
    first, second, before, after = theirs
    # What is clipped everywhere has no gradient at all.
    norms = [float(each.norm()) or 1.0 for each in (first, second, before, after - before)]
    return Difference(apart[0] / norms[0], apart[1] / norms[1], apart[3] / norms[3], norms[3] / norms[2])


def differences(cases: Sequence[Case], folder: Path) -> dict[Case, Difference]:
    tokenizer = build_tokenizer()
    model = small_qwen3(tokenizer, positions=512)
    for name, spread in (("base", 0.1), ("start", 0.01)):
        for weight in model.parameters():
            weight.data += torch.randn_like(weight) * spread * (weight.dim() > 1)
        model.save_pretrained(str(folder / name))
        tokenizer.save_pretrained(str(folder / name))
    with fork_server("benchmarks.uneven_ranks", folder) as command, ProcessPoolExecutor(3) as pool:
        list(pool.map(partial(_launched, cases=cases, folder=folder, command=command), (1, 2, 3)))
    return {case: _difference(case, folder) for case in cases}
