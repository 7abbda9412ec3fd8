"""Training of the two roles, and the Solver's rewards: settings per design, presets with those of the papers.

`solver.reward` takes the name of a preset or a design, or a mapping with such a name and changed settings:
`arenarl`, or `{design: arena, topology: swiss}`, or `{design: tournament_grpo_2_1_1, repeats: 2}`.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from scope_selfplay.base.errors import ConfigError, did_you_mean
from scope_selfplay.config.base import ConfigSection

Rubrics = Literal["task", "query", "none"]
VerifierCheck = Literal["auto", "exact", "boxed", "f1", "number"]
ANCHORED = ("anchor", "single_elimination")
"""Topologies whose first entrant is the greedy rollout."""


class RewardSettings(ConfigSection):
    """Settings of every design."""

    max_missing: float = Field(default=0.25, ge=0, le=1)
    """Largest share of missing judgements; a group with more is left out of the update."""


class RubricReward(RewardSettings):
    """SCOPE equation 6, with the weights and lengths of `solver`."""

    design: Literal["rubric"] = "rubric"
    """One call per criterion and answer decides whether it is met; length, format and searches as in SCOPE."""


class VerifierReward(RewardSettings):
    design: Literal["verifier"] = "verifier"
    """The task's reference answer decides, without a judge (Reasoning Arena, section 3)."""
    check: VerifierCheck = "auto"
    """How an answer is compared with the reference: `exact` requires equal text, ignoring case and white space; `boxed`
    requires an equal expression in the last `\\boxed{...}`; `f1` gives a part of 1 for the words that both share, as
    SQuAD's script counts them, signs and decimal points too: of two candidates with the right one .67, of four .4;
    `number` compares the last number, years exactly and others give or take a hundredth; `auto` is `boxed` for
    questions given with an answer and for answers with a box, else `exact`."""


class QueryRubrics(RewardSettings):
    rubrics: Rubrics = "query"
    """The rubric shown: the `task`'s own, one of the `query` alone (a question's own, else written), or `none`."""


class TaskRubrics(RewardSettings):
    rubrics: Rubrics = "task"
    """The rubric shown: the `task`'s own, one written from the `query` alone, or `none` (ArenaRL)."""


class ImplicitReward(QueryRubrics):
    design: Literal["implicit"] = "implicit"
    """One score from 0 to 10 for the whole answer, plus the format (Tournament-GRPO, equations 11-12)."""


class ExplicitReward(RewardSettings):
    design: Literal["explicit"] = "explicit"
    """A score per criterion, weighted as in the rubric (by priority, 3/2/1, if all its weights are equal), and the
    format, half each (Tournament-GRPO, equations 13-14)."""
    rubrics: Literal["task", "query"] = "query"
    """The rubric scored: the `task`'s own, or one of the `query` alone (a question's own, else written)."""
    aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    """Whether scores are summed and the sum is normalised in its group, or every criterion and the format is normalised
    in its group first, then weighted and summed, and the sums are normalised over the step (GDPO; TRL's names)."""


class PairwiseReward(QueryRubrics):
    design: Literal["pairwise"] = "pairwise"
    """Share of pairs won, each pair judged once, plus the format (Tournament-GRPO, equation 15)."""


class TraceReward(RewardSettings):
    """Settings of the designs that have whole traces judged as Reasoning Arena does."""

    thoughts: bool = True
    """Show the judge what stands inside think tags, too; the paper shows it the response alone (appendix A)."""


class PointwiseReward(TraceReward):
    design: Literal["pointwise"] = "pointwise"
    """The judge marks each rollout by itself (the pointwise baselines of Reasoning Arena and ArenaRL)."""
    prompt: Literal["correctness", "proof", "answer"] = "correctness"
    """What is marked: a whole trace with 1, 0.5 or 0, for a correct answer (Reasoning Arena's Adaptive Pointwise) or
    for a valid proof or derivation of one (its RLAIF); or the `answer` alone with 0 to 10, by the criteria by which the
    prompt pack compares trajectories (ArenaRL's GRPO and GSPO), a tenth of which is the reward."""


class WinRateReward(TraceReward):
    design: Literal["win_rate"] = "win_rate"
    """Mean soft outcome over all pairs, each pair judged once (Reasoning Arena, equation 8)."""


class GroupTournamentReward(QueryRubrics):
    design: Literal["group_tournament"] = "group_tournament"
    """Repeated tournaments of small groups; points per win, min-max, plus the format (Tournament-GRPO, Algorithm 1)."""
    group_size: int = Field(default=2, ge=2)
    """Answers in one judge call, G."""
    winners: int = Field(default=1, ge=1)
    """Answers that advance from each group, K_win."""
    final: int = Field(default=1, ge=1)
    """A tournament ends with at most this many answers, K_final."""
    repeats: int = Field(default=4, ge=1)
    """Tournaments per group of rollouts, M."""

    def mistakes(self) -> Iterator[str]:
        if not self.winners < self.group_size or self.winners > self.final:
            yield (
                f"group_size ({self.group_size}), winners ({self.winners}) and final ({self.final}) need "
                "winners < group_size and winners <= final"
            )


