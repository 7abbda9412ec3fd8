"""Tokenizers of the three model families in small: byte-level BPE, the family's tokens, and its chat template.

The Qwen templates are those that TRL ships; OLMo-3's is of the same form as the family's own.
"""

import importlib.util
from pathlib import Path
from typing import Any

ENDS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
OWN = {
    "qwen2.5": ("<tool_call>", "</tool_call>"),
    "qwen3": ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    "olmo3": ("<think>", "</think>", "<function_calls>", "</function_calls>"),
}
SHIPPED = {"qwen2.5": "qwen2_5.jinja", "qwen3": "qwen3.jinja"}
OLMO3_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer_of(family: str) -> Any:
    """A fast tokenizer for `qwen2.5`, `qwen3` or `olmo3`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [
        ("Ċ", "Ċ"),
        ("t", "h"),
        ("th", "e"),
        ("Ġ", "the"),
        ("d", "a"),
        ("da", "m"),
        ("Ġ", "dam"),
        ("Ġ", "W"),
    ]
    vocabulary = {
        token: row for row, token in enumerate([*ENDS, *alphabet, *("".join(each) for each in merges)])
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in ENDS])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in OWN[family]])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=ENDS[2], pad_token=ENDS[0])
    fast.chat_template = shipped_template(SHIPPED[family]) if family in SHIPPED else OLMO3_TEMPLATE
    return fast


def shipped_template(file: str) -> str:
    """A chat template of TRL's."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None and spec.submodule_search_locations
    return (Path(spec.submodule_search_locations[0]) / "chat_templates" / file).read_text("utf-8")
