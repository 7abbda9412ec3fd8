"""The Challenger's stage of a seed: the trained Solver's weights write questions, and learn to write better ones."""

import asyncio
import sys

from benchmarks.real_model.agreement import AgreementRun
from benchmarks.real_model.asked_questions import questions_file
from benchmarks.real_model.seeds import HERE, PACK, Seed
from benchmarks.real_model_answers import FACTBOOK
from scope_selfplay.base.terminal import LineProgress
from scope_selfplay.base.values import Candidate, Role
from scope_selfplay.config.load import load_config
from scope_selfplay.corpus.sample import TaskSource
from scope_selfplay.run.begin import open_run
from scope_selfplay.run.candidate import SolverTrial, TaskWriter
from scope_selfplay.stages.compare import compare
from scope_selfplay.stages.tasks import make_tasks
from scope_selfplay.stages.train import train_challenger
from scope_selfplay.stages.work import stage_sources
from scope_selfplay.store.files import read_records, write_records
from scope_selfplay.store.folder import Stage

CONFIG = HERE / "challenger.yaml"


def make_questions(seed: Seed) -> AgreementRun:
    """The Challenger's training, and what C_0 and C_1 ask about the same fresh passages. What is finished stays."""
    run = open_questions(seed)
    try:
        make_tasks(run, 0)
        compare(run, 0)
        train_challenger(run, 1)
        for iteration in (0, 1):
            questions_of(run, iteration)
    finally:
        run.close()
    return run


def open_questions(seed: Seed) -> AgreementRun:
    trained = seed.run / "iteration-01" / Stage.SOLVER.value / "checkpoint"
    places = [
        f"model.path={trained}",
        f"domain={PACK}",
        f"corpus.path={FACTBOOK / 'passages.jsonl'}",
        f"compare.given={seed.questions('held_out')}",
    ]
    config = load_config(CONFIG, places, options={"name": "challenger", "seed": seed.number})
    progress = LineProgress(lambda text: print(text, file=sys.stderr, flush=True))
    run = open_run(config, seed.folder, progress)
    return AgreementRun(config, run.folder, run.pack, progress)


def questions_of(run: AgreementRun, iteration: int) -> list[Candidate]:
    """What C_t asks about passages that it was not trained on, one question each; kept in a file of their own."""
    file = questions_file(run, iteration)
    if not file.exists():
        write_records(file, asyncio.run(_asked(run, iteration)))
    return read_records(file, Candidate)


async def _asked(run: AgreementRun, iteration: int) -> list[Candidate]:
    """Tried on the Solver, whatever their difficulty."""
    policy, solver = run.challenger(iteration), run.promoted_solver(0)
    engine, policy_format = run.player(policy, Role.CHALLENGER)
    trial = SolverTrial(run.player(solver, Role.SOLVER), run.config.tasks.rollouts, window=False)
    provenance = run.provenance(iteration, Stage.TASKS, policy, solver)
    context = run.stage_context(1, Stage.TASKS)

    async def ask(source: TaskSource) -> Candidate:
        key = (run.config.seed, "questions", source.document.id)
        episode = context.challenger_episode(policy_format, key, source)
        rollout = await context.sample_rollout(episode, engine, key)
        made = await TaskWriter(context, trial, provenance, key).judge(source, rollout)
        return made.candidate

    wanted = run.config.tasks.max_candidates or 4 * run.config.tasks.target
    sources = stage_sources(run, 1, Stage.TASKS, wanted, or_fewer=True)
    return list(await asyncio.gather(*map(ask, sources)))
