"""A role's settings as TRL's own."""

from typing import Any

from scope_selfplay.config import ModelConfig
from scope_selfplay.training.job import GrpoJob
from scope_selfplay.training.losses import loss_of
from scope_selfplay.training.ranks import forward_passes

# One process may wait this long for another's rollouts and judgements before the collective call fails.
_COLLECTIVE_SECONDS = 7200


def trl_config(job: GrpoJob) -> Any:
    import torch
    from trl import GRPOConfig

    settings, loss, lineage = job.settings, loss_of(job.settings), job.start.lineage
    passes = forward_passes(settings, job.ranks.processes).passes
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
        temperature=job.options.temperature,
        shuffle_dataset=False,
        seed=job.options.seed % 2**31,
        bf16=cuda,
        use_cpu=not cuda,
        gradient_checkpointing=cuda,
        logging_steps=1,
        save_strategy="steps",
        save_steps=settings.save_every,
        # Old checkpoints are removed by `Checkpoints`, which looks at them first.
        save_total_limit=None,
        ddp_timeout=_COLLECTIVE_SECONDS,
        report_to=list(job.options.tracking.report_to) or "none",
        run_name=f"{lineage.run}-{lineage.iteration:02d}-{lineage.role}",
        log_completions=job.options.tracking.log_completions,
        # Kept as files: what TRL would print goes to stdout, which is for data.
        num_completions_to_print=0,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **trl_generation(job.options.model, job.max_length),
    )


def trl_generation(model: ModelConfig, max_length: int) -> dict[str, Any]:
    """The engine's part of TRL's settings."""
    if model.engine == "in_process":
        return {}
    # Whole rollouts of several turns are put together after TRL's correction would weigh them.
    shared = {"use_vllm": True, "vllm_importance_sampling_correction": False}
    if model.engine == "vllm_server":
        return {**shared, "vllm_mode": "server", "vllm_server_base_url": vllm_base(model)}
    return {
        **shared,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": model.vllm_memory,
        "vllm_max_model_length": max_length,
        # Requests come one by one: the ranks of a tensor-parallel group could not agree on their order.
        "vllm_tensor_parallel_size": 1,
    }


def vllm_base(model: ModelConfig) -> str:
    """Where the vLLM of engine vllm_server is, without the path of its API."""
    assert model.vllm_url is not None, "the config checks it"
    return model.vllm_url.rstrip("/").removesuffix("/v1")
