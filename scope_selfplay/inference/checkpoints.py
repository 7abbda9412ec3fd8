"""Policies on disk: loading, checking and naming Hugging Face model directories; their tokenizer and chat template.

The template is rendered around placeholders and split at them: what the template wrote may become special tokens, no
text of others may, nor any other token that a tokenizer adds to its vocabulary for a tag. What the prompt says itself
outside of frames may name the tags of the protocol. Only the parts are encoded, so a conversation that grows never
changes the ids that were sampled before.

The checks only read files: before a run begins, and without torch, they find a directory that cannot be its policy.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from scope_selfplay.base.errors import CheckpointError, ConfigError, InferenceError
from scope_selfplay.base.sampling import Generate, Message, TagCodec
from scope_selfplay.base.text import by_frame, in_need_of_frame
from scope_selfplay.config.run import LINEAR_LAYERS, RunConfig
from scope_selfplay.dialects.families import ANSWER_TAGS, TASK_TAGS, THINK_TAGS, Dialect, dialect
from scope_selfplay.inference.models import MODELS, fetched_model

_MARK = "\ue000{}\ue001"
_TAG = re.compile(r"[<\[|{](?=.*[^\W\d]).+", re.DOTALL)


class ChatCodec:
    """A Hugging Face tokenizer and its chat template as a `TextCodec`, and where a turn ends."""

    def __init__(self, tokenizer: Any, *, thinking: bool | None = None) -> None:
        """`thinking`: whether a chat template that can switch thinking on and off does so; None leaves it to it."""
        self.tokenizer = tokenizer
        self._switches = {} if thinking is None else {"enable_thinking": thinking}
        self.end_ids = frozenset(
            {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")} - {None}
        )
        # Other tokens that were added, such as words and runs of spaces, say what they are.
        added = sorted(filter(_TAG.fullmatch, tokenizer.get_added_vocab()))
        self._added = _starts(added)
        # What needs no frame holds none of the tags that do.
        self._unframed = _starts([token for token in added if not in_need_of_frame(token)])

    @classmethod
    def load(cls, folder: Path, *, thinking: bool | None = None) -> "ChatCodec":
        """Raises CheckpointError where the folder has no tokenizer with a chat template."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # noqa: BLE001 - the wall to tokenizers, which raises bare exceptions
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise CheckpointError(
                f"{folder}: no usable tokenizer ({reason}); save the tokenizer again with save_pretrained, "
                "or use another model"
            ) from None
        if not tokenizer.chat_template:
            raise CheckpointError(
                f"{folder}: no chat template beside the tokenizer, and a policy needs one; use an instruct model"
            )
        return cls(tokenizer, thinking=thinking)

    @property
    def end_of_turn(self) -> int:
        marks = self.end_ids - {self.tokenizer.eos_token_id}
        return int(next(iter(marks), self.tokenizer.eos_token_id))

    def encode_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        rendered = self._render([(message.role, _MARK.format(i)) for i, message in enumerate(messages)])
        return self._fill(rendered, messages)

    def encode_next(self, messages: Sequence[Message], *, sampled: Sequence[int]) -> tuple[int, ...]:
        spoken = [("user", _MARK.format("u")), ("assistant", _MARK.format("a"))]
        coming = [(message.role, _MARK.format(i)) for i, message in enumerate(messages)]
        rendered = self._render(spoken + coming).partition(_MARK.format("a"))[2]
        if sampled and sampled[-1] in self.end_ids:
            # The end of the turn was sampled: it is already among the ids, only what follows it is new.
            rendered = rendered.removeprefix(self.tokenizer.convert_ids_to_tokens(sampled[-1]))
        return self._fill(rendered, messages)

    def decode(self, ids: Sequence[int]) -> str:
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, none of which is a tag's."""
        if not texts:
            return []
        backend = self.tokenizer.backend_tokenizer
        # As `_encode` does for texts: what looks like a special token is text.
        backend.encode_special_tokens = True
        encoded = backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [
            self.count(text) if self._added.search(text) else len(ids)
            for text, ids in zip(texts, encoded, strict=True)
        ]

    def count(self, text: str) -> int:
        return len(self._of_text(text, self._added))

    def truncate(self, text: str, max_tokens: int) -> str:
        encoded = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )
        offsets = encoded["offset_mapping"]
        if len(offsets) <= max_tokens and self.count(text) <= max_tokens:
            return text
        # A character may be several tokens, and a text that is cut, or that holds tags, may need more of them.
        end = offsets[min(max_tokens, len(offsets) - 1)][0]
        while end and self.count(text[:end]) > max_tokens:
            end -= 1
        return text[:end]

    def encode_tag(self, tag: str) -> tuple[int, ...]:
        return self._encode(tag, special=True)

    def _render(self, conversation: Sequence[tuple[str, str]]) -> str:
        messages = [{"role": role, "content": content} for role, content in conversation]
        return str(
            self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **self._switches
            )
        )

    def _fill(self, rendered: str, messages: Sequence[Message]) -> tuple[int, ...]:
        ids: list[int] = []
        for i, message in enumerate(messages):
            before, _, rendered = rendered.partition(_MARK.format(i))
            ids += self._encode(before, special=True)
            for is_frame, part in by_frame(message.content):
                ids += self._of_text(part, self._added if is_frame else self._unframed)
        return (*ids, *self._encode(rendered, special=True))

    def _of_text(self, text: str, tokens: re.Pattern[str]) -> tuple[int, ...]:
        """The ids of a text that is cut inside each of the tokens, so that none of them is made of it."""
        cuts = [0, *(found.start() + 1 for found in tokens.finditer(text)), len(text)]
        return tuple(
            token for start, end in pairwise(cuts) for token in self._encode(text[start:end], special=False)
        )

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        if not text:
            return ()
        encoded = self.tokenizer(text, add_special_tokens=False, split_special_tokens=not special)
        return tuple(encoded["input_ids"])


