"""Policies on disk: loading, checking and naming Hugging Face model directories."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from scope_selfplay.errors import CheckpointError

EMBEDDED = "embedded"


def policy_path(path: str) -> Path:
    """A model directory; `embedded` is the tiny policy in the package. Raises CheckpointError when it is none."""
    folder = Path(__file__).parent.parent / "embedded" / "policy" if path == EMBEDDED else Path(path)
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder}: no such model directory; give a Hugging Face directory or `embedded`"
        )
    for name, what in (("config.json", "a config"), ("tokenizer_config.json", "a tokenizer")):
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{folder}: no {name}; a model directory holds {what}, a tokenizer and safetensors"
            )
    if not list(folder.glob("*.safetensors")):
        pickled = [each.name for each in folder.glob("*.bin")]
        found = f"found {pickled[0]}, which is pickled code" if pickled else "found no weights"
        raise CheckpointError(f"{folder}: {found}; save the model as safetensors")
    for name in ("config.json", "tokenizer_config.json"):
        if "auto_map" in _read_object(folder / name):
            raise CheckpointError(
                f"{folder}: {name} has auto_map, which runs foreign code; remove it or use another model"
            )
    return folder


def _read_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise CheckpointError(f"{file.parent}: {file.name} is no JSON object; save the model again")
    return content


@cache
def weights_hash(folder: Path) -> str:
    """Names the weights: the first 12 hex digits of a SHA-256 over all safetensors files."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def load_model(folder: Path) -> Any:
    """A causal language model in float32 (the trainer casts). Raises CheckpointError."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # noqa: BLE001 - the wall to transformers and safetensors, which has errors of its own
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(f"{folder}: cannot be loaded ({line})") from None
