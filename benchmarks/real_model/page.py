"""The tables of docs/how/evidence/real-model.md, of what is kept, by the mark around each: `python -m` writes them."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.markdown import difference, markdown, share, write_between
from benchmarks.real_model.results import KEPT, Behaviour, Kept, Said, held_out_questions, read_kept
from benchmarks.scope_command import ROOT
from scope_selfplay.base.intervals import DIFFERENCES, SHARES, estimate_mean

SHOWN = 10
"""Questions to the first seed that are shown with what was said."""
_MOMENTS = ("supervised start", "after GRPO")
_PARTS = 8


def write_page() -> None:
    for mark, text in sections().items():
        write_between(ROOT / "docs/how/evidence/real-model.md", mark, text)


def sections(folder: Path = KEPT) -> dict[str, str]:
    """Of what is kept in the folder by now."""
    kept = read_kept(folder)
    return {
        "gains": seeds_table(kept),
        "behaviour": behaviour_table(kept),
        "groups": groups_table(kept),
        "answers": spoken_table(kept[0]),
    }


def seeds_table(kept: Sequence[Kept]) -> str:
    """Held-out questions before and after, and the gain paired by question."""
    rows = [["seed", "answers", "mark", *_MOMENTS, "gain, 95 % interval"]]
    for each in kept:
        for way, marks in (("greedy", each.greedy), ("sampled", each.sampled)):
            for title, mark in (("exact match", "exact"), ("F1", "f1")):
                early, late = (
                    [getattr(found, mark) for found in marks(moment).values()] for moment in (0, 1)
                )
                rows.append([str(each.training.seed), way, title, *_compared(early, late)])
    return markdown(rows)


def _compared(early: Sequence[float], late: Sequence[float]) -> list[str]:
    """Both shares, and the difference of the pairs."""
    levels = [share(estimate_mean(values, seed=0, bounds=SHARES)) for values in (early, late)]
    pairs = [after - before for before, after in zip(early, late, strict=True)]
    return [*levels, difference(estimate_mean(pairs, seed=0, bounds=DIFFERENCES))]


def behaviour_table(kept: Sequence[Kept]) -> str:
    """Of sampled answers: held-out questions, and training questions by step."""
    columns = tuple(Behaviour.model_fields)
    rows = [["seed", "", *columns, "entropy", "flat", "seconds a step"]]
    for training in (each.training for each in kept):
        seed, size = str(training.seed), max(1, len(training.steps) // _PARTS)
        for moment, found in zip(_MOMENTS, training.held_out, strict=True):
            cells = [f"{getattr(found, name):.2f}" for name in columns]
            rows.append([seed, f"held out, {moment}", *cells, "", "", ""])
        for first in range(0, len(training.steps), size):
            part = training.steps[first : first + size]
            means = [fmean(getattr(step.behaviour, name) for step in part) for name in columns]
            means += [fmean(getattr(step, name) for step in part) for name in ("entropy", "flat")]
            seconds = f"{fmean(step.seconds for step in part):.0f}"
            name = f"steps {first + 1} to {first + len(part)}"
            rows.append([seed, name, *(f"{value:.2f}" for value in means), seconds])
    return markdown(rows)


def groups_table(kept: Sequence[Kept]) -> str:
    """Exact match by what is asked, the mean of the seeds."""
    rows = [["asked", "questions", "greedy, start", "greedy, after", "sampled, start", "sampled, after"]]
    groups: dict[str, list[str]] = {}
    for name, question in held_out_questions().items():
        groups.setdefault(question["group"], []).append(name)
    ways = [way for way in (Kept.greedy, Kept.sampled) for _ in _MOMENTS]
    marks = [[way(each, column % 2) for each in kept] for column, way in enumerate(ways)]
    for group, names in groups.items():
        levels = [fmean(of_seed[name].exact for of_seed in column for name in names) for column in marks]
        rows.append([group, str(len(names)), *(f"{value:.2f}" for value in levels)])
    return markdown(rows)


def spoken_table(kept: Kept) -> str:
    """Questions spread evenly over all, with what both Solvers searched for and said, greedily."""
    rows = [["question", "right", *_MOMENTS]]
    for each in kept.answered[:: max(1, len(kept.answered) // SHOWN)][:SHOWN]:
        asked = held_out_questions()[each.id]
        rows.append([asked["question"], asked["right"], *map(_spoken, each.greedy)])
    return markdown(rows)


def _spoken(said: Said) -> str:
    return f"`{said.query or '(none)'}`: {said.answer or '(none)'}"


if __name__ == "__main__":
    write_page()
