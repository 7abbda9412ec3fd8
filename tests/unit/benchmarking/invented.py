"""An evaluation of two checkpoints on three items, written by hand as `scope eval` writes one."""

from pathlib import Path

from scope_selfplay.base.values import Outcome, Passage, Role, Rollout, Turn, Verdict
from scope_selfplay.evaluation.benchmarks import Benchmark, Budget, Decoding
from scope_selfplay.evaluation.evaluate import finish
from scope_selfplay.evaluation.folder import ContestantRecord, EvaluationFolder, EvaluationSpec
from scope_selfplay.evaluation.rows import Fields, Item
from scope_selfplay.evaluation.scorers import Answer, AnswerScore
from scope_selfplay.store.files import Appender
from tests.unit.evaluation.contestants import judged_pair

ITEMS = tuple(Item(id=f"i{row}", question=f"Question {row} <b>?", answers=("heron",)) for row in range(3))
LOADED = Benchmark("tiny", "Tiny", "nobody", Fields(), ("exact_match",), items=ITEMS)
SPEC = EvaluationSpec(
    benchmark="tiny",
    items=LOADED.identity,
    count=3,
    seed=0,
    decoding=Decoding(),
    budget=Budget(),
    scorers=("exact_match",),
    judges=("judge-1",),
    dialect="qwen2.5",
    prompts="0" * 16,
    index="bm25",
    version="1",
)
RIGHT = {"new": (1, 1, 0), "old": (0, 1, 0)}
"""Which items each checkpoint answers right."""


def write_evaluation(path: Path, *, backwards: bool = False) -> EvaluationFolder:
    """The records in the order of the items, or the other way round; then the result."""
    folder = EvaluationFolder(path)
    folder.begin(SPEC, ITEMS)
    for name in RIGHT:
        folder.join(ContestantRecord(name=name, identity=f"{name}-0badcafe"))
    places = [(name, row) for name in RIGHT for row in range(len(ITEMS))]
    with (
        Appender(folder.answers) as answers,
        Appender(folder.scores) as scores,
        Appender(folder.comparisons) as met,
    ):
        for name, row in places[:: -1 if backwards else 1]:
            answers.append(answer_of(name, row))
            scores.append(score_of(name, row))
        for first, second in [("new", "old"), ("old", "new")][:: -1 if backwards else 1]:
            outcome = Outcome(1.0, 0.0) if first == "new" else Outcome(0.0, 1.0)
            verdict = Verdict(value=True, reasoning="The new one knows.")
            met.append(judged_pair("i0", first, second, outcome, judge="judge-1", verdict=verdict))
    finish(folder, LOADED, seed=0)
    return folder


def answer_of(name: str, row: int) -> Answer:
    text = "heron" if RIGHT[name][row] else "\x1b[31mowl"
    found = (Passage(id="p", title="Birds", text="The heron."),)
    turns = (Turn(ids=(1, 2, 3), query="bird", passages=found), Turn(prompt_ids=(1,) * 8, ids=(4, 5)))
    rollout = Rollout(
        id=f"{name}-{row}", role=Role.SOLVER, checkpoint=name, subject_id=f"i{row}", turns=turns, answer=text
    )
    return Answer.of(rollout, name, f"i{row}", 0)


def score_of(name: str, row: int, value: float | None = None) -> AnswerScore:
    right = float(RIGHT[name][row]) if value is None else value
    return AnswerScore(
        item_id=f"i{row}", answer_id=f"{name}-{row}", checkpoint=name, scorer="exact_match", value=right
    )
