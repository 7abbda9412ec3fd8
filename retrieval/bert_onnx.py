"""Writes a BERT encoder (E5, MiniLM) as one ONNX graph, straight from its safetensors, without torch.

Tokens go in, one pooled and normalised vector per text comes out. ONNX Runtime's fused operators (embedding, attention,
skip-normalisation, bias-GELU) keep the graph short. Weights go into a second file, which ONNX Runtime maps.

The pooling is the one that the model's folder names: sentence-transformers writes it into `modules.json` and the
pooling module's `config.json`, in an older form (one flag for each mode) and a newer one (`pooling_mode`). A wrong
pooling gives vectors that look fine and find less, so what cannot be honoured is refused.
"""

import json
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scope_selfplay.base.errors import CheckpointError

GRAPH = "model.onnx"
MICROSOFT = "com.microsoft"
SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads")
Weights = dict[str, NDArray[np.float32]]
ADVICE = "use the sentence-transformers backend for this model"
FLAG = "pooling_mode_"
FLAGS = {FLAG + "mean_tokens": "mean", FLAG + "cls_token": "cls"}
KNOWN_MODULES = frozenset({"Transformer", "Pooling", "Normalize"})


class Pooling(StrEnum):
    MEAN = "mean"
    """The mean over the tokens that are not padding."""
    CLS = "cls"
    """The first token's vector."""


def write_bert(model: Path, folder: Path) -> None:
    """Write the graph and its weights into `folder`.

    Raises CheckpointError for a model that is not a BERT with absolute positions, GELU, safetensors weights,
    and mean or CLS pooling.
    """
    import onnx

    config = _config(model)
    builder = _Graph(config, _weights(model), read_pooling(model))
    try:
        graph = builder.build()
    except (ValueError, IndexError, TypeError) as error:
        raise CheckpointError(f"{model}: its weights are not of config.json's sizes: {error}") from None
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(MICROSOFT, 1)]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    weights = GRAPH + ".data"
    (folder / weights).unlink(missing_ok=True)
    onnx.save_model(
        proto, str(folder / GRAPH), save_as_external_data=True, location=weights, size_threshold=1024
    )


def _config(model: Path) -> dict[str, Any]:
    config: dict[str, Any] = _read(model / "config.json", {})
    settings = {"model_type": None, "hidden_act": "gelu", "position_embedding_type": "absolute"}
    found = [config.get(name, default) for name, default in settings.items()]
    if found != ["bert", "gelu", "absolute"]:
        raise CheckpointError(
            f"{model} is {'/'.join(map(str, found))}; the ONNX path takes bert/gelu/absolute. "
            "Use the sentence-transformers backend for others"
        )
    for name in SIZES:
        if not isinstance(config.get(name), int) or config[name] < 1:
            raise CheckpointError(f"{model}: config.json has {name} {config.get(name)!r}, expected a number")
    return config


def _weights(model: Path) -> Weights:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        weights = load_file(model / "model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{model}: model.safetensors cannot be read: {error}") from None
    return {name.removeprefix("bert."): value.astype(np.float32) for name, value in weights.items()}