def _starts(tokens: Sequence[str]) -> re.Pattern[str]:
    """Where any of them begins in a text, those inside another one too."""
    if not tokens:
        return re.compile(r"(?!)")
    firsts = re.escape("".join({token[0] for token in tokens}))
    return re.compile(f"(?=[{firsts}])(?={'|'.join(map(re.escape, tokens))})")


class Stops(NamedTuple):
    """What is one token is compared as an id, only the rest needs text."""

    ids: frozenset[int]
    """Single-token stop strings and the ends of a turn."""
    texts: tuple[str, ...]
    """Stop strings of several tokens."""


@dataclass(frozen=True)
class Sampling:
    """How one turn is sampled; a temperature of 0 takes the likeliest tokens."""

    max_tokens: int
    temperature: float
    seed: int
    stops: Stops
    top_p: float = 1.0


class SamplingEngine:
    """What the engines of a policy have in common: its identity, and how its turns are sampled.

    `on_tokens` is told how many tokens are there.
    """

    def __init__(
        self,
        codec: ChatCodec,
        *,
        identity: str,
        max_length: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        on_tokens: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.codec, self.identity, self.on_tokens = codec, identity, on_tokens
        self._max_length, self._temperature, self._top_p = max_length, temperature, top_p
        self._stops: dict[tuple[str, ...], Stops] = {}

    def refresh(self, identity: str) -> None:
        """Name the weights of a policy in training, which the trainer has brought to the engine."""
        self.identity = identity

    def sampling(self, request: Generate, seed: int) -> Sampling:
        """Raises InferenceError where no token fits into the context."""
        room = self._max_length - len(request.prompt_ids)
        if room < 1:
            raise InferenceError(
                f"a prompt of {len(request.prompt_ids)} tokens does not fit a context of {self._max_length}"
            )
        temperature = 0.0 if request.greedy else self._temperature
        most, stop = min(request.max_tokens, room), request.stop
        if stop not in self._stops:
            encoded = {text: self.codec.encode_tag(text) for text in stop}
            single = {ids[0] for ids in encoded.values() if len(ids) == 1}
            texts = tuple(text for text, ids in encoded.items() if len(ids) > 1)
            self._stops[stop] = Stops(frozenset(single | self.codec.end_ids), texts)
        return Sampling(most, temperature, seed, self._stops[stop], self._top_p)


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
    _check_weights(folder)
    for name in ("config.json", "tokenizer_config.json"):
        if "auto_map" in _read_object(folder / name):
            raise CheckpointError(
                f"{folder}: {name} has auto_map, which runs foreign code; remove it or use another model"
            )
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
