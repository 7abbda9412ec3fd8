"""What self-play learns on the embedded world: the README's table, docs/learning.md and its curves.

    python -m benchmarks.learning [--seeds 1 2 3 4 5] [--jobs 2] [--root FOLDER] [--only ARM ...] [--write]

Each seed is a world, a held-out world and a run of its own, by the commands that a user types. Killed at any moment,
the same command goes on.
"""

from collections.abc import Sequence

from benchmarks.ablations.arms import CO_EVOLVING, Arm, Laboratory, make_all, read_laboratory
from benchmarks.ablations.measures import FinishedRun
from benchmarks.learning import page
from benchmarks.learning.results import ARMS, answers, read_learnt
from benchmarks.markdown import TABLES, replace_between
from benchmarks.scope_command import ROOT

MARKS = ("<!-- learning -->", "<!-- /learning -->")
READ = 20
"""Random held-out tasks whose answers the page shows."""


def main() -> None:
    options = read_laboratory(__doc__, [arm.name for arm in ARMS], "README.md and docs/learning.md")
    laboratory = options.laboratory
    arms = [arm for arm in ARMS if arm.name in options.only]
    make_all(arms, options.seeds, laboratory, options.jobs)
    results = {
        arm: [read_learnt(laboratory.folder(arm, seed), seed) for seed in options.seeds] for arm in arms
    }
    tables = written(results, laboratory, options.seeds)
    print(tables)
    if options.write:
        table = f"{page.seed_table(results[CO_EVOLVING])}\n\n{page.verdict(results[CO_EVOLVING])}"
        replace_between(ROOT / "README.md", MARKS, f"{page.in_one_sentence(results)}\n\n{table}")
        replace_between(ROOT / "docs" / "learning.md", TABLES, tables)
        (ROOT / "docs" / "images" / "learning.svg").write_text(page.curves(results), encoding="utf-8")


def written(results: page.Results, laboratory: Laboratory, seeds: Sequence[int]) -> str:
    runs = results[CO_EVOLVING]
    parts = [page.in_one_sentence(results), page.seed_table(runs), page.verdict(runs)]
    if len(results) > 1:
        parts += [
            "### Beside Challengers that stand still",
            page.arms_table(results),
            page.differences_table(results),
        ]
    parts += ["### What the Challengers wrote", page.tasks_table(results), "![curves](images/learning.svg)"]
    tasks = [each for seed in seeds for each in spoken_tasks(CO_EVOLVING, seed, laboratory)]
    parts += [f"### {READ} random held-out tasks and their answers", page.spoken(tasks, seeds[0], READ)]
    return "\n\n".join(parts)


def spoken_tasks(arm: Arm, seed: int, laboratory: Laboratory) -> list[page.Spoken]:
    folder = laboratory.folder(arm, seed)
    run = FinishedRun(folder)
    count = len(list(folder.glob("iteration-*/compare/manifest.json")))
    said = [answers(folder, number) for number in range(count)]
    return [
        page.Spoken(
            each.task.text,
            [criterion.text for criterion in each.rubric.criteria],
            [by_task[each.task.id] for by_task in said],
        )
        for each in run.candidates(0)
        if each.task and each.rubric
    ]


if __name__ == "__main__":
    main()
