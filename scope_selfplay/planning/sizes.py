"""How large a dense decoder is: parameters, and bytes of key-value cache per token."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scope_selfplay.errors import ConfigError


class ModelShape(NamedTuple):
    """Widths of a decoder: of its layers, of all query heads, of all key heads, and between the feed-forward layers."""

    layers: int
    hidden: int
    queries: int
    keys: int
    between: int

    def adapted(self, modules: Sequence[str]) -> int:
        """Parameters of a low-rank adapter on these linear layers, per rank."""
        widths = {
            "q_proj": self.hidden + self.queries,
            "k_proj": self.hidden + self.keys,
            "v_proj": self.hidden + self.keys,
            "o_proj": self.queries + self.hidden,
            "gate_proj": self.hidden + self.between,
            "up_proj": self.hidden + self.between,
            "down_proj": self.between + self.hidden,
        }
        return self.layers * sum(widths.get(name, 2 * self.hidden) for name in modules)


class ModelSize(NamedTuple):
    """`cache_bytes` per token in bf16 (0 when the layers are not known); `found` says where the numbers are from.

    `shape` is a guess from the number of parameters where the layers are not known.
    """

    parameters: float
    cache_bytes: int
    found: str
    shape: ModelShape


def model_size(path: str, parameters: float | None = None) -> ModelSize:
    """From the model's config.json where it is here, else from its name (`Qwen3-8B`), else as given.

    Raises ConfigError where none of them says it.
    """
    file = Path(__file__).parents[1] / "embedded" / "policy" if path == "embedded" else Path(path)
    config: dict[str, Any] = {}
    if (file / "config.json").is_file():
        config = json.loads((file / "config.json").read_bytes())
    cache = _cache_bytes(config) if config else 0
    if parameters is not None:
        shape = _shape(config) if config else _usual_shape(parameters)
        return ModelSize(parameters, cache, "--parameters", shape)
    if config:
        return ModelSize(_parameters(config), cache, str(file / "config.json"), _shape(config))
    billions = _billions(Path(path).name)
    if billions is None:
        raise ConfigError(
            f"model.path: {path} is not here and its name has no size such as 8B; give --parameters 8.2e9"
        )
    return ModelSize(billions * 1e9, 0, f"the name {Path(path).name}", _usual_shape(billions * 1e9))


def _shape(config: dict[str, Any]) -> ModelShape:
    heads, pairs, head = _heads(config)
    return ModelShape(
        int(config["num_hidden_layers"]),
        int(config["hidden_size"]),
        heads * head,
        pairs * head,
        int(config["intermediate_size"]),
    )


def _usual_shape(parameters: float) -> ModelShape:
    """Models of 7 and 8 billion are about 128 times as wide as deep, with 12 squares of the width in a layer."""
    layers = max(1, round((parameters / (12 * 128**2)) ** (1 / 3)))
    hidden = 128 * layers
    return ModelShape(layers, hidden, hidden, hidden // 4, 3 * hidden)


def _parameters(shape: dict[str, Any]) -> float:
    """Embeddings, attention, gated feed-forward and norms, as the Qwen and OLMo families have them."""
    width, layers, words = shape["hidden_size"], shape["num_hidden_layers"], shape["vocab_size"]
    heads, pairs, head = _heads(shape)
    attention = width * head * (heads + 2 * pairs) + heads * head * width
    per_layer = attention + 3 * width * shape["intermediate_size"] + 2 * width
    tables = 1 if shape.get("tie_word_embeddings") else 2
    return float(tables * words * width + layers * per_layer + width)


def _cache_bytes(shape: dict[str, Any]) -> int:
    _, pairs, head = _heads(shape)
    return int(2 * shape["num_hidden_layers"] * pairs * head * 2)


def _heads(shape: dict[str, Any]) -> tuple[int, int, int]:
    heads = int(shape["num_attention_heads"])
    pairs = int(shape.get("num_key_value_heads") or heads)
    return heads, pairs, int(shape.get("head_dim") or shape["hidden_size"] // heads)


def _billions(name: str) -> float | None:
    for part in name.lower().replace("_", "-").split("-"):
        if part.endswith("b") and part[:-1].replace(".", "", 1).isdigit():
            return float(part[:-1])
    return None
