"""How large a dense decoder is: from its config.json, else from its name, else as given."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.base.values import Value
from scope_selfplay.config.base import parameters_in
from scope_selfplay.inference.models import fetched_model

_Share = Annotated[float, Field(gt=0, le=1)]
_Count = Annotated[int, Field(gt=0)]
_Amount = Annotated[float, Field(gt=0)]


class Assumptions(Value):
    """Rates are per GPU for a model of 8 billion parameters, and scale with its size."""

    acceptance: _Share = 0.4
    """Share of candidates that task making keeps; no paper states one (SCOPE, appendix G: batches of 200 to 500
    candidates until 5,120 are kept)."""
    gates_passed: _Share = 0.7
    """Share of candidates that pass the gates; all of those become held-out tasks."""
    criteria: _Count = 4
    """Criteria of a rubric (SCOPE, appendix G: 3 to 5)."""
    flat_share: _Share = 0.3
    """Share of groups without variance, which routing sends to the design; no paper states one for these tasks."""
    rollout_tokens: _Count = 1500
    """Sampled tokens of a rollout, all turns."""
    read_tokens: _Count = 2500
    """Tokens of a rollout that were read: prompt and search results."""
    judge_prompt_tokens: _Count = 600
    """Tokens of a judge prompt without what is judged: instructions, task, rubric."""
    answer_tokens: _Count = 600
    """Tokens of an answer; a judge reads one, or as many as it compares, or the rollouts behind them."""
    document_tokens: _Count = 1200
    """Tokens of the source document and search results that a rubric is written from."""
    judge_tokens: _Count = 500
    """Tokens that the judge writes per call, thinking included."""
    decode_rate: _Amount = 3000.0
    """Tokens per second that an engine writes with full batches."""
    prefill_rate: _Amount = 20_000.0
    """Tokens per second that an engine reads."""
    passages: _Count = 21_015_324
    """Passages of the retriever's corpus (DPR's Wikipedia of 2018)."""
    flops: _Amount = 990e12
    """Peak bf16 operations per second of the GPU."""
    utilisation: _Share = 0.35
    """Share of the peak that a training pass reaches."""
    gpu_gib: _Amount = 79.0
    """Memory of a GPU (an H100 of 80 GB)."""
    text_bytes: _Amount = 5.0
    """Bytes on disk of a token of text in a record."""
    context_gib: _Amount = 2.5
    """Memory of a GPU that CUDA, NCCL and fragments take."""
    process_gib: _Amount = 6.0
    """Memory of the host that one training process takes beside its tensors: libraries, CUDA, a batch."""


class ModelShape(NamedTuple):
    """Widths of a decoder: of its layers, of all query heads, of all key heads, and between the feed-forward layers.

    `tied`: one table is both the embedding and the output layer.
    """

    layers: int
    hidden: int
    queries: int
    keys: int
    between: int
    vocabulary: int
    tied: bool = False

    @property
    def cache_bytes(self) -> int:
        """Bytes of the key-value cache per token in bf16."""
        return 2 * self.layers * self.keys * 2

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of the linear layers of one decoder layer."""
        hidden, attention = self.hidden, ((self.queries, self.hidden), *[(self.keys, self.hidden)] * 2)
        return (*attention, (hidden, self.queries), *[(self.between, hidden)] * 2, (hidden, self.between))

    @property
    def layer(self) -> int:
        """Parameters of one decoder layer: attention, gated feed-forward, two norms."""
        return sum(rows * columns for rows, columns in self.matrices) + 2 * self.hidden

    @property
    def table(self) -> int:
        """Parameters of the embedding, and of the output layer."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return (1 if self.tied else 2) * self.table + self.layers * self.layer + self.hidden

    def adapted(self, rank: int) -> int:
        """Parameters of a low-rank adapter on all linear layers."""
        return rank * self.layers * sum(rows + columns for rows, columns in self.matrices)


class ModelSize(NamedTuple):
    """`cache_bytes` per token in bf16 (0 when the layers are not known); `found` says where the numbers are from.

    `shape` is a guess from the number of parameters where the layers are not known.
    """

    parameters: float
    cache_bytes: int
    found: str
    shape: ModelShape
    experts: float = 0.0
    """Parameters that a token meets in a mixture of experts; 0 for a dense model."""

    @property
    def active(self) -> float:
        return self.experts or self.parameters

    @property
    def layer(self) -> float:
        """Parameters of one decoder layer."""
        tables = (1 if self.shape.tied else 2) * self.shape.table
        return max(self.parameters - tables - self.shape.hidden, 0.0) / self.shape.layers


_SIZES = {"hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size"}
KNOWN: Mapping[str, ModelShape] = {
    "qwen3-0.6b": ModelShape(28, 1024, 2048, 1024, 3072, 151_936, tied=True),
    "qwen3-8b": ModelShape(36, 4096, 4096, 1024, 12_288, 151_936),
    "qwen3-4b": ModelShape(36, 2560, 4096, 1024, 9728, 151_936, tied=True),
    "qwen3-1.7b": ModelShape(28, 2048, 2048, 1024, 6144, 151_936, tied=True),
    "qwen3-32b": ModelShape(64, 5120, 8192, 1024, 25_600, 151_936),
    "qwen2.5-7b": ModelShape(28, 3584, 3584, 512, 18_944, 152_064),
    "olmo-3-7b": ModelShape(32, 4096, 4096, 4096, 11_008, 100_278),
}
"""By how a model's name begins, in lower case."""


