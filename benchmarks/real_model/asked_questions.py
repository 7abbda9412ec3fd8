"""What is kept of the Challenger's stage (`kept/challenger.json`): its steps, and the questions of C_0 and C_1."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from benchmarks.real_model_answers import FACTBOOK
from retrieval.corpus import read_documents
from scope_selfplay.gates import Gate
from scope_selfplay.run import Run
from scope_selfplay.schemas import Candidate, Document, Value
from scope_selfplay.store import Stage, read_records
from scope_selfplay.store.files import read_rows

METRICS = ("reward", "gates", "no_task", "mean_score", "in_window", "format", "entropy", "step_seconds")


class AskedQuestion(Value):
    """`read` is what those answered most often who read the passage, `agreed` their share; `score` is the Solver's mean
    where enough of them agreed.
    """

    document: str
    text: str | None = None
    read: str | None = None
    agreed: float | None = None
    score: float | None = None
    passed: bool = False

    @property
    def names_its_country(self) -> bool:
        country = passages()[self.document].title.partition(":")[0]
        return self.text is not None and country.lower() in self.text.lower()

    @property
    def is_read_in_the_passage(self) -> bool:
        return self.read is not None and self.read.lower() in passages()[self.document].text.lower()


class ChallengerKept(Value):
    seed: int
    steps: tuple[dict[str, float], ...]
    before: tuple[AskedQuestion, ...]
    after: tuple[AskedQuestion, ...]


def read_challenger(run: Run) -> ChallengerKept:
    """Of a run whose stage is finished."""
    rows = read_rows(run.folder.stage(1, Stage.CHALLENGER).metrics)
    steps = tuple({name: round(row[name], 4) for name in METRICS if name in row} for row in rows)
    before, after = (
        tuple(map(_kept, read_records(questions_file(run, iteration), Candidate))) for iteration in (0, 1)
    )
    return ChallengerKept(seed=run.config.seed, steps=steps, before=before, after=after)


def questions_file(run: Run, iteration: int) -> Path:
    return run.folder.path / f"questions-{iteration}.jsonl"


def _kept(candidate: Candidate) -> AskedQuestion:
    document = candidate.provenance.document_id
    if candidate.task is None:
        return AskedQuestion(document=document)
    verdict = candidate.gates[Gate.SOURCE]
    return AskedQuestion(
        document=document,
        text=candidate.task.text,
        read=verdict.reasoning or None,
        agreed=verdict.probability,
        passed=verdict.value is True,
        score=candidate.mean,
    )


@cache
def passages() -> Mapping[str, Document]:
    return {each.id: each for each in read_documents(FACTBOOK / "passages.jsonl")}
