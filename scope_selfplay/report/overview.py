"""What a run came to: the sections that a terminal, a page and the saved report show, and what `summary.json` holds.

    with RunReader(path) as reader:
        run_sections(reader, examine(reader))     # held-out tasks, every iteration, people, the judge, health

From a run's folder alone, finished or running; what was not measured is absent and never zero.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Any

from pydantic import Field

from scope_selfplay.base.intervals import Estimate, shown
from scope_selfplay.base.terminal import Table, first_and_last, scope_command
from scope_selfplay.base.text import one_line
from scope_selfplay.base.values import Reason, Value
from scope_selfplay.judge.account import read_account
from scope_selfplay.report.glance import ended_as, going_on
from scope_selfplay.report.health import examine
from scope_selfplay.report.judge import judged_sections
from scope_selfplay.report.record import checkpoint_names, short_name, task_changes
from scope_selfplay.report.sections import Bar, Figure, Folded, Line, Link, Part, Section
from scope_selfplay.report.signals import BOUNDS, Bounds, Checkup, Evidence, Signal, cut
from scope_selfplay.run.run import Run
from scope_selfplay.run.schedule import stages_of
from scope_selfplay.store.card import judge_noise
from scope_selfplay.store.folder import Stage
from scope_selfplay.store.ratings import (
    KeptSolver,
    MeanScore,
    find_ratings,
    kept_solver,
    read_fork,
    read_ratings,
    shared_words,
)
from scope_selfplay.store.reader import RunReader

_BINS = 10
_ROW = 74
"""Letters of a text in one row of a terminal of 80 columns, behind a margin and before the dots of what was cut."""
_FEW = 4
"""Solvers that the end of a run shows beside S_0: all of it fits a screen."""
_NOT_COMPARED = "No checkpoint has been compared yet."
_FIRST_CURVES = "reward difficulty rubric non_zero_advantage mean_score format search kl entropy".split()
"""What a reader of a training wants to see first; the rest follows as it was logged."""


def run_sections(reader: RunReader, checkups: Sequence[Checkup] | None) -> list[Section]:
    """`checkups` is None while they are measured. Raises RecordError for a damaged file."""
    measured = [*recorded_sections(reader), *judged_sections(reader), health_section(checkups)]
    return [*measured, *training_sections(reader)]


def recorded_sections(reader: RunReader) -> list[Section]:
    """What the stages recorded: where the run is from, held-out tasks, every iteration."""
    origin = reader.sql(
        "SELECT DISTINCT provenance.config_hash AS config, provenance.prompt_hash AS prompts FROM candidates "
        # Held-out tasks that were given have neither.
        "WHERE provenance.config_hash <> ''"
    )
    hashes = origin[0] if len(origin) == 1 else {"config": "", "prompts": ""}
    facts = [f"config {hashes['config'] or 'several'}, prompts {hashes['prompts'] or 'several'}"]
    if fork := read_fork(reader.folder):
        words = shared_words(fork)
        facts.append(f"{words[:1].upper()}{words[1:]}.")
    if noise := judge_noise(reader.folder):
        facts.append(f"The judge errs on purpose: {noise}; scores are by such verdicts (judge.noise).")
    unfinished = [
        f"iteration {number} {stage}" for (number, stage), done in reader.stages().items() if not done
    ]
    if unfinished:
        facts.append(f"Not finished: {', '.join(unfinished)}.")
    title = f"Run {reader.settings.get('name', reader.folder.path.name)}"
    iterations = (_iteration(reader, number) for number in reader.iterations())
    return [Section(title, facts), _held_out(reader), *(each for each in iterations if each.parts)]


def _held_out(reader: RunReader) -> Section:
    kept, rows = kept_solver(reader.folder), []
    # Those of the newest comparison cover all checkpoints.
    ratings = read_ratings(reader.folder, kept.ruled_in) if kept else None
    if kept is None or ratings is None or not ratings.held_out:
        return Section("Held-out tasks", [_NOT_COMPARED])
    names = [*dict.fromkeys(chain.from_iterable(ratings.held_out.values()))]
    for solver, groups in ratings.held_out.items():
        whole, rating = groups.get("all"), ratings.ratings.get(solver)
        interval = ratings.intervals.get(solver)
        rows.append(
            (
                solver + (" (kept)" if kept.solver == solver else ""),
                *(shown(groups.get(name)) for name in names),
                f"{whole.items:,}" if whole else "",
                Bar(whole.value) if whole else "",
                "" if rating is None else f"{rating:.3f}",
                "[{:.3f}, {:.3f}]".format(*interval) if interval else "",
            )
        )
    head = ("Solver", *names, "tasks", "", "rating", "in units of the judge's margin")
    said = f"Kept: {kept.words} ({kept.checkpoint or 'the base model'}, best/)"
    title = "Held-out tasks: mean share of the rubric met, 95 % interval"
    return Section(title, [Table("", head, tuple(rows)), said])


def _iteration(reader: RunReader, number: int) -> Section:
    """Task making of one iteration, and the stages around it. Iteration 0 holds the held-out tasks."""
    parts: list[Part] = [*_task_making(reader, number)]
    took = [(f"seconds of {stage}", f"{seconds:,.0f}") for stage, seconds in _seconds(reader, number).items()]
    judge = _judge(reader, number)
    if judge["calls"]:
        took.append(("verdicts of the judge", f"{judge['calls']:,}, {judge['failed']:,} failed"))
    if took:
        parts.append(Table("Its stages", ("", ""), tuple(took)))
    if parts and number and (ratings := find_ratings(reader.folder, number)):
        parts.append(f"Ruling: {': '.join(filter(None, (ratings.decision, ratings.reason)))}")
    return Section(f"Iteration {number}{' (held-out tasks)' if number == 0 else ''}", parts)


def _task_making(reader: RunReader, number: int) -> Iterator[Table]:
    (funnel,) = reader.sql(
        'SELECT count(*) AS documents, count(task) AS "tasks written", '
        "count(*) FILTER (rubric IS NOT NULL OR reason = 'rubric') AS \"passed the gates\", "
        "count(rubric) FILTER (reason <> 'ungrounded') AS \"have a rubric\", "
        'count(mean) AS "tried by the Solver", '
        "count(*) FILTER (status = 'accepted') AS kept FROM candidates WHERE iteration = ? AND stage = 'tasks'",
        [number],
    )
    if not funnel["documents"]:
        return
    if number == 0:
        # Held-out tasks are not filtered by difficulty.
        del funnel["tried by the Solver"]
    steps = [(name, f"{count:,}", Bar(count / funnel["documents"])) for name, count in funnel.items()]
    yield Table("From document to task", ("", "", ""), tuple(steps))
    ended = ended_as(reader, [number]).most_common()
    reasons = [(Link(name, "tasks", iteration=number, reason=name), f"{count:,}") for name, count in ended]
    yield Table("Ended as", ("", "candidates"), tuple(reasons))
    # In equal bins from 0 to 1; the last includes 1.
    bins = reader.sql(
        "SELECT least(floor(mean * $1 + 1e-9), $1 - 1)::INTEGER AS bin, count(*) AS count FROM candidates "
        "WHERE iteration = $2 AND stage = 'tasks' AND mean IS NOT NULL GROUP BY bin",
        [_BINS, number],
    )
    if counts := {row["bin"]: row["count"] for row in bins}:
        rows = []
        for row in range(_BINS):
            low, high, count = row / _BINS, (row + 1) / _BINS, counts.get(row, 0)
            below = high if row < _BINS - 1 else None
            name = Link(f"{low:.1f}-{high:.1f}", "tasks", iteration=number, low=low, below=below)
            rows.append((name, f"{count:,}", Bar(count / max(counts.values()))))
        yield Table("Tried tasks by mean score", ("mean score", "tasks", ""), tuple(rows))
    if groups := [*_groups(reader, number, "type"), *_groups(reader, number, "search_turns")]:
        yield Table("By task type and searches made", ("", "kept", "of", "mean score"), tuple(groups))


def _groups(reader: RunReader, number: int, field: str) -> Iterator[tuple[str, ...]]:
    """Candidates that have something in common; their mean score is over those that were tried."""
    rows = reader.sql(
        f"SELECT task.{field}::VARCHAR AS name, count(*) AS candidates, "
        "count(*) FILTER (status = 'accepted') AS accepted, avg(mean) AS mean FROM candidates "
        "WHERE iteration = ? AND stage = 'tasks' AND task IS NOT NULL GROUP BY name ORDER BY name",
        [number],
    )
    for row in rows:
        name = words = row["name"]
        if field == "search_turns":
            words = f"{name} search{'' if name == '1' else 'es'}"
        asked = {"type" if field == "type" else "searches": name}
        score = "" if row["mean"] is None else f"{row['mean']:.3f}"
        link = Link(words, "tasks", iteration=number, **asked)
        yield link, f"{row['accepted']:,}", f"{row['candidates']:,}", score


def _seconds(reader: RunReader, number: int) -> dict[str, float]:
    """How long each finished stage of an iteration took, in the order of the loop."""
    stages = reader.stages().items()
    return {stage.value: done.seconds for (iteration, stage), done in stages if iteration == number and done}


def _judge(reader: RunReader, number: int) -> dict[str, int]:
    """The account of an iteration's finished stages."""
    accounts = [read_account(reader.folder.stage(number, stage).path) for stage in Stage]
    return {name: sum(getattr(each, name) for each in accounts) for name in ("calls", "unreadable", "failed")}


