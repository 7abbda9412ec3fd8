"""How a run's Solvers do when they sample: the runs themselves compare greedy answers, which hide rare errors."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from scope_selfplay.base.terminal import Progress
from scope_selfplay.base.values import Candidate, Role
from scope_selfplay.config.load import load_config
from scope_selfplay.judge.account import MeteredJudge
from scope_selfplay.judge.protocol import grade_answer
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.candidate import RunContext
from scope_selfplay.run.run import Run
from scope_selfplay.stages.work import accepted_in
from scope_selfplay.store.files import write_atomic
from scope_selfplay.store.folder import Stage

SAMPLES = 4


def sampled_scores(folder: Path, iteration: int) -> Mapping[str, float]:
    """Mean scores of some answers at temperature 1 of S_t to each held-out task, by task; without the judge's noise.

    They are kept beside the run under the name of the weights: runs that lie side by side share their held-out tasks.
    """
    run = open_run(load_config(folder / "run.yaml"), folder.parent, Progress())
    try:
        kept = folder.parent / f"sampled-{SAMPLES}-{run.solver(iteration).identity}.json"
        if not kept.exists():
            write_atomic(kept, json.dumps(asyncio.run(_scores(run, iteration))) + "\n")
    finally:
        run.close()
    values: dict[str, float] = json.loads(kept.read_text(encoding="utf-8"))
    return values


async def _scores(run: Run, iteration: int) -> dict[str, float]:
    context, policy = _honest_context(run), run.solver(iteration)
    solver = run.player(policy, Role.SOLVER)

    async def score(candidate: Candidate, sample: int) -> tuple[str, float]:
        assert candidate.task is not None and candidate.rubric is not None
        key = (run.config.seed, "sampled", iteration, candidate.task.id, sample)
        rollout = await context.answer(solver, key, candidate.task)
        grade = await grade_answer(context.judge, candidate.task, candidate.rubric, rollout, key=key)
        return candidate.task.id, grade.score or 0.0

    tasks = accepted_in(run.folder.stage(0, Stage.TASKS))
    found = await asyncio.gather(*(score(task, sample) for task in tasks for sample in range(SAMPLES)))
    totals: dict[str, float] = {}
    for task, value in found:
        totals[task] = totals.get(task, 0.0) + value / SAMPLES
    return totals


def _honest_context(run: Run) -> RunContext:
    judge = run.open_judge(run.config.judge.model_copy(update={"noise": None}))
    return replace(run.context, judge=MeteredJudge(judge))
