"""A policy for rehearsals and tests: a tiny Qwen3 that writes random well-formed episodes and has learnt nothing.

What follows a token is a table of odds that is written into the weights. `write_random_policy` (the command
`scope rehearsal-policy`) makes one that follows the protocol in words of the user's documents: searches hit the
corpus, tasks and answers are well formed, and every stage of a run has work to do. It reads prompts of any length
cheaply: its vocabulary is made from the documents and the pack.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from scope_selfplay.base.errors import CheckpointError, CorpusError
from scope_selfplay.base.values import Document

HIDDEN = 32
"""Width of the model, and so the most states that a table can have."""

Transitions = Mapping[str, Mapping[str, float]]
"""State -> what may follow, each with its odds; a state is a token, or a pool that stands for all of its words."""

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

EPISODE_TRANSITIONS: Transitions = {
    "\n": {"<think>": 1},
    "<think>": {"</think>": 1},
    # A greedy Solver answers.
    "</think>": {"<task>": 3, "<answer>": 4, "<search>": 3},
    "<search>": {"SEARCH_WORDS": 1},
    "SEARCH_WORDS": {"SEARCH_WORDS": 1, "</search>": 1},
    "<task>": {"TASK_WORDS": 1},
    "TASK_WORDS": {"TASK_WORDS": 5, "</task>": 1},
    "<answer>": {"ANSWER_WORDS": 1},
    "ANSWER_WORDS": {"ANSWER_WORDS": 9, "</answer>": 1},
    **{end: {END: 1} for end in ("</search>", "</task>", "</answer>")},
}


@click.command("rehearsal-policy")
@click.argument("documents", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--domain", required=True, help="Prompt pack of the run: a folder or a name.")
def rehearsal_policy(documents: Path, folder: Path, domain: str) -> None:
    """Write a model directory whose policy writes random words of DOCUMENTS; it has learnt nothing.

    With `scope serve-judge --rehearsal` a whole run is tried in minutes, before a real model is paid for.
    """
    from transformers.utils.logging import disable_progress_bar

    from scope_selfplay.corpus.read import read_documents
    from scope_selfplay.prompts.folder import load_pack, pack_path

    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(f"{folder}: has files already; give a folder that is empty or not there")
    pack = load_pack(pack_path(domain))
    read = read_documents(documents, pack.domain.corpus_reader)
    disable_progress_bar()
    write_random_policy(folder, read, [prompt.body for prompt in pack.prompts])
    click.echo(folder)


def write_random_policy(folder: Path, documents: Sequence[Document], texts: Iterable[str]) -> Path:
    """Writes a Hugging Face model directory; `texts` are prompts that its vocabulary should know, too.

    Raises CorpusError when the documents have too few different words.
    """
    pools = _pools(documents)
    tokenizer = _tokenizer([*(f"{document.title}\n{document.text}" for document in documents), *texts], pools)
    model = small_qwen3(tokenizer, positions=POSITIONS)
    load_transitions(model, tokenizer, EPISODE_TRANSITIONS, pools)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


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
    transitions: Transitions,
    pools: Mapping[str, Sequence[str]],
    *,
    certainty: float = 16.0,
) -> None:
    """Makes the model follow `transitions`: each state is a direction of its own, and the output layer holds the odds.

    `certainty` is the logit by which what may follow stands out from the rest of the vocabulary. Raises ValueError for
    a word that is more than one token.
    """
    import torch

    width = int(model.config.hidden_size)
    with torch.no_grad():
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        head.zero_()
        for direction, (state, following) in enumerate(transitions.items()):
            for word in pools.get(state, (state,)):
                embedding[_id(tokenizer, word)] = 4.0 * torch.eye(width)[direction]
            for name, odds in following.items():
                options = pools.get(name, (name,))
                for word in options:
                    # The last norm scales a single direction to the square root of the width.
                    logit = certainty + math.log(odds / sum(following.values()) / len(options))
                    head[_id(tokenizer, word), direction] = logit / math.sqrt(width)


def _pools(documents: Sequence[Document]) -> dict[str, tuple[str, ...]]:
    """The commonest longer words, spread over the pools in turn, so that each has common and rarer ones."""
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
    return {
        name: tuple(words[turn::3])
        for turn, name in enumerate(("SEARCH_WORDS", "TASK_WORDS", "ANSWER_WORDS"))
    }


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
    tags = [
        state for state in (*EPISODE_TRANSITIONS, "<information>", "</information>") if state.startswith("<")
    ]
    words = [word for pool in pools.values() for word in pool]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in (*tags, *words)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=SPECIAL[0])
    fast.chat_template = TEMPLATE
    return fast


def _id(tokenizer: Any, word: str) -> int:
    (token,) = tokenizer(word, add_special_tokens=False)["input_ids"]
    return int(token)
