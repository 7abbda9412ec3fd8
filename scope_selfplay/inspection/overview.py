"""The numbers of a run that every presenter shows: `summary.json`, the terminal, the report, the web page.

    with RunReader(path) as reader:
        page = overview(reader)
        page.iterations[0].funnel            # documents -> tasks -> gates -> rubric -> tried -> kept
        page.held_out                        # what every checkpoint reaches, with intervals

From a run's folder alone, finished or running; what was not measured is absent and never zero.
"""

from dataclasses import dataclass

from scope_selfplay.health.checkup import examine
from scope_selfplay.health.signals import Checkup
from scope_selfplay.inspection.people import People, people
from scope_selfplay.schemas import Task, Value
from scope_selfplay.store.folders import Stage
from scope_selfplay.store.forks import read_fork, shared_words
from scope_selfplay.store.query import Count
from scope_selfplay.store.ratings import KeptSolver, Ratings, has_ratings, kept_solver, read_ratings
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
    ruling: str
    """What was decided about its Solver and why; "" before its comparison has ended."""


class HeldOut(Value):
    """What one checkpoint reaches on the held-out tasks: mean share of the rubric met, 95 % interval."""

    checkpoint: str
    mean_score: float
    low: float | None
    high: float | None
    """Without bounds over one task."""
    tasks: int
    rating: float | None
    """From the newest iteration's comparisons, in units of the judge's margin, S_0 at 0."""


class Overview(Value):
    run: str
    shared: str
    """Whose iterations a forked run shares, in words; "" for a run of its own."""
    config_hash: str
    prompt_hash: str
    iterations: tuple[IterationOverview, ...]
    held_out: tuple[HeldOut, ...]
    kept: KeptSolver | None
    """None before the first comparison has ended."""
    people: People | None
    """None where nobody has played in the run."""
    health: tuple[Checkup, ...]


@dataclass(frozen=True)
class NewestRatings:
    """The ratings of the last finished comparison, which cover all checkpoints."""

    iteration: int
    ratings: Ratings


def overview(reader: RunReader, *, health: bool = True) -> Overview:
    """Everything together. Raises RecordError for a damaged file.

    Without `health`, which reads the tasks' texts, it takes a fraction of the time.
    """
    origin = reader.sql(
        "SELECT DISTINCT provenance.config_hash AS config, provenance.prompt_hash AS prompts FROM candidates "
        # Held-out tasks that were given have neither.
        "WHERE provenance.config_hash <> ''"
    )
    hashes = origin[0] if len(origin) == 1 else {"config": "", "prompts": ""}
    newest = newest_ratings(reader)
    fork = read_fork(reader.folder)
    return Overview(
        run=str(reader.settings.get("name", reader.folder.path.name)),
        shared=shared_words(fork) if fork else "",
        config_hash=hashes["config"] or "",
        prompt_hash=hashes["prompts"] or "",
        iterations=tuple(_iteration(reader, iteration) for iteration in reader.iterations()),
        held_out=_held_out(newest.ratings) if newest else (),
        kept=kept_solver(reader.folder),
        people=people(reader),
        health=tuple(examine(reader)) if health else (),
    )


def task_counts(reader: RunReader, iteration: int) -> list[Count]:
    """How many candidates of an iteration's task making ended how, the most frequent first."""
    return [count for count in reader.funnel() if (count.iteration, count.stage) == (iteration, Stage.TASKS)]


def accepted_means(reader: RunReader, iteration: int) -> list[float]:
    """The mean scores of the accepted tasks that have one, in the order in which they were made."""
    rows = reader.sql(
        "SELECT mean FROM candidates WHERE iteration = ? AND stage = 'tasks' AND status = 'accepted' "
        "AND mean IS NOT NULL ORDER BY ordinal",
        [iteration],
    )
    return [row["mean"] for row in rows]


def training_curves(reader: RunReader, iteration: int, stage: Stage) -> list[Curve]:
    """Every number that the steps of a training logged, in the order in which they first appear."""
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    for number, row in enumerate(reader.metrics(iteration, stage), start=1):
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                steps.setdefault(name, []).append(int(row.get("step", number)))
                values.setdefault(name, []).append(float(value))
    return [
        Curve(stage=stage, name=name, steps=tuple(steps[name]), values=tuple(values[name])) for name in steps
    ]


def stage_seconds(reader: RunReader, iteration: int) -> dict[str, float]:
    """How long each finished stage of an iteration took, in the order of the loop."""
    return {
        state.stage.value: state.manifest.seconds
        for state in reader.stages()
        if state.iteration == iteration and state.manifest
    }


def newest_ratings(reader: RunReader) -> NewestRatings | None:
    """Raises RecordError where they are damaged."""
    for iteration in reversed(reader.iterations()):
        if has_ratings(reader.folder, iteration):
            return NewestRatings(iteration, read_ratings(reader.folder, iteration))
    return None


def bin_edges(row: int) -> tuple[float, float]:
    """Where one bin of a histogram of mean scores begins and ends."""
    return row / BINS, (row + 1) / BINS


def searches_of(task: Task) -> str:
    """How many searches it was written with, and how many were asked for where that is another number."""
    made = f"{task.search_turns} search{'' if task.search_turns == 1 else 'es'}"
    return made if task.assigned_turns in (None, task.search_turns) else f"{made} of {task.assigned_turns}"


def _iteration(reader: RunReader, iteration: int) -> IterationOverview:
    challenger = training_curves(reader, iteration, Stage.CHALLENGER)
    return IterationOverview(
        iteration=iteration,
        funnel=_funnel(reader, iteration),
        reasons={count.reason.value: count.count for count in task_counts(reader, iteration)},
        histogram=_histogram(reader, iteration),
        by_type=_groups(reader, iteration, "task.type"),
        by_search_turns=_groups(reader, iteration, "task.search_turns"),
        curves=(*challenger, *training_curves(reader, iteration, Stage.SOLVER)),
        seconds=stage_seconds(reader, iteration),
        ruling=_ruling(reader, iteration),
    )


def _ruling(reader: RunReader, iteration: int) -> str:
    if iteration == 0 or not has_ratings(reader.folder, iteration):
        return ""
    ratings = read_ratings(reader.folder, iteration)
    return f"{ratings.decision}: {ratings.reason}" if ratings.reason else ratings.decision


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
    if not row["documents"]:
        return ()
    return tuple(FunnelStep(name=name, count=count) for name, count in row.items())


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


def _held_out(ratings: Ratings) -> tuple[HeldOut, ...]:
    return tuple(
        HeldOut(
            checkpoint=name,
            rating=ratings.ratings.get(name),
            **groups["all"].model_dump(include={"mean_score", "low", "high", "tasks"}),
        )
        for name, groups in ratings.held_out.items()
        if "all" in groups
    )
