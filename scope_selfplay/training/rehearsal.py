"""A policy of dice for rehearsals: it speaks the protocol in words of the user's documents and knows nothing.

Searches hit the corpus, tasks and answers are well formed, and every stage of a run has work to do. It reads
prompts of any length cheaply: its vocabulary is made from the documents and the pack.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scope_selfplay.errors import CorpusError
from scope_selfplay.schemas import Document
from scope_selfplay.testing.random_policy import Transitions, load_transitions, small_qwen3

POSITIONS = 8192
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END = SPECIAL[2]
WORDS = 40
"""Words of the documents in each of the three pools: searched for, asked about, answered with."""
VOCABULARY = 4000
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SPEECH: Transitions = {
    "\n": {"<think>": 1},
    "<think>": {"</think>": 1},
    # A greedy Solver answers.
    "</think>": {"<task>": 3, "<answer>": 4, "<search>": 3},
    "<search>": {"SEARCHED": 1},
    "SEARCHED": {"SEARCHED": 1, "</search>": 1},
    "<task>": {"ASKED": 1},
    "ASKED": {"ASKED": 5, "</task>": 1},
    "<answer>": {"SAID": 1},
    "SAID": {"SAID": 9, "</answer>": 1},
    **{end: {END: 1} for end in ("</search>", "</task>", "</answer>")},
}


def write_random_policy(folder: Path, documents: Sequence[Document], texts: Iterable[str]) -> Path:
    """Writes a Hugging Face model directory; `texts` are prompts that its vocabulary should know, too.

    Raises CorpusError when the documents have too few different words.
    """
    pools = _pools(documents)
    tokenizer = _tokenizer([*(f"{each.title}\n{each.text}" for each in documents), *texts], pools)
    model = small_qwen3(tokenizer, positions=POSITIONS)
    load_transitions(model, tokenizer, SPEECH, pools)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def _pools(documents: Sequence[Document]) -> dict[str, tuple[str, ...]]:
    """The commonest longer words, dealt to the pools in turn, so that each has common and rarer ones."""
    counts = Counter(
        word
        for document in documents
        for word in f"{document.title} {document.text}".split()
        if word.isalpha() and len(word) > 3
    )
    words = [
        f" {word}" for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: 3 * WORDS]
    ]
    if len(words) < 3:
        raise CorpusError(
            f"found {len(words)} different words of letters in the documents; a rehearsal needs at least 3"
        )
    return {name: tuple(words[turn::3]) for turn, name in enumerate(("SEARCHED", "ASKED", "SAID"))}


def _tokenizer(texts: Sequence[str], pools: Mapping[str, Sequence[str]]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tags = [state for state in (*SPEECH, "<information>", "</information>") if state.startswith("<")]
    words = [word for pool in pools.values() for word in pool]
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in (*tags, *words)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=SPECIAL[0])
    fast.chat_template = TEMPLATE
    return fast
