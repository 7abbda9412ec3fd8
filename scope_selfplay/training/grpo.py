"""The seam to TRL: our rollouts and rewards go in, a trained Hugging Face directory comes out.

Facts about TRL 1.16 that this file relies on (each has a contract test):
- `rollout_func` gets every prompt G times in a row and returns one sample per entry; extra lists reach the
  reward function.
- A reward of None becomes NaN and is left out of its group; its own advantage is 0.
- The reference model is loaded from `model.config._name_or_path`: pointing that at M0 keeps the KL on M0 in
  every iteration, whatever checkpoint training starts from.
- With `steps_per_generation` equal to the accumulation steps, generation and update are aligned, so no second
  pass for old log-probabilities is made.
- Advantages use the sample standard deviation.
"""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scope_selfplay.config import ModelConfig, TrackingConfig, TrainConfig
from scope_selfplay.errors import ExitCode, OutsideError
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.store import Appender, StageFolder, write_records
from scope_selfplay.store.jsonl import read_rows
from scope_selfplay.training.checkpoints import Checkpoints, step_of
from scope_selfplay.training.generation import guard_weights, policy_source, run_rollouts, weights_brought
from scope_selfplay.training.losses import loss_of, sampling_cap
from scope_selfplay.training.policy import load_model
from scope_selfplay.training.ranks import Ranks, step_share
from scope_selfplay.training.rows import TrainingRow
from scope_selfplay.training.trained_model import Lineage, Trained, export_policy, trained_model

_KEPT = {
    "loss": "loss",
    "reward": "reward",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "zero_variance",
    "kl": "kl",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "completions/mean_length": "completion_tokens",
    "scope/step_seconds": "step_seconds",
    "scope/update_seconds": "update_seconds",
    "scope/sampling_drift": "sampling_drift",
    "scope/sampling_drift_max": "sampling_drift_max",
}


class RewardedRollout(NamedTuple):
    """One rollout of a step: its rows (none when nothing was sampled) and its reward (None masks it).

    `split`: it became a row per turn although its family writes one conversation.
    """

    rows: Sequence[TrainingRow]
    reward: float | None
    truncated: bool = False
    split: bool = False


class StepResult(NamedTuple):
    """All rollouts of a step in the order asked for, and numbers for the step's line in metrics.jsonl."""

    scored: Sequence[RewardedRollout]
    metrics: dict[str, float | None]


RollStep = Callable[[Sequence[str], int], Coroutine[Any, Any, StepResult]]
"""Record ids, each repeated G times in a row, and the step (from 0) -> what a policy made of them."""


@dataclass(frozen=True)
class GrpoJob:
    """One role's training in one iteration. `records` are steps * batch ids, in the order of training.

    `books` is where this process keeps its rollouts and grades; the leader's is the stage folder itself.
    """

    start: Path
    base: Path
    settings: TrainConfig
    records: Sequence[str]
    folder: StageFolder
    codec: ChatCodec
    temperature: float
    seed: int
    on_step: Callable[[int, dict[str, Any]], None]
    model: ModelConfig = field(default_factory=ModelConfig)
    lineage: Lineage = field(default_factory=Lineage)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    ranks: Ranks = field(default_factory=Ranks)
    say: Callable[[str], None] = field(default=lambda line: print(line, file=sys.stderr))
    on_outage: Callable[[OutsideError], None] = field(default=lambda fault: None)
    """Told when the server of the policy in training was down for longer than is waited."""

    @property
    def max_length(self) -> int:
        """Tokens of prompt and response together."""
        return min(self.model.max_length, self.settings.max_prompt + self.settings.max_response)

    @property
    def books(self) -> StageFolder:
        if self.ranks.leads:
            return self.folder
        return StageFolder(self.folder.work / f"rank-{self.ranks.number}")


def train_grpo(job: GrpoJob, make_roll: Callable[[Any], RollStep]) -> Path:
    """Train from `job.start` (or the newest checkpoint in the stage's work folder) and save `checkpoint/`.

    `make_roll` gets the model that is being trained, or a PolicyModel that samples from it (`generation`), and
    returns what makes and scores a step's rollouts.
    """
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    step_share(job.settings, job.ranks.processes)
    job.books.path.mkdir(parents=True, exist_ok=True)
    newest = Checkpoints(job.folder.work).newest(job.say if job.ranks.leads else _hush)
    terminated, meter = _Termination(), _Meter(job)
    trained = trained_model(job.start, job.base, job.model.lora)
    source = policy_source(job, trained.sampled)
    roll = make_roll(source)

    def rollouts(prompts: list[str], trainer: Any) -> StepResult:
        return run_rollouts(source, roll(prompts, int(trainer.state.global_step)), trainer)

    trainer = _make_trainer(job, trained, rollouts, meter, terminated)
    meter.resume(newest)
    with terminated:
        trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    if terminated.asked:
        sys.exit(ExitCode.TERMINATED)
    _keep_completions(job)
    return export_policy(trainer, trained, job.folder, job.codec.tokenizer, job.lineage)


def _keep_completions(job: GrpoJob) -> None:
    """TRL writes what was said into its own folder, which does not outlive the stage."""
    written = job.folder.work / "completions"
    if job.ranks.leads and job.tracking.log_completions and written.is_dir():
        shutil.rmtree(job.folder.path / written.name, ignore_errors=True)
        written.rename(job.folder.path / written.name)


