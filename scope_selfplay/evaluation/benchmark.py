"""What a benchmark is: where its fields are, how it is asked, how its answers are scored. Values only.

BENCHMARK = Benchmark(
    name="popqa",
    title="PopQA",
    source="akariasai/PopQA, test.tsv",
    read=Fields(question="question", answers="possible_answers", id="id", group="prop"),
    scorers=("reference", "exact_match", "f1"),
)
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from scope_selfplay.evaluation.items import Item
from scope_selfplay.evaluation.rows import Row
from scope_selfplay.evaluation.scorers import SCORERS
from scope_selfplay.evaluation.scoring import Needs, Scorer
from scope_selfplay.keys import content_id
from scope_selfplay.schemas import Value

FAMILY_TEMPERATURES = {"qwen3": 1.0}
"""Sampling temperature by dialect where a benchmark names none; all others are greedy (SCOPE, section 4.1)."""
SAMPLED_TEMPERATURE = 1.0
"""Where several answers are drawn from a family that is greedy otherwise: equal answers would tell nothing."""


SHORT_ANSWERS = ("reference", "exact_match", "f1", "cover_exact_match")
"""Questions with short answers: judged against the reference, as SCOPE does, and by the field's own measures."""
SHORT_INSTRUCTION = "Answer with the fewest words that are enough: a name, a date, a number, yes or no."


class Decoding(Value):
    """How answers are sampled."""

    samples: int = 1
    temperature: float | None = None
    """None is the default of the model's family."""
    top_p: float = 1.0
    thinking: bool | None = None
    """Whether a model that thinks natively may; None is what its chat template does by itself."""

    def temperature_for(self, dialect: str) -> float:
        """The temperature for a model family; 0 is greedy."""
        if self.temperature is not None:
            return self.temperature
        return FAMILY_TEMPERATURES.get(dialect, SAMPLED_TEMPERATURE if self.samples > 1 else 0.0)


class Budget(Value):
    """What an episode may take. The defaults are SCOPE's (section 4.1)."""

    context: int = 24_576
    """Tokens of everything that the policy reads and writes."""
    answer: int = 16_384
    """Tokens that it writes."""
    search_turns: int = 5
    passages: int = 3
    """Passages that a search returns."""
    passage_tokens: int = 500
    """Tokens of all passages of a search."""


@dataclass(frozen=True)
class Fields:
    """The table of field names: where a row holds what. `a.b` is field b of the object in a.

    Of several names for the question, id, group or given answer the first that a row has counts; of several for
    answers all do.
    """

    question: str | tuple[str, ...] = "question"
    answers: str | tuple[str, ...] = ()
    id: str | tuple[str, ...] = "id"
    group: str | tuple[str, ...] = ()
    given: str | tuple[str, ...] = ()

    def __call__(self, row: Row) -> Item:
        names = _names(self.answers)
        answers = row.texts(*names) if names else ()
        return Item(
            id=row.identifier(*_names(self.id)),
            question=row.text(*_names(self.question)),
            answers=answers,
            given=row.optional_text(*_names(self.given)),
            group=row.optional_text(*_names(self.group)) or "",
        )


ItemReader = Callable[[Row], Item | None]
"""One row of the authors' file becomes an item, or None where the benchmark leaves the row out."""


@dataclass(frozen=True)
class Benchmark:
    """One benchmark, whatever file it is read from. The first of `scorers` is the one it is known by."""

    name: str
    title: str
    source: str
    """Who publishes the questions, in which file, under which licence."""
    read: ItemReader
    scorers: tuple[str, ...]
    metric: str = "avg"
    """How an item's samples become its score: a name of `sampling.METRICS`."""
    join: str = ""
    """The field by which the rows of several files in a folder are one: questions, rubrics, answers to compare with."""
    instruction: str = ""
    """What is added to every question, on a line of its own."""
    pack: str | None = None
    """The prompt pack whose Solver prompt asks; None is that of the run."""
    decoding: Decoding = field(default_factory=Decoding)
    budget: Budget = field(default_factory=Budget)
    most_items: int | None = None
    """Larger files are sampled down to as many items, by the seed of the evaluation."""


@dataclass(frozen=True)
class LoadedBenchmark:
    """A benchmark with its items, in the order of the file."""

    benchmark: Benchmark
    items: tuple[Item, ...]

    @property
    def name(self) -> str:
        return self.benchmark.name

    def scorers_of(self, item: Item) -> tuple[Scorer, ...]:
        """Those of the benchmark's scorers that the item has what they need for; one that needs nothing comes last, for
        an item that no other scores.
        """
        scorers = [SCORERS[name] for name in self.benchmark.scorers]
        able = [scorer for scorer in scorers if scorer.needs is not Needs.NOTHING and scorer.needs.has(item)]
        return tuple(able or (scorer for scorer in scorers if scorer.needs is Needs.NOTHING))

    @property
    def identity(self) -> str:
        """Names the items and how they are asked and scored: equal identities are the same evaluation."""
        spec = self.benchmark
        settings = (*spec.scorers, spec.metric, spec.pack or "")
        asked = (spec.decoding.model_dump_json(), spec.budget.model_dump_json())
        return content_id(spec.name, *settings, *asked, *(item.model_dump_json() for item in self.items))


def _names(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names
