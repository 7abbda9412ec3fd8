"""The tiny policy's tokenizer: bytes for any text, one token for every word and phrase of the embedded world.

Phrases as tokens keep an article at some 30 tokens while it stays readable; a fact is then one token to copy.
"""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from scope_selfplay.corpus import world as language
from scope_selfplay.corpus.world import ATTRIBUTES, RELATIONS, VERBS
from scope_selfplay.testing.random_policy import SPECIAL, TEMPLATE

TAGS = tuple(
    f"<{slash}{tag}>" for tag in ("think", "search", "information", "answer", "task") for slash in ("", "/")
)


def phrases() -> list[str]:
    """What comes after a space and is one token."""
    found = [attribute.before.rstrip() for attribute in ATTRIBUTES] + ["of", "and", "is"]
    found += [f"the {attribute.noun}" for attribute in ATTRIBUTES] + list(VERBS.values())
    for relation in RELATIONS:
        found.append(f"Its {relation} is")
    found += ["First", "Ask of", "1", "2", "3"]
    for words in (language.PLACES, language.KINDS):
        found += words
    for attribute in ATTRIBUTES:
        found += attribute.values
    return list(dict.fromkeys(found))


def build_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: row for row, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    words = [f" {phrase}" for phrase in phrases()]
    bare = [
        *(f"'s {relation}" for relation in RELATIONS),
        "user",
        "assistant",
        "system",
        "Task",
        "Source",
        "Searches",
        "Write:",
        "left.",
        "[1]",
        "Write the task.",
    ]
    tokens = [AddedToken(token, normalized=False, special=False) for token in (*TAGS, *words, *bare)]
    tokenizer.add_tokens(tokens)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
    fast.chat_template = TEMPLATE
    return fast
