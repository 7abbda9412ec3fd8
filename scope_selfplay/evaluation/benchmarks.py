"""Benchmarks by name, a row of the table for each, and one's own, by file.

A row says where the authors' file holds what (`Fields`); where that is not enough, a function reads a row.
"""

import asyncio
import runpy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from scope_selfplay.base.errors import ConfigError, did_you_mean
from scope_selfplay.base.values import Document, Value, content_id, rng_from
from scope_selfplay.corpus.read import documents_for
from scope_selfplay.corpus.world import embedded_tasks, read_article, task_family
from scope_selfplay.evaluation.rows import Criteria, Fields, Item, ItemCriterion, Row, read_rows
from scope_selfplay.evaluation.scorers import SCORERS, Scorer
from scope_selfplay.judge.protocol import RubricQuestion
from scope_selfplay.judge.rules import LexicalJudge

FAMILY_TEMPERATURES = {"qwen3": 1.0}
"""Sampling temperature by dialect where a benchmark names none; all others are greedy (SCOPE, section 4.1)."""
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
        """The temperature for a model family; 0 is greedy. Several equal answers would tell nothing."""
        default = FAMILY_TEMPERATURES.get(dialect, 1.0 if self.samples > 1 else 0.0)
        return default if self.temperature is None else self.temperature


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
    items: tuple[Item, ...] = ()
    """In the order of the file, once it is read."""

    def scorers_of(self, item: Item) -> tuple[Scorer, ...]:
        """Those that the item has what they need for; one that needs nothing only where there is no other."""
        scorers = [SCORERS[name] for name in self.scorers]
        able = [scorer for scorer in scorers if scorer.needs and getattr(item, scorer.needs)]
        return tuple(able or (scorer for scorer in scorers if not scorer.needs))

    @property
    def identity(self) -> str:
        """Names the items and how they are asked and scored: equal identities are the same evaluation."""
        settings = (*self.scorers, "avg", self.pack or "")
        asked = (self.decoding.model_dump_json(), self.budget.model_dump_json())
        return content_id(self.name, *settings, *asked, *(item.model_dump_json() for item in self.items))


def load_benchmark(
    asked: str, documents: Sequence[Document] | None = None, *, most: int | None = None, seed: int = 0
) -> Benchmark:
    """A benchmark with its items.

    `asked` is `NAME=FILE`, a file of questions of one's own, a Python file with a `BENCHMARK` (`my.py=FILE`), or
    `embedded`, which asks about `documents` where these are given. Items beyond `most`, or the benchmark's own number,
    are left out by chance. Raises ConfigError.
    """
    if asked == EMBEDDED.name:
        return EMBEDDED if documents is None else embedded_benchmark(documents, seed=seed, count=most)
    name, _, given = asked.partition("=")
    path = Path(given) if given else None
    if name in BENCHMARKS:
        benchmark = BENCHMARKS[name]
    elif name.endswith(".py"):
        found = runpy.run_path(name).get("BENCHMARK") if Path(name).is_file() else None
        if not isinstance(found, Benchmark):
            raise ConfigError(f"{name}: BENCHMARK must be a Benchmark, found {type(found).__name__}")
        benchmark = found
    elif path is None and (Path(name).exists() or "/" in name or "." in name):
        benchmark, path = BENCHMARKS["own"], Path(name)
    else:
        raise ConfigError(
            f"no benchmark {name!r}{did_you_mean(name, BENCHMARKS)}; known: {', '.join(BENCHMARKS)}, or give a file"
        )
    if path is None:
        raise ConfigError(
            f"benchmark {name}: give its file, {name}=FILE; it is published as {benchmark.source}"
        )
    items = _items_of(benchmark, path)
    limit = benchmark.most_items if most is None else most
    if limit is not None and len(items) > limit:
        # In the order of the file; a larger sample holds every smaller one of the same seed.
        drawn = sorted(items, key=lambda item: rng_from(seed, "sample", item.id).random())[:limit]
        chosen = {item.id for item in drawn}
        items = [item for item in items if item.id in chosen]
    return replace(benchmark, items=tuple(items))


def _items_of(benchmark: Benchmark, path: Path) -> list[Item]:
    items: dict[str, tuple[Item, str]] = {}
    for row in _joined(read_rows(path), benchmark.join):
        item = benchmark.read(row)
        if item is None:
            continue
        if benchmark.instruction:
            item = item.model_copy(update={"question": f"{item.question}\n\n{benchmark.instruction}"})
        before, where = items.setdefault(item.id, (item, row.where))
        # Some published files hold a question twice.
        if before != item:
            raise ConfigError(f"{row.where}: id {item.id} was given at {where}; ids must differ")
    if not items:
        raise ConfigError(f"{path}: no items for benchmark {benchmark.name}; expected {benchmark.source}")
    return [item for item, _ in items.values()]


