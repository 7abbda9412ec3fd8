"""Policies on disk: loading, checking and naming Hugging Face model directories.

The checks only read files: before a run begins, and without torch, they find a directory that cannot be its policy.
"""

import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from scope_selfplay.base.errors import CheckpointError, ConfigError
from scope_selfplay.base.sampling import TagCodec
from scope_selfplay.config.run import LINEAR_LAYERS, RunConfig
from scope_selfplay.dialects.families import ANSWER_TAGS, TASK_TAGS, THINK_TAGS, Dialect, dialect
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.inference.models import MODELS, fetched_model

EMBEDDED = "embedded"
WEIGHTS = "model.safetensors"
ADAPTER = "adapter"
"""The folder of an adapter beside the weights that it was added to."""
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def policy_path(path: str, kept: Path | None = None) -> Path:
    """A model directory; `embedded` is the tiny policy in the package, a model that was fetched has its name
    (`scope models`), and what is neither may lie where a run has `kept` it. Raises CheckpointError when it is none.
    """
    folder = Path(__file__).parent.parent / "embedded" / "policy" if path == EMBEDDED else Path(path)
    if not folder.is_dir():
        folder = fetched_model(path) or (kept if kept and kept.is_dir() else folder)
    if not folder.is_dir():
        advice = (
            f"fetch it (scope models {path})"
            if path in MODELS
            else "give a Hugging Face directory or `embedded`"
        )
        raise CheckpointError(f"{folder}: no such model directory; {advice}")
    for name in ("config.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{folder}: no {name}; a model directory holds config.json, a tokenizer with tokenizer_config.json, "
                "and safetensors; save the model again with save_pretrained"
            )
        if "auto_map" in _read_object(folder / name):
            raise CheckpointError(
                f"{folder}: {name} has auto_map, which runs foreign code; remove it or use another model"
            )
    _check_weights(folder)
    return folder


def _check_weights(folder: Path) -> None:
    """Raises CheckpointError unless what would be loaded is safetensors, here, and part of `weights_hash`."""
    if (folder / WEIGHTS).is_file():
        return
    index = folder / f"{WEIGHTS}.index.json"
    if not index.is_file():
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        other = sorted(path.name for path in folder.glob("*.safetensors"))
        found = f"found {pickled[0]}, which is pickled code" if pickled else "found no weights"
        if other and not pickled:
            found = f"found {other[0]}, expected {WEIGHTS} or {index.name}"
        raise CheckpointError(f"{folder}: {found}; save the model as safetensors")
    shards = _read_object(index).get("weight_map")
    for name in sorted(set(map(str, shards.values()))) if isinstance(shards, dict) and shards else [""]:
        if Path(name).name != name or Path(name).suffix != ".safetensors" or not (folder / name).is_file():
            raise CheckpointError(
                f"{index}: names {name!r} as weights, expected safetensors files beside it; save the model again"
            )


def check_policy(folder: Path, config: RunConfig) -> None:
    """Raises CheckpointError for a directory that a stage of this run could not train or sample from."""
    kind = _read_object(folder / "config.json").get("model_type")
    if not isinstance(kind, str) or not kind:
        raise CheckpointError(
            f"{folder}: config.json has no model_type, expected the model's family such as qwen3; save the model "
            "again with save_pretrained"
        )
    check_context(folder, config)
    for file in sorted(folder.glob("*.safetensors")):
        _tensors(file)
    # A controller has no tokenizers library: its stages check before they train.
    with suppress(ImportError):
        family = dialect(config.model.dialect, config.model.earlier_thinking)
        check_tags(ChatCodec.load(folder), family, where=folder)


def stored_dtype(folder: Path) -> str:
    """The data type of most of a model's weights, as torch names it: float32, bfloat16 or float16.

    Of any other, such as quantized weights, float32, in which they are trained.
    """
    sizes: Counter[str] = Counter()
    for file in folder.glob("*.safetensors"):
        for kind, size in _tensors(file):
            sizes[kind] += size
    return _DTYPES.get(max(sizes, key=sizes.__getitem__, default=""), "float32")


def parameters_of(folder: Path) -> int:
    """How many numbers the safetensors files of a model hold, tied ones once."""
    return sum(size for file in folder.glob("*.safetensors") for _, size in _tensors(file))


def _tensors(file: Path) -> list[tuple[str, int]]:
    """Data type and size of every tensor of a file, without reading them. Raises CheckpointError for a damaged one."""
    from safetensors import SafetensorError, safe_open

    found: list[tuple[str, int]] = []
    with suppress(SafetensorError), safe_open(file, "numpy") as opened:
        tensors = map(opened.get_slice, opened.keys())
        found = [(tensor.get_dtype(), prod(tensor.get_shape())) for tensor in tensors]
    if not found:
        size = file.stat().st_size
        raise CheckpointError(
            f"{file}: not a safetensors file, or a damaged one ({size:,} bytes); copy the model again"
        )
    return found


