"""The Challenger's stage as tables: what its questions are worth, its steps, and questions as they were."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.markdown import difference, markdown, share
from benchmarks.real_model.asked_questions import AskedQuestion, ChallengerKept
from scope_selfplay.evaluation.intervals import DIFFERENCES, SHARES, estimate_mean
from scope_selfplay.rewards import in_window

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