def _joined(rows: Iterable[Row], name: str) -> Iterable[Row]:
    """Rows that agree in the field of this name, as one; without a name all as they are."""
    if not name:
        return rows
    found: dict[str, Row] = {}
    for row in rows:
        key = str(row.value(name))
        found[key] = Row({**row.values, **found[key].values}, found[key].where) if key in found else row
    return found.values()


def _own(row: Row) -> Item:
    """Raises ConfigError for a field that is not one of these: a misspelt `anwser` would go unscored."""
    known = ("id", "question", "answer", "answers", "rubric", "given", "group", "type")
    for name in row.values:
        if name not in known:
            raise row.wrong(name, f"unknown field; a line has question, and may have {', '.join(known)}")
    rubric = Criteria("rubric", "text", points=("weight", "points"), title="title", dimension="dimension")
    return Fields(
        answers=("answer", "answers") if row.optional("answer", "answers") is not None else (),
        group=("group", "type"),
        given="given",
        criteria=rubric if row.optional("rubric") is not None else None,
    )(row)


def _musique(row: Row) -> Item | None:
    """Unanswerable ones are left out. The id begins with the number of steps: `2hop__482757_12019`."""
    if row.optional("answerable") is False:
        return None
    item = Fields(answers=("answer", "answer_aliases", "golden_answers"))(row)
    steps, separator, _ = item.id.partition("__")
    return item.model_copy(update={"group": steps if separator else ""})


def _gpqa(row: Row) -> Item:
    """The four choices in an order that follows from the question."""
    identity, right = row.identifier("Record ID"), row.text("Correct Answer")
    choices = [right, *(row.text(f"Incorrect Answer {number}") for number in (1, 2, 3))]
    rng_from("gpqa", identity).shuffle(choices)
    listed = "\n".join(f"{letter}) {choice}" for letter, choice in zip("ABCD", choices, strict=True))
    return Item(
        id=identity,
        question=f"{row.text('Question')}\n\n{listed}",
        answers=("ABCD"[choices.index(right)],),
        group=row.optional_text("High-level domain") or "",
    )


def _healthbench(row: Row) -> Item:
    criteria = [
        ItemCriterion(
            text=each.text("criterion"), points=each.number("points"), dimension=_tag(each, "tags", "axis:")
        )
        for each in row.rows("rubrics")
    ]
    item = Fields("prompt", id="prompt_id")(row)
    return item.model_copy(update={"criteria": tuple(criteria), "group": _tag(row, "example_tags", "theme:")})


def _tag(row: Row, field: str, kind: str) -> str:
    """What follows `kind` in the first tag that begins with it."""
    tags = row.texts(field) if row.optional(field) else ()
    return next((tag.removeprefix(kind) for tag in tags if tag.startswith(kind)), "")


def _arena_hard(row: Row) -> Item | None:
    """The baseline's answer is the last message; its content is a text, or an object with it."""
    if row.text("category") != "creative_writing":
        return None
    item = Fields("prompt", id="uid", group="subcategory")(row)
    if row.optional("messages") is None:
        return item
    message = row.rows("messages")[-1]
    written = "content" if isinstance(message.value("content"), str) else "content.answer"
    return item.model_copy(update={"given": message.text(written)})


def _deep_research_bench(row: Row) -> Item:
    weights, dimensions = row.object("dimension_weight"), row.object("criterions")
    criteria = [
        ItemCriterion(
            text=f"{each.text('criterion')}: {each.text('explanation')}",
            points=weights.number(name) * each.number("weight"),
            dimension=name,
        )
        for name in dimensions.values
        for each in dimensions.rows(name)
    ]
    item = Fields("prompt", given="article", group="language")(row)
    return item.model_copy(update={"criteria": tuple(criteria)})


def _writingbench(row: Row) -> Item:
    """A criterion is its description with what each range of marks stands for."""
    criteria = []
    for each in row.rows("checklist"):
        lines = [each.text("criteria_description")]
        for step in ("1-2", "3-4", "5-6", "7-8", "9-10"):
            lines += [f"{step}: {text}"] if (text := each.optional_text(step)) is not None else []
        criteria.append(ItemCriterion(text="\n".join(lines), title=each.text("name")))
    item = Fields("query", id="index", group="domain1")(row)
    return item.model_copy(update={"criteria": tuple(criteria)})


