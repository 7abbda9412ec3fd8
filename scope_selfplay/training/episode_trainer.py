"""TRL's GRPOTrainer for trajectories of one row or several, with checkpoints that are whole or absent.

TRL makes rewards, advantages and their books, a sample per rollout; what is trained on are the rollout's rows,
which are put in its place by the one override `_generate_and_score_completions`. All processes lay out the same
number of rows, so that they meet in every collective call.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from transformers import Trainer
from trl import GRPOTrainer
from trl.models import prepare_fsdp
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import add_fused_lm_head, use_adapter

from scope_selfplay.training.batches import Batch, WeighedRow, lay_out, slices, widened
from scope_selfplay.training.checkpoints import Checkpoints
from scope_selfplay.training.drift import Drift, drift_of
from scope_selfplay.training.losses import Loss, divisor, token_weights
from scope_selfplay.training.rows import TrainingRow


class Trajectory(NamedTuple):
    """The rows of one rollout; one that does not `count` has no part in the update."""

    rows: Sequence[TrainingRow]
    counts: bool

    @property
    def length(self) -> int:
        """Sampled tokens."""
        return sum(sum(row.mask) for row in self.rows)


class EpisodeTrainer(GRPOTrainer):
    """`trajectories` are those of the step at work, in the order of TRL's samples, and `step_metrics` its numbers; the
    rollout function sets both.
    """

    trajectories: Sequence[Trajectory] = ()
    step_metrics: Mapping[str, float | None] = MappingProxyType({})
    beta: float
    use_vllm: bool
    vllm_importance_sampling_correction: bool

    def __init__(
        self, *, loss: Loss, cap: float | None, budget: int, checkpoints: Checkpoints, **options: Any
    ) -> None:
        """`cap` is that of the weights for the sampler's drift (`losses.sampling_cap`)."""
        super().__init__(**options)
        # Generation and update are aligned, so the policy that is trained is the one that sampled.
        assert self.args.gradient_accumulation_steps == self.args.steps_per_generation
        self._loss = loss
        self._budget = budget
        self._checkpoints = checkpoints
        self._cap = cap
        self._part: Batch | None = None
        self._drift = Drift(self.accelerator)
        self._staging = False
        self._step_begun: float | None = None
        self._update_begun = 0.0
        if "ref" in getattr(self.model, "peft_config", ()):
            # TRL refers to the adapter that training starts from; ours is the model without one.
            self.accelerator.unwrap_model(self.model).delete_adapter("ref")
        # TRL's sum over tokens; the tokens' weights make it the loss that the config names.
        self.loss_type = "cispo" if loss.clips_weights else "dapo"

    def refer_to(self, model: Any) -> None:
        """Take the KL to this model instead of what is left without the adapter."""
        add_fused_lm_head(model, temperature=self.temperature)
        if self.is_fsdp_enabled:
            self.ref_model = prepare_fsdp(model, self.accelerator)
        else:
            self.ref_model = self.accelerator.prepare_model(model, evaluation_mode=True)

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        if self._step_begun is None:
            self._step_begun = perf_counter()
        return super().training_step(*arguments, **options)

    def _generate_and_score_completions(self, inputs: Any) -> Batch:
        # The reference is asked about the rows below; without beta TRL does not ask it about whole rollouts.
        beta, self.beta = self.beta, 0.0
        try:
            scored = super()._generate_and_score_completions(inputs)
        finally:
            self.beta = beta
        self._update_begun = perf_counter()
        batch = self._rows(scored["advantages"].tolist())
        if beta:
            batch["ref_per_token_logps"] = self._reference(batch)
        return batch

    def _rows(self, advantages: Sequence[float]) -> Batch:
        """One advantage per trajectory in, one row after the other out."""
        counted = [
            (trajectory, advantage)
            for trajectory, advantage in zip(self.trajectories, advantages, strict=True)
            if trajectory.counts and trajectory.length
        ]
        lengths = [trajectory.length for trajectory, _ in counted]
        rows = sum(len(trajectory.rows) for trajectory, _ in counted)
        local = torch.tensor([len(counted), sum(lengths), max(lengths, default=0), rows])
        everyone = self.accelerator.gather(local.to(self.accelerator.device)).view(-1, 4)
        trajectories, tokens = (int(each) for each in everyone[:, :2].sum(dim=0))
        longest, most = (int(each) for each in everyone[:, 2:].amax(dim=0))
        weights = token_weights(self._loss.mean, lengths, longest)
        weighed = [
            WeighedRow(row, advantage, weight)
            for (trajectory, advantage), weight in zip(counted, weights, strict=True)
            for row in trajectory.rows
        ]
        passes = self.args.steps_per_generation
        batch = lay_out(
            weighed,
            max(1, -(-most // passes)) * passes,
            self._tokenizer.pad_token_id,
            self.accelerator.device,
        )
        share = divisor(self._loss.mean, trajectories, tokens, longest=longest, budget=self._budget)
        return batch | {"num_items_in_batch": torch.tensor(share, device=self.accelerator.device)}

    @torch.no_grad()
    def _reference(self, batch: Batch) -> Any:
        """Log-probabilities of M0, (rows, longest completion)."""
        parts = []
        with self._reference_model() as model:
            for part in slices(batch, self.args.per_device_train_batch_size):
                logps, _, _ = self._get_per_token_logps_and_entropies(
                    model,
                    torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1),
                    torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1),
                    part["completion_ids"].size(1),
                )
                parts.append(logps)
        return widened(parts, batch["completion_ids"].size(1))

    @contextmanager
    def _reference_model(self) -> Iterator[Any]:
        with disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            if self.ref_model is not None:
                yield self.ref_model
            else:
                # An adapter over M0: without it the model is M0.
                with use_adapter(self.accelerator.unwrap_model(self.model), adapter_name=None):
                    yield self.model

    def compute_loss(
        self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        # Several rows per rollout make a pass larger than the memory was planned for: it is done in parts.
        *first, last = slices(inputs, self.args.per_device_train_batch_size)
        done: Any = 0.0
        for part in first:
            loss = self._part_loss(model, part)
            self.accelerator.backward(loss)
            done = done + loss.detach()
        return self._part_loss(model, last) + done

    def _part_loss(self, model: Any, part: Batch) -> Any:
        before = self.use_vllm, self.vllm_importance_sampling_correction
        self._part = part
        if self._cap is not None:
            # TRL multiplies the policy's loss (not the KL) by `importance_sampling_ratio` where both are set.
            self.use_vllm = self.vllm_importance_sampling_correction = True
        try:
            return super().compute_loss(model, part)
        finally:
            self._part = None
            self.use_vllm, self.vllm_importance_sampling_correction = before

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **options: Any) -> Any:
        """The pass of the loss is also that of the policy that sampled: what its engine said is held against it."""
        found = super()._get_per_token_logps_and_entropies(*arguments, **options)
        if self._part is not None:
            difference = drift_of(found[0].detach(), self._part)
            self._drift.add(difference, self._part["tool_mask"] > 0)
            if self._cap is not None:
                self._part["importance_sampling_ratio"] = difference.exp().clamp(max=self._cap)
        return found

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # Trackers get our numbers of the step beside TRL's.
        if "loss" in logs:
            ours = {**self.step_metrics, **self._seconds(), **self._drift.metrics()}
            known = {name: value for name, value in ours.items() if value is not None}
            logs = logs | {f"scope/{name}": value for name, value in known.items()}
        super().log(logs, start_time)

    def _seconds(self) -> dict[str, float]:
        """Of the step that is being logged: TRL's own step time leaves the optimizer out."""
        if self._step_begun is None:
            return {}
        now, begun, self._step_begun = perf_counter(), self._step_begun, None
        return {"step_seconds": now - begun, "update_seconds": now - self._update_begun}

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._checkpoints.staging) if self._staging else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # TRL's own override adds a model card and nothing else.
        self._staging = True
        try:
            if self.accelerator.is_main_process:
                self._checkpoints.clear()
            self.accelerator.wait_for_everyone()
            Trainer._save_checkpoint(self, model, trial)
        finally:
            self._staging = False
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            self._checkpoints.publish(self.state.global_step)
        self.accelerator.wait_for_everyone()
