"""What the Solver of an iteration trains on: the tasks, their order over the steps, and how many steps they last."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

from scope_selfplay.config import RunConfig, SolverConfig
from scope_selfplay.given_tasks import check_references, read_given_tasks
from scope_selfplay.keys import rng_from
from scope_selfplay.run import Run
from scope_selfplay.stages.stage_runner import accepted_in
from scope_selfplay.store import Stage
from scope_selfplay.training.solver import TaskWithRubric


@dataclass(frozen=True)
class SolverTasks:
    """`records` are the ids of the tasks, `settings.steps * settings.batch` of them in the order of training."""

    by_id: dict[str, TaskWithRubric]
    records: list[str]
    settings: SolverConfig


def tasks_to_train_on(run: Run, iteration: int) -> SolverTasks:
    """Given tasks go on where the last iteration ended; the Challenger's are new in every iteration."""
    settings = run.config.solver
    given = settings.tasks
    kept = read_given_tasks(given) if given else accepted_in(run.folder.stage(iteration, Stage.TASKS))
    check_references(settings, kept)
    tasks = {row.task.id: TaskWithRubric(row.task, row.rubric) for row in kept if row.task}
    names = list(tasks)
    if settings.routing is not None and settings.routing.by == "auto":
        verified = sum(each.task.reference is not None for each in tasks.values())
        run.progress.say(f"iteration {iteration}: {_routing_named(verified, len(tasks))}")
    if given:
        rows = settings.steps * settings.batch
        start = (iteration - 1) * rows
        run.progress.say(f"iteration {iteration}: {_passes_named(len(names), start, rows)}")
        order = given_order(names, seed=run.config.seed, batch=settings.batch)
        return SolverTasks(tasks, list(islice(order, start, start + rows)), settings)
    steps = steps_that_tasks_last(run.config, len(names))
    if steps < settings.steps:
        run.progress.say(
            f"iteration {iteration}: {len(names)} of {run.config.tasks.target} tasks last for {steps} steps of "
            f"{settings.batch}, not for solver.steps={settings.steps}; the Solver trains {steps} steps"
        )
    settings = settings.model_copy(update={"steps": steps})
    records = [names[row % len(names)] for row in range(steps * settings.batch)]
    return SolverTasks(tasks, records, settings)


def steps_that_tasks_last(config: RunConfig, accepted: int) -> int:
    """At most `solver.steps`; as many as repeat no task more often than the whole target would have been repeated.

    Where the target is steps * batch, as in the paper, these are the full batches.
    """
    solver, target = config.solver, config.tasks.target
    wanted = max(solver.steps * solver.batch, target)
    return max(1, min(solver.steps, accepted * wanted // (target * solver.batch)))


def given_order(names: Sequence[str], *, seed: int, batch: int) -> Iterator[str]:
    """Endless: every pass over the tasks is shuffled anew by the seed.

    A batch that ends one pass and begins the next has no task twice, if there are as many tasks as it has places.
    """
    begun: list[str] = []
    for number in count(1):
        shuffled = list(names)
        rng_from(seed, "given tasks", number).shuffle(shuffled)
        # A stable sort: what the begun batch has already comes last in this pass.
        for name in sorted(shuffled, key=begun.__contains__):
            yield name
            begun = [*begun, name] if len(begun) + 1 < batch else []


def _routing_named(verified: int, tasks: int) -> str:
    """What decides which groups go to `solver.reward`, where the tasks decide it, in words."""
    if verified == tasks:
        return f"groups are routed by the verifier: all {tasks:,} tasks have a reference answer"
    if not verified:
        return f"groups are routed by the rubric: none of {tasks:,} tasks has a reference answer"
    return (
        f"groups are routed by the verifier for {verified:,} tasks, which have a reference answer, and by the rubric "
        f"for the other {tasks - verified:,}"
    )


def _passes_named(tasks: int, start: int, rows: int) -> str:
    """Which part of which pass an iteration trains on, in words."""
    first, last = start // tasks + 1, (start + rows - 1) // tasks + 1
    begin, end = start % tasks + 1, (start + rows - 1) % tasks + 1
    if first == last:
        return f"tasks {begin:,} to {end:,} of {tasks:,} given ones, pass {first}"
    return (
        f"from task {begin:,} of pass {first} to task {end:,} of pass {last} over {tasks:,} given tasks; each pass is "
        "shuffled anew"
    )
