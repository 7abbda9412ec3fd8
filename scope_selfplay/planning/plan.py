"""A plan of one iteration, stage by stage, and of the whole run."""

from collections.abc import Sequence
from typing import NamedTuple

from scope_selfplay.config import ModelConfig, RunConfig, TrainConfig
from scope_selfplay.errors import ConfigError
from scope_selfplay.planning.memory import ModelSize, model_size
from scope_selfplay.planning.plan import candidate_judge_calls, iteration_volume
from scope_selfplay.store import Stage

GIB = 2.0**30
LAYOUTS = {
    6: {"challenger": {"trainer": 2, "solver": 2, "judge": 2}, "solver": {"trainer": 4, "judge": 2}},
    8: {"challenger": {"trainer": 4, "solver": 2, "judge": 2}, "solver": {"trainer": 4, "judge": 4}},
    1: {"challenger": {"trainer": 1}, "solver": {"trainer": 1}},
}


class Assumptions(NamedTuple):
    """What the config does not say. Rates are per GPU for a model of 8 billion parameters, and scale with its size."""

    acceptance: float = 0.4
    """Share of candidates that task making keeps (SCOPE reports about this)."""
    criteria: int = 4
    """Criteria of a rubric (the paper: 3 to 5)."""
    rollout_tokens: int = 1500
    """Sampled tokens of a rollout, all turns."""
    read_tokens: int = 2500
    """Tokens of a rollout that were read: prompt and search results."""
    judge_read_tokens: int = 1800
    """Tokens of a judge prompt, most of them a prefix that the criteria of an answer share."""
    judge_tokens: int = 500
    """Tokens that the judge writes per call, thinking included."""
    decode_rate: float = 3000.0
    """Tokens per second that an engine writes with full batches."""
    prefill_rate: float = 20_000.0
    """Tokens per second that an engine reads."""
    flops: float = 990e12
    """Peak bf16 operations per second of the GPU."""
    utilisation: float = 0.35
    """Share of the peak that a training pass reaches."""
    gpu_gib: float = 80.0
    """Memory of a GPU."""


class StagePlan(NamedTuple):
    """One stage of one iteration: counts, tokens, and hours of GPUs that are busy (those that are held are more)."""

    stage: Stage
    prompts: int
    challenger_rollouts: int
    solver_rollouts: int
    judge_calls: int
    tokens: int
    generate_hours: float
    judge_hours: float
    train_hours: float


class PodMemory(NamedTuple):
    """GiB per GPU of one pod; `parts` add up to `gib`."""

    pod: str
    gpus: int
    gib: float
    parts: dict[str, float]
    fits: bool
    advice: str


class ResourcePlan(NamedTuple):
    """`stages` are those of one iteration; totals over the run are these times `iterations`."""

    model: ModelSize
    gpus: int
    iterations: int
    stages: tuple[StagePlan, ...]
    pods: tuple[PodMemory, ...]
    assumptions: Assumptions

    def total(self, name: str) -> float:
        """One column of the stages added up over one iteration."""
        return float(sum(getattr(each, name) for each in self.stages))

    @property
    def gpu_hours(self) -> float:
        """Busy hours of all iterations."""
        names = ("generate_hours", "judge_hours", "train_hours")
        return self.iterations * sum(self.total(name) for name in names)


def make_plan(
    config: RunConfig, *, gpus: int, gates: int, assumptions: Assumptions, parameters: float | None = None
) -> ResourcePlan:
    """A plan of one iteration. `gates` are judge calls before the rubric. Raises ConfigError for an unknown layout."""
    if gpus not in LAYOUTS:
        raise ConfigError(
            f"--gpus: found {gpus}, layouts are known for {', '.join(map(str, sorted(LAYOUTS)))}"
        )
    size = model_size(config.model.path, parameters)
    stages = tuple(_priced(config, each, size, assumptions) for each in _counted(config, gates, assumptions))
    return ResourcePlan(
        size, gpus, config.iterations, stages, _pods(config, gpus, size, assumptions), assumptions
    )


class _Counts(NamedTuple):
    stage: Stage
    prompts: int
    challenger: int
    solver: int
    calls: int
    trained: TrainConfig | None = None


def _counted(config: RunConfig, gates: int, assumptions: Assumptions) -> Sequence[_Counts]:
    """As if every task of training passed its gates, as the paper's volume is counted."""
    learner, solver, tasks = config.challenger, config.solver, config.tasks
    criteria = assumptions.criteria
    volume = iteration_volume(
        steps=learner.steps,
        challenger_prompts=learner.batch,
        group_size=learner.group_size,
        difficulty_rollouts=learner.rollouts,
        criteria=criteria,
    )
    found: list[_Counts] = []
    if not learner.frozen:
        calls = volume.challenger_rollouts * candidate_judge_calls(learner.rollouts, criteria, gates)
        prompts = learner.steps * learner.batch
        found.append(
            _Counts(
                Stage.CHALLENGER,
                prompts,
                volume.challenger_rollouts,
                volume.difficulty_rollouts,
                calls,
                learner,
            )
        )
    if solver.tasks is None:
        candidates = round(tasks.target / assumptions.acceptance)
        calls = candidates * candidate_judge_calls(tasks.rollouts, criteria, gates)
        found.append(_Counts(Stage.TASKS, candidates, candidates, candidates * tasks.rollouts, calls))
    prompts = solver.steps * solver.batch
    rollouts = prompts * solver.group_size
    found.append(_Counts(Stage.SOLVER, prompts, 0, rollouts, rollouts * criteria, solver))
    held_out = config.compare.tasks
    found.append(_Counts(Stage.COMPARE, held_out, 0, held_out, held_out * criteria))
    return found


