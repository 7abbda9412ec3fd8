"""The Challenger's stage of a seed: the trained Solver's weights write questions, and learn to write better ones."""

import asyncio
import sys
from collections.abc import Sequence

from benchmarks.real_model.agreement import AgreementRun
from benchmarks.real_model.asked_questions import questions_file
from benchmarks.real_model.seeds import HERE, PACK, Seed
from benchmarks.real_model.traces import FACTBOOK
from scope_selfplay.config import load_config
from scope_selfplay.corpus import TaskSource
from scope_selfplay.pipeline import make_candidate
from scope_selfplay.progress import LineProgress
from scope_selfplay.run_directory import enter_run_directory
from scope_selfplay.schemas import Candidate, Role
from scope_selfplay.stages import compare, make_held_out, train_challenger
from scope_selfplay.stages.task_making import task_sources
from scope_selfplay.store import Stage, read_records, write_records

CONFIG = HERE / "challenger.yaml"


def make_questions(seed: Seed, overrides: Sequence[str] = ()) -> AgreementRun:
    """The Challenger's training, and what C_0 and C_1 ask about the same fresh passages. What is finished stays."""
    run = open_questions(seed, overrides)
    try:
        make_held_out(run)
        compare(run, 0)
        train_challenger(run, 1)
        for iteration in (0, 1):
            questions_of(run, iteration)
    finally:
        run.close()
    return run


def open_questions(seed: Seed, overrides: Sequence[str] = ()) -> AgreementRun:
    trained = seed.run / "iteration-01" / Stage.SOLVER.value / "checkpoint"
    places = [
        f"model.path={trained}",
        f"domain={PACK}",
        f"corpus.path={FACTBOOK / 'passages.jsonl'}",
        f"compare.given={seed.questions('held_out')}",
    ]
    config = load_config(CONFIG, [*places, *overrides], options={"name": "challenger", "seed": seed.number})
    progress = LineProgress(lambda text: print(text, file=sys.stderr, flush=True))
    folder, pack = enter_run_directory(config, seed.folder, progress, packs=None, record=True)
    return AgreementRun(config, folder, pack, progress)


def questions_of(run: AgreementRun, iteration: int) -> list[Candidate]:
    """What C_t asks about passages that it was not trained on, one question each; kept in a file of their own."""
    file = questions_file(run, iteration)
    if not file.exists():
        write_records(file, asyncio.run(_asked(run, iteration)))
    return read_records(file, Candidate)


async def _asked(run: AgreementRun, iteration: int) -> list[Candidate]:
    """Tried on the Solver, whatever their difficulty."""
    policy, solver = run.challenger(iteration), run.promoted_solver(0)
    engine, policy_format = run.engine(policy, Role.CHALLENGER), run.policy_format(policy, Role.CHALLENGER)
    trial = run.solver_trial(solver, run.config.tasks.rollouts, window=False)
    provenance = run.provenance(iteration, Stage.TASKS, policy, solver)
    context = run.stage_context(1, Stage.TASKS)

    async def ask(source: TaskSource) -> Candidate:
        key = (run.config.seed, "questions", source.document.id)
        episode = context.challenger_episode(policy_format, key, source)
        rollout = await context.sample_rollout(episode, engine, key)
        made_from = provenance.model_copy(update={"document_id": source.document.id})
        made = await make_candidate(context, source, rollout, trial=trial, provenance=made_from, key=key)
        return made.candidate

    return list(await asyncio.gather(*map(ask, task_sources(run, 1))))
