"""A pretrained model learns to search and to answer, on two cores: the tables of docs/real-model.md.

    python -m benchmarks.real_model [--parts solver challenger] [--seeds 1 2 3] [--root FOLDER] [--keep]

Needs `scope models smollm2`. `solver` trains the Solver of each seed and asks it the held-out questions before
and after, `challenger` trains a Challenger of the first seed's Solver. Killed at any moment, the same command goes on.
With --keep what is finished replaces what the repository keeps and the page's tables; `--parts --keep` makes the tables
anew and runs nothing.
"""

import argparse
import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.real_model.asked_questions import read_challenger
from benchmarks.real_model.challenger import make_questions
from benchmarks.real_model.kept import KEPT, write_kept
from benchmarks.real_model.page import sections, write_page
from benchmarks.real_model.results import read_seed
from benchmarks.real_model.seeds import Seed, make_seed
from benchmarks.scope_command import ROOT
from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Role, Rollout, Task
from scope_selfplay.config.load import load_config
from scope_selfplay.policy.episodes import Player
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.given import read_given_tasks
from scope_selfplay.run.run import Run
from scope_selfplay.store.files import write_atomic, write_records

PARTS = ("solver", "challenger")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--samples", type=int, default=1, help="sampled answers to each held-out question")
    parser.add_argument("--root", type=Path, default=ROOT / "bench-out" / "real-model")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--keep", action="store_true", help="write the kept results and the tables of the page"
    )
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    root = options.root.resolve()
    seeds = [Seed(number, root, options.model, tuple(options.overrides)) for number in options.seeds]
    folder = KEPT if options.keep else root / "kept"
    folder.mkdir(parents=True, exist_ok=True)
    if "solver" in options.parts:
        learn(seeds, options.samples, folder)
    if "challenger" in options.parts:
        found = read_challenger(make_questions(seeds[0]))
        write_atomic(folder / "challenger.json", found.model_dump_json(indent=1) + "\n")
    if options.keep:
        write_page(ROOT / "docs" / "real-model.md")
    print("\n\n".join(sections(folder).values()))


def learn(seeds: Sequence[Seed], samples: int, folder: Path) -> None:
    """What is known of a seed is kept as soon as it is finished."""
    for seed in seeds:
        make_seed(seed)
        answer(seed, samples)
        write_kept(read_seed(seed), folder)


def answer(seed: Seed, samples: int) -> None:
    """What S_0 and S_1 answer to the held-out questions by the run's own episodes, each in a file of its own: greedily,
    and `samples` times at the run's temperature.
    """
    candidates = read_given_tasks(str(seed.questions("held_out")))
    tasks = [each.task for each in candidates if each.task is not None]
    run = open_run(load_config(seed.run / "run.yaml"), seed.run.parent, Progress())
    try:
        for iteration in (0, 1):
            file = seed.folder / f"answers-{iteration}.jsonl"
            if not file.exists():
                made = asyncio.run(_answers(run, iteration, tasks, samples))
                write_records(file, [each.without_ids() for each in made])
    finally:
        run.close()


async def _answers(run: Run, iteration: int, tasks: list[Task], samples: int) -> list[Rollout]:
    policy = run.solver(iteration)
    engine = run.engine(policy, Role.SOLVER)
    formats = [run.policy_format(policy, Role.SOLVER, greedy=greedy) for greedy in (False, True)]

    async def answer(task: Task, number: int) -> Rollout:
        key = (run.config.seed, "held out", iteration, task.id, number)
        return await run.context.answer(Player(engine, formats[number == 0]), key, task)

    asked = [(task, number) for number in range(1 + samples) for task in tasks]
    return list(await asyncio.gather(*(answer(*each) for each in asked)))


if __name__ == "__main__":
    main()
