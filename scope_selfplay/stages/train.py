"""The stages `challenger` and `solver`: GRPO of the Challenger and of the Solver."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from scope_selfplay.base.sampling import PolicyModel
from scope_selfplay.base.terminal import Progress, first_and_last
from scope_selfplay.base.values import Candidate, Role, rng_from, seed_from
from scope_selfplay.config.run import RunConfig
from scope_selfplay.config.training import ChallengerConfig, SolverConfig
from scope_selfplay.judge.account import check_failure_budget
from scope_selfplay.policy.episodes import Player
from scope_selfplay.run.candidate import RunContext, SolverTrial, TaskWriter
from scope_selfplay.run.given import check_references, read_given_tasks
from scope_selfplay.run.run import Run
from scope_selfplay.stages.work import accepted_in, run_stage, stage_sources, write_account, write_documents
from scope_selfplay.store.card import Lineage
from scope_selfplay.store.columns import begin_records, merge_records
from scope_selfplay.store.files import read_rows
from scope_selfplay.store.folder import Policy, Stage, StageFolder
from scope_selfplay.training.engines import Rows, StepResult, StepSampler, open_engine
from scope_selfplay.training.job import GrpoJob, TrainingCallbacks, TrainingStart
from scope_selfplay.training.loop import TrainingLoop, load
from scope_selfplay.training.ranks import Ranks, ranks
from scope_selfplay.training.samplers import challenger_sampler, resampled, solver_sampler


def train_challenger(run: Run, iteration: int) -> None:
    """The stage `challenger`: GRPO from C_{t-1} against the frozen S_{t-1}."""
    stage, settings = Stage.CHALLENGER, run.config.challenger

    def work(folder: StageFolder, team: Ranks) -> None:
        context = run.stage_context(iteration, stage)
        start, opponent = run.challenger(iteration - 1), run.promoted_solver(iteration - 1)
        found = stage_sources(run, iteration, stage, settings.steps * settings.batch)
        sources = {source.document.id: source for source in found}
        if team.leads:
            write_documents(folder, list(sources))

        def sampler(job: GrpoJob, engine: PolicyModel) -> StepSampler:
            writer = TaskWriter(
                context,
                SolverTrial(run.player(opponent, Role.SOLVER), settings.rollouts, window=False),
                run.provenance(iteration, stage, start, opponent),
                run.key(iteration, stage),
                Player(engine, run.policy_format(start, Role.CHALLENGER)),
            )
            return challenger_sampler(writer, job, sources)

        _Training(run, iteration, stage, context, team, start).train(settings, list(sources), sampler)

    _led(run, iteration, stage, work)


def train_solver(run: Run, iteration: int) -> None:
    """The stage `solver`: GRPO from S_{t-1} on the kept or given tasks."""
    stage = Stage.SOLVER

    def work(folder: StageFolder, team: Ranks) -> None:
        context, start = run.stage_context(iteration, stage), run.promoted_solver(iteration - 1)
        tasks = tasks_to_train_on(run, iteration)

        def sampler(job: GrpoJob, engine: PolicyModel) -> StepSampler:
            solver, key = Player(engine, run.policy_format(start, Role.SOLVER)), run.key(iteration, stage)
            sample = solver_sampler(solver, job, context, tasks.by_id, key=key)
            return resampled(sample, job, list(tasks.by_id), tasks.settings.resample)

        training = _Training(run, iteration, stage, context, team, start)
        training.train(tasks.settings, tasks.records, sampler)

    _led(run, iteration, stage, work)


def _led(run: Run, iteration: int, stage: Stage, work: Callable[[StageFolder, Ranks], None]) -> None:
    """The first of several ranks runs the stage and publishes it; the others take part in its training, once it has
    found, behind its lock, that there is something to do.
    """
    team, begun = ranks(), False

    def lead(folder: StageFolder) -> None:
        nonlocal begun
        begun = team.leader("stage", lambda: True)
        work(folder, team)

    with team:
        if team.leads:
            run_stage(run, iteration, stage, lead)
            if not begun:
                team.leader("stage", lambda: False)
        elif team.leader("stage", lambda: True):
            folder = run.folder.stage(iteration, stage)
            folder.work.mkdir(parents=True, exist_ok=True)
            run.progress = Progress()
            work(folder, team)


@dataclass(frozen=True)
class _Training:
    """GRPO of a policy in the stage `challenger` or `solver`, from `start`."""

    run: Run
    iteration: int
    stage: Stage
    context: RunContext
    team: Ranks
    start: Policy

    @property
    def curve(self) -> str:
        """The metric to show beside the reward; relative rewards say nothing, so without grades the informative
        share.
        """
        if self.stage is Stage.CHALLENGER:
            return "difficulty"
        settings = self.run.config.solver
        routing = settings.routing.by if settings.routing else None
        if routing == "auto" and settings.tasks is None:
            # The Challenger's tasks have no reference answers.
            routing = "rubric"
        return "rubric" if "rubric" in (settings.reward.design, routing) else "non_zero_advantage"

    def job(self, settings: ChallengerConfig | SolverConfig, records: Sequence[str]) -> GrpoJob:
        run, stage, tally = self.run, self.stage, self.context.judge.tally
        lineage = Lineage(
            run=run.config.name,
            role=stage.value,
            iteration=self.iteration,
            base_hash=Policy("M0", run.base).weights,
            start=self.start.identity,
            prompt_hash=run.pack.hash,
            config_hash=run.config.hash,
            dialect=run.config.model.dialect,
        )
        return GrpoJob(
            start=TrainingStart(self.start.path, run.base, lineage),
            settings=settings,
            records=records,
            folder=run.folder.stage(self.iteration, stage),
            codec=run.codec,
            temperature=run.config.sampling.temperature,
            top_p=run.config.sampling.top_p,
            seed=seed_from(*run.key(self.iteration, stage), "trainer"),
            model=run.config.model,
            tracking=run.config.tracking,
            callbacks=TrainingCallbacks(
                self.on_step, lambda: (tally.calls, tally.failed), run.progress.say, run.outages.append
            ),
            ranks=self.team,
        )

    def on_step(self, step: int, line: dict[str, Any], tallies: Sequence[tuple[int, int]]) -> None:
        """Shows a line of metrics; `tallies` are calls and failures of each rank, which has a judge of its own."""
        reward, part = line.get("reward", float("nan")), line.get(self.curve)
        note = "" if part is None else f", {self.curve} {part:.2f}"
        canaries = line.get("canary_accuracy")
        note += "" if canaries is None else f", canaries {canaries:.0%} right"
        self.run.progress.advance(step, f"reward {reward:.2f}{note}")
        self.run.progress.plot(reward if part is None else part)
        calls, failed = (sum(each) for each in zip(*tallies, strict=True))
        check_failure_budget(calls, failed, self.run.config.judge.failure_budget)

    def train(
        self,
        settings: ChallengerConfig | SolverConfig,
        records: Sequence[str],
        sampler: Callable[[GrpoJob, PolicyModel], StepSampler],
    ) -> None:
        """By what `sampler` gives for the engine of the policy in training."""
        run, progress, job, curve = self.run, self.run.progress, self.job(settings, records), self.curve
        role, model = Role(self.stage.value), load(job)
        engine = open_engine(job, model, self.context, role, self.start.identity)
        sample_step = sampler(job, engine.source)

        async def checked(records: Sequence[str], step: int, sampled: Callable[[Rows], None]) -> StepResult:
            result = await sample_step(records, step, sampled)
            # Nothing is learnt from a step in which a server was down: it is sampled again when the stage resumes.
            run.check_outages()
            return result

        if self.team.leads:
            begin_records(job.folder, self.team.processes)
        title = f"iteration {self.iteration}: train the {role.capitalize()}"
        TrainingLoop(job, model, engine, checked).run(
            lambda done: progress.begin(title, settings.steps, done)
        )
        if not self.team.leads:
            write_account(job.records_folder, run.judge_of(self.stage))
        self.team.agree("records", True, completing=True)
        values = [row[curve] for row in read_rows(job.folder.metrics) if row.get(curve) is not None]
        ends = first_and_last(values)
        progress.end(f"{curve} {ends[0]:.2f} -> {ends[1]:.2f}" if ends else f"no step has a {curve}")
        if self.team.leads:
            merge_records(job.folder)


@dataclass(frozen=True)
class SolverTasks:
    """`records` are the ids of the tasks, `settings.steps * settings.batch` of them in the order of training."""

    by_id: dict[str, Candidate]
    records: list[str]
    settings: SolverConfig


def tasks_to_train_on(run: Run, iteration: int) -> SolverTasks:
    """Given tasks go on where the last iteration ended; the Challenger's are new in every iteration."""
    settings = run.config.solver
    given = settings.tasks
    kept = (
        read_given_tasks(given, kept=run.folder)
        if given
        else accepted_in(run.folder.stage(iteration, Stage.TASKS))
    )
    check_references(settings, kept)
    tasks = {row.task.id: row for row in kept if row.task}
    names = list(tasks)
    if settings.routing is not None and settings.routing.by == "auto":
        verified = sum(row.task.reference is not None for row in tasks.values() if row.task)
        run.progress.say(
            f"iteration {iteration}: groups are routed by the verifier for {verified:,} of {len(tasks):,} tasks, which "
            "have a reference answer, and by the rubric for the others"
        )
    if given:
        rows = settings.steps * settings.batch
        start = (iteration - 1) * rows
        (first, begin), (last, end) = (divmod(row, len(names)) for row in (start, start + rows - 1))
        passes = (
            f"pass {first + 1}" if first == last else f"passes {first + 1} to {last + 1}, each shuffled anew"
        )
        run.progress.say(
            f"iteration {iteration}: tasks {begin + 1:,} to {end + 1:,} of {len(names):,} given ones, {passes}"
        )
        order = given_order(names, seed=run.config.seed, batch=settings.batch)
        return SolverTasks(tasks, list(islice(order, start, start + rows)), settings)
    steps = steps_that_tasks_last(run.config, len(names))
    if steps < settings.steps:
        run.progress.say(
            f"iteration {iteration}: {len(names)} of {run.config.tasks.target} tasks last for {steps} steps of "
            f"{settings.batch}, not for solver.steps={settings.steps}; the Solver trains {steps} steps"
        )
    settings = settings.model_copy(update={"steps": steps})
    records = [names[row % len(names)] for row in range(steps * settings.batch)]
    return SolverTasks(tasks, records, settings)


def steps_that_tasks_last(config: RunConfig, accepted: int) -> int:
    """At most `solver.steps`; as many as repeat no task more often than the whole target would have been repeated.

    Where the target is steps * batch, as in the paper, these are the full batches.
    """
    solver, target = config.solver, config.tasks.target
    wanted = max(solver.steps * solver.batch, target)
    return max(1, min(solver.steps, accepted * wanted // (target * solver.batch)))


def given_order(names: Sequence[str], *, seed: int, batch: int) -> Iterator[str]:
    """Endless: every pass over the tasks is shuffled anew by the seed.

    A batch that ends one pass and begins the next has no task twice, if there are as many tasks as it has places.
    """
    begun: list[str] = []
    for number in count(1):
        shuffled = list(names)
        rng_from(seed, "given tasks", number).shuffle(shuffled)
        # A stable sort: what the begun batch has already comes last in this pass.
        for name in sorted(shuffled, key=begun.__contains__):
            yield name
            begun = [*begun, name] if len(begun) + 1 < batch else []
