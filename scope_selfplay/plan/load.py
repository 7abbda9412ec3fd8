"""What one iteration takes, stage by stage: prompts, rollouts, judge calls, tokens, hours of GPUs and disk."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from retrieval.profiles import GIB, ProfileName, busy_bytes, held_bytes
from scope_selfplay.base.values import Criterion, Rollout, Rubric, Task
from scope_selfplay.config.cluster import amount
from scope_selfplay.config.run import ModelConfig, RunConfig
from scope_selfplay.config.training import KEPT_CHECKPOINTS, SolverConfig, TrainConfig
from scope_selfplay.designs.design import ComparisonDesign
from scope_selfplay.designs.step import open_design
from scope_selfplay.judge.fences import View
from scope_selfplay.judge.protocol import Style
from scope_selfplay.plan.memory import FULL, PodMemory, export_bytes, most_gpus, pod_memory
from scope_selfplay.plan.size import Assumptions, ModelSize, judge_size, model_size
from scope_selfplay.run.schedule import is_challenger_trained
from scope_selfplay.store.folder import Stage


class StageDisk(NamedTuple):
    """GiB. `working` is the most while the stage runs, `kept` what its folder has at the end."""

    working: float
    kept: float


def training_disk(model: ModelConfig, settings: TrainConfig, size: ModelSize, text: float) -> StageDisk:
    """`text` is the GiB of the stage's records. A new checkpoint is whole before the oldest is removed."""
    export = export_bytes(model, size) / GIB
    checkpoint = checkpoint_gib(model, size)
    export += FULL * size.shape.adapted(model.lora_rank) / GIB
    return StageDisk(training_peak(settings, checkpoint, export) + text, export + text)


