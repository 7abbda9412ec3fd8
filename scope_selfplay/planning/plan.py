"""What one iteration takes, stage by stage: prompts, rollouts, judge calls, tokens, hours of GPUs and disk."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from scope_selfplay.config import RunConfig, TrainConfig
from scope_selfplay.planning.assumptions import Assumptions
from scope_selfplay.planning.disk import StageDisk, records_gib, training_disk
from scope_selfplay.planning.judge_load import JudgeLoad, comparison, gates_and_rubric, grading, step_load
from scope_selfplay.planning.memory import PodMemory, most_gpus, pod_memory
from scope_selfplay.planning.model_size import ModelSize, judge_size, model_size
from scope_selfplay.planning.retrieval import RetrievalPlan, retrieval_plan
from scope_selfplay.schedule import is_challenger_trained
from scope_selfplay.store import Stage

_SMALL_MODEL = 1e8


class StagePlan(NamedTuple):
    """One stage: counts, tokens, hours of GPUs that are busy (those that are held are more), GiB on the volume.

    `times`: in so many iterations there is such a stage.
    """

    stage: Stage
    times: int
    prompts: int
    challenger_rollouts: int
    solver_rollouts: int
    judge_calls: int
    tokens: int
    generate_hours: float
    judge_hours: float
    train_hours: float
    disk_gib: float
    kept_gib: float


class ResourcePlan(NamedTuple):
    """`stages` are those of one iteration; the run has each of them as often as its `times` says, and `once`.

    `once` are the held-out tasks and the base model's answers to them, before iteration 1.
    """

    model: ModelSize
    gpus: int
    iterations: int
    once: tuple[StagePlan, ...]
    stages: tuple[StagePlan, ...]
    pods: tuple[PodMemory, ...]
    retrieval: RetrievalPlan | None
    assumptions: Assumptions

    @property
    def is_small(self) -> bool:
        """Whether its model is no matter of GPUs, so that their hours and memory say nothing."""
        return self.model.parameters < _SMALL_MODEL

    def total(self, name: str) -> float:
        """One column of the stages added up over one iteration."""
        return float(sum(getattr(stage, name) for stage in self.stages))

    @property
    def gpu_hours(self) -> float:
        """Busy hours of the whole run."""
        names = ("generate_hours", "judge_hours", "train_hours")
        stages = (*self.once, *self.stages)
        return float(sum(stage.times * getattr(stage, name) for stage in stages for name in names))

    @property
    def volume_gib(self) -> float:
        """The most that the run's folder holds: everything kept, and one stage at work."""
        kept = sum(stage.times * stage.kept_gib for stage in (*self.once, *self.stages))
        return kept + max(stage.disk_gib - stage.kept_gib for stage in self.stages)


def make_plan(
    config: RunConfig, *, gates: int, assumptions: Assumptions, parameters: float | None = None
) -> ResourcePlan:
    """A plan of one iteration. `gates` are judge calls before the rubric. Raises ConfigError for a model whose size is
    not known.
    """
    size = model_size(config.model.path, parameters)
    plan = partial(_stage_plan, config=config, size=size, assumptions=assumptions)
    return ResourcePlan(
        size,
        most_gpus(config.cluster),
        config.iterations,
        tuple(plan(stage) for stage in _before(config, gates, assumptions)),
        tuple(plan(stage) for stage in _stages(config, gates, assumptions)),
        pod_memory(config, size, assumptions),
        retrieval_plan(config, assumptions),
        assumptions,
    )


class _Counts(NamedTuple):
    """How often a stage does what; `trained` is set where it ends with an update of weights."""

    stage: Stage
    times: int
    prompts: int
    challenger_rollouts: int
    solver_rollouts: int
    judge: JudgeLoad
    trained: TrainConfig | None = None


def _before(config: RunConfig, gates: int, assumptions: Assumptions) -> Iterator[_Counts]:
    """Held-out tasks are not tried by a Solver: what passes the gates is kept."""
    held_out = config.compare.tasks
    if config.held_out is None:
        candidates = round(held_out / assumptions.gates_passed)
        calls = gates_and_rubric(gates, assumptions).times(candidates)
        yield _Counts(Stage.TASKS, 1, candidates, candidates, 0, calls)
    yield _Counts(Stage.COMPARE, 1, held_out, 0, held_out, grading(held_out, assumptions))


def _stages(config: RunConfig, gates: int, assumptions: Assumptions) -> Iterator[_Counts]:
    """As if every task of training passed its gates, as the paper's volume is counted."""
    challenger, solver, tasks = config.challenger, config.solver, config.tasks
    asked, iterations = gates_and_rubric(gates, assumptions), config.iterations
    trained = sum(is_challenger_trained(config, number) for number in range(1, iterations + 1))
    if trained:
        prompts = challenger.steps * challenger.batch
        rollouts = prompts * challenger.group_size
        calls = asked.plus(grading(challenger.rollouts, assumptions)).times(rollouts)
        tries = rollouts * challenger.rollouts
        yield _Counts(Stage.CHALLENGER, trained, prompts, rollouts, tries, calls, challenger)
    if solver.tasks is None:
        candidates = round(tasks.target / assumptions.acceptance)
        calls = asked.plus(grading(tasks.rollouts, assumptions)).times(candidates)
        tries = candidates * tasks.rollouts
        yield _Counts(Stage.TASKS, iterations, candidates, candidates, tries, calls)
    prompts = solver.steps * solver.batch
    calls = step_load(config, assumptions).times(solver.steps)
    yield _Counts(Stage.SOLVER, iterations, prompts, 0, prompts * solver.group_size, calls, solver)
    held_out = config.compare.tasks
    # S_t meets the t Solvers before it: (T + 1) / 2 of them on average over T iterations.
    pairs = held_out * (iterations + 1) / 2 * (2 if config.compare.both_orders else 1)
    calls = grading(held_out, assumptions).plus(comparison(assumptions).times(pairs))
    yield _Counts(Stage.COMPARE, iterations, held_out, 0, held_out, calls)


def _stage_plan(
    counts: _Counts, *, config: RunConfig, size: ModelSize, assumptions: Assumptions
) -> StagePlan:
    judge_model = judge_size(config.cluster.judge.model, size)
    scale, judge_scale = (model.active / 8e9 / 3600 for model in (size, judge_model))
    rollouts = counts.challenger_rollouts + counts.solver_rollouts
    sampled, read = rollouts * assumptions.rollout_tokens, rollouts * assumptions.read_tokens
    generate = sampled / assumptions.decode_rate + read / assumptions.prefill_rate
    asked = counts.judge.times(1 + config.judge.canary_rate)
    written = asked.calls * assumptions.judge_tokens
    judge = written / assumptions.decode_rate + asked.read / assumptions.prefill_rate
    text, train = records_gib(sampled + read + written, assumptions), 0.0
    disk = StageDisk(text, text)
    if counts.trained is not None:
        tokens = counts.prompts * counts.trained.group_size
        tokens *= assumptions.rollout_tokens + assumptions.read_tokens
        # 6 operations per parameter and token forward and back, 2 for the reference, 2 for recomputed activations.
        passes = 10 if counts.trained.kl_beta else 8
        train = passes * size.parameters * tokens / (assumptions.flops * assumptions.utilisation)
        disk = training_disk(config.model, counts.trained, size, text)
    return StagePlan(
        *counts[:5],
        round(asked.calls),
        sampled + read,
        scale * generate,
        judge_scale * judge,
        train / 3600,
        disk.working,
        disk.kept,
    )
