"""What an ablation found: a table and a chart per measure, beside what the paper says."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.ablations.arms import Arm
from benchmarks.ablations.measures import Measure, mean_of, point
from benchmarks.ablations.studies import Ablation
from benchmarks.line_chart import Point, draw_lines
from benchmarks.markdown import markdown, share

Key = tuple[int, int, str]
"""Seed, iteration, and what a value is about."""
Found = Mapping[Arm, Mapping[str, Mapping[Key, float]]]
"""By arm, then by the name of a measure."""

ACROSS = "share of the judge's calls that are spoilt"


def write_section(ablation: Ablation, found: Found, seeds: Sequence[int], folder: Path) -> str:
    """The ablation's part of the page; its charts are written to `folder`/images."""
    names = ", ".join(map(str, seeds))
    parts = [
        f"## {ablation.question}",
        f"The paper: {ablation.paper}",
        f"`make bench-ablations ARGS='--only {ablation.name}'`; seeds {names}.",
    ]
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for measure in ablation.measures:
        values = {arm: found[arm][measure.name] for arm in ablation.arms}
        image = f"images/ablation-{ablation.name}-{measure.name}.svg"
        (folder / image).write_text(_chart(ablation, measure, values), encoding="utf-8")
        parts += [f"### {measure.title.capitalize()}", _table(ablation, measure, values)]
        parts += [f"![{measure.title}]({image})"]
    return "\n\n".join(parts) + "\n"


def _table(ablation: Ablation, measure: Measure, values: Mapping[Arm, Mapping[Key, float]]) -> str:
    columns = _columns(measure, {key for of_arm in values.values() for key in of_arm})
    rows = [["arm", *columns, "paired difference at the end"]]
    last = list(columns.values())[-1]
    for arm, of_arm in values.items():
        cells = [
            share(mean_of([of_arm[key] for key in sorted(keys & of_arm.keys())]), ".3f")
            for keys in columns.values()
        ]
        reference = ablation.reference(arm)
        ahead = "" if reference == arm else _difference(of_arm, values[reference], last, reference.name)
        rows.append([f"`{arm.name}`", *cells, ahead])
    return markdown(rows)


def _columns(measure: Measure, keys: Iterable[Key]) -> dict[str, set[Key]]:
    """The iterations; of what has a value for each step, its first and its last quarter."""
    keys = set(keys)
    if not measure.by_step:
        return {
            f"iteration {each}": {key for key in keys if key[1] == each}
            for each in sorted({k[1] for k in keys})
        }
    steps = sorted({(key[1], int(key[2])) for key in keys})
    quarter = max(1, len(steps) // 4)
    parts = {"first quarter of the steps": set(steps[:quarter]), "last quarter": set(steps[-quarter:])}
    return {name: {key for key in keys if (key[1], int(key[2])) in part} for name, part in parts.items()}


def _difference(own: Mapping[Key, float], other: Mapping[Key, float], keys: set[Key], reference: str) -> str:
    """Paired by seed and what a value is about; nothing where the arms have no value about the same."""
    pairs = sorted(keys & own.keys() & other.keys())
    found = mean_of([own[key] - other[key] for key in pairs])
    return "not paired" if found is None else f"{share(found, '+.3f')} against `{reference}`"


def _chart(ablation: Ablation, measure: Measure, values: Mapping[Arm, Mapping[Key, float]]) -> str:
    if ablation.across:
        panels = {
            kind: {
                name: [_end(share, measure, values[arm]) for share, arm in line]
                for name, line in lines.items()
            }
            for kind, lines in ablation.across.items()
        }
        return draw_lines(measure.title, panels, ACROSS)
    lines = {arm.name: _over_time(measure, of_arm) for arm, of_arm in values.items()}
    across = "step of the Solver, over all iterations" if measure.by_step else "iteration"
    return draw_lines(measure.title, {"": lines}, across)


def _over_time(measure: Measure, values: Mapping[Key, float]) -> list[Point]:
    """A point for each iteration, or for each step of all iterations in a row."""
    places: dict[tuple[int, int], list[float]] = {}
    for key in sorted(values):
        places.setdefault((key[1], int(key[2]) if measure.by_step else 0), []).append(values[key])
    return [
        point(float(row + 1 if measure.by_step else place[0]), places[place])
        for row, place in enumerate(sorted(places))
    ]


def _end(share: float, measure: Measure, values: Mapping[Key, float]) -> Point:
    last = list(_columns(measure, values).values())[-1]
    return point(share, [values[key] for key in sorted(last)])
