"""What a run will write, call and take, by its plan (`scope plan` has the details)."""

import shutil
from pathlib import Path

from scope_selfplay.config import RunConfig
from scope_selfplay.errors import ConfigError
from scope_selfplay.planning.assumptions import Assumptions
from scope_selfplay.planning.plan import ResourcePlan, make_plan
from scope_selfplay.preflight.checks import InputCheck, State


def check_estimate(config: RunConfig, gates: int, root: Path | None) -> list[InputCheck]:
    """Disk below `root`, where that is here; calls and hours."""
    try:
        plan = make_plan(config, gates=gates, assumptions=Assumptions())
    except ConfigError as error:
        return [InputCheck("calls and time", State.WARNING, f"not known ({error})", "see `scope plan`")]
    return [*([_disk(plan, root)] if root is not None else []), _calls(plan)]


def _disk(plan: ResourcePlan, root: Path) -> InputCheck:
    place = next(path for path in (root, *root.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free / 2**30
    found = f"{_gib(plan.volume_gib)} at most, {_gib(free)} free in {place}"
    if free >= plan.volume_gib:
        return InputCheck("disk", State.OK, found)
    advice = "make room, give another --root, or lower keep_checkpoints; `scope plan` shows it by stage"
    return InputCheck("disk", State.WARNING, found, advice, is_outside=True)


def _gib(number: float) -> str:
    return f"{number:,.0f} GiB" if number >= 10 else f"{number:.1f} GiB"


def _calls(plan: ResourcePlan) -> InputCheck:
    stages = (*plan.once, *plan.stages)
    rollouts = sum(stage.times * (stage.challenger_rollouts + stage.solver_rollouts) for stage in stages)
    calls = sum(stage.times * stage.judge_calls for stage in stages)
    found = f"about {rollouts:,} rollouts and {calls:,} judge calls"
    if not plan.is_small:
        found += f", {plan.gpu_hours:,.0f} GPU hours of an H100 (nothing of it was measured)"
    return InputCheck("calls and time", State.OK, found)
