"""Training of the two roles."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from scope_selfplay.base.errors import ConfigError
from scope_selfplay.config.base import ConfigSection
from scope_selfplay.config.rewards import ROUTED, Reward, Routing, RubricReward, preset_of


class TrainConfig(ConfigSection):
    steps: int = Field(default=20, ge=1)
    """GRPO steps per iteration (Table 9)."""
    batch: int = Field(ge=1)
    """Prompts per step (Table 9: Challenger 64, Solver 256)."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts per prompt, G (Table 9)."""
    micro_tokens: int = Field(default=16_384, ge=1)
    """Tokens of a forward pass of the trainer, padding included: rows of similar length go together, gradients are
    accumulated up to batch * group_size rollouts. A row that is longer has a pass of its own."""
    updates: int = Field(default=1, ge=1)
    """Updates of the weights per step: its groups are dealt out to so many mini-batches. From the second on the policy
    is no longer the one that sampled, and the clips bind."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the rollouts of each step (mu of GRPO, num_iterations of TRL)."""
    overlap: Literal[0, 1] = 0
    """Steps that rollouts are made ahead: with 1 those of the next step come while this one is updated, from weights
    that are one step old, with capped importance weights (`sampling_cap`). Engine in_process or vllm_server."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """Learning rate after the warm-up (Table 9)."""
    warmup_ratio: float = Field(default=0.03, ge=0, lt=1)
    """Share of the steps in which the learning rate rises (Table 9)."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Maximum gradient norm (Table 9)."""
    kl_beta: float = Field(default=1e-3, ge=0)
    """Weight of the KL divergence from M0, beta (equation 3, Table 9)."""
    loss: Literal["grpo", "dr_grpo", "dapo", "cispo", "gspo"] = "grpo"
    """Policy loss: `grpo` (the paper), `dr_grpo` (no length or std scaling), `dapo` (mean over tokens), `cispo`
    (clips the importance weights, not the objective), `gspo` (one importance ratio per row). Ratios are clipped as in
    its paper: to 1 - 0.2 and 1 + 0.2; dapo 1 + 0.28; cispo 1 + 2.0 only; gspo 1 - 3e-4 and 1 + 4e-4."""
    sampling_cap: float | None = Field(default=None, ge=0)
    """Cap of the weights that correct for the difference between the engine's and the trainer's probability of a token:
    the token's loss is multiplied by min(trained / sampled, cap). 0 means no weights; when left out, 3 (as in TRL) with
    vLLM engines or overlap and no weights with in_process alone."""
    save_every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints, from which a killed stage resumes: with 1 a kill costs the step at work alone. When
    left out, as often as takes 5 % of the time, as saves are measured. The last two stay until the stage ends."""
    max_prompt: int = Field(ge=8)
    """Maximum prompt tokens (Table 9: Challenger 1,024, Solver 2,048)."""
    max_response: int = Field(default=8192, ge=8)
    """Maximum tokens of all turns after the prompt, including tool results (Table 9)."""
    max_turn: int | None = Field(default=None, ge=8)
    """Maximum tokens of a single turn; a turn that reaches the limit ends the rollout as truncated."""
    format_weight: float = Field(default=0.5, ge=0)
    """lambda_fmt (equations 4 and 6)."""

    def is_save_due(self, step: int, since: float, took: float | None) -> bool:
        """Whether to save after `step` (from 1), `since` seconds after the last save of this process, which `took`
        seconds, or after its beginning (None).
        """
        if self.save_every:
            return step % self.save_every == 0
        # Nobody knows what the first one takes. Who is killed before it loses no more than loading a model takes.
        return since >= (300.0 if took is None else 19 * took)

    def mistakes(self) -> Iterator[str]:
        if self.batch % self.updates:
            yield f"updates ({self.updates}) must divide the groups of a step, batch ({self.batch})"
        if self.sampling_cap is not None and 0 < self.sampling_cap < 1:
            yield (
                f"sampling_cap ({self.sampling_cap}) would weigh tokens less that engine and trainer agree on; use at "
                "least 1, or 0 for no weights"
            )


class ChallengerConfig(TrainConfig):
    batch: int = Field(default=64, ge=1)
    """Documents per step (Table 9)."""
    max_prompt: int = Field(default=1024, ge=8)
    """Maximum prompt tokens (Table 9)."""
    freeze_after: int | None = Field(default=None, ge=0)
    """Last iteration in which the Challenger is trained: with 1, C_1 writes all later tasks, as in the paper's ablation
    of co-evolution (figure 3); with 0, the base model does. When left out, it is trained in every iteration."""
    rollouts: int = Field(default=8, ge=1)
    """Solver rollouts per task to estimate its difficulty, N (Table 9)."""
    target: float = Field(default=0.5, gt=0, lt=1)
    """Mean score at which the difficulty reward peaks, tau (equation 5)."""
    reward: Literal["difficulty", "frontier"] = "difficulty"
    """`difficulty`: equation 4. `frontier`: in place of the difficulty 4p(1-p) of the mean score p, less the share of
    the step's other tasks that ask alike, at least 0."""
    invalid_searches: int = Field(default=1, ge=0)
    """Turns without a valid action that are answered with a reminder of the format; one more ends the rollout."""


