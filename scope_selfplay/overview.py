"""The numbers of a run that every face shows: the terminal, the report, the web page.

    with RunReader(path) as reader:
        page = overview(reader)
        page.iterations[0].funnel            # documents -> tasks -> gates -> rubric -> tried -> kept
        page.held_out                        # what every checkpoint reaches, with intervals

From a run's folder alone, finished or running; nothing that was not measured is a zero.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from scope_selfplay.errors import RecordError
from scope_selfplay.evaluation.rating import Ratings
from scope_selfplay.health import Checkup, examine
from scope_selfplay.schemas import Value
from scope_selfplay.store.folders import Stage
from scope_selfplay.store.reader import RunReader

BINS = 10


class FunnelStep(Value):
    """One step of the funnel: how many candidates came so far."""

    name: str
    count: int


class TaskGroup(Value):
    """Candidates that have something in common; `mean_score` is over those that were tried."""

    name: str
    candidates: int
    accepted: int
    mean_score: float | None


class Curve(Value):
    """One column of a stage's metrics.jsonl, step by step."""

    stage: Stage
    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


class IterationOverview(Value):
    """Task making of one iteration, and the training around it. Iteration 0 holds the held-out tasks."""

    iteration: int
    funnel: tuple[FunnelStep, ...]
    reasons: dict[str, int]
    histogram: tuple[int, ...]
    """Tried tasks by mean score, in `BINS` equal bins from 0 to 1; the last includes 1."""
    by_type: tuple[TaskGroup, ...]
    by_search_turns: tuple[TaskGroup, ...]
    curves: tuple[Curve, ...]
    seconds: dict[str, float]


class HeldOut(Value):
    """What one checkpoint reaches on the held-out tasks: mean share of the rubric met, 95 % interval."""

    checkpoint: str
    mean_score: float
    low: float
    high: float
    tasks: int
    rating: float | None
    """From the newest iteration's comparisons, in units of the judge's margin, S_0 at 0."""


class Overview(Value):
    run: str
    config_hash: str
    prompt_hash: str
    iterations: tuple[IterationOverview, ...]
    held_out: tuple[HeldOut, ...]
    health: tuple[Checkup, ...]


def overview(reader: RunReader, *, health: bool = True) -> Overview:
    """Everything together. Raises RecordError for a damaged file.

    Without `health`, which reads the tasks' texts, it takes a fraction of the time.
    """
    origin = reader.sql(
        "SELECT DISTINCT provenance.config_hash AS config, provenance.prompt_hash AS prompts FROM candidates"
    )
    hashes = origin[0] if len(origin) == 1 else {"config": "", "prompts": ""}
    return Overview(
        run=str(reader.settings.get("name", reader.folder.path.name)),
        config_hash=hashes["config"] or "",
        prompt_hash=hashes["prompts"] or "",
        iterations=tuple(_iteration(reader, iteration) for iteration in reader.iterations()),
        held_out=_held_out(reader),
        health=tuple(examine(reader)) if health else (),
    )


def _iteration(reader: RunReader, iteration: int) -> IterationOverview:
    states = [state for state in reader.stages() if state.iteration == iteration]
    return IterationOverview(
        iteration=iteration,
        funnel=_funnel(reader, iteration),
        reasons={each.reason.value: each.count for each in reader.funnel() if _is_making(each, iteration)},
        histogram=_histogram(reader, iteration),
        by_type=_groups(reader, iteration, "task.type"),
        by_search_turns=_groups(reader, iteration, "task.search_turns"),
        curves=tuple(
            curve for stage in (Stage.CHALLENGER, Stage.SOLVER) for curve in _curves(reader, iteration, stage)
        ),
        seconds={state.stage.value: state.manifest.seconds for state in states if state.manifest},
    )


def _is_making(count: Any, iteration: int) -> bool:
    return bool((count.iteration, count.stage) == (iteration, Stage.TASKS))


def _funnel(reader: RunReader, iteration: int) -> tuple[FunnelStep, ...]:
    (row,) = reader.sql(
        'SELECT count(*) AS documents, count(task) AS "tasks written", '
        "count(*) FILTER (rubric IS NOT NULL OR reason = 'rubric') AS \"passed the gates\", "
        'count(rubric) AS "have a rubric", count(mean) AS "tried by the Solver", '
        "count(*) FILTER (status = 'accepted') AS kept FROM candidates WHERE iteration = ? AND stage = 'tasks'",
        [iteration],
    )
    if iteration == 0:
        # Held-out tasks are not filtered by difficulty.
        row.pop("tried by the Solver")
    return (
        tuple(FunnelStep(name=name, count=count) for name, count in row.items()) if row["documents"] else ()
    )


def _histogram(reader: RunReader, iteration: int) -> tuple[int, ...]:
    rows = reader.sql(
        "SELECT least(floor(mean * ? + 1e-9), ? - 1)::INTEGER AS bin, count(*) AS count FROM candidates "
        "WHERE iteration = ? AND stage = 'tasks' AND mean IS NOT NULL GROUP BY bin",
        [BINS, BINS, iteration],
    )
    counts = {row["bin"]: row["count"] for row in rows}
    return tuple(counts.get(number, 0) for number in range(BINS)) if counts else ()


def _groups(reader: RunReader, iteration: int, column: str) -> tuple[TaskGroup, ...]:
    rows = reader.sql(
        f"SELECT {column}::VARCHAR AS name, count(*) AS candidates, "
        "count(*) FILTER (status = 'accepted') AS accepted, avg(mean) AS mean_score FROM candidates "
        "WHERE iteration = ? AND stage = 'tasks' AND task IS NOT NULL GROUP BY name ORDER BY name",
        [iteration],
    )
    return tuple(TaskGroup(**row) for row in rows)


def _curves(reader: RunReader, iteration: int, stage: Stage) -> list[Curve]:
    rows = reader.metrics(iteration, stage)
    names = dict.fromkeys(
        name for row in rows for name, value in row.items() if name != "step" and _is_number(value)
    )
    return [_curve(stage, name, rows) for name in names]


def _curve(stage: Stage, name: str, rows: Sequence[dict[str, Any]]) -> Curve:
    points = [
        (int(row.get("step", number)), float(row[name]))
        for number, row in enumerate(rows, start=1)
        if _is_number(row.get(name))
    ]
    steps, values = zip(*points, strict=True)
    return Curve(stage=stage, name=name, steps=steps, values=values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class NewestRatings(NamedTuple):
    iteration: int
    ratings: Ratings


def _held_out(reader: RunReader) -> tuple[HeldOut, ...]:
    """From the newest comparison, which covers all checkpoints."""
    newest = newest_ratings(reader)
    if newest is None:
        return ()
    return tuple(
        HeldOut(
            checkpoint=name,
            rating=newest.ratings.ratings.get(name),
            **groups["all"].model_dump(include={"mean_score", "low", "high", "tasks"}),
        )
        for name, groups in newest.ratings.held_out.items()
        if "all" in groups
    )


def newest_ratings(reader: RunReader) -> NewestRatings | None:
    """Of the last comparison that was finished, which covers all checkpoints. Raises RecordError where damaged."""
    for iteration in reversed(reader.iterations()):
        file = reader.folder.stage(iteration, Stage.COMPARE).path / "ratings.json"
        if file.exists():
            try:
                return NewestRatings(iteration, Ratings.model_validate_json(file.read_bytes()))
            except ValidationError as error:
                raise RecordError(
                    f"{file}: are no ratings ({str(error).splitlines()[0]}); restore it"
                ) from None
    return None
