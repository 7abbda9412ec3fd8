"""One function per page: a question in, the template's name and its values out. All of them only read."""

from collections import Counter
from typing import Any, NamedTuple

from scope_selfplay.errors import PromptError, RecordError
from scope_selfplay.evaluation.rating import comparison_graph
from scope_selfplay.inspection.comparing import CheckpointDiff, diff_checkpoints
from scope_selfplay.inspection.overview import IterationOverview, newest_ratings
from scope_selfplay.prompts import Pack, diff_packs, load_pack
from scope_selfplay.prompts.folder import names_in, shipped_prompts
from scope_selfplay.schemas import Reason
from scope_selfplay.store.folders import RunFolder, Stage
from scope_selfplay.store.query import Judgements, TaskQuery, UnknownTaskError
from scope_selfplay.store.reader import RunReader
from scope_selfplay.viewer import answers, charts
from scope_selfplay.viewer.answers import TaskChange
from scope_selfplay.viewer.parameters import (
    BadParameterError,
    ComparisonParameters,
    PackParameters,
    TaskListParameters,
)
from scope_selfplay.viewer.shown_run import ShownRun

COMPARED_A_PAGE = 50
# What a reader of a training wants to see first; the rest follows as it was logged.
FIRST_CURVES = (
    "reward",
    "difficulty",
    "rubric",
    "mean_score",
    "format",
    "search",
    "kl",
    "entropy",
    "zero_variance",
)


class Page(NamedTuple):
    template: str
    values: dict[str, Any]


class PageNotFoundError(Exception):
    """A page about something that the run does not have; its text is one line for a person."""


def overview_page(run: ShownRun) -> Page:
    """Funnel, scores, task types, drift and health; the checkups may still be on their way."""
    checkups = run.checkups()
    return Page(
        "overview.html",
        {
            "page": run.numbers(),
            "states": run.reader.stages(),
            "checkups": checkups,
            "edges": charts.bin_edges,
            "is_running": run.is_running,
        },
    )


def list_page(run: ShownRun, asked: TaskListParameters) -> Page:
    """One page of candidates."""
    reader = run.fresh()
    return Page(
        "tasks.html",
        {
            "asked": asked,
            "found": reader.tasks(asked.query),
            "iterations": reader.iterations(),
            "types": reader.task_types(),
        },
    )


def rejected_page(run: ShownRun) -> Page:
    """What was thrown away and why: counts by iteration and reason, and the newest examples of every reason."""
    reader = run.fresh()
    counts = [
        each for each in reader.funnel() if each.stage is Stage.TASKS and each.reason is not Reason.ACCEPTED
    ]
    table = {(each.iteration, each.reason): each.count for each in counts}
    reasons = [reason for reason, _ in Counter({each.reason: 0 for each in counts}).most_common()]
    reasons.sort(key=list(Reason).index)
    return Page(
        "rejected.html",
        {
            "counts": table,
            "iterations": sorted({each.iteration for each in counts}),
            "reasons": reasons,
            "examples": {
                reason: reader.tasks(TaskQuery(reason=reason, descending=True, limit=3)).lines
                for reason in reasons
            },
        },
    )


def task_page(run: ShownRun, place: tuple[int, Stage], candidate_id: str, asked: TaskListParameters) -> Page:
    """One candidate with everything that was kept of it. Raises PageNotFoundError."""
    reader = run.fresh()
    try:
        record = reader.task(candidate_id, iteration=place[0], stage=place[1])
    except UnknownTaskError as error:
        raise PageNotFoundError(str(error)) from None
    made = record.candidate.task
    every = reader.attempts_on(made.id) if made else []
    return Page(
        "task.html",
        {
            "record": record,
            "candidate": record.candidate,
            "sheets": answers.sheets(record.attempts, every),
            "criteria_of": answers.criteria_of,
            "verdicts_of": answers.verdicts_of,
            "matches": reader.comparisons_on(made.id) if made else [],
            "judgements": reader.judgements_on(made.id) if made else Judgements(),
            "around": reader.neighbours(asked.query, record.candidate.id),
            "asked": asked,
        },
    )


def compare_page(run: ShownRun, asked: ComparisonParameters) -> Page:
    """Two checkpoints on the same held-out tasks. Without a choice: the first and the last."""
    reader = run.fresh()
    scores = reader.scores()
    names = answers.checkpoint_names(scores)
    if len(names) < 2:
        return Page("compare.html", {"names": names, "diff": None, "asked": asked})
    before, after = asked.a or names[0], asked.b or names[-1]
    diff = _diff(reader, before, after)
    changes = _changes(run, before, after)
    start = (asked.page - 1) * COMPARED_A_PAGE
    return Page(
        "compare.html",
        {
            "names": names,
            "diff": diff,
            "asked": asked,
            "changes": answers.in_order(changes, asked.sort)[start : start + COMPARED_A_PAGE],
            "total": len(changes),
            "start": start,
        },
    )


