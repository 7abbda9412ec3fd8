"""`scope tasks stats`: the overview of a run as lines; the same numbers that the report and the web page show."""

from collections.abc import Iterator, Sequence

from scope_selfplay.health import Checkup, Signal
from scope_selfplay.inspection.overview import IterationOverview, Overview, TaskGroup
from scope_selfplay.inspection.text import printable

_BAR = 30


def describe(page: Overview) -> Iterator[str]:
    """Iteration by iteration, then the held-out table, then what health warns of."""
    yield f"run {page.run}  config {page.config_hash or 'several'}  prompts {page.prompt_hash or 'several'}"
    checkups = {checkup.iteration: checkup for checkup in page.health}
    for iteration in page.iterations:
        yield from _iteration(iteration)
        if iteration.iteration in checkups:
            yield from _health(checkups[iteration.iteration])
    if page.held_out:
        yield "\n== Held-out tasks: mean share of the rubric met, 95 % interval"
        for each in page.held_out:
            rating = "" if each.rating is None else f"  rating {each.rating:.3f}"
            interval = f"[{each.low:.3f}, {each.high:.3f}]"
            yield f"  {each.checkpoint:8} {each.mean_score:.3f} {interval} over {each.tasks} tasks{rating}"
    warnings = [(checkup.iteration, text) for checkup in page.health for text in checkup.warnings]
    if warnings:
        yield "\n== Warnings"
        yield from (f"  iteration {iteration}: {text}" for iteration, text in warnings)


def _iteration(found: IterationOverview) -> Iterator[str]:
    held_out = " (held-out tasks)" if found.iteration == 0 else ""
    if not found.funnel:
        return
    yield f"\n== Iteration {found.iteration}{held_out}"
    most = max(step.count for step in found.funnel)
    for step in found.funnel:
        yield f"  {step.name:22} {step.count:>9,}  {_bar(step.count, most)}"
    ended = ", ".join(f"{reason} {count:,}" for reason, count in found.reasons.items())
    yield f"  ended as: {ended}"
    if found.histogram:
        yield "  tried tasks by mean score:"
        most = max(found.histogram)
        for number, count in enumerate(found.histogram):
            low, high = number / len(found.histogram), (number + 1) / len(found.histogram)
            yield f"    {low:.1f}-{high:.1f} {count:>9,}  {_bar(count, most)}"
    yield from _groups("by type", found.by_type)
    yield from _groups("by search turns", found.by_search_turns)


def _groups(title: str, groups: Sequence[TaskGroup]) -> Iterator[str]:
    if not groups:
        return
    yield f"  {title}:"
    for group in groups:
        score = "" if group.mean_score is None else f", mean score {group.mean_score:.3f}"
        yield f"    {printable(group.name):20} {group.accepted:,} of {group.candidates:,} kept{score}"


def _health(checkup: Checkup) -> Iterator[str]:
    yield "  health:"
    for signal in checkup.signals:
        if signal.value is not None:
            mark = "!" if signal.warning else " "
            yield f"   {mark}{signal.title:48} {signal.value:>10.3f} {signal.unit:6} {_bounds(signal)}".rstrip()


def _bounds(signal: Signal) -> str:
    """Where the signal is healthy; "" where nothing is known to be unhealthy."""
    match signal.low, signal.high:
        case None, None:
            return ""
        case low, None:
            return f"at least {low:g}"
        case None, high:
            return f"at most {high:g}"
        case low, high:
            return f"{low:g} to {high:g}"


def _bar(count: int, most: int) -> str:
    return "#" * round(_BAR * count / most) if most else ""
