"""GRPO of one role, from rollouts to weights, on TRL's trainer. One step, in the order of `EpisodeTrainer`:

    sample_rollouts    rollouts and their rewards, from the sampler of the role (`challenger`, `solver`)
    (TRL)              advantages: a reward less the mean of its group, divided by the group's standard deviation
    cut_updates        the token rows that were sampled (`rows`), weighted for the loss (`losses`), as passes that fit
                       the memory (`updates`, `micro_batches`)
    _add_reference_logps   log-probabilities of M0 for the KL (`reference`); beside an engine on the trainer's own GPU
                           they are there before the rewards (`early_reference`)
    compute_loss       the policy loss, pass by pass; with several updates per step, all but the last one (`updating`)
    _get_grad_norm     a loss or gradient that is not finite ends the training (`update_checks`)
    _save_checkpoint   a checkpoint that is whole or absent (`checkpointing`)

At the end `export_policy` writes plain weights.

Facts about TRL 1.16 that this file relies on (each has a contract test):
- `rollout_func` gets every prompt G times in a row and returns one sample per entry; extra lists reach the
  reward function.
- A reward of None becomes NaN and is left out of its group; its own advantage is 0.
- With beta 0 it loads no reference model; that of the papers, always M0, is `reference`.
- What `_generate_and_score_completions` returns is given to `compute_loss` unless `_prepare_inputs` cuts it up.
- Advantages use the sample standard deviation.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback

from scope_selfplay.engines import samples_exactly
from scope_selfplay.measures import joined_values
from scope_selfplay.training import batches
from scope_selfplay.training.batches import SamplingDrift
from scope_selfplay.training.checkpointing import HoldCompleteSteps
from scope_selfplay.training.checkpoints import Checkpoints
from scope_selfplay.training.early_reference import reference_of, referred
from scope_selfplay.training.exporting import export_policy
from scope_selfplay.training.generation import (
    await_weights,
    guard_weight_transfer,
    run_rollouts,
    sampling_source,
    trl_config,
    weight_transfer_errors,
)
from scope_selfplay.training.job import GrpoJob, StepResult, StepSampler
from scope_selfplay.training.learning_rate import warm_up_schedule
from scope_selfplay.training.losses import loss_of, sampling_cap
from scope_selfplay.training.one_ahead import OneAhead
from scope_selfplay.training.ranks import COLLECTIVE_SECONDS, check_shares
from scope_selfplay.training.reference import Reference
from scope_selfplay.training.rows import RewardedRollout
from scope_selfplay.training.sharding import join_ranks, keep_full_precision, sharded
from scope_selfplay.training.step_metrics import StepMetrics, row_metrics
from scope_selfplay.training.termination import Termination
from scope_selfplay.training.trained_model import TrainedModel, trained_model
from scope_selfplay.training.update_checks import check_finite, check_first_kl
from scope_selfplay.training.updates import Update
from scope_selfplay.training.updating import UpdatingTrainer

SampleRollouts = Callable[[list[str], int, Any], StepResult]
"""Record ids, each repeated G times in a row, the step (from 0) and the trainer -> the step's rewarded rollouts."""


def train_grpo(job: GrpoJob, make_sampler: Callable[[Any], StepSampler]) -> Path:
    """Train from the job's start (or the newest checkpoint in the stage's work folder) and save `checkpoint/`.

    `make_sampler` gets the model in training, or a PolicyModel that samples from it (`generation`), and returns the
    function that samples and rewards the rollouts of one step.
    """
    check_shares(job.settings, job.ranks.processes)
    job.records_folder.path.mkdir(parents=True, exist_ok=True)
    termination, metrics = Termination(job.ranks), StepMetrics(job)
    if sharded():
        join_ranks(COLLECTIVE_SECONDS)
    model = job.options.model
    trained = trained_model(job.start.weights, job.start.base, model.lora, model.attention)
    source = sampling_source(job, trained.sampled)
    sample_step = make_sampler(source)
    ahead = OneAhead(sample_step, job) if job.settings.overlap else None

    def sample(records: list[str], step: int, trainer: Any) -> StepResult:
        await_weights(source, trainer)
        if ahead is not None:
            return ahead.step(records, step)
        return run_rollouts(source, sample_step(records, step), trainer)

    trainer = make_trainer(job, trained, sample, metrics, termination)
    trainer.before_transfer = ahead.wait if ahead is not None else None
    newest = trainer.newest_checkpoint(job.callbacks.say)
    metrics.resume(newest)
    with termination:
        trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    _keep_completions(job)
    return export_policy(trainer, trained, job)