def health_section(checkups: Sequence[Checkup] | None) -> Section:
    """What is warned of, with the tasks behind it; then every signal, `!` where it warns."""
    if not checkups:
        said = "nothing to measure before iteration 1 has made tasks"
        return Section(f"Health: {'being measured' if checkups is None else said}", [])
    parts: list[Part] = []
    for number, found in ((checkup.iteration, found) for checkup in checkups for found in checkup.warnings):
        lines: list[str] = []
        for task in found.behind:
            place = ("tasks", task.iteration, "tasks") if task.iteration else ("compare",)
            lines.append(Link(f"{task.task_id}  {task.task}", *place, task.task_id))
            lines += [f"  {task.shown}"] if task.shown else []
        parts.append(Folded(f"Iteration {number}: {found.warning}", tuple(lines), is_warning=True))
    rows = [
        (bounds.title, *map(_value, signals), bounds.unit, _healthy(bounds))
        for bounds, *signals in zip(BOUNDS.values(), *(checkup.signals for checkup in checkups), strict=True)
        if any(signal.value is not None for signal in signals)
    ]
    numbers = [f"iteration {checkup.iteration}" for checkup in checkups]
    costs = [
        (name, *(f"{checkup.costs[name]:,.3g}" if name in checkup.costs else "" for checkup in checkups))
        for name in dict.fromkeys(name for checkup in checkups for name in checkup.costs)
    ]
    title = f"Health: {len(parts) or 'no'} warning{'' if len(parts) == 1 else 's'}"
    parts.append(Table("Every signal", ("signal", *numbers, "unit", "healthy"), tuple(rows)))
    return Section(title, [*parts, Table("What it took", ("", *numbers), tuple(costs))] if costs else parts)


