"""What is trained, and what it is held against: all weights, or a low-rank adapter; the reference is always M0.

One adapter is trained on through all iterations, over M0: without it the model *is* M0, so the reference costs no
memory. A checkpoint holds the merged weights, as plain as any other, and beside them `adapter/` to go on from.
Where a start has none (it was trained in full), a new adapter lies over its weights and M0 is loaded beside it.
"""

from pathlib import Path
from typing import Any, NamedTuple

from scope_selfplay.config import LoraConfig
from scope_selfplay.errors import CheckpointError
from scope_selfplay.training.policy import load_model

ADAPTER = "adapter"


class Trained(NamedTuple):
    """`sampled` is what an engine copies; `under` are the weights below the adapter, None without one.

    `needs_reference`: taking the adapter away does not leave M0.
    """

    model: Any
    sampled: Any
    under: Path | None = None
    needs_reference: bool = False


def trained_model(start: Path, base: Path, lora: LoraConfig) -> Trained:
    """The model that training from `start` changes. Raises CheckpointError."""
    if not lora.rank:
        model = load_model(start)
        # TRL loads its reference from this name.
        model.config._name_or_path = str(base)
        return Trained(model, model)
    from peft import LoraConfig as Adapter
    from peft import PeftModel, get_peft_model

    kept = start / ADAPTER
    if kept.is_dir():
        if not (kept / "adapter_model.safetensors").is_file():
            # peft would take adapter_model.bin instead, which is pickled code.
            raise CheckpointError(f"{kept}: no adapter_model.safetensors; save the adapter as safetensors")
        model = load_model(base)
        adapted = PeftModel.from_pretrained(model, str(kept), is_trainable=True)
        _check_shape(kept, adapted.peft_config["default"], lora)
        return Trained(adapted, model, base)
    model = load_model(start)
    shape = Adapter(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.target_modules),
        task_type="CAUSAL_LM",
    )
    return Trained(get_peft_model(model, shape), model, start, needs_reference=start != base)


def merge_adapter(adapter: Path, under: Path, folder: Path) -> None:
    """Write plain weights: those under an adapter with the adapter merged into them."""
    from peft import PeftModel

    merged = PeftModel.from_pretrained(load_model(under), str(adapter)).merge_and_unload()
    merged.save_pretrained(str(folder))


def _check_shape(kept: Path, found: Any, lora: LoraConfig) -> None:
    there = (found.r, float(found.lora_alpha), set(found.target_modules))
    if there != (lora.rank, lora.alpha, set(lora.target_modules)):
        raise CheckpointError(
            f"{kept}: holds an adapter of rank {found.r}, alpha {found.lora_alpha} on "
            f"{', '.join(sorted(found.target_modules))}; model.lora asks for rank {lora.rank}, alpha {lora.alpha} on "
            f"{', '.join(sorted(lora.target_modules))}: keep one shape through a run"
        )