def compared_answers_page(run: ShownRun, task_id: str, asked: ComparisonParameters) -> Page:
    """The answers of two checkpoints to one held-out task, side by side. Raises PageNotFoundError."""
    reader = run.fresh()
    names = answers.checkpoint_names(reader.scores()) or [""]
    before, after = asked.a or names[0], asked.b or names[-1]
    order = [each.task_id for each in answers.in_order(_changes(run, before, after), asked.sort)]
    if task_id not in order:
        raise PageNotFoundError(f"{task_id} is no held-out task that {before} and {after} have answered")
    here = order.index(task_id)
    try:
        record = reader.task(task_id, iteration=0, stage=Stage.TASKS)
    except UnknownTaskError as error:
        raise PageNotFoundError(str(error)) from None
    held = [each for each in reader.attempts_on(task_id) if each.stage is Stage.COMPARE]
    sides = [
        each
        for name in (before, after)
        for each in held
        if answers.short_name(each.rollout.checkpoint) == name
    ]
    return Page(
        "compared_answers.html",
        {
            "record": record,
            "candidate": record.candidate,
            "sides": sides,
            "criteria": answers.criteria_of(record.candidate, sides),
            "verdicts_of": answers.verdicts_of,
            "matches": [
                each
                for each in reader.comparisons_on(task_id)
                if {answers.short_name(each.first), answers.short_name(each.second)} == {before, after}
            ],
            "before": order[here - 1] if here else None,
            "after": order[here + 1] if here + 1 < len(order) else None,
            "asked": asked,
        },
    )


def training_page(run: ShownRun) -> Page:
    """Curves of every iteration over each other, and the ratings of the checkpoints."""
    found = run.numbers()
    newest = newest_ratings(run.reader)
    return Page(
        "training.html",
        {
            "curves": {stage: _curves(found.iterations, stage) for stage in (Stage.CHALLENGER, Stage.SOLVER)},
            "held_out": [
                charts.NamedInterval(each.checkpoint, each.mean_score, each.low, each.high)
                for each in found.held_out
            ],
            "newest": newest,
            "graph": comparison_graph(newest.ratings) if newest else None,
            "ratings": [
                charts.NamedInterval(each.name, each.rating, each.low, each.high)
                for each in (comparison_graph(newest.ratings).nodes if newest else ())
                if each.rating is not None
            ],
            "seconds": {each.iteration: each.seconds for each in found.iterations if each.seconds},
        },
    )


def prompts_page(run: ShownRun, asked: PackParameters) -> Page:
    """The run's prompt pack, its hash in every iteration, and how it differs from another pack.

    Raises BadParameterError for a pack that is neither shipped nor of a run beside this one.
    """
    reader = run.fresh()
    packs = _known_packs(reader.folder)
    if asked.against and asked.against not in packs:
        known = ", ".join(packs)
        raise BadParameterError(f"against={asked.against!r}: no such prompt pack; there are {known}")
    try:
        own: Pack | None = load_pack(reader.folder.prompts)
        diff = diff_packs(packs[asked.against](), own) if asked.against and own else None
        damage = ""
    except PromptError as error:
        own, diff, damage = None, None, str(error)
    hashes = reader.sql(
        "SELECT iteration, stage, provenance.prompt_hash AS hash, count(*) AS count FROM candidates "
        "GROUP BY ALL ORDER BY iteration, stage, hash"
    )
    values = {"pack": own, "damage": damage, "hashes": hashes, "packs": list(packs), "asked": asked}
    return Page("prompts.html", values | {"diff": None if diff is None else diff.splitlines()})


def _diff(reader: RunReader, before: str, after: str) -> CheckpointDiff:
    try:
        return diff_checkpoints(reader, before, after)
    except RecordError as error:
        raise BadParameterError(str(error)) from None


def _changes(run: ShownRun, before: str, after: str) -> list[TaskChange]:
    scores = run.reader.scores()
    one, two = answers.held_out_scores(scores, before), answers.held_out_scores(scores, after)
    rows = run.reader.sql(
        "SELECT task.id AS id, task.text AS text FROM candidates WHERE iteration = 0 AND stage = 'tasks' "
        "AND task IS NOT NULL"
    )
    texts = {row["id"]: row["text"] for row in rows}
    return [TaskChange(task, texts.get(task, ""), one[task], two[task]) for task in one if task in two]


def _curves(iterations: tuple[IterationOverview, ...], stage: Stage) -> dict[str, list[charts.Line]]:
    """By metric: one line per iteration."""
    found: dict[str, list[charts.Line]] = {}
    for each in iterations:
        for curve in each.curves:
            if curve.stage is stage and len(curve.values) > 1:
                found.setdefault(curve.name, []).append(charts.as_line(f"iteration {each.iteration}", curve))
    first = [name for name in FIRST_CURVES if name in found]
    return {name: found[name] for name in [*first, *(name for name in found if name not in first)]}


def _known_packs(folder: RunFolder) -> dict[str, Any]:
    """What the run's pack can be compared with, by name: never a path that came over HTTP."""
    shipped = shipped_prompts()
    found: dict[str, Any] = {name: lambda name=name: load_pack(shipped / name) for name in names_in(shipped)}
    for beside in _runs_beside(folder):
        found[f"run {beside.path.name}"] = lambda beside=beside: load_pack(beside.prompts)
    return found


def _runs_beside(folder: RunFolder) -> list[RunFolder]:
    """The runs in the same folder; what this process may not read is left out."""
    own = folder.path.resolve()
    try:
        others = sorted(each for each in own.parent.iterdir() if each != own)
    except OSError:
        return []
    return [RunFolder(each) for each in others if _has_pack(RunFolder(each))]


def _has_pack(folder: RunFolder) -> bool:
    try:
        return folder.config.is_file() and folder.prompts.is_dir()
    except OSError:
        return False
