"""Whether ranks that have unequal rows teach what one process teaches from the rows of all of them.

    python -m benchmarks.uneven_ranks [--covering]

Every loss, with and without a KL to other weights, in full and by an adapter, plain and under FSDP, in fp32 and bf16.
The gradients of two updates and the weights after plain SGD are compared, whole, with those of one process under the
same placement; with --covering, in as few trainings as have every two choices together. Nothing is written here.
"""

import argparse
import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.forked import fork_server

LOSSES = ("grpo", "dr_grpo", "dapo", "cispo", "gspo")
PLACEMENTS = {"plain": (False, "float32"), "plain bf16": (False, "bfloat16"), "FSDP": (True, "float32"), "FSDP bf16": (True, "bfloat16")}
TOLERATED = {"float32": 1e-5, "bfloat16": 1e-2}
PROMPT, RESPONSE = 8, 504
MASKED = -1.0
"""Stands for no reward."""
SHAPES: dict[str, Sequence[Any]] = {
    "2 and 4 rows": [[[([5], 1.0), ([9], 0.0)]], [[([7], 0.0), ([4, 12, 3], 1.0)]]],
    "one empty": [[[([], MASKED), ([], 0.0)]], [[([7], 0.0), ([11], 1.0)]]],
    "one masked": [[[([7], 0.3), ([11], 0.9)]], [[([5], MASKED), ([20], MASKED)]]],
    "one flat": [[[([5], 0.4), ([20], 0.4)]], [[([7], 1.0), ([11], 0.0), ([2], 0.1)]]],
    "one long, forty short": [[[([RESPONSE], 1.0), ([2], 0.0)]], [[([2 + n % 4], 0.0), ([3], 1.0)] for n in range(20)]],
    "1, 5 and 0 rows": [[[([9], 1.0), ([6], 0.0, True)]], [[([5], 1.0), ([8, 3], 0.0)], [([6], 1.0), ([4], 0.0)]], []],
}  # fmt: skip
"""By rank, group and rollout: the sampled tokens of its rows, its reward, and whether it is left out as truncated."""


class Case(NamedTuple):
    loss: str
    kl: float
    rank: int
    placement: str
    shape: str

    @property
    def pairs(self) -> set[Any]:
        return set(combinations(enumerate(self), 2))


class Difference(NamedTuple):
    """Norms: of the gradients' differences over their own, of the weights' over the way that they went; and that way
    over the weights'.
    """

    first: float
    second: float
    weights: float
    moved: float


def all_cases() -> list[Case]:
    return [Case(*each) for each in product(LOSSES, (0.0, 0.1), (0, 4), PLACEMENTS, SHAPES)]


def covering_cases() -> list[Case]:
    """Few of them, with every two choices together in one."""
    cases, chosen = all_cases(), list[Case]()
    left = set().union(*(case.pairs for case in cases))
    while left:
        chosen.append(max(cases, key=lambda case: len(left & case.pairs)))
        left -= chosen[-1].pairs
    return chosen


def preload() -> None:
    """What every rank imports."""
    import peft
    import torch.distributed.fsdp
    import transformers.models.qwen3.modeling_qwen3

    import scope_selfplay.training.loop

    assert peft and torch and transformers and scope_selfplay


def run(arguments: Sequence[str]) -> None:
    """One rank: the folder, and the cases."""
    import torch

    from scope_selfplay.training.ranks import ranks

    torch.set_num_threads(1)
    folder, team = Path(arguments[0]), ranks()
    with team:
        for case in (Case(*each) for each in json.loads(arguments[1])):
            found = _trained(case, folder, team)
            if team.leads:
                torch.save(found, _file(folder, case, team.processes))


def _trained(case: Case, folder: Path, ranks: Any) -> dict[str, Any]:
    import torch

    from scope_selfplay.config import LoraConfig, SolverConfig
    from scope_selfplay.inference.codec import ChatCodec
    from scope_selfplay.store import StageFolder
    from scope_selfplay.training.engines import StepResult
    from scope_selfplay.training.job import GrpoJob, TrainingOptions, TrainingStart
    from scope_selfplay.training.loop import TrainingLoop
    from scope_selfplay.training.loss import scale_of
    from scope_selfplay.training.model import Placement, TrainedModel

    sharded, precision = PLACEMENTS[case.placement]
    # Dr. GRPO divides by the tokens that a rollout may spend.
    rate = (0.1 if case.rank else 0.5) * (RESPONSE / 10 if case.loss == "dr_grpo" else 1)
    settings = SolverConfig(
        steps=1, batch=3, group_size=2, epochs=2, loss=case.loss, kl_beta=case.kl, micro_tokens=64 if precision == "float32" else 1, max_prompt=PROMPT,
        max_response=RESPONSE, mask_truncated=True, sampling_cap=3.0, clip_norm=1e9, learning_rate=rate, warmup_ratio=0.0,
    )  # fmt: skip
    options = TrainingOptions(settings, temperature=1.0, seed=3, scale=scale_of(settings))
    # An adapter is over M0 itself, which is then what is below it.
    start, base = folder / ("base" if case.rank else "start"), folder / "base"
    records, stage = ["a", "b", "c"], StageFolder(folder / f"stage-{ranks.processes}")
    stage.path.mkdir(exist_ok=True)
    job = GrpoJob(TrainingStart(start, base), options, records, stage, ChatCodec.load(base), ranks=ranks)
    placement = Placement(torch.device("cpu"), getattr(torch, precision), ranks.processes if sharded else 1, sharded)
    lora = LoraConfig(rank=case.rank, alpha=64.0, target_modules=("q_proj", "v_proj", "down_proj"))
    # As `load` does: ranks that hold whole adapters begin with the same one.
    torch.manual_seed(3)
    model = TrainedModel(start, base, lora, ranks, placement, refers=case.kl > 0)

    async def sample(records: Sequence[str], step: int, sampled: Any) -> StepResult:
        groups = list(_groups(case.shape))
        return StepResult(list(chain(*groups)) if ranks.processes == 1 else groups[ranks.number], {})

    loop = TrainingLoop(job, model, _NoEngine(), sample)
    loop.optimizer = torch.optim.SGD(model.trained.values(), rate)
    gradients, step = [], loop.optimizer.step

    def noted() -> None:
        named = sorted(model.trained.items())
        found = [weight.grad.full_tensor() if sharded else weight.grad for _, weight in named]
        gradients.append(torch.cat([each.flatten().clone() for each in found]))
        step()

    def weights() -> Any:
        return torch.cat([each.flatten() for _, each in model.whole_weights(torch.float32, trained_only=True)])

    loop.optimizer.step = noted
    before = weights()
    loop.step(0)
    return {"gradients": gradients, "before": before, "after": weights()}