def _value(signal: Signal) -> str:
    if signal.value is None:
        return ""
    return f"{signal.value:.3f} {signal.verdict}{' !' if signal.warning else ''}"


def _healthy(bounds: Bounds) -> str:
    match bounds.low, bounds.high:
        case low, None:
            return f"at least {low:g}"
        case None, high:
            return f"at most {high:g}"
        case low, high:
            return f"{low:g} to {high:g}"


def training_sections(reader: RunReader) -> list[Section]:
    """Curves of every iteration over each other, and how the checkpoints met."""
    found, kept = [], kept_solver(reader.folder)
    if kept and (ratings := read_ratings(reader.folder, kept.ruled_in)).edges:
        edges = [
            (
                Link(f"{edge.newer} against {edge.older}", "compare", a=edge.older, b=edge.newer),
                *(f"{count:,}" for count in (edge.wins, edge.ties, edge.losses, edge.equal, edge.failed)),
                "" if edge.mean_margin is None else f"{edge.mean_margin:.3f}",
            )
            for edge in ratings.edges
        ]
        head = ("", "wins", "ties", "losses", "equal answers", "no verdict", "mean margin")
        found.append(Section(f"Comparisons up to iteration {kept.ruled_in}", [Table("", head, tuple(edges))]))
    for stage in (Stage.CHALLENGER, Stage.SOLVER):
        curves: dict[str, list[Line]] = {}
        for number in reader.iterations():
            for name, values in _curves(reader, number, stage).items():
                if len(values) > 1:
                    curves.setdefault(name, []).append(
                        Line(f"iteration {number}", [*values], [*values.values()])
                    )
        names = sorted(curves, key=lambda name: (*_FIRST_CURVES, name).index(name))
        figures = [Figure(name, tuple(curves[name]), name in _FIRST_CURVES) for name in names]
        if figures:
            found.append(Section(f"Training of the {stage.capitalize()}", figures))
    return found or [Section("Training", ["No curve has two points yet."])]