def read_pooling(model: Path) -> Pooling:
    """The pooling of a model's folder; the mean where it names none, as sentence-transformers' default.

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
    flags = {name: value for name, value in config.items() if name.startswith(FLAG)}
    modes: list[str] = [Pooling.MEAN]
    if (found := config.get("pooling_mode")) is not None:
        modes = [found] if isinstance(found, str) else [str(mode) for mode in found]
    elif flags:
        modes = [FLAGS.get(name, name.removeprefix(FLAG)) for name, value in flags.items() if value]
    if len(modes) != 1 or modes[0] not in [*Pooling] or config.get("include_prompt") is False:
        named = "+".join(modes) or "no pooling"
        if config.get("include_prompt") is False:
            named += " without the prompt's tokens"
        raise CheckpointError(f"{path} names {named}; the ONNX path pools by mean or cls: {ADVICE}")
    return Pooling(modes[0])


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


class _Graph:
    def __init__(self, config: dict[str, Any], weights: Weights, pooling: Pooling) -> None:
        self._config = config
        self._pooling = pooling
        self._weights = weights
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []

    def build(self) -> Any:
        from onnx import TensorProto, helper

        hidden = self._embed()
        for layer in range(self._config["num_hidden_layers"]):
            hidden = self._layer(f"encoder.layer.{layer}.", hidden)
        self._pool(hidden)
        ids = [helper.make_tensor_value_info(name, TensorProto.INT32, ["n", "t"]) for name in ("ids", "mask")]
        shape = ["n", self._config["hidden_size"]]
        output = helper.make_tensor_value_info("vectors", TensorProto.FLOAT, shape)
        return helper.make_graph(self._nodes, "bert", ids, [output], self._initializers)

    def _embed(self) -> str:
        part = "embeddings."
        positions = self._weight(part + "position_embeddings.weight")
        # Every token is of segment 0, so its embedding moves into the positions.
        segment = self._weight(part + "token_type_embeddings.weight")[0]
        inputs = [
            "ids",
            "",
            self._keep("words", self._weight(part + "word_embeddings.weight")),
            self._keep("positions", positions + segment),
            "",
            *self._norm(part + "LayerNorm."),
        ]
        self._node("EmbedLayerNormalization", inputs, ["h0", "unused_mask"], epsilon=self._epsilon)
        return "h0"

    def _layer(self, name: str, hidden: str) -> str:
        attention = name + "attention."
        parts = [attention + f"self.{which}." for which in ("query", "key", "value")]
        joined = np.concatenate([self._weight(part + "weight").T for part in parts], axis=1)
        bias = np.concatenate([self._weight(part + "bias") for part in parts])
        inputs = [hidden, self._keep(name + "qkv", joined), self._keep(name + "qkv_bias", bias), "mask"]
        heads = self._config["num_attention_heads"]
        attended = self._node("Attention", inputs, [name + "attended"], num_heads=heads)
        hidden = self._residual(attention + "output.", attended, hidden)
        inner = self._matmul(name + "intermediate.dense.", hidden)
        inner_bias = self._keep(name + "inner_bias", self._weight(name + "intermediate.dense.bias"))
        active = self._node("BiasGelu", [inner, inner_bias], [name + "active"])
        return self._residual(name + "output.", active, hidden)

    def _residual(self, name: str, new: str, before: str) -> str:
        """LayerNorm(before + dense(new))."""
        bias = self._keep(name + "dense_bias", self._weight(name + "dense.bias"))
        inputs = [self._matmul(name + "dense.", new), before, *self._norm(name + "LayerNorm."), bias]
        return self._node("SkipLayerNormalization", inputs, [name + "normed"], epsilon=self._epsilon)

    def _pool(self, hidden: str) -> None:
        """One vector for each text, of unit length, as sentence-transformers makes it."""
        match self._pooling:
            case Pooling.MEAN:
                axis = self._keep("axis", np.asarray([2], dtype=np.int64))
                first = self._keep("first", np.asarray([1], dtype=np.int64))
                # Padding counts for nothing.
                weights = self._plain("Cast", ["mask"], "mask_float", to=1)
                column = self._plain("Unsqueeze", [weights, axis], "mask_column")
                kept = self._plain("Mul", [hidden, column], "kept")
                total = self._plain("ReduceSum", [kept, first], "sum", keepdims=0)
                count = self._plain("ReduceSum", [weights, first], "count", keepdims=1)
                pooled = self._plain("Div", [total, count], "mean")
            case Pooling.CLS:
                start = self._keep("start", np.asarray([0], dtype=np.int64))
                tokens = self._keep("tokens", np.asarray([1], dtype=np.int64))
                token = self._plain("Gather", [hidden, start], "first_token", axis=1)
                pooled = self._plain("Squeeze", [token, tokens], "cls")
        length = self._plain("ReduceL2", [pooled], "length", axes=[1], keepdims=1)
        floor = self._keep("floor", np.asarray([1e-12], dtype=np.float32))
        self._plain("Div", [pooled, self._plain("Max", [length, floor], "safe_length")], "vectors")

    @property
    def _epsilon(self) -> float:
        return float(self._config.get("layer_norm_eps", 1e-12))

    def _weight(self, name: str) -> NDArray[np.float32]:
        if name not in self._weights:
            raise CheckpointError(f"the model has no weight {name!r}")
        return self._weights[name]

    def _norm(self, name: str) -> list[str]:
        return [self._keep(name + part, self._weight(name + part)) for part in ("weight", "bias")]

    def _matmul(self, name: str, operand: str) -> str:
        weight = self._keep(name + "weight", self._weight(name + "weight").T)
        return self._plain("MatMul", [operand, weight], name + "product")

    def _keep(self, name: str, value: NDArray[Any]) -> str:
        from onnx import numpy_helper

        self._initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def _node(
        self, kind: str, inputs: list[str], outputs: list[str], domain: str = MICROSOFT, **attributes: Any
    ) -> str:
        from onnx import helper

        self._nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def _plain(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        return self._node(kind, inputs, [output], domain="", **attributes)
