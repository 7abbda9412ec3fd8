"""The ablations: the arms of each, what is measured, and what the paper found.

Every arm is the embedded run with a few settings changed. An arm that several ablations have is one run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.ablations.arms import CO_EVOLVING, FROZEN_AFTER_1, FROZEN_FROM_START, Arm
from benchmarks.ablations.measures import (
    ACCEPTED,
    ANSWER_TOKENS,
    ASKED,
    FLAT_GROUPS,
    JUDGE_CALLS,
    NON_ZERO,
    ON_SOURCE,
    SAMPLED,
    Measure,
)

Line = Sequence[tuple[float, Arm]]


@dataclass(frozen=True)
class Ablation:
    """`against` says for an arm which one it is compared with, the first where it says nothing.

    `across`: a chart per name, of lines over shares instead of iterations; each line is a share and its arm.
    """

    name: str
    question: str
    paper: str
    arms: Sequence[Arm]
    measures: Sequence[Measure]
    against: Mapping[Arm, Arm] = field(default_factory=dict)
    across: Mapping[str, Mapping[str, Line]] = field(default_factory=dict)


START = Arm("start", ("iterations=1",))
"""Its first iteration: whose tasks and S_0 the arms of one trained stage share."""

GATES = Ablation(
    "gates",
    "Without its gates, do the Challenger's tasks leave their documents?",
    "SCOPE, figure 2: without gates tasks become generic and ignore their documents; after three iterations the "
    "benchmarks average 37.4 for 43.1 with gates, below the base model's 37.7.",
    (CO_EVOLVING, Arm("no-gates", ("judge.gates=[]",), of=CO_EVOLVING)),
    (ON_SOURCE, ASKED),
)

_HALF_LENGTH = "judge.noise.half_length=12"
"""A whole answer takes 11 words; the setting's default is meant for answers of a paragraph."""
_LIKES_LENGTH = ("judge.noise.longer=0.6", "judge.noise.half_length=24")
# The shipped policy never says what nobody asked for, and nothing can reward what is never sampled.
_WORDY = Arm("wordy", ("solver.steps=24", *_LIKES_LENGTH), tasks_of=START, wordy=True)
LENGTH = Ablation(
    "length",
    "Under a judge that likes length (`judge.noise.longer` 0.6), do answers grow without the length factor?",
    "SCOPE, figure 2: without the factor answers grow until training collapses; after three iterations the "
    "benchmarks average 32.8 for 43.1 with it. Here both arms begin with a policy that says a fact too many in "
    "half of its answers, and train 24 steps on tasks of one iteration.",
    (_WORDY, replace(_WORDY, name="wordy-no-factor", settings=(*_WORDY.settings, "solver.length_floor=1"))),
    (ANSWER_TOKENS, SAMPLED),
)

FROZEN = Ablation(
    "frozen",
    "Does the Solver need a Challenger that goes on learning?",
    "SCOPE, figure 3: from iteration 1 to 3 the benchmarks gain 3.4 points with co-evolution and 0.8 with the "
    "Challenger frozen at C_1; the mean score of its tasks drifts to 0.71 instead of 0.53, 0.50, 0.48. In the "
    "present world, which is younger than these runs, both frozen Challengers [fall behind](how/evidence/learning.md).",
    (CO_EVOLVING, FROZEN_AFTER_1, FROZEN_FROM_START),
    (ASKED, ACCEPTED),
)

_WIDE = ("tasks.low=0", "tasks.high=1")
WINDOW = Ablation(
    "window",
    "What does the difficulty window add?",
    "SCOPE keeps tasks with a mean score of 0.2 to 0.8 (appendix G) because the variance of a group, and so what "
    "it teaches, vanishes towards 0 and 1 (appendix C); it reports no run without the window.",
    (CO_EVOLVING, Arm("no-window", _WIDE, of=CO_EVOLVING)),
    (FLAT_GROUPS, ASKED),
)

DESIGNS = {
    "rubric": "rubric",
    "balanced": "balanced",
    "arenarl": "arenarl",
    "tournament": "tournament_grpo_4_2_2",
    "arena-live": "reasoning_arena_live",
}
"""Short names of the designs that are trained under noise."""
KINDS = ("unreadable", "first", "longer")
SHARES = (0.0, 0.1, 0.3)


def reward_settings(design: str) -> list[str]:
    name, _, changes = design.partition(":")
    return [f"solver.reward={name}", *(f"solver.reward.{each}" for each in changes.split(",") if each)]


def _under_noise(design: str, kind: str, share: float) -> Arm:
    """`solver` and `compare` of one design, for all groups. A group may lack more verdicts than usual, in each."""
    settings = [*reward_settings(f"{DESIGNS[design]}:max_missing=0.6"), "solver.routing=null"]
    name = design
    if share:
        settings += [f"judge.noise.{kind}={share}", "judge.failure_budget=1", _HALF_LENGTH]
        name = f"{design}-{kind}-{100 * share:.0f}"
    return Arm(name, tuple(settings), of=START, tasks_of=START)


_NOISY = {
    kind: {design: [(share, _under_noise(design, kind, share)) for share in SHARES] for design in DESIGNS}
    for kind in KINDS
}
NOISE = Ablation(
    "noise",
    "Which rewards bear a judge that errs, at equal steps?",
    "ArenaRL, table 3: 41.8 % of the comparisons on Open-Travel are won with tournaments, 16.4 % with pointwise "
    "scores. Tournament-GRPO, table 3: 55.09 with tournaments, 41.20 and 32.14 with pointwise scores. Reasoning "
    "Arena, table 1: 53.9 with live tournaments, 51.3 with pointwise scores of the same groups. All blame the "
    "noise and the bias of pointwise scores; none sets the noise.",
    tuple(dict.fromkeys(arm for lines in _NOISY.values() for line in lines.values() for _, arm in line)),
    (SAMPLED, JUDGE_CALLS),
    against={
        arm: _NOISY[kind]["rubric"][place][1]
        for kind, lines in _NOISY.items()
        for line in lines.values()
        for place, (_, arm) in enumerate(line)
    },
    across=_NOISY,
)

_UNWINDOWED = Arm("start-no-window", ("iterations=1", *_WIDE))
# Length, format and searches would tell the rollouts of nearly every group apart.
_BARE = (
    "solver.format_weight=0",
    "challenger.format_weight=0.5",
    "solver.search_weight=0",
    "solver.length_floor=1",
)
_FLAT = Arm("wordy-flat", (*_BARE, "solver.steps=16"), tasks_of=_UNWINDOWED, wordy=True)
_ROUTED = ("solver.routing=rubric", *reward_settings("reasoning_arena_live"))
ROUTING = Ablation(
    "routing",
    "Do groups that the rubric leaves flat teach something once they are routed to comparisons?",
    "Reasoning Arena, table 2 and figure 5: 43 to 47 % of the groups are flat; routed to live tournaments, nearly "
    "100 % of the rollouts have a non-zero advantage, and the average rises from 46.3 to 53.9. Here both arms begin "
    "with the wordy policy of `length`: the rubric does not see what was said beside the answer, a comparison does.",
    (_FLAT, replace(_FLAT, name="wordy-routed", settings=(*_FLAT.settings, *_ROUTED))),
    (NON_ZERO, FLAT_GROUPS, ANSWER_TOKENS, SAMPLED),
)

ABLATIONS = {each.name: each for each in (GATES, LENGTH, FROZEN, WINDOW, NOISE, ROUTING)}
