"""The tables of docs/real-model.md, of what is kept, as Markdown between marks; what people wrote around them stays."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.markdown import difference, markdown, replace_between, share
from benchmarks.real_model.asked_questions import questions_tables
from benchmarks.real_model.kept import KEPT, Behaviour, Kept, Marks, Said, held_out_questions, read_kept
from scope_selfplay.base.intervals import DIFFERENCES, SHARES, Estimate, estimate_mean

SHOWN = 10
"""Questions of the first seed that are shown with their answers."""
_COLUMNS = ("parsed", "searched", "found", "answered", "right", "reward")
_MOMENTS = ("supervised start", "after GRPO")
_PARTS = 8


def sections(folder: Path = KEPT) -> dict[str, str]:
    """Of what is kept in the folder by now, by mark."""
    kept, found = read_kept(folder), {}
    if kept:
        found |= {
            "gains": seeds_table(kept),
            "behaviour": behaviour_table(kept),
            "groups": groups_table(kept),
            "answers": spoken_table(kept[0]),
        }
    if (folder / "challenger.json").exists():
        found["questions"] = questions_tables(folder)
    return found


def marks_around(section: str) -> tuple[str, str]:
    return f"<!-- {section} -->", f"<!-- /{section} -->"


def write_page(page: Path, folder: Path = KEPT) -> None:
    for section, text in sections(folder).items():
        replace_between(page, marks_around(section), text)


def seeds_table(kept: Sequence[Kept]) -> str:
    """Held-out questions before and after, and the gain paired by question."""
    rows = [["seed", "answers", "mark", *_MOMENTS, "gain, 95 % interval"]]
    for each in kept:
        for way, marks in (("greedy", each.greedy), ("sampled", each.sampled)):
            before, after = marks(0), marks(1)
            for title, mark in (("exact match", "exact"), ("F1", "f1")):
                levels = [share(level(values, mark)) for values in (before, after)]
                row = [str(each.training.seed), way, title, *levels, difference(gain(before, after, mark))]
                rows.append(row)
    return markdown(rows)


def level(values: Mapping[str, Marks], mark: str) -> Estimate:
    found = estimate_mean([getattr(each, mark) for each in values.values()], seed=0, bounds=SHARES)
    assert found is not None
    return found


def gain(before: Mapping[str, Marks], after: Mapping[str, Marks], mark: str) -> Estimate:
    """Of the second over the first, paired by question."""
    pairs = [getattr(after[name], mark) - getattr(before[name], mark) for name in before]
    found = estimate_mean(pairs, seed=0, bounds=DIFFERENCES)
    assert found is not None
    return found


def behaviour_table(kept: Sequence[Kept]) -> str:
    """Of sampled answers: held-out questions, and training questions by step."""
    rows = [["seed", "", *_COLUMNS, "entropy", "flat", "seconds a step"]]
    for each in kept:
        training = each.training
        for moment, found in zip(_MOMENTS, training.held_out, strict=True):
            rows.append([str(training.seed), f"held out, {moment}", *_cells(found), "", "", ""])
        size = max(1, len(training.steps) // _PARTS)
        for first in range(0, len(training.steps), size):
            part = training.steps[first : first + size]
            mean = {name: fmean(getattr(step.behaviour, name) for step in part) for name in _COLUMNS}
            means = [
                f"{fmean(step.entropy for step in part):.2f}",
                f"{fmean(step.flat for step in part):.2f}",
                f"{fmean(step.seconds for step in part):.0f}",
            ]
            name = f"steps {first + 1} to {first + len(part)}"
            rows.append([str(training.seed), name, *_cells(Behaviour(**mean)), *means])
    return markdown(rows)


def groups_table(kept: Sequence[Kept]) -> str:
    """Exact match by what is asked, the mean of the seeds."""
    rows = [["asked", "questions", "greedy, start", "greedy, after", "sampled, start", "sampled, after"]]
    groups: dict[str, list[str]] = {}
    for name, question in held_out_questions().items():
        groups.setdefault(question.group, []).append(name)
    for group, names in groups.items():
        levels = [
            fmean(marks[name].exact for marks in (way(each, moment) for each in kept) for name in names)
            for way in (Kept.greedy, Kept.sampled)
            for moment in (0, 1)
        ]
        rows.append([group, str(len(names)), *(f"{value:.2f}" for value in levels)])
    return markdown(rows)


def spoken_table(kept: Kept) -> str:
    """Questions spread evenly over all, with what both Solvers searched for and said, greedily."""
    rows = [["question", "right", *_MOMENTS]]
    for each in kept.answered[:: max(1, len(kept.answered) // SHOWN)][:SHOWN]:
        asked = held_out_questions()[each.id]
        rows.append([asked.text, asked.right, *map(_spoken, each.greedy)])
    return markdown(rows)


def _spoken(said: Said) -> str:
    return f"`{said.query or '(none)'}`: {said.answer or '(none)'}"


def _cells(found: Behaviour) -> list[str]:
    return [f"{getattr(found, name):.2f}" for name in _COLUMNS]