def _priced(config: RunConfig, counts: _Counts, size: ModelSize, assumptions: Assumptions) -> StagePlan:
    scale = size.parameters / 8e9
    rollouts = counts.challenger + counts.solver
    sampled = rollouts * assumptions.rollout_tokens
    read = rollouts * assumptions.read_tokens
    generated = sampled / assumptions.decode_rate + read / assumptions.prefill_rate
    judged = counts.calls * (
        assumptions.judge_tokens / assumptions.decode_rate
        + assumptions.judge_read_tokens / assumptions.prefill_rate
    )
    trained = 0.0
    if counts.trained is not None:
        own = counts.prompts * counts.trained.group_size
        tokens = own * (assumptions.rollout_tokens + assumptions.read_tokens)
        # 6 operations per parameter and token forward and back, 2 for the reference, 2 for recomputed activations.
        passes = 10 if counts.trained.kl_beta else 8
        trained = passes * size.parameters * tokens / (assumptions.flops * assumptions.utilisation)
    return StagePlan(
        counts.stage,
        counts.prompts,
        counts.challenger,
        counts.solver,
        counts.calls,
        sampled + read,
        scale * generated / 3600,
        scale * judged / 3600,
        trained / 3600,
    )


def _pods(config: RunConfig, gpus: int, size: ModelSize, assumptions: Assumptions) -> tuple[PodMemory, ...]:
    pods: list[PodMemory] = []
    for stage, parts in LAYOUTS[gpus].items():
        for name, count in parts.items():
            settings = config.challenger if stage == "challenger" else config.solver
            if name == "trainer":
                pods.append(_trainer(f"{stage} trainer", config.model, settings, count, size, assumptions))
            elif not any(each.pod == name and each.gpus == count for each in pods):
                pods.append(_server(name, config, count, size, assumptions))
    return tuple(pods)


def _trainer(
    pod: str, model: ModelConfig, settings: TrainConfig, gpus: int, size: ModelSize, assumptions: Assumptions
) -> PodMemory:
    """Fully sharded: weights, gradients and reference in float32, two moments of Adam, a micro batch of activations.

    With an adapter only that has gradients and moments, and the reference is the model without it.
    """
    billion = size.parameters / GIB / gpus
    rank = model.lora.rank
    learnt = rank * size.shape.adapted(model.lora.target_modules) / GIB / gpus if rank else billion
    tokens = settings.micro_batch * (settings.max_prompt + settings.max_response)
    parts = {
        "weights": 4 * (billion + (learnt if rank else 0.0)),
        "gradients": 4 * learnt,
        "optimizer": 8 * learnt,
        "reference": 4 * billion if settings.kl_beta and not rank else 0.0,
        # One layer's inputs per token are kept with gradient checkpointing, and one layer is worked on at a time.
        "activations": tokens * 2 * size.shape.hidden * (size.shape.layers + 4) / GIB,
        "engine": _engine(model, settings, size, assumptions),
    }
    total = sum(parts.values())
    fits = total <= assumptions.gpu_gib
    return PodMemory(
        pod, gpus, total, parts, fits, "" if fits else _advice(parts, model, settings, assumptions)
    )


def _engine(model: ModelConfig, settings: TrainConfig, size: ModelSize, assumptions: Assumptions) -> float:
    """GiB of what samples on the trainer's GPU."""
    match model.engine:
        case "vllm_colocated":
            return model.vllm_memory * assumptions.gpu_gib
        case "vllm_server":
            return 0.0
        case "in_process":
            # A whole copy of the weights and every slot at its full length, in float32.
            length = min(model.max_length, settings.max_prompt + settings.max_response)
            per_token = 2 * (size.cache_bytes or 4 * size.shape.layers * size.shape.keys)
            return (4 * size.parameters + model.slots * length * per_token) / GIB


def _advice(
    parts: dict[str, float], model: ModelConfig, settings: TrainConfig, assumptions: Assumptions
) -> str:
    offloaded = sum(parts.values()) - parts["optimizer"] - parts["reference"]
    enough = "fits" if offloaded <= assumptions.gpu_gib else "still does not fit"
    others = ["more GPUs", f"micro_batch {max(1, settings.micro_batch // 2)}"]
    if not model.lora.rank:
        others.append("model.lora")
    if model.engine == "in_process":
        others.append("fewer model.slots, or vLLM")
    return f"with FSDP's offload to the host {offloaded:.0f} GiB, which {enough}; or {', '.join(others)}"


def _server(name: str, config: RunConfig, gpus: int, size: ModelSize, assumptions: Assumptions) -> PodMemory:
    """Weights in bf16 shared by the GPUs; what is left holds the cache."""
    weights = 2 * size.parameters / GIB / gpus
    room = 0.9 * assumptions.gpu_gib - weights
    advice = ""
    if size.cache_bytes:
        sequences = int(room * GIB * gpus // (size.cache_bytes * config.model.max_length))
        advice = f"room for {max(sequences, 0)} sequences of {config.model.max_length} tokens"
    fits = room > 0
    return PodMemory(
        name,
        gpus,
        max(0.9 * assumptions.gpu_gib, weights),
        {"weights": weights, "cache": max(room, 0.0)},
        fits,
        advice if fits else "more GPUs, or a smaller model",
    )
