"""Whether a model directory can be a run's policy, told from its files: before the run begins, without torch."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scope_selfplay.config import RunConfig
from scope_selfplay.dialects import Dialect, spoken_dialect
from scope_selfplay.errors import CheckpointError
from scope_selfplay.inference.codec import ChatCodec
from scope_selfplay.training.policy import check_context, check_tags

LONGEST_HEADER = 100_000_000
"""Bytes. What safetensors itself reads at most."""


def check_policy(folder: Path, config: RunConfig) -> None:
    """Raises CheckpointError for a directory that a stage of this run could not train or sample from."""
    kind = json.loads((folder / "config.json").read_bytes()).get("model_type")
    if not isinstance(kind, str) or not kind:
        raise CheckpointError(
            f"{folder}: config.json has no model_type, expected the model's family such as qwen3; save the model "
            "again with save_pretrained"
        )
    check_context(folder, config)
    for file in sorted(folder.glob("*.safetensors")):
        _check_weights(file)
    _check_tokenizer(folder, spoken_dialect(config.model.dialect, config.model.earlier_thinking))


def _check_weights(file: Path) -> None:
    """The header of a safetensors file says where its last tensor ends: there the file ends."""
    size, expected = file.stat().st_size, None
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length <= min(size, LONGEST_HEADER):
            expected = _end_of_tensors(opened.read(length))
    if expected is None:
        raise CheckpointError(
            f"{file}: is no safetensors file or a damaged one ({size:,} bytes); copy the model again"
        )
    expected += 8 + length
    if size != expected:
        raise CheckpointError(
            f"{file}: is damaged, it has {size:,} bytes and its header tells of {expected:,}; copy the model again"
        )


def _end_of_tensors(header: bytes) -> int | None:
    """Bytes from the header to the end of the last tensor; None for what is no header."""
    try:
        tensors = json.loads(header)
        ends = [int(each["data_offsets"][1]) for name, each in tensors.items() if name != "__metadata__"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return max(ends, default=None)


def _check_tokenizer(folder: Path, family: Dialect) -> None:
    try:
        tokenizer = _FileTokenizer(folder)
    except ImportError:
        # A controller of servers has no tokenizers: its stages look before they train.
        return
    except CheckpointError:
        tokenizer = None
    if tokenizer is not None:
        with suppress(CheckpointError):
            check_tags(tokenizer, family, where=folder)
            return
    # Other files than tokenizer.json may say what it does not: the library that samples has the last word. It
    # takes seconds to load, so a model in which all is well does without.
    with suppress(ImportError):
        check_tags(ChatCodec.load(folder), family, where=folder)


class _FileTokenizer:
    """What tokenizer.json says, read without the library that samples."""

    def __init__(self, folder: Path) -> None:
        """Raises ImportError without the tokenizers library, CheckpointError where more than this file is needed."""
        from tokenizers import Tokenizer

        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        if not (folder / "chat_template.jinja").is_file() and not settings.get("chat_template"):
            raise CheckpointError(f"{folder}: no chat template")
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # noqa: BLE001 - the wall to tokenizers, which raises bare exceptions
            raise CheckpointError(f"{folder}: {error}") from None

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def encode_tag(self, tag: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(tag, add_special_tokens=False).ids)
