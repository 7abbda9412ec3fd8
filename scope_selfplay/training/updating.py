"""A trainer whose update is made of passes over rows (`updates`), each scored without padding (`forward_pass`).

TRL 1.16 would shuffle the rows of a generation and cut them into passes of equally many rows, so that short ones are
padded to long ones, and would compute the padding. What a step was prepared as is given to `compute_loss` as it is.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object
from torch.nn.parallel import DistributedDataParallel
from trl.models.utils import disable_gradient_checkpointing

from scope_selfplay.inference.draws import LARGE_VOCABULARY
from scope_selfplay.training.batches import Batch, SamplingDrift, logprob_drift
from scope_selfplay.training.checkpointing import CheckpointedTrainer
from scope_selfplay.training.forward_pass import packs_rows, score_tokens
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.losses import Loss
from scope_selfplay.training.rows import RewardedRollout
from scope_selfplay.training.sharding import defers_nodes
from scope_selfplay.training.updates import ShareOfUpdate, Update, UpdateCutter

_PER_TOKEN = ("kl", "entropy", "clip_ratio/region_mean", "cispo_clip_ratio")
"""TRL's metrics that are means over the tokens of a pass."""


class UpdatingTrainer(CheckpointedTrainer):
    """CheckpointedTrainer that updates from rewarded rollouts instead of TRL's samples."""

    use_vllm: bool
    aux_loss_enabled: bool
    temperature: float
    vllm_importance_sampling_correction: bool
    sampling_cap: float | None
    drift: SamplingDrift
    _part: Batch | None = None

    @property
    def packed(self) -> bool:
        """Whether the rows of a pass are computed one behind the other."""
        return packs_rows(self.accelerator.unwrap_model(self.model).config)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return self._generate_and_score_completions(generation_batch)

    def cut_updates(
        self, job: GrpoJob, loss: Loss, rollouts: Sequence[RewardedRollout], advantages: Sequence[float]
    ) -> list[Update]:
        """The mini-batches of a step. A collective call: all processes make as many passes.

        Groups are dealt out in turn, so that the mini-batches are the same in however many processes.
        """
        dealt: list[list[tuple[RewardedRollout, float]]] = [[] for _ in range(job.settings.updates)]
        for row, pair in enumerate(zip(rollouts, advantages, strict=True)):
            dealt[row // job.settings.group_size % job.settings.updates].append(pair)
        return [self._cut_update(job, loss, pairs) for pairs in dealt]

    def _cut_update(self, job: GrpoJob, loss: Loss, pairs: Sequence[tuple[RewardedRollout, float]]) -> Update:
        counted = [pair for pair in pairs if pair[0].counts(job.settings) and pair[0].sampled_tokens]
        cutter = UpdateCutter(
            loss.mean,
            job.settings.micro_tokens,
            self.packed,
            job.settings.max_response,
            self._tokenizer.pad_token_id,
            self.accelerator.device,
        )
        taught = counted
        if not job.settings.kl_beta and not self.aux_loss_enabled:
            # Without a KL nothing is learnt from an advantage of 0: it counts, and is not computed.
            taught = [pair for pair in counted if pair[1]]
        own = [rollout for rollout, _ in taught]
        shares = gather_object([ShareOfUpdate.of([rollout for rollout, _ in counted], own)])
        return cutter.cut(own, [advantage for _, advantage in taught], shares, job.ranks.number)

    @torch.no_grad()
    def add_old_logps(self, updates: Sequence[Update]) -> None:
        """Gives every pass the log-probabilities before the first update, to which ratios and clips refer."""
        with disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            for update in updates:
                for part in update.passes:
                    part["old_per_token_logps"] = self.logps_of(self.model, part)

    def compute_loss(
        self,
        model: Any,
        inputs: Sequence[Update],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The loss of the last update, whose step is the trainer's; the updates before it are made here."""
        *earlier, last = inputs
        found = []
        for update in earlier:
            loss = self._update_loss(model, update)
            self.accelerator.backward(loss)
            found.append(loss.detach())
            self._step_weights(model)
        loss = self._update_loss(model, last)
        # What is reported is the mean over the updates.
        return loss + (sum(found, loss.detach()) / len(inputs) - loss.detach())

    def _step_weights(self, model: Any) -> None:
        """An optimizer step as transformers makes it, at the learning rate of the step."""
        self._get_grad_norm(model, grad_norm=self._clip_grad_norm(model))
        self.optimizer.step()
        model.zero_grad()

    def _update_loss(self, model: Any, update: Update) -> Any:
        *first, last = update.passes
        detached: Any = 0.0
        for part in first:
            with self._unsynchronised(model):
                loss = self._part_loss(model, part)
                self.accelerator.backward(loss)
            detached = detached + loss.detach()
        loss = self._part_loss(model, last) + detached
        self._weigh_metrics(update.weights)
        return loss

    @contextmanager
    def _unsynchronised(self, model: Any) -> Iterator[None]:
        """DDP reduces gradients in the last pass; FSDP in every one, since it would keep them whole until then.

        Where each node has a copy, FSDP adds up those of a node in every pass, and those of all nodes in the last.
        """
        if isinstance(model, DistributedDataParallel):
            with model.no_sync():
                yield
        elif defers_nodes(self.accelerator):
            model.set_requires_all_reduce(False)
            try:
                yield
            finally:
                model.set_requires_all_reduce(True)
        else:
            yield

    def logps_of(self, model: Any, part: Batch) -> Any:
        """Log-probabilities of the completions of a pass, (rows, longest completion)."""
        return self._get_per_token_logps_and_entropies(
            model,
            torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1),
            torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1),
            part["completion_ids"].size(1),
            wanted=self._wanted(part),
        )[0]

    def _wanted(self, part: Batch) -> Any:
        """The sampled tokens alone where the words of a large vocabulary are the costliest part of a score."""
        sampled = part["tool_mask"] > 0
        # A pass that only others have rows for needs a token all the same.
        return sampled if len(self._tokenizer) > LARGE_VOCABULARY and sampled.any() else None

    def _part_loss(self, model: Any, part: Batch) -> Any:
        before = self.use_vllm, self.vllm_importance_sampling_correction
        self._part = part
        if self.sampling_cap is not None:
            # TRL multiplies the policy's loss (not the KL) by `importance_sampling_ratio` where both are set.
            self.use_vllm = self.vllm_importance_sampling_correction = True
        try:
            return super().compute_loss(model, part)
        finally:
            self._part = None
            self.use_vllm, self.vllm_importance_sampling_correction = before

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *rest: Any, **options: Any
    ) -> Any:
        """In the pass of the loss, also measures how far the engine's log-probabilities are from these."""
        if options.get("compute_aux_loss"):
            # A router is balanced over the tokens of a pass, and TRL tells padding from them.
            found = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *rest, **options
            )
        else:
            wanted = options.get("wanted") if self._part is None else self._wanted(self._part)
            with self.accelerator.autocast():
                logps, entropies = score_tokens(
                    model,
                    input_ids,
                    attention_mask,
                    logits_to_keep,
                    filler=self._tokenizer.pad_token_id,
                    packed=packs_rows(self.accelerator.unwrap_model(model).config),
                    wanted=wanted,
                    temperature=self.temperature,
                )
            found = logps, entropies if options.get("compute_entropy") else None, None
        if self._part is not None:
            difference = logprob_drift(self._part.get("old_per_token_logps", found[0].detach()), self._part)
            drawn = (self._part["tool_mask"] > 0) & ~self._part["sampling_per_token_logps"].isnan()
            self.drift.add(difference, drawn)
            if self.sampling_cap is not None:
                self._part["importance_sampling_ratio"] = difference.exp().clamp(max=self.sampling_cap)
        return found

    def _weigh_metrics(self, weights: Sequence[float]) -> None:
        """TRL averages over passes, whatever their size; a token counts here as it does in the loss."""
        metrics, total = self._metrics["train"], sum(weights)
        for name in _PER_TOKEN:
            if total and metrics[name]:
                of_passes = zip(metrics[name][-len(weights) :], weights, strict=True)
                mean = sum(value * weight for value, weight in of_passes if weight) / total
                metrics[name][-len(weights) :] = [mean]
