"""How a run's Solvers do when they sample: the runs themselves compare greedy answers, which hide rare errors."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from scope_selfplay.config import load_config
from scope_selfplay.judge import grade_answer
from scope_selfplay.progress import Progress
from scope_selfplay.run import Run, open_run
from scope_selfplay.schemas import Candidate, Role
from scope_selfplay.stages.stage_runner import accepted_in
from scope_selfplay.store import Stage


def sampled_scores(config: Path, root: Path, iteration: int, *, samples: int) -> Mapping[str, float]:
    """Mean scores of `samples` answers at temperature 1 of S_t to each held-out task, by task."""
    run = open_run(load_config(config, []), root, Progress())
    try:
        return asyncio.run(_scores(run, iteration, samples))
    finally:
        run.close()


async def _scores(run: Run, iteration: int, samples: int) -> dict[str, float]:
    context, policy = run.stage_context(iteration, Stage.COMPARE), run.solver(iteration)
    engine, policy_format = run.engine(policy, Role.SOLVER), run.policy_format(policy, Role.SOLVER)

    async def score(candidate: Candidate, sample: int) -> tuple[str, float]:
        assert candidate.task is not None and candidate.rubric is not None
        key = (run.config.seed, "sampled", iteration, candidate.task.id, sample)
        episode = context.solver_episode(policy_format, key, candidate.task)
        rollout = await context.sample_rollout(episode, engine, key)
        grade = await grade_answer(context.judge, candidate.task, candidate.rubric, rollout, key=key)
        return candidate.task.id, grade.score or 0.0

    tasks = accepted_in(run.folder.stage(0, Stage.TASKS))
    found = await asyncio.gather(*(score(task, sample) for task in tasks for sample in range(samples)))
    totals: dict[str, float] = {}
    for task, value in found:
        totals[task] = totals.get(task, 0.0) + value / samples
    return totals
