"""FSDP2 over the GPUs of one training: every rank holds a share of each layer, of gradients and of the optimizer.

The launcher asks for it through accelerate's variables (`launching`, `k8s/base/accelerate`). Weights are read by the
first rank of a node and handed out by the first of all; each layer is gathered while it computes, in bf16. Gradients
are reduced in fp32, after every backward: those that are not reduced yet are whole, 16 GB for 8B parameters.

With hybrid sharding a rank's share is one of its node's GPUs; the same shares of other nodes get the same gradients.
"""

import os
from datetime import timedelta
from typing import Any


def sharded() -> bool:
    """Whether the launcher asked for FSDP, as it does where there are GPUs."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false") == "true"


def join_ranks(collective_seconds: float) -> None:
    """Meet the other ranks: only then does transformers know that the first is to read the weights for all."""
    from accelerate import PartialState

    PartialState(timeout=timedelta(seconds=collective_seconds))


def accelerator_config() -> dict[str, Any]:
    """transformers' setting of that name, which it writes into."""
    return {"gradient_accumulation_kwargs": {"sync_each_batch": True}} if sharded() else {}


def trainer_devices(*, exact: bool) -> dict[str, Any]:
    """transformers' settings of where it trains. A GPU computes in bf16, and again what does not fit beside weights.

    A CPU with matrix units computes in bf16, too, where what is sampled need not be `exact`; its weights stay float32.
    """
    import torch

    from scope_selfplay.inference.packed_weights import can_pack

    accelerated = torch.cuda.is_available() or sharded()
    return {
        "bf16": accelerated or (not exact and can_pack(torch.device("cpu"))),
        "use_cpu": not accelerated,
        "gradient_checkpointing": accelerated,
        "accelerator_config": accelerator_config(),
    }


def keep_full_precision(accelerator: Any) -> None:
    """Reduce gradients in fp32, and return log-probabilities as they were computed.

    accelerate 1.15 reduces in bf16 and rounds what every module returns to it.
    """
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    accelerator.state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )


def defers_nodes(accelerator: Any) -> bool:
    """Whether a share of the gradients may wait for those of other nodes until an update's last pass.

    It waits on the GPU; where shares are kept in host memory there is no room for it.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy

    mesh = accelerator.parallelism_config
    if mesh is None or not mesh.dp_replicate_enabled:
        return False
    return not isinstance(accelerator.state.fsdp_plugin.cpu_offload, CPUOffloadPolicy)


def shard_frozen(model: Any, accelerator: Any) -> Any:
    """Every rank's share of a model that is not trained, by the function that shards the one in training."""
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    return fsdp2_prepare_model(accelerator, model)


def meet_trainable_weights(model: Any) -> None:
    """One forward pass of two tokens with all adapters on.

    FSDP decides in a model's first pass what it will reduce, by the weights that are trainable then; with adapters off
    there is none.
    """
    import torch

    device = next(model.parameters()).device
    with torch.no_grad():
        model(input_ids=torch.zeros((1, 2), dtype=torch.long, device=device))
