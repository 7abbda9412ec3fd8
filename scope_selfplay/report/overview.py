"""The numbers of a run: those of `summary.json`, and those that `sections` shows in a terminal and on a page.

    with RunReader(path) as reader:
        page = overview(reader)
        page.iterations[0].funnel            # documents -> tasks -> gates -> rubric -> tried -> kept
        page.ratings.held_out                # what every checkpoint reaches, with intervals

From a run's folder alone, finished or running; what was not measured is absent and never zero.
"""

from collections import Counter
from typing import Any

from scope_selfplay.base.intervals import Estimate, shown
from scope_selfplay.base.terminal import first_and_last
from scope_selfplay.base.values import Reason, Value
from scope_selfplay.config.judge import NoiseConfig
from scope_selfplay.config.run import RunConfig
from scope_selfplay.judge.account import read_account
from scope_selfplay.judge.checks import (
    canary_shares,
    read_audit,
    read_canaries,
)
from scope_selfplay.report.charts import Line
from scope_selfplay.report.health import examine
from scope_selfplay.report.people import People, people
from scope_selfplay.report.signals import Checkup
from scope_selfplay.run.run import Run
from scope_selfplay.run.schedule import stages_of
from scope_selfplay.store.folder import RunFolder, Stage
from scope_selfplay.store.ratings import (
    KeptSolver,
    Ratings,
    has_ratings,
    kept_solver,
    read_fork,
    read_ratings,
    shared_words,
)
from scope_selfplay.store.reader import RunReader

BINS = 10


class TaskGroup(Value):
    """Candidates that have something in common; `mean_score` is over those that were tried."""

    name: str
    candidates: int
    accepted: int
    mean_score: float | None


class IterationOverview(Value):
    """Task making of one iteration, and the training around it. Iteration 0 holds the held-out tasks."""

    iteration: int
    funnel: dict[str, int]
    reasons: dict[str, int]
    histogram: tuple[int, ...]
    """Tried tasks by mean score, in `BINS` equal bins from 0 to 1; the last includes 1."""
    by_type: tuple[TaskGroup, ...]
    by_search_turns: tuple[TaskGroup, ...]
    curves: dict[Stage, tuple[Line, ...]]
    """Columns of a training's metrics.jsonl, step by step."""
    seconds: dict[str, float]
    """Of its finished stages."""
    judge: dict[str, int]
    """The account of its finished stages: `calls`, `unreadable`, `failed`."""
    ruling: str
    """What was decided about its Solver and why; "" before its comparison has ended."""


class Overview(Value):
    run: str
    shared: str
    """Whose iterations a forked run shares, in words; "" for a run of its own."""
    judge_noise: str
    """How its judge errs on purpose; "" where it does not."""
    config_hash: str
    prompt_hash: str
    unfinished: tuple[str, ...]
    """Stages that have begun and not ended."""
    iterations: tuple[IterationOverview, ...]
    rated: int
    """The iteration whose comparison gave the ratings."""
    ratings: Ratings | None
    """Those of the newest comparison, which cover all checkpoints; None before the first has ended."""
    kept: KeptSolver | None
    people: People | None
    """None where nobody has played in the run."""
    judge: dict[str, Estimate]
    """Canaries, the audit, and people: shares or differences, of so many judgements; nothing where there are none."""
    health: tuple[Checkup, ...]


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
    rated = [number for number in reader.iterations() if has_ratings(reader.folder, number)]
    fork, played = read_fork(reader.folder), people(reader)
    noise = NoiseConfig.model_validate((reader.settings.get("judge") or {}).get("noise") or {})
    return Overview(
        run=str(reader.settings.get("name", reader.folder.path.name)),
        shared=shared_words(fork) if fork else "",
        judge_noise=noise.description if noise.total else "",
        config_hash=hashes["config"] or "",
        prompt_hash=hashes["prompts"] or "",
        unfinished=tuple(
            f"iteration {number} {stage}" for (number, stage), ended in reader.stages().items() if not ended
        ),
        iterations=tuple(_iteration(reader, iteration) for iteration in reader.iterations()),
        rated=rated[-1] if rated else 0,
        ratings=read_ratings(reader.folder, rated[-1]) if rated else None,
        kept=kept_solver(reader.folder),
        people=played,
        judge=judge_checks(reader.folder, played),
        health=tuple(examine(reader)) if health else (),
    )


def summarise(run: Run) -> dict[str, object]:
    """What `summary.json` holds: the funnel, reward curves and comparison of each iteration, the held-out table in the
    order S_0, S_1, ..., and what health warns of, with the tasks behind it.
    """
    with RunReader(run.folder.path) as reader:
        finished = {place for place, manifest in reader.stages().items() if manifest}
        numbers = range(1, run.config.iterations + 1)
        done = [number for number in numbers if (number, Stage.COMPARE) in finished]
        iterations = [_summary_of(reader, run.config, _iteration(reader, number)) for number in done]
        checkups = [checkup for checkup in examine(reader) if checkup.iteration in done]
    rated = [number for number in (0, *done) if has_ratings(run.folder, number)]
    held_out = read_ratings(run.folder, rated[-1]).model_dump()["held_out"] if rated else {}
    fork, kept = read_fork(run.folder), kept_solver(run.folder)
    return {
        "run": run.config.name,
        "config_hash": run.config.hash,
        "prompt_hash": run.pack.hash,
        "iterations": iterations,
        "held_out": {
            name: groups["all"] | {"groups": groups} for name, groups in held_out.items() if "all" in groups
        },
        **({"kept": kept.model_dump(mode="json")} if kept else {}),
        **({"judge_noise": run.config.judge.noise.description} if run.config.judge.noise else {}),
        "warnings": [found.model_dump(mode="json") for checkup in checkups for found in checkup.warnings],
        **({"shared": fork.model_dump(mode="json", include={"run", "after"})} if fork else {}),
    }