def check_context(folder: Path, config: RunConfig) -> None:
    """Raises CheckpointError where a prompt leaves no room to answer, or a rollout outgrows what the model can hold."""
    room = config.model.max_length
    holds = _read_object(folder / "config.json").get("max_position_embeddings")
    for role, settings in (("challenger", config.challenger), ("solver", config.solver)):
        if settings.max_prompt >= room:
            raise CheckpointError(
                f"model.max_length ({room}) leaves no token to answer a prompt of {role}.max_prompt "
                f"({settings.max_prompt}); raise the one or lower the other"
            )
        needed = min(room, settings.max_prompt + settings.max_response)
        if isinstance(holds, int) and needed > holds:
            raise CheckpointError(
                f"{folder}: holds {holds} tokens, a {role} rollout may have {needed} ({settings.max_prompt} of prompt, "
                f"{settings.max_response} of response, model.max_length {room}); lower model.max_length or take "
                "another model"
            )


def check_tags(codec: TagCodec, family: Dialect, *, where: object) -> None:
    """Raises CheckpointError where the tokenizer cannot write the family's tags, or hides them when it decodes."""
    tags = (*family.search_tags, *TASK_TAGS, *ANSWER_TAGS, *THINK_TAGS, *(family.result_tags or ()))
    for tag in tags:
        read = codec.decode(codec.encode_tag(tag))
        if read != tag:
            raise CheckpointError(
                f"{where}: the tokenizer reads {tag} back as {read!r}, and the {family.name} dialect needs it; use a "
                "tokenizer of the family, or another model.dialect"
            )
    for tag in THINK_TAGS if family.drops_earlier_thinking else ():
        pieces = len(codec.encode_tag(tag))
        if pieces != 1:
            raise CheckpointError(
                f"{where}: {tag} is {pieces} tokens, and the {family.name} dialect cuts thinking out of token "
                "ids, so it must be one; use a tokenizer of the family, or model.earlier_thinking: keep"
            )


def _read_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise CheckpointError(f"{file.parent}: {file.name} is not a JSON object; save the model again")
    return content


def sampling_device(wanted: str) -> str:
    """The device of a policy that is only sampled: the GPU of this rank, or the CPU. `wanted`: auto, cuda or cpu.

    Raises ConfigError for a GPU that torch does not see.
    """
    import torch

    if wanted == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    if wanted == "cuda":
        raise ConfigError("device: found cuda, and torch sees no GPU here; use auto or cpu")
    return "cpu"


def load_frozen(folder: Path, device: str = "auto") -> Any:
    """A model that is only sampled, on a GPU if there is one. Raises CheckpointError, ConfigError."""
    return load_model(folder).to(sampling_device(device))


def load_model(
    folder: Path, *, precision: str = "float32", attention: str = "sdpa", whole: bool = True
) -> Any:
    """A causal language model on the CPU, in float32 unless told (the trainer casts); where it is not `whole`, on the
    meta device, without weights.

    Raises CheckpointError; ConfigError where the package of an attention is missing.
    """
    if attention == "flash_attention_2" and find_spec("flash_attn") is None:
        raise ConfigError(
            "model.attention: flash_attention_2 needs FlashAttention, which is not installed; pip install flash-attn, "
            "or use sdpa"
        )
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    options = {"dtype": getattr(torch, precision), "attn_implementation": attention}
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        if not whole:
            with torch.device("meta"):
                shape = AutoConfig.from_pretrained(str(folder), **local)
                return AutoModelForCausalLM.from_config(shape, **options)
        return AutoModelForCausalLM.from_pretrained(str(folder), use_safetensors=True, **local, **options)
    except Exception as error:  # noqa: BLE001 - the wall to transformers and safetensors, which has errors of its own
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(
            f"{folder}: cannot be loaded ({line}); save the model again with save_pretrained, or use another model"
        ) from None


def load_with_adapter(
    start: Path, base: Path, rank: int, load: Callable[[Path], Any], *, whole: bool
) -> tuple[Any, Path]:
    """A model with a trainable adapter (that of `start` over `base`, or a new one), and the weights that it is over.

    Raises CheckpointError where the adapter of `start` has another shape.
    """
    from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model

    kept = start / ADAPTER
    shape = LoraConfig(r=rank, lora_alpha=32, target_modules=list(LINEAR_LAYERS), task_type="CAUSAL_LM")
    if not kept.is_dir():
        return get_peft_model(load(start), shape), start
    if not (kept / "adapter_model.safetensors").is_file():
        # peft would take adapter_model.bin instead, which is pickled code.
        raise CheckpointError(f"{kept}: no adapter_model.safetensors; save the adapter as safetensors")
    found, wanted = (
        f"rank {each.r}, alpha {each.lora_alpha:g} on {', '.join(sorted(each.target_modules))}"
        for each in (PeftConfig.from_pretrained(str(kept)), shape)
    )
    if found != wanted:
        raise CheckpointError(
            f"{kept}: holds an adapter of {found}; model.lora_rank asks for {wanted}: keep one shape through a run"
        )
    model = load(base)
    if whole:
        return PeftModel.from_pretrained(model, str(kept), is_trainable=True), base
    return get_peft_model(model, shape), base
