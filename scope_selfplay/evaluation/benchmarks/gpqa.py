"""GPQA: questions of experts with four choices, in an order that follows from the question."""

from scope_selfplay.evaluation.benchmark import Benchmark, Budget
from scope_selfplay.evaluation.items import Item
from scope_selfplay.evaluation.rows import Row
from scope_selfplay.keys import rng_from

_WRONG = tuple(f"Incorrect Answer {number}" for number in (1, 2, 3))
_LETTERS = "ABCD"


def read(row: Row) -> Item:
    identity, question, right = row.identifier("Record ID"), row.text("Question"), row.text("Correct Answer")
    choices = [right, *(row.text(name) for name in _WRONG)]
    rng_from("gpqa", identity).shuffle(choices)
    listed = "\n".join(f"{letter}) {choice}" for letter, choice in zip(_LETTERS, choices, strict=True))
    return Item(
        id=identity,
        question=f"{question}\n\n{listed}",
        answers=(_LETTERS[choices.index(right)],),
        group=row.optional_text("High-level domain") or "",
    )


BENCHMARK = Benchmark(
    name="gpqa",
    title="GPQA (Rein et al., 2024)",
    source="gpqa_diamond.csv of the authors",
    read=read,
    scorers=("choice",),
    instruction="The final answer is the letter of the right choice, in a box: one of \\boxed{A} to \\boxed{D}.",
    pack="math",
    budget=Budget(search_turns=0),
)
