"""What a checkpoint of a run answers to the held-out questions, greedily and sampled, by the run's own episodes."""

import asyncio
from pathlib import Path

from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Role, Rollout, Task
from scope_selfplay.config.load import load_config
from scope_selfplay.policy.episodes import Player
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.run import Run
from scope_selfplay.store.files import read_records, write_records


def held_out_answers(
    run: Run, iteration: int, tasks: list[Task], samples: int, folder: Path
) -> list[Rollout]:
    """A greedy answer of S_t to each task, and `samples` at the run's temperature; kept in a file of their own."""
    file = folder / f"answers-{iteration}.jsonl"
    if not file.exists():
        made = asyncio.run(_answers(run, iteration, tasks, samples))
        write_records(file, [each.without_ids() for each in made])
    return read_records(file, Rollout)


async def _answers(run: Run, iteration: int, tasks: list[Task], samples: int) -> list[Rollout]:
    policy = run.solver(iteration)
    engine = run.engine(policy, Role.SOLVER)
    formats = [run.policy_format(policy, Role.SOLVER, greedy=greedy) for greedy in (False, True)]

    async def answer(task: Task, number: int) -> Rollout:
        key = (run.config.seed, "held out", iteration, task.id, number)
        return await run.context.answer(Player(engine, formats[number == 0]), key, task)

    asked = [(task, number) for number in range(1 + samples) for task in tasks]
    return list(await asyncio.gather(*(answer(*each) for each in asked)))


def opened(folder: Path) -> Run:
    return open_run(load_config(folder / "run.yaml"), folder.parent, Progress())
