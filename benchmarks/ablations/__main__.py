"""The papers' ablations on the embedded world, with seeds and intervals.

    python -m benchmarks.ablations [--only NAME ...] [--seeds 1 2 3 4 5] [--jobs 1] [--root FOLDER] [--write]

Each arm is a run of `scope run` or `scope fork` under the root. Killed at any moment, the same command goes on; what is
finished is only read. A section per ablation is written beside the runs, and with --write all sections that there are
become docs/how/evidence/ablations.md.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.ablations.arms import Arm, Laboratory, make_all, read_laboratory
from benchmarks.ablations.measures import FinishedRun, Measure, mean_of, point
from benchmarks.ablations.studies import ABLATIONS, Ablation
from benchmarks.line_chart import draw_lines
from benchmarks.markdown import markdown, share, write_between
from benchmarks.scope_command import ROOT

Key = tuple[int, int, str]
"""Seed, iteration, and what a value is about."""
Values = Mapping[Key, float]

ACROSS = "share of the judge's calls that are spoilt"


def main() -> None:
    options = read_laboratory(__doc__, list(ABLATIONS))
    laboratory = options.laboratory
    for name in options.only:
        ablation = ABLATIONS[name]
        make_all(ablation.arms, options.seeds, laboratory, options.jobs)
        found = {
            measure.name: {arm: measured(measure, arm, options.seeds, laboratory) for arm in ablation.arms}
            for measure in ablation.measures
        }
        section = write_section(ablation, found, options.seeds, laboratory.root)
        (laboratory.root / f"{name}.md").write_text(section, encoding="utf-8")
        print(section)
    if options.write:
        sections = [laboratory.root / f"{name}.md" for name in ABLATIONS]
        texts = [path.read_text(encoding="utf-8") for path in sections if path.exists()]
        shutil.copytree(laboratory.root / "images", ROOT / "docs" / "images", dirs_exist_ok=True)
        text = "\n".join(texts).replace("](", "](../../")
        write_between(ROOT / "docs/how/evidence/ablations.md", "tables", text)


def measured(measure: Measure, arm: Arm, seeds: Sequence[int], laboratory: Laboratory) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for seed in seeds:
        run = FinishedRun(laboratory.folder(arm, seed))
        for iteration in run.iterations_with(measure.stage):
            values = measure.read(run, iteration)
            found |= {(seed, iteration, name): value for name, value in values.items()}
    return found


def write_section(
    ablation: Ablation, found: Mapping[str, Mapping[Arm, Values]], seeds: Sequence[int], folder: Path
) -> str:
    """The ablation's part of the page, of what was `found` by measure; its charts are written to `folder`/images."""
    names = ", ".join(map(str, seeds))
    parts = [
        f"## {ablation.question}",
        f"The paper: {ablation.paper}",
        f"`make bench-ablations ARGS='--only {ablation.name}'`; seeds {names}.",
    ]
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for measure in ablation.measures:
        image = f"images/ablation-{ablation.name}-{measure.name}.svg"
        (folder / image).write_text(_chart(ablation, measure, found[measure.name]), encoding="utf-8")
        parts += [f"### {measure.title.capitalize()}", _table(ablation, measure, found[measure.name])]
        parts += [f"![{measure.title}]({image})"]
    return "\n\n".join(parts) + "\n"


def _table(ablation: Ablation, measure: Measure, found: Mapping[Arm, Values]) -> str:
    columns = _columns(measure, {key for of_arm in found.values() for key in of_arm})
    rows = [["arm", *columns, "paired difference at the end"]]
    last = list(columns.values())[-1]
    for arm, values in found.items():
        means = [mean_of([values[key] for key in sorted(keys & values.keys())]) for keys in columns.values()]
        reference, ahead = ablation.against.get(arm, ablation.arms[0]), ""
        if reference != arm:
            # Paired by seed and what a value is about; nothing where the arms have no value about the same.
            pairs = sorted(last & values.keys() & found[reference].keys())
            gain = mean_of([values[key] - found[reference][key] for key in pairs])
            ahead = f"{share(gain, '+.3f')} against `{reference.name}`" if gain else "not paired"
        rows.append([f"`{arm.name}`", *(share(mean, ".3f") for mean in means), ahead])
    return markdown(rows)


def _columns(measure: Measure, keys: Iterable[Key]) -> dict[str, set[Key]]:
    """The iterations; of what has a value for each step, its first and its last quarter."""
    places: dict[tuple[int, ...], set[Key]] = {}
    for key in keys:
        places.setdefault(_place(measure, key), set()).add(key)
    ordered = [places[place] for place in sorted(places)]
    if not measure.by_step:
        return {f"iteration {place}": places[place,] for (place,) in sorted(places)}
    quarter = max(1, len(ordered) // 4)
    parts = {"first quarter of the steps": ordered[:quarter], "last quarter": ordered[-quarter:]}
    return {name: set().union(*part) for name, part in parts.items()}


def _place(measure: Measure, key: Key) -> tuple[int, ...]:
    return (key[1], int(key[2])) if measure.by_step else (key[1],)


def _chart(ablation: Ablation, measure: Measure, found: Mapping[Arm, Values]) -> str:
    if ablation.across:

        def end(across: float, arm: Arm) -> Iterable[float]:
            last = list(_columns(measure, found[arm]).values())[-1]
            return point(across, [found[arm][key] for key in sorted(last)])

        panels = {
            kind: {name: [end(*each) for each in line] for name, line in lines.items()}
            for kind, lines in ablation.across.items()
        }
        return draw_lines(measure.title, panels, ACROSS)
    lines = {}
    for arm, values in found.items():
        places: dict[tuple[int, ...], list[float]] = {}
        for key in sorted(values):
            places.setdefault(_place(measure, key), []).append(values[key])
        # A point for each iteration, or for each step of all iterations in a row.
        lines[arm.name] = [
            point(row if measure.by_step else place[0], places[place])
            for row, place in enumerate(sorted(places), start=1)
        ]
    across = "step of the Solver, over all iterations" if measure.by_step else "iteration"
    return draw_lines(measure.title, {"": lines}, across)


if __name__ == "__main__":
    main()
