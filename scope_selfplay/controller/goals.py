"""What a controller is to bring about, and what of it is done: the steps of a run against the volume. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scope_selfplay.config import RunConfig
from scope_selfplay.controller.draft import RunEnd
from scope_selfplay.controller.manifests import ManifestContext
from scope_selfplay.controller.names import RunStep
from scope_selfplay.store.folders import stages_of


class Markers(NamedTuple):
    """What the volume says; `promoted[t]` and `stops[t]` are known for every compared iteration t."""

    done: frozenset[RunStep]
    promoted: tuple[bool, ...]
    stops: tuple[str, ...] = ()
    """Why the comparison of iteration t ends the run; empty where it does not."""


@dataclass(frozen=True)
class Desired:
    author: ManifestContext
    steps: tuple[RunStep, ...]
    """What this controller brings about, in order."""
    before: tuple[RunStep, ...] = ()
    """What must be done already."""
    edited: tuple[str, ...] = ()
    """Settings that changed since the run began, and `prompts`."""
    problem: RunEnd | None = None
    """What the API server or the volume refused for good."""


def steps_of(config: RunConfig) -> tuple[RunStep, ...]:
    """Every stage of a run, in order."""
    return tuple(RunStep(iteration, stage) for iteration, stage in stages_of(config))


def desired(
    author: ManifestContext,
    *,
    only_iteration: int | None = None,
    edited: Sequence[str] = (),
    problem: RunEnd | None = None,
) -> Desired:
    """The whole run, or one iteration of it; iteration 1 brings the held-out tasks along."""
    steps = steps_of(author.config)
    if only_iteration is None:
        return Desired(author, steps, (), tuple(edited), problem)
    first = 0 if only_iteration == 1 else only_iteration
    own = tuple(step for step in steps if first <= step.iteration <= only_iteration)
    before = tuple(step for step in steps if step.iteration < first)
    return Desired(author, own, before, tuple(edited), problem)


class Stop(NamedTuple):
    iteration: int
    message: str


def stop_of(config: RunConfig, markers: Markers) -> Stop | None:
    """Where a comparison ended the run; not where the settings have been changed to go on all the same."""
    if config.compare.stop == "never" and config.compare.patience is None:
        return None
    for iteration, reason in enumerate(markers.stops):
        if reason:
            return Stop(iteration, f"stopped after iteration {iteration}: {reason}")
    return None
