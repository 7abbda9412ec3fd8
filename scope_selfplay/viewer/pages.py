"""The pages about a whole run: one function per page, from query parameters to a template's name and its values.

All of them only read.
"""

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from scope_selfplay.errors import PromptError
from scope_selfplay.inspection.charts import NamedInterval
from scope_selfplay.inspection.html_report import FIRST_CURVES, curves_of
from scope_selfplay.inspection.overview import bin_edges, newest_ratings
from scope_selfplay.inspection.people import people
from scope_selfplay.prompts import Pack, diff_packs, load_pack
from scope_selfplay.prompts.folder import names_in, shipped_prompts
from scope_selfplay.schemas import Reason
from scope_selfplay.store.folders import RunFolder, Stage
from scope_selfplay.store.query import TaskQuery
from scope_selfplay.store.ratings import Ratings
from scope_selfplay.viewer.parameters import BadParameterError, PackParameters, TaskListParameters
from scope_selfplay.viewer.shown_run import ShownRun


class Page:
    """The name of a template and the values that it shows."""

    def __init__(self, template: str, **values: Any) -> None:
        self.template, self.values = template, values


class PageNotFoundError(Exception):
    """A page about something that the run does not have; its text is one line for a person."""


def overview_page(run: ShownRun) -> Page:
    """Funnel, scores, task types, drift and health; the checkups may still be on their way."""
    # They are measured in a process of their own: the sooner they begin, the better.
    checkups = run.checkups()
    return Page(
        "overview.html",
        page=run.numbers(),
        # People's records are none of a stage's: no new record of the run says that there are more of them.
        people=people(run.reader),
        states=run.reader.stages(),
        checkups=checkups,
        edges=bin_edges,
        is_running=run.is_running,
    )


def list_page(run: ShownRun, given: Mapping[str, str]) -> Page:
    """One page of candidates."""
    parameters = TaskListParameters.read(given)
    reader = run.fresh()
    return Page(
        "tasks.html",
        parameters=parameters,
        found=reader.tasks(parameters.query),
        iterations=reader.iterations(),
        types=reader.task_types(),
    )


def rejected_page(run: ShownRun) -> Page:
    """What was thrown away and why: counts by iteration and reason, and the newest examples of every reason."""
    reader = run.fresh()
    counts = [count for count in reader.funnel() if count.stage is Stage.TASKS]
    counts = [count for count in counts if count.reason is not Reason.ACCEPTED]
    reasons = sorted({count.reason for count in counts}, key=list(Reason).index)
    return Page(
        "rejected.html",
        counts={(count.iteration, count.reason): count.count for count in counts},
        iterations=sorted({count.iteration for count in counts}),
        reasons=reasons,
        examples={
            reason: reader.tasks(TaskQuery(reason=reason, descending=True, limit=3)).lines
            for reason in reasons
        },
    )


def training_page(run: ShownRun) -> Page:
    """Curves of every iteration over each other, and the ratings of the checkpoints."""
    found = run.numbers()
    newest = newest_ratings(run.reader)
    rated = newest.ratings if newest else Ratings(promoted=False)
    return Page(
        "training.html",
        curves={stage: curves_of(found.iterations, stage) for stage in (Stage.CHALLENGER, Stage.SOLVER)},
        first=FIRST_CURVES,
        held_out=[
            NamedInterval(score.checkpoint, score.mean_score, score.low, score.high)
            for score in found.held_out
        ],
        newest=newest,
        ratings=[
            NamedInterval(name, rated.ratings[name], low, high)
            for name, (low, high) in rated.intervals.items()
        ],
        seconds={made.iteration: made.seconds for made in found.iterations if made.seconds},
    )


def prompts_page(run: ShownRun, given: Mapping[str, str]) -> Page:
    """The run's prompt pack, its hash in every iteration, and how it differs from another pack.

    Raises BadParameterError for a pack that is neither shipped nor of a run beside this one.
    """
    parameters = PackParameters.read(given)
    reader = run.fresh()
    packs = _known_packs(reader.folder)
    if parameters.against and parameters.against not in packs:
        known = ", ".join(packs)
        raise BadParameterError(f"against={parameters.against!r}: no such prompt pack; there are {known}")
    try:
        own: Pack | None = load_pack(reader.folder.prompts)
        diff = diff_packs(packs[parameters.against](), own) if parameters.against and own else None
        damage = ""
    except PromptError as error:
        own, diff, damage = None, None, str(error)
    hashes = reader.sql(
        "SELECT iteration, stage, provenance.prompt_hash AS hash, count(*) AS count FROM candidates "
        "GROUP BY ALL ORDER BY iteration, stage, hash"
    )
    differences = None if diff is None else diff.splitlines()
    values = {"pack": own, "damage": damage, "hashes": hashes, "packs": list(packs), "parameters": parameters}
    return Page("prompts.html", **values, diff=differences)


def _known_packs(folder: RunFolder) -> dict[str, Callable[[], Pack]]:
    """The packs that the run's own can be compared with, by name: never a path that came over HTTP.

    Shipped ones, and those of the runs in the same folder; what this process may not read is left out.
    """
    shipped = shipped_prompts()
    found: dict[str, Callable[[], Pack]] = {
        name: partial(load_pack, shipped / name) for name in names_in(shipped)
    }
    own = folder.path.resolve()
    with contextlib.suppress(OSError):
        for path in sorted(own.parent.iterdir()):
            beside = RunFolder(path)
            with contextlib.suppress(OSError):
                if path != own and beside.config.is_file() and beside.prompts.is_dir():
                    found[f"run {path.name}"] = partial(load_pack, beside.prompts)
    return found