KEPT_CHECKPOINTS = 2
"""So many checkpoints stay while a stage trains: with one there is none to go back to where the newest is damaged."""

INHERITED = tuple(key for key in TrainConfig.model_fields if key not in ("batch", "max_prompt"))
"""Settings of `solver` that `challenger` has, too: it trains in the same way but for what it states."""


class SolverConfig(TrainConfig):
    batch: int = Field(default=256, ge=1)
    """Tasks per step (Table 9)."""
    max_prompt: int = Field(default=2048, ge=8)
    """Maximum prompt tokens (Table 9)."""
    max_search_turns: int = Field(default=5, ge=0)
    """Maximum searches of one rollout, in training and evaluation."""
    tell_budget: bool = False
    """Tell the Solver in its prompt how many tokens it has (max_response); the paper's prompt has a place for that."""
    tasks: str | None = None
    """Train on the tasks of this file instead of the Challenger's, which then is not trained: a run's candidates, or
    JSON lines with `question` and, where there is one, its `rubric` or `answer` (the paper's baseline GRPO_data)."""
    resample: int = Field(default=0, ge=0)
    """Rounds per step in which groups whose rewards are all equal are replaced by groups of other tasks (dynamic
    sampling, DAPO); a step takes at most that many times its rollouts and judge calls more."""
    reward: Reward = RubricReward()
    """Reward: the name of a preset or a design, or a mapping with `design` and its settings."""
    routing: Routing = None
    """Use `solver.reward` only for groups whose `rubric` or `verifier` rewards are all equal; others keep those. `auto`
    takes the verifier where a task has a reference answer; the presets of Reasoning Arena imply it."""
    search_weight: float = Field(default=0.1, ge=0)
    """lambda_search (equation 6); three searches have all of it (Table 9)."""
    length_soft: int = Field(default=1024, ge=1)
    """Answer tokens up to which the score is not reduced (Table 9)."""
    length_hard: int = Field(default=2048, ge=2)
    """Answer tokens from which the factor is the floor (Table 9)."""
    length_floor: float = Field(default=0.05, ge=0, le=1)
    """Share of the rubric score that an answer of length_hard tokens or more keeps (Table 9); 1 is the paper's ablation
    without the length factor."""

    @property
    def needs_rubrics(self) -> bool:
        """Whether the rewards of a group depend on the rubric of its task."""
        by_rubric = self.reward.design == "rubric" or (
            self.routing is not None and self.routing.by != "verifier"
        )
        return by_rubric or getattr(self.reward, "rubrics", None) == "task"

    @model_validator(mode="before")
    @classmethod
    def _preset_switches_routing_on(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "routing" not in given and preset_of(given.get("reward")) in ROUTED:
            return {**given, "routing": "auto"}
        return given

    def mistakes(self) -> Iterator[str]:
        yield from super().mistakes()
        by = self.routing.by if self.routing is not None else None
        if by == self.reward.design or (by == "auto" and self.reward.design == "verifier"):
            yield (
                f"routing by {by} needs another reward to go to than {self.reward.design}; "
                "for example solver.reward=live"
            )
        if self.resample and self.routing is not None and self.routing.budget is not None:
            yield (
                f"resample ({self.resample}) would spend routing.budget ({self.routing.budget}), which bounds "
                "the calls of a step, in every round again; leave one of them out"
            )
        if self.length_hard <= self.length_soft:
            yield f"length_hard ({self.length_hard}) must exceed length_soft ({self.length_soft})"


def check_shares(settings: TrainConfig, processes: int) -> int:
    """The groups of a step in each process. Raises ConfigError where they cannot be shared evenly."""
    if settings.batch % processes:
        raise ConfigError(
            f"{processes} processes cannot share a batch of {settings.batch} groups of {settings.group_size} rollouts "
            f"evenly: a group's rewards are compared in one process; use a batch that {processes} divides"
        )
    groups = settings.batch // processes
    if groups % settings.updates:
        raise ConfigError(
            f"updates ({settings.updates}) must divide the {groups} groups that each of {processes} processes has of a "
            f"step (batch {settings.batch} / {processes})"
        )
    return groups


def check_engine(engine: str, gpus: int) -> None:
    """Raises ConfigError where model.engine cannot sample the policy that so many GPUs train together."""
    if engine == "in_process" and gpus > 1:
        raise ConfigError(
            f"model.engine: in_process samples from a whole model, and each of {gpus} GPUs holds a share of the policy "
            "in training; set model.engine: vllm_colocated, or vllm_server with model.vllm_url"
        )
