"""Rewards of the Solver: one group of settings per design, and presets with the settings of the papers.

`solver.reward` takes the name of a preset or a design, or a mapping with such a name and changed settings:
`arenarl`, or `{design: arena, topology: swiss}`, or `{design: tournament_grpo_2_1_1, repeats: 2}`.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from scope_selfplay.base.errors import did_you_mean
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
    if not isinstance(given, str | Mapping):
        raise ValueError(f"found {given!r}; give a name ({_names()}) or a mapping with `design`")
    changes = {} if isinstance(given, str) else {key: given[key] for key in given if key != "design"}
    name = given if isinstance(given, str) else given.get("design", "rubric")
    if not isinstance(name, str) or name not in PRESETS:
        hint = did_you_mean(name, PRESETS, "; did you mean {}?")
        raise ValueError(f"found {name!r}, expected one of {_names()}{hint}")
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


def _names() -> str:
    return ", ".join(PRESETS)


Reward = Annotated[Annotated[AnyReward, Field(discriminator="design")], BeforeValidator(_spelt_out)]
Routing = Annotated[RoutingSettings | None, BeforeValidator(_routing)]
