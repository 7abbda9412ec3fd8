"""What is kept of a seed in the repository (`kept/seed-N.jsonl`), enough for every table of docs/real-model.md: a line
about its training, then a line for each held-out question with what S_0 and S_1 searched for and said.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.real_model_answers import read_lines
from scope_selfplay.base.values import Value
from scope_selfplay.rewards.verify import exact_match, f1
from scope_selfplay.store.files import write_atomic

KEPT = Path(__file__).parent / "kept"


class Marks(NamedTuple):
    exact: float
    f1: float


class Behaviour(Value):
    """Shares of rollouts (of all turns: `parsed`, those that are one search or one answer), and the mean reward."""

    parsed: float
    searched: float
    found: float
    """The right answer stood in what the search showed."""
    answered: float
    right: float
    reward: float


class Step(Value):
    behaviour: Behaviour
    entropy: float
    flat: float
    """Share of the groups from which nothing is learnt."""
    seconds: float


class Training(Value):
    """`held_out`: sampled answers of S_0 and of S_1."""

    seed: int
    minutes: float
    held_out: tuple[Behaviour, Behaviour]
    steps: tuple[Step, ...]


class Said(NamedTuple):
    query: str | None
    answer: str | None


class Answered(Value):
    """A held-out question. S_0 comes first."""

    id: str
    greedy: tuple[Said, Said]
    sampled: tuple[tuple[Said, ...], tuple[Said, ...]]


class Kept(NamedTuple):
    training: Training
    answered: Sequence[Answered]

    def greedy(self, iteration: int) -> dict[str, Marks]:
        return {each.id: marks_of([each.greedy[iteration]], each.id) for each in self.answered}

    def sampled(self, iteration: int) -> dict[str, Marks]:
        """Means over the samples of each question."""
        return {each.id: marks_of(each.sampled[iteration], each.id) for each in self.answered}


class Question(NamedTuple):
    text: str
    right: str
    group: str


@cache
def held_out_questions() -> Mapping[str, Question]:
    rows = read_lines("held_out")
    return {row["id"]: Question(row["question"], row["answers"][0], row["group"]) for row in rows}


def marks_of(said: Sequence[Said], question: str) -> Marks:
    """No answer has no marks to give."""
    right = [held_out_questions()[question].right]
    known = [
        (exact_match(each.answer, right), f1(each.answer, right)) for each in said if each.answer is not None
    ]
    return Marks(sum(exact for exact, _ in known) / len(said), sum(each for _, each in known) / len(said))


def write_kept(kept: Kept, folder: Path) -> None:
    lines = [kept.training, *kept.answered]
    text = "".join(f"{line.model_dump_json()}\n" for line in lines)
    write_atomic(folder / f"seed-{kept.training.seed}.jsonl", text)


def read_kept(folder: Path = KEPT) -> list[Kept]:
    """Of every seed."""
    found = []
    for file in sorted(folder.glob("seed-*.jsonl")):
        training, *answered = file.read_bytes().splitlines()
        found.append(
            Kept(
                Training.model_validate_json(training),
                [Answered.model_validate_json(each) for each in answered],
            )
        )
    return found