def make_trainer(
    job: GrpoJob,
    trained: TrainedModel,
    sample: SampleRollouts,
    metrics: StepMetrics,
    termination: Termination,
) -> "EpisodeTrainer":
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    with weight_transfer_errors(job.options.model):
        trainer = EpisodeTrainer(job, trained, sample, metrics)
    job.ranks.meet()
    trainer.termination = termination
    guard_weight_transfer(trainer, job.options.model)
    trainer.add_callback(_StepCallback(metrics))
    trainer.add_callback(HoldCompleteSteps(termination))
    trainer.remove_callback(PrinterCallback)
    return trainer


class EpisodeTrainer(UpdatingTrainer):
    """TRL's GRPOTrainer for rollouts of one row or several.

    TRL computes rewards, advantages and their metrics from one sample per rollout. The update is computed from the
    rollouts' rows, with which `_generate_and_score_completions` replaces these samples.
    """

    beta: float
    before_transfer: Callable[[], None] | None = None

    def __init__(
        self, job: GrpoJob, trained: TrainedModel, sample: SampleRollouts, metrics: StepMetrics
    ) -> None:
        self._job = job
        self._sample = sample
        self._step_metrics = metrics
        self._rollouts: Sequence[RewardedRollout] = ()
        self._references: list[list[float]] | None = None
        self._early_seconds = 0.0
        self._loss = loss_of(job.settings)
        model = job.options.model
        exact = samples_exactly(model, len(job.codec.tokenizer))
        self.sampling_cap = sampling_cap(job.settings, model.engine, exact=exact)
        self.checkpoints = Checkpoints(job.folder.work, job.settings.keep_checkpoints)
        self._step_begun: float | None = None
        self._update_begun = 0.0
        super().__init__(
            model=trained.model,
            reward_funcs=reward,
            args=trl_config(job),
            train_dataset=Dataset.from_dict({"prompt": list(job.records)}),
            processing_class=job.codec.tokenizer,
            rollout_func=self.sample_rollouts,
        )
        self.drift = SamplingDrift(self.accelerator)
        if self.is_fsdp_enabled:
            keep_full_precision(self.accelerator)
        # TRL was told 0, or it would load a reference of its own.
        self.beta = self.args.beta = job.settings.kl_beta
        self.reference = Reference(self, trained.reference) if self.beta else None
        # TRL's sum over tokens; the tokens' weights make it the loss that the config names.
        self.loss_type = "cispo" if self._loss.clips_weights else "dapo"

    def _generate_and_score_completions(self, inputs: Any) -> list[Update]:
        """One step up to its loss: rollouts and rewards (`sample_rollouts`), advantages (TRL), rows, reference."""
        if self.before_transfer is not None:
            self.before_transfer()
            self.accelerator.wait_for_everyone()
        # The reference model reads the rows below; with beta 0 TRL does not let it read whole rollouts, too.
        beta, self.beta = self.beta, 0.0
        try:
            scored = super()._generate_and_score_completions(inputs)
        finally:
            self.beta = beta
        self._update_begun = perf_counter()
        updates = self.cut_updates(self._job, self._loss, self._rollouts, scored["advantages"].tolist())
        self._step_metrics.of_step["padding"] = sum(update.padding for update in updates) / len(updates)
        if beta and self._references is None:
            self._add_reference_logps(updates)
        updates *= self._job.settings.epochs
        if len(updates) > 1:
            self.add_old_logps(updates[: self._job.settings.updates])
        return updates

    def sample_rollouts(self, records: list[str], trainer: Any) -> dict[str, Any]:
        """Sample and reward the rollouts of one step; returns the columns that TRL takes."""
        self._references, self._early_seconds = None, 0.0
        rollouts, metrics = self._sample(records, int(self.state.global_step), self)
        assert len(rollouts) == len(records), "a step must reward every rollout that was asked for"
        self._rollouts = rollouts if self._references is None else referred(rollouts, self._references)
        measures = gather_object([{**metrics, **row_metrics(rollouts)}])
        self._step_metrics.of_step = joined_values(measures)
        return batches.trl_columns(rollouts, self._tokenizer.eos_token_id)

    @torch.no_grad()
    def refer_early(self, sampled: Sequence[RewardedRollout]) -> None:
        """What the reference says of a step's rollouts while they are judged. A collective call."""
        if self.reference is not None:
            begun = perf_counter()
            self._references = reference_of(self, sampled, self._job.settings.micro_tokens)
            self._early_seconds = perf_counter() - begun

    @torch.no_grad()
    def _add_reference_logps(self, updates: Sequence[Update]) -> None:
        """Gives every pass the log-probabilities of M0, (rows, longest completion)."""
        assert self.reference is not None
        with self.reference.model() as model:
            for part in (part for update in updates for part in update.passes):
                part["ref_per_token_logps"] = self.logps_of(model, part)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """transformers' hook, called when the optimizer exists."""
        self.lr_scheduler = warm_up_schedule(optimizer or self.optimizer, self.args.warmup_steps)
        return self.lr_scheduler

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """transformers calls it with the whole gradient of a step, before the optimizer."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        losses = self.accelerator.gather(self._tr_loss.detach().view(1))
        check_finite(self.state.global_step + 1, float(losses.sum()), float(norm))
        start = self._job.start
        if self.beta and self.state.global_step == 0 and start.weights == start.base:
            # Later updates of the step are no longer made by M0.
            check_first_kl(self._metrics["train"]["kl"][0], start.base)
        return norm

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        # A step begins with its generation, in the first of its passes.
        if self._step_begun is None:
            self._step_begun = perf_counter()
        return super().training_step(*arguments, **options)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # Trackers get our numbers of the step beside TRL's.
        if "loss" in logs:
            ours = dict(self._step_metrics.of_step)
            if self._step_begun is not None:
                # TRL's own step time leaves the optimizer out.
                now, begun, self._step_begun = perf_counter(), self._step_begun, None
                update = now - self._update_begun + self._early_seconds
                ours |= {"step_seconds": now - begun, "update_seconds": update}
            ours |= self.drift.metrics()
            known = {name: value for name, value in ours.items() if value is not None}
            logs = logs | {f"scope/{name}": value for name, value in known.items()}
        super().log(logs, start_time)


def reward(completions: list[Any], given_reward: list[float | None], **_: Any) -> list[float | None]:
    """TRL's reward function: hands over the rewards that `sample_rollouts` returned."""
    assert len(given_reward) == len(completions), "rewards must line up with completions"
    return given_reward


class _StepCallback(TrainerCallback):
    """After each step writes its line in metrics.jsonl."""

    def __init__(self, metrics: StepMetrics) -> None:
        self._metrics = metrics

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if logs and "reward" in logs:
            self._metrics.write(int(state.global_step), logs)


def _keep_completions(job: GrpoJob) -> None:
    """Move TRL's completions out of its own folder, which does not outlive the stage."""
    written = job.folder.work / "completions"
    if job.ranks.leads and job.options.tracking.log_completions and written.is_dir():
        shutil.rmtree(job.folder.path / written.name, ignore_errors=True)
        written.rename(job.folder.path / written.name)
