"""A role's settings as TRL's own."""

from typing import Any

import torch
from trl import GRPOConfig

from scope_selfplay.training.generation import trl_generation
from scope_selfplay.training.grpo import GrpoJob
from scope_selfplay.training.losses import loss_of
from scope_selfplay.training.ranks import step_share

# One process may wait this long for another's rollouts and judgements before the collective call fails.
_PATIENCE_SECONDS = 7200


def trl_config(job: GrpoJob) -> Any:
    settings, loss = job.settings, loss_of(job.settings)
    passes = step_share(settings, job.ranks.processes).passes
    cuda = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(job.folder.work),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.micro_batch,
        gradient_accumulation_steps=passes,
        steps_per_generation=passes,
        num_generations=settings.group_size,
        max_completion_length=settings.max_response,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=round(settings.warmup_ratio * settings.steps),
        max_grad_norm=settings.clip_norm,
        beta=settings.kl_beta,
        loss_type="grpo" if loss.sequence else settings.loss,
        importance_sampling_level="sequence" if loss.sequence else "token",
        epsilon=loss.clip_low,
        epsilon_high=loss.trl_high,
        scale_rewards="group" if loss.scaled else "none",
        # The KL of the papers (equation 3) is not weighed by the importance ratio.
        use_bias_correction_kl=False,
        temperature=job.temperature,
        shuffle_dataset=False,
        seed=job.seed % 2**31,
        bf16=cuda,
        use_cpu=not cuda,
        gradient_checkpointing=cuda,
        logging_steps=1,
        save_strategy="steps",
        save_steps=settings.save_every,
        # Old checkpoints are removed by `Checkpoints`, which looks at them first.
        save_total_limit=None,
        ddp_timeout=_PATIENCE_SECONDS,
        report_to=list(job.tracking.report_to) or "none",
        run_name=f"{job.lineage.run}-{job.lineage.iteration:02d}-{job.lineage.role}",
        log_completions=job.tracking.log_completions,
        # Kept as files: what TRL would print goes to stdout, which is for data.
        num_completions_to_print=0,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **trl_generation(job.model, job.max_length),
    )
