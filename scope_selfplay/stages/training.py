"""Stages A and C: GRPO of the Challenger and of the Solver."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from scope_selfplay.judge.metered import MeteredJudge
from scope_selfplay.keys import seed_from
from scope_selfplay.progress import Progress, first_and_last
from scope_selfplay.run import Run
from scope_selfplay.stages.room import check_room_to_train
from scope_selfplay.stages.solver_tasks import tasks_to_train_on
from scope_selfplay.stages.stage_runner import (
    check_budget,
    inputs_of,
    run_stage,
    stage_sources,
    write_documents,
)
from scope_selfplay.stages.training_records import begin_records, merge_records
from scope_selfplay.store import Stage, StageFolder, StageManifest
from scope_selfplay.store.files import read_rows
from scope_selfplay.store.weights import Policy
from scope_selfplay.training.challenger import challenger_sampler
from scope_selfplay.training.job import (
    GrpoJob,
    StepResult,
    StepSampler,
    TrainingCallbacks,
    TrainingOptions,
    TrainingStart,
)
from scope_selfplay.training.ranks import ranks
from scope_selfplay.training.resampling import resampled
from scope_selfplay.training.solver import solver_sampler
from scope_selfplay.training.trained_model import Lineage


def train_challenger(run: Run, iteration: int) -> StageManifest | None:
    """Stage A: GRPO from C_{t-1} against the frozen S_{t-1}. None in a process that another one leads."""

    def work(folder: StageFolder) -> None:
        settings, context = run.config.challenger, run.stage_context(iteration, Stage.CHALLENGER)
        start, opponent = run.challenger(iteration - 1), run.promoted_solver(iteration - 1)
        count = settings.steps * settings.batch
        sources = stage_sources(run, iteration, Stage.CHALLENGER, count)
        if ranks().leads:
            write_documents(folder, [source.document.id for source in sources])
        trial = run.solver_trial(opponent, settings.rollouts, window=False)
        by_id = {source.document.id: source for source in sources}
        provenance = run.provenance(iteration, Stage.CHALLENGER, start, opponent)
        key = run.key(iteration, Stage.CHALLENGER)
        job = _job(run, iteration, Stage.CHALLENGER, start, list(by_id), context.judge)

        def make_sampler(model: Any) -> StepSampler:
            return challenger_sampler(model, job, context, by_id, trial, provenance=provenance, key=key)

        _train(run, job, make_sampler, Stage.CHALLENGER)

    return _led(run, iteration, Stage.CHALLENGER, work)


def train_solver(run: Run, iteration: int) -> StageManifest | None:
    """Stage C: GRPO from S_{t-1} on the kept or given tasks. None in a process that another one leads."""

    def work(folder: StageFolder) -> None:
        context, start = run.stage_context(iteration, Stage.SOLVER), run.promoted_solver(iteration - 1)
        tasks = tasks_to_train_on(run, iteration)
        key = run.key(iteration, Stage.SOLVER)
        job = _job(run, iteration, Stage.SOLVER, start, tasks.records, context.judge)
        job = replace(job, options=replace(job.options, settings=tasks.settings))

        def make_sampler(model: Any) -> StepSampler:
            sampler = solver_sampler(model, job, context, tasks.by_id, checkpoint=start.identity, key=key)
            return resampled(sampler, job, list(tasks.by_id), tasks.settings.resample)

        _train(run, job, make_sampler, Stage.SOLVER)

    return _led(run, iteration, Stage.SOLVER, work)


def _led(run: Run, iteration: int, stage: Stage, work: Callable[[StageFolder], None]) -> StageManifest | None:
    """The first of several processes runs the stage and publishes it; the others take part in its training."""
    if ranks().leads:
        return run_stage(run, iteration, stage, inputs_of(run, iteration, stage), work)
    folder = run.folder.stage(iteration, stage)
    if folder.manifest is None:
        folder.work.mkdir(parents=True, exist_ok=True)
        run.progress = Progress()
        work(folder)
    return None


def _curve(run: Run, stage: Stage) -> str:
    """The metric to show beside the reward; relative rewards say nothing, so without grades the informative share."""
    if stage is Stage.CHALLENGER:
        return "difficulty"
    settings = run.config.solver
    routing = settings.routing.by if settings.routing else None
    if routing == "auto" and settings.tasks is None:
        # The Challenger's tasks have no reference answers.
        routing = "rubric"
    return "rubric" if "rubric" in (settings.reward.design, routing) else "non_zero_advantage"


def _job(
    run: Run, iteration: int, stage: Stage, start: Policy, records: Sequence[str], judge: MeteredJudge
) -> GrpoJob:
    curve = _curve(run, stage)

    def on_step(step: int, line: dict[str, Any]) -> None:
        reward, part = line.get("reward", float("nan")), line.get(curve)
        note = "" if part is None else f", {curve} {part:.2f}"
        canaries = line.get("canary_accuracy")
        note += "" if canaries is None else f", canaries {canaries:.0%} right"
        run.progress.advance(step, f"reward {reward:.2f}{note}")
        run.progress.plot(reward if part is None else part)
        check_budget(run, judge)

    lineage = lineage_of(run, stage.value, iteration, start.identity)
    return GrpoJob(
        start=TrainingStart(start.path, run.base, lineage),
        options=TrainingOptions(
            settings=run.config.challenger if stage is Stage.CHALLENGER else run.config.solver,
            temperature=run.config.sampling.temperature,
            top_p=run.config.sampling.top_p,
            seed=seed_from(*run.key(iteration, stage), "trainer"),
            model=run.config.model,
            tracking=run.config.tracking,
        ),
        records=records,
        folder=run.folder.stage(iteration, stage),
        codec=run.codec,
        callbacks=TrainingCallbacks(on_step, run.progress.say, run.outages.append),
        ranks=ranks(),
    )


def lineage_of(run: Run, role: str, iteration: int, start: str) -> Lineage:
    """What a run trains a policy from."""
    return Lineage(
        run=run.config.name,
        role=role,
        iteration=iteration,
        base_hash=Policy("M0", run.base).weights,
        start=start,
        prompt_hash=run.pack.hash,
        config_hash=run.config.hash,
        dialect=run.config.model.dialect,
    )


def _train(run: Run, job: GrpoJob, make_sampler: Callable[[Any], StepSampler], stage: Stage) -> None:
    from scope_selfplay.training.grpo import train_grpo

    def make_checked_sampler(model: Any) -> StepSampler:
        sample_step = make_sampler(model)

        async def checked(records: Sequence[str], step: int) -> StepResult:
            result = await sample_step(records, step)
            # Nothing is learnt from a step in which a server was down: it is sampled again when the stage resumes.
            run.check_outages()
            return result

        return checked

    if job.ranks.leads:
        check_room_to_train(job)
        begin_records(job.folder, job.ranks.processes)
    iteration, curve = job.start.lineage.iteration, _curve(run, stage)
    run.progress.begin(f"iteration {iteration}: train the {stage.value.capitalize()}", job.settings.steps)
    train_grpo(job, make_checked_sampler)
    values = [row[curve] for row in read_rows(job.folder.metrics) if row.get(curve) is not None]
    ends = first_and_last(values)
    run.progress.end(f"{curve} {ends[0]:.2f} -> {ends[1]:.2f}" if ends else f"no step has a {curve}")
    if job.ranks.leads:
        merge_records(job.folder)