def _make_trainer(
    job: GrpoJob,
    trained: Trained,
    rollouts: Callable[[list[str], Any], StepResult],
    meter: "_Meter",
    terminated: "_Termination",
) -> Any:
    from datasets import Dataset
    from transformers import PrinterCallback

    from scope_selfplay.training.episode_trainer import EpisodeTrainer, Trajectory
    from scope_selfplay.training.trl_config import trl_config

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        result = rollouts(prompts, trainer)
        assert len(result.scored) == len(prompts), "a step must score every rollout that was asked for"
        trainer.trajectories = [Trajectory(each.rows, counts(each, job.settings)) for each in result.scored]
        meter.step_metrics = _over_ranks(result.metrics | row_metrics(result.scored), job.ranks)
        trainer.step_metrics = meter.step_metrics
        return _columns(result.scored, job.codec.tokenizer.eos_token_id)

    def reward(completions: list[Any], scored_reward: list[float | None], **_: Any) -> list[float | None]:
        assert len(scored_reward) == len(completions), "rewards must line up with completions"
        return scored_reward

    with weights_brought(job.model):
        trainer = EpisodeTrainer(
            loss=loss_of(job.settings),
            cap=sampling_cap(job.settings, job.model.engine),
            budget=job.settings.max_response,
            checkpoints=Checkpoints(job.folder.work),
            model=trained.model,
            reward_funcs=reward,
            args=trl_config(job),
            train_dataset=Dataset.from_dict({"prompt": list(job.records)}),
            processing_class=job.codec.tokenizer,
            rollout_func=rollout,
        )
    guard_weights(trainer, job.model)
    if trained.needs_reference and job.settings.kl_beta:
        trainer.refer_to(load_model(job.base))
    trainer.add_callback(_callback(meter, terminated, trainer))
    trainer.remove_callback(PrinterCallback)
    return trainer


def _callback(meter: "_Meter", terminated: "_Termination", trainer: Any) -> Any:
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
        ) -> None:
            if logs and "reward" in logs:
                meter.write(int(state.global_step), logs)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if terminated.agree(trainer.accelerator):
                control.should_save = control.should_training_stop = True

    return Watch()


def counts(scored: RewardedRollout, settings: TrainConfig) -> bool:
    """Whether a rollout has part in the update."""
    return scored.reward is not None and not (scored.truncated and settings.mask_truncated)


def row_metrics(scored: Sequence[RewardedRollout]) -> dict[str, float | None]:
    """How rollouts became rows: rows per rollout, the share that was split against expectation, and truncated."""
    sampled = [each for each in scored if each.rows]
    if not sampled:
        return {}
    return {
        "rows": sum(len(each.rows) for each in sampled) / len(sampled),
        "split": sum(each.split for each in sampled) / len(sampled),
        "truncated": sum(each.truncated for each in sampled) / len(sampled),
    }


def _over_ranks(metrics: dict[str, float | None], ranks: Ranks) -> dict[str, float | None]:
    """The mean over processes; all have the same number of rollouts."""
    if ranks.processes == 1:
        return metrics
    from accelerate.utils import gather_object

    everyone = gather_object([metrics])
    joined: dict[str, float | None] = {}
    for name in dict.fromkeys(name for each in everyone for name in each):
        known = [each[name] for each in everyone if each.get(name) is not None]
        joined[name] = sum(known) / len(known) if known else None
    return joined


def _columns(scored: Sequence[RewardedRollout], filler: int) -> dict[str, Any]:
    """One sample per rollout for TRL's books: all that was sampled behind the first prompt."""
    samples = [_sample(each.rows, filler) for each in scored]
    return {
        "prompt_ids": [row.prompt_ids for row in samples],
        "completion_ids": [row.completion_ids for row in samples],
        "logprobs": [row.logprobs for row in samples],
        "env_mask": [row.mask for row in samples],
        "scored_reward": [each.reward if each.rows else None for each in scored],
    }


def _sample(rows: Sequence[TrainingRow], filler: int) -> TrainingRow:
    # TRL needs a token everywhere; a rollout that sampled nothing gets one that is masked out.
    if not rows:
        return TrainingRow([filler], [filler], [0], [0.0])
    return TrainingRow(
        rows[0].prompt_ids,
        [each for row in rows for each in row.completion_ids],
        [each for row in rows for each in row.mask],
        [each for row in rows for each in row.logprobs],
    )


def _hush(line: str) -> None:
    """What the leader says, others do not say again."""


class _Termination:
    """While entered, SIGTERM asks for a checkpoint after the step at work instead of ending the process."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._ask)

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before)

    def agree(self, accelerator: Any) -> bool:
        """Whether any process was asked: all must stop after the same step."""
        if accelerator.num_processes > 1:
            import torch

            asked = torch.tensor(int(self.asked), device=accelerator.device)
            self.asked = bool(accelerator.reduce(asked, reduction="sum"))
        return self.asked

    def _ask(self, *_: object) -> None:
        self.asked = True


class _Meter:
    """Joins TRL's numbers of a step with ours, one line a step in metrics.jsonl; the leader writes it."""

    def __init__(self, job: GrpoJob) -> None:
        self._job = job
        self.step_metrics: dict[str, float | None] = {}

    def resume(self, checkpoint: Path | None) -> None:
        """Forget the steps after the checkpoint: they are made again."""
        if not self._job.ranks.leads:
            return
        done = step_of(checkpoint) if checkpoint else 0
        kept = [row for row in read_rows(self._job.folder.metrics) if row["step"] <= done]
        write_records(self._job.folder.metrics, kept)

    def write(self, step: int, logs: dict[str, Any]) -> None:
        if not self._job.ranks.leads:
            return
        # TRL logs None for the rewards of a step in which no rollout has one.
        from_trl = {
            ours: float(logs[theirs]) for theirs, ours in _KEPT.items() if logs.get(theirs) is not None
        }
        line = {"step": step, **from_trl, **self.step_metrics}
        line = {name: value for name, value in line.items() if value == value}
        with Appender(self._job.folder.metrics) as file:
            file.append(line)
        self._job.on_step(step, line)
