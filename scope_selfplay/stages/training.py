"""Stages A and C: GRPO of the Challenger and of the Solver."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from scope_selfplay.engines import policy_format_for
from scope_selfplay.judge.metered import check_failure_budget
from scope_selfplay.keys import seed_from
from scope_selfplay.progress import Progress, first_and_last
from scope_selfplay.run import Run
from scope_selfplay.run_context import RunContext
from scope_selfplay.schemas import Role
from scope_selfplay.stages.room import check_room_to_train
from scope_selfplay.stages.solver_tasks import tasks_to_train_on
from scope_selfplay.stages.stage_runner import (
    inputs_of,
    run_stage,
    stage_sources,
    write_documents,
    write_usage,
)
from scope_selfplay.store import Stage, StageFolder, StageManifest
from scope_selfplay.store.card import Lineage
from scope_selfplay.store.files import read_rows
from scope_selfplay.store.records import begin_records, merge_records
from scope_selfplay.store.weights import Policy
from scope_selfplay.training.challenger import challenger_sampler
from scope_selfplay.training.engines import Engine, Rows, StepResult, StepSampler, open_engine
from scope_selfplay.training.job import GrpoJob, TrainingCallbacks, TrainingOptions, TrainingStart
from scope_selfplay.training.loop import TrainingLoop, load
from scope_selfplay.training.loss import scale_of
from scope_selfplay.training.ranks import Ranks, ranks
from scope_selfplay.training.solver import resampled, solver_sampler


def train_challenger(run: Run, iteration: int) -> StageManifest | None:
    """Stage A: GRPO from C_{t-1} against the frozen S_{t-1}. None in a process that another one leads."""
    team = ranks()

    def work(folder: StageFolder) -> None:
        settings, context = run.config.challenger, run.stage_context(iteration, Stage.CHALLENGER)
        start, opponent = run.challenger(iteration - 1), run.promoted_solver(iteration - 1)
        count = settings.steps * settings.batch
        sources = {each.document.id: each for each in stage_sources(run, iteration, Stage.CHALLENGER, count)}
        if team.leads:
            write_documents(folder, list(sources))
        job = _job(run, iteration, Stage.CHALLENGER, start, list(sources), context, team)
        model = load(job)
        engine = open_engine(job, model, context, Role.CHALLENGER, start.identity)
        policy_format = policy_format_for(context, run.codec, Role.CHALLENGER, start.identity)
        trial = run.solver_trial(opponent, settings.rollouts, window=False)
        provenance, key = (
            run.provenance(iteration, Stage.CHALLENGER, start, opponent),
            run.key(iteration, Stage.CHALLENGER),
        )
        sample = challenger_sampler(
            engine.source, policy_format, job, context, sources, trial, provenance=provenance, key=key
        )
        _train(run, job, model, engine, sample)

    return _led(run, iteration, Stage.CHALLENGER, team, work)


def train_solver(run: Run, iteration: int) -> StageManifest | None:
    """Stage C: GRPO from S_{t-1} on the kept or given tasks. None in a process that another one leads."""
    team = ranks()

    def work(folder: StageFolder) -> None:
        context, start = run.stage_context(iteration, Stage.SOLVER), run.promoted_solver(iteration - 1)
        tasks = tasks_to_train_on(run, iteration)
        job = _job(run, iteration, Stage.SOLVER, start, tasks.records, context, team)
        job = replace(job, options=replace(job.options, settings=tasks.settings))
        model = load(job)
        engine = open_engine(job, model, context, Role.SOLVER, start.identity)
        policy_format = policy_format_for(context, run.codec, Role.SOLVER, start.identity)
        key = run.key(iteration, Stage.SOLVER)
        sample = solver_sampler(engine.source, policy_format, job, context, tasks.by_id, key=key)
        sample = resampled(sample, job, list(tasks.by_id), tasks.settings.resample)
        _train(run, job, model, engine, sample)

    return _led(run, iteration, Stage.SOLVER, team, work)


def _led(
    run: Run, iteration: int, stage: Stage, team: Ranks, work: Callable[[StageFolder], None]
) -> StageManifest | None:
    """The first of several ranks runs the stage and publishes it; the others take part in its training, once it has
    found, behind its lock, that there is something to do.
    """
    if team.leads:
        begun = False

        def lead(folder: StageFolder) -> None:
            nonlocal begun
            begun = team.leader("stage", lambda: True)
            work(folder)

        with team:
            done = run_stage(run, iteration, stage, inputs_of(run, iteration, stage), lead)
            if not begun:
                team.leader("stage", lambda: False)
        return done
    with team:
        if team.leader("stage", lambda: True):
            folder = run.folder.stage(iteration, stage)
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
    run: Run,
    iteration: int,
    stage: Stage,
    start: Policy,
    records: Sequence[str],
    context: RunContext,
    team: Ranks,
) -> GrpoJob:
    curve, tally = _curve(run, stage), context.judge.tally

    def on_step(step: int, line: dict[str, Any], tallies: Sequence[tuple[int, int]]) -> None:
        reward, part = line.get("reward", float("nan")), line.get(curve)
        note = "" if part is None else f", {curve} {part:.2f}"
        canaries = line.get("canary_accuracy")
        note += "" if canaries is None else f", canaries {canaries:.0%} right"
        run.progress.advance(step, f"reward {reward:.2f}{note}")
        run.progress.plot(reward if part is None else part)
        # Of all ranks together, each with a judge of its own.
        calls, failed = (sum(each) for each in zip(*tallies, strict=True))
        check_failure_budget(calls, failed, run.config.judge.failure_budget)

    settings = run.config.challenger if stage is Stage.CHALLENGER else run.config.solver
    lineage = lineage_of(run, stage.value, iteration, start.identity)
    return GrpoJob(
        start=TrainingStart(start.path, run.base, lineage),
        options=TrainingOptions(
            settings=settings,
            temperature=run.config.sampling.temperature,
            top_p=run.config.sampling.top_p,
            seed=seed_from(*run.key(iteration, stage), "trainer"),
            scale=scale_of(settings),
            model=run.config.model,
            tracking=run.config.tracking,
        ),
        records=records,
        folder=run.folder.stage(iteration, stage),
        codec=run.codec,
        callbacks=TrainingCallbacks(
            on_step, lambda: (tally.calls, tally.failed), run.progress.say, run.outages.append
        ),
        ranks=team,
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


def _train(run: Run, job: GrpoJob, model: Any, engine: Engine, sample_step: StepSampler) -> None:
    async def checked(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
        result = await sample_step(records, step, sampled)
        # Nothing is learnt from a step in which a server was down: it is sampled again when the stage resumes.
        run.check_outages()
        return result

    if job.ranks.leads:
        check_room_to_train(job)
        begin_records(job.folder, job.ranks.processes)
    lineage = job.start.lineage
    stage = Stage(lineage.role)
    curve = _curve(run, stage)
    run.progress.begin(
        f"iteration {lineage.iteration}: train the {stage.value.capitalize()}", job.settings.steps
    )
    TrainingLoop(job, model, engine, checked).run()
    if not job.ranks.leads:
        write_usage(job.records_folder, run.judge_of(stage))
    job.ranks.agree("records", True, completing=True)
    values = [row[curve] for row in read_rows(job.folder.metrics) if row.get(curve) is not None]
    ends = first_and_last(values)
    run.progress.end(f"{curve} {ends[0]:.2f} -> {ends[1]:.2f}" if ends else f"no step has a {curve}")
    if job.ranks.leads:
        merge_records(job.folder)
