"""The one table of signals: what each is called, where it is healthy, and what an unhealthy value often means.

A signal with an interval warns only where the whole interval is outside of its bounds. docs/corpus.md has the reasons.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scope_selfplay.gates import GATES

LEAST_TASKS = 20
"""Signals that compare tasks or answers by their words, and those with intervals, say nothing about fewer."""


@dataclass(frozen=True)
class Bounds:
    """What a signal is called, its unit, where it is healthy, and what an unhealthy value often means."""

    title: str
    unit: str
    low: float | None = None
    high: float | None = None
    meaning: str = ""


_TASKS: Mapping[str, Bounds] = {
    "acceptance": Bounds("candidates kept", "share", 0.1, None, "most of the generation is thrown away"),
    "target_share": Bounds(
        "tasks of tasks.target",
        "share",
        1.0,
        None,
        "documents or candidates ran out, so the Solver trains fewer steps",
    ),
    "mean_score": Bounds(
        "mean score of tried tasks", "0-1", 0.3, 0.7, "tasks have left the Solver's frontier (0.5)"
    ),
    **{
        gate.label: Bounds(f"pass the {gate} gate", "share", terms.healthy_share, None, terms.low_share_means)
        for gate, terms in GATES.items()
    },
    "unresolved": Bounds("unresolved by a fault", "share", None, 0.05, "the judge or the search fails"),
    "judge_failures": Bounds("verdicts that failed", "share", None, 0.02, "see the judge's log"),
    "suspect_tasks": Bounds(
        "tasks suspect of injection",
        "share",
        None,
        0.01,
        "the Challenger has begun to write to judges or policies",
    ),
    "duplicates": Bounds("near duplicates", "share", None, 0.1, "the Challenger repeats itself"),
    "common_pattern": Bounds(
        "tasks of the commonest pattern", "share", None, 0.5, "the Challenger asks one thing"
    ),
    "searches_needed": Bounds(
        "searches that a rubric needs", "share", 0.3, None, "tasks can be answered without them"
    ),
}

_ANSWERS: Mapping[str, Bounds] = {
    "solver_gain": Bounds(
        "held-out score against the Solver that it was trained from", "0-1", 0.0, None, "the Solver is worse"
    ),
    "kind_gain": Bounds(
        "gain over S_0 from one kind of unasked criterion",
        "0-1",
        None,
        0.6,
        "what is asked hardly improves (0: its share of the criteria, 1: all of the gain)",
    ),
    "repeated_sentences": Bounds(
        "held-out answers that say a sentence twice", "share", None, 0.2, "repetition is not punished"
    ),
    "suspect_answers": Bounds(
        "answers suspect of injection", "share", None, 0.01, "the Solver has begun to write to its judge"
    ),
    "answer_growth": Bounds(
        "held-out answers against S_0's", "times", 0.5, 2.0, "length is being learnt, not content"
    ),
    "length_correlation": Bounds(
        "correlation of length and score among answers to one task",
        "-1-1",
        None,
        0.8,
        "the length decides the score",
    ),
}

_TRAINING: Mapping[str, Bounds] = {
    "same_score": Bounds(
        "tried tasks whose rollouts all score alike", "share", None, 0.5, "they teach nothing"
    ),
    "zero_variance": Bounds(
        "Solver's training groups without variance", "share", None, 0.5, "steps without gradient"
    ),
    "zero_variance_challenger": Bounds(
        "Challenger's training groups without variance", "share", None, 0.5, "steps without gradient"
    ),
    "calls_per_task": Bounds("judge calls for an accepted task", "calls"),
    "tokens_per_task": Bounds("judge tokens for an accepted task", "tokens"),
    "trained_tokens_per_task": Bounds("tokens sampled in training for an accepted task", "tokens"),
    "seconds_per_task": Bounds("seconds for an accepted task", "s"),
    "gpu_hours": Bounds("GPU-hours of the finished stages", "h"),
}

_JUDGE: Mapping[str, Bounds] = {
    "canary_accuracy": Bounds(
        "canaries judged right", "share", 0.9, None, "the judge errs where the right verdict is known"
    ),
    "judge_agreement": Bounds(
        "judgements that agree when asked again", "share", 0.85, None, "much of what is rewarded is chance"
    ),
    "reworded_agreement": Bounds(
        "judgements that agree when asked in other words", "share", 0.8, None, "the prompt's wording decides"
    ),
    "position_bias": Bounds(
        "what being shown first adds to a win",
        "-1-1",
        -0.05,
        0.05,
        "the place decides comparisons; ask in both orders",
    ),
    "length_bias": Bounds(
        "what words that say nothing add to a verdict", "-1-1", -0.05, 0.05, "the judge goes by length"
    ),
    "judge_drift": Bounds(
        "change in the share met by the same answers", "-1-1", -0.1, 0.1, "the judge is not the one it was"
    ),
    "judge_unread": Bounds(
        "judgements asked again that cannot be read",
        "share",
        None,
        0.02,
        "what it refuses to judge is masked",
    ),
}

BOUNDS: Mapping[str, Bounds] = {**_TASKS, **_ANSWERS, **_TRAINING, **_JUDGE}