class ArenaReward(TaskRubrics):
    design: Literal["arena"] = "arena"
    """A tournament of whole trajectories, scored in pairs; rewards by rank (ArenaRL, section 4)."""
    topology: Literal["round_robin", "anchor", "single_elimination", "double_elimination", "swiss"] = (
        "single_elimination"
    )
    """Topology of the tournament; with `anchor` and `single_elimination` the first rollout of a group is greedy."""
    both_orders: bool = True
    """Judge every pair in both orders and average the scores (equation 3)."""
    score: Literal["margin", "own"] = "margin"
    """What is averaged: score differences within a call, or an answer's own scores (the paper)."""
    reset: bool = False
    """With `double_elimination`: who comes from the losers' bracket and wins the final has to win it again, because one
    defeat eliminates nobody; one more match at most, which is judged anew."""
    results: bool = True
    """Show the judge what the tools returned, too; the paper shows it thoughts, calls and the answer (section 3.3)."""

    @property
    def has_anchor(self) -> bool:
        return self.topology in ANCHORED

    def mistakes(self) -> Iterator[str]:
        if self.reset and self.topology != "double_elimination":
            yield (
                f"reset does nothing with topology {self.topology}, only with double_elimination; leave it out"
            )


class LiveReward(TraceReward):
    design: Literal["live"] = "live"
    """A finished rollout meets the best, worst and median so far; Bradley-Terry, min-max (Reasoning Arena)."""


class BalancedReward(TaskRubrics):
    design: Literal["balanced"] = "balanced"
    """Evenly spread pairs in a single round; one position offset and one score scale per step; min-max."""
    meetings: float = Field(default=4.5, ge=1)
    """Average number of comparisons per answer: with 8 answers, 4.5 means 18 calls and 7 means 28."""


AnyReward = (
    RubricReward
    | VerifierReward
    | ImplicitReward
    | ExplicitReward
    | PairwiseReward
    | PointwiseReward
    | WinRateReward
    | GroupTournamentReward
    | ArenaReward
    | LiveReward
    | BalancedReward
)

DESIGNS: dict[str, type[AnyReward]] = {
    kind.model_fields["design"].default: kind for kind in get_args(AnyReward)
}
"""Every design by its name."""


def _tournament(**sizes: int) -> dict[str, Any]:
    return {"design": "group_tournament", **sizes}


PRESETS: dict[str, dict[str, Any]] = {
    **{name: {"design": name} for name in DESIGNS},
    "tournament_grpo_2_1_1": _tournament(group_size=2, winners=1, final=1, repeats=4),
    "tournament_grpo_4_2_2": _tournament(group_size=4, winners=2, final=2, repeats=8),
    "gdpo": {"design": "explicit", "aggregation": "normalize_then_sum"},
    "arenarl": {"design": "arena", "score": "own", "rubrics": "none", "results": False},
    "arenarl_pointwise": {"design": "pointwise", "prompt": "answer"},
    "reasoning_arena": {"design": "win_rate", "thoughts": False},
    "reasoning_arena_live": {"design": "live", "thoughts": False},
    "rlaif": {"design": "pointwise", "prompt": "proof", "thoughts": False},
    "adaptive_pointwise": {"design": "pointwise", "prompt": "correctness", "thoughts": False},
}
"""Names for `solver.reward`: every design with its defaults, and the settings of the papers."""

ROUTED = frozenset({"reasoning_arena", "reasoning_arena_live", "adaptive_pointwise"})
"""Presets for groups without variance: they switch `solver.routing` on unless it is set."""


class RoutingSettings(ConfigSection):
    by: Literal["auto", "rubric", "verifier"] = "auto"
    """Reward of groups in which it varies; groups in which it is constant get `solver.reward` instead. `auto` is the
    verifier for tasks with a reference answer (the paper) and the rubric for others."""
    check: VerifierCheck = "auto"
    """How a verifier compares an answer with the reference, as in the reward `verifier`."""
    budget: int | None = Field(default=None, ge=0)
    """Maximum judge calls per step for such groups, drawn at random until it is spent; null is unlimited."""


GREEDILY_JUDGED = frozenset(
    name
    for name, settings in PRESETS.items()
    if settings["design"] in ("implicit", "explicit", "pairwise", "group_tournament")
)
"""Designs and presets of Tournament-GRPO: their judge samples at temperature 0 and top_p 0.95 (table 4) unless
`judge.calls.compare` says otherwise."""


def preset_of(reward: object) -> str | None:
    """The preset or design that a reward setting names, in either form."""
    name = reward.get("design") if isinstance(reward, Mapping) else reward
    return name if isinstance(name, str) else None


def _spelt_out(given: object) -> object:
    """The settings of a design, from a name or a mapping with a name."""
    if isinstance(given, ConfigSection):
        return given
    names = ", ".join(PRESETS)
    if not isinstance(given, str | Mapping):
        raise ValueError(f"found {given!r}; give a name ({names}) or a mapping with `design`")
    changes = {} if isinstance(given, str) else {key: given[key] for key in given if key != "design"}
    name = given if isinstance(given, str) else given.get("design", "rubric")
    if not isinstance(name, str) or name not in PRESETS:
        hint = did_you_mean(name, PRESETS, "; did you mean {}?")
        raise ValueError(f"found {name!r}, expected one of {names}{hint}")
    settings = {**PRESETS[name], **changes}
    known = [field for field in DESIGNS[settings["design"]].model_fields if field != "design"]
    for key in changes:
        if key not in known:
            hint = did_you_mean(key, known, "; did you mean {}?")
            raise ValueError(f"{name} has no setting {key!r}; it has {', '.join(known)}{hint}")
    return settings


def _routing(given: object) -> object:
    """`rubric` is short for `{by: rubric}`; YAML reads `off` as false."""
    if given is False:
        return None
    return {"by": given} if isinstance(given, str) else given


Reward = Annotated[Annotated[AnyReward, Field(discriminator="design")], BeforeValidator(_spelt_out)]
Routing = Annotated[RoutingSettings | None, BeforeValidator(_routing)]


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
