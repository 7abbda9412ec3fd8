"""How a model makes one vector of its tokens' vectors, as its own folder says it.

sentence-transformers writes that into `modules.json` and the pooling module's `config.json`, in an older form
(one flag for each mode) and a newer one (`pooling_mode`). A wrong pooling gives vectors that look fine and find
less, so what cannot be honoured is refused.
"""

import json
from enum import StrEnum
from pathlib import Path
from typing import Any

from scope_selfplay.errors import CheckpointError

ADVICE = "use the sentence-transformers backend for this model"
FLAG = "pooling_mode_"
FLAGS = {FLAG + "mean_tokens": "mean", FLAG + "cls_token": "cls"}
KNOWN_MODULES = frozenset({"Transformer", "Pooling", "Normalize"})


class Pooling(StrEnum):
    MEAN = "mean"
    """The mean over the tokens that are not padding."""
    CLS = "cls"
    """The first token's vector."""


def read_pooling(model: Path) -> Pooling:
    """The pooling of a model's folder; the mean for a folder that says nothing, as sentence-transformers takes it.

    Raises CheckpointError for files that cannot be read, another pooling, and modules after it.
    """
    folder = "1_Pooling"
    for module in _read(model / "modules.json", []):
        if not isinstance(module, dict):
            raise CheckpointError(f"{model}: modules.json lists a {type(module).__name__}, expected objects")
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind not in KNOWN_MODULES:
            raise CheckpointError(
                f"{model}: modules.json names {kind!r}; the ONNX path takes a transformer, a pooling and a "
                f"normalisation: {ADVICE}"
            )
        if kind == "Pooling":
            folder = str(module.get("path", folder))
    path = model / folder / "config.json"
    config = _read(path, {})
    modes = _modes(config)
    if len(modes) != 1 or modes[0] not in [*Pooling] or config.get("include_prompt") is False:
        said = "+".join(modes) or "no pooling"
        if config.get("include_prompt") is False:
            said += " without the prompt's tokens"
        raise CheckpointError(f"{path} says {said}; the ONNX path pools by mean or cls: {ADVICE}")
    return Pooling(modes[0])


def _modes(config: dict[str, Any]) -> list[str]:
    found = config.get("pooling_mode")
    if found is not None:
        return [found] if isinstance(found, str) else [str(mode) for mode in found]
    flags = {name: value for name, value in config.items() if name.startswith(FLAG)}
    if not flags:
        return [Pooling.MEAN]
    return [FLAGS.get(name, name.removeprefix(FLAG)) for name, value in flags.items() if value]


def _read(path: Path, absent: Any) -> Any:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return absent
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, type(absent)):
        raise CheckpointError(f"{path}: a {type(found).__name__}, expected a {type(absent).__name__}")
    return found