_maths = partial(Benchmark, scorers=("boxed",), pack="math", budget=Budget(search_turns=0))
_short = partial(Benchmark, scorers=SHORT_ANSWERS, instruction=SHORT_INSTRUCTION, most_items=1000)
_BY_HOTPOT = ("reference", "exact_match", "hotpot_f1", "cover_exact_match")

_ALL = (
    # Chains and comparisons made by rule from Wikidata, without their paragraphs.
    _short(
        "2wikimultihopqa",
        "2WikiMultihopQA (Ho et al., 2020)",
        "dev.json of the authors, or its parquet",
        Fields(answers=("answer", "answer_aliases", "golden_answers"), id=("_id", "id"), group="type"),
        scorers=_BY_HOTPOT,
    ),
    # 16 samples each: avg@16 of Reasoning Arena.
    _maths(
        "aime",
        "American Invitational Mathematics Examination",
        "any year's table of problems and answers, such as aime_2024's parquet",
        Fields(("problem", "Problem", "question"), ("answer", "Answer"), ("ID", "id", "problem_idx")),
        decoding=Decoding(samples=16, temperature=0.6, top_p=0.95),
    ),
    # Without the baseline's answers, checkpoints can be compared with each other alone.
    Benchmark(
        "arena_hard_cw",
        "Arena-Hard v2.0, creative writing (Li et al., 2025)",
        "question.jsonl and model_answer/gemini-2.0-flash-001.jsonl of lmarena/arena-hard-auto, in one folder",
        _arena_hard,
        ("win_rate",),
        join="uid",
    ),
    _short(
        "bamboogle",
        "Bamboogle (Press et al., 2023)",
        "the authors' table as CSV, or bamboogle's parquet",
        Fields(("Question", "question"), ("Answer", "answer", "golden_answers")),
        most_items=None,
    ),
    _maths(
        "boxed",
        "problems with boxed answers",
        "any file with problem or question, and answer or solution (whose last box is the answer)",
        Fields(
            question=("problem", "Problem", "question"),
            answers=("answer", "Answer", "expected_answer", "solution"),
            id=("unique_id", "id"),
            group=("subject", "type"),
        ),
    ),
    # The second half of the benchmark, FACT, checks citations of web pages and has no counterpart here.
    Benchmark(
        "deep_research_bench",
        "DeepResearch Bench, RACE (Du et al., 2025)",
        "criteria.jsonl and reference.jsonl of Ayanami0730/deep_research_bench, in one folder",
        _deep_research_bench,
        ("race",),
        join="id",
    ),
    _maths(
        "gpqa",
        "GPQA (Rein et al., 2024)",
        "gpqa_diamond.csv of the authors",
        _gpqa,
        scorers=("choice",),
        instruction="The final answer is the letter of the right choice, in a box: one of \\boxed{A} to \\boxed{D}.",
    ),
    # A score of an item may lie below 0; the authors cut the mean over all items to [0, 1].
    Benchmark(
        "healthbench",
        "HealthBench (Arora et al., 2025)",
        "2025-05-07-06-14-12_oss_eval.jsonl, or its hard or consensus file, of openai/simple-evals",
        _healthbench,
        ("rubric",),
        most_items=1000,
    ),
    Benchmark(
        "hellobench",
        "HelloBench (Que et al., 2024)",
        "data/main_data/*.jsonl of Quehry/HelloBench",
        Fields("instruction", group="category", criteria=Criteria("checklists")),
        ("criteria_rating",),
    ),
    _short(
        "hotpotqa",
        "HotpotQA (Yang et al., 2018)",
        "hotpot_dev_fullwiki_v1.json of the authors, or hotpot_qa's parquet",
        Fields(answers=("answer", "golden_answers"), id=("_id", "id"), group="type"),
        scorers=_BY_HOTPOT,
    ),
    _short(
        "musique", "MuSiQue (Trivedi et al., 2022)", "musique_ans_v1.0_dev.jsonl of the authors", _musique
    ),
    _short(
        "nq",
        "Natural Questions (Kwiatkowski et al., 2019), open form (Lee et al., 2019)",
        "NQ-open.dev.jsonl of google-research-datasets, nq_open's parquet, or DPR's nq-test.csv",
        Fields(answers=("answer", "answers", "golden_answers")),
    ),
    Benchmark(
        "own",
        "a file of questions",
        "JSON lines with question, and answer, answers, rubric, given or nothing",
        _own,
        (*SHORT_ANSWERS, "rubric", "win_rate", "rating"),
    ),
    _short(
        "popqa",
        "PopQA (Mallen et al., 2023)",
        "test.tsv of akariasai/PopQA",
        Fields(answers=("possible_answers", "golden_answers"), group="prop"),
    ),
    Benchmark(
        "researchplangen",
        "ResearchPlanGen (Goel et al., 2025)",
        "ml/test, arxiv/test or pubmed/test of facebook/research-plan-gen (parquet)",
        Fields("Goal", id="q_id", group="Category", criteria=Criteria("Rubric")),
        ("rubric",),
        most_items=1000,
    ),
    Benchmark(
        "researchqa",
        "ResearchQA (Yifei et al., 2025)",
        "test.json of realliyifei/ResearchQA",
        Fields("query", group="general_domain", criteria=Criteria("rubric", "rubric_item", dimension="type")),
        ("criteria_rating",),
        most_items=1000,
    ),
    Benchmark(
        "researchrubrics",
        "ResearchRubrics (Sharma et al., 2025)",
        "processed_data.jsonl of ScaleAI/researchrubrics, or compiled_dataset.csv of its code",
        Fields(
            "prompt",
            id=("sample_id", "task_name"),
            group="domain",
            criteria=Criteria(
                "rubrics", ("criterion", "title"), "weight", dimension=("axis", "category"), default=None
            ),
        ),
        ("rubric",),
    ),
    # Of its four measures this is the recall of ingredients; precision and citations are not measured.
    Benchmark(
        "sqa_cs_v2",
        "SQA-CS-V2 (Bragg et al., 2025)",
        "tasks/sqa/rubrics_v2_recomputed.json of allenai/asta-bench",
        Fields(
            ("initial_prompt", "question"),
            id="case_id",
            criteria=Criteria(
                ("metric_config.config.other_properties", "ingredients", "rubric"),
                "criterion",
                "weight",
                title="name",
            ),
        ),
        ("criteria_rating",),
    ),
    _short(
        "triviaqa",
        "TriviaQA (Joshi et al., 2017)",
        "unfiltered-web-dev.json of the authors, trivia_qa's parquet, or DPR's trivia-test.csv",
        Fields(
            question=("Question", "question"),
            answers=(
                *("Answer.Value", "Answer.Aliases", "Answer.HumanAnswers"),
                *("answer.value", "answer.aliases", "answers", "golden_answers"),
            ),
            id=("QuestionId", "question_id", "id"),
        ),
        scorers=("reference", "trivia_exact_match", "trivia_f1", "cover_exact_match"),
    ),
    # One mark from 0 to 10 by the request's checklist (WB-Score).
    Benchmark(
        "wildbench",
        "WildBench v2 (Lin et al., 2025)",
        "v2/test of allenai/WildBench (parquet)",
        Fields(
            "conversation_input", id=("session_id", "id"), group="primary_tag", criteria=Criteria("checklist")
        ),
        ("rating",),
        most_items=1000,
    ),
    Benchmark(
        "writingbench",
        "WritingBench (Wu et al., 2025)",
        "benchmark_query/benchmark_all.jsonl of X-PLUG/WritingBench",
        _writingbench,
        ("criteria_rating",),
        most_items=1000,
    ),
)
BENCHMARKS = MappingProxyType({benchmark.name: benchmark for benchmark in _ALL})
"""Every benchmark of the package, in the order of their names."""


