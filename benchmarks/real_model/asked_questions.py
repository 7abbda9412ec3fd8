"""What is kept of the Challenger's stage (`kept/challenger.json`), its steps and the questions of C_0 and C_1."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

from benchmarks.markdown import difference, markdown, share
from benchmarks.real_model_answers import FACTBOOK
from retrieval.corpus import read_documents
from scope_selfplay.base.gates import Gate
from scope_selfplay.base.intervals import DIFFERENCES, SHARES, estimate_mean
from scope_selfplay.base.values import Candidate, Document, Value
from scope_selfplay.rewards.equations import in_window
from scope_selfplay.run.run import Run
from scope_selfplay.store.files import read_records, read_rows
from scope_selfplay.store.folder import Stage

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


_SHOWN = 10
_STEPS = ("reward", "no_task", "gates", "mean_score", "in_window", "entropy", "step_seconds")
_SHARES: Sequence[tuple[str, Callable[[AskedQuestion], bool]]] = (
    ("a question was written", lambda asked: asked.text is not None),
    ("it names the country of its passage", lambda asked: asked.names_its_country),
    ("three of four readers of the passage agree", lambda asked: asked.passed),
    (
        "they agree, and their answer stands in the passage",
        lambda asked: asked.passed and asked.is_read_in_the_passage,
    ),
    (
        "they agree, and the Solver scores 0.2 to 0.8",
        lambda asked: asked.score is not None and in_window(asked.score, 0.2, 0.8),
    ),
)


def questions_tables(folder: Path) -> str:
    """Of `challenger.json`."""
    kept = ChallengerKept.model_validate_json((folder / "challenger.json").read_bytes())
    return "\n\n".join([shares_table(kept), steps_table(kept), asked_table(kept)])


def shares_table(kept: ChallengerKept) -> str:
    """The difference is paired by passage."""
    rows = [[f"of {len(kept.before)} passages", "C_0", "C_1", "difference"]]
    for title, holds in _SHARES:
        before, after = ([float(holds(each)) for each in asked] for asked in (kept.before, kept.after))
        levels = [share(estimate_mean(values, seed=0, bounds=SHARES)) for values in (before, after)]
        pairs = [late - early for early, late in zip(before, after, strict=True)]
        rows.append([title, *levels, difference(estimate_mean(pairs, seed=0, bounds=DIFFERENCES))])
    scores = [[each.score for each in asked if each.score is not None] for asked in (kept.before, kept.after)]
    rows.append(
        ["mean score of the Solver, where they agree", *(f"{fmean(each):.2f}" for each in scores), ""]
    )
    return markdown(rows)


def steps_table(kept: ChallengerKept) -> str:
    rows = [["step", *(name.replace("_", " ") for name in _STEPS)]]
    for number, step in enumerate(kept.steps, start=1):
        values = [f"{step[name]:.2f}" for name in _STEPS[:-1]]
        rows.append([str(number), *values, f"{step[_STEPS[-1]]:.0f}"])
    return markdown(rows)


def asked_table(kept: ChallengerKept) -> str:
    """Of the first passages; what the readers answered, how many of them, and the Solver's mean score."""
    rows = [["passage", "C_0 asks", "read as", "C_1 asks", "read as"]]
    for before, after in list(zip(kept.before, kept.after, strict=True))[:_SHOWN]:
        asked = [text for each in (before, after) for text in (each.text or "(none)", _read(each))]
        rows.append([before.document, *asked])
    return markdown(rows)


def _read(asked: AskedQuestion) -> str:
    if asked.agreed is None:
        return ""
    score = "" if asked.score is None else f", score {asked.score:.2f}"
    return f"{asked.read or '(nothing)'} ({asked.agreed:.2f}{score})"
