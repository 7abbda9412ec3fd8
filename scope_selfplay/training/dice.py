"""A tiny Qwen3 without training that speaks by dice: what follows a word is a table, not something learnt."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = 32
"""Width of the model, and so the most states that a table can have."""

Transitions = Mapping[str, Mapping[str, float]]
"""State -> what may follow, each with its odds; a state is a token, or a pool that stands for all of its words."""


def small_qwen3(tokenizer: Any, *, positions: int, seed: int = 0) -> Any:
    """Two layers of random weights for the vocabulary of `tokenizer`."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def load_transitions(
    model: Any,
    tokenizer: Any,
    speech: Transitions,
    pools: Mapping[str, Sequence[str]],
    *,
    certainty: float = 16.0,
) -> None:
    """Makes the model follow `speech`: each state is a direction of its own, and the output layer holds the odds.

    `certainty` is the logit by which what may follow stands out from the rest of the vocabulary. Raises ValueError for
    a word that is more than one token.
    """
    import torch

    width = int(model.config.hidden_size)
    with torch.no_grad():
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        head.zero_()
        for direction, (state, following) in enumerate(speech.items()):
            for word in pools.get(state, (state,)):
                embedding[_id(tokenizer, word)] = 4.0 * torch.eye(width)[direction]
            for name, odds in following.items():
                options = pools.get(name, (name,))
                for word in options:
                    # The last norm scales a single direction to the square root of the width.
                    logit = certainty + math.log(odds / sum(following.values()) / len(options))
                    head[_id(tokenizer, word), direction] = logit / math.sqrt(width)


def _id(tokenizer: Any, word: str) -> int:
    (token,) = tokenizer(word, add_special_tokens=False)["input_ids"]
    return int(token)
