"""Policies of random weights in a given shape: one that says anything, and one that follows the protocol at random.

The arithmetic of both is that of a model of their shape; what they learn is nothing.
"""

import gc
from pathlib import Path
from typing import Any

from benchmarks.embedded_speech import SPEECH, spoken_words
from benchmarks.gpu.scales import Scale, Shape
from scope_selfplay.testing.random_policy import Transitions, load_transitions

THOUGHTS = (" 1", " 2", " 3")


def random_policy(shape: Shape, words: int, folder: Path) -> Path:
    """Written to `folder`, once."""
    if not (folder / "config.json").is_file():
        _save(*_qwen3(shape, words, 40_960), folder)
    return folder


def speaking_policy(scale: Scale, folder: Path) -> Path:
    """Thinks in meaningless words, searches and answers: as many tokens as asked. Written once."""
    import torch

    if (folder / "config.json").is_file():
        return folder
    model, tokenizer = _qwen3(scale.whole._replace(tied=False), scale.words, 4 * scale.episodes.length)
    with torch.no_grad():
        for layer in model.model.layers:
            # What the layers add to a word must not drown it: the odds are in the embedding and the output layer.
            layer.self_attn.o_proj.weight.mul_(1e-3)
            layer.mlp.down_proj.weight.mul_(1e-3)
    speech: Transitions = {
        **SPEECH,
        "<think>": {"THOUGHTS": 1},
        "THOUGHTS": {"THOUGHTS": scale.episodes.thought, "</think>": 1},
    }
    spoken = {**spoken_words(SPEECH), "THOUGHTS": THOUGHTS, "start": ["\n"]}
    load_transitions(model, tokenizer, speech, spoken, certainty=24.0)
    return _save(model, tokenizer, folder)


def _qwen3(shape: Shape, words: int, positions: int) -> tuple[Any, Any]:
    """A model, and its tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from benchmarks.tiny_tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    assert words >= len(tokenizer)
    config = Qwen3Config(
        vocab_size=words,
        max_position_embeddings=positions,
        tie_word_embeddings=shape.tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **shape.widths,
    )
    torch.manual_seed(0)
    # Random numbers for a billion weights take minutes on a CPU.
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return Qwen3ForCausalLM(config), tokenizer


def _save(model: Any, tokenizer: Any, folder: Path) -> Path:
    """In bf16 where there is a GPU, as models are published. What the GPU held for it counts for no peak."""
    import torch

    part = folder.with_name(f"{folder.name}.part")
    model = model.to(torch.bfloat16) if torch.cuda.is_available() else model
    model.save_pretrained(str(part))
    tokenizer.save_pretrained(str(part))
    part.rename(folder)
    return folder


def forget_the_gpu() -> None:
    """Give back what the GPU held until now, and measure peaks from here."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
