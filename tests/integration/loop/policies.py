"""Two tiny Qwen3 policies without training: one of random weights, and one that follows the protocol at random."""

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.embedded_speech import SPEECH, spoken_words
from benchmarks.tiny_tokenizer import build_tokenizer
from scope_selfplay.base.values import Document
from scope_selfplay.corpus.world import ATTRIBUTES, KINDS, PLACES, Entity, write_article
from scope_selfplay.store.files import write_records
from scope_selfplay.testing.random_policy import Transitions, load_transitions, small_qwen3

POSITIONS = 1024
ARTICLES = "articles.jsonl"
# So few that the document of a task that is written at random often states what it asks.
ASKED = PLACES[:2]


def write_random_policy(folder: Path) -> Path:
    """Nothing it says makes sense, but every step of its arithmetic is that of a real model."""
    import torch

    tokenizer = build_tokenizer()
    model = small_qwen3(tokenizer, positions=POSITIONS)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.25)
    return _save(tokenizer, model, folder)


# Boxes a digit after another one, letter by letter.
SUMS: Transitions = {
    "start": {"<think>": 1},
    "<think>": {"</think>": 1},
    "</think>": {"THOUGHTS": 1},
    "THOUGHTS": {"<answer>": 1},
    "<answer>": {"\\": 1},
    **{letter: {follower: 1} for letter, follower in itertools.pairwise("\\boxed{")},
    "{": {"7": 2, "DIGITS": 3},
    "7": {"}": 1},
    "DIGITS": {"}": 1},
    "}": {"</answer>": 1},
}
DIGITS = {"THOUGHTS": [" 1", " 2", " 3"], "DIGITS": list("01234568")}


def write_speaking_policy(
    folder: Path,
    speech: Transitions = SPEECH,
    spoken: Mapping[str, Sequence[str]] | None = None,
    *,
    calls: Sequence[str] = (),
) -> Path:
    """Follows `speech`; "start" is the line's end that opens a turn. Each of `calls` is one token of its vocabulary.
    `ARTICLES` in its folder are documents that its tasks are about.

    `spoken` are the words that a state in capitals stands for; those of the embedded world when left out.
    """
    from tokenizers import AddedToken

    tokenizer = build_tokenizer()
    tokenizer.add_tokens([AddedToken(call, normalized=False) for call in calls])
    model = small_qwen3(tokenizer, positions=POSITIONS, seed=1)
    if spoken is None:
        spoken = {**spoken_words(speech), "PLACES": [f" {name}" for name in ASKED]}
    load_transitions(model, tokenizer, speech, {**spoken, "start": ["\n"]})
    return _with_articles(_save(tokenizer, model, folder))


class Sums(NamedTuple):
    policy: Path
    tasks: Path

    @property
    def settings(self) -> list[str]:
        return [
            f"model.path={self.policy}",
            *(f"{name}={self.tasks}" for name in ("solver.tasks", "compare.given")),
        ]


def write_sums(folder: Path) -> Sums:
    """A policy that says 7 in two answers of five and another digit in the others; a problem that it solves sometimes,
    and one that it never does: flat in every group.
    """
    rows = [{"question": "3 + 4", "answer": "7"}, {"question": "6 + 6", "answer": "12"}]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Sums(write_speaking_policy(folder / "policy", SUMS, DIGITS), folder / "tasks.jsonl")


def _save(tokenizer: Any, model: Any, folder: Path) -> Path:
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def _with_articles(folder: Path) -> Path:
    """Source documents of a run: the places that are asked about in turn, each with all of its facts in any order."""
    rng, facts = random.Random(0), {each.noun: each.values[0] for each in ATTRIBUTES}
    told = [(name, write_article(rng, Entity(name, KINDS[0], facts, {}))) for name in ASKED * 120]
    documents = [
        Document(id=f"article-{row:04}", title=name, text=text) for row, (name, text) in enumerate(told)
    ]
    write_records(folder / ARTICLES, documents)
    return folder