EMBEDDED = Benchmark(
    "embedded",
    "facts of the embedded world, by the number of links to follow",
    "the held-out articles of a run with corpus.path: embedded",
    Fields(),
    ("rubric",),
)
EMBEDDED_ITEMS = 100


def embedded_benchmark(documents: Sequence[Document], *, seed: int, count: int | None = None) -> Benchmark:
    """So many questions, as many of each depth. Raises ConfigError for documents of another world."""
    articles = [each for each in documents_for(documents, held_out=True) if read_article(each.text)]
    if not articles:
        raise ConfigError(
            f"benchmark {EMBEDDED.name}: the run has no articles of the embedded world; use a run with corpus.path: "
            "embedded, or another benchmark"
        )
    judge, sources = LexicalJudge(), {document.id: document for document in documents}
    items = []
    for task in embedded_tasks(
        seed, articles, min(len(articles), EMBEDDED_ITEMS if count is None else count)
    ):
        shown = dict.fromkeys((task.document_id, *task.evidence_ids))
        rubric = asyncio.run(judge.ask(RubricQuestion(task, [sources[each] for each in shown]))).value
        assert rubric and rubric.criteria, f"{task.text}: the world cannot answer its own question"
        criteria = tuple(
            ItemCriterion(text=each.text, points=each.weight, dimension=each.dimension)
            for each in rubric.criteria
        )
        items.append(Item(id=task.id, question=task.text, criteria=criteria, group=task_family(task)))
    return replace(EMBEDDED, items=tuple(sorted(items, key=lambda item: item.group)))
