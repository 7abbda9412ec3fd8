"""A trained policy as a plain Hugging Face directory: safetensors, tokenizer, and a card that says where it is from."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

from scope_selfplay import __version__
from scope_selfplay.store import StageFolder, write_atomic
from scope_selfplay.training.checkpoints import write_receipt
from scope_selfplay.training.trained_model import ADAPTER, Trained, merge_adapter


class Lineage(NamedTuple):
    """What a policy was made from."""

    run: str = ""
    role: str = ""
    iteration: int = 0
    base_hash: str = ""
    start: str = ""
    prompt_hash: str = ""
    config_hash: str = ""
    dialect: str = ""


def export_policy(
    trainer: Any, trained: Trained, folder: StageFolder, tokenizer: Any, lineage: Lineage
) -> Path:
    """Write the trained policy beside its final name first, so that `checkpoint/` is whole or absent."""
    part = folder.work / "final"
    leads = trainer.accelerator.is_main_process
    if leads:
        shutil.rmtree(part, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    trainer.save_model(str(part if trained.under is None else part / ADAPTER))
    trainer.accelerator.wait_for_everyone()
    if leads:
        if trained.under is not None:
            _merge(part, trained)
        for arguments in part.rglob("training_args.bin"):
            arguments.unlink()
        tokenizer.save_pretrained(str(part))
        write_atomic(part / "README.md", model_card(lineage))
        write_receipt(part)
        shutil.rmtree(folder.checkpoint, ignore_errors=True)
        part.rename(folder.checkpoint)
    trainer.accelerator.wait_for_everyone()
    return folder.checkpoint


def _merge(part: Path, trained: Trained) -> None:
    """Plain weights; the adapter stays beside them only where it lies over M0, for the next iteration to go on."""
    assert trained.under is not None
    merge_adapter(part / ADAPTER, trained.under, part)
    if trained.needs_reference:
        shutil.rmtree(part / ADAPTER)
        return
    for file in (part / ADAPTER).iterdir():
        if file.name not in ("adapter_config.json", "adapter_model.safetensors"):
            file.unlink()


def model_card(lineage: Lineage) -> str:
    """The README.md of a checkpoint, with the front matter that model hubs read."""
    rows = {
        "run": lineage.run,
        "role": lineage.role,
        "iteration": lineage.iteration,
        "base model (SHA-256 of its weights)": lineage.base_hash,
        "trained from": lineage.start,
        "dialect": lineage.dialect,
        "prompt pack": lineage.prompt_hash,
        "config": lineage.config_hash,
        "scope-selfplay": __version__,
    }
    table = "".join(f"| {name} | `{value}` |\n" for name, value in rows.items())
    return (
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags: [self-play, grpo]\n---\n"
        f"# {lineage.role or 'Policy'} of iteration {lineage.iteration}\n\n"
        "Trained by self-play (GRPO, KL to the base model) from documents alone, without labels.\n\n"
        f"| | |\n|---|---|\n{table}"
    )
