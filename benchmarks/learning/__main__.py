"""What self-play learns on the embedded world: the README's table, docs/how/evidence/learning.md, its curves.

    python -m benchmarks.learning [--seeds 1 2 3 4 5] [--jobs 2] [--root FOLDER] [--only ARM ...] [--write]

Each seed is a world, a held-out world and a run of its own, by the commands that a user types. Killed at any moment,
the same command goes on.
"""

import random
from collections.abc import Sequence

from benchmarks.ablations.arms import CO_EVOLVING, Laboratory, make_all, read_laboratory
from benchmarks.ablations.measures import FinishedRun
from benchmarks.learning import page
from benchmarks.learning.results import challenger_rollouts, read_learnt
from benchmarks.markdown import write_between
from benchmarks.scope_command import ROOT
from scope_selfplay.base.values import CandidateStatus
from scope_selfplay.store.folder import Stage

READ = 20
"""Random accepted tasks that the page shows."""


def main() -> None:
    arms = {arm.name: arm for arm in page.TITLES}
    options = read_laboratory(__doc__, list(arms))
    laboratory, chosen = options.laboratory, [arms[name] for name in options.only]
    make_all(chosen, options.seeds, laboratory, options.jobs)
    results = {
        arm: [read_learnt(laboratory.folder(arm, seed), seed) for seed in options.seeds] for arm in chosen
    }
    opening, tables = written(results, laboratory, options.seeds)
    print(opening, tables, sep="\n\n")
    if options.write:
        write_between(ROOT / "README.md", "learning", opening)
        write_between(ROOT / "docs/how/evidence/learning.md", "tables", tables.replace("](", "](../../"))
        (ROOT / "docs" / "images" / "learning.svg").write_text(page.curves(results), encoding="utf-8")


def written(results: page.Results, laboratory: Laboratory, seeds: Sequence[int]) -> tuple[str, str]:
    """What the README shows, and what the page does."""
    parts = [page.in_one_sentence(results), page.seed_table(results[CO_EVOLVING])]
    if len(results) > 1:
        parts += ["### Beside Challengers that stand still", page.arms_table(results)]
        parts += [page.differences_table(results)]
    parts += ["### What the Challengers wrote", page.tasks_table(results), "![curves](images/learning.svg)"]
    parts += [f"### {READ} random accepted tasks of the last iteration, with their searches"]
    parts += ["\n".join(read_tasks(laboratory, seeds))]
    return f"{parts[0]}\n\n{page.arms_table(results, {'all': False})}", "\n\n".join(parts)


def read_tasks(laboratory: Laboratory, seeds: Sequence[int]) -> list[str]:
    found = []
    for seed in seeds:
        run = FinishedRun(laboratory.folder(CO_EVOLVING, seed))
        last = run.iterations_with(Stage.TASKS)[-1]
        rollouts = challenger_rollouts(run, last)
        for each in run.candidates(last):
            if each.status is CandidateStatus.ACCEPTED and each.challenger_rollout_id and each.task:
                title = f"seed {seed}, from {run.documents[each.task.document_id].title}"
                found.append(page.written(each, rollouts[each.challenger_rollout_id], title))
    return random.Random(seeds[0]).sample(found, min(READ, len(found)))


if __name__ == "__main__":
    main()