def _summary_of(reader: RunReader, config: RunConfig, found: IterationOverview) -> dict[str, Any]:
    """An iteration: what came of it, and what it was to reach, tasks to accept and steps of the Solver."""
    number, rejected = found.iteration, dict(found.reasons)
    accepted = rejected.pop(Reason.ACCEPTED.value, 0)
    ratings = read_ratings(reader.folder, number) if has_ratings(reader.folder, number) else None
    (row,) = reader.sql(
        "SELECT avg(mean) AS mean FROM candidates WHERE iteration = ? AND stage = 'tasks' AND status = 'accepted'",
        [number],
    )
    curves = {stage: {line.name: line.values for line in lines} for stage, lines in found.curves.items()}
    ends: dict[Stage, dict[str, Any]] = {
        stage: {"steps": len(reader.metrics(number, stage))} for stage in curves
    }
    for stage, name in (
        *((Stage.CHALLENGER, name) for name in ("reward", "difficulty")),
        *((Stage.SOLVER, name) for name in ("reward", "rubric", "non_zero_advantage")),
    ):
        # Means over the first and last quarter of the steps, and the whole curve.
        values = curves[stage].get(name, ())
        first, last = first_and_last(values) or (None, None)
        curve = [round(value, 4) for value in values]
        ends[stage] |= {f"{name}_first": first, f"{name}_last": last, f"{name}_curve": curve}
    return {
        "iteration": number,
        "candidates": sum(found.reasons.values()),
        "rejected": rejected,
        "accepted": accepted,
        "mean_score": row["mean"],
        "challenger": ends[Stage.CHALLENGER],
        "solver": ends[Stage.SOLVER],
        "compare": ratings.ratings if ratings else {},
        "decision": {"decision": ratings.decision, "reason": ratings.reason} if ratings else {},
        "judge": found.judge,
        "seconds": found.seconds,
        "target": config.tasks.target if (number, Stage.TASKS) in stages_of(config) else None,
        "solver_steps": config.solver.steps,
    }


def judge_checks(folder: RunFolder, played: People | None) -> dict[str, Estimate]:
    """Of a run: its canaries, its audit, and the people who judged; {} where there is none of them."""
    found = canary_shares(read_canaries(folder))
    if (report := read_audit(folder)) is not None:
        found |= report.checks
    for row in played.agreement if played else ():
        kappa = "" if row.kappa is None else f"kappa {shown(row.kappa)}"
        alone = f"judge alone yes {row.judge_alone}, person alone yes {row.person_alone}"
        found[f"agree with people: {row.name}"] = Estimate(
            value=row.agreed / row.questions,
            low=None,
            high=None,
            items=row.questions,
            note=", ".join(filter(None, (kappa, alone))),
        )
    return found


def _iteration(reader: RunReader, iteration: int) -> IterationOverview:
    ruling, reasons = "", Counter[str]()
    for count in reader.funnel():
        if (count.iteration, count.stage) == (iteration, Stage.TASKS):
            reasons[count.reason.value] += count.count
    if iteration and has_ratings(reader.folder, iteration):
        ratings = read_ratings(reader.folder, iteration)
        ruling = f"{ratings.decision}: {ratings.reason}" if ratings.reason else ratings.decision
    return IterationOverview(
        iteration=iteration,
        funnel=_funnel(reader, iteration),
        reasons=dict(reasons.most_common()),
        histogram=_histogram(reader, iteration),
        by_type=_groups(reader, iteration, "task.type"),
        by_search_turns=_groups(reader, iteration, "task.search_turns"),
        curves={
            stage: tuple(_curves(reader, iteration, stage)) for stage in (Stage.CHALLENGER, Stage.SOLVER)
        },
        seconds=_seconds(reader, iteration),
        judge=_judge(reader, iteration),
        ruling=ruling,
    )


def _curves(reader: RunReader, iteration: int, stage: Stage) -> list[Line]:
    """Every number that the steps of a training logged, in the order in which they first appear."""
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    for number, row in enumerate(reader.metrics(iteration, stage), start=1):
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                steps.setdefault(name, []).append(int(row.get("step", number)))
                values.setdefault(name, []).append(float(value))
    return [Line(name, tuple(steps[name]), tuple(values[name])) for name in steps]


def _seconds(reader: RunReader, iteration: int) -> dict[str, float]:
    """How long each finished stage of an iteration took, in the order of the loop."""
    return {
        stage.value: manifest.seconds
        for (number, stage), manifest in reader.stages().items()
        if number == iteration and manifest
    }


def _judge(reader: RunReader, iteration: int) -> dict[str, int]:
    accounts = [read_account(reader.folder.stage(iteration, stage).path) for stage in Stage]
    return {name: sum(getattr(each, name) for each in accounts) for name in ("calls", "unreadable", "failed")}


def _funnel(reader: RunReader, iteration: int) -> dict[str, int]:
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
    return row if row["documents"] else {}


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