def training_peak(settings: TrainConfig, checkpoint: float, export: float) -> float:
    """The most that a training has on disk at once, in the unit of its two sizes, apart from its records."""
    saves, keep = -(-settings.steps // (settings.save_every or 1)), KEPT_CHECKPOINTS
    # The export begins when the last checkpoint is on disk.
    return max(min(saves, keep + 1) * checkpoint, min(saves, keep) * checkpoint + export)


def checkpoint_gib(model: ModelConfig, size: ModelSize) -> float:
    """Weights and two moments of Adam in float32: of the model, or of its adapter."""
    return 3 * FULL * (size.shape.adapted(model.lora_rank) or size.parameters) / GIB


class JudgeLoad(NamedTuple):
    """Of one unit of work: judge calls, and tokens that the judge reads for them all."""

    calls: float
    read: float

    def times(self, number: float) -> "JudgeLoad":
        return JudgeLoad(self.calls * number, self.read * number)

    def plus(self, other: "JudgeLoad") -> "JudgeLoad":
        return JudgeLoad(self.calls + other.calls, self.read + other.read)


def gates_and_rubric(gates: int, assumptions: Assumptions) -> JudgeLoad:
    """Of one candidate that passes its gates; each call reads the document."""
    read = assumptions.judge_prompt_tokens + assumptions.document_tokens
    return JudgeLoad(gates + 1, (gates + 1) * read)


def grading(answers: float, assumptions: Assumptions) -> JudgeLoad:
    """One call per answer and criterion."""
    calls = answers * assumptions.criteria
    return JudgeLoad(calls, calls * (assumptions.judge_prompt_tokens + assumptions.answer_tokens))


def comparison(assumptions: Assumptions) -> JudgeLoad:
    """Of one pair of whole rollouts."""
    return JudgeLoad(1, assumptions.judge_prompt_tokens + 2 * _tokens_of(Style.SCORES.view, assumptions))


def step_load(config: RunConfig, assumptions: Assumptions) -> JudgeLoad:
    """Of one step of the Solver: every group by its design, or flat ones alone where groups are routed."""
    solver = config.solver
    group = group_load(solver, assumptions)
    routing = solver.routing
    if routing is None:
        return group.times(solver.batch)
    routed = group.times(solver.batch * assumptions.flat_share)
    if routing.budget is not None and routed.calls > routing.budget:
        routed = routed.times(routing.budget / routed.calls)
    if routing.by == "verifier":
        return routed
    return routed.plus(grading(solver.batch * solver.group_size, assumptions))


def group_load(solver: SolverConfig, assumptions: Assumptions) -> JudgeLoad:
    """Of one group whose answers all differ: the calls that the design itself reserves for it."""
    reward, number = solver.reward, solver.group_size
    written = 0
    if getattr(reward, "rubrics", None) == "query":
        # A rubric that is not written yet counts with the most criteria that it can have; here it has the usual ones.
        reward, written = reward.model_copy(update={"rubrics": "task"}), 1
    design = open_design(reward, solver, len)
    rubric = Rubric(task_id="t", criteria=(Criterion(text="c"),) * assumptions.criteria)
    task = Task(id="t", text="t", type="t", document_id="d")
    names = [f"answer {member}" for member in range(number)]
    rollouts = list(map(Rollout.of_answer, names, names))
    calls = design.most_calls(task, rubric, design.entrants(rollouts))
    # One call judges a pair, unless its groups are larger, or a single rollout.
    candidates = getattr(reward, "group_size", 2) if isinstance(design, ComparisonDesign) else 1
    shown = candidates * _tokens_of(design.view, assumptions)
    read = calls * (assumptions.judge_prompt_tokens + shown) + written * assumptions.judge_prompt_tokens
    return JudgeLoad(calls + written, read)


def _tokens_of(view: View, assumptions: Assumptions) -> int:
    match view:
        case View.ANSWER:
            return assumptions.answer_tokens
        case View.CORE:
            return assumptions.rollout_tokens
        case View.TRACE:
            return assumptions.rollout_tokens + assumptions.read_tokens


_DIMENSIONS = 768
_PASSAGE_BYTES = 660
"""A passage of 100 words with its title, as JSON."""
_ENCODER_BYTES = 440_000_000
"""E5-base-v2 in float32."""


class RetrievalPlan(NamedTuple):
    """Memory of the server in GiB: what its search processes and a busy one's index take, and what it has."""

    passages: int
    memory_gib: float
    requested_gib: float

    @property
    def is_short(self) -> bool:
        """Whether the server would have too little memory."""
        return self.memory_gib > self.requested_gib


def retrieval_plan(config: RunConfig, assumptions: Assumptions) -> RetrievalPlan | None:
    """None for a run that searches nothing, words only, or an index that it does not build."""
    cluster, passages = config.cluster, assumptions.passages
    builds = cluster.retriever.serve and cluster.prepare.encoder is not None and not cluster.tiny
    if config.corpus.path == "none" or config.search.url is not None or not builds:
        return None
    # For the profile of `prepare.index`, with an encoder of E5-base's size.
    words = [word for option in cluster.prepare.index for word in option.split("=")]
    named = words[words.index("--profile") + 1] if "--profile" in words else ProfileName.BM25
    corpus = passages * _PASSAGE_BYTES
    busy = busy_bytes(ProfileName(named), rows=passages, dimensions=_DIMENSIONS, corpus_bytes=corpus)
    taken = (busy + held_bytes(_ENCODER_BYTES, cluster.retriever.workers)) / GIB
    return RetrievalPlan(passages, taken, amount(cluster.retriever.memory) / GIB)


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

    config: RunConfig
    model: ModelSize
    once: tuple[StagePlan, ...]
    stages: tuple[StagePlan, ...]
    assumptions: Assumptions

    @property
    def gpus(self) -> int:
        return most_gpus(self.config.cluster)

    @property
    def iterations(self) -> int:
        return self.config.iterations

    @property
    def pods(self) -> tuple[PodMemory, ...]:
        return pod_memory(self.config, self.model, self.assumptions)

    @property
    def retrieval(self) -> RetrievalPlan | None:
        return retrieval_plan(self.config, self.assumptions)

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
    config: RunConfig,
    *,
    gates: int,
    assumptions: Assumptions,
    parameters: float | None = None,
    short: float | None = None,
) -> ResourcePlan:
    """A plan of one iteration. `gates` are judge calls before the rubric, `short` is the share of tasks with a short
    answer, which readers answer, all without a judge. Raises ConfigError for a model whose size is not known.
    """
    size = model_size(config.model.path, parameters)
    plan = partial(_stage_plan, config=config, size=size, assumptions=assumptions)
    short = float(config.judge.kind == "verifier") if short is None else short
    once = tuple(map(plan, _before(config, gates, assumptions, short)))
    stages = tuple(map(plan, _stages(config, gates, assumptions, short)))
    return ResourcePlan(config, size, once, stages, assumptions)