def _curves(reader: RunReader, number: int, stage: Stage) -> dict[str, dict[int, float]]:
    """Every number that the steps of a training logged, by step, in the order in which they first appear."""
    found: dict[str, dict[int, float]] = {}
    for place, row in enumerate(reader.metrics(number, stage), start=1):
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(name, {})[int(row.get("step", place))] = float(value)
    return found


def ending_sections(run: Run, reader: RunReader, gpus: str | None = None) -> list[Section]:
    """What a person reads when `scope run` ends, in less than a screen: what became of the run, one held-out task, and
    what to do next with it.
    """
    folder, kept = run.folder, kept_solver(run.folder)
    last = kept.ruled_in if kept else 0
    held_out = read_ratings(folder, last).held_out if kept else {}
    origin, *_ = recorded_sections(reader)
    health, found = health_section(examine(reader))
    # With the first task behind each.
    warnings = [
        Folded(each.title, tuple(cut(line, _ROW - 2) for line in each.lines[:1]))
        for each in found
        if isinstance(each, Folded)
    ]
    example = _example(reader, list(held_out)) if len(warnings) < 2 else []
    scope, place = scope_command(), shlex.quote(str(folder.path))
    again, why = going_on(run.config, folder, last, has_stopped=bool(last and run.stop_reason(last)))
    following = [
        (again + (f" --gpus {gpus}" if gpus else ""), why),
        *([(f"{scope} view {place}", "all of it in the browser")] if find_spec("starlette") else []),
        (f"{scope} tasks ls {place} --status accepted", "the tasks that were kept"),
        (f"{scope} report {place}", "all numbers, and why"),
    ]
    return [
        *([origin] if origin.parts[1:] else []),
        _solvers(reader, kept, held_out),
        Section(health, warnings[-2:]),
        *([Section("One held-out task", example)] if example else []),
        Section("What next", [Table("", ("", ""), tuple(following))]),
    ]


def _solvers(
    reader: RunReader, kept: KeptSolver | None, held_out: Mapping[str, Mapping[str, Estimate]]
) -> Section:
    """A row a Solver, with how many of its iteration's candidates became tasks; of many the first and the last ones."""
    rows = []
    for number, (solver, groups) in enumerate(held_out.items()):
        if kept and (number == 0 or number > len(held_out) - _FEW or solver == kept.solver):
            whole, ended = groups.get("all"), ended_as(reader, [number])
            made = f"{ended[Reason.ACCEPTED.value]:,} of {ended.total():,}" if number else ""
            name = solver + (" (kept)" if kept.solver == solver else "")
            rows.append((name, shown(whole), made, Bar(whole.value) if whole else ""))
    counts = {groups["all"].items for groups in held_out.values() if "all" in groups}
    title = f"Share of the rubric met on {max(counts, default=0):,} held-out tasks, 95 % interval"
    return Section(title, [Table("", ("", "", "tasks made", ""), tuple(rows)) if rows else _NOT_COMPARED])


def _example(reader: RunReader, names: Sequence[str]) -> list[Part]:
    """A held-out task, and what the first and the last Solver said to it: the one whose score changed most."""
    scores = reader.scores()
    if len(names) < 2 or not {names[0], names[-1]} <= {*checkpoint_names(scores)}:
        return []
    changes = task_changes(reader, scores, names[0], names[-1])
    if not changes:
        return []
    told = max(changes, key=lambda change: abs(change.gain or 0.0))
    answers = {
        short_name(attempt.rollout.checkpoint): attempt.rollout.answer
        for attempt in reader.attempts_on(told.task_id)
        if attempt.stage is Stage.COMPARE
    }
    parts: list[Part] = [cut(one_line(told.text), 2 * _ROW)]
    for name, score in ((names[0], told.before), (names[-1], told.after)):
        met = "not graded" if score is None else f"{score:.2f}"
        parts.append(cut(f"{name} ({met}): {one_line(answers.get(name) or 'no answer')}", _ROW))
    return parts


