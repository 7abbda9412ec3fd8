"""The papers' ablations on the embedded world, with seeds and intervals.

    python -m benchmarks.ablations [--only NAME ...] [--seeds 1 2 3 4 5] [--jobs 1] [--root FOLDER] [--write]

Each arm is a run of `scope run` or `scope fork` under the root. Killed at any moment, the same command goes on; what is
finished is only read. A section per ablation is written beside the runs, and with --write all sections that there are
become docs/ablations.md.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ablations.arms import Arm, Laboratory, make_all, read_laboratory
from benchmarks.ablations.measures import FinishedRun, Measure
from benchmarks.ablations.page import Key, write_section
from benchmarks.ablations.studies import ABLATIONS, Ablation
from benchmarks.markdown import TABLES, replace_between
from benchmarks.scope_command import ROOT


def main() -> None:
    options = read_laboratory(__doc__, list(ABLATIONS), "docs/ablations.md of the sections")
    laboratory = options.laboratory
    for name in options.only:
        ablation = ABLATIONS[name]
        make_all(ablation.arms, options.seeds, laboratory, options.jobs)
        found = {arm: measured(arm, ablation, options.seeds, laboratory) for arm in ablation.arms}
        section = write_section(ablation, found, options.seeds, laboratory.root)
        (laboratory.root / f"{name}.md").write_text(section, encoding="utf-8")
        print(section)
    if options.write:
        write_page(laboratory.root)


def measured(
    arm: Arm, ablation: Ablation, seeds: Sequence[int], laboratory: Laboratory
) -> dict[str, dict[Key, float]]:
    """The values of an arm's runs, by measure."""
    runs = {seed: FinishedRun(laboratory.folder(arm, seed)) for seed in seeds}
    return {measure.name: _values(measure, runs) for measure in ablation.measures}


def _values(measure: Measure, runs: dict[int, FinishedRun]) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for seed, run in runs.items():
        for iteration in run.iterations_with(measure.stage):
            values = measure.read(run, iteration)
            found |= {(seed, iteration, name): value for name, value in values.items()}
    return found


def write_page(root: Path) -> None:
    """The sections that were made under `root` so far, in the order of the ablations."""
    sections = [root / f"{name}.md" for name in ABLATIONS]
    texts = [path.read_text(encoding="utf-8") for path in sections if path.exists()]
    shutil.copytree(root / "images", ROOT / "docs" / "images", dirs_exist_ok=True)
    replace_between(ROOT / "docs" / "ablations.md", TABLES, "\n".join(texts))


if __name__ == "__main__":
    main()
