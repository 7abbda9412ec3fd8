"""Jobs whose rollouts are made up, at the lengths that rollouts have: nothing is generated and nothing is learnt."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from benchmarks.gpu.scales import Lengths
from scope_selfplay.config.run import ModelConfig
from scope_selfplay.config.training import TrainConfig
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.store.folder import StageFolder
from scope_selfplay.training.engines import Rows, StepResult, StepSampler, in_groups
from scope_selfplay.training.job import GrpoJob, TrainingCallbacks, TrainingStart
from scope_selfplay.training.passes import RewardedRollout, TrainingRow


class Stopped(Exception):
    """Ends a training from its sampler, as a kill would."""


def job_of(
    policy: Path,
    folder: Path,
    settings: TrainConfig,
    model: ModelConfig | None = None,
    callbacks: TrainingCallbacks | None = None,
) -> GrpoJob:
    (folder / ".work").mkdir(parents=True, exist_ok=True)
    return GrpoJob(
        start=TrainingStart(policy, policy),
        settings=settings,
        records=[f"t{row}" for row in range(settings.steps * settings.batch)],
        folder=StageFolder(folder),
        codec=ChatCodec.load(policy),
        temperature=1.0,
        seed=1,
        model=model or ModelConfig(),
        callbacks=callbacks or TrainingCallbacks(),
    )


class NoEngine:
    """Nothing is sampled. `at_step` is called with the model and the step (from 0) before rollouts are made, and may
    raise Stopped.
    """

    source = None

    def __init__(self, at_step: Callable[[Any, int], None]) -> None:
        self._at_step = at_step

    def take(self, model: Any, identity: str) -> None:
        self._at_step(model, int(identity.rpartition("@")[2]))

    def serve(self, sampled: "Future[Any]") -> None:
        wait([sampled])


def sampler_of(lengths: Lengths, group: int) -> StepSampler:
    """Every second rollout of a group is better."""

    async def sample_step(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        count = len(records) * group
        rows = [made_up(lengths, count * step + place) for place in range(count)]
        rollouts = [RewardedRollout([row], float(place % 2)) for place, row in enumerate(rows)]
        return StepResult(in_groups(rollouts, group), {})

    return sample_step


def made_up(lengths: Lengths, seed: int) -> TrainingRow:
    draw = random.Random(seed)
    ids = [draw.randrange(300) for _ in range(sum(lengths))]
    # Every fourth stretch of 300 tokens is a search result.
    mask = [0 if place // 300 % 4 == 3 else 1 for place in range(lengths.completion)]
    return TrainingRow(ids[: lengths.prompt], ids[lengths.prompt :], mask, [-5.0 * each for each in mask])