class _Counts(NamedTuple):
    """How often a stage does what; `trained` is set where it ends with an update of weights."""

    stage: Stage
    times: int
    prompts: int
    challenger_rollouts: int
    solver_rollouts: int
    judge: JudgeLoad
    trained: TrainConfig | None = None


def _before(config: RunConfig, gates: int, assumptions: Assumptions, short: float) -> Iterator[_Counts]:
    """Held-out tasks are not tried by a Solver: what passes the gates is kept. Of short answers no judge is asked."""
    held_out = config.compare.tasks
    if config.held_out is None:
        candidates = round(held_out / assumptions.gates_passed)
        calls = gates_and_rubric(gates, assumptions).times(candidates * (1 - short))
        yield _Counts(Stage.TASKS, 1, candidates, candidates, 0, calls)
    calls = grading(held_out * (1 - short), assumptions)
    yield _Counts(Stage.COMPARE, 1, held_out, 0, held_out, calls)


def _stages(config: RunConfig, gates: int, assumptions: Assumptions, short: float) -> Iterator[_Counts]:
    """As if every task of training passed its gates, as the paper's volume is counted."""
    challenger, solver, tasks = config.challenger, config.solver, config.tasks
    asked, iterations = gates_and_rubric(gates, assumptions), config.iterations
    trained = sum(is_challenger_trained(config, number) for number in range(1, iterations + 1))
    if trained:
        prompts = challenger.steps * challenger.batch
        rollouts = prompts * challenger.group_size
        calls = asked.plus(grading(challenger.rollouts, assumptions)).times(rollouts * (1 - short))
        tries = round(rollouts * (challenger.rollouts + short * _readers(config)))
        yield _Counts(Stage.CHALLENGER, trained, prompts, rollouts, tries, calls, challenger)
    if solver.tasks is None:
        candidates = round(tasks.target / assumptions.acceptance)
        calls = asked.plus(grading(tasks.rollouts, assumptions)).times(candidates * (1 - short))
        tries = round(candidates * (tasks.rollouts + short * _readers(config)))
        yield _Counts(Stage.TASKS, iterations, candidates, candidates, tries, calls)
    prompts = solver.steps * solver.batch
    calls = step_load(config, assumptions).times(solver.steps)
    yield _Counts(Stage.SOLVER, iterations, prompts, 0, prompts * solver.group_size, calls, solver)
    held_out = config.compare.tasks
    # S_t meets the t Solvers before it: (T + 1) / 2 of them on average over T iterations.
    pairs = held_out * (iterations + 1) / 2 * (2 if config.compare.both_orders else 1)
    calls = grading(held_out * (1 - short), assumptions).plus(comparison(assumptions).times(pairs))
    yield _Counts(Stage.COMPARE, iterations, held_out, 0, held_out, calls)


def _readers(config: RunConfig) -> int:
    """Answers by which a task with a short answer is gated."""
    used = not {"misread", "known"}.isdisjoint(config.tasks.answer_gates)
    return config.tasks.readers.opened + config.tasks.readers.closed if used else 0


def _stage_plan(
    counts: _Counts, *, config: RunConfig, size: ModelSize, assumptions: Assumptions
) -> StagePlan:
    judge_model = judge_size(config.cluster.judge.model, size)
    scale, judge_scale = (model.active / 8e9 / 3600 for model in (size, judge_model))
    rollouts = counts.challenger_rollouts + counts.solver_rollouts
    sampled, read = rollouts * assumptions.rollout_tokens, rollouts * assumptions.read_tokens
    generate = sampled / assumptions.decode_rate + read / assumptions.prefill_rate
    # A verifier is no model: it compares in this process.
    asked = counts.judge.times(0 if config.judge.kind == "verifier" else 1 + config.judge.canary_rate)
    written = asked.calls * assumptions.judge_tokens
    judge = written / assumptions.decode_rate + asked.read / assumptions.prefill_rate
    text, train = (sampled + read + written) * assumptions.text_bytes / GIB, 0.0
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
        *disk,
    )
