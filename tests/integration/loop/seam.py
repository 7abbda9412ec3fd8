"""Made-up rollouts for the training loop: what a step is asked for, and jobs small enough for a test."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scope_selfplay.config.run import ModelConfig
from scope_selfplay.config.training import SolverConfig
from scope_selfplay.inference.checkpoints import load_model
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.rewards.measures import Total
from scope_selfplay.store.files import read_rows
from scope_selfplay.store.folder import StageFolder
from scope_selfplay.training.checkpoint import Checkpoints
from scope_selfplay.training.engines import Engine, Rows, StepResult, StepSampler
from scope_selfplay.training.job import GrpoJob, TrainingCallbacks, TrainingStart
from scope_selfplay.training.loop import TrainingLoop, load
from scope_selfplay.training.passes import RewardedRollout, TrainingRow

GROUP, BATCH = 2, 2
Score = Callable[[str, int, int], RewardedRollout]


def job_of(
    policy: Path,
    folder: Path,
    *,
    start: Path | None = None,
    steps: int = 1,
    on_step: Any = None,
    said: list[str] | None = None,
    model: ModelConfig | None = None,
    **settings: Any,
) -> GrpoJob:
    (folder / ".work").mkdir(parents=True, exist_ok=True)
    given = {"learning_rate": 1e-3, "warmup_ratio": 0.0, "save_every": 1, **settings}
    training = SolverConfig(steps=steps, batch=BATCH, group_size=GROUP, max_response=64, **given)
    return GrpoJob(
        start=TrainingStart(start or policy, policy),
        settings=training,
        temperature=1.0,
        seed=3,
        model=model or ModelConfig(),
        records=[f"t{row}" for row in range(steps * BATCH)],
        folder=StageFolder(folder),
        codec=ChatCodec.load(policy),
        callbacks=TrainingCallbacks(
            on_step=on_step or (lambda step, line, accounts: None),
            say=(said if said is not None else []).append,
        ),
    )


def row(*tail: int, sampled: Sequence[int] = (60, 61, 62)) -> TrainingRow:
    """A prompt, sampled tokens, and a masked tail as tool results are."""
    ids = [*sampled, *tail]
    mask = [1] * len(sampled) + [0] * len(tail)
    return TrainingRow([40, 41, 42], ids, mask, [-5.0 * each for each in mask])


class NoEngine(Engine):
    """Nothing is sampled: rollouts are made up."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[str] = []

    def take(self, model: Any, identity: str) -> None:
        self.taken.append(identity)


def sampler_of(score: Score, asked: list[tuple[list[str], int]] | None = None) -> StepSampler:
    async def sample_step(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        if asked is not None:
            asked.append((list(records), step))
        groups = [[score(record, member, step) for member in range(GROUP)] for record in records]
        return StepResult(groups, {"rubric": 0.5, "judge_calls": Total(len(records) * GROUP)})

    return sample_step


def by_member(record: str, member: int, step: int) -> RewardedRollout:
    """Rows that differ by record, member and step; the second member is better."""
    shift = 7 * int(record[1:]) + 3 * member + step
    return RewardedRollout([row(sampled=(60 + shift, 61, 62 + member))], float(member))


def uneven(record: str, member: int, step: int) -> RewardedRollout:
    """The first group of a step has long rollouts of two rows; of the second, one step has none that counts."""
    if int(record[1:]) % 2:
        return RewardedRollout([row(sampled=(60, 61 + member))], None if step else float(member))
    long = [60 + member + number for number in range(20)]
    return RewardedRollout([row(sampled=long), row(sampled=long[3:9])], float(member))


def loop_of(job: GrpoJob, score: Score = by_member, engine: Engine | None = None) -> TrainingLoop:
    """The loop of a training, for tests that look into it; within `with job.ranks`."""
    return TrainingLoop(job, load(job), engine or NoEngine(), sampler_of(score))


def train_on(job: GrpoJob, score: Score) -> list[tuple[list[str], int]]:
    """Train on made-up rows; returns what was asked for."""
    asked: list[tuple[list[str], int]] = []
    with job.ranks:
        TrainingLoop(job, load(job), NoEngine(), sampler_of(score, asked)).run()
    return asked


def trained_metrics(job: GrpoJob, score: Score = by_member) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl of a training on made-up rows."""
    train_on(job, score)
    return read_rows(job.folder.metrics)


def saves_of(job: GrpoJob, seconds: float) -> list[int]:
    """After which steps a training saves, each of which lasts 100 s, and a save so many, on a clock of its own."""
    now, saved = 0.0, list[int]()
    step, save = TrainingLoop.step, Checkpoints.save

    def lasting_step(loop: TrainingLoop, number: int) -> None:
        nonlocal now
        step(loop, number)
        now += 100

    def lasting_save(checkpoints: Checkpoints, number: int, state: Mapping[str, Any]) -> None:
        nonlocal now
        save(checkpoints, number, state)
        now += seconds
        saved.append(number)

    with job.ranks, pytest.MonkeyPatch.context() as patch:
        patch.setattr("scope_selfplay.training.loop.perf_counter", lambda: now)
        patch.setattr(TrainingLoop, "step", lasting_step)
        patch.setattr(Checkpoints, "save", lasting_save)
        loop_of(job).run()
    return saved


class Killed(Exception):
    """A training ends in the middle of a step."""


def killed_in(last: int) -> Score:
    """`by_member`, but for a kill in a step."""

    def score(record: str, member: int, step: int) -> RewardedRollout:
        if step == last:
            raise Killed
        return by_member(record, member, step)

    return score


def first_kl(job: GrpoJob) -> float:
    return float(trained_metrics(job)[0]["kl"])


def weights_of(folder: Path) -> dict[str, Any]:
    return {name: value.clone() for name, value in load_model(folder).state_dict().items()}


def same(first: Path, second: Path) -> bool:
    one, two = weights_of(first), weights_of(second)
    return all(bool((one[name] == two[name]).all()) for name in one)


def furthest(first: Path, second: Path) -> float:
    """The greatest difference between two weights of the same place."""
    one, two = weights_of(first), weights_of(second)
    return max(float((one[name] - two[name]).abs().max()) for name in one)