def model_size(path: str, parameters: float | None = None) -> ModelSize:
    """From the model's config.json where it is here, else from its name (`Qwen3-8B`), else as given.

    Raises ConfigError where none of them has it.
    """
    embedded = Path(__file__).parents[1] / "embedded" / "policy"
    folder = embedded if path == "embedded" else fetched_model(path) or Path(path)
    file = folder / "config.json"
    read = _shape(json.loads(file.read_bytes())) if file.is_file() else None
    known, by_name = read or _known(folder.name), f"the name {folder.name}"
    if parameters is not None:
        cache = known.cache_bytes if known is not None else 0
        return ModelSize(parameters, cache, "--parameters", known or _usual_shape(parameters))
    if known is not None:
        return ModelSize(known.parameters, known.cache_bytes, str(file) if read else by_name, known)
    named = parameters_in(path)
    if named is not None:
        return ModelSize(named, 0, by_name, _usual_shape(named), parameters_in(folder.name, "a") or 0.0)
    raise ConfigError(
        f"model.path: {path} is not here and its name has no size such as 8B; give --parameters 8.2e9"
    )


def judge_size(path: str, policy: ModelSize) -> ModelSize:
    """The judge is another model where its folder has a size, by its config.json or its name, else the policy's."""
    try:
        return model_size(path)
    except ConfigError:
        return policy


def _known(name: str) -> ModelShape | None:
    lower = name.lower().replace("_", "-")
    return next((shape for start, shape in KNOWN.items() if f"{lower}-".startswith(f"{start}-")), None)


def _shape(config: dict[str, Any]) -> ModelShape | None:
    """None for a family that calls its sizes otherwise."""
    if any(name not in config for name in _SIZES):
        return None
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    key_heads = int(config.get("num_key_value_heads") or heads)
    width = int(config.get("head_dim") or hidden // heads)
    return ModelShape(
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        queries=heads * width,
        keys=key_heads * width,
        between=int(config["intermediate_size"]),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings")),
    )


def _usual_shape(parameters: float) -> ModelShape:
    """Models of 7 and 8 billion are about 128 times as wide as deep, with 12 squares of the width in a layer."""
    layers = max(1, round((parameters / (12 * 128**2)) ** (1 / 3)))
    hidden = 128 * layers
    vocabulary = min(150_000, int(parameters / 4 / hidden))
    return ModelShape(layers, hidden, hidden, hidden // 4, 3 * hidden, vocabulary, tied=parameters < 5e9)