def _groups(shape: str) -> Iterator[list[list[Any]]]:
    """Of each rank; every fifth token after the first was not sampled."""
    from scope_selfplay.training.rows import RewardedRollout, TrainingRow

    draw = random.Random(shape)

    def row(length: int) -> Any:
        mask = [int(place % 5 != 4) for place in range(length)]
        ids = [draw.randrange(60, 1300) for _ in range(PROMPT + length)]
        return TrainingRow(ids[:PROMPT], ids[PROMPT:], mask, [-7.0 * each for each in mask])

    for rank in SHAPES[shape]:
        yield [
            [RewardedRollout([row(each) for each in rows], None if reward == MASKED else reward, *left_out) for rows, reward, *left_out in group]
            for group in rank
        ]


class _NoEngine:
    source = None

    def take(self, model: Any, identity: str) -> None:
        return

    def serve(self, sampled: "Future[Any]") -> None:
        wait([sampled])


def _file(folder: Path, case: Case, processes: int) -> Path:
    return folder / f"{'-'.join(map(str, case))}-{processes}.pt"


def write_policies(folder: Path) -> None:
    """M0, and one that has gone a little way from it."""
    import torch

    from benchmarks.tiny_tokenizer import build_tokenizer
    from scope_selfplay.testing.random_policy import small_qwen3

    tokenizer = build_tokenizer()
    model = small_qwen3(tokenizer, positions=2 * RESPONSE)
    for name, spread in (("base", 0.1), ("start", 0.01)):
        for weight in model.parameters():
            weight.data += torch.randn_like(weight) * spread * (weight.dim() > 1)
        model.save_pretrained(str(folder / name))
        tokenizer.save_pretrained(str(folder / name))


def _launched(processes: int, cases: Sequence[Case], folder: Path, command: Sequence[str]) -> None:
    from scope_selfplay.training.launch import TrainingNode, rank_environments, run_ranks

    chosen = [case for case in cases if processes in (1, len(SHAPES[case.shape]))]
    said: list[str] = []
    told = [*command, str(folder), json.dumps(chosen)]
    ending = run_ranks(told, rank_environments(TrainingNode(processes)), said.append, grace=20.0)
    assert ending.code == 0, "\n".join(said[-20:])


def differences(cases: Sequence[Case], folder: Path) -> dict[Case, Difference]:
    """Of all ranks together from one process."""
    import torch

    write_policies(folder)

    def compared(case: Case) -> Difference:
        files = [_file(folder, case, processes) for processes in (len(SHAPES[case.shape]), 1)]
        ours, theirs = (torch.load(file) for file in files)
        for file in files:
            file.unlink()
        way = float((theirs["after"] - theirs["before"]).norm())
        first, second = (float((one - two).norm() / two.norm()) for one, two in zip(ours["gradients"], theirs["gradients"], strict=True))
        return Difference(first, second, float((ours["after"] - theirs["after"]).norm()) / way, way / float(theirs["before"].norm()))

    found = {}
    with fork_server("benchmarks.uneven_ranks", folder) as command, ProcessPoolExecutor(3) as pool:
        for loss in LOSSES:
            of_loss = [case for case in cases if case.loss == loss]
            list(pool.map(partial(_launched, cases=of_loss, folder=folder, command=command), (1, 2, 3)))
            found |= {case: compared(case) for case in of_loss}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--covering", action="store_true")
    cases = covering_cases() if parser.parse_args().covering else all_cases()
    with tempfile.TemporaryDirectory() as name:
        found = differences(cases, Path(name))
    for factor in Case._fields:
        for value in dict.fromkeys(getattr(case, factor) for case in cases):
            for precision in TOLERATED:
                of_value = [difference for case, difference in found.items() if getattr(case, factor) == value and PLACEMENTS[case.placement][1] == precision]
                if of_value:
                    print(factor, value, precision, len(of_value), *(f"{max(each):.1e}" for each in zip(*of_value)), f"{min(each.moved for each in of_value):.1e}", sep="\t")


if __name__ == "__main__":
    main()
