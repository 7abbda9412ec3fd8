"""A plan as text for a terminal, and as data."""

from collections.abc import Iterator, Sequence

from scope_selfplay.planning.memory import Parts, PodMemory
from scope_selfplay.planning.plan import ResourcePlan, StagePlan
from scope_selfplay.planning.retrieval import RetrievalPlan

_COUNTS = ("prompts", "challenger_rollouts", "solver_rollouts", "judge_calls", "tokens")
_HOURS = ("generate_hours", "judge_hours", "train_hours")
_DISK = ("disk_gib", "kept_gib")
_SMALL_COUNTS = _COUNTS[:-1]
_COUNTED_BY = ("acceptance", "gates_passed", "criteria", "flat_share")
"""The assumptions behind counts, without tokens."""
_LEAST_GIB = 0.5


def as_data(plan: ResourcePlan) -> dict[str, object]:
    return {
        "model": {name: value for name, value in plan.model._asdict().items() if name != "shape"}
        | {"shape": plan.model.shape._asdict()},
        "gpus": plan.gpus,
        "iterations": plan.iterations,
        "once": [stage._asdict() for stage in plan.once],
        "stages": [stage._asdict() for stage in plan.stages],
        "iteration": {name: plan.total(name) for name in (*_COUNTS, *_HOURS)},
        "gpu_hours": plan.gpu_hours,
        "volume_gib": plan.volume_gib,
        "retrieval": plan.retrieval._asdict() if plan.retrieval else None,
        "pods": [pod._asdict() for pod in plan.pods],
        "assumptions": plan.assumptions._asdict(),
    }


def as_text(plan: ResourcePlan) -> str:
    """A small model has no GPUs to speak of: its plan is what is made and asked."""
    assumed = plan.assumptions._asdict()
    if plan.is_small:
        size, beside = f"{plan.model.parameters / 1e6:.1f} million parameters", ""
        assumed = {name: assumed[name] for name in _COUNTED_BY}
    else:
        size, beside = f"{plan.model.parameters / 1e9:.2f} billion parameters", f", {plan.gpus} GPUs"
    lines = [
        f"{size} (from {plan.model.found}), one of {plan.iterations} iterations{beside}",
        "",
        *_columns(_stage_rows(plan)),
        "",
        *(() if plan.is_small else _of_gpus(plan)),
        "assumed: " + ", ".join(f"{name}={value:g}" for name, value in assumed.items()),
    ]
    return "\n".join(lines)


def _of_gpus(plan: ResourcePlan) -> Iterator[str]:
    yield (
        f"GPU hours of the run, busy: {plan.gpu_hours:,.0f} (an estimate, nothing of it was measured); "
        f"disk: {plan.volume_gib:,.0f} GiB at most"
    )
    if plan.retrieval is not None:
        yield from _retrieval(plan.retrieval)
    yield ""
    yield from _columns(_pod_rows(plan))
    yield ""
    for pod in plan.pods:
        yield from _pod_details(pod)
    yield ""


def _retrieval(found: RetrievalPlan) -> Iterator[str]:
    yield (
        f"retriever: encoding {found.passages:,} passages once: {found.encode_hours:,.1f} h by {found.encoded_by} "
        f"({found.core_hours:,.0f} core-hours on CPUs)"
    )
    yield (
        f"  {found.searches:,} searches in a step of the Solver: {found.search_seconds:,.0f} s on "
        f"{found.search_cpus:g} CPUs; the server needs {found.memory_gib:,.0f} of the {found.requested_gib:,.0f} GiB "
        "that it has" + (" (too little)" if found.is_short else "")
    )


def _stage_rows(plan: ResourcePlan) -> list[tuple[str, ...]]:
    columns = _SMALL_COUNTS if plan.is_small else (*_COUNTS, *_HOURS, *_DISK)
    rows = [("stage", *(name.replace("_", " ").replace("gib", "GiB") for name in columns))]
    rows += [_stage_row(f"{stage.stage.value} (once)", stage, columns) for stage in plan.once]
    rows += [_stage_row(_name(stage, plan.iterations), stage, columns) for stage in plan.stages]
    totals = {name: plan.total(name) for name in columns}
    # Stages follow one another, and one at a time is at work.
    totals["disk_gib"] = max(stage.disk_gib for stage in plan.stages)
    return [*rows, ("iteration", *(_cell(name, totals[name]) for name in columns))]


def _name(stage: StagePlan, iterations: int) -> str:
    return stage.stage.value + (f" ({stage.times} of {iterations})" if stage.times < iterations else "")


def _stage_row(name: str, stage: StagePlan, columns: Sequence[str]) -> tuple[str, ...]:
    return (name, *(_cell(column, getattr(stage, column)) for column in columns))


def _cell(column: str, value: float) -> str:
    return f"{value:,.1f}" if column in _HOURS else f"{value:,.0f}"


def _pod_rows(plan: ResourcePlan) -> list[tuple[str, ...]]:
    heads = ("pod", "GPUs", "GiB a GPU", "most while", "", "GiB of host", "of", "")
    pods = [
        (
            pod.pod,
            _gpus(pod),
            f"{pod.gib:.0f}",
            pod.peak,
            "fits" if pod.fits else "DOES NOT FIT",
            f"{pod.host_gib:.0f}",
            f"{pod.requested:.0f}",
            "fits" if pod.host_fits else "DOES NOT FIT",
        )
        for pod in plan.pods
    ]
    return [heads, *pods]


def _pod_details(pod: PodMemory) -> Iterator[str]:
    yield f"{pod.pod} on {_gpus(pod)} GPU(s): {_shown(pod.parts)}; host: {_shown(pod.host_parts)}" + (
        f"; {pod.advice}" if pod.advice else ""
    )


def _gpus(pod: PodMemory) -> str:
    return f"{pod.nodes} x {pod.gpus}" if pod.nodes > 1 else str(pod.gpus)


def _shown(parts: Parts) -> str:
    return ", ".join(f"{name} {gib:.0f}" for name, gib in parts.items() if gib >= _LEAST_GIB)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
