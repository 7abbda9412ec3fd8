"""Writes a BERT encoder with random weights: the shape of E5 without its download, for tests and benchmarks."""

import shutil
from pathlib import Path

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_random_encoder(
    folder: Path,
    seed: int = 2,
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    tokenizer: Path | None = None,
) -> Path:
    """A model folder as Hugging Face writes one (defaults: the shape of E5-base-v2, 110M parameters).

    Without a `tokenizer.json` to copy, the model reads characters.
    """
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    letters = [chr(code) for code in range(33, 127)]
    pieces = [*SPECIAL, *letters, *("##" + letter for letter in letters)]
    words = 30_522 if tokenizer is not None else len(pieces)
    sizes = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_attention_heads": heads}
    model = BertModel(BertConfig(vocab_size=words, num_hidden_layers=layers, **sizes))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "LayerNorm" not in name:
                # Words outweigh positions, or the mean over a text would hardly depend on what it says.
                spread = 1.0 if "word_embeddings" in name else 0.1 if "_embeddings" in name else 0.05
                weight.normal_(0.0, spread, generator=draw)
    model.save_pretrained(folder)
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    BertTokenizer(vocab=vocabulary, model_max_length=512).save_pretrained(folder)
    if tokenizer is not None:
        shutil.copyfile(tokenizer, folder / "tokenizer.json")
    return folder
