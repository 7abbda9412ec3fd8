"""Writes a BERT encoder with random weights: the shape of E5 without its download, for tests and benchmarks."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_random_encoder(
    folder: Path,
    draw: np.random.Generator,
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    tokenizer: Path | None = None,
) -> Path:
    """A model folder as Hugging Face writes one (defaults: the shape of E5-base-v2, 110M parameters).

    Without a `tokenizer.json` to copy, the model reads characters.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        shutil.copyfile(tokenizer, folder / "tokenizer.json")
    else:
        _character_tokenizer().save(str(folder / "tokenizer.json"))
    words = 30_522 if tokenizer is not None else len(_characters())
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "type_vocab_size": 2,
        "vocab_size": words,
    }
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **names}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    _save_weights(folder / "model.safetensors", config, draw)
    return folder


def _save_weights(path: Path, config: dict[str, Any], draw: np.random.Generator) -> None:
    from safetensors.numpy import save_file

    hidden, inner = config["hidden_size"], config["intermediate_size"]

    def dense(name: str, rows: int, columns: int) -> dict[str, NDArray[np.float32]]:
        weight = draw.standard_normal((rows, columns), dtype=np.float32) * np.float32(0.05)
        bias = draw.standard_normal(rows, dtype=np.float32) * np.float32(0.05)
        return {name + ".weight": weight, name + ".bias": bias}

    def norm(name: str) -> dict[str, NDArray[np.float32]]:
        return {
            name + ".weight": np.ones(hidden, dtype=np.float32),
            name + ".bias": np.zeros(hidden, dtype=np.float32),
        }

    weights: dict[str, NDArray[np.float32]] = {}
    # Words outweigh positions, or the mean over a text would hardly depend on what it says.
    sizes = {"word": (config["vocab_size"], 1.0), "position": (512, 0.1), "token_type": (2, 0.1)}
    for name, (rows, spread) in sizes.items():
        table = draw.standard_normal((rows, hidden), dtype=np.float32) * np.float32(spread)
        weights[f"embeddings.{name}_embeddings.weight"] = table
    weights |= norm("embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        part = f"encoder.layer.{layer}."
        for which in ("self.query", "self.key", "self.value", "output.dense"):
            weights |= dense(f"{part}attention.{which}", hidden, hidden)
        weights |= norm(part + "attention.output.LayerNorm")
        weights |= dense(part + "intermediate.dense", inner, hidden)
        weights |= dense(part + "output.dense", hidden, inner)
        weights |= norm(part + "output.LayerNorm")
    weights |= dense("pooler.dense", hidden, hidden)
    save_file(weights, path, metadata={"format": "pt"})


def _characters() -> list[str]:
    letters = [chr(code) for code in range(33, 127)]
    return [*SPECIAL, *letters, *("##" + letter for letter in letters)]


def _character_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {piece: number for number, piece in enumerate(_characters())}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer
