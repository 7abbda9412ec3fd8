"""SFT before reinforcement learning (ArenaRL starts so): a policy learns from the rows that `stages.warm_start` makes.

It is the loop of GRPO with rows that were sampled elsewhere, all with the advantage 1: CISPO's loss is then their
negative log-likelihood. So it is sharded, saved and resumed like every training.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scope_selfplay.base.errors import CorpusError
from scope_selfplay.base.values import rng_from
from scope_selfplay.config.training import TrainConfig
from scope_selfplay.inference.checkpoints import ChatCodec
from scope_selfplay.store.card import Lineage
from scope_selfplay.store.files import read_rows
from scope_selfplay.store.folder import StageFolder
from scope_selfplay.training.engines import Engine, Rows, StepResult
from scope_selfplay.training.job import GrpoJob, TrainingOptions, TrainingStart
from scope_selfplay.training.loop import TrainingLoop, load
from scope_selfplay.training.loss import AdvantageScale
from scope_selfplay.training.passes import RewardedRollout, TrainingRow
from scope_selfplay.training.ranks import Ranks, ranks


@dataclass(frozen=True)
class WarmStart:
    """How long and how fast: `batch` rows a step, of all ranks; a pass has room for `micro_batch` of the longest."""

    epochs: float = 1.0
    learning_rate: float = 1e-5
    batch: int = 32
    micro_batch: int = 4
    seed: int = 0


def sft(
    rows: Sequence[TrainingRow],
    start: Path,
    out: Path,
    *,
    settings: WarmStart,
    codec: ChatCodec,
    lineage: Lineage,
    team: Ranks | None = None,
) -> list[float]:
    """Train `start` on rows and write a plain model directory; returns the loss of each step.

    All ranks call it with the same rows; what a kill left in the folder `.<out>.work` is gone on with. Raises
    CorpusError without rows.
    """
    if not rows:
        raise CorpusError("nothing is left to learn from; raise --max-length, or give other trajectories")
    team, folder = team or ranks(), StageFolder(out.with_name(f".{out.name}.work"))
    records = _in_order(len(rows), settings)
    steps = -(-len(records) // settings.batch)
    training = TrainConfig(
        steps=steps,
        batch=settings.batch,
        micro_tokens=settings.micro_batch * max(row.length for row in rows),
        learning_rate=settings.learning_rate,
        warmup_ratio=0.0,
        kl_beta=0.0,
        loss="cispo",
        sampling_cap=0.0,
        save_every=-(-steps // 20),
        max_prompt=max(8, *(len(row.prompt_ids) for row in rows)),
    )
    options = TrainingOptions(training, temperature=1.0, seed=settings.seed, scale=AdvantageScale.GIVEN)
    job = GrpoJob(TrainingStart(start, start, lineage), options, records, folder, codec, ranks=team)

    async def sample(chosen: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        return StepResult([[RewardedRollout([rows[int(each)]], 1.0)] for each in chosen], {})

    def finish() -> list[float]:
        losses = [float(line["loss"]) for line in read_rows(folder.metrics)]
        folder.checkpoint.rename(out)
        shutil.rmtree(folder.path, ignore_errors=True)
        return losses

    with team:
        folder.work.mkdir(parents=True, exist_ok=True)
        TrainingLoop(job, load(job), Engine(), sample).run()
        return team.leader("finish", finish, completing=True)


def _in_order(count: int, settings: WarmStart) -> list[str]:
    """The numbers of the rows, epoch after epoch, each in an order of its own; the last epoch may be a part of one."""
    total, order = round(settings.epochs * count), list[int]()
    while len(order) < total:
        epoch = list(range(count))
        rng_from(settings.seed, "sft", len(order)).shuffle(epoch)
        order += epoch
    return [str(number) for number in order[: max(1, total)]]