class IterationSummary(Value):
    """An iteration: what came of it, and what it was to reach, tasks to accept and steps of the Solver.

    `challenger` and `solver`: of each curve the means over the first and last quarter of the steps, and the curve.
    """

    iteration: int
    candidates: int
    rejected: dict[str, int]
    accepted: int
    mean_score: float | None
    challenger: dict[str, int | float | tuple[float, ...] | None]
    solver: dict[str, int | float | tuple[float, ...] | None]
    compare: dict[str, float]
    decision: dict[str, str]
    judge: dict[str, int]
    seconds: dict[str, float]
    target: int | None
    solver_steps: int


class HeldOutMean(Value):
    mean_score: float
    low: float | None
    high: float | None
    tasks: int
    groups: dict[str, MeanScore]


class HealthWarning(Value):
    iteration: int
    signal: str
    text: str
    behind: tuple[Evidence, ...]


class Summary(Value):
    """`summary.json`: the funnel, reward curves and comparison of each iteration, the held-out table in the order
    S_0, S_1, ..., and what health warns of, with the tasks behind it.
    """

    run: str
    config_hash: str
    prompt_hash: str
    iterations: tuple[IterationSummary, ...]
    held_out: dict[str, HeldOutMean]
    kept: KeptSolver | None = Field(exclude_if=lambda kept: kept is None)
    judge_noise: str | None = Field(exclude_if=lambda noise: noise is None)
    warnings: tuple[HealthWarning, ...]
    shared: dict[str, str | int] | None = Field(exclude_if=lambda shared: shared is None)


def summarise(run: Run) -> dict[str, Any]:
    """What `summary.json` holds."""
    fork, noise = read_fork(run.folder), run.config.judge.noise
    with RunReader(run.folder.path) as reader:
        compared = [
            number for (number, stage), end in reader.stages().items() if end and stage is Stage.COMPARE
        ]
        done = [number for number in compared if 1 <= number <= run.config.iterations]
        iterations = [_summary_of(reader, run, number) for number in done]
        warnings = [
            HealthWarning(
                iteration=checkup.iteration, signal=found.name, text=found.warning, behind=found.behind
            )
            for checkup in examine(reader)
            if checkup.iteration in done
            for found in checkup.warnings
        ]
    ratings = find_ratings(run.folder, max([0, *done]))
    held_out = ratings.model_dump()["held_out"] if ratings else {}
    summary = Summary(
        run=run.config.name,
        config_hash=run.config.hash,
        prompt_hash=run.pack.hash,
        iterations=tuple(iterations),
        held_out={
            name: HeldOutMean(**groups["all"], groups=groups)
            for name, groups in held_out.items()
            if "all" in groups
        },
        kept=kept_solver(run.folder),
        judge_noise=noise.description if noise else None,
        warnings=tuple(warnings),
        shared={"run": fork.run, "after": fork.after} if fork else None,
    )
    return summary.model_dump(mode="json")


def _summary_of(reader: RunReader, run: Run, number: int) -> IterationSummary:
    rejected = ended_as(reader, [number])
    candidates, accepted = rejected.total(), rejected.pop(Reason.ACCEPTED, 0)
    ratings = find_ratings(reader.folder, number)
    (row,) = reader.sql(
        "SELECT avg(mean) AS mean FROM candidates WHERE iteration = ? AND stage = 'tasks' AND status = 'accepted'",
        [number],
    )
    return IterationSummary(
        iteration=number,
        candidates=candidates,
        rejected=dict(rejected.most_common()),
        accepted=accepted,
        mean_score=row["mean"],
        challenger=_ends(reader, number, Stage.CHALLENGER, "reward", "difficulty"),
        solver=_ends(reader, number, Stage.SOLVER, "reward", "rubric", "non_zero_advantage"),
        compare=ratings.ratings if ratings else {},
        decision={"decision": ratings.decision, "reason": ratings.reason} if ratings else {},
        judge=_judge(reader, number),
        seconds=_seconds(reader, number),
        target=run.config.tasks.target if (number, Stage.TASKS) in stages_of(run.config) else None,
        solver_steps=run.config.solver.steps,
    )


def _ends(reader: RunReader, number: int, stage: Stage, *names: str) -> dict[str, Any]:
    found: dict[str, Any] = {"steps": len(reader.metrics(number, stage))}
    curves = _curves(reader, number, stage)
    for name in names:
        values = [*curves.get(name, {}).values()]
        first, last = first_and_last(values) or (None, None)
        found |= {f"{name}_first": first, f"{name}_last": last}
        found[f"{name}_curve"] = [round(value, 4) for value in values]
    return found
